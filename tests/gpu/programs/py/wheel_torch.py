"""A PyTorch program that names what it does by the module `gpumem`, and asks it about itself.

    wheel_torch.py SNAPSHOT     prints one line of JSON: the losses, and what gpumem answered

Under `python -m gpumem run` it is recorded; by itself the same program runs on, and gpumem answers None.
"""
import json
import os
import sys
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import gpumem  # noqa: E402
import torch  # noqa: E402

SIZE, STEPS = 2048, 30


def main():
    # By itself the module says once that nothing is recorded: that is what is tried here.
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda")
    # Each is larger than what PyTorch carves out of a segment, and the batch larger than what its cache has by then: the driver
    # is asked for both under their tags.
    with gpumem.tag("weights"):
        weights = [torch.nn.Parameter(torch.randn(SIZE, SIZE, device=device) * 0.02) for _ in range(4)]
    with gpumem.tag("batch"):
        batch = torch.randn(2 * SIZE, SIZE, device=device)
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    losses = []
    for step in range(STEPS):
        with gpumem.tag("step"):
            out = batch
            for weight in weights:
                out = (out @ weight).relu()
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
        if step == STEPS // 2:
            gpumem.mark("half")
    saved = gpumem.snapshot(sys.argv[1])
    stats = gpumem.stats()
    print(json.dumps({
        "losses": losses, "loaded": gpumem.is_loaded(), "version": gpumem.__version__, "pid": os.getpid(),
        "snapshot": saved is not None, "stats": sorted(stats) if stats else None, "module": gpumem.__file__,
    }))


if __name__ == "__main__":
    main()
