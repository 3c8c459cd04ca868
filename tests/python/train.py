"""A program like one of PyTorch: a step keeps an activation, and its backward pass runs on a thread of native code.

It trains until stdin ends. BACKWARD names the library with the backward pass.
"""

import ctypes
import os
import select
import sys

runtime = ctypes.CDLL("libcudart.so.13")
passes = ctypes.CDLL(os.environ["BACKWARD"])


def tensor(size):
    pointer = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


class Model:
    def __init__(self):
        self.weights = [tensor(4 << 20) for _ in range(4)]
        self.history = []

    def forward(self):
        activation = tensor(64 << 10)
        self.history.append(activation)

    def step(self):
        scratch = tensor(1 << 20)
        self.forward()
        assert passes.backward() == 0
        runtime.cudaFree(scratch)


model = Model()
for _ in range(16):
    model.step()
print("training", flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    model.step()
