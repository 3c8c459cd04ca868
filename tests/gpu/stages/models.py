"""Many models in one process of PyTorch, loaded and dropped in turn, natively and preloaded by turns.

    models.py        MODELS_ROUNDS=5 MODELS_MIB=512,1024,2048,3072,4608,6144

py/swap_models.py copies random weights from host memory to the device, runs through them, drops them, collects garbage
and empties PyTorch's cache. After each drop the device memory of the process (NVML), without what the pool keeps
idle, is at most native + 4 MiB + 2 %; and after REST seconds without a call, idle blocks and all. The results
are the same. Told: seconds of a load, and the most device memory while a model was loaded.
"""
import os
import sys
import time

from done import row
from harness import HERE, OUT, Held, allowed, record, verdict
from memory import ledgers_in, memory_of, quartiles, quartiles_text, trouble_of
from programs import installed

GROUP = "models"
ROUNDS = int(os.environ.get("MODELS_ROUNDS", "5"))
SIZES = [int(size) for size in os.environ.get("MODELS_MIB", "512,1024,2048,3072,4608,6144").split(",")]
MODES = {"native": False, "preloaded": True}
REST = 20  # the pool gives back what lay idle for 15 s
TOLD = 1.2  # the ledger says what is idle once a second
SLOWEST = 1.05


def turns():
    """Sizes in an order that changes by the round, so that each follows others."""
    for number in range(ROUNDS):
        yield from SIZES[number % len(SIZES):] + SIZES[: number % len(SIZES)]


def swapped(held):
    """Loads and drops all models, by turns. What was seen of each mode: digests, seconds a GiB, memory loaded, dropped, at rest."""
    seen = {mode: {"digests": [], "seconds": [], "loaded": [], "dropped": []} for mode in MODES}

    def take(mode, where):
        of = memory_of(held[mode].process.pid, held[mode].folder, MODES[mode])
        if of:
            seen[mode][where].append(of)

    for number, size in enumerate(turns()):
        for mode in MODES if number % 2 == 0 else reversed(MODES):
            answer = held[mode].ask(f"load {size}", 180)
            seen[mode]["digests"].append(answer["digest"])
            seen[mode]["seconds"].append(answer["seconds"] * 1024 / size)
            take(mode, "loaded")
            held[mode].ask("drop")
            time.sleep(TOLD)
            take(mode, "dropped")
    time.sleep(REST)
    for mode in MODES:
        seen[mode]["rest"] = []
        take(mode, "rest")
    return seen


def judge(seen, ledgers):
    problems, notes = trouble_of(ledgers), []
    native, preloaded = seen["native"], seen["preloaded"]
    if native["digests"] != preloaded["digests"]:
        problems.append("other results than natively")
    texts = {mode: [] for mode in MODES}
    if any(sample[1] is None for of in seen.values() for where in ("loaded", "dropped", "rest") for sample in of[where]):
        notes.append("NVML does not tell device memory by process: whether it comes back was not seen")
        problems.append(notes[-1])
    else:
        above = max(b[1] - b[2] - allowed(a[1]) for a, b in zip(native["dropped"], preloaded["dropped"]))
        if above > 0:
            problems.append(f"after a drop {above:.1f} MiB more than native + 4 MiB + 2 %")
        if preloaded["rest"][0][1] > allowed(native["rest"][0][1]):
            problems.append(f"at rest {preloaded['rest'][0][1]:.0f} MiB, natively {native['rest'][0][1]:.0f}")
        for mode, of in seen.items():
            least, most = min(s[1] - s[2] for s in of["dropped"]), max(s[1] - s[2] for s in of["dropped"])
            idle = max(s[2] for s in of["dropped"])
            texts[mode].append(f"{least:.0f} … {most:.0f} MiB after a drop" + (f" and at most {idle:.0f} idle" if MODES[mode] else "")
                               + f", at rest {of['rest'][0][1]:.0f}, loaded at most {max(s[1] for s in of['loaded']):.0f}")
    ratio = quartiles(preloaded["seconds"])[1] / quartiles(native["seconds"])[1]
    if ratio > SLOWEST:
        problems.append(f"a load takes {ratio:.3f} of its native time")
    for mode, of in seen.items():
        texts[mode].append(f"{quartiles_text(of['seconds'], 3)} s a GiB")
    texts["preloaded"].append(f"{ratio:.3f} ×")
    record({"group": GROUP, "name": "samples", **seen})
    row("models", "; ".join(texts["native"]), "; ".join(texts["preloaded"]), not problems)
    return verdict(GROUP, "swap", problems, f"{len(native['seconds'])} loads of {SIZES} MiB; {'; '.join(notes)} {[ledger.pool() for ledger in ledgers]}")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    if not installed("torch"):
        print(f"skip {GROUP} no Python package torch")
        return
    held = {}
    try:
        for mode, preload in MODES.items():
            held[mode] = Held(GROUP, mode, [sys.executable, HERE / "programs/py" / "swap_models.py"], preload=preload)
            held[mode].send("ready")
        for process in held.values():
            process.answer(180)
        seen = swapped(held)
        ok = judge(seen, ledgers_in(held["preloaded"].folder))
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        ok = verdict(GROUP, "swap", [f"{type(error).__name__}: {error}"[:300]])
    finally:
        for process in held.values():
            process.stop()
    sys.exit(0 if ok else 1)


main()
