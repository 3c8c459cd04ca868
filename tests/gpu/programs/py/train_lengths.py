"""Training with batches and lengths that change, with deterministic operators.

    train_lengths.py SECONDS [RANK STORE]

With RANK and STORE it is one of two processes of data-parallel training over NCCL (its SECONDS are then steps).
Prints a line of JSON every EVERY steps: the step, a digest of all losses until then, milliseconds a step.
"""
import json
import os
import random
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import digest

EVERY, WIDTH, LAYERS, WORDS = 20, 512, 6, 4096


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS)
        self.out = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.out(self.layers(self.embedding(tokens)))


def main():
    limit, rank = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    torch.use_deterministic_algorithms(True)
    for kind in ("flash", "mem_efficient", "cudnn"):  # some of their backward passes add in any order
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    torch.manual_seed(1)
    if rank is not None:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
    model = Model().cuda()
    if rank is not None:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # Ranks meet batches of different lengths, as they do where data is not padded to one.
    chosen, words = random.Random(rank or 0), torch.Generator().manual_seed(rank or 0)
    step, start, since = 0, time.monotonic(), time.monotonic()
    while step < limit if rank is not None else time.monotonic() - start < limit:
        tokens = torch.randint(WORDS, (chosen.randint(1, 8), 16 * chosen.randint(2, 40)), generator=words).cuda()
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.add(loss.detach().cpu())
        step += 1
        if step % EVERY == 0:
            torch.cuda.synchronize()
            now = time.monotonic()
            said = {"rank": rank or 0, "step": step, "loss": loss.item(), "digest": digest.hexdigest(), "ms": 1000 * (now - since) / EVERY}
            os.write(1, f"{json.dumps(said)}\n".encode())  # in one piece: the other rank writes to the same pipe
            since = time.monotonic()
    if rank is not None:
        torch.cuda.synchronize()
        dist.barrier()
        dist.destroy_process_group()


main()
