"""Inference with a CUDA graph for each of a few batch sizes, as serving programs do it; requests are padded to the next size.

Commands on standard input (see answers.py):

  ready      loads the model, and runs every size once eagerly
  capture    captures a graph a size, the largest first, in one pool
  serve N    N requests of random sizes: milliseconds of each, and how many do not give what the model gives eagerly
  end        the digest of all results
"""
import os
import random
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import answers
import digest
import layers

SIZES = (1, 2, 4, *range(8, 257, 8))
DEPTH = 24


class Server:
    def ready(self):
        torch.manual_seed(0)
        self.model, self.chosen, self.graphs = layers.stack(DEPTH), random.Random(0), {}
        self.where = torch.zeros(SIZES[-1], layers.WIDTH, device="cuda")
        with torch.no_grad():
            for size in SIZES:
                self.model(self.where[:size])
        torch.cuda.synchronize()
        return {}

    def capture(self):
        pool = torch.cuda.graph_pool_handle()
        start = time.monotonic()
        with torch.no_grad():
            for size in reversed(SIZES):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    result = self.model(self.where[:size])
                self.graphs[size] = graph, result
        torch.cuda.synchronize()
        return {"graphs": len(self.graphs), "seconds": time.monotonic() - start}

    def serve(self, count):
        took, wrong = [], 0
        for number in range(int(count)):
            batch = self.chosen.randint(1, SIZES[-1])
            size = next(size for size in SIZES if size >= batch)
            request = torch.randn(batch, layers.WIDTH)
            start = time.monotonic()
            self.where[:batch].copy_(request)
            graph, result = self.graphs[size]
            graph.replay()
            answer = result[:batch].cpu()
            took.append(1000 * (time.monotonic() - start))
            digest.add(answer)
            if number % 50 == 0:
                with torch.no_grad():
                    wrong += not torch.allclose(self.model(self.where[:size])[:batch].cpu(), answer, rtol=1e-4, atol=1e-4)
        return {"ms": took, "wrong": wrong}

    def end(self):
        return {"digest": digest.hexdigest()}


server = Server()
answers.serve({name: getattr(server, name) for name in ("ready", "capture", "serve", "end")})
