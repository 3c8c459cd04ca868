"""Trains on the CPU and keeps nothing, under mirror.c: it says `ready` after a few steps, and stops when its input ends."""
import os
import sys

import torch
from torch import nn

os.environ["MIRROR"] = "1"
torch.set_num_threads(1)
images = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.GELU(),
                       nn.Flatten(), nn.Linear(32 * 14 * 14, 600), nn.LayerNorm(600), nn.Linear(600, 1000), nn.Softmax(1))
words = nn.TransformerEncoderLayer(256, 4, batch_first=True)
optimizer = torch.optim.AdamW(images.parameters(), lr=1e-3)
for step in range(int(sys.argv[1])):
    loss = nn.functional.cross_entropy(images(torch.randn(32, 3, 32, 32)), torch.randint(0, 1000, (32,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    words(torch.randn(4, 64, 256)).sum().backward()
    both = torch.cat([torch.randn(300, 300) for _ in range(4)])
    torch.linalg.inv(both.t().contiguous() @ both)
    torch.cumsum(torch.sort((both.t() @ both).reshape(-1))[0], 0).to(torch.float64)
print("ready", flush=True)
sys.stdin.read()
