"""200 PyTorch CUDA graphs of a 24-layer forward, each of another batch size, replayed by turns.

    graphs_round_robin.py [--graphs 200] [--rounds 5] [--layers 24]

Prints one JSON line: time and host time per replay, how host and device memory grew from before the
first capture, and how many replays gave another result than the eager forward. Ends without tearing
anything down, so that what is live can be read from the ledger.
"""
import argparse
import json
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import digest


class Layer(torch.nn.Module):
    """Attention over the rows, then an MLP; plain operators, about 16 kernels."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        rows, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
        weights = torch.softmax(q @ k.transpose(1, 2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(0, 1).reshape(rows, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def memory():
    """(host MiB, anonymous host MiB, device MiB)."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        lines = {line.split(":")[0]: line.split()[1] for line in file if ":" in line and line.split()[1].isdigit()}
    left, total = torch.cuda.mem_get_info()
    return int(lines["Rss"]) / 1024, int(lines["Anonymous"]) / 1024, (total - left) / 2**20


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--graphs", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--layers", type=int, default=24)
    k = arguments.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer(256, 4) for _ in range(k.layers))).cuda().eval()
    wrong, captured = 0, []
    with torch.no_grad():
        inputs = [torch.randn(1 + i, 256).cuda() for i in range(k.graphs)]
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):  # every size once: what libraries load and reserve for it is there
            want = [model(x).clone() for x in inputs]
        torch.cuda.synchronize()
        before = memory()
        pool = torch.cuda.graph_pool_handle()
        start = time.perf_counter()
        for x in inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                y = model(x)
            captured.append((graph, y))
        torch.cuda.synchronize()
        made = time.perf_counter() - start
        created = memory()

        # All share one pool, in which every output has a place of its own for as long as it lives.
        def check():
            bad = 0
            for (graph, y), expected in zip(captured, want):
                graph.replay()
                result = y.clone()
                bad += not torch.allclose(result, expected, rtol=1e-3, atol=1e-3)
                digest.add(result.cpu())
            return bad

        wrong += check()
        walls, hosts = [], []
        for _ in range(k.rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for graph, _ in captured:
                graph.replay()
            torch.cuda.synchronize()
            walls.append((time.perf_counter() - start) / len(captured))
        for _ in range(k.rounds):
            for graph, _ in captured:
                start = time.perf_counter()
                graph.replay()
                hosts.append(time.perf_counter() - start)
                torch.cuda.synchronize()
        wrong += check()
    after = memory()
    digest.done()
    names = ("host_mib", "anonymous_mib", "device_mib")
    print(json.dumps({
        "graphs": k.graphs, "wrong": wrong, "checked": 2 * k.graphs, "replay_us": statistics.median(walls) * 1e6,
        "host_us": statistics.median(hosts) * 1e6, "capture_s": made,
        **{name: b - a for name, a, b in zip(names, before, after)},
        **{f"{name[:-4]}_created_mib": b - a for name, a, b in zip(names, before, created)},
    }), flush=True)
    os._exit(1 if wrong else 0)


main()
