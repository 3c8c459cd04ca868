"""Reads preloaded programs from outside: while they run, and what they leave after SIGKILL in mid-work.

`graphs_shared --hold` says exactly what it holds; the demo is killed while its threads decode.
"""
import json
import os
import signal
import subprocess
import sys
import time

from harness import BUILD, CLI, OUT, WORK, environment, inspect, ledger_of, verdict
from stats import Ledger

GROUP = "observe"


def killed(name, argv, ready, after):
    """Runs until `ready(stdout)` and `after` seconds more, kills, and returns (stdout, ledger path)."""
    folder = WORK / f"observe-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen([str(a) for a in argv], stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                   env=environment(folder, True, False), start_new_session=True)
        limit = time.monotonic() + 60
        while process.poll() is None and not ready((folder / "stdout").read_text()) and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(after)
        alive = process.poll() is None
        if alive:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
    if not alive:
        raise RuntimeError(f"ended by itself with {process.returncode}: {(folder / 'stderr').read_text()[-200:]}")
    ledger = ledger_of(folder, process.pid)
    if not ledger:
        raise RuntimeError("no ledger was left")
    return (folder / "stdout").read_text(), ledger


def views(name, ledger, problems):
    """Every view must read it; what people see goes to $OUT."""
    for view in ("stats", "allocs", "graphs"):
        try:
            inspect(view, ledger)
            (OUT / f"killed-{name}-{view}.txt").write_text(inspect(view, ledger, text=True))
        except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            problems.append(f"gpumem {error}"[:160])


def exact():
    problems = []
    stdout, path = killed("graphs", [BUILD / "graphs_shared", "--hold"], lambda text: "holding" in text, 0.5)
    held = json.loads(next(line for line in stdout.splitlines() if line.startswith("holding")).split(" ", 1)[1])
    ledger = Ledger(path)
    live = ledger.live()
    found = {
        "device_allocs": live.get("device", 0),
        "device_bytes": ledger.counts.get("device.bytes", 0) - ledger.counts.get("device.freed_bytes", 0),
        "graphs": live.get("graphs", 0), "execs": live.get("execs", 0),
    }
    if found != held:
        problems.append(f"held {held}, ledger says {found}")
    if ledger.state != "recording":
        problems.append(f"state {ledger.state}")
    views("graphs", path, problems)
    return verdict(GROUP, "killed-exact", problems, f"{found}", held=held, found=found, ledger=str(path))


def in_work():
    problems = []
    demo = BUILD / "programs" / "demo"
    _, path = killed("demo", [demo, "--seconds", "60"], lambda text: True, 5)
    ledger = Ledger(path)
    live = ledger.live()
    for what, least in (("device", 5), ("execs", 1), ("graphs", 1)):
        if live.get(what, 0) < least:
            problems.append(f"{live.get(what, 0)} live {what}")
    views("demo", path, problems)
    return verdict(GROUP, "killed-in-work", problems, f"live {live}, {ledger.counts.get('launches', 0)} graph launches", live=live,
                   ledger=str(path))


def running():
    """Every view of the one live process, without naming it; what people see goes to $OUT."""
    problems = []
    folder = WORK / "observe-running"
    folder.mkdir(parents=True, exist_ok=True)
    env = environment(folder, True, False)
    process = subprocess.Popen([BUILD / "programs" / "demo", "--seconds", "8"], env=env, stdout=subprocess.PIPE, text=True)
    time.sleep(4)
    for view in (["ps"], ["stats"], ["allocs"], ["graphs"], ["doctor"]):
        done = subprocess.run([CLI, *view], env={**env, "LD_PRELOAD": ""}, capture_output=True, text=True, timeout=30)
        (OUT / f"running-{view[0]}.txt").write_text(done.stdout + done.stderr)
        if done.returncode and view != ["doctor"]:  # doctor says with its status that it found something
            problems.append(f"gpumem {view[0]}: status {done.returncode}: {done.stderr.strip()[:80]}")
    process.communicate(timeout=60)
    if process.returncode:
        problems.append(f"the demo ended with {process.returncode}")
    return verdict(GROUP, "running", problems, "ps, stats, allocs, graphs, doctor of the live process")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    results = []
    for case in (running, exact, in_work):
        try:
            results.append(case())
        except (RuntimeError, OSError, ValueError, StopIteration, subprocess.TimeoutExpired) as error:
            results.append(verdict(GROUP, case.__name__, [str(error)[:250]]))
    sys.exit(0 if all(results) else 1)


main()
