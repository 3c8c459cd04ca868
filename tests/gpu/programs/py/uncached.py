"""The forward of layers.py, 24 layers over 64 rows, as PyTorch allocates for it; commands on standard input: see answers.py

  ready      loads, and runs it a few times; a digest of what it gives
  rounds N   N forwards: the median time of one, ms
  end        the digest again
"""
import hashlib
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import answers
import layers


class Forward:
    def __init__(self):
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        self.model, self.x = layers.stack(24), torch.randn(64, layers.WIDTH).cuda()

    def once(self):
        start = time.perf_counter()
        y = self.model(self.x)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3, y

    def digest(self):
        return {"digest": hashlib.sha256(self.once()[1].cpu().numpy().tobytes()).hexdigest()}

    def ready(self):
        for _ in range(5):
            self.once()
        return self.digest()

    def rounds(self, count):
        return {"ms": statistics.median(self.once()[0] for _ in range(int(count)))}

    def end(self):
        return self.digest()


def main():
    with torch.no_grad():
        forward = Forward()
        answers.serve({name: getattr(forward, name) for name in ("ready", "rounds", "end")})


main()
