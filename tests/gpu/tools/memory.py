"""Memory of processes: host memory by the kernel's books, device memory by NVML's, the pool's idle blocks by the ledger."""
import ctypes
import os
import pathlib
import signal
import statistics
import struct
import subprocess
import threading
import time

from harness import OUT, WORK, CLI, allowed, environment, host_mib, ledger_of
from stats import Ledger


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]


class Devices:
    """Device memory of each process on all cards, as NVML says."""

    def __init__(self):
        self.library, self.devices, self.lock = None, [], threading.Lock()
        try:
            library, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
            if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
                return
            for index in range(count.value):
                device = ctypes.c_void_p()
                if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                    self.devices.append(device)
            self.library = library
        except OSError:
            pass

    def mib(self, *pids):
        """What these processes have together; None where NVML does not tell."""
        if not self.library:
            return None
        found = []
        for device in self.devices:
            count, processes = ctypes.c_uint(64), (_Process * 64)()
            with self.lock:
                if self.library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes):
                    return None
            found += [p.used for p in processes[: count.value] if p.pid in pids]
        return sum(found) / 2**20 if found and max(found) < 2**63 else None


DEVICES = Devices()


def idle_mib(ledger):
    """What the pool keeps, as the ledger says."""
    try:
        return Ledger(ledger).pool()["idle_mib"] if ledger else 0.0
    except (OSError, ValueError, KeyError, struct.error):
        return 0.0  # it begins just now


def family(pid):
    """A process and all that it started, and what those started."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        try:
            for path in list(pathlib.Path(f"/proc/{parent}/task").glob("*/children")):
                waiting += [int(child) for child in path.read_text().split()]
        except OSError:
            pass  # it ended just now
    return found


def memory_of(pid, folder, preload, whole_family=False):
    """(host MiB, device MiB or None, idle MiB) of a process, or of all it started too; None once it has ended."""
    pids = family(pid) if whole_family else [pid]
    host = [mib for mib in map(host_mib, pids) if mib is not None]
    if not host:
        return None
    if not preload:
        return sum(host), DEVICES.mib(*pids), 0.0
    # Both change while the program works, and NVML takes long where the machine is busy: they have to be of one moment.
    for _ in range(5):
        idle = sum(idle_mib(ledger_of(folder, one)) for one in pids)
        device = DEVICES.mib(*pids)
        if idle == sum(idle_mib(ledger_of(folder, one)) for one in pids):
            break
    return sum(host), device, idle


class Watch:
    """Memory of one process each second: (seconds, host MiB, device MiB or None, idle MiB). Each sample is at once a line of a file
    in $OUT, too."""

    def __init__(self, name, mode, pid, folder, preload):
        self.name, self.mode, self.pid, self.folder, self.preload = name, mode, pid, folder, preload
        self.samples, self.over, self.start = [], threading.Event(), time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with open(OUT / f"{self.name}-{self.mode}.samples", "w", encoding="utf-8", buffering=1) as file:
            while not self.over.wait(1.0):
                seen = memory_of(self.pid, self.folder, self.preload)
                if seen is None:
                    return
                self.samples.append((round(time.monotonic() - self.start, 1), *seen))
                print(*self.samples[-1], file=file)

    def end(self):
        self.over.set()
        self.thread.join()
        try:
            maps = pathlib.Path(f"/proc/{self.pid}/smaps").read_text()
            (OUT / f"{self.name}-{self.mode}.smaps").write_text(maps)
        except OSError:
            pass
        if self.preload and (ledger := ledger_of(self.folder, self.pid)):
            said = subprocess.run([CLI, "stats", "--all", "--file", str(ledger)], capture_output=True, text=True, timeout=60)
            (OUT / f"{self.name}-stats.txt").write_text(said.stdout + said.stderr)


class Marked:
    """A program in the background whose output says where it is: memory is taken `settle` seconds after each of its marks.

    `mark(line)` gives the name of a mark, or None for other lines. `samples` are (mark, seconds, host MiB, device MiB
    or None, idle MiB).
    """

    def __init__(self, name, mode, argv, mark, *, preload=False, env=None, cwd=None, whole_family=False, settle=0.0):
        self.folder, self.preload, self.mark, self.whole_family = WORK / name / mode, preload, mark, whole_family
        self.mode, self.samples, self.lines, self.status, self.settle = mode, [], [], None, settle
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start = time.monotonic()
        with open(self.folder / "stderr", "wb") as err:
            self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, cwd=cwd,
                                            env=environment(self.folder, preload, False, env), start_new_session=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            line = line.decode(errors="replace").rstrip()
            self.lines.append(line)
            if (mark := self.mark(line)) is not None:
                time.sleep(self.settle)
                seen = memory_of(self.process.pid, self.folder, self.preload, self.whole_family)
                if seen:
                    self.samples.append((mark, time.monotonic() - self.start, *seen))

    def wait(self, until):
        """Waits for its end, at most until that time of the monotonic clock; then the whole group is killed and the status is None."""
        try:
            self.status = self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.thread.join(10)
        (self.folder / "stdout").write_text("\n".join(self.lines))
        return self.status

    def said(self):
        """The last thing it said, for a message."""
        text = (self.folder / "stderr").read_text(errors="replace").strip() or "\n".join(self.lines[-3:])
        return text[-200:].replace("\n", " ")

    def ledgers(self):
        return ledgers_in(self.folder)


def ledgers_in(folder):
    """A ledger for each process that left one in the folder of a run."""
    return [Ledger(path) for path in sorted((folder / "ledgers").glob("*.ledger"))]


def trouble_of(ledgers, graphs=False):
    """What no ledger of a preloaded run may say; with `graphs`, that it saw no graph's launch is one more."""
    problems = [] if ledgers else ["no ledger was left"]
    for ledger in ledgers:
        problems += ledger.trouble()
        if ledger.interception != "complete":
            problems.append(f"interception {ledger.interception} ({ledger.reason})")
    if graphs and ledgers and not any(ledger.counts.get("launches") for ledger in ledgers):
        problems.append("no graph was launched: nothing was measured")
    return problems


