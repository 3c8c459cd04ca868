"""A program that is parked between its steps and goes on where it was: goes_on.py torch|graphs|compile|cupy|jax|GIB|managed:GIB

Each line on its input is a step; the answer has a digest of what the GPU has by then, which depends on all steps before.
"""
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
from answers import serve


def torch_steps():
    import torch
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
    x = torch.randn(64, 512, device="cuda")
    return torch, model, x


def of_torch():
    torch, model, x = torch_steps()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def of_graphs():
    torch, model, x = torch_steps()
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
            x.add_(y, alpha=1e-3)

    def step():
        graph.replay()
        return x.double().sum().item()
    return step


def of_compile():
    torch, model, x = torch_steps()
    forward = torch.compile(model, mode="reduce-overhead")

    def step():
        with torch.no_grad():
            x.add_(forward(x).clone(), alpha=1e-3)
        return x.double().sum().item()
    for _ in range(3):
        step()
    return step


def of_cupy():
    import cupy
    x = cupy.arange(1 << 20, dtype=cupy.float64)
    kernel = cupy.RawKernel('extern "C" __global__ void k(double *x) { int i = blockIdx.x * 256 + threadIdx.x; x[i] = x[i] * 1.0001 + i; }', "k")

    def step():
        kernel((4096,), (256,), (x,))
        return float(x.sum())
    return step


def of_jax():
    import jax
    import jax.numpy as jnp
    state = [jnp.arange(1 << 16, dtype=jnp.float32)]
    forward = jax.jit(lambda x: x * 1.0001 + jnp.sin(x))

    def step():
        state[0] = forward(state[0])
        return float(state[0].sum())
    return step


def of_size(gib):
    import torch
    blocks = [torch.full((1 << 28,), at, dtype=torch.int32, device="cuda") for at in range(gib)]

    def step():
        for block in blocks:
            block.add_(1)
        return sum(int(block.max()) * 3 + int(block.min()) for block in blocks)
    return step


def of_managed(gib):
    """A step moves managed memory to the host, and touches it on the device. The digest is the seconds of both."""
    import ctypes
    import time
    import cupy

    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
    host, driver = Location(2, 0), ctypes.CDLL("libcuda.so.1")
    memory = cupy.cuda.malloc_managed(gib << 30)
    words = cupy.ndarray((gib << 28,), dtype=cupy.int32, memptr=memory)
    words.fill(1)

    def step():
        begin = time.monotonic()
        status = driver.cuMemPrefetchAsync_v2(ctypes.c_uint64(memory.ptr), ctypes.c_size_t(gib << 30), host, 0, None)
        cupy.cuda.runtime.deviceSynchronize()
        middle = time.monotonic()
        cupy.add(words, 1, out=words)
        cupy.cuda.runtime.deviceSynchronize()
        if status or int(words[-1]) == 0:
            raise RuntimeError(f"cuMemPrefetchAsync: {status}")
        return f"{middle - begin:.2f} {time.monotonic() - middle:.2f}"
    return step


OF = {"torch": of_torch, "graphs": of_graphs, "compile": of_compile, "cupy": of_cupy, "jax": of_jax}


def main():
    name = sys.argv[1]
    if name.startswith("managed:"):
        step = of_managed(int(name.removeprefix("managed:")))
        return serve({"step": lambda: {"digest": step()}})
    step = OF[name]() if name in OF else of_size(int(name))
    serve({"step": lambda: {"digest": repr(step())}})


main()
