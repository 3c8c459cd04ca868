"""GPUMEM_LIMIT_GROUP on a real GPU: members that share 4 GiB (tests/programs/clients/group.c), as they are, as clients of MPS,
and around a checkpoint by cuda-checkpoint, which stays in memory or goes to a disk by CRIU.

    group.py

A check a line. What is not there (nvidia-cuda-mps-control; cuda-checkpoint and, in its place, the driver's functions for
checkpoints; criu) is skipped with a line. On a MIG device (CUDA_VISIBLE_DEVICES=MIG-...) the numbers are the instance's, which a
line tells.

  CUDA_CHECKPOINT=file   (default: cuda-checkpoint on PATH, else the functions of the driver, 12.8 and later)
  CRIU=file              (default: criu on PATH; it needs root)
"""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from harness import BUILD, WORK, environment, verdict

GROUP = "group"
PROGRAM = BUILD / "group"
LIMIT = "gpu-test:4GiB"
NO_MEMORY, FINE = "2", "0"


bad = []


def check(name, ok, detail=""):
    """A line for what was seen."""
    if not verdict(GROUP, name, [] if ok else [detail or "no"], detail if ok else ""):
        bad.append(name)


class Member:
    """A process that does what lines say, and answers each with a line."""

    def __init__(self, folder, env=None):
        extra = {"GPUMEM_LIMIT_GROUP": LIMIT, **(env or {})}
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        bufsize=1, env=environment(folder, True, False, extra), start_new_session=True)
        self.ready = self.process.stdout.readline().strip() == "ready"

    def tell(self, line):
        """The status of the call, or the numbers that it printed."""
        self.process.stdin.write(line + "\n")
        said = self.process.stdout.readline().strip()
        if line == "info":
            self.process.stdout.readline()
        return said.rpartition(": ")[2]

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def pid(self):
        return self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Restorable(Member):
    """The same, without a pipe or a terminal of anyone else's, which CRIU could not restore."""

    def __init__(self, folder):
        place = pathlib.Path(tempfile.mkdtemp(prefix="criu-"))
        ways = [place / "in", place / "out"]
        for way in ways:
            os.mkfifo(way)
        # Read and write: neither end waits for the other, and none is gone while the process is.
        ends = [os.open(way, os.O_RDWR) for way in ways]
        with open(place / "err", "wb") as err:
            self.process = subprocess.Popen([PROGRAM], stdin=ends[0], stdout=ends[1], stderr=err, start_new_session=True,
                                            env=environment(folder, True, False, {"GPUMEM_LIMIT_GROUP": LIMIT}))
        self.process.stdin, self.process.stdout = os.fdopen(ends[0], "w", 1), os.fdopen(ends[1], "r")
        self.place = place
        self.ready = self.process.stdout.readline().strip() == "ready"

    def kill(self):
        # A restored process is no child of this one.
        subprocess.run(["kill", "-9", str(self.pid)], capture_output=True)
        self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


def folder(name):
    path = WORK / GROUP / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def share(name, env=None):
    """Two members share the limit, and a killed one leaves nothing."""
    place = folder(name)
    with Member(place, env) as a, Member(place, env) as b:
        if not (a.ready and b.ready):
            check(f"{name}/starts", False, (a.process.stderr.read() if not a.ready else "")[-200:])
            return
        said = [a.tell("alloc 3072"), b.tell("alloc 2048"), b.tell("create 1024"), b.tell("async 2")]
        check(f"{name}/shared", said == [FINE, NO_MEMORY, FINE, NO_MEMORY], " ".join(said))
        check(f"{name}/info", b.tell("info") == "info 0 4096", "free and total are the group's")
        a.kill()
        start = time.monotonic()
        status = b.tell("alloc 3072")
        check(f"{name}/killed", status == FINE, f"{status} after {(time.monotonic() - start) * 1000:.0f} ms")
    with Member(place, env) as keeps, Member(place, env) as short:
        said = [keeps.tell("alloc 3072"), keeps.tell("free")]
        start = time.monotonic()
        said.append(short.tell("alloc 4096"))
        check(f"{name}/kept", said == [FINE] * 3, f"{' '.join(said)} after {(time.monotonic() - start) * 1000:.0f} ms")


