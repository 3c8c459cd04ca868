"""A PyTorch forward that allocates each tensor from the driver, natively and from the pool; and with PyTorch's own cache.

    pool_torch.py        TORCH_PAIRS=8

One process for each mode, all alive; they take turns.
"""
import os
import statistics
import sys

from done import cost_row, row
from harness import EARLIER, HERE, Held, record, verdict
from stats import Ledger

GROUP = "pool-torch"
PAIRS = int(os.environ.get("TORCH_PAIRS", "8"))
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
MODES = {
    "native": (False, UNCACHED), "strict": (True, {**UNCACHED, "GPUMEM_FREE": "strict"}),
    "deferred": (True, {**UNCACHED, "GPUMEM_FREE": "deferred"}), "own": (False, {}), "own-preloaded": (True, {}),
}
if EARLIER:
    MODES["earlier"] = (True, {**MODES["strict"][1], "LD_PRELOAD": EARLIER})


def main():
    held, digests, times, problems, pools = {}, {}, {mode: [] for mode in MODES}, [], {}
    try:
        for mode, (preload, env) in MODES.items():
            held[mode] = Held(GROUP, mode, [sys.executable, HERE / "programs/py" / "uncached.py"], preload=preload, env=env)
            held[mode].send("ready")
        for mode, process in held.items():
            digests[mode] = process.answer()["digest"]
        for pair in range(PAIRS):
            for mode in list(MODES) if pair % 2 == 0 else reversed(MODES):
                times[mode].append(held[mode].ask("rounds 10")["ms"])
        for mode, process in held.items():
            if {process.ask("end")["digest"], digests[mode]} != {digests["own" if mode.startswith("own") else "native"]}:
                problems.append(f"{mode}: other results than natively")
            if MODES[mode][0] and mode != "earlier":
                ledger = Ledger(process.ledger())
                pools[mode] = ledger.pool()
                problems += [f"{mode}: {text}" for text in ledger.trouble()]
                if ledger.interception != "complete":
                    problems.append(f"{mode}: interception {ledger.interception} ({ledger.reason})")
                if mode in ("strict", "deferred") and not ledger.counts.get("pool_hits"):
                    problems.append(f"{mode}: no block of the pool was used again: nothing was measured")
    except (RuntimeError, OSError, ValueError) as error:
        verdict(GROUP, "forward", [str(error)[:250]])
        sys.exit(1)
    finally:
        for process in held.values():
            process.stop()
    ms = {mode: statistics.median(of) for mode, of in times.items()}
    record({"group": GROUP, "name": "forward", "ms": ms, "times": times, "pool": pools})
    row("pool-torch", f"{ms['native']:.2f} ms (its own cache {ms['own']:.2f} ms)",
        f"deferred {ms['deferred']:.2f} ms, strict {ms['strict']:.2f} ms (its own cache over the pool {ms['own-preloaded']:.2f} ms)",
        not problems and ms["deferred"] <= 3.6 / 3.4 * ms["own"] and ms["strict"] < ms["native"])
    cost_row("cost-forward", "1", [ms["strict"] / ms["own"]], ok=not problems, earlier=EARLIER and [ms["earlier"] / ms["own"]])
    sys.exit(0 if verdict(GROUP, "forward", sorted(set(problems)), f"{PAIRS} pairs; {pools}") else 1)


main()
