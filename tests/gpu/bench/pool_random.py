"""RMM's random-allocation benchmark, re-implemented (tests/src/poolbench), natively, by cudaMallocAsync and from the pool.

    pool_random.py        POOL_RANDOM_COUNT=100000 POOL_CURVE_COUNT=20000 RMM_RANDOM=file

Sizes uniform up to 64 MiB, 73 allocations in 100 steps, random victims, at most 16000 MiB live. Peaks are the
driver's own count of what the device has given, past every hook. The curve: the pool with that part of the
peak requested as GPUMEM_POOL_MAX, over fewer allocations. Beside it RMM's own pool and arena where RMM_RANDOM
names the program (rmm_random.cpp).
"""
import json
import os
import pathlib
import sys

from done import cost_row, row
from harness import EARLIER, SO, record, run, verdict
from stats import Ledger

GROUP = "pool-random"
PROGRAM = pathlib.Path(SO).parent / "poolbench"
COUNT = os.environ.get("POOL_RANDOM_COUNT", "100000")
CURVE = os.environ.get("POOL_CURVE_COUNT", "20000")
LIMITS = ["--max-mib", os.environ.get("POOL_RANDOM_MIB", "64"), "--usage-mib", os.environ.get("POOL_RANDOM_USAGE", "16000")]
RMM, RMM_RANDOM = ("pool", "arena"), pathlib.Path(os.environ.get("RMM_RANDOM") or "none")
PARTS = (0, 5, 12, 25, 50)


def one(name, arguments, env=None, program=None):
    """What one replay found; under the preload when there is an `env`."""
    done = run(GROUP, name, [*(program or [PROGRAM, "random", *LIMITS, "--json"]), *arguments], preload=env is not None, env=env, timeout=240)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.status or not said:
        raise RuntimeError(f"{name}: status {done.status}: {done.stderr.strip()[-200:]}")
    figures, problems = said[-1], []
    if figures["failed"]:
        problems.append(f"{name}: {figures['failed']} allocations failed")
    if env is not None and "LD_PRELOAD" not in env:
        ledger = Ledger(done.ledger)
        figures["pool"] = ledger.pool()
        problems += [f"{name}: {text}" for text in ledger.trouble()]
        if figures["mode"] != "preloaded" or ledger.interception != "complete":
            problems.append(f"{name}: {figures['mode']}, interception {ledger.interception}")
    record({"group": GROUP, "name": name, **figures})
    return figures, problems


def main():
    found, problems = {}, []

    def add(name, *more):
        found[name], bad = one(name, *more)
        problems.extend(bad)

    def text(name, against):
        of = found[name]
        faster = found[against]["ns_per_step"] / of["ns_per_step"]
        return f"{faster:.2f} × faster ({of['ns_per_step'] / 1e3:.2f} µs a step) at {of['reserved_over_requested']:.3f}"

    try:
        add("native", ["--count", COUNT])
        add("pool", ["--count", COUNT], {"GPUMEM_STACKS": "0"})
        if EARLIER:
            add("earlier", ["--count", COUNT], {"GPUMEM_STACKS": "0", "LD_PRELOAD": EARLIER})
        add("stacks", ["--count", COUNT], {})
        add("async", ["--count", COUNT, "--async"])
        for name in RMM if RMM_RANDOM.exists() else ():
            try:
                add(f"RMM {name}", ["--count", COUNT, *LIMITS], None, [RMM_RANDOM, name])
            except RuntimeError as error:
                print(f"skip {GROUP}/RMM {name} {error}", flush=True)
        peak = found["native"]["peak_requested_bytes"]
        add("native, fewer", ["--count", CURVE])
        for part in PARTS:
            add(f"{part} %", ["--count", CURVE], {"GPUMEM_STACKS": "0", "GPUMEM_POOL_MAX": str(peak * part // 100)})
    except (RuntimeError, OSError, ValueError) as error:
        verdict(GROUP, "replay", [str(error)[:250]])
        sys.exit(1)
    native, pool = found["native"], found["pool"]
    print(f"| GPUMEM_POOL_MAX / peak requested ({CURVE} allocations) | " + " | ".join(f"{part} %" for part in PARTS) + " |", flush=True)
    print("|" + "---|" * (len(PARTS) + 1), flush=True)
    print("| time, native = 1; peak reserved / peak requested | " + " | ".join(
        f"{found[f'{part} %']['ns_per_step'] / found['native, fewer']['ns_per_step']:.3f}; {found[f'{part} %']['reserved_over_requested']:.3f}"
        for part in PARTS) + " |", flush=True)
    row(GROUP, f"{native['ns_per_step'] / 1e3:.1f} µs a step at {native['reserved_over_requested']:.3f}; cudaMallocAsync {text('async', 'native')}"
        + "".join(f"; RMM's {name} {text(f'RMM {name}', 'native')}" for name in RMM if f"RMM {name}" in found),
        f"{text('pool', 'native')} (with stacks {text('stacks', 'native')})",
        not problems and pool["ns_per_step"] * 5 <= native["ns_per_step"] and pool["reserved_over_requested"] <= 1.25)
    of_native = {name: [of["ns_per_step"] / native["ns_per_step"], of["reserved_over_requested"]] for name, of in found.items()}
    cost_row("cost-random", "1; 1", of_native["pool"], ok=not problems, earlier=of_native.get("earlier"))
    sys.exit(0 if verdict(GROUP, "replay", sorted(set(problems)), f"fragmentation at the peak: "
                          + ", ".join(f"{name} {of['fragmentation']:.3f}" for name, of in found.items() if "fragmentation" in of)
                          + f"; {pool['pool']}") else 1)


main()
