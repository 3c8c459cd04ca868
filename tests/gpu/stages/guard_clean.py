"""Programs without a bug, natively, under the guard and under memcheck: what is said of them, how much slower they are and
how much more device memory they take. guard.py prints the rows.

Programs as a whole run by turns, a few rounds; the times are the medians of the rounds' pairs. A training, CuPy and
llama-server stay, each way in a process of its own, and are asked for steps by turns: their start does not count.
"""
import os
import signal
import statistics
import subprocess
import sys
import time

import memcheck
from done import cost_row
from harness import BUILD, EARLIER, HERE, WORK, Held, Peak, device_used, inspect, run, verdict
from memory import family
from programs import installed

GROUP = "guard"
GUARDS = ("1", "front", "sync")
FINDINGS = ("written-outside", "written-after-free", "freed-graph-launched")
# How much slower a program may be that keeps its memory; not where all is read at each wait.
SLOWER = 1.1
# Rounds of steps; of programs as a whole, of which the first does not count if there are more.
ROUNDS, WHOLE = 9, int(os.environ.get("GUARD_ROUNDS", "4"))


class Until:
    """The time that is left for what follows."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def share(self, seconds):
        return Until(min(seconds, max(self.left(), 0)))

    def skips(self, name, needed):
        """Whether there is no time for this; a line says so."""
        if self.left() < needed:
            print(f"skip {GROUP}/{name} no time is left: GUARD_LIMIT", flush=True)
        return self.left() < needed


def findings(ledger):
    """What the guard found, as text; None without a ledger."""
    if not ledger:
        return None
    events = inspect("events", ledger)["events"]
    return [event["text"] for event in events if event["kind"] in FINDINGS]


def row(what, guard, found, x, of_memcheck="", memcheck_x=None, natively="", mib=(None, None, None)):
    """A row of the table: the program, how the guard is set, what both say, times native, MiB natively and more than that."""
    number = lambda value, form: "" if value is None else form.format(value)
    native, more, memcheck_more = mib
    return (what, f"GUARD={guard}", found, of_memcheck, natively, number(x, "{:.2f}"), number(memcheck_x, "{:.1f}"),
            number(native, "{:.0f}"), number(more, "{:+.0f}"), number(memcheck_more, "{:+.0f}"))


def said_of(found):
    return "no ledger" if found is None else f"{len(found)} false" if found else "clean"


def said_by_memcheck(errors):
    return "skip" if not memcheck.PROGRAM else "not told" if errors is None else f"{errors} false" if errors else "clean"


def ratio(one, native):
    """The median of the pairs of a round: the machine is half as fast again from one second to the next."""
    pairs = [a / b for a, b in zip(one, native)]
    return statistics.median(pairs) if pairs else None


def minus(one, other):
    return None if one is None or other is None else one - other


def programs():
    yield "pool_guard clean", [BUILD / "guard" / "pool_guard", "clean", "answers", "clean"], {}
    yield "saxpy", [BUILD / "saxpy_shared", 100], {}
    yield "graphs", [BUILD / "graphs_shared"], {}
    yield "gemm (cuBLAS)", [BUILD / "gemm"], {}


def watched(*args, **more):
    with Peak() as peak:
        done = run(*args, **more)
    return done, peak.mib


def whole(until):
    """Programs as a whole: rows, and whether all was as it has to be."""
    rows, good = [], True
    for name, argv, env in programs():
        tag = "guard-clean-" + name.split()[0]
        if not argv[0].exists():
            print(f"skip {GROUP}/clean/{name} {argv[0].name} was not built", flush=True)
            continue
        if until.skips(f"clean/{name}", 10):
            continue
        share, seconds, mib, runs = until.share(25), {}, {}, {}
        for number in range(WHOLE):
            # The first round is to have all in memory that is read from disk.
            if number > 1 and share.left() < 5:
                break
            ways = (None, *GUARDS)
            for guard in ways if number % 2 else reversed(ways):
                more = {**env, **({"GPUMEM_GUARD": guard} if guard else {})}
                done, peak = watched(tag, f"{guard or 'native'}-{number}", argv, preload=guard is not None, env=more, timeout=60)
                runs[guard], mib[guard] = done, peak
                seconds.setdefault(guard, []).extend([done.seconds] if number or WHOLE == 1 else [])
        if runs[None].status != 0:
            print(f"skip {GROUP}/clean/{name} natively status {runs[None].status}: {runs[None].stderr.strip()[-120:]}", flush=True)
            continue
        with Peak() as peak:
            checked, errors = memcheck.check(tag, argv, env, clean=True)
        beside = checked and checked.seconds / statistics.median(seconds[None])
        for guard in GUARDS:
            found, done = findings(runs[guard].ledger), runs[guard]
            problems = [] if done.status == 0 else [f"status {done.status}: {done.stderr.strip()[-150:]}"]
            problems += [] if found == [] else [f"findings in a clean program: {found}"]
            problems += [] if done.stdout == runs[None].stdout else ["another output than natively"]
            slower = ratio(seconds[guard], seconds[None])
            rows.append(row(name, guard, said_of(found), slower, said_by_memcheck(errors), beside,
                            f"{statistics.median(seconds[None]):.2f} s", (mib[None], minus(mib[guard], mib[None]), checked and minus(peak.mib, mib[None]))))
            stats = inspect("stats", done.ledger)["pool"]["guard"] if done.ledger else {}
            good &= verdict(GROUP, f"clean/{name}/{guard}", problems, f"{slower:.2f} x native ({statistics.median(seconds[None]):.2f} s), "
                            f"{stats.get('checks')} ranges read, {stats.get('unchecked')} not, {stats.get('without')} not watched; memcheck {beside or 0:.1f}",
                            seconds={str(way): of for way, of in seconds.items()}, memcheck=checked and checked.seconds, guard=stats)
    return rows, good


UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# Name, script, its Python package, environment, steps asked for at a time, of memcheck, and whether it keeps its memory.
STAYING = [
    ("PyTorch training", "guard_steps.py", "torch", {}, 40, 3, True),
    ("CuPy arrays", "guard_cupy.py", "cupy", {}, 40, 3, True),
    ("PyTorch, a cudaMalloc a tensor", "guard_steps.py", "torch", UNCACHED, 20, 2, False),
]


def steps(until):
    """Steps a second of programs that stay."""
    rows, good, slower, earlier = [], True, [], []
    for name, script, package, env, count, of_memcheck, keeps in STAYING:
        if not installed(package):
            print(f"skip {GROUP}/steps/{name} no Python package {package}", flush=True)
        elif not until.skips(f"steps/{name}", 30):
            more, before, ok = staying(name, [sys.executable, HERE / "programs/py" / script], env, count, of_memcheck, keeps, until.share(100))
            rows, good = rows + more, good & ok
            slower += [float(x) for _, guard, _, _, _, x, *_ in more if guard == "GUARD=1" and x]
            earlier += [before] if before else []
    if len(slower) == len(STAYING):
        cost_row("cost-guard", "1; 1; 1", slower, earlier=earlier)
    return rows, good


def staying(name, argv, env, count, of_memcheck, keeps, until):
    """Rows, how many times native it takes under an earlier library's guard, and whether all was as it has to be."""
    tag = "guard-steps-" + "-".join(name.replace(",", "").split())
    ways = {"native": None, **{guard: {"GPUMEM_GUARD": guard} for guard in GUARDS},
            **({"earlier": {"GPUMEM_GUARD": "1", "LD_PRELOAD": EARLIER}} if EARLIER else {})}
    log = WORK / tag / "memcheck.log"
    held, mib, losses, told, problems, why = {}, {}, {}, {}, [], ""
    try:
        for way in [*ways, *(["memcheck"] if memcheck.PROGRAM else [])]:
            before = device_used()
            log.parent.mkdir(parents=True, exist_ok=True)
            mine = memcheck.command(log, argv, True) if way == "memcheck" else argv
            held[way] = Held(tag, f"guard-{way}", mine, preload=ways.get(way) is not None, env={**env, **(ways.get(way) or {})})
            try:
                losses[way] = held[way].ask(f"steps {of_memcheck}", max(until.left(), 20))["loss"]
                rate = held[way].ask(f"steps {of_memcheck if way == 'memcheck' else count}", max(until.left(), 20))["per_s"]
            except RuntimeError as error:
                if way != "memcheck":
                    return [], None, verdict(GROUP, f"steps/{name}", [f"{way}: {error}"])
                why = f"memcheck: {str(error)[:100]}"
                continue
            told[way] = [rate] if way == "memcheck" else []
            after = device_used()
            mib[way] = None if before is None or after is None else (after - before) / 2**20
        for turn in range(ROUNDS):
            if turn >= 3 and until.left() < 0:
                break
            for way in list(ways) if turn % 2 else reversed(list(ways)):
                told[way].append(held[way].ask(f"steps {count}")["per_s"])
    except RuntimeError as error:
        problems.append(str(error))
    finally:
        statuses = {way: process.stop() for way, process in held.items()}
    errors, native = memcheck.errors(log), told.get("native", [])
    beside = statistics.median(native) / told["memcheck"][0] if native and told.get("memcheck") else None
    problems += [f"{way}: status {status}" for way, status in statuses.items() if status != 0 and way != "memcheck"]
    problems += [f"{way}: another result" for way, loss in losses.items() if loss != losses["native"]]
    rows, times = [], {}
    for guard in GUARDS:
        found = findings(held[guard].ledger())
        problems += [] if found == [] else [f"{guard}: {found}"]
        times[guard] = slower = ratio(native, told[guard])
        problems += [f"{guard}: {slower:.2f} times native"] if keeps and guard != "sync" and slower and slower > SLOWER else []
        rows.append(row(name, guard, said_of(found), slower, said_by_memcheck(errors), beside, f"{statistics.median(native or [0]):.0f} steps/s",
                        (mib.get("native"), minus(mib.get(guard), mib.get("native")), minus(mib.get("memcheck"), mib.get("native")))))
    detail = ", ".join(f"GUARD={guard} {times[guard] or 0:.2f}" for guard in GUARDS)
    earlier = ratio(native, told["earlier"]) if told.get("earlier") else None
    return rows, earlier, verdict(GROUP, f"steps/{name}", problems, f"{detail}, memcheck {beside or 0:.1f} in {len(native)} rounds {why}", per_s=told, mib=mib)


