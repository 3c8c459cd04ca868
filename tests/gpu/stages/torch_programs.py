"""PyTorch as people run it, natively and preloaded: training, torch.compile, data-parallel training, inference with graphs.

    torch_programs.py [train | compile | ddp | infer]...
        TRAIN_SECONDS=120 COMPILE_SHAPES=100 COMPILE_ROUNDS=25 COMPILE_SECONDS=280 DDP_STEPS=600 INFER_ROUNDS=20 INFER_REQUESTS=200

  train     py/train_lengths.py: batches and lengths that change, side by side; the losses of each step are the same, with
            deterministic operators
  compile   py/compile_shapes.py: torch.compile(mode="reduce-overhead", dynamic=False) over 100 shapes, side by side, each
            with a compiler's cache of its own
  ddp       py/ddp.py: two processes with NCCL, one a GPU; native, then preloaded
  infer     py/infer_graphs.py: a CUDA graph for each of 35 batch sizes; the two processes take turns

Memory is taken at each line that the program prints: anonymous resident memory (RssAnon), and device memory as NVML says
without the pool's idle blocks. It is never above native + 4 MiB + 2 % for each process, both as they were at most until then.
"""
import json
import os
import subprocess
import sys
import time

from done import row
from harness import HERE, OUT, SLACK_MIB, SLACK_SHARE, WORK, Held, gpus, record, verdict
from memory import Marked, above, ledgers_in, memory_of, quartiles, quartiles_text, series, trouble_of
from programs import installed

GROUP = "torch-programs"
MODES = {"native": False, "preloaded": True}
TRAIN_SECONDS = float(os.environ.get("TRAIN_SECONDS", "120"))
SHAPES, COMPILE_SECONDS = int(os.environ.get("COMPILE_SHAPES", "100")), float(os.environ.get("COMPILE_SECONDS", "280"))
COMPILE_ROUNDS = int(os.environ.get("COMPILE_ROUNDS", "25"))
STEPS = int(os.environ.get("DDP_STEPS", "600"))
ROUNDS, REQUESTS = int(os.environ.get("INFER_ROUNDS", "20")), int(os.environ.get("INFER_REQUESTS", "200"))


def started(name, mode, script, *arguments, env=None, mark=lambda line: "" if line.startswith("{") else None, whole_family=False):
    return Marked(f"{GROUP}-{name}", mode, [sys.executable, HERE / "programs/py" / script, *arguments], mark, preload=MODES.get(mode, False), env=env,
                  whole_family=whole_family)


def ended(runs, until):
    """Waits for all; what is wrong with how they ended."""
    problems = []
    for mode, run in runs.items():
        if run.wait(until) != 0:
            problems.append(f"{mode}: {'not finished in time' if run.status is None else f'status {run.status}'}: {run.said()}")
    return problems


def lines_of(run):
    return [json.loads(line) for line in run.lines if line.startswith("{")]


def compared(samples, at, processes=1, late=0):
    """(problems, {mode: text}) of memory at the same marks natively and preloaded; `at` is where host memory stands.

    A program that goes on while its memory is taken may be further than its mark: native memory counts as it was up to
    `late` marks later.
    """
    problems, texts = [], {mode: [] for mode in MODES}
    found = {mode: series(of, at) for mode, of in samples.items()}
    for kind in ("host", "device"):
        if any(not of.get(kind) for of in found.values()):
            texts["native"].append(f"{kind} memory was not told")
            continue
        for mode, of in found.items():
            texts[mode].append(f"{kind} {of[kind][0]:.0f} to {of[kind][-1]:.0f} MiB, at most {max(of[kind]):.0f}")
        native, preloaded = ([value / processes for value in found[mode][kind]] for mode in MODES)
        worst = above(native, preloaded, late)
        if worst > 0:
            problems.append(f"{kind}: {worst:.1f} MiB above native + {SLACK_MIB:.0f} MiB + {SLACK_SHARE:.0%}"
                            + (" a process" if processes > 1 else ""))
    return problems, {mode: "; ".join(of) for mode, of in texts.items()}


def ratios(times):
    """Preloaded to native of each step that both did, in the order in which they did them."""
    return [b / a for a, b in zip(times["native"], times["preloaded"])]


def finish(name, key, problems, texts, times, unit, detail, samples):
    record({"group": GROUP, "name": f"{name}-samples", **samples})
    record({"group": GROUP, "name": f"{name}-times", "unit": unit, **times})
    row(key, f"{texts['native']}; {quartiles_text(times['native'], 3)} {unit}",
        f"{texts['preloaded']}; {quartiles_text(times['preloaded'], 3)} {unit}, {quartiles_text(ratios(times), 3)} ×", not problems)
    return verdict(GROUP, name, sorted(set(problems)), detail, ratios=quartiles(ratios(times)) if ratios(times) else None)


def training(name, key, runs, problems, processes):
    """What training runs are held to: the same losses at each step that both reached."""
    said = {mode: {(line["rank"], line["step"]): line for line in lines_of(run)} for mode, run in runs.items()}
    both = sorted(set(said["native"]) & set(said["preloaded"]))
    unlike = [at for at in both if said["native"][at]["digest"] != said["preloaded"][at]["digest"]]
    if not both:
        problems.append("no step was reached by both")
    if unlike:
        problems.append(f"other losses than natively from rank {unlike[0][0]}, step {unlike[0][1]}")
    for mode, run in runs.items():
        if MODES[mode]:
            problems += trouble_of(run.ledgers())
    wrong, texts = compared({mode: run.samples for mode, run in runs.items()}, 2, processes, late=1)
    times = {mode: [of[at]["ms"] for at in both[1:]] for mode, of in said.items()}
    last = both[-1] if both else None
    detail = f"{len(both)} marks with the same losses, the last {said['native'][last]['loss']:.6f} of step {last[1]}" if last else "nothing"
    return finish(name, key, problems + wrong, texts, times, "ms a step", detail, {mode: run.samples for mode, run in runs.items()})


