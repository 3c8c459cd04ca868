"""torch.compile in mode reduce-overhead over many sizes: Inductor keeps a CUDA graph for each.

    compile_sizes.py [--sizes 100] [--replays 3]

One compilation with a dynamic size, one recorded graph per size. Prints a digest of all results, and
one JSON line with how memory grew from after the first size. Ends without tearing anything down.
"""
import argparse
import json
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
import torch

import digest


def memory():
    """(host MiB, device MiB)."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        rss = next(int(line.split()[1]) for line in file if line.startswith("Rss"))
    left, total = torch.cuda.mem_get_info()
    return rss / 1024, (total - left) / 2**20


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sizes", type=int, default=100)
    arguments.add_argument("--replays", type=int, default=3)
    k = arguments.parse_args()
    torch.manual_seed(0)
    weights = [torch.randn(128, 128, device="cuda") / 12 for _ in range(12)]

    @torch.compile(mode="reduce-overhead")
    def model(x):
        for w in weights:
            x = torch.nn.functional.gelu(x @ w).softmax(dim=-1) + x
        return x

    def visit(rows, times):
        x = torch.randn(rows, 128).cuda()
        torch._dynamo.mark_dynamic(x, 0)
        for _ in range(times):
            torch.compiler.cudagraph_mark_step_begin()
            digest.add(model(x).cpu())

    with torch.no_grad():
        visit(8, k.replays)
        visit(9, k.replays)
        torch.cuda.synchronize()
        before = memory()
        for rows in range(10, 10 + k.sizes):
            visit(rows, k.replays)
        for rows in range(10, 10 + k.sizes):
            visit(rows, 1)
        torch.cuda.synchronize()
        after = memory()
    digest.done()
    print(json.dumps({"sizes": k.sizes, "host_mib": after[0] - before[0], "device_mib": after[1] - before[1]}), flush=True)
    os._exit(0)


main()
