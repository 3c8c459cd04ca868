"""torch.compile in mode reduce-overhead: Triton kernels inside CUDA graphs that Inductor keeps."""
import gc
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
import torch

import digest


def work():
    torch.manual_seed(0)
    weights = [torch.randn(128, 128, device="cuda") for _ in range(4)]

    @torch.compile(mode="reduce-overhead", dynamic=False)
    def model(x):
        for w in weights:
            x = torch.nn.functional.gelu(x @ w).softmax(dim=-1) + x
        return x

    with torch.no_grad():
        for rows in (16, 32):
            for step in range(6):
                x = torch.randn(rows, 128).cuda()
                torch.compiler.cudagraph_mark_step_begin()
                digest.add(model(x).cpu())


work()
torch._dynamo.reset()
gc.collect()
torch.cuda.synchronize()
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()
print("allocated", torch.cuda.memory_allocated(), "reserved", torch.cuda.memory_reserved())
digest.done()
