"""What the inspector takes, against the driver that does nothing: no GPU needed.

    inspector.py [many | torch]...     PROCESSES=100 MAPPINGS=2000

  many    gpumem ps, and a page of gpumem serve, beside PROCESSES processes, each with MAPPINGS mappings and 1000 allocations.
          Their ledgers lie in one directory, and in one of each process, as in containers
  torch   gpumem leaks of a PyTorch process, the first time and again; PyTorch may be a build without a GPU

A figure is processor time, which is the time on a machine that does nothing else: each of these works in one thread.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.request

from done import cost_row
from harness import BUILD, CLI, HERE, WORK, environment, record, verdict

GROUP = "inspector"
PROCESSES, MAPPINGS = int(os.environ.get("PROCESSES", "100")), os.environ.get("MAPPINGS", "2000")
NULL = {"LD_LIBRARY_PATH": str(BUILD / "null")}
TIMES = 9


def started(argv, folder, env):
    """A preloaded program that has said that it is ready."""
    program = subprocess.Popen([str(word) for word in argv], env=environment(folder, True, False, {**NULL, **env}),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if not program.stdout.readline().startswith("ready"):
        raise RuntimeError(f"{argv[0]} did not get ready")
    return program


def ended(programs):
    for program in programs:
        program.stdin.close()
    for program in programs:
        program.wait(60)


def inspector(folder):
    """The environment of a command that looks in this folder of ledgers, or everywhere."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUMEM_")}
    return {**env, "GPUMEM_DIR": str(folder / "ledgers")} if folder else env


def command(env, *words):
    """Milliseconds of processor time that a command takes, and what it printed."""
    read, write = os.pipe()
    process = subprocess.Popen([CLI, *words], env=env, stdout=write, stderr=subprocess.DEVNULL)
    os.close(write)
    with open(read, encoding="utf-8") as output:
        said = output.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"gpumem {' '.join(words)}: status {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1e3, said


def page(env):
    """Milliseconds for a page of the metrics, from the second page on, and the last page."""
    server = subprocess.Popen([CLI, "serve", "--listen", "127.0.0.1:0"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url, took = server.stdout.readline().split()[1], []
        worked = lambda: int(pathlib.Path(f"/proc/{server.pid}/schedstat").read_text().split()[0]) / 1e6
        for _ in range(TIMES):
            before = worked()
            with urllib.request.urlopen(url, timeout=60) as answer:
                said = answer.read().decode()
            took.append(worked() - before)
            time.sleep(1.2)  # a page is served again for a second
        return took[1:], said
    finally:
        server.kill()
        server.wait()


def many():
    problems, texts = [], {"ps": [], "metrics": []}
    for where in ("one directory", "a directory each"):
        folders = [WORK / f"inspector-{n if where != 'one directory' else 'all'}" for n in range(PROCESSES)]
        programs = [started([BUILD / "cost", "live", "1000", MAPPINGS], folder, {}) for folder in folders]
        env = inspector(folders[0] if where == "one directory" else None)
        try:
            looks = [command(env, "ps") for _ in range(TIMES)]
            pages, said = page(env)
        finally:
            ended(programs)
        pids = {str(program.pid) for program in programs}
        shown = {line.split()[0] for line in looks[-1][1].splitlines() if line.split()}
        if not pids <= shown:
            problems.append(f"{where}: ps shows {len(pids & shown)} of {len(pids)} processes")
        missing = [pid for pid in pids if f'gpumem_live_bytes{{pid="{pid}"' not in said]
        if missing:
            problems.append(f"{where}: the page lacks {len(missing)} processes")
        for name, took in (("ps", [took for took, _ in looks]), ("metrics", pages)):
            texts[name].append(statistics.median(took))
            record({"group": GROUP, "name": name, "where": where, "processes": PROCESSES, "mappings": int(MAPPINGS), "ms": took})
    for name in texts:
        cost_row(f"inspector-{name}", "–", texts[name], "; ".join(f"{ms:.0f}" for ms in texts[name]) + " ms", not problems)
    return verdict(GROUP, "many", problems, f"{PROCESSES} processes of {MAPPINGS} mappings, in one directory / in one each")


def torch():
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        print(f"skip {GROUP}/torch there is no PyTorch; TORCH_PYTHON=file names a python that has it", flush=True)
        return True
    library, folder = BUILD / "libmirror.so", WORK / "inspector-torch"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", HERE / "programs/mirror.c", "-o", library, "-ldl"], check=True)
    preload = f"{os.environ['GPUMEM_SO']} {library}"
    program = started([python, HERE / "programs/py/mirrored.py", "30"], folder, {"LD_PRELOAD": preload})
    try:
        looks = [command(inspector(folder), "leaks", str(program.pid)) for _ in range(TIMES)]
        stacks = [command(inspector(folder), "leaks", "--stacks", str(program.pid))[0] for _ in range(3)]
    finally:
        ended([program])
    first, again = looks[0][0], statistics.median(took for took, _ in looks[1:])
    problems = [] if "mirrored.py" in looks[-1][1] else ["no line of the program is named"]
    record({"group": GROUP, "name": "leaks", "first_ms": first, "again_ms": again, "stacks_ms": stacks})
    cost_row("inspector-leaks", "–", [first, again], f"{first:.0f}; {again:.0f} ms (with --stacks {stacks[0]:.0f}; {stacks[-1]:.0f})", not problems)
    return verdict(GROUP, "torch", problems)


def main():
    results = []
    for part in sys.argv[1:] or ["many", "torch"]:
        try:
            results.append({"many": many, "torch": torch}[part]())
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            results.append(verdict(GROUP, part, [str(error)[:250]]))
    sys.exit(0 if all(results) else 1)


main()
