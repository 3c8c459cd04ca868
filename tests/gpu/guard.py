"""GPUMEM_GUARD on a real GPU: planted bugs (tests/programs/pool_guard.c) and clean programs, each natively, under the
guard, and under compute-sanitizer's memcheck where that is there.

    guard.py [bugs | clean | steps | random]...

A line for each, and tables at the end ($OUT/guard.md): what each of the two finds, what it says of clean programs, how
much slower they are as a whole, what memory the guard takes, and how much slower the steps of a training are in processes
that stay. It fails where the guard misses what it has to find, where a clean program has a finding or other answers than
natively, where steps take more than SLOWER times native, and where the random programs of pooler differ.

  COMPUTE_SANITIZER=file   (default: CUDA_HOME/bin/compute-sanitizer; without it that column is empty)
  GUARD_SECONDS=S          how long pooler's random programs run with each way of the guard (30)
"""
import os
import pathlib
import statistics
import subprocess
import sys

from harness import BUILD, HERE, OUT, SO, WORK, Held, inspect, record, run, verdict
from programs import installed

GROUP = "guard"
PROGRAM = BUILD / "guard" / "pool_guard"
MEMCHECK = pathlib.Path(os.environ.get("COMPUTE_SANITIZER") or pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/compute-sanitizer")
# How much slower a training may be that keeps its memory; not where all is read at each wait.
SLOWER = 1.1
ROUNDS, STEPS, STEPS_OF_MEMCHECK = 9, 100, 4
FINDINGS = ("written-outside", "written-after-free", "freed-graph-launched")
# Name, what it is, how the guard is set, and whether it has to find it.
BUGS = [
    ("over1", "a byte behind 1023", "1", True),
    ("over4", "4 bytes behind 1 MiB", "1", True),
    ("over512", "512 bytes behind 1 MiB", "1", True),
    ("overunit", "512 bytes behind 2 MiB", "1", True),
    ("under4", "4 bytes in front of 1 MiB", "front", True),
    ("under512", "512 bytes in front of 4 MiB", "front", True),
    ("live", "16 bytes behind a live block, at a wait", "sync", True),
    ("freed", "64 bytes of a freed block", "sync", True),
    ("freedwhole", "a freed block, all of it", "sync", True),
    ("order", "8 bytes behind, freed in stream order", "1", True),
    ("graph", "a graph launched after its memory's free", "1", True),
    ("twice", "a second free", "1", False),
    ("fill", "a memset of 4 bytes too many", "1", True),
    ("far", "4 bytes in another live block", "1", False),
    ("async", "4 bytes behind cuMemAllocAsync's", "1", False),
    ("managed", "4 bytes behind managed memory", "1", False),
    ("reads", "a read of 4 bytes behind 1 MiB", "1", False),
    ("readsfreed", "a read of freed memory", "1", False),
    ("unwritten", "a read of what was never written", "1", False),
]


def bug_args(bug):
    # What is freed is read again at a wait; a live block at its free, too.
    return {"live": ["live", "sync", "drop"]}.get(bug, [bug, "sync"])


def findings(ledger):
    """What the guard found, as text; None without a ledger."""
    if not ledger:
        return None
    events = inspect("events", ledger)["events"]
    return [event["text"] for event in events if event["kind"] in FINDINGS]


def memcheck(name, argv, env=None, timeout=300):
    if not MEMCHECK.exists():
        return None
    return run(f"guard-{name}", "memcheck", [MEMCHECK, "--tool", "memcheck", "--error-exitcode", "99", *argv], env=env, timeout=timeout)


def planted():
    rows, good = [], True
    for bug, what, guard, must in BUGS:
        argv = [PROGRAM, *bug_args(bug)]
        native = run(f"guard-{bug}", "native", argv, timeout=60)
        guarded = run(f"guard-{bug}", "guard", argv, preload=True, env={"GPUMEM_GUARD": guard}, timeout=60)
        checked = memcheck(bug, argv)
        found = findings(guarded.ledger)
        problems = []
        if found is None:
            problems.append(f"no ledger: status {guarded.status}: {guarded.stderr.strip()[-150:]}")
        elif must and not found:
            problems.append(f"not found: status {guarded.status}: {guarded.stderr.strip()[-150:]}")
        said = "" if checked is None else "finds" if "ERROR SUMMARY: 0 errors" not in checked.stdout + checked.stderr else "cannot"
        guard_says = "finds" if found else "cannot"
        rows.append((what, f"GUARD={guard}", guard_says, said, "ends with an error" if native.status else "nothing seen"))
        good &= verdict(GROUP, f"bug/{bug}", problems, f"guard {guard_says}, memcheck {said or 'not there'}, native status {native.status}",
                        found=found or [], native=native.status, guard=guarded.status)
    return rows, good


def clean_programs():
    yield "pool_guard clean", [PROGRAM, "clean", "answers", "clean"], {}
    yield "saxpy", [BUILD / "saxpy_shared"], {}
    yield "graphs", [BUILD / "graphs_shared"], {}
    if installed("torch"):
        yield "PyTorch training", [sys.executable, HERE / "py/torch_train.py"], {}
    if installed("cupy"):
        yield "CuPy arrays", [sys.executable, HERE / "py/cupy_arrays.py"], {}


def clean():
    rows, good = [], True
    for name, argv, env in clean_programs():
        if not pathlib.Path(argv[0]).exists():
            print(f"skip {GROUP}/clean/{name} {argv[0]} is not there", flush=True)
            continue
        tag = "clean-" + name.replace(" ", "-")
        native = min((run(f"guard-{tag}", f"native{n}", argv, env=env, timeout=300) for n in range(2)), key=lambda r: r.seconds)
        if native.status != 0:
            print(f"skip {GROUP}/clean/{name} natively status {native.status}: {native.stderr.strip()[-120:]}", flush=True)
            continue
        plain = min((run(f"guard-{tag}", f"preloaded{n}", argv, preload=True, env=env, timeout=300) for n in range(2)), key=lambda r: r.seconds)
        checked = memcheck(tag, argv, env, timeout=280)
        for guard in ("1", "front", "sync"):
            done = min((run(f"guard-{tag}", f"guard-{guard}{n}", argv, preload=True, env={**env, "GPUMEM_GUARD": guard}, timeout=400) for n in range(2)),
                       key=lambda r: r.seconds)
            found, problems = findings(done.ledger), []
            if done.status != 0:
                problems.append(f"status {done.status}: {done.stderr.strip()[-150:]}")
            if found is None or found:
                problems.append(f"findings in a clean program: {found}")
            stats = inspect("stats", done.ledger)["pool"]["guard"] if done.ledger else {}
            slower, of_memcheck = done.seconds / native.seconds, checked.seconds / native.seconds if checked and checked.status is not None else None
            rows.append((name, f"GUARD={guard}", len(found or []), f"{slower:.2f}", f"{plain.seconds / native.seconds:.2f}",
                         f"{of_memcheck:.1f}" if of_memcheck else "", f"{stats.get('bytes', 0) / 2**20:.0f}", stats.get("checks", 0), stats.get("unchecked", 0),
                         stats.get("without", 0)))
            good &= verdict(GROUP, f"clean/{name}/{guard}", problems,
                            f"{slower:.2f} x native ({native.seconds:.1f} s), {stats.get('checks')} ranges read, {stats.get('unchecked')} not",
                            seconds={"native": native.seconds, "preloaded": plain.seconds, "guard": done.seconds,
                                     "memcheck": checked.seconds if checked else None}, guard=stats)
    return rows, good


def steps():
    """Steps a second of a training, each way in a process that stays, by turns."""
    if not installed("torch"):
        print(f"skip {GROUP}/steps no PyTorch", flush=True)
        return [], True
    rows, good = [], True
    for name, env in (("PyTorch training", {}), ("PyTorch training, a cudaMalloc a tensor", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})):
        argv = [sys.executable, HERE / "py/guard_steps.py"]
        ways = {"native": None, "preload alone": {}, **{f"GUARD={guard}": {"GPUMEM_GUARD": guard} for guard in ("1", "front", "sync")}}
        tag = "guard-steps-" + ("uncached" if env else "cached")
        held = {way: Held(tag, way.replace("=", "-").replace(" ", "-"), argv, preload=more is not None, env={**env, **(more or {})})
                for way, more in ways.items()}
        if MEMCHECK.exists():
            held["memcheck"] = Held(tag, "memcheck", [MEMCHECK, "--tool", "memcheck", *argv], env=env)
        told = {way: [] for way in held}
        losses = {}
        try:
            for way, process in held.items():
                losses[way] = process.ask(f"steps {STEPS_OF_MEMCHECK}", 200)["loss"]
            for turn in range(ROUNDS):
                for way in list(held) if turn % 2 else list(reversed(held)):
                    if way != "memcheck" or turn == 0:
                        told[way].append(held[way].ask(f"steps {STEPS_OF_MEMCHECK if way == 'memcheck' else STEPS}", 200)["per_s"])
        finally:
            statuses = {way: process.stop() for way, process in held.items()}
        # Pairs of one round: the machine is half as fast again from one second to the next.
        times = {way: statistics.median(native / one for native, one in zip(told["native"], of)) for way, of in told.items() if of}
        found = {way: findings(process.ledger()) for way, process in held.items() if way.startswith("GUARD")}
        problems = [f"{way}: status {status}" for way, status in statuses.items() if status != 0]
        problems += [f"{way}: {of}" for way, of in found.items() if of is None or of]
        problems += [f"{way}: another loss" for way, loss in losses.items() if loss != losses["native"]]
        problems += [f"{way}: {times[way]:.2f} times native" for way in ("GUARD=1", "GUARD=front") if not env and times[way] > SLOWER]
        rows.append((name, f"{statistics.median(told['native']):.0f}", *(f"{times[way]:.2f}" if way in times else "" for way in (*ways, "memcheck") if way != "native")))
        good &= verdict(GROUP, tag.removeprefix("guard-"), problems, ", ".join(f"{way} {of:.2f}" for way, of in times.items()), per_s=told)
    return rows, good


