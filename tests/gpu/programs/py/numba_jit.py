"""numba: cuda.jit kernels, device arrays, streams, pinned, mapped and managed arrays (driver API)."""
import gc

import numpy as np

# numba of early 2026 imports names that numpy 2.5 dropped.
for name, instead in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
    if not hasattr(np, name):
        setattr(np, name, getattr(np, instead))

from numba import cuda  # noqa: E402

import digest


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def work():
    rng = np.random.default_rng(2)
    stream = cuda.stream()
    for round in range(8):
        n = 5000 + 1000 * round
        x, y = rng.integers(0, 100, n).astype(np.float32), rng.integers(0, 100, n).astype(np.float32)
        dx, dy = cuda.to_device(x, stream=stream), cuda.to_device(y, stream=stream)
        axpy[(n + 127) // 128, 128, stream](np.float32(2), dx, dy)
        out = dy.copy_to_host(stream=stream)
        stream.synchronize()
        if not np.array_equal(out, 2 * x + y):
            raise SystemExit(f"wrong at round {round}")
        digest.add(out)
    empty = cuda.device_array((100, 7), dtype=np.float64)
    pinned = cuda.pinned_array(1000, dtype=np.float32)
    managed = cuda.managed_array(1000, dtype=np.float32)
    managed[:] = 1
    pinned[:] = 3
    axpy[8, 128](np.float32(2), cuda.to_device(pinned), managed)
    cuda.synchronize()
    digest.add(np.array(managed))
    del empty, pinned, managed


work()
gc.collect()
cuda.synchronize()
cuda.current_context().memory_manager.deallocations.clear()
digest.done()
