"""NCCL all-reduces inside CUDA graphs on two GPUs.

    two_gpus.py processes     two processes with torch.distributed
    two_gpus.py devices       one process, both devices: a graph for each, with torch.cuda.nccl
    two_gpus.py contexts      one graph with kernels on both devices

Sizes and replays are many, so that graphs have to share what is bounded. Every replay is compared with
what the same calls give without a graph; prints a digest of all results for each rank. Ends without
tearing the rest down, so that what is live can be read from the ledger.
"""
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import digest

SIZES, REPLAYS = 24, 6


def compare(result, want, what):
    if not torch.allclose(result, want, rtol=1e-4, atol=1e-4):
        raise SystemExit(f"{what} differs from the same calls without a graph")
    digest.add(result.cpu())


def rank(index, store):
    import torch.distributed as dist

    torch.cuda.set_device(index)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=index, world_size=2)
    torch.manual_seed(index)
    weight = torch.randn(256, 256, device="cuda") / 16

    def step(x):
        y = x @ weight
        dist.all_reduce(y)
        return torch.tanh(y) @ weight

    with torch.no_grad():
        inputs = [torch.randn(8 + i, 256, device="cuda") for i in range(SIZES)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            want = [step(x).clone() for x in inputs]
        torch.cuda.synchronize()
        dist.barrier()
        captured = []
        for x in inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                y = step(x)
            captured.append((graph, y))
        for replay in range(REPLAYS):
            for i, (graph, y) in enumerate(captured):
                graph.replay()
                compare(y, want[i], f"rank {index}: replay {replay} of size {8 + i}")
        torch.cuda.synchronize()
        dist.barrier()
        for graph, _ in captured[::2]:  # half of them are given back, with what NCCL keeps for them
            graph.reset()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
    digest.done()


def processes():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "rank"]
        ranks = [subprocess.Popen([*command, str(i), f"{folder}/store"], stdout=subprocess.PIPE, text=True) for i in range(2)]
        said = [process.communicate()[0] for process in ranks]
    for i, text in enumerate(said):
        print(f"rank {i} {text.strip()}")
    if any(process.returncode for process in ranks):
        sys.exit(f"ranks ended with {[process.returncode for process in ranks]}")


def devices():
    from torch.cuda import nccl

    torch.manual_seed(0)
    streams = [torch.cuda.Stream(d) for d in range(2)]
    captured = []
    for i in range(SIZES):
        inputs = [torch.randn(1024 * (1 + i), device=f"cuda:{d}") for d in range(2)]
        scaled, sums = [torch.empty_like(x) for x in inputs], [torch.empty_like(x) for x in inputs]

        def step():
            for d in range(2):
                with torch.cuda.device(d), torch.cuda.stream(streams[d]):
                    torch.mul(inputs[d], 1.5, out=scaled[d])
            nccl.all_reduce(scaled, sums, streams=streams)

        for d in range(2):
            torch.cuda.synchronize(d)
        step()
        for d in range(2):
            torch.cuda.synchronize(d)
        want = [x.clone() for x in sums]
        for d in range(2):
            torch.cuda.synchronize(d)
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        for d in range(2):
            with torch.cuda.device(d), torch.cuda.stream(streams[d]):
                graphs[d].capture_begin(capture_error_mode="relaxed")
        step()
        for d in range(2):
            with torch.cuda.device(d), torch.cuda.stream(streams[d]):
                graphs[d].capture_end()
        captured.append((graphs, inputs, scaled, sums, want))
    for replay in range(REPLAYS):
        for i, (graphs, _, _, sums, want) in enumerate(captured):
            for d in range(2):
                with torch.cuda.device(d), torch.cuda.stream(streams[d]):
                    sums[d].zero_()
                    graphs[d].replay()
            for d in range(2):
                torch.cuda.synchronize(d)
                compare(sums[d], want[d], f"device {d}: replay {replay} of size {i}")
    digest.done()


def contexts():
    torch.manual_seed(0)
    streams = [torch.cuda.Stream(d) for d in range(2)]
    captured = []
    for i in range(SIZES):
        inputs = [torch.randn(1024 + i, device=f"cuda:{d}") for d in range(2)]
        outputs = [torch.empty_like(x) for x in inputs]
        for d in range(2):
            torch.cuda.synchronize(d)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(0), torch.cuda.graph(graph, stream=streams[0], capture_error_mode="relaxed"):
            torch.mul(inputs[0], 3.0, out=outputs[0])
            streams[1].wait_stream(streams[0])
            with torch.cuda.device(1), torch.cuda.stream(streams[1]):
                torch.mul(inputs[1], 5.0, out=outputs[1])
            streams[0].wait_stream(streams[1])
        captured.append((graph, inputs, outputs))
    for replay in range(REPLAYS):
        for i, (graph, inputs, outputs) in enumerate(captured):
            for output in outputs:
                output.zero_()
            for d in range(2):
                torch.cuda.synchronize(d)
            graph.replay()
            for d in range(2):
                torch.cuda.synchronize(d)
                compare(outputs[d], inputs[d] * (3.0, 5.0)[d], f"device {d}: replay {replay} of size {i}")
    digest.done()


if sys.argv[1] == "rank":
    rank(int(sys.argv[2]), sys.argv[3])
else:
    {"processes": processes, "devices": devices, "contexts": contexts}[sys.argv[1]]()
sys.stdout.flush()
os._exit(0)
