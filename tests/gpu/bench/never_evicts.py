"""The demo in the mode that never evicts: three slots whose graphs only become more, for a long time.

Every eight steps each slot comes to a shape that it has not seen, of 100 to 163 kernels (a graph is no
larger for being a later one: what 64 execs take would grow with it); nothing is ever dropped. The demo
prints memory on the way, at the same steps natively and preloaded; what counts is how it grows in the
second half of the run, when the cache has long been full. A handle that is not resident keeps a source,
so that host memory cannot stand quite still: flat means at most 5 % of native's growth, and none on the
device beyond one block of the driver's.
"""
import json
import os
import sys

from done import row
from harness import BUILD, record, run, verdict
from stats import Ledger

GROUP = "never-evicts"
CAP = 64
SHAPES = int(os.environ.get("NEVER_EVICTS_SHAPES", "400"))
ARGUMENTS = ["--slots", "3", "--never-evict", "--shapes", SHAPES, "--nodes", "100", "--iterations", SHAPES * 8,
             "--samples", "16", "--prefill", "0", "--kv", "1", "--weights", "1"]
MODES = {"native": None, "folded": {"GPUMEM_GRAPH_FOLD": "1"}, "kept": {"GPUMEM_GRAPH_FOLD": "0"}}


def one(mode):
    settings = MODES[mode]
    env = {"GPUMEM_GRAPH_CACHE": str(CAP), **settings} if settings else None
    done = run(GROUP, mode, [BUILD / "programs" / "demo", *ARGUMENTS], preload=settings is not None, env=env, timeout=240)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    samples = [line for line in lines if "sample" in line]
    if done.status or len(samples) < 16:
        raise RuntimeError(f"{mode}: status {done.status}, {len(samples)} samples: {done.stderr.strip()[-200:]}")
    half = samples[len(samples) // 2 - 1]
    figures = {name: {"half": samples[-1][name] - half[name], "all": samples[-1][name] - samples[0][name]}
               for name in ("host_mib", "device_mib")}
    figures["steps_per_second"] = lines[-1]["steps_per_second"]
    problems = []
    if settings:
        cache = Ledger(done.ledger).cache() if done.ledger else {}
        figures["cache"] = cache
        if not cache.get("handles_made"):
            problems.append(f"{mode}: no handle was virtual")
    record({"group": GROUP, "name": mode, "samples": samples, **figures})
    print(f"     {GROUP}/{mode}: {figures}", flush=True)
    return figures, problems


def main():
    runs, problems = {}, []
    try:
        for mode in MODES:
            runs[mode], wrong = one(mode)
            problems += wrong
    except (RuntimeError, OSError, ValueError) as error:
        verdict(GROUP, "growth", [str(error)[:250]])
        sys.exit(1)
    native, folded = runs["native"], runs["folded"]
    if folded["host_mib"]["half"] > 0.05 * native["host_mib"]["half"]:
        problems.append("host memory is not flat")
    if folded["device_mib"]["half"] > 4:
        problems.append("device memory is not flat")
    texts = {mode: f"{of['host_mib']['half']:+.0f} / {of['device_mib']['half']:+.0f} MiB" for mode, of in runs.items()}
    row(GROUP, texts["native"], f"{texts['folded']} (graphs kept {texts['kept']})", not problems)
    sys.exit(0 if verdict(GROUP, "growth", problems, f"{texts}") else 1)


main()
