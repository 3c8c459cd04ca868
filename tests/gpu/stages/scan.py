"""`gpumem leaks --suspect` on a real GPU: tests/programs/lost.c with pointers that it lost, how fast memory is read, a PyTorch
process that is searched while it computes, and searches without a pause beside programs of many kinds.

    scan.py [lost | speed | torch | loop]...

Tells, of each way in which lost.c keeps an address, how many references were seen and how many of them were told from the
driver's own words; how the ranking does; how fast host and device memory are read; what the searched program loses
meanwhile. Fails where what is referred to is called lost, where a lost block does not rank before nearly all others, or
where a searched program's results are not the native ones.

  SCAN_SEEDS=N   programs of lost.c (10); SCAN_TIMES=N how often each (1); SCAN_AT_ONCE=N how many at a time (1)
  SCAN_GIB=N     what the PyTorch process holds; by default 40 where the card has room for it, else half of the card
  SCAN_SECONDS=S  how long `loop` goes on (480)
  SCAN_IMAGE=N   keeps the memory of the first N programs of lost.c in $OUT/scan-N.image.gz (16 MiB each at most), to see
                 offline what the driver keeps of a block
"""
import collections
import concurrent.futures
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from done import cost_row
from harness import BUILD, CLI, HERE, OUT, WORK, Held, record, run, verdict
from programs import ALL
from run import stable

GROUP = "scan"
LOST = ("lost", "chain")
# What `loop` runs over and over: their allocations come and go, some unmap, some capture.
LOOPED = ("graphs-shared-cudart", "threads", "captures", "demo", "torch-cached", "torch-uncached", "torch-graphs", "cupy-plain", "cupy-async")
LIVE_LONG = "torch"


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


def lost_program(seed, turn):
    """What one run of lost.c planted, {address: row} of what is said of it, and what the second scan tells; or what went wrong."""
    held = Held(f"scan-lost-{seed}", f"preloaded-{turn}", [BUILD / "scan" / "lost", seed, 50], preload=True)
    try:
        answered = held.answer()
        said, _ = search(held)
        if turn == 0 and seed <= int(os.environ.get("SCAN_IMAGE", "0")):
            keep_image(held.process.pid, seed, answered, said)
        if status := held.stop():
            return f"status {status}"
        return answered["blocks"], {row["address"]: row for row in said["allocations"]}, said["scans"][1]
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)[:200]
    finally:
        held.stop()


class OfLost:
    """What is said of the blocks of runs of lost.c."""

    def __init__(self):
        self.words, self.driver = collections.defaultdict(list), collections.defaultdict(list)
        self.standings, self.scan = collections.defaultdict(collections.Counter), {}
        self.alarms, self.lost, self.missed, self.patterns, self.problems = 0, 0, 0, set(), []

    def add(self, seed, turn, told):
        if isinstance(told, str):
            self.problems.append(f"seed {seed}: {told}")
            record({"group": GROUP, "name": f"lost-{seed}-{turn}", "problem": told})
            return
        planted, rows, self.scan = told
        self.patterns.add(self.scan.get("driver_patterns", "0") + self.scan.get("driver_unknown", ""))
        ranked, called_lost = {True: [], False: []}, []
        for block in planted:
            row = rows[int(block["address"], 16)]
            self.words[block["fate"]].append(row["references"])
            self.driver[block["fate"]].append(row["seen"].get("driver", 0))
            self.standings[block["fate"]][row["standing"]] += 1
            if block["fate"] not in LOST and row["standing"] in ("none-seen", "only-from-such"):
                called_lost.append({"fate": block["fate"], **row})
            if block["fate"] != "chain":
                ranked[block["fate"] == "lost"].append(row["references"])
        behind = sum(100 * sum(one < other for other in ranked[False]) < 95 * len(ranked[False]) for one in ranked[True])
        self.alarms, self.lost, self.missed = self.alarms + len(called_lost), self.lost + len(ranked[True]), self.missed + behind
        record({"group": GROUP, "name": f"lost-{seed}-{turn}", "lost": len(ranked[True]), "behind": behind, "called_lost": called_lost,
                "only_like_driver": sum(row["standing"] == "only-like-driver" for row in rows.values())})


