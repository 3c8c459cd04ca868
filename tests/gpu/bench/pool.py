"""The pool by itself: pool.c natively and preloaded.

    pool.py [null | pair | back | swap | peer]...     POOL_REPEATS=3

  null    pairs against the driver that does nothing (nullcuda.c), one thread: what the pool itself takes
  pair    pairs of malloc and free, 64 KiB to 4 MiB mixed, by one thread and by sixteen, through the driver and
          through a shared and a static cudart; without stacks and with 32 frames; first allocations of a size
  back    32 GiB in mixed blocks, freed: how long until the card has all of it back, and whether another
          process can allocate meanwhile
  swap    20 GiB in mixed blocks, freed and allocated again
  peer    on two GPUs: memory of one, freed while a kernel of the other works on it
"""
import json
import os
import statistics
import sys
import time

from done import cost_row, row
from harness import BUILD, EARLIER, Held, device_used, record, run, verdict
from stats import Ledger

GROUP = "pool"
REPEATS = int(os.environ.get("POOL_REPEATS", "3"))
THREADS = os.environ.get("POOL_THREADS", "16")
MODES = {
    "native": None, "plain": {"GPUMEM_STACKS": "0"}, "stacks": {"GPUMEM_STACKS": "32"},
    "deferred": {"GPUMEM_STACKS": "0", "GPUMEM_FREE": "deferred"},
}
if EARLIER:
    MODES["earlier"] = {**MODES["stacks"], "LD_PRELOAD": EARLIER}
WHAT = ("pair_ns", "window_ns", "busy_ns", "pairs_per_s", "miss_ratio")


def wrong(name, path, hits=True):
    """What no ledger of a preloaded run may show."""
    ledger = Ledger(path)
    problems = [f"{name}: {text}" for text in ledger.trouble()]
    if ledger.interception != "complete":
        problems.append(f"{name}: interception {ledger.interception} ({ledger.reason})")
    if hits and not ledger.counts.get("pool_hits"):
        problems.append(f"{name}: no block of the pool was used again: nothing was measured")
    return ledger, problems


def one(door, mode, arguments, timeout=120, env=None):
    """What one run of pool.c printed, and its problems."""
    settings = MODES[mode]
    done = run(f"pool-{arguments[0]}-{door}", mode, [BUILD / f"pool_{door}", *arguments], 
               preload=settings is not None, env={**(settings or {}), **(env or {})}, timeout=timeout)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.status or not said:
        raise RuntimeError(f"{door} {mode}: status {done.status}: {done.stderr.strip()[-200:]}")
    problems = wrong(f"{door} {mode}", done.ledger, arguments[0] != "peer")[1] if settings is not None and mode != "earlier" else []
    for figures in said:
        record({"group": GROUP, "name": arguments[0], "door": door, "mode": mode, **figures})
    return said, problems


def null():
    problems, driver = [], {"LD_LIBRARY_PATH": str(BUILD / "null")}
    for mode in MODES:
        said, bad = one("driver", mode, ["pairs", "1"], env=driver)
        problems += bad
        of = said[0]
        print(f"     {GROUP}/null {mode}: pair {of['pair_ns']:.1f} ns, sixteen live {of['window_ns']:.1f} ns, with work {of['busy_ns']:.1f} ns, "
              f"miss {of['miss_ns']:.0f} ns (the driver's own {of['miss_native_ns']:.0f} ns)", flush=True)
    return verdict(GROUP, "null", sorted(set(problems)))


