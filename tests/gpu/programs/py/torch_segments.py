"""Holds tensors of 560 MiB until the process ends, and prints what PyTorch has reserved then. How PyTorch allocates is in
PYTORCH_CUDA_ALLOC_CONF."""
import json

import torch

held = [torch.full((14 << 20,), float(n), device="cuda", dtype=torch.float32) for n in range(10)]
torch.cuda.synchronize()
print(json.dumps({"live": 560 << 20, "reserved": torch.cuda.memory_reserved(), "sum": float(sum(t[-1].item() for t in held))}),
      flush=True)
# What is live at the end stays in the ledger.
import os  # noqa: E402

os._exit(0)
