"""`gpumem leaks --suspect` on a real GPU: tests/programs/lost.c with pointers that it lost, and a PyTorch process that is
searched while it computes.

    scan.py [lost | torch]...

Tells, of each way in which lost.c keeps an address, how many references were seen and how many of them were told from the
driver's own words; how the ranking does; how fast host and device memory are read; what the searched program loses
meanwhile. Fails where what is referred to is called lost, where a lost block does not rank before nearly all others, or
where the searched program's results are not the native ones.

  SCAN_SEEDS=N   programs of lost.c (10)
  SCAN_GIB=N     what the PyTorch process holds; by default 40 where the card has room for it, else half of the card
"""
import collections
import json
import os
import statistics
import subprocess
import sys
import time

from harness import BUILD, CLI, HERE, WORK, Held, verdict

GROUP = "scan"
LOST = ("lost", "chain")


def search(held, *more, timeout=60):
    """What is said of a process that is held, and how long that took."""
    command = [CLI, "leaks", "--suspect", "--all", "--json", "--older", "0", "--pause", "0.2", *more, str(held.process.pid)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, "GPUMEM_DIR": str(held.folder / "ledgers")})
    if done.returncode:
        raise RuntimeError(f"leaks --suspect: status {done.returncode}: {done.stderr.strip()[:200]}")
    return json.loads(done.stdout), time.monotonic() - start


def spread(counts):
    return f"{min(counts)}..{max(counts)} (median {statistics.median(counts):g})"


def lost():
    words, driver = collections.defaultdict(list), collections.defaultdict(list)
    problems, alarms, of_lost, missed, patterns = [], 0, 0, 0, []
    for seed in range(1, int(os.environ.get("SCAN_SEEDS", "10")) + 1):
        held = Held(f"scan-lost-{seed}", "preloaded", [BUILD / "scan" / "lost", seed, 50], preload=True)
        try:
            planted = held.answer()["blocks"]
            said, _ = search(held)
        finally:
            held.process.stdin.close()
            held.process.wait(30)
        rows = {row["address"]: row for row in said["allocations"]}
        patterns.append(said["scans"][1].get("driver_patterns", "0") + said["scans"][1].get("driver_unknown", ""))
        ranked = {True: [], False: []}
        for block in planted:
            row = rows[int(block["address"], 16)]
            words[block["fate"]].append(row["references"])
            driver[block["fate"]].append(row["seen"].get("driver", 0))
            if block["fate"] not in LOST:
                alarms += row["standing"] in ("none-seen", "only-from-such")
            if block["fate"] != "chain":
                ranked[block["fate"] == "lost"].append(row["references"])
        of_lost += len(ranked[True])
        missed += sum(100 * sum(one < other for other in ranked[False]) < 95 * len(ranked[False]) for one in ranked[True])
        if held.process.returncode:
            problems.append(f"seed {seed}: status {held.process.returncode}")
    if alarms:
        problems.append(f"{alarms} that are referred to are called lost")
    if missed * 20 > of_lost:
        problems.append(f"{missed} of {of_lost} lost blocks do not rank first")
    for fate in words:
        print(f"  {fate:<10} references {spread(words[fate])}, driver's own {spread(driver[fate])}", flush=True)
    print(f"  patterns {sorted(set(patterns))}", flush=True)
    return verdict(GROUP, "lost", problems, f"{missed} of {of_lost} lost blocks do not rank first, {alarms} false alarms")


def torch():
    gib = os.environ.get("SCAN_GIB", "40")
    said, steps, problems, facts = {}, {}, [], {}
    for mode in ("native", "preloaded"):
        held = Held("scan-torch", mode, [sys.executable, HERE / "py" / "lost_torch.py", gib], preload=mode == "preloaded")
        try:
            ready = held.answer(300)
            held.send("steps")
            quiet = held.answer(300)
            held.send("steps")
            took, searched = [], None
            if mode == "preloaded":
                searched, seconds = search(held, "--timeout", "60", timeout=200)
                took.append(seconds)
            busy = held.answer(300)
            held.send("end")
            said[mode] = (ready["sum"], quiet["sum"], busy["sum"])
            steps[mode] = (quiet["per_s"], busy["per_s"])
        finally:
            held.process.stdin.close()
            held.process.wait(60)
        if searched:
            facts = searched["scans"][1]
            rows = {row["address"]: row for row in searched["allocations"]}
            gone, kept = rows.get(ready["lost"]), rows.get(ready["kept"])
            if not gone or not kept or gone["references"] >= kept["references"]:
                problems.append(f"the lost block does not rank before the kept one: {gone}, {kept}")
    if said["native"] != said["preloaded"]:
        problems.append(f"other results than natively: {said}")
    number = lambda name: float(facts.get(name, 0))
    gb_s = lambda of: number(f"{of}_bytes") / max(number(f"{of}_ns"), 1)
    why = ", ".join(f"{name}: {facts[name]}" for name in ("host_incomplete", "device_incomplete", "driver_unknown") if name in facts)
    return verdict(GROUP, "torch", problems, f"{ready['gib']} GiB live; a search: host {number('host_bytes') / 2**20:.0f} MiB at {gb_s('host'):.1f} GB/s, "
                   f"device {number('device_bytes') / 2**30:.1f} GiB at {gb_s('device'):.1f} GB/s, all of it {took[0]:.1f} s for two; steps/s native {steps['native']}, "
                   f"preloaded quiet and searched {steps['preloaded']}; {why}")


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or ["lost", "torch"]
    sys.exit(0 if all([{"lost": lost, "torch": torch}[what]() for what in wanted]) else 1)