def pair():
    found, problems, start = {}, [], time.monotonic()
    plan = [(door, mode) for door in ("driver", "shared", "static") for mode in MODES if mode != "deferred" or door == "driver"]
    for repeat in range(REPEATS):
        for door, mode in plan if repeat % 2 == 0 else reversed(plan):
            if (door == "static" or mode == "deferred") and repeat:
                continue
            try:
                said, bad = one(door, mode, ["pairs", THREADS])
            except RuntimeError as error:
                if door != "static":
                    raise
                print(f"skip {GROUP}/pair {error}"[:200], flush=True)
                continue
            found.setdefault((door, mode), []).append(said[0])
            problems += bad
    of = {key: {name: statistics.median(r[name] for r in runs) for name in WHAT} for key, runs in found.items()}

    def us(door, mode, name="pair_ns"):
        return f"{of[door, mode][name] / 1e3:.3f}"

    for door, mode in of:
        print(f"     {GROUP}/pair {door} {mode}: pair {us(door, mode)} µs, sixteen live {us(door, mode, 'window_ns')} µs, with work "
              f"{us(door, mode, 'busy_ns')} µs, {THREADS} threads {of[door, mode]['pairs_per_s'] / 1e6:.2f} M/s", flush=True)
    plain, shared = of["driver", "plain"], of["shared", "plain"]
    row("pool-pair", f"{us('driver', 'native')} / {us('shared', 'native')} µs",
        f"{us('driver', 'plain')} / {us('shared', 'plain')} µs " + (f" (static cudart {us('static', 'plain')})" if ("static", "plain") in of else ""),
        not problems and plain["pair_ns"] <= 60 and shared["pair_ns"] <= 150)
    row("pool-threads", f"{of['driver', 'native']['pairs_per_s'] / 1e6:.3f} M",
        f"{plain['pairs_per_s'] / 1e6:.1f} M (cudaMalloc {shared['pairs_per_s'] / 1e6:.1f} M)", not problems and plain["pairs_per_s"] >= 60e6)
    added = {door: of[door, "stacks"]["pair_ns"] - of[door, "plain"]["pair_ns"] for door in ("driver", "shared")}
    row("pool-stacks", "–", f"{added['driver'] / 1e3:+.3f} / {added['shared'] / 1e3:+.3f} µs", not problems and max(added.values()) <= 250)
    misses = statistics.median(r["miss_native_ns"] for r in found["driver", "plain"])
    row("pool-miss", f"{misses / 1e3:.1f} µs", f"{plain['miss_ratio']:.3f} × (cudaMalloc {shared['miss_ratio']:.3f}; with stacks "
        f"{of['driver', 'stacks']['miss_ratio']:.3f})", not problems and 0 < plain["miss_ratio"] <= 1.03)
    with_stacks, before = of["driver", "stacks"]["miss_ratio"], of.get(("driver", "earlier"))
    cost_row("cost-first-size", "1", [with_stacks], f"{plain['miss_ratio']:.3f} without stacks, {with_stacks:.3f} with", not problems,
             before and [before["miss_ratio"]])
    if ("static", "stacks") in of:
        static, before = of["static", "stacks"], of.get(("static", "earlier"))
        cost_row("cost-pair", f"{us('static', 'native')} µs; {of['static', 'native']['pairs_per_s'] / 1e6:.3f} M a second", [static["pair_ns"], 1e9 / static["pairs_per_s"]],
             f"{static['pair_ns']:.0f} ns; {1e9 / static['pairs_per_s']:.1f} ns ({static['pairs_per_s'] / 1e6:.1f} M a second)", not problems,
                 before and [before["pair_ns"], 1e9 / before["pairs_per_s"]])
    return verdict(GROUP, "pair", sorted(set(problems)), f"{time.monotonic() - start:.0f} s",
                   figures={f"{door} {mode}": v for (door, mode), v in of.items()})


