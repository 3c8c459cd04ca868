"""torch.compile in mode reduce-overhead, a compilation of its own and CUDA graphs for each of many shapes.

    compile_shapes.py [--shapes 100] [--replays 3] [--rounds 3]

Prints a line of JSON for each shape when it is compiled and recorded (seconds, the digest of its result, whether it rested before the line), then one for
each round through all of them (microseconds a replay, the digest of all results). Ends without tearing anything down.
"""
import argparse
import json
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
import torch
import torch._inductor.config

import digest

WIDTH = 128
TOLD = 1.2  # memory is taken at lines that say "rested": the ledger says once a second what the pool keeps idle


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--shapes", type=int, default=100)
    arguments.add_argument("--replays", type=int, default=3)
    arguments.add_argument("--rounds", type=int, default=3)
    k = arguments.parse_args()
    config = torch._dynamo.config
    for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit", "accumulated_cache_size_limit"):
        if hasattr(config, name):
            setattr(config, name, 4 * k.shapes)
    # What a timing decides may be decided otherwise in the next run, and results differ in their last bits.
    torch._inductor.config.triton.autotune_pointwise = False
    torch._inductor.config.shape_padding = False
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda") / 12 for _ in range(4)]

    # Without reductions: how one is split may be chosen by timing, and results would differ by run.
    @torch.compile(mode="reduce-overhead", dynamic=False)
    def model(x):
        for w in weights:
            x = torch.tanh(torch.nn.functional.gelu(x @ w) + x)
        return x

    inputs = [torch.randn(8 + 3 * i, WIDTH).cuda() for i in range(k.shapes)]

    def visit(x, times):
        for _ in range(times):
            torch.compiler.cudagraph_mark_step_begin()
            y = model(x)
        return y.cpu()

    with torch.no_grad():
        for number, x in enumerate(inputs, 1):
            start = time.monotonic()
            result = visit(x, k.replays)
            torch.cuda.synchronize()
            took = time.monotonic() - start
            rested = number % 5 == 0
            if rested:
                time.sleep(TOLD)
            print(json.dumps({"shape": number, "seconds": took, "digest": digest.of(result), "rested": rested}), flush=True)
        for number in range(1, k.rounds + 1):
            torch.cuda.synchronize()
            start = time.monotonic()
            results = [visit(x, 1) for x in inputs]
            took = time.monotonic() - start
            print(json.dumps({"round": number, "us": 1e6 * took / k.shapes, "digest": digest.of(*results)}), flush=True)
    os._exit(0)


main()