def train():
    runs = {mode: started("train", mode, "train_lengths.py", TRAIN_SECONDS) for mode in MODES}
    return training("train", "torch-train", runs, ended(runs, time.monotonic() + TRAIN_SECONDS + 90), 1)


def ddp():
    if gpus() < 2:
        print(f"skip {GROUP}/ddp {gpus()} GPUs", flush=True)
        return True
    runs, problems = {}, []
    for mode in MODES:
        runs[mode] = started("ddp", mode, "ddp.py", STEPS, whole_family=True,
                             mark=lambda line: "" if line.startswith('{"rank": 0') else None)
        problems += ended({mode: runs[mode]}, time.monotonic() + 240)
    return training("ddp", "torch-ddp", runs, problems, 3)


def compile_shapes():
    def begun(mode):
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(WORK / f"{GROUP}-compile" / mode / "cache")}
        return started("compile", mode, "compile_shapes.py", "--shapes", SHAPES, "--rounds", COMPILE_ROUNDS, env=cache,
                       mark=lambda line: "" if '"rested": true' in line else None)

    # The second native run says which shapes have one result.
    runs, again = {mode: begun(mode) for mode in MODES}, begun("again")
    until = time.monotonic() + COMPILE_SECONDS
    problems = ended({**runs, "again": again}, until)
    said = {mode: lines_of(run) for mode, run in runs.items()}
    native, *others = ({line.get("shape", f"round {line.get('round')}"): line["digest"] for line in lines}
                       for lines in (*said.values(), lines_of(again)))
    unlike, other_natively = ([what for what in native if other.get(what) != native[what]] for other in others)
    if set(unlike) - set(other_natively):
        problems.append(f"other results than natively for shapes {unlike}; a second native run has others for {other_natively}")
    ledgers = runs["preloaded"].ledgers()
    problems += trouble_of([ledger for ledger in ledgers if ledger.contexts] or ledgers, graphs=True)
    wrong, texts = compared({mode: run.samples for mode, run in runs.items()}, 2, late=1)
    times = {mode: [line["seconds"] for line in of if "seconds" in line] for mode, of in said.items()}
    replays = {mode: [line["us"] for line in of if "us" in line] for mode, of in said.items()}
    for mode in MODES:
        texts[mode] += f"; a replay and its copy {quartiles_text(replays[mode], 0)} µs"
    texts["preloaded"] += f", {quartiles_text(ratios(replays), 3)} ×"
    return finish("compile", "torch-shapes", problems + wrong, texts, times, "s a shape",
                  f"{[len(of) for of in times.values()]} of {SHAPES} shapes; {[ledger.cache() for ledger in ledgers if ledger.contexts]}",
                  {mode: run.samples for mode, run in runs.items()})


def infer():
    held, problems, samples = {}, [], {mode: [] for mode in MODES}
    times, captures, digests = {mode: [] for mode in MODES}, {}, {}

    def take(mode):
        process = held[mode]
        samples[mode].append(memory_of(process.process.pid, process.folder, MODES[mode]) or (0.0, None, 0.0))

    try:
        for mode, preload in MODES.items():
            held[mode] = Held(f"{GROUP}-infer", mode, [sys.executable, HERE / "programs/py" / "infer_graphs.py"], preload=preload)
            held[mode].send("ready")
        for mode, process in held.items():
            process.answer()
            take(mode)
        for mode, process in held.items():
            captures[mode] = process.ask("capture")
            take(mode)
        for number in range(ROUNDS):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                answer = held[mode].ask(f"serve {REQUESTS}")
                times[mode].append(quartiles(answer["ms"])[1])
                if answer["wrong"]:
                    problems.append(f"{mode}: {answer['wrong']} answers differ from eager")
                take(mode)
        for mode, process in held.items():
            digests[mode] = process.ask("end")["digest"]
        ledgers = ledgers_in(held["preloaded"].folder)
        problems += trouble_of(ledgers, graphs=True)
    finally:
        for process in held.values():
            process.stop()
    if digests["native"] != digests["preloaded"]:
        problems.append("other results than natively")
    wrong, texts = compared(samples, 0)
    return finish("infer", "torch-infer", problems + wrong, texts, times, "ms a request",
                  f"{captures}; {ROUNDS} rounds of {REQUESTS} requests by turns; {[ledger.cache() for ledger in ledgers]}", samples)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    results, programs = [], {"train": train, "compile": compile_shapes, "ddp": ddp, "infer": infer}
    for name in sys.argv[1:] or programs:
        missing = next((p for p in ("torch", *(["triton"] if name == "compile" else [])) if not installed(p)), None)
        if missing:
            print(f"skip {GROUP}/{name} no Python package {missing}", flush=True)
            continue
        try:
            results.append(programs[name]())
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            results.append(verdict(GROUP, name, [f"{type(error).__name__}: {error}"[:300]]))
    sys.exit(0 if all(results) else 1)


main()
