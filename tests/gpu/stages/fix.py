"""The cure that `gpumem doctor` prints, pasted: memory that grew is flat from then on.

    fix.py [demo | torch | llama]...      py/fix_graphs.py is the program of PyTorch; the demo behaves as llama-server did before it evicted

Each program makes a graph more for each request and keeps all of them, under a graph cache that may hold 65536 and lets none go. What a
user types is typed here, by a shell, as it stands: `gpumem leaks PID` until it names the call site, `gpumem doctor PID`, and
the command behind `run:` in its finding about those graphs. Then the program goes on for FIX_SECONDS (20).

Flat means, from the moment at which the new bound is reached: they stay within it, but for one exec a thread that launches,
since nobody waits for what runs; device memory grows by no more than 4 MiB and 5 % of what each graph took before; host
memory by no more than 15 % of that (a handle without an exec keeps its source).

llama is LLAMA_SERVER with LLAMA_MODEL, and four clients that ask for ever other lengths. That of today lets go of its graphs:
forgets.c is preloaded as well, which has it keep each of them.
"""
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from harness import BUILD, CLI, HERE, OUT, SO, WORK, environment, host_mib, inspect, ledger_of, path_of, record, there, verdict
from memory import DEVICES

GROUP = "fix"
SECONDS = float(os.environ.get("FIX_SECONDS", "20"))
# Until `leaks` names the call site: 32 samples are needed, of which there are ten a second. And until as many graphs came as the
# new bound allows: llama-server beside much else makes three a second.
PATIENCE, PATIENCE_BOUND = 90, 240
GROWS = {"GPUMEM_GRAPH_CACHE": "65536", "GPUMEM_GRAPH_CACHE_BYTES": "0", "GPUMEM_GRAPH_IDLE": "0", "GPUMEM_GROWTH_INTERVAL": "100ms"}
# Threads of the demo; the program of PyTorch has one.
SLOTS = 3
DEVICE_MIB, DEVICE_SHARE, HOST_SHARE = 4.0, 0.05, 0.15


class Typed:
    """What a user types beside a program, and what is said: all of it is kept for people."""

    def __init__(self, folder):
        self.folder, self.text = folder, []

    def environment(self):
        path = f"{os.path.dirname(os.path.abspath(CLI))}:{os.environ['PATH']}"
        return environment(self.folder, False, False, {"PATH": path, "GPUMEM_DIR": str(self.folder / "ledgers")})

    def __call__(self, line):
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, env=self.environment())
        self.text.append(f"$ {line}\n{done.stdout}{done.stderr}")
        return done.stdout

    def until(self, line, right):
        """The answer that is right; what was said before it is not kept."""
        limit = time.monotonic() + PATIENCE
        while True:
            said = self(line)
            if right(said):
                return said
            if time.monotonic() > limit:
                raise RuntimeError(f"{line} never says it: {said[-300:]}")
            self.text.pop()
            time.sleep(0.3)


def pasted(said):
    """The command behind `run:` in the finding about graphs that grow."""
    found = re.search(r"growth +pid \d+: graphs of .*\n +run: (.+)", said)
    if not found:
        raise RuntimeError(f"doctor prints no command: {said[-400:]}")
    return found.group(1)


def now(folder, pid):
    """Handles, real execs, MiB of the device and of the host."""
    said = inspect("stats", ledger_of(folder, pid))
    used = DEVICES.mib(pid)
    if used is None:
        used = sum(device["used_bytes"] for device in said["devices"]) / 2**20
    cache = said["cache"]
    return {"handles": cache["handles"], "real": cache["real_execs"], "device": used, "host": host_mib(pid) or 0.0}


def more(first, last):
    """What is more in the second look, and for each graph that came."""
    graphs = last["handles"] - first["handles"]
    return {name: last[name] - first[name] for name in ("device", "host")} | {"graphs": graphs}


def judge(growing, samples, bound, threads):
    """What is wrong with the samples since the cure took hold, and what they say."""
    flat = more(samples[0], samples[-1])
    problems = []
    if growing["graphs"] < 100 or flat["graphs"] < 100:
        problems.append(f"{growing['graphs']} graphs came before and {flat['graphs']} since: too few to tell")
        return problems, ""
    each = {name: growing[name] / growing["graphs"] for name in ("device", "host")}
    most = max(sample["real"] for sample in samples)
    if most > bound + threads:
        problems.append(f"{most} real execs, and {bound} and {threads} are allowed")
    if flat["device"] > DEVICE_MIB + DEVICE_SHARE * each["device"] * flat["graphs"]:
        problems.append("device memory is not flat")
    if flat["host"] > 2.0 + HOST_SHARE * each["host"] * flat["graphs"]:
        problems.append("host memory is not flat")
    tell = "before {graphs} graphs, device {device:+.0f} MiB, host {host:+.0f}".format(**growing)
    return problems, tell + "; since {graphs} graphs, device {device:+.0f} MiB, host {host:+.0f}".format(**flat)