def tool(name):
    """A program of the driver's."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/nvidia/bin:/usr/bin:/usr/local/cuda/bin")


def mps():
    """The same as clients of MPS."""
    control = tool("nvidia-cuda-mps-control")
    if not control:
        print("skip group/mps nvidia-cuda-mps-control is not there")
        return
    # Sockets lie there, whose paths may have 107 bytes.
    place = pathlib.Path(tempfile.mkdtemp(prefix="mps-"))
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(place / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(place / "log")}
    for path in env.values():
        pathlib.Path(path).mkdir()

    def ask(*words, line=None):
        # Into a file: a daemon may keep a pipe open for good.
        with open(place / "said", "w+") as said:
            done = subprocess.run([control, *words], input=line, env={**os.environ, **env}, stdout=said, stderr=said, text=True, timeout=60)
            said.seek(0)
            return done.returncode, said.read().strip()

    status, said = ask("-d")
    if status != 0:
        print(f"skip group/mps the daemon does not start: {said[-150:]}")
        return
    try:
        share("mps", env)
        with Member(folder("mps-server"), env) as client:
            status = client.tell("alloc 64")
            servers = ask(line="get_server_list\n")[1]
            check("mps/is-used", status == FINE and servers != "", f"servers: {servers.split()}")
    finally:
        ask(line="quit\n")
        shutil.rmtree(place, ignore_errors=True)


class Checkpoint:
    """Suspends a process's work on the device into host memory, and resumes it: by the tool, or as the tool does it."""

    def __init__(self):
        self.tool = os.environ.get("CUDA_CHECKPOINT") or tool("cuda-checkpoint")
        self.driver = None
        if not self.tool:
            try:
                self.driver = ctypes.CDLL("libcuda.so.1")
                self.driver.cuCheckpointProcessLock  # noqa: B018
                self.driver.cuInit(0)
            except (OSError, AttributeError):
                self.driver = None

    def steps(self, pid, *names):
        """What went wrong; nothing if that is nothing."""
        if self.tool:
            out = subprocess.run([self.tool, "--toggle", "--pid", str(pid)], capture_output=True, text=True, timeout=120)
            return "" if out.returncode == 0 else (out.stdout + out.stderr).strip()[-200:] or f"status {out.returncode}"
        for name in names:
            status = getattr(self.driver, f"cuCheckpointProcess{name}")(pid, None)
            if status != 0:
                return f"cuCheckpointProcess{name} answers {status}"
        return ""

    def suspend(self, pid):
        return self.steps(pid, "Lock", "Checkpoint")

    def resume(self, pid):
        return self.steps(pid, "Restore", "Unlock")


def checkpoint():
    """A member that is checkpointed keeps its bytes in the count, and goes on afterwards."""
    by = Checkpoint()
    if not by.tool and not by.driver:
        print("skip group/checkpoint neither cuda-checkpoint nor a driver with cuCheckpointProcessLock is there")
        return
    place = folder("checkpoint")
    with Member(place) as held, Member(place) as other:
        first, start = held.tell("alloc 3072"), time.monotonic()
        wrong = by.suspend(held.pid)
        took = f"by {by.tool or 'the driver'}, {(time.monotonic() - start) * 1000:.0f} ms"
        check("checkpoint/suspends", first == FINE and not wrong, f"{wrong or took}, alloc: {first}")
        if wrong:
            return
        said = [other.tell("alloc 2048"), other.tell("alloc 512")]
        check("checkpoint/counts", said == [NO_MEMORY, FINE], f"a suspended member's bytes count: {' '.join(said)}")
        start = time.monotonic()
        wrong = by.resume(held.pid)
        check("checkpoint/resumes", not wrong, wrong or f"{(time.monotonic() - start) * 1000:.0f} ms")
        if wrong:
            return
        said = [held.tell("free"), held.tell("alloc 3072"), held.tell("alloc 1024")]
        check("checkpoint/goes-on", said == [FINE, FINE, NO_MEMORY], " ".join(said))


def to_disk():
    """A member goes to a disk and comes back: suspended, dumped by CRIU, restored, resumed. Between dump and restore its
    bytes are the others'."""
    criu, by = os.environ.get("CRIU") or tool("criu"), Checkpoint()
    if not criu or not (by.tool or by.driver) or os.geteuid() != 0:
        print("skip group/disk criu, what suspends a process's work on the device, or root is not there")
        return

    def run(verb, images, *words):
        done = subprocess.run([criu, verb, "-D", images, "-v2", "-o", "log", *words], capture_output=True, text=True, timeout=300)
        log = pathlib.Path(images, "log")
        said = [line for line in (log.read_text(errors="replace") if log.exists() else done.stderr).splitlines() if "Error" in line]
        return "" if done.returncode == 0 else " / ".join(said)[-400:] or f"status {done.returncode}"

    place = folder("disk")
    with Restorable(place) as held, Member(place) as other, tempfile.TemporaryDirectory(prefix="criu-") as images:
        first, start = held.tell("alloc 3072"), time.monotonic()
        wrong = by.suspend(held.pid) or run("dump", images, "-t", str(held.pid))
        check("disk/dumps", first == FINE and not wrong, wrong or f"{(time.monotonic() - start) * 1000:.0f} ms, alloc: {first}")
        if wrong:
            return
        held.process.wait()
        said = other.tell("info")
        check("disk/frees", said == "info 4096 4096", f"free and total for the other member: {said}")
        start = time.monotonic()
        wrong = run("restore", images, "-d") or by.resume(held.pid)
        check("disk/restores", not wrong, wrong or f"{(time.monotonic() - start) * 1000:.0f} ms")
        if wrong:
            return
        # It is counted again within a second or two.
        time.sleep(3)
        said = [other.tell("alloc 2048"), held.tell("free")]
        # A member that was refused asks the others for idle memory again after a second.
        time.sleep(2)
        said += [other.tell("alloc 2048"), held.tell("alloc 3072"), held.tell("alloc 1024")]
        check("disk/goes-on", said == [NO_MEMORY, FINE, FINE, NO_MEMORY, FINE], " ".join(said))


def main():
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if device.startswith("MIG-"):
        print(f"note group: on the MIG device {device}: the limit and the numbers are the instance's")
    share("plain")
    mps()
    checkpoint()
    to_disk()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
