"""GPUMEM_LIMIT_GROUP on a real GPU: members that share 4 GiB (tests/tests/clients/group.c), as they are, as clients of MPS,
and around a checkpoint by cuda-checkpoint.

    group.py

A check a line. What is not there (nvidia-cuda-mps-control, cuda-checkpoint) is skipped with a line. On a MIG device
(CUDA_VISIBLE_DEVICES=MIG-...) the numbers are the instance's, which a line tells.

  CUDA_CHECKPOINT=file   (default: cuda-checkpoint on PATH)
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


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


def mps():
    """The same as clients of MPS."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not control:
        print("skip group/mps nvidia-cuda-mps-control is not there")
        return
    place = folder("mps-daemon")
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(place / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(place / "log")}
    for path in env.values():
        pathlib.Path(path).mkdir(exist_ok=True)
    started = subprocess.run([control, "-d"], env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    if started.returncode != 0:
        print(f"skip group/mps the daemon does not start: {(started.stdout + started.stderr).strip()[-150:]}")
        return
    try:
        share("mps", env)
        servers = subprocess.run([control], input="get_server_list\n", env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
        check("mps/is-used", servers.stdout.strip() != "", f"servers: {servers.stdout.split()}")
    finally:
        subprocess.run([control], input="quit\n", env={**os.environ, **env}, capture_output=True, text=True, timeout=60)


def checkpoint():
    """A member that is checkpointed keeps its bytes in the count, and goes on afterwards."""
    tool = os.environ.get("CUDA_CHECKPOINT") or shutil.which("cuda-checkpoint")
    if not tool:
        print("skip group/checkpoint cuda-checkpoint is not there")
        return
    place = folder("checkpoint")
    with Member(place) as held, Member(place) as other:
        first = held.tell("alloc 3072")
        toggle = [tool, "--toggle", "--pid", str(held.process.pid)]
        out = subprocess.run(toggle, capture_output=True, text=True, timeout=120)
        check("checkpoint/suspends", first == FINE and out.returncode == 0, (out.stdout + out.stderr).strip()[-200:])
        if out.returncode != 0:
            return
        said = [other.tell("alloc 2048"), other.tell("alloc 512")]
        check("checkpoint/counts", said == [NO_MEMORY, FINE], f"a suspended member's bytes count: {' '.join(said)}")
        out = subprocess.run(toggle, capture_output=True, text=True, timeout=120)
        check("checkpoint/resumes", out.returncode == 0, (out.stdout + out.stderr).strip()[-200:])
        said = [held.tell("free"), held.tell("alloc 3072"), held.tell("alloc 1024")]
        check("checkpoint/goes-on", said == [FINE, FINE, NO_MEMORY], " ".join(said))
        os.kill(held.process.pid, signal.SIGKILL)


def main():
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if device.startswith("MIG-"):
        print(f"note group: on the MIG device {device}: the limit and the numbers are the instance's")
    share("plain")
    mps()
    checkpoint()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
