"""PyTorch's CUDA graphs, natively and under the graph cache.

    torch_graphs.py [replay | compile]...     TORCH_PAIRS=8 COMPILE_PAIRS=1

  replay    200 graphs replayed by turns (py/graphs_round_robin.py): native, cap 32, default caps; one
            process each, all alive, that start together, capture one after another (memory is the
            card's) and then take turns, a pair a round; host times of calls in many short turns, since
            a process has them twice as long for half a second, now and then, natively too
  compile   torch.compile over 100 sizes (py/compile_sizes.py): native, default caps
"""
import json
import os
import statistics
import sys
import time

from done import row
from harness import EARLIER, HERE, WORK, Held, record, run, verdict
from stats import Ledger

GROUP = "torch"
PAIRS = int(os.environ.get("TORCH_PAIRS", "8"))
CALLS = 10  # pairs of host times for one of rounds
COMPILE_PAIRS = int(os.environ.get("COMPILE_PAIRS", "1"))  # of memory alone
MODES = {"native": (False, {}), "cap32": (True, {"GPUMEM_GRAPH_CACHE": "32"}), "default": (True, {}),
         "again": (False, {})}  # what two native processes differ by
if EARLIER:
    MODES["earlier"] = (True, {"LD_PRELOAD": EARLIER})
CALLED = [mode for mode in MODES if mode != "cap32"]


def one(name, script, mode, arguments=()):
    preload, env = MODES[mode]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(WORK / "inductor"), **env}
    done = run(f"torch-{name}", mode, [sys.executable, HERE / "programs/py" / script, *arguments], preload=preload, env=env, timeout=280)
    lines = done.stdout.splitlines()
    figures = next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
    if done.status or figures is None:
        raise RuntimeError(f"{name} {mode}: status {done.status}: {done.stderr.strip()[-200:]} {figures or ''}")
    figures["digest"] = next((line for line in lines if line.startswith("digest")), "no digest")
    figures["seconds"] = round(done.seconds, 1)
    if preload:
        ledger = Ledger(done.ledger)
        figures["cache"] = {"interception": ledger.interception, "trouble": ledger.trouble(), **ledger.cache()}
    record({"group": GROUP, "name": name, "mode": mode, **figures})
    text = ", ".join(f"{k} {v:.1f}" for k, v in figures.items() if isinstance(v, (int, float)))
    cache = figures.get("cache")
    more = f"; {cache['real_execs']} real execs, {cache['classes']} classes, {cache['states']}, {cache['pinned']}" if cache else ""
    print(f"     {GROUP}/{name} {mode}: {text}{more}", flush=True)
    return figures


def of_run(mode, figures, digest):
    """What no run may show."""
    problems = [] if figures["digest"] == digest else [f"{mode}: other results than natively"]
    cache = figures.get("cache")
    if cache:
        problems += [f"{mode}: {text}" for text in cache["trouble"]]
        if not cache["handles_made"]:
            problems.append(f"{mode}: no handle was virtual ({cache['pinned']})")
        if cache["interception"] != "complete":
            problems.append(f"{mode}: interception {cache['interception']}")
    return problems


def pairs(name, script, modes, count):
    """Runs of every mode, in turning order; and what is wrong with them."""
    runs, problems = {mode: [] for mode in modes}, []
    for pair in range(count):
        for mode in modes if pair % 2 == 0 else reversed(modes):
            runs[mode].append(one(name, script, mode))
    for mode in modes:
        for figures in runs[mode]:
            problems += of_run(mode, figures, runs["native"][0]["digest"])
    return runs, sorted(set(problems))


def median(runs, name):
    return statistics.median(r[name] for r in runs)


