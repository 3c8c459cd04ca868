"""Two GPUs: NCCL all-reduces inside CUDA graphs, natively and preloaded with few real execs.

    two_gpus.py        (on a machine with two GPUs and PyTorch)

For each way that py/two_gpus.py knows: it ends in time, with the same results; how many handles are
pinned, and why. A way that fails natively is skipped with what it said.
"""
import sys

from done import row
from harness import HERE, WORK, gpus, record, run, verdict
from stats import Ledger

GROUP = "two-gpus"
CAP = 8
WAYS = ("processes", "devices", "contexts")


def one(way):
    """(ok or None for skipped, text)."""
    script = [sys.executable, HERE / "programs/py" / "two_gpus.py", way]
    native = run(f"{GROUP}-{way}", "native", script, timeout=120)
    if native.status != 0:
        why = (native.stderr.strip() or native.stdout)[-160:].replace("\n", " ")
        print(f"skip {GROUP}/{way} fails natively: status {native.status}: {why}", flush=True)
        record({"group": GROUP, "name": way, "skipped": why})
        return None, "fails natively"
    problems, pinned, real = [], {}, []
    done = run(f"{GROUP}-{way}", "preloaded", script, preload=True, env={"GPUMEM_GRAPH_CACHE": str(CAP)}, timeout=180)
    if done.status != 0:
        problems.append(f"status {done.status} ({'a hang' if done.status is None else 'native 0'}): {done.stderr.strip()[-160:]}")
    elif done.stdout != native.stdout:
        problems.append("other results than natively")
    handles = 0
    for path in sorted((WORK / f"{GROUP}-{way}" / "preloaded" / "ledgers").glob("*.ledger")):
        ledger = Ledger(path)
        cache, get = ledger.cache(), ledger.counts.get
        problems += ledger.trouble()
        if ledger.interception != "complete":
            problems.append(f"interception {ledger.interception} ({ledger.reason})")
        handles += cache["handles_made"] + get("pinned_made", 0)
        real.append(cache["real_execs_made"])
        pinned[path.name.split("-")[0]] = {"pinned": get("pinned_made", 0), "live": cache["pinned"]}
        if get("pinned_made", 0) != get("pinned_ended", 0) + sum(cache["pinned"].values()):
            problems.append(f"pinned handles do not balance: {get('pinned_made', 0)} made, {get('pinned_ended', 0)} ended, {cache['pinned']} live")
    if not handles and not problems:
        problems.append("no exec handle was seen")
    text = f"{native.seconds:.0f} s and {done.seconds:.0f} s; {handles} handles, real execs made {real}, pinned {pinned}"
    return verdict(GROUP, way, problems, text, pinned=pinned), text


def main():
    if gpus() < 2:
        print(f"skip {GROUP} {gpus()} GPUs")
        return
    results = {way: one(way)[0] for way in WAYS}
    ran = {way: ok for way, ok in results.items() if ok is not None}
    row(GROUP, ", ".join(f"{way} works" for way in ran) or "nothing works",
        ", ".join(f"{way} {'the same' if ok else 'differs'}" for way, ok in ran.items()), bool(ran) and all(ran.values()))
    sys.exit(0 if all(ran.values()) else 1)


main()
