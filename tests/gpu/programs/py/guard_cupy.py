"""Arithmetic on arrays of CuPy each time it is asked: `steps N` answers steps a second, and the sum of what came out.

    guard_cupy.py
"""
import time

import cupy as cp

import answers


def main():
    # Whole numbers, so that sums are the same in any order.
    x = (cp.arange(1 << 20, dtype=cp.int64) * 7919 % 1009).reshape(1024, 1024)

    def steps(count):
        cp.cuda.Device().synchronize()
        start, total = time.monotonic(), 0
        for round in range(int(count)):
            y = x * (round % 7 + 1) + x.T
            z = cp.sort(y, axis=1)[:, ::2].cumsum(axis=1)
            total = z.sum() + (y % 5).astype(cp.float32).dot(cp.ones(1024, dtype=cp.float32)).astype(cp.int64).sum()
        total = int(total)
        return {"per_s": int(count) / (time.monotonic() - start), "loss": total}

    answers.serve({"steps": steps})


if __name__ == "__main__":
    main()