def lost():
    found = OfLost()
    seeds = range(1, int(os.environ.get("SCAN_SEEDS", "10")) + 1)
    runs = [(seed, turn) for turn in range(int(os.environ.get("SCAN_TIMES", "1"))) for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SCAN_AT_ONCE", "1"))) as at_once:
        for run, told in zip(runs, at_once.map(lambda run: lost_program(*run), runs)):
            found.add(*run, told)
    problems = found.problems[:5]
    if found.alarms:
        problems.append(f"{found.alarms} that are referred to are called lost")
    if found.missed * 20 > found.lost:
        problems.append(f"{found.missed} of {found.lost} lost blocks do not rank first")
    for fate in found.words:
        print(f"  {fate:<10} references {spread(found.words[fate])}, driver's own {spread(found.driver[fate])}, {dict(found.standings[fate])}", flush=True)
    print(f"  patterns {sorted(found.patterns)}", flush=True)
    for name, fact in sorted(found.scan.items()):
        if name.startswith(("driver_blocks", "driver_pattern_")):
            print(f"  {name}: {fact}", flush=True)
    return verdict(GROUP, "lost", problems, f"{len(runs)} programs, {found.missed} of {found.lost} lost blocks do not rank first, {found.alarms} false alarms")


def torch():
    gib = os.environ.get("SCAN_GIB", "40")
    said, steps, problems, facts = {}, {}, [], {}
    for mode in ("native", "preloaded"):
        held = Held("scan-torch", mode, [sys.executable, HERE / "programs/py" / "lost_torch.py", gib], preload=mode == "preloaded")
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


def speed_of(gib, mib):
    """Of a process that rests and holds so much in blocks of so many MiB: what a search reads, and a kernel that only reads."""
    held = Held(f"scan-speed-{mib}", "preloaded", [BUILD / "read", gib, mib], preload=True)
    try:
        natively = held.answer(120)
        searches = [search(held, "--timeout", "60", timeout=200) for _ in range(5)]
    finally:
        held.stop()
    looks = [look for said, _ in searches for look in said["scans"]]
    rates = [float(look["device_bytes"]) / float(look["device_ns"]) for look in looks]
    # Of the first look of all it is not known yet how much is read in a millisecond, and the kernel is loaded.
    first, median = rates[0], statistics.median(rates[1:])
    last, seconds = looks[-1], [round(seconds, 2) for _, seconds in searches]
    by_kernel = float(last.get("device_by_kernel", 0)) / max(float(last["device_bytes"]), 1)
    problems = [] if by_kernel > 0.99 else [f"of blocks of {mib} MiB {by_kernel:.0%} was read by the kernel"]
    print(f"  {natively['gib']} GiB in {natively['blocks']} blocks: {median:.0f} GB/s in {last['device_launches']} launches, {median / natively['read_gb_s']:.3f} of the best plain read "
          f"({natively['read_gb_s']:.0f}; {natively['rested_gb_s']:.0f} of a device that has rested); looks {[round(rate) for rate in rates]}, the first {first:.0f}; both looks together {seconds} s", flush=True)
    return median / natively["read_gb_s"], problems, {"rates": rates, "natively": natively, "facts": last}


def speed():
    """Of a process that rests: large blocks, and many of 2 MiB."""
    gib = int(os.environ.get("SCAN_GIB", "40"))
    large, problems, facts = speed_of(gib, 1024)
    small, more, facts_of_small = speed_of(min(gib, 8), 2)
    cost_row("cost-search", "1", [1 / small], f"{1 / small:.3f} ({small:.3f} of the bandwidth)", not (problems + more))
    return verdict(GROUP, "speed", problems + more, f"of the best plain read {large:.3f} with blocks of 1 GiB, {small:.3f} with blocks of 2 MiB", large=facts, small=facts_of_small)


class Searches:
    """Searches the preloaded processes of some programs, each by a thread of its own, until it is told to end; now and then a
    process is trimmed as well."""

    def __init__(self):
        self.over, self.done, self.refused = False, collections.Counter(), collections.Counter()

    def run(self, program):
        while not self.over:
            for ledger in (WORK / f"scan-loop-{program}").glob("*/ledgers/*.ledger"):
                pid = int(ledger.name.split("-")[0])
                if not self.over and pathlib.Path(f"/proc/{pid}").exists():
                    self.ask(program, pid, ledger.parent, "leaks", "--suspect", "--json", "--older", "0", "--pause", "0.05")
                    if self.done[program] % 3 == 0:
                        self.ask("trims", pid, ledger.parent, "trim")
            time.sleep(0.02)

    def ask(self, counted, pid, folder, *command):
        env = {**os.environ, "GPUMEM_DIR": str(folder)}
        try:
            said = subprocess.run([CLI, *command, str(pid)], capture_output=True, text=True, timeout=60, env=env)
        except subprocess.TimeoutExpired:
            self.refused[f"{command[0]} takes more than 60 s"] += 1
            return
        if said.returncode == 0:
            self.done[counted] += 1
        elif pathlib.Path(f"/proc/{pid}").exists():
            self.refused[said.stderr.strip().replace(str(pid), "PID")[-100:]] += 1


def loop():
    """Programs over and over, while they are searched without a pause."""
    end = time.monotonic() + float(os.environ.get("SCAN_SECONDS", "480"))
    chosen = [program for program in ALL if program.name in LOOPED and not program.missing()]
    native = {p.name: run(f"scan-loop-{p.name}", "native", p.argv, env=p.env, timeout=p.timeout) for p in chosen}
    if failed := [name for name, done in native.items() if done.status != 0]:
        return verdict(GROUP, "loop", [f"natively these fail: {failed}"])
    searches, runs = Searches(), collections.Counter()

    def again(program):
        problems, expected = [], native[program.name]
        while time.monotonic() < end and len(problems) < 3:
            runs[program.name] += 1
            name = f"preloaded-{runs[program.name]}"
            done = run(f"scan-loop-{program.name}", name, program.argv, preload=True, env=program.env, timeout=program.timeout + 60)
            if done.status != expected.status or stable(done.stdout) != stable(expected.stdout):
                problems.append(f"{program.name} {name}: status {done.status}, natively {expected.status}, output "
                                f"{'the same' if stable(done.stdout) == stable(expected.stdout) else 'another'}: {done.stderr.strip()[-100:]}")
        return problems

    with concurrent.futures.ThreadPoolExecutor(2 * len(chosen)) as all_at_once:
        searching = [all_at_once.submit(searches.run, program.name) for program in chosen]
        problems = [problem for found in all_at_once.map(again, chosen) for problem in found]
        searches.over = True
        for searched in searching:
            searched.result()
    # The others end before they are found.
    problems += [f"{name} was never searched" for name in runs if name.startswith(LIVE_LONG) and not searches.done[name]]
    return verdict(GROUP, "loop", problems, f"{sum(runs.values())} runs, {sum(searches.done.values())} searches and trims; {dict(searches.done)}; "
                   f"not done in processes that live: {dict(searches.refused)}", runs=runs, done=searches.done, refused=searches.refused)


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or ["lost", "speed", "torch", "loop"]
    sys.exit(0 if all([{"lost": lost, "speed": speed, "torch": torch, "loop": loop}[what]() for what in wanted]) else 1)
