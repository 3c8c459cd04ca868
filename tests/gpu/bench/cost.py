"""What the preload costs, native against preloaded in one run; one JSON line a figure in results.jsonl.

  calls    ns added to calls that only pass through, to launches and graph launches
  pairs    ns added to cuMemAlloc + cuMemFree: without stacks, and with 32 frames
  graphs   ns added to launches of a graph that is resident, to launches that retarget, to instantiates
  true     ms added to /bin/true
  live     reading the ledger of a process with 1 000 000 live allocations

Calls and pairs are timed against the real driver and, for resolution, against nullcuda.c, whose calls
cost a few ns; programs with and without frame pointers are timed apart.
"""
import json
import os
import statistics
import subprocess
import sys
import time

from done import cost_row, row
from harness import BUILD, CLI, EARLIER, OUT, SO, WORK, environment, ledger_of, record, verdict
from stats import Ledger

GROUP = "cost"
RECORDED = ("cuGraphLaunch", "cuMemAlloc+cuMemFree")
NULL = {"LD_LIBRARY_PATH": str(BUILD / "null")}


def cost(name, arguments, *, env=None, program="cost", preload=True):
    """Figures of one run of cost.c."""
    folder = WORK / f"cost-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    env = environment(folder, preload, False, env)
    done = subprocess.run([BUILD / program, *arguments], env=env, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"cost {' '.join(arguments)}: status {done.returncode}: {done.stderr.strip()[-150:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def show(name, figure):
    low, high = figure["added_quartiles"]
    record({"group": GROUP, "name": name, **figure})
    print(f"     {GROUP}/{name} {figure['cost']}: +{figure['added_ns']} ns [{low} .. {high}], native {figure['native_ns']}, "
          f"preloaded {figure['preloaded_ns']}{'' if figure['hooked'] else ' (not hooked)'}", flush=True)


def calls(device, env):
    problems, hooked = [], []
    for figure in cost(f"calls-{device}", ["calls"], env=env):
        show(f"calls-{device}", figure)
        if figure["hooked"] and figure["cost"] not in RECORDED:
            hooked.append(figure["cost"])
            # A real call takes microseconds: its noise is the quartiles', and so is the verdict's.
            bound = figure["added_ns"] if device == "null" else figure["added_quartiles"][0]
            if bound > 15:
                problems.append(f"{figure['cost']} +{figure['added_ns']} ns, limit 15")
    if not hooked:
        problems.append("none of the calls that pass through is hooked: nothing was measured")
    return verdict(GROUP, f"calls-{device}", problems, f"limit 15 ns; passed through: {', '.join(hooked)}")


def disabled(device, env):
    """GPUMEM_DISABLE=1: every hook is a jump."""
    problems = []
    for arguments in (["calls"], ["pairs", "0"]):
        for figure in cost(f"disabled-{device}", arguments, env={"GPUMEM_DISABLE": "1", **env}):
            show(f"disabled-{device}", figure)
            if figure["added_ns"] > 15:
                problems.append(f"{figure['cost']} +{figure['added_ns']} ns, limit 15")
    return verdict(GROUP, f"disabled-{device}", problems, "limit 15 ns")


def pairs(device, env):
    problems = []
    for stacks, depth, limit in (("0", "0", 150), ("32", "40", 400)):
        for program in ("cost", "cost_nofp"):
            name = f"pairs-{device}-stacks{stacks}-{'frame-pointers' if program == 'cost' else 'no-frame-pointers'}"
            for figure in cost(name, ["pairs", depth], env={"GPUMEM_STACKS": stacks, **env}, program=program):
                show(name, figure)
                if not figure["hooked"]:
                    problems.append(f"{name}: not hooked, nothing was measured")
                # The real pair takes 70 us: its noise is the quartiles', and so is the verdict's.
                bound = figure["added_ns"] if device == "null" else figure["added_quartiles"][0]
                if bound > limit:
                    problems.append(f"{name} +{figure['added_ns']} ns, limit {limit}")
    return verdict(GROUP, f"pairs-{device}", problems, "limit 150 ns, 400 ns with 32 frames")


def graphs(device, env):
    """Launches of virtual handles: resident ones have a limit, what the others cost is printed."""
    problems, more = [], {}
    for setting in ("512", "1"):
        name = f"graphs-{device}-cache{setting}"
        for figure in cost(name, ["graphs", "1000"], env={"GPUMEM_GRAPH_CACHE": setting, **env}):
            by_turns = "by turns" in figure["cost"]
            if by_turns != (setting == "1"):  # with room for both, nothing is retargeted; with one, nothing else matters
                continue
            show(name, figure)
            more[figure["cost"]] = figure
            bound = figure["added_ns"] if device == "null" else figure["added_quartiles"][0]
            if ("1 node" in figure["cost"] or "resident" in figure["cost"]) and bound > 50:
                problems.append(f"{figure['cost']} +{figure['added_ns']} ns, limit 50")
        for ledger in (WORK / f"cost-{name}" / "ledgers").glob("*.ledger"):
            if not Ledger(ledger).counts.get("handles_made"):
                problems.append(f"{name}: no handle was virtual, nothing was measured")
    resident = more.get("cuGraphLaunch, resident")
    if resident and device == "gpu":
        row("resident", f"{resident['native_ns'] / 1e3:.2f} µs", f"{resident['added_ns']:+.0f} ns", not problems)
    if resident and device == "null":
        before = EARLIER and [
            figure["added_ns"] for figure in cost(f"graphs-{device}-earlier", ["graphs", "1000"], env={"LD_PRELOAD": EARLIER, **env})
            if figure["cost"] == "cuGraphLaunch, resident"]
        cost_row("cost-launch", f"{resident['native_ns']:.0f} ns", [resident["added_ns"]], f"{resident['added_ns']:+.0f} ns", earlier=before)
    return verdict(GROUP, f"graphs-{device}", problems, "limit 50 ns for a launch of a resident exec", figures=more)


def noise(device, env):
    """The same without the preload: both ways are the same function."""
    for figure in cost(f"noise-{device}", ["pairs", "0"], env=env, preload=False):
        show(f"noise-{device}", figure)
    return True


def true(device, env):
    del device, env
    folder = WORK / "cost-true"
    folder.mkdir(parents=True, exist_ok=True)
    native, preloaded = environment(folder, False, False), environment(folder, True, False)
    times = {0: [], 1: []}
    for i in range(600):
        which = i & 1
        start = time.perf_counter_ns()
        pid = os.posix_spawn("/bin/true", ["/bin/true"], preloaded if which else native)
        os.waitpid(pid, 0)
        times[which].append((time.perf_counter_ns() - start) / 1e6)
    base, with_shim = statistics.median(times[0]), statistics.median(times[1])
    left = list((folder / "ledgers").iterdir())
    record({"group": GROUP, "name": "true", "native_ms": base, "preloaded_ms": with_shim})
    problems = [f"+{with_shim - base:.2f} ms"] if with_shim - base > 1 else []
    problems += [f"left {left}"] if left else []
    return verdict(GROUP, "true", problems, f"+{with_shim - base:.3f} ms (native {base:.3f}, preloaded {with_shim:.3f})")


def live(device, env):
    count = 1_000_000
    folder = WORK / f"cost-live-{device}"
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([BUILD / "cost", "live", str(count)], env=environment(folder, True, False, env),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if not process.stdout.readline().startswith("ready"):
            return verdict(GROUP, f"live-{device}", ["the program did not get ready"])
        ledger = ledger_of(folder, process.pid)
        problems, texts = [], []
        for view in (["dump", "-o", str(folder / "dump")], ["stats"], ["allocs"]):
            took = []
            for _ in range(5):
                start = time.perf_counter()
                done = subprocess.run([CLI, *view, "--file", str(ledger)], capture_output=True, text=True, timeout=60)
                took.append((time.perf_counter() - start) * 1e3)
                if done.returncode:
                    problems.append(f"gpumem {view[0]}: {done.stderr.strip()[:100]}")
                    break
            median = statistics.median(took)
            texts.append(f"{view[0]} {median:.0f} ms")
            record({"group": GROUP, "name": f"live-{device}", "view": view[0], "ms": median, "allocations": count})
            if view[0] == "dump" and median > 200:
                problems.append(f"{view[0]} took {median:.0f} ms, limit 200")
    finally:
        process.stdin.close()
        process.wait(60)
    return verdict(GROUP, f"live-{device}", problems, ", ".join(texts))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    plan = [(f, "null", NULL) for f in (noise, disabled, calls, pairs, graphs, live)]
    if os.environ.get("HAVE_GPU", "1") == "1":
        plan += [(f, "gpu", {}) for f in (noise, calls, pairs, graphs)]
    plan.append((true, "", {}))
    results = []
    for step, device, env in plan:
        try:
            results.append(step(device, env))
        except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            results.append(verdict(GROUP, f"{step.__name__}-{device}", [str(error)[:250]]))
    sys.exit(0 if all(results) else 1)


assert os.path.exists(SO), SO
main()
