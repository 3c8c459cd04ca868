"""Holds much memory, loses one block of it through ctypes, and computes when it is asked: one line of JSON each time.

    lost_torch.py GIB
"""
import ctypes
import gc
import json
import sys
import time

import torch

KEY = 0xA5A5000000000000


def cudart():
    """The runtime that PyTorch has loaded."""
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))


def allocate(runtime, bytes_):
    at = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(bytes_)) == 0
    address = at.value
    at.value = 0
    return address ^ KEY


def main():
    torch.manual_seed(1)
    runtime = cudart()
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    gib = min(int(sys.argv[1]), max(1, int(free * 0.6) >> 30))
    held = [torch.full((1 << 28,), float(n), device="cuda") for n in range(gib)]
    lost, kept_hidden = allocate(runtime, 8 << 20), allocate(runtime, 8 << 20)
    kept = ctypes.c_void_p(kept_hidden ^ KEY)
    gc.collect()
    a = torch.randn(2048, 2048, device="cuda")
    print(json.dumps({"gib": gib, "lost": lost ^ KEY, "kept": kept.value, "sum": float(sum(t[0] for t in held))}), flush=True)
    for line in sys.stdin:
        if line.strip() != "steps":
            break
        b, start = a.clone(), time.monotonic()
        for _ in range(4000):
            b = torch.tanh(a @ b * 0.01)
        result = float(b.double().sum())
        print(json.dumps({"sum": result, "per_s": round(4000 / (time.monotonic() - start), 1)}), flush=True)
    assert kept.value


if __name__ == "__main__":
    main()
