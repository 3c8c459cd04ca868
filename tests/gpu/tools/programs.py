"""The programs that run.py runs: how each is started and what may be expected of it."""
import dataclasses
import importlib.util
import os
import sys

from harness import BUILD, HERE


@dataclasses.dataclass
class Program:
    name: str
    argv: list
    env: dict = dataclasses.field(default_factory=dict)
    frees_all: bool = True  # what it and its libraries took is given back before it ends
    repeats: bool = True  # two runs make the same calls
    needs: tuple = ()  # Python packages without which it is skipped
    timeout: int = 180

    def missing(self):
        """Why this cannot run here, or None."""
        if not os.path.exists(self.argv[0]):
            return f"{self.argv[0]} was not built"
        return next((f"no Python package {p}" for p in self.needs if not installed(p)), None)


def installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is not there
        return False


def python(name, script, needs, **more):
    return Program(name, [sys.executable, HERE / "programs/py" / script], needs=needs, **more)


def built(name, *arguments, **more):
    return Program(name, [BUILD / "programs" / name.split(":")[0], *arguments], **more)


UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

ALL = [
    # nvcc programs, with cudart linked in and shared.
    Program("saxpy-static-cudart", [BUILD / "saxpy_static"]),
    Program("saxpy-shared-cudart", [BUILD / "saxpy_shared"]),
    Program("graphs-static-cudart", [BUILD / "graphs_static"]),
    Program("graphs-shared-cudart", [BUILD / "graphs_shared"]),
    Program("gemm-cublas", [BUILD / "gemm"], frees_all=False),
    # The C clients of tests/programs, which also count for themselves.
    built("basic"),
    built("basic_static"),
    built("graphs"),
    built("graphs_static"),
    built("graphmem", "--graphs", "40", "--nodes", "200"),
    built("captures"),
    built("threads", repeats=False),
    built("driver"),
    built("driver_dlopen"),
    built("demo", "--iterations", "200", timeout=120),
    built("demo_static", "--iterations", "200", timeout=120),
    # Libraries on top.
    # When a block is free again depends on when a stream was seen to be done.
    python("torch-cached", "torch_train.py", ("torch",), frees_all=False, repeats=False),
    python("torch-uncached", "torch_train.py", ("torch",), env=UNCACHED, frees_all=False),
    python("torch-graphs", "torch_graphs.py", ("torch",), frees_all=False),
    python("torch-compile", "torch_compile.py", ("torch", "triton"), frees_all=False, repeats=False, timeout=300),
    python("cupy-pool", "cupy_arrays.py", ("cupy",), frees_all=False),
    python("cupy-plain", "cupy_arrays.py", ("cupy",), env={"CUPY_POOL": "off"}, frees_all=False),
    python("cupy-async", "cupy_arrays.py", ("cupy",), env={"CUPY_POOL": "async"}, frees_all=False),
    python("numba", "numba_jit.py", ("numba",), frees_all=False),
    python("jax", "jax_jit.py", ("jax",), frees_all=False, repeats=False),
    python("driver-bindings", "driver_bindings.py", ("cuda.bindings",)),
]
