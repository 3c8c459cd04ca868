"""Runs every program of programs.py natively, counted, preloaded, and both, and compares.

For each: the same status and output as natively; `interception: complete`; counts equal to the
independent counter's, in the same run and, where the program repeats its calls, across runs; balance
to zero where the program frees all. Prints one line a program, writes $OUT/results.jsonl.

    run.py [NAME-PART...]        only programs whose name contains one of these
"""
import concurrent.futures
import os
import re
import subprocess
import sys

from harness import OUT, allowed, inspect, record, run, verdict
from programs import ALL
from stats import KINDS, Ledger, differences, of_counter, of_inspector

GROUP = "program"
# Peaks depend on how threads meet, times on the day; addresses are the driver's choice.
VOLATILE = re.compile(r'"(?:bytes_)?peak":\d+|"[a-z_]*(?:seconds|ms|_ns|_us|_mib|per_second|_per_s)":(?:[\d.e+-]+|\[[^]]*\])|0x[0-9a-f]{6,}')


def stable(text):
    return VOLATILE.sub("*", text)


def first_difference(a, b):
    for left, right in zip(a.splitlines() + ["<end>"], b.splitlines() + ["<end>"]):
        if left != right:
            return f"output differs: {left[:70]!r} / {right[:70]!r}"
    return "output differs"


def check(program):
    why = program.missing()
    if why:
        print(f"skip {GROUP}/{program.name} {why}", flush=True)
        record({"group": GROUP, "name": program.name, "skipped": why})
        return None
    modes = {
        "native": {}, "counted": {"count": True}, "preloaded": {"preload": True}, "both": {"preload": True, "count": True},
    }
    runs = {}
    for mode, how in modes.items():
        runs[mode] = run(program.name, mode, program.argv, env=program.env, timeout=program.timeout, **how)
        if mode == "native" and runs[mode].status != 0:
            break
    native = runs["native"]
    if native.status != 0:
        return verdict(GROUP, program.name, [f"fails natively: status {native.status}: {native.stderr.strip()[-150:]}"])
    problems, notes = [], []
    for mode, done in runs.items():
        if done.status != 0:
            problems.append(f"{mode}: status {done.status}: {done.stderr.strip()[-120:]}")
        elif stable(done.stdout) != stable(native.stdout):
            problems.append(f"{mode}: {first_difference(stable(native.stdout), stable(done.stdout))}")
    more = {"seconds": {mode: round(done.seconds, 2) for mode, done in runs.items()},
            "host_mib": {mode: round(done.host_mib, 1) for mode, done in runs.items()}}
    if "preloaded" in runs and runs["preloaded"].host_mib > allowed(native.host_mib):
        problems.append(f"host memory {runs['preloaded'].host_mib:.1f} MiB, natively {native.host_mib:.1f}")
    problems += compare(program, runs, notes, more)
    return verdict(GROUP, program.name, problems, ", ".join(notes), **more)


def compare(program, runs, notes, more):
    """Interception, counts and balance; returns what is wrong."""
    problems, ledgers = [], {}
    for mode in ("preloaded", "both"):
        if not runs[mode].ledger:
            problems.append(f"{mode}: no ledger")
            continue
        try:
            ledger = ledgers[mode] = Ledger(runs[mode].ledger)
        except (ValueError, OSError) as error:
            problems.append(f"{mode}: {error}")
            continue
        if ledger.interception != "complete":
            problems.append(f"{mode}: interception {ledger.interception} ({ledger.reason})")
        problems += [f"{mode}: {t}" for t in ledger.trouble()]
    counters = {mode: of_counter(runs[mode].counted) for mode in ("counted", "both") if runs[mode].counted}
    for mode in ("counted", "both"):
        if mode not in counters:
            problems.append(f"{mode}: the counter wrote nothing")
    pairs = [("both", "both")] + ([("counted", "preloaded")] if program.repeats else [])
    for counted_mode, ledger_mode in pairs:
        if counted_mode in counters and ledger_mode in ledgers:
            wrong = differences(counters[counted_mode], ledgers[ledger_mode].counts)
            if wrong:
                across = "" if counted_mode == ledger_mode else " (across runs)"
                problems.append(f"counts{across}, counter≠gpumem: {', '.join(wrong[:6])}{' …' if len(wrong) > 6 else ''}")
    if "preloaded" in ledgers:
        ledger = ledgers["preloaded"]
        problems += inspected(runs["preloaded"].ledger, ledger)
        live = ledger.live()
        if program.frees_all and live:
            problems.append(f"not balanced: {live}")
        allocs = sum(v for k, v in ledger.counts.items() if k.endswith(".allocs"))
        get = ledger.counts.get
        notes += [f"{allocs} allocs", f"{get('execs_created', 0)} execs", f"{get('launches', 0)} graph launches",
                  "live 0" if not live else f"live {live}"]
        more.update(counts=ledger.counts, live=live, interception=ledger.interception, mode=ledger.mode)
        if "both" in counters:
            more["counter"] = counters["both"]
    return problems


def inspected(path, ledger):
    """`gpumem stats --json` must say what the ledger says."""
    try:
        said = of_inspector(inspect("stats", path))
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [f"gpumem {error}"[:150]]
    kinds = [k for k in said if k.split(".")[0] in KINDS.values()]
    wrong = [f"{k} {ledger.counts.get(k, 0)}≠{said[k]}" for k in said if ledger.counts.get(k, 0) != said[k]]
    wrong += [f"{k} is not said" for k in ledger.counts if k.endswith(".allocs") and k not in kinds]
    return [f"ledger≠gpumem stats --json: {', '.join(wrong[:5])}"] if wrong else []


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    chosen = [p for p in ALL if len(sys.argv) < 2 or any(part in p.name for part in sys.argv[1:])]
    workers = int(os.environ.get("JOBS") or max(2, (os.cpu_count() or 4) // 2))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(check, chosen))
    print(f"{GROUP}: {results.count(True)} ok, {results.count(False)} failed, {results.count(None)} skipped", flush=True)
    sys.exit(1 if False in results else 0)


if __name__ == "__main__":
    main()
