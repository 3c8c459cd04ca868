"""Models that are loaded and dropped in turn in one process, as programs do that show one model after another.

Commands on standard input (see answers.py):

  ready        host memory for the largest model, filled with random weights
  load MIB     a model of so many MiB: two tensors of the device for each of its layers, copied from host memory, and a
               forward through them: seconds of the copies, the digest of the results so far
  drop         the model is dropped, garbage is collected, PyTorch's cache emptied
"""
import gc
import time

import torch

import answers
import digest

LARGEST_MIB, WIDTH = 6144, 2048
LAYER_MIB = WIDTH * WIDTH * 4 * 2 / 2**20  # four times WIDTH², in f16


class Models:
    def ready(self):
        torch.manual_seed(0)
        count = int(LARGEST_MIB / LAYER_MIB) * 4 * WIDTH * WIDTH
        some = (torch.randn(16 << 20) / WIDTH**0.5).half()
        self.host = torch.empty(count, dtype=torch.float16)
        for at in range(0, count, some.numel()):
            part = self.host[at : at + some.numel()]
            part.copy_(some[: part.numel()])
        torch.zeros(1, device="cuda")
        self.model = []
        return {"host_mib": self.host.numel() * 2 / 2**20}

    def load(self, mib):
        layers = max(1, int(float(mib) / LAYER_MIB))
        start = time.monotonic()
        for at in range(layers):
            base = at * 4 * WIDTH * WIDTH
            # Matrices of other shapes for other layers, as real models have them.
            wide = WIDTH * (1 + at % 3)
            self.model.append([self.host[base : base + WIDTH * wide].view(wide, WIDTH).to("cuda"),
                               self.host[base + WIDTH * wide : base + 4 * WIDTH * WIDTH].to("cuda")])
        torch.cuda.synchronize()
        seconds = time.monotonic() - start
        x = torch.ones(64, WIDTH, dtype=torch.float16, device="cuda")
        with torch.no_grad():
            for into, rest in self.model:
                h = torch.nn.functional.relu(x @ into.t())
                x = torch.nn.functional.layer_norm((h @ into) + rest[: WIDTH].view(1, WIDTH), (WIDTH,))
        digest.add(x.cpu())
        return {"seconds": seconds, "digest": digest.hexdigest()}

    def drop(self):
        self.model = []
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return {"allocated_mib": torch.cuda.memory_allocated() / 2**20}


models = Models()
answers.serve({name: getattr(models, name) for name in ("ready", "load", "drop")})