def random_programs():
    pooler, good = pathlib.Path(SO).parent / "pooler", True
    if not pooler.exists():
        print(f"skip {GROUP}/pooler {pooler} is not there", flush=True)
        return True
    for guard in ("1", "front", "sync"):
        (WORK / f"guard-pooler-{guard}").mkdir(parents=True, exist_ok=True, mode=0o700)
        done = subprocess.run([pooler, "hunt", "--lib", SO, "--env", f"GPUMEM_GUARD={guard}", "--seconds", os.environ.get("GUARD_SECONDS", "30"),
                               *(["--without", "export"] if guard == "front" else []), "--out", OUT],
                              env={**os.environ, "GPUMEM_DIR": str(WORK / f"guard-pooler-{guard}")}, capture_output=True, text=True, timeout=300)
        last = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
        good &= verdict(GROUP, f"pooler/{guard}", [] if done.returncode == 0 else [f"status {done.returncode}: {last}"], last)
    return good


def table(out, title, head, rows):
    out.append(f"\n{title}\n")
    out.append("| " + " | ".join(head) + " |")
    out.append("|" + "---|" * len(head))
    out.extend("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"FAIL {GROUP}/setup {PROGRAM} was not built")
        sys.exit(1)
    wanted = sys.argv[1:] or ["bugs", "clean", "steps", "random"]
    good, out = True, []
    if "bugs" in wanted:
        bugs, good = planted()
        table(out, "planted bugs", ("bug", "set", "guard", "memcheck", "natively"), bugs)
        record({"group": GROUP, "name": "bugs", "rows": bugs})
    if "clean" in wanted:
        rows, ok = clean()
        good &= ok
        table(out, "clean programs as a whole (times native; MiB at the end)",
              ("program", "set", "false alarms", "guard", "preload alone", "memcheck", "guard MiB", "ranges read", "not read", "not watched"), rows)
        record({"group": GROUP, "name": "clean", "rows": rows})
    if "steps" in wanted:
        rows, ok = steps()
        good &= ok
        table(out, "steps of programs that stay (times native)",
              ("program", "steps/s natively", "preload alone", "GUARD=1", "GUARD=front", "GUARD=sync", "memcheck"), rows)
    if "random" in wanted:
        good &= random_programs()
    (OUT / "guard.md").write_text("\n".join(out) + "\n")
    print("\n".join(out))
    sys.exit(0 if good else 1)