def quartiles(values):
    """(lower quartile, median, upper quartile)."""
    values = list(values)
    return tuple(statistics.quantiles(values, n=4, method="inclusive")) if len(values) > 1 else (*values, *values, *values)


def quartiles_text(values, digits=2):
    """`median [lower quartile … upper quartile]`."""
    if not values:
        return "–"
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} … {high:.{digits}f}]"


def grown(values):
    """By how much a series grows in its later half: the median of its last tenth less that of the tenth after its middle."""
    tenth = max(1, len(values) // 10)
    middle = len(values) // 2
    return sorted(values[-tenth:])[tenth // 2] - sorted(values[middle:middle + tenth])[tenth // 2]


def above(native, preloaded, ahead=0):
    """The most that the preloaded series is above what is allowed, each as it was at most until then; negative: within.

    The preloaded program may be `ahead` samples of the native one: what that has by then is what it is held to."""
    native = native[ahead:] + native[-1:] * ahead
    most_native = most_preloaded = 0.0
    worst = float("-inf")
    for a, b in zip(native, preloaded):
        most_native, most_preloaded = max(most_native, a), max(most_preloaded, b)
        worst = max(worst, most_preloaded - allowed(most_native))
    return worst


def series(samples, at=1):
    """{kind: values} of samples whose host memory stands at index `at`; device memory is without what the pool keeps idle, 0
    until the process has a context, and left out where NVML does not tell."""
    found = {"host": [s[at] for s in samples]}
    first = next((i for i, s in enumerate(samples) if s[at + 1] is not None), None)
    if first is not None and all(s[at + 1] is not None for s in samples[first:]):
        found["device"] = [0.0] * first + [s[at + 1] - s[at + 2] for s in samples[first:]]
    return found
