"""PyTorch CUDA graphs: several shapes captured into one pool, replayed in turn, then dropped."""
import gc
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import digest


def work():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU()))).cuda()
    captured = []
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(torch.zeros(64, 256, device="cuda"))
        torch.cuda.current_stream().wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        for rows in range(1, 41):
            x = torch.zeros(rows, 256, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                y = model(x)
            captured.append((graph, x, y))
        for replay in range(4):
            for graph, x, y in captured:
                x.copy_(torch.randn(x.shape))
                graph.replay()
                want = model(x)
                if not torch.equal(y, want):
                    raise SystemExit(f"replay {replay} of {tuple(x.shape)} differs from eager")
                digest.add(y.cpu())
    for graph, _, _ in captured:
        graph.reset()


work()
torch.cuda.synchronize()
gc.collect()
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()
print("allocated", torch.cuda.memory_allocated(), "reserved", torch.cuda.memory_reserved())
digest.done()
