"""What many graphs cost, natively and under the graph cache: tests/programs/graphmem.c.

    graphmem.py [200 | 10000]...     GRAPHMEM_PAIRS=8

  200     200 graphs × 1000 nodes, cap 16, the program keeps its graphs: native, kept
          (GPUMEM_GRAPH_FOLD=0) and folded (=1) once each, for memory, and folded with parameters that
          share nothing; then pairs of 100 graphs, native and folded, for time
  10000   10 000 graphs, cap 64, each destroyed once it is instantiated; natively that many do not
          fit, so native runs 1000
"""
import json
import os
import statistics
import sys

from done import row
from harness import BUILD, record, run, verdict
from stats import Ledger

GROUP = "graphmem"
PROGRAM = BUILD / "programs" / "graphmem"
PAIRS = int(os.environ.get("GRAPHMEM_PAIRS", "8"))
MODES = {"native": None, "kept": {"GPUMEM_GRAPH_FOLD": "0"}, "folded": {"GPUMEM_GRAPH_FOLD": "1"}}


def one(name, mode, cap, arguments, timeout=300):
    """One run; returns what the program measured, with what the ledger says under "cache"."""
    settings = MODES[mode]
    env = {"GPUMEM_GRAPH_CACHE": str(cap), **settings} if settings else None
    done = run(f"graphmem-{name}", mode, [PROGRAM, *arguments, "--keep"], preload=settings is not None, env=env, timeout=timeout)
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not said:
        raise RuntimeError(f"{name} {mode}: status {done.status}: {done.stderr.strip()[-200:]}")
    figures = {"status": done.status, **json.loads(said[-1])}
    if settings is not None:
        if not done.ledger:
            raise RuntimeError(f"{name} {mode}: no ledger")
        ledger = Ledger(done.ledger)
        figures["cache"] = {"interception": ledger.interception, "trouble": ledger.trouble(), **ledger.cache()}
    record({"group": GROUP, "name": name, "mode": mode, "cap": cap, **figures})
    text = ", ".join(f"{k} {figures[k]}" for k in ("host_mib", "device_mib", "instantiate_us", "ready_us", "by_turns_us", "resident_call_us"))
    cache = figures.get("cache")
    more = f"; {cache['real_execs']} real execs, source {cache['source_bytes_per_node']} B/node" if cache else ""
    if not name.startswith("pair"):
        print(f"     {GROUP}/{name} {mode}: {text}{more}", flush=True)
    return figures


def wrong(runs, cap):
    """What no run may show."""
    problems = []
    for mode, figures in runs:
        if figures["status"] or figures["wrong"] or not figures["checked"]:
            problems.append(f"{mode}: status {figures['status']}, {figures['wrong']} wrong results")
        cache = figures.get("cache")
        if not cache:
            continue
        if not cache["handles_made"]:
            problems.append(f"{mode}: no handle was virtual")
        if cache["real_execs"] > cap:
            problems.append(f"{mode}: {cache['real_execs']} real execs, cap {cap}")
        problems += [f"{mode}: {text}" for text in cache["trouble"]]
        if cache["interception"] != "complete":
            problems.append(f"{mode}: interception {cache['interception']}")
    return sorted(set(problems))


def medians(all_runs, mode):
    names = [k for k, v in all_runs[mode][0].items() if isinstance(v, (int, float))]
    return {name: statistics.median(r[name] for r in all_runs[mode]) for name in names}


def mb(mib):
    return mib * 1.048576


def few():
    cap, common = 16, ["--nodes", "1000", "--launches", "200"]
    memory = {mode: one("200", mode, cap, [*common, "--graphs", "200", "--rounds", "2"]) for mode in MODES}
    random = one("200-random", "folded", cap, [*common, "--graphs", "200", "--rounds", "1", "--random"])
    runs = {"native": [], "folded": []}
    for pair in range(PAIRS):
        for mode in list(runs) if pair % 2 == 0 else reversed(runs):
            runs[mode].append(one(f"pair-{pair}", mode, cap, [*common, "--graphs", "100", "--rounds", "1"]))
    kept = one("pair-kept", "kept", cap, [*common, "--graphs", "100", "--rounds", "1"])
    problems = wrong([*memory.items(), ("random", random), ("kept", kept)] + [(mode, r) for mode, of in runs.items() for r in of], cap)
    host = {mode: mb(of["host_mib"]) for mode, of in memory.items()}
    device = max(memory[mode]["device_mib"] for mode in ("kept", "folded"))
    # 1983 B a node of the kept ones are the program's own graphs: the rest is ours.
    row("graphs-200", f"{host['native']:.0f} MB / {memory['native']['device_mib']:.0f} MiB",
        f"{host['kept']:.0f} MB kept, {host['folded']:.0f} MB folded / {device:.0f} MiB (parameters that share nothing: {mb(random['host_mib']):.0f} MB)",
        not problems and host["kept"] <= 330 and host["folded"] <= 130 and device <= 40)
    native, folded = (medians(runs, mode) for mode in runs)

    def ratio(name):
        return statistics.median(b[name] / a[name] for a, b in zip(runs["native"], runs["folded"]))

    row("instantiate", f"{native['instantiate_us'] / 1e3:.2f} / {native['ready_us'] / 1e3:.2f} ms",
        f"{folded['instantiate_us'] / 1e3:.2f} / {folded['ready_us'] / 1e3:.2f} ms "
        f"(ratios {ratio('instantiate_us'):.3f} / {ratio('ready_us'):.3f}; graphs kept "
        f"{kept['instantiate_us'] / 1e3:.2f} / {kept['ready_us'] / 1e3:.2f} ms)",
        not problems and folded["instantiate_us"] <= 800 and folded["ready_us"] <= 1300)
    for name in ("first_instantiate_us", "first_ready_us", "capture_us", "by_turns_us", "by_turns_call_us", "resident_call_us"):
        print(f"     {GROUP}/pairs {name}: native {native[name]:.2f}, kept {kept[name]:.2f}, folded {folded[name]:.2f}", flush=True)
    return verdict(GROUP, "200", problems, f"{PAIRS} pairs, {memory['folded'].get('cache')}", memory=memory, native=native, kept=kept, folded=folded)


def many():
    arguments, cap = ["--nodes", "1000", "--destroy-graphs", "--rounds", "1", "--launches", "100", "--graphs"], 64
    native = one("10000", "native", cap, [*arguments, "1000"])
    folded = one("10000", "folded", cap, [*arguments, "10000"], timeout=400)
    problems = wrong([("native", native), ("folded", folded)], cap)
    row("graphs-10000", f"1000 of them: {mb(native['host_mib']):.0f} MB / {native['device_mib']:.0f} MiB",
        f"{mb(folded['host_mib']):.0f} MB / {folded['device_mib']:.0f} MiB, {folded['wrong']} wrong",
        not problems and mb(folded["host_mib"]) <= 1200 and folded["device_mib"] <= 200)
    return verdict(GROUP, "10000", problems, f"{folded['cache']}")


def main():
    if not PROGRAM.exists():
        sys.exit(f"skip {GROUP} {PROGRAM} was not built")
    results = []
    for name in sys.argv[1:] or ["200", "10000"]:
        try:
            results.append({"200": few, "10000": many}[name]())
        except (RuntimeError, OSError, ValueError) as error:
            results.append(verdict(GROUP, name, [str(error)[:250]]))
    sys.exit(0 if all(results) else 1)


main()
