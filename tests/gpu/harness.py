"""What the scripts here share: where things lie, how a program is run, how results are printed.

Environment (run.sh sets it):
  GPUMEM_SO    libgpumem.so            GPUMEM_CLI   gpumem
  BUILD        what run.sh compiled    WORK         scratch, one folder a run
  OUT          results.jsonl and logs
"""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SO = os.environ["GPUMEM_SO"]
CLI = os.environ["GPUMEM_CLI"]
BUILD = pathlib.Path(os.environ["BUILD"])
WORK = pathlib.Path(os.environ["WORK"])
OUT = pathlib.Path(os.environ["OUT"])

_lock = threading.Lock()


class Run:
    """One finished run of a program: status, output, its ledger and its counter's file if there are any."""

    def __init__(self, status, stdout, stderr, seconds, ledger, counted):
        self.status, self.stdout, self.stderr, self.seconds = status, stdout, stderr, seconds
        self.ledger, self.counted = ledger, counted


def environment(folder, preload, count, extra=None):
    """The environment of a run in `folder`; the rest of ours is passed on, GPUMEM_* is not."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUMEM_") and k != "LD_PRELOAD"}
    if preload:
        env["LD_PRELOAD"] = SO
        env["GPUMEM_DIR"] = str(folder / "ledgers")
        (folder / "ledgers").mkdir(parents=True, exist_ok=True)
        (folder / "ledgers").chmod(0o700)
    if count:
        env["CUDA_INJECTION64_PATH"] = str(BUILD / "libcount.so")
        env["COUNT_DIR"] = str(folder / "counts")
        (folder / "counts").mkdir(parents=True, exist_ok=True)
    env.update(extra or {})
    return env


def ledger_of(folder, pid):
    """The ledger that process `pid` left in `folder`, or None."""
    return next((folder / "ledgers").glob(f"{pid}-*.ledger"), None)


def run(name, mode, argv, *, preload=False, count=False, env=None, timeout=180, cwd=None):
    """Runs a program to its end; on a timeout its whole process group is killed and the status is None."""
    folder = WORK / name / mode
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment(folder, preload, count, env), cwd=cwd, start_new_session=True)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    counted = folder / "counts" / f"{process.pid}.json"
    return Run(status, (folder / "stdout").read_text(errors="replace"), (folder / "stderr").read_text(errors="replace"),
               time.monotonic() - start, ledger_of(folder, process.pid) if preload else None,
               json.loads(counted.read_text()) if counted.exists() else None)


def record(result):
    """Appends one object to results.jsonl."""
    with _lock, open(OUT / "results.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")


def verdict(group, name, problems, detail="", **more):
    """Prints `ok|FAIL name detail`, records it, and says whether it was ok."""
    ok = not problems
    text = "; ".join(problems) + (f" ({detail})" if problems and detail else detail if not problems else "")
    line = f"{'ok  ' if ok else 'FAIL'} {group}/{name} {text}"
    record({"group": group, "name": name, "ok": ok, "problems": problems, "detail": detail, **more})
    with _lock:
        print(line[:330].replace("\n", " "), flush=True)
    return ok


def inspect(view, ledger, *more, text=False, timeout=120):
    """What a view of gpumem says of one ledger: parsed JSON, or the text that people see.

    Raises RuntimeError with what gpumem said when it fails.
    """
    command = [CLI, view, "--file", str(ledger), *more] + ([] if text else ["--json"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}: status {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout if text else json.loads(done.stdout)
