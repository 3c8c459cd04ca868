"""CuPy: array arithmetic, a RawKernel, streams, pinned memory and a captured graph.

CUPY_POOL=off gives each array a cudaMalloc of its own; CUPY_POOL=async uses cudaMallocAsync.
"""
import os

import cupy as cp
import numpy as np

import digest

pool = os.environ.get("CUPY_POOL", "on")
if pool == "off":
    cp.cuda.set_allocator(None)
    cp.cuda.set_pinned_memory_allocator(None)
elif pool == "async":
    cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)

scale = cp.RawKernel(
    r"""extern "C" __global__ void scale(unsigned *p, unsigned n, unsigned factor) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] *= factor;
    }""",
    "scale",
)


def work():
    rng = np.random.default_rng(1)
    for round in range(10):
        host = rng.integers(0, 1000, 10000 + 777 * round, dtype=np.uint32)
        a = cp.asarray(host)
        b = a * 3 + cp.arange(a.size, dtype=cp.uint32)
        c = cp.sort(b)[::2].cumsum()
        digest.add(cp.asnumpy(b), cp.asnumpy(c))
        scale((32,), (256,), (b, np.uint32(b.size), np.uint32(round + 1)))
        digest.add(cp.asnumpy(b))
        m = cp.asarray(rng.integers(-4, 5, (64 + round, 64)).astype(np.float32))
        digest.add(cp.asnumpy(m @ m.T))
    stream = cp.cuda.Stream(non_blocking=True)
    x = cp.ones(4096, dtype=cp.uint32)
    cp.cuda.Device().synchronize()
    with stream:
        scale((4,), (256,), (x, np.uint32(x.size), np.uint32(1)))
        stream.synchronize()
        stream.begin_capture()
        for _ in range(5):
            scale((4,), (256,), (x, np.uint32(x.size), np.uint32(3)))
        graph = stream.end_capture()
        for _ in range(4):
            graph.launch(stream)
        stream.synchronize()
    digest.add(cp.asnumpy(x))
    pinned = cp.cuda.alloc_pinned_memory(1 << 16)
    del pinned, graph, x


work()
cp.cuda.Device().synchronize()
cp.get_default_memory_pool().free_all_blocks()
cp.get_default_pinned_memory_pool().free_all_blocks()
digest.done()
