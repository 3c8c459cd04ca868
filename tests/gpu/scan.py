"""`gpumem leaks --suspect` on a real GPU: tests/programs/lost.c with pointers that it lost, and a PyTorch process that is
searched while it computes.

    scan.py [lost | torch]...

Tells, of each way in which lost.c keeps an address, how many references were seen and how many of them were told from the
driver's own words; how the ranking does; how fast host and device memory are read; what the searched program loses
meanwhile. Fails where what is referred to is called lost, where a lost block does not rank before nearly all others, or
where the searched program's results are not the native ones.

  SCAN_SEEDS=N   programs of lost.c (10)
  SCAN_GIB=N     what the PyTorch process holds; by default 40 where the card has room for it, else half of the card
  SCAN_IMAGE=N   keeps the memory of the first N programs of lost.c in $OUT/scan-N.image.gz (16 MiB each at most), to see
                 offline what the driver keeps of a block
"""
import collections
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from harness import BUILD, CLI, HERE, OUT, WORK, Held, verdict

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


def keep_image(pid, seed, planted, said):
    """What a process has written, as far as it is no device's: a line of JSON, and of each page that is not all zeroes its
    address and its 4096 bytes."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    syscalls = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        syscalls.append(f"{task.name} {(task / 'comm').read_text().strip()} {(task / 'syscall').read_text().strip()}")
    path = OUT / f"scan-{seed}.image.gz"
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, gzip.open(path, "wb", 6) as image:
        image.write(json.dumps({"planted": planted, "said": said, "maps": maps, "threads": syscalls}).encode() + b"\n")
        for line in maps:
            fields = line.split(None, 5)
            name = fields[5] if len(fields) > 5 else ""
            if fields[1][:2] != "rw" or fields[1][3] == "s" or name.startswith(("/dev/", "[v")):
                continue
            start, end = (int(at, 16) for at in fields[0].split("-"))
            for at in range(start, end, 1 << 20):
                try:
                    memory.seek(at)
                    piece = memory.read(min(1 << 20, end - at))
                except (OSError, ValueError):
                    continue
                for offset in range(0, len(piece), 4096):
                    page = piece[offset:offset + 4096]
                    if page.count(0) != len(page):
                        image.write((at + offset).to_bytes(8, "little") + page)
    print(f"  image {path.name}: {path.stat().st_size >> 10} KiB", flush=True)


def spread(counts):
    return f"{min(counts)}..{max(counts)} (median {statistics.median(counts):g})"


def lost():
    words, driver = collections.defaultdict(list), collections.defaultdict(list)
    problems, alarms, of_lost, missed, patterns = [], 0, 0, 0, []
    for seed in range(1, int(os.environ.get("SCAN_SEEDS", "10")) + 1):
        held = Held(f"scan-lost-{seed}", "preloaded", [BUILD / "scan" / "lost", seed, 50], preload=True)
        try:
            answered = held.answer()
            planted = answered["blocks"]
            said, _ = search(held)
            if seed <= int(os.environ.get("SCAN_IMAGE", "0")):
                keep_image(held.process.pid, seed, answered, said)
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
    for name, fact in sorted(said["scans"][1].items()):
        if name.startswith(("driver_blocks", "driver_pattern_")):
            print(f"  {name}: {fact}", flush=True)
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
                   f"device {number('device_bytes') / 2**30:.1f} GiB at {gb_s('device'):.1f} GB/s ({number('device_by_kernel') / 2**30:.1f} GiB by the kernel), all of it {took[0]:.1f} s for two; steps/s native {steps['native']}, "
                   f"preloaded quiet and searched {steps['preloaded']}; {why}")


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or ["lost", "torch"]
    sys.exit(0 if all([{"lost": lost, "torch": torch}[what]() for what in wanted]) else 1)
