"""PyTorch: a small convolutional network trained for some steps, then everything given back.

With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor is a cudaMalloc of its own.
"""
import gc
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import digest

STEPS = 12


def train():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(16 * 15 * 15, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    losses = []
    for step in range(STEPS):
        x = torch.randn(8 + step, 3, 32, 32, pin_memory=True)
        y = torch.randint(0, 10, (8 + step,))
        with torch.cuda.stream(side):
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        y.record_stream(torch.cuda.current_stream())
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest.add(losses, *(p.detach().cpu() for p in model.parameters()))


train()
torch.cuda.synchronize()
gc.collect()
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()
print("allocated", torch.cuda.memory_allocated(), "reserved", torch.cuda.memory_reserved())
digest.done()
