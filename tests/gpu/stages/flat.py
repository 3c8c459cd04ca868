"""Programs that are flat natively stay flat under the preload: each runs natively and preloaded, side by side.

    flat.py [demo | llama | torch]...      FLAT_SECONDS=480 LLAMA_SERVER=… LLAMA_MODEL=…

All defaults. Both processes of a program do the same work at the same time: the demo has four slots whose
graphs change shape; llama-server gets the same requests of all lengths from four clients, each sent to both
servers before the next; py/flat_shapes.py trains on lengths and batches that change, and keeps a few CUDA graphs.

PyTorch's allocator chooses by address, so what it reserves differs between two native runs by tens of MiB from step to step.
So its device memory is taken without that reserve, and two native copies run: the rules hold the preloaded one to the larger
of the two at each step. How far the natives are apart is told.

Each second, or with torch at each fiftieth step, of every process: anonymous resident memory (RssAnon), and the device
memory that NVML says it has. The rules, of host memory and of device memory without the pool's idle blocks:

- it is never above native + 4 MiB + 2 %, both as they were at most until then; by the clock the preloaded program may be
  ahead of the native one by 15 s, since the two begin when the machine lets them, by its steps by one sample;
- it grows no more in the later half of the run than natively, plus 1 MiB.

At the end each program rests for 20 s (FLAT_REST); after 15 s without a free the device memory as a whole keeps to the first rule.
"""
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import time

from done import row
from harness import BUILD, HERE, OUT, SLACK_MIB, SLACK_SHARE, WORK, allowed, environment, record, there, verdict
from memory import Marked, Watch, above, grown, series

GROUP = "flat"
SECONDS = float(os.environ.get("FLAT_SECONDS", "480"))
REST = float(os.environ.get("FLAT_REST", "20"))
AHEAD_SECONDS = 15
# The shim tells its idle bytes once a second. PyTorch's program rests for longer at each mark.
SETTLE = 1.1
LATER_MIB = 1.0
MODES = {"native": False, "preloaded": True}


def judge(name, samples, busy, ahead, more=()):
    """The rules, of one program's two series of (when, host MiB, device MiB, idle MiB); `busy` are those before it rests."""
    busy = {mode: series(of) for mode, of in busy.items()}
    problems, notes = list(more), []
    kinds = [kind for kind in ("host", "device") if all(kind in found for found in busy.values())]
    if "device" not in kinds:
        notes.append("NVML does not tell device memory by process")
    for kind in kinds:
        native, preloaded = (busy[mode][kind] for mode in ("native", "preloaded"))
        if min(len(native), len(preloaded)) < 10:
            problems.append(f"only {len(native)} and {len(preloaded)} samples")
            continue
        worst, later = above(native, preloaded, ahead), (grown(native), grown(preloaded))
        notes.append(f"{kind} at most {max(native):.1f} / {max(preloaded):.1f} MiB, later half {later[0]:+.1f} / {later[1]:+.1f}")
        if worst > 0:
            problems.append(f"{kind}: {worst:.1f} MiB above native + {SLACK_MIB:.0f} MiB + {SLACK_SHARE:.0%}")
        if later[1] > max(later[0], 0.0) + LATER_MIB:
            problems.append(f"{kind}: grows {later[1]:.1f} MiB in the later half, natively {later[0]:.1f}")
    last = {mode: of[-1] for mode, of in samples.items() if of}
    if "device" in kinds and len(last) == 2 and last["native"][2] is not None and last["preloaded"][2] is not None:
        native, preloaded = last["native"][2], last["preloaded"][2]
        notes.append(f"device at rest {native:.0f} / {preloaded:.0f} MiB, {last['preloaded'][3]:.0f} idle")
        if preloaded > allowed(native):
            problems.append(f"device at rest {preloaded:.0f} MiB, natively {native:.0f}")
    record({"group": GROUP, "name": f"{name}-samples", **samples})
    row(f"flat-{name}", "flat", "; ".join(notes), not problems)
    return verdict(GROUP, name, problems, "; ".join(notes))


def by_the_clock(name, watches, seconds, more=()):
    """The rules, of samples that were taken each second."""
    samples = {mode: watch.samples for mode, watch in watches.items()}
    busy = {mode: [sample for sample in of if sample[0] <= seconds] for mode, of in samples.items()}
    return judge(name, samples, busy, AHEAD_SECONDS, more)


def started(name, mode, argv):
    """A program in the background, watched."""
    folder = WORK / f"flat-{name}" / mode
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment(folder, MODES[mode], False), start_new_session=True)
    return process, Watch(f"flat-{name}", mode, process.pid, folder, MODES[mode])