def started(name, argv):
    """A program in the background, and where its ledger lies."""
    folder = WORK / f"fix-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment(folder, True, False, GROWS), start_new_session=True)
    return process, Typed(folder)


def cure(name, process, user, wanted, threads, group=GROUP):
    folder, problems, detail, pid = user.folder, [], "", process.pid
    try:
        named = lambda said: any(line.strip().startswith("who") and wanted in line for line in said.splitlines())
        user.until(f"gpumem leaks {pid}", lambda said: "grows steadily" in said and named(said))
        first = growing = now(folder, pid)
        limit = time.monotonic() + PATIENCE
        while growing["handles"] < first["handles"] + 200 and time.monotonic() < limit:
            time.sleep(1)
            growing = now(folder, pid)
        growing = more(first, growing)
        line = pasted(user.until(f"gpumem doctor {pid}", lambda said: "run: gpumem set" in said))
        user(line)
        bound = int(line.rpartition("=")[2])
        limit, samples = time.monotonic() + PATIENCE_BOUND, []
        # Until the bound is reached they may become more.
        while (at := now(folder, pid))["real"] > bound or at["handles"] < bound + 100:
            if time.monotonic() > limit:
                raise RuntimeError(f"{at['real']} real execs, {at['handles']} handles {PATIENCE_BOUND} s after it was set to {bound}")
            time.sleep(0.2)
        time.sleep(1)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            samples.append(now(folder, pid))
            time.sleep(0.5)
        problems, detail = judge(growing, samples, bound, threads)
        record({"group": group, "name": f"{name}-samples", "samples": samples})
        user(f"gpumem stats {pid}")
        if process.poll() is not None:
            problems.append(f"the program ended with {process.returncode}")
    except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        problems = [str(error)[:280]]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        (OUT / f"{group}-{name}.txt").write_text("\n".join(user.text))
    errors = folder / "stderr"
    if problems and errors.exists():
        problems.append(errors.read_text(errors="replace").strip()[-120:])
    return verdict(group, name, problems, detail)


def demo():
    program = BUILD / "programs" / "demo"
    arguments = ["--slots", SLOTS, "--never-evict", "--shapes", 100000, "--nodes", 40, "--prefill", 0, "--kv", 1, "--weights", 1]
    return cure("demo", *started("demo", [program, *arguments, "--seconds", 600]), "instantiate rt.h", SLOTS)


def torch():
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        print("skip fix/torch no PyTorch")
        return True
    return cure("torch", *started("torch", [sys.executable, HERE / "programs/py" / "fix_graphs.py", 600]), "fix_graphs.py", 1)


def llama(name="llama", program="LLAMA_SERVER", model=("LLAMA_MODEL",), group=GROUP, says=None):
    from llama_server import Server, prompt
    found = there(group, name, program, model)
    if not found:
        return found is None
    if not (BUILD / "libforgets.so").exists():
        return verdict(group, name, ["libforgets.so was not built"])
    over = threading.Event()
    env = {**GROWS, "LD_PRELOAD": f"{BUILD / 'libforgets.so'}:{SO}"}
    server = Server(f"{group}-{name}", True, env=env, program=path_of(program), model=path_of(*model)).ready()

    def client(number):
        rng = random.Random(number)
        while not over.is_set():
            try:
                server.complete(prompt(rng, rng.randint(1, 60)), rng.randint(4, 60))
            except (OSError, ValueError):
                over.set()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in clients:
        thread.start()
    try:
        user = Typed(server.folder)
        user.text.append(f"$ {' '.join(f'{name}={value}' for name, value in env.items())} {program}\n")
        held = cure(name, server.process, user, "ggml", 1, group)
        if says:
            says(user)
        return held
    finally:
        over.set()
        for thread in clients:
            thread.join()
        server.stop()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    programs = {"demo": demo, "torch": torch, "llama": llama}
    sys.exit(0 if all([programs[name]() for name in sys.argv[1:] or programs]) else 1)


if __name__ == "__main__":
    main()