def back():
    """How long the card misses what one process freed, and what another one gets meanwhile."""
    gib, limit = float(os.environ.get("POOL_BACK_GIB", "32")), 15
    holder = Held("pool-back", "preloaded", [BUILD / "pool_driver", "hold"], preload=True)
    other = Held("pool-back", "other", [BUILD / "pool_driver", "hold"])
    try:
        other.ask("take 0.01 1 2")  # both contexts are there
        holder.ask("take 0.01 1 2")
        holder.ask("free")
        used = device_used
        if used() is None:
            return verdict(GROUP, "back", ["NVML does not answer: what the card has cannot be seen"])
        before = used()
        taken = holder.ask(f"take {gib} 2 1024")
        full = used()
        holder.ask("free")
        start, curve, alone = time.monotonic(), [], None
        while time.monotonic() - start < limit + 5:
            left = (used() - before) / 2**30
            curve.append((round(time.monotonic() - start, 1), round(left, 2)))
            if left < 0.07:  # what the driver rounds up
                break
            if alone is None and curve[-1][0] >= 2:
                alone = other.ask("take 8 64 512")["code"]
                other.ask("free")
            time.sleep(0.25)
        seconds, left = curve[-1]
        if alone is None:
            alone = other.ask("take 8 64 512")["code"]
        ledger, problems = wrong("preloaded", holder.ledger(), hits=False)
    finally:
        holder.stop()
        other.stop()
    if taken["code"] or full - before < gib * 2**30 * 0.98:
        problems.append(f"the burst was not there: {taken}")
    if seconds > limit or left >= 0.07:
        problems.append(f"{left} GiB missing after {seconds} s")
    if alone:
        problems.append(f"another process could not allocate 8 GiB: {alone}")
    record({"group": GROUP, "name": "back", "curve": curve})
    shown = curve[:: max(1, len(curve) // 8)]
    row("pool-back", f"{gib:.0f} GiB in {taken['blocks']} blocks", f"all back after {seconds} s; another process allocates 8 GiB meanwhile: "
        f"{'yes' if not alone else alone}", not problems)
    return verdict(GROUP, "back", problems, f"GiB missing by second {shown}; {ledger.pool()}")


def swap():
    gib = os.environ.get("POOL_SWAP_GIB", "20")
    found, problems = {}, []
    for mode in ("native", "plain"):
        said, bad = one("driver", mode, ["swap", gib])
        found[mode] = said[0]
        problems += bad
    native, plain = found["native"], found["plain"]
    ratio = native["swap_ms"] / plain["swap_ms"]
    row("pool-swap", f"{native['swap_ms']:.1f} ms ({native['blocks']} blocks)", f"{ratio:.0f} × faster: {plain['swap_ms']:.3f} ms "
        f"(the first time {plain['first_ms']:.3f})", not problems and ratio >= 20)
    return verdict(GROUP, "swap", problems, f"native {native}, pool {plain}")


def peer():
    found, problems = {}, []
    for mode in ("native", "plain", "deferred"):
        said, bad = one("driver", mode, ["peer"], timeout=60)
        if "skip" in said[0]:
            print(f"skip {GROUP}/peer {said[0]['skip']}", flush=True)
            return True
        found[mode] = said
        problems += bad
    texts = {}
    for mode, turns in found.items():
        waits = ["waits" if turn["free_ms"] >= 0.8 * turn["kernel_ms"] else f"returns after {turn['free_ms']} ms" for turn in turns]
        texts[mode] = ", ".join(f"{w} (kernel {t['kernel_code']}, {t['wrong_words']} words wrong)" for w, t in zip(waits, turns))
        if mode != "native":
            for turn, as_native in zip(turns, found["native"]):
                # Where the free does not wait natively, the kernel uses freed memory, and anything may come of it.
                if as_native["kernel_code"] == 0 and as_native["wrong_words"] == 0 and (turn["wrong_words"] or turn["kernel_code"]):
                    problems.append(f"{mode}, turn {turn['turn']}: kernel {turn['kernel_code']}, {turn['wrong_words']} words wrong; "
                                    f"natively {as_native['kernel_code']}, {as_native['wrong_words']}")
    row("pool-peer", texts["native"], f"strict: {texts['plain']}; deferred: {texts['deferred']}", not problems)
    return verdict(GROUP, "peer", problems, f"{texts}", found=found)


def main():
    results = []
    for name in sys.argv[1:] or ["pair", "swap", "back"]:
        try:
            results.append({"null": null, "pair": pair, "back": back, "swap": swap, "peer": peer}[name]())
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            results.append(verdict(GROUP, name, [str(error)[:300]]))
    sys.exit(0 if all(results) else 1)


main()
