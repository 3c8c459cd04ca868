"""The start of a program on a GPU, natively and preloaded by turns: a short C program, and PyTorch's first tensor.

    start_gpu.py        START_TURNS=201 START_TORCH_TURNS=61

PyTorch is loaded once a way; each turn forks and makes its first tensor in the child (py/first_tensor.py).
"""
import os
import statistics
import sys
import tempfile

from done import cost_row
from harness import EARLIER, HERE, SO, Held, record, verdict
from programs import installed
from start import built, by_turns, text

GROUP = "start"
LIBRARIES = {"native": None, "now": SO, **({"earlier": EARLIER} if EARLIER else {})}


def short():
    """Seconds of each way's runs."""
    ways = [(library, "0") for library in LIBRARIES.values()]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        took = by_turns([built(folder)], ways, int(os.environ.get("START_TURNS", "201")), folder)
    return {name: [seconds for seconds, _, _ in took[library, "0"]] for name, library in LIBRARIES.items()}


def torch():
    """Seconds until the first tensor is made, of each way's runs."""
    programs, took = {}, {name: [] for name in LIBRARIES}
    try:
        for name, library in LIBRARIES.items():
            env = {"LD_PRELOAD": library} if library else None
            programs[name] = Held(GROUP, name, [sys.executable, HERE / "programs/py/first_tensor.py"], preload=bool(library), env=env)
        for turn in range(int(os.environ.get("START_TORCH_TURNS", "61")) + 2):
            for name, program in programs.items():
                said = program.ask("go")
                if said["sum"] != 4:
                    raise RuntimeError(f"{name}: the sum is {said['sum']}")
                if turn > 1:
                    took[name].append(said["seconds"])
    finally:
        for program in programs.values():
            program.stop()
    return took


def main():
    measures, added, earlier = {"a short program": short, "PyTorch's first tensor": torch}, [], []
    if not installed("torch"):
        print(f"skip {GROUP}/torch no Python package torch", flush=True)
        del measures["PyTorch's first tensor"]
    for what, measure in measures.items():
        try:
            took = measure()
        except (RuntimeError, OSError, ValueError) as error:
            sys.exit(0 if verdict(GROUP, "start", [f"{what}: {error}"[:250]]) else 1)
        record({"group": GROUP, "name": what, "seconds": took})
        for name, seconds in took.items():
            print(f"     {GROUP}/{what}: {text(seconds, took['native'])}  {name}, {len(seconds)} turns", flush=True)
        more = {name: 1e3 * (statistics.median(seconds) - statistics.median(took["native"])) for name, seconds in took.items()}
        added.append(more["now"])
        earlier += [more["earlier"]] if EARLIER else []
    if len(added) == 2:
        cost_row("cost-start-gpu", "–", added, "; ".join(f"{ms:+.1f}" for ms in added) + " ms", earlier=earlier)
    sys.exit(0 if verdict(GROUP, "start", [], ", ".join(f"{what} {ms:+.1f} ms" for what, ms in zip(measures, added))) else 1)


main()