def replay():
    held, figures, problems = {}, {mode: {"rounds": [], "calls": []} for mode in MODES}, []
    start = time.monotonic()
    try:
        for mode, (preload, env) in MODES.items():
            held[mode] = Held("torch-replay", mode, [sys.executable, HERE / "programs/py" / "graphs_round_robin.py"], preload=preload, env=env)
            held[mode].send("ready")
        for process in held.values():
            process.answer()
        for mode, process in held.items():
            figures[mode].update(process.ask("capture"))
        for pair in range(PAIRS):
            for mode in list(MODES) if pair % 2 == 0 else reversed(MODES):
                figures[mode]["rounds"].append(held[mode].ask("round"))
        for pair in range(CALLS * PAIRS):
            for mode in CALLED if pair % 2 == 0 else reversed(CALLED):
                figures[mode]["calls"].append(held[mode].ask("calls"))
        for mode, process in held.items():
            figures[mode].update(process.ask("end"))
            if MODES[mode][0] and mode != "earlier":
                ledger = Ledger(process.ledger())
                figures[mode]["cache"] = {"interception": ledger.interception, "trouble": ledger.trouble(), **ledger.cache()}
    finally:
        for process in held.values():
            process.stop()
    for mode, of in figures.items():
        for turns in (of["rounds"], of["calls"]):
            of.update({name: statistics.median(turn[name] for turn in turns) for name in (turns[0] if turns else ())})
        record({"group": GROUP, "name": "replay", "mode": mode, **of})
        problems += of_run(mode, of, figures["native"]["digest"])
        if of["wrong"] or not of["checked"]:
            problems.append(f"{mode}: {of['wrong']} of {of['checked']} replays differ from eager")
        print(f"     {GROUP}/replay {mode}: " + ", ".join(f"{k} {v:.1f}" for k, v in of.items() if isinstance(v, (int, float))), flush=True)

    def each(mode, turns, name):
        return statistics.median(b[name] / a[name] for a, b in zip(figures["native"][turns], figures[mode][turns]))

    host, device = (figures["cap32"][k] / figures["native"][k] if figures["native"][k] else float("nan") for k in ("host_mib", "device_mib"))
    native, cap32 = (f"{of['replay_us'] / 1e3:.3f} ms; {of['host_mib']:+.0f} MiB, {of['device_mib']:+.0f} MiB"
                     for of in (figures["native"], figures["cap32"]))
    wall = each("cap32", "rounds", "replay_us")
    row("torch-replay", native, f"{wall:.3f} ×: {cap32} ({host:.0%}, {device:.0%})",
        not problems and wall <= 1.05 and host <= 0.40 and device <= 0.60)
    host_time = each("default", "calls", "host_us")
    row("torch-host", f"{figures['native']['host_us']:.1f} µs; another process {each('again', 'calls', 'host_us'):.3f} ×",
        f"{host_time:.3f} × (time per replay {each('default', 'rounds', 'replay_us'):.3f} ×)"
        + (f"; earlier library {each('earlier', 'calls', 'host_us'):.3f} × ({each('earlier', 'rounds', 'replay_us'):.3f} ×)" if EARLIER else ""), not problems and host_time <= 1.02)
    bytes_each = figures["cap32"]["cache"]["source_bytes_per_node"]
    row("source-torch", "–", f"{bytes_each} B", bytes_each is not None and bytes_each <= 60)
    default = figures["default"]
    return verdict(GROUP, "replay", sorted(set(problems)),
                   f"{PAIRS} pairs in {time.monotonic() - start:.0f} s; default caps {default['host_mib']:+.0f}, {default['device_mib']:+.0f} MiB; "
                   f"cap 32: {figures['cap32']['cache']}")


def compile_sizes():
    runs, problems = pairs("compile", "compile_sizes.py", ["native", "default"], COMPILE_PAIRS)
    grown = {m: [median(runs[m], k) for k in ("host_mib", "device_mib")] for m in runs}
    texts = {m: f"{of[0]:.0f} / {of[1]:.0f} MiB" for m, of in grown.items()}
    # The resident set of one and the same run differs by a few MiB.
    row("torch-compile", texts["native"], texts["default"],
        not problems and grown["default"][0] <= grown["native"][0] + 4 and grown["default"][1] <= grown["native"][1])
    return verdict(GROUP, "compile", problems, f"{texts}; {runs['default'][-1]['cache']}")


def main():
    results = []
    for name in sys.argv[1:] or ["replay", "compile"]:
        try:
            results.append({"replay": replay, "compile": compile_sizes}[name]())
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            results.append(verdict(GROUP, name, [str(error)[:300]]))
    sys.exit(0 if all(results) else 1)


main()
