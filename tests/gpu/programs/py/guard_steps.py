"""Trains a small transformer for some steps each time it is asked: `steps N` answers steps a second, and the last loss.

    guard_steps.py [WIDTH]

With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor is a cudaMalloc of its own.
"""
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import answers

WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 512
BATCH, LENGTH = 8, 256


def main():
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    # The other ways to compute attention are not deterministic.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    given = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")

    def steps(count):
        torch.cuda.synchronize()
        start, loss = time.monotonic(), None
        for _ in range(int(count)):
            optimizer.zero_grad()
            loss = model(given).square().mean()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        return {"per_s": int(count) / (time.monotonic() - start), "loss": float(loss.detach())}

    answers.serve({"steps": steps})


if __name__ == "__main__":
    main()
