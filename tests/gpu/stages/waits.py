"""Nothing waits beside a kernel that runs until the host ends it: spin.cu natively and preloaded.

    waits.py [alloc | trim | decay | devices]...

  alloc     an allocation that needs what the pool keeps, and one that fits nowhere: the driver's answers, at once
  trim      `gpumem trim` gives back what is kept, and the process goes on showing a heartbeat
  decay     what is kept goes back by itself, with GPUMEM_POOL_DECAY=4s
  devices   two threads on two GPUs run out, one of them ends the other's kernel (skipped with one GPU)
"""
import json
import subprocess
import sys
import time

from harness import BUILD, CLI, Held, run, verdict
from stats import Ledger

GROUP = "waits"
LONGEST_MS = 2000  # a real wait would last until the watchdog, 30 s


def both(name, argument):
    """The same natively and preloaded."""
    answers, problems = {}, []
    for mode in ("native", "preloaded"):
        done = run(f"waits-{name}", mode, [BUILD / "spin", argument], preload=mode == "preloaded", timeout=60)
        line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
        if done.status or not line:
            return verdict(GROUP, name, [f"{mode}: status {done.status}: {done.stderr.strip()[-200:]}"])
        answers[mode] = json.loads(line)
        if "skip" in answers[mode]:
            print(f"skip {GROUP}/{name} {answers[mode]['skip']}")
            return True
    native, preloaded = answers["native"], answers["preloaded"]
    if native["waited"]:
        problems.append("the driver itself waits")
    if preloaded["waited"] or max(preloaded["ms"]) > LONGEST_MS:
        problems.append("waits where the driver does not")
    if preloaded["statuses"] != native["statuses"]:
        problems.append("other answers")
    return verdict(GROUP, name, problems, f"native {native}, preloaded {preloaded}")


def held(name, env, act):
    """The kernel runs while `act(pid, ledger)` looks on; returns what it found wrong."""
    kernel = Held(f"waits-{name}", "preloaded", [BUILD / "spin", "hold"], preload=True, env=env)
    try:
        while kernel.process.stdout.readline().strip() != b"ready":
            if kernel.process.poll() is not None:
                return verdict(GROUP, name, [f"status {kernel.process.returncode}: {kernel.stderr()[-200:]}"])
        before, start = 0.0, time.monotonic()
        while before < 1000 and time.monotonic() < start + 3:  # told once a second
            time.sleep(0.02)
            before = max(before, Ledger(kernel.ledger()).pool()["idle_mib"])
        start = time.monotonic()
        problems = act(kernel)
        took = time.monotonic() - start
        after = Ledger(kernel.ledger()).pool()["idle_mib"]
        if before < 1000:
            problems.append(f"only {before:.0f} MiB were kept")
        if after > 0:
            problems.append(f"{after:.0f} MiB are still kept")
        kernel.send("go on")
        answer = kernel.answer(30)
        if answer["waited"]:
            problems.append("the kernel had to be ended")
        return verdict(GROUP, name, problems, f"{before:.0f} MiB went back in {took:.2f} s beside the kernel")
    finally:
        kernel.stop()


def trim():
    def act(kernel):
        folder = kernel.folder / "ledgers"
        done = subprocess.run([CLI, "--dir", str(folder), "trim", str(kernel.process.pid)], capture_output=True, text=True, timeout=20)
        return [f"trim: {done.stderr.strip()[-150:]}"] if done.returncode else []
    return held("trim", {}, act)


def decay():
    def act(kernel):
        limit = time.monotonic() + 20
        while time.monotonic() < limit and Ledger(kernel.ledger()).pool()["idle_mib"] > 0:
            time.sleep(0.1)
        return []
    return held("decay", {"GPUMEM_POOL_DECAY": "4s"}, act)


def main():
    stages = {"alloc": lambda: both("alloc", "alloc"), "trim": trim, "decay": decay, "devices": lambda: both("devices", "devices")}
    results = [stages[name]() for name in sys.argv[1:] or stages]
    sys.exit(0 if all(results) else 1)


main()