def server_under_memcheck(servers, log):
    """Of a server under memcheck, which joins `servers`: how many times as long as natively some tokens take, and the MiB of
    the card; where it did not come to that, None twice, and why."""
    import llama_server

    seconds, script = float(os.environ.get("GUARD_MEMCHECK_SECONDS", "120")), WORK / "llama-under-memcheck"
    command = " ".join(f"'{word}'" for word in memcheck.command(log, [llama_server.SERVER], True))
    # memcheck is a process of its own, and the server its child: both end with the group of `timeout`.
    script.write_text(f'#!/bin/sh\nexec timeout -k 3 {seconds + 60:.0f} {command} "$@"\n')
    script.chmod(0o755)
    path = {"LD_LIBRARY_PATH": f"{llama_server.SERVER.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    before = device_used()
    try:
        slow = servers["memcheck"] = llama_server.Server("guard-memcheck", False, path, program=script)
        slow.ready(seconds)
        took = {}
        for way in ("memcheck", "native"):
            start = time.monotonic()
            servers[way].complete("a river of small stones", 8)
            took[way] = time.monotonic() - start
        after = device_used()
        mib = None if before is None or after is None else (after - before) / 2**20
        return took["memcheck"] / took["native"], mib, f"memcheck: {summed_up(slow)}"
    except (RuntimeError, OSError) as error:
        return None, None, f"memcheck: {str(error)[:80]}"


def summed_up(slow):
    """Asks the server itself to end: memcheck sums up what it found once its program has ended."""
    import llama_server

    for pid in family(slow.process.pid):
        if os.path.realpath(f"/proc/{pid}/exe") == str(llama_server.SERVER):
            os.kill(pid, signal.SIGTERM)
    try:
        return f"status {slow.process.wait(30)}"
    except subprocess.TimeoutExpired:
        return "did not end in 30 s"


def server(until):
    """llama-server: tokens a second of four clients."""
    unset = [name for name in ("LLAMA_SERVER", "LLAMA_MODEL") if not os.environ.get(name)]
    if unset:
        print(f"skip {GROUP}/llama-server set {' and '.join(unset)}", flush=True)
        return [], True
    if until.skips("llama-server", 45):
        return [], True
    import llama_server

    ways, servers, mib, speeds, texts, problems = {"native": None, "1": {"GPUMEM_GUARD": "1"}}, {}, {}, {}, {}, []
    log, share, beside, why = WORK / "guard-llama.log", until.share(110), None, ""
    try:
        for way, more in ways.items():
            before = device_used()
            servers[way] = llama_server.Server(f"guard-{way}", more is not None, more).ready(60)
            texts[way] = servers[way].texts()
            after = device_used()
            mib[way] = None if before is None or after is None else (after - before) / 2**20
            speeds[way] = []
        for turn in range(5):
            if turn >= 3 and share.left() < 40:
                break
            for way in list(ways) if turn % 2 else reversed(list(ways)):
                tokens, seconds = servers[way].load(1)
                speeds[way].append(tokens / seconds)
        if memcheck.PROGRAM:
            beside, mib["memcheck"], why = server_under_memcheck(servers, log)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        problems.append(str(error)[:200])
    finally:
        for one in servers.values():
            one.end()
        for one in servers.values():
            one.stop()
    if problems:
        return [], verdict(GROUP, "llama-server", problems)
    of_memcheck, slower, found = memcheck.errors(log), ratio(speeds["native"], speeds["1"]), findings(servers["1"].ledger())
    problems += [] if found == [] else [f"findings in a clean program: {found}"]
    problems += [] if texts["native"] == texts["1"] else ["other texts than natively"]
    problems += [f"{slower:.2f} times native"] if slower > SLOWER else []
    rows = [row("llama-server", "1", said_of(found), slower, said_by_memcheck(of_memcheck), beside, f"{statistics.median(speeds['native']):.0f} tokens/s",
                (mib["native"], minus(mib["1"], mib["native"]), minus(mib.get("memcheck"), mib["native"])))]
    return rows, verdict(GROUP, "llama-server", problems, f"GUARD=1 {slower:.2f}, memcheck {beside or 0:.1f} {why}", speeds=speeds, mib=mib)
