"""Trains, and keeps more and more: an activation of each step and what its backward pass made, or a CUDA graph of each step.

    keeps.py tensors | graphs SECONDS
"""
import sys
import time

import torch

ROWS, WIDTH = 64, 256


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.history = None

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        if self.history is not None:
            self.history.append(hidden.detach())
        return self.down(hidden)


def gradients(model, x):
    """A step: the gradients are made by the backward pass, on a thread of PyTorch's own."""
    loss = model(x).square().mean()
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def keep_tensors(model, until):
    model.history, kept = [], []
    while time.monotonic() < until:
        x = torch.randn(ROWS, WIDTH, device="cuda")
        kept.append(gradients(model, x)[1])
        time.sleep(0.03)


def record_step(model, pool, x, result):
    """A graph of a whole step, backward pass included, that leaves the loss in `result`."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result.copy_(gradients(model, x)[0].detach())
    return graph


def keep_graphs(model, until):
    x, result = torch.randn(ROWS, WIDTH, device="cuda"), torch.zeros((), device="cuda")
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            expected = float(gradients(model, x)[0])
    torch.cuda.current_stream().wait_stream(aside)
    pool, kept = torch.cuda.graph_pool_handle(), []
    while time.monotonic() < until:
        number = len(kept)
        kept.append(record_step(model, pool, x, result))
        for again in {number, number // 2, 0}:
            result.zero_()
            kept[again].replay()
            if number % 50 == 0 and abs(float(result) - expected) > 1e-3 * abs(expected):
                sys.exit(f"graph {again} of {number} says {float(result)}, and {expected} is right")
        time.sleep(0.002)


def main():
    torch.manual_seed(1)
    until = time.monotonic() + float(sys.argv[2])
    {"tensors": keep_tensors, "graphs": keep_graphs}[sys.argv[1]](Model().cuda(), until)


if __name__ == "__main__":
    main()
