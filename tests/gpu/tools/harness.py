"""What the scripts here share: where things lie, how a program is run, how results are printed.

Environment (run.sh sets it):
  GPUMEM_SO    libgpumem.so            GPUMEM_CLI   gpumem
  BUILD        what run.sh compiled    WORK         scratch, one folder a run
  OUT          results.jsonl and logs
  GPUMEM_EARLIER_SO   an earlier libgpumem.so, which stages that measure costs run by turns with the present one
"""
import ctypes
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent.parent
SO = os.environ["GPUMEM_SO"]
CLI = os.environ["GPUMEM_CLI"]
BUILD = pathlib.Path(os.environ["BUILD"])
WORK = pathlib.Path(os.environ["WORK"])
OUT = pathlib.Path(os.environ["OUT"])
EARLIER = os.path.abspath(os.environ["GPUMEM_EARLIER_SO"]) if os.environ.get("GPUMEM_EARLIER_SO") else None

_lock = threading.Lock()


class Run:
    """One finished run of a program: status, output, its ledger and its counter's file if there are any, and the most
    anonymous memory that it had at a time (MiB)."""

    def __init__(self, status, stdout, stderr, seconds, ledger, counted, host_mib):
        self.status, self.stdout, self.stderr, self.seconds = status, stdout, stderr, seconds
        self.ledger, self.counted, self.host_mib = ledger, counted, host_mib


# What a process may have more under the preload, of host memory.
SLACK_MIB, SLACK_SHARE = 4.0, 0.02


def allowed(native_mib):
    """The most memory that a process may have where it natively has so much."""
    return native_mib * (1 + SLACK_SHARE) + SLACK_MIB


def host_mib(pid):
    """Anonymous resident memory of a process; None once it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon")), None)


def path_of(*names):
    """The file or folder that the first of these variables names that is set; None where none is."""
    named = next((os.environ[name] for name in names if os.environ.get(name)), None)
    return pathlib.Path(named).resolve() if named else None


def there(group, name, *needed):
    """Whether what a stage needs is there, by the names of variables, each a name or a tuple of which one is to be set.

    Where one is unset a line says `skip`, and the answer is None; where one names nothing a line says `FAIL`, and the answer
    is False: it was meant to run.
    """
    needed = [names if isinstance(names, tuple) else (names,) for names in needed]
    unset = [" or ".join(names) for names in needed if not path_of(*names)]
    if unset:
        print(f"skip {group}/{name} set {' and '.join(unset)}", flush=True)
        return None
    wrong = [f"{next(n for n in names if os.environ.get(n))}: {path_of(*names)} is not there" for names in needed if not path_of(*names).exists()]
    return verdict(group, name, wrong) if wrong else True


def need(group, name, *needed):
    """Ends the script where what it needs is not there (`there`): with 0 where it is not named, with 1 where it should be."""
    found = there(group, name, *needed)
    if not found:
        sys.exit(0 if found is None else 1)


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


def beside(program):
    """What a program's environment must say for it to find the libraries that lie in its own folder."""
    return {"LD_LIBRARY_PATH": ":".join(filter(None, (str(pathlib.Path(program).parent), os.environ.get("LD_LIBRARY_PATH"))))}


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
        most, status = 0.0, None
        while status is None and time.monotonic() - start < timeout:
            most = max(most, host_mib(process.pid) or 0.0)
            try:
                status = process.wait(0.02)
            except subprocess.TimeoutExpired:
                pass
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    counted = folder / "counts" / f"{process.pid}.json"
    return Run(status, (folder / "stdout").read_text(errors="replace"), (folder / "stderr").read_text(errors="replace"),
               time.monotonic() - start, ledger_of(folder, process.pid) if preload else None,
               json.loads(counted.read_text()) if counted.exists() else None, most)


class Held:
    """A program that stays and answers each line it is sent with one line of JSON (py/answers.py), so that
    modes can be measured by turns without paying for a start each time."""

    def __init__(self, name, mode, argv, *, preload=False, env=None, cwd=None):
        self.folder, self.mode, self.rest = WORK / name / mode, mode, b""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "stderr", "wb") as err:
            self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd=cwd,
                                            env=environment(self.folder, preload, False, env), start_new_session=True)
        self.waits = selectors.DefaultSelector()
        self.waits.register(self.process.stdout, selectors.EVENT_READ)

    def send(self, line):
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says what it ended with

    def answer(self, timeout=120):
        """The next line of JSON; RuntimeError when the program ends or is silent for `timeout` seconds."""
        limit = time.monotonic() + timeout
        while True:
            line, found, after = self.rest.partition(b"\n")
            if found:
                self.rest = after
                if line.startswith(b"{"):
                    return json.loads(line)
                continue
            more = os.read(self.process.stdout.fileno(), 65536) if self.waits.select(limit - time.monotonic()) else b""
            if not more:
                status = self.process.poll() if time.monotonic() < limit else "silent"
                raise RuntimeError(f"{self.mode}: status {status}: {self.stderr()[-200:]}")
            self.rest += more

    def ask(self, line, timeout=120):
        self.send(line)
        return self.answer(timeout)

    def stderr(self):
        return (self.folder / "stderr").read_text(errors="replace").strip()

    def ledger(self):
        return ledger_of(self.folder, self.process.pid)

    def stop(self, timeout=30):
        """Closes its input, waits, kills what does not end; its status (None: killed)."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return None


def gpus():
    """How many the driver tells of."""
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30).stdout.splitlines())
    except (OSError, subprocess.TimeoutExpired):
        return 0


class _Nvml(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_nvml = {}


def first_card():
    """NVML's number of the card that programs see as their first: NVML does not know CUDA_VISIBLE_DEVICES."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def device_used(index=None):
    """Bytes of the whole card in use, as NVML says: no library of ours can change that. None without NVML."""
    index = first_card() if index is None else index
    try:
        if "library" not in _nvml:
            _nvml["library"] = None
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0:
                _nvml["library"] = library
        library, memory, device = _nvml["library"], _Nvml(), ctypes.c_void_p()
        if not library or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            return None
        return None if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) else memory.used
    except OSError:
        return None


class Peak:
    """Watches how much of the card is in use while something runs: `with Peak() as peak: …`, then `peak.mib`."""

    def __init__(self, every=0.004):
        self.every, self.most, self.before, self.over = every, 0, device_used() or 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        while not self.over.is_set():
            self.most = max(self.most, device_used() or 0)
            self.over.wait(self.every)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    @property
    def mib(self):
        return (self.most - self.before) / 2**20 if self.most else None


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
