"""GPUMEM_GUARD on a real GPU beside compute-sanitizer's memcheck: planted bugs (tests/programs/pool_guard.c, bugs.cu) and
clean programs (guard_clean.py, guard_samples.py), each natively, under the guard, and under memcheck where that is there
(memcheck.py).

    guard.py [bugs | clean | steps | server | samples | random]...

A line for each, and one table at the end ($OUT/guard.md): what each of the two finds, what it says of clean programs, how
much slower they are, and how much more device memory they take. It fails where the guard misses what it has to find, finds
something where it cannot, where a clean program has a finding or other answers than natively, where steps take more than
SLOWER times native, and where the random programs of pooler differ.

  COMPUTE_SANITIZER=file   (default: that of CUDA_HOME, of PATH, or of a wheel; without it that column says `skip`)
  GUARD_LIMIT=S            how long all but the random programs may take (240): what does not fit is skipped
  GUARD_BUGS="over4 twice" which bugs (all)
  GUARD_ROUNDS=N           rounds of clean programs as a whole (4); of several the first does not count
  LLAMA_SERVER=file LLAMA_MODEL=file   for `server`; GUARD_MEMCHECK_SECONDS=S how long it may take to start under memcheck (120)
  CUDA_SAMPLES=folder      for `samples`: guard_samples.py
  GUARD_SECONDS=S          how long pooler's random programs run with each way of the guard (30)
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import memcheck
from guard_clean import GROUP, Until, findings, row, server, steps, whole
from guard_samples import samples
from harness import BUILD, OUT, SO, WORK, inspect, record, run, verdict

TIMES = 4
POOL_GUARD, BUGS_CU = BUILD / "guard" / "pool_guard", BUILD / "bugs"
# What plants it, its name, what it is, how the guard is set, and whether the guard has to find it.
BUGS = [
    (POOL_GUARD, "over1", "a byte behind 1023", "1", True),
    (POOL_GUARD, "over4", "4 bytes behind 1 MiB", "1", True),
    (POOL_GUARD, "over512", "512 bytes behind 1 MiB", "1", True),
    (POOL_GUARD, "overunit", "512 bytes behind 2 MiB", "1", True),
    (POOL_GUARD, "many", "32 bytes behind one of 200 blocks", "1", True),
    (POOL_GUARD, "thread", "128 bytes behind, by another thread than frees", "1", True),
    (POOL_GUARD, "graphover", "64 bytes behind, by a node of a graph", "1", True),
    (POOL_GUARD, "order", "8 bytes behind, freed in stream order", "1", True),
    (POOL_GUARD, "fill", "a memset of 4 bytes too many", "1", True),
    (POOL_GUARD, "copy", "a copy of 4 bytes too many", "1", True),
    (BUGS_CU, "loop", "a loop that goes one too far", "1", True),
    (BUGS_CU, "histogram", "an atomic add to a bin too many", "1", True),
    (BUGS_CU, "vectors", "a vector's store at an odd length", "1", True),
    (POOL_GUARD, "under4", "4 bytes in front of 1 MiB", "front", True),
    (POOL_GUARD, "under512", "512 bytes in front of 4 MiB", "front", True),
    (BUGS_CU, "halo", "the left neighbour of the first element", "front", True),
    (POOL_GUARD, "live", "16 bytes behind a live block, at a wait", "sync", True),
    (POOL_GUARD, "freed", "64 bytes of a freed block", "sync", True),
    (POOL_GUARD, "freedwhole", "a freed block, all of it", "sync", True),
    (POOL_GUARD, "stale", "an address that outlived its block", "sync", True),
    (BUGS_CU, "table", "a freed block, by an address in device memory", "sync", True),
    (POOL_GUARD, "graph", "a graph launched after its memory's free", "1", True),
    (POOL_GUARD, "twice", "a second free", "1", False),
    (POOL_GUARD, "far", "4 bytes in another live block", "1", False),
    (POOL_GUARD, "async", "4 bytes behind cuMemAllocAsync's", "1", False),
    (POOL_GUARD, "managed", "4 bytes behind managed memory", "1", False),
    (POOL_GUARD, "pinned", "4 bytes behind pinned memory", "1", False),
    (POOL_GUARD, "pitched", "4 bytes behind a row of pitched memory", "1", False),
    (POOL_GUARD, "reads", "a read of 4 bytes behind 1 MiB", "1", False),
    (POOL_GUARD, "readsfreed", "a read of freed memory", "1", False),
    (POOL_GUARD, "unwritten", "a read of what was never written", "1", False),
    (BUGS_CU, "misaligned", "a store at an odd address", "1", False),
    (BUGS_CU, "null", "a store to the null pointer", "1", False),
    (BUGS_CU, "shared", "16 words behind an array in shared memory", "1", False),
    (BUGS_CU, "heap", "8 words behind memory of the device's malloc", "1", False),
    (BUGS_CU, "symbol", "4 words behind a __device__ array", "1", False),
    (BUGS_CU, "race", "a race between blocks of threads", "1", False),
]


def argv_of(program, bug):
    if program == BUGS_CU:
        return [program, bug]
    # What is freed is read again at a wait; a live block at its free, too.
    return [program, *({"live": ["live", "sync", "drop"]}.get(bug, [bug, "sync"]))]


def bug(of):
    """A row of the table, and whether the guard found what it has to."""
    program, name, what, guard, must = of
    argv, problems = argv_of(program, name), []
    native = run(f"guard-{name}", "native", argv, timeout=60)
    for time in range(TIMES):
        guarded = run(f"guard-{name}", f"guard-{time}", argv, preload=True, env={"GPUMEM_GUARD": guard}, timeout=60)
        found = findings(guarded.ledger)
        # A wait of the program's is made longer by so much only: a busy machine may not read all in that time, and counts it.
        if found or not guarded.ledger or not inspect("stats", guarded.ledger)["pool"]["guard"]["unchecked"]:
            break
    checked, errors = memcheck.check(f"guard-{name}", argv)
    if found is None:
        problems.append(f"no ledger: status {guarded.status}: {guarded.stderr.strip()[-150:]}")
    elif must != bool(found):
        problems.append(f"{'not found' if must else 'found'}: {found}: status {guarded.status}: {guarded.stderr.strip()[-150:]}")
    by_guard = "finds" if found else "cannot"
    by_memcheck = "skip" if not memcheck.PROGRAM else "not told" if errors is None else "finds" if errors else "cannot"
    natively = "stands still" if native.status is None else "ends with an error" if native.status else "nothing seen"
    ok = verdict(GROUP, f"bug/{name}", problems, f"guard {by_guard}, memcheck {by_memcheck}, native status {native.status}",
                 found=found or [], native=native.status, guard=guarded.status, memcheck=checked and checked.status, errors=errors)
    return row(what, guard, by_guard, None, by_memcheck, natively=natively), ok


def planted():
    """Several at a time: they are not timed."""
    built = {program: program.exists() for program in (POOL_GUARD, BUGS_CU)}
    for program in (program for program, is_there in built.items() if not is_there):
        print(f"skip {GROUP}/bug {program.name} was not built", flush=True)
    chosen = os.environ.get("GUARD_BUGS", "").split()
    wanted = [of for of in BUGS if built[of[0]] and (not chosen or of[1] in chosen)]
    with concurrent.futures.ThreadPoolExecutor(max(1, min(6, (os.cpu_count() or 2) // 2))) as all_at_once:
        told = list(all_at_once.map(bug, wanted))
    return [row for row, _ in told], all(ok for _, ok in told)


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


HEAD = ("bug or clean program", "set", "guard", "memcheck", "natively", "guard, times native", "memcheck, times native",
        "MiB natively", "more with the guard", "more with memcheck")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or ["bugs", "clean", "steps", "server", "samples", "random"]
    until, rows, good = Until(float(os.environ.get("GUARD_LIMIT", "240"))), [], True
    if memcheck.MISSING:
        print(f"{'FAIL' if os.environ.get('COMPUTE_SANITIZER') else 'skip'} {GROUP}/memcheck {memcheck.MISSING}", flush=True)
        good = not os.environ.get("COMPUTE_SANITIZER")
    for name, part in (("bugs", lambda _: planted()), ("clean", whole), ("steps", steps), ("server", server), ("samples", samples)):
        if name in wanted:
            more, ok = part(until)
            rows, good = rows + more, good & ok
            record({"group": GROUP, "name": f"table-{name}", "head": HEAD, "rows": more})
    lines = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in (HEAD, *rows)]
    lines.insert(1, "|" + "---|" * len(HEAD))
    (OUT / "guard.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    if "random" in wanted:
        good &= random_programs()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