def timed(name, argv, seconds, rest=REST):
    """A program that works for `seconds`, and then holds what it has for `rest`."""
    runs = {mode: started(name, mode, argv) for mode in MODES}
    time.sleep(seconds + rest)
    for process, watch in runs.values():
        watch.end()
    problems = []
    for mode, (process, _) in runs.items():
        try:
            status = process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
        if status != 0:
            problems.append(f"{mode}: status {status}")
    return by_the_clock(name, {mode: watch for mode, (_, watch) in runs.items()}, seconds, problems)


def demo():
    return timed("demo", [BUILD / "programs" / "demo", "--seconds", SECONDS, "--slots", 4, "--hold", REST + 30], SECONDS)


def without_reserve(run):
    """The samples (mark, host, device, idle) of a PyTorch program; its device memory without what PyTorch's allocator holds."""
    reserved = {said["mark"]: said["reserved"] for said in map(json.loads, run.lines)}
    return [(mark, host, None if device is None else device - reserved[mark], idle) for mark, _, host, device, idle in run.samples]


def larger(first, second):
    """Two native series as one: the larger of each pair of samples. Their last samples are those after the rest."""
    pairs = [*zip(first[:-1], second[:-1]), (first[-1], second[-1])] if first and second else []
    most = lambda pair, at: None if None in (pair[0][at], pair[1][at]) else max(pair[0][at], pair[1][at])
    return [(pair[0][0], most(pair, 1), most(pair, 2), 0.0) for pair in pairs]


def torch():
    argv, end = [sys.executable, HERE / "programs/py" / "flat_shapes.py", SECONDS, REST], time.monotonic() + SECONDS + REST + 120
    runs = {mode: Marked("flat-torch", mode, argv, lambda line: json.loads(line)["mark"], preload=mode == "preloaded",
                        settle=SETTLE)
            for mode in ("native", "native-again", "preloaded")}
    problems = [f"{mode}: status {run.status}: {run.said()}" for mode, run in runs.items() if run.wait(end) != 0]
    # By its marks the later of two processes is where the earlier one was; the last mark is behind the rest.
    native, again, preloaded = map(without_reserve, runs.values())
    apart = [abs(a[2] - b[2]) for a, b in zip(native, again) if None not in (a[2], b[2])]
    idle = [sample[3] for sample in preloaded] or [0.0]
    print(f"     flat/torch the two natives are at most {max(apart, default=0):.1f} MiB apart without their reserve; "
          f"{len(native)}, {len(again)} and {len(preloaded)} marks; idle {sum(idle) / len(idle):.0f} MiB on average", flush=True)
    samples = {"native": larger(native, again), "preloaded": preloaded}
    steps = min(len(of) for of in samples.values()) - 1
    return judge("torch", samples, {mode: of[:steps] for mode, of in samples.items()}, 1, problems)


def llama():
    from llama_server import CLIENTS, Server, requests
    from side_by_side import Load

    def work(number):
        for turn in itertools.count():
            yield from requests(number + CLIENTS * turn, 20)

    servers = {mode: Server(f"flat-{mode}", preload) for mode, preload in MODES.items()}
    load, watches = Load(servers, SECONDS, work), {}
    try:
        for server in servers.values():
            server.ready()
        watches = {mode: Watch("flat-llama", mode, server.process.pid, server.folder, MODES[mode]) for mode, server in servers.items()}
        load.run()
        time.sleep(REST)
        for watch in watches.values():
            watch.end()
    finally:
        statuses = {mode: server.stop() for mode, server in servers.items()}
    problems = load.failures + ([] if len(set(statuses.values())) == 1 else [f"statuses {statuses}"])
    return by_the_clock("llama", watches, SECONDS, problems)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    named = list(sys.argv[1:]) or ["demo", "llama", "torch"]
    programs = {"demo": demo, "llama": llama, "torch": torch}
    found = there(GROUP, "llama", "LLAMA_SERVER", "LLAMA_MODEL") if "llama" in named else True
    if not found:
        named.remove("llama")
    if "torch" in named and subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        print("skip flat/torch no PyTorch")
        named.remove("torch")
    print(f"     {GROUP}: {', '.join(named)} for {SECONDS:.0f} s, all at once", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(named) or 1) as all_at_once:
        results = list(all_at_once.map(lambda name: programs[name](), named))
    sys.exit(0 if all(results) and found is not False else 1)


main()
