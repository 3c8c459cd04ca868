"""ggml's graph cache under many keys: graphchurn, a program over ggml's public API that makes a new
`ggml_context` per key (a ggml whose CUDA backend never evicts, as v0.9.6 to v0.9.11).

    churn.py GRAPHCHURN        CHURN_PAIRS=8 CHURN_ARGS="--keys 1000 --nodes 400 --iters 4"

It prints the growth of its resident set and of the device's used memory, and the time per compute.
Modes: native; graphs off; the cache at 16 with the program's graphs kept, and folded.
"""
import os
import pathlib
import shlex
import statistics
import sys

from done import row
from harness import record, run, verdict
from stats import Ledger

GROUP = "churn"
PAIRS = int(os.environ.get("CHURN_PAIRS", "8"))
ARGUMENTS = shlex.split(os.environ.get("CHURN_ARGS", "--keys 1000 --nodes 400 --iters 4"))
CACHE = {"GPUMEM_GRAPH_CACHE": "16"}
MODES = {
    "native": (False, {}),
    "off": (False, {"GGML_CUDA_DISABLE_GRAPHS": "1"}),
    "kept": (True, {**CACHE, "GPUMEM_GRAPH_FOLD": "0"}),
    "folded": (True, {**CACHE, "GPUMEM_GRAPH_FOLD": "1"}),
}


def one(program, mode, pair):
    preload, env = MODES[mode]
    done = run(GROUP, mode, [program, *ARGUMENTS], preload=preload, env=env, timeout=200, cwd=program.parent)
    rows = [line.split() for line in done.stdout.splitlines()]
    rows = [[float(v) for v in r] for r in rows if len(r) == 4 and all(v.replace(".", "").replace("-", "").isdigit() for v in r)]
    if done.status or not rows:
        raise RuntimeError(f"{mode}: status {done.status}: {(done.stderr.strip() or done.stdout)[-200:]}")
    figures = {"host_mib": rows[-1][1], "device_mib": rows[-1][2], "compute_us": rows[-1][3]}
    if preload:
        ledger = Ledger(done.ledger)
        figures["cache"] = {"interception": ledger.interception, "trouble": ledger.trouble(), **ledger.cache()}
    record({"group": GROUP, "name": f"{mode}-{pair}", "mode": mode, **figures})
    print(f"     {GROUP}/{mode}-{pair}: {', '.join(f'{k} {v}' for k, v in figures.items() if k != 'cache')}", flush=True)
    return figures


def values(program):
    """Every mode computes the same values, where the program can show them (`--check`)."""
    digests = {}
    for mode, (preload, env) in MODES.items():
        done = run(f"{GROUP}-check", mode, [program, "--keys", "100", "--nodes", "60", "--iters", "4", "--type", "f32", "--check"],
                   preload=preload, env=env, timeout=120, cwd=program.parent)
        if "unknown --check" in done.stderr:
            print(f"     {GROUP}/check: this program has no --check: its values are not compared", flush=True)
            return []
        digests[mode] = next((line for line in done.stdout.splitlines() if line.startswith("digest")), f"status {done.status}")
    print(f"     {GROUP}/check: {digests['native']}", flush=True)
    return [f"{mode} computes {of}, native {digests['native']}" for mode, of in digests.items() if of != digests["native"]]


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    runs, problems = {mode: [] for mode in MODES}, []
    try:
        problems += values(program)
        for pair in range(PAIRS):
            for mode in list(MODES) if pair % 2 == 0 else reversed(MODES):
                if mode in ("native", "folded") or pair < 3:  # of the others the growth is needed
                    runs[mode].append(one(program, mode, pair))
    except (RuntimeError, OSError, ValueError) as error:
        verdict(GROUP, "growth", [str(error)[:250]])
        sys.exit(1)
    for mode in ("kept", "folded"):
        for figures in runs[mode]:
            cache = figures["cache"]
            problems += [f"{mode}: {text}" for text in cache["trouble"]]
            if not cache["handles_made"]:
                problems.append(f"{mode}: no handle was virtual")
            if cache["interception"] != "complete":
                problems.append(f"{mode}: interception {cache['interception']}")
    median = {mode: {k: statistics.median(r[k] for r in of) for k in ("host_mib", "device_mib", "compute_us")} for mode, of in runs.items()}
    ratio = statistics.median(b["compute_us"] / a["compute_us"] for a, b in zip(runs["native"], runs["folded"]))
    kept, folded, native, off = (median[mode] for mode in ("kept", "folded", "native", "off"))
    device, slowest = max(kept["device_mib"], folded["device_mib"]), max(kept["compute_us"], folded["compute_us"])
    def each(of):
        return f"{of['compute_us'] / 1e3:.2f} ms"
    row(GROUP, f"{native['host_mib']:.0f} / {native['device_mib']:.0f} MiB, {each(native)} "
        f"(graphs off {off['host_mib']:.0f} / {off['device_mib']:.0f} MiB, {each(off)})",
        f"{kept['host_mib']:.0f} MiB kept, {folded['host_mib']:.0f} MiB folded / {device:.0f} MiB, {each(kept)} and {each(folded)}",
        not problems and kept["host_mib"] <= 1650 and folded["host_mib"] <= 450 and device <= 60 and slowest <= 1600)
    ok = verdict(GROUP, "growth", sorted(set(problems)), f"time ratio folded/native {ratio:.3f}, {PAIRS} pairs; {runs['folded'][-1]['cache']}",
                 median=median)
    sys.exit(0 if ok else 1)


main()
