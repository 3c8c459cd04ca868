"""A training loop whose lengths and batches change, with a few CUDA graphs of the shapes it meets most.

    flat_shapes.py SECONDS HOLD

20 ms between two steps. At each fiftieth step it prints a line and pauses, so that memory is read behind that very step. The
line has what PyTorch's allocator holds of the device, in MiB. Then it rests for HOLD seconds and prints a last line.
"""
import collections
import json
import random
import sys
import time

import torch

SECONDS, HOLD = float(sys.argv[1]), float(sys.argv[2])
# The pause is longer than the shim takes to tell its idle bytes again (1 s).
STEP, MARK, PAUSE, GRAPHS, WIDTH = 0.02, 50, 1.5, 12, 256


def mark(name, **more):
    print(json.dumps({"mark": name, "reserved": torch.cuda.memory_reserved() / 2**20, **more}), flush=True)


def main():
    torch.manual_seed(1)
    chosen = random.Random(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 512, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    graphs, captures, steps, start = collections.OrderedDict(), 0, 0, time.monotonic()
    while time.monotonic() - start < SECONDS:
        length, batch = 16 * chosen.randint(1, 48), chosen.randint(1, 6)
        if steps % 4:
            loss = model(torch.randn(batch, length, WIDTH, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            key = (batch, length)
            if key not in graphs:
                while len(graphs) >= GRAPHS:
                    graphs.popitem(last=False)
                where = torch.zeros(batch, length, WIDTH, device="cuda")
                graph = torch.cuda.CUDAGraph()
                with torch.no_grad():
                    model(where)
                    torch.cuda.synchronize()
                    with torch.cuda.graph(graph):
                        result = model(where)
                graphs[key] = graph, where, result
                captures += 1
            graph, where, _ = graphs[key]
            where.normal_()
            graph.replay()
            for other, *_ in chosen.sample(list(graphs.values()), min(3, len(graphs))):
                other.replay()
        steps += 1
        torch.cuda.synchronize()
        if steps % MARK == 0:
            mark(steps, captures=captures)
            time.sleep(PAUSE)
        else:
            time.sleep(STEP)
    torch.cuda.synchronize()
    time.sleep(HOLD)
    mark("rested")
    time.sleep(PAUSE)


main()
