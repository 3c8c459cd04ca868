"""Programs that are parked between their steps: what they answer, what the card has meanwhile, and how long it takes.

    park.py [PROGRAM...]      PARK_ROUNDS=10 PARK_NATIVE_ROUNDS=3

Each program (programs/py/goes_on.py, llama-server) runs without being parked, and then natively and preloaded with `gpumem park` and
`gpumem resume` around each step. Its answers must be the same, NVML must not list it while it is parked, and the card's used memory
must fall by what NVML counted for it. Then the time of sizes (1, 12 and 40 GiB), and the host memory that the copy takes.
"""
import json
import os
import subprocess
import sys
import time

from harness import CLI, HERE, WORK, Held, device_used, host_mib, path_of, record, verdict
from memory import DEVICES

GROUP = "park"
MIB = 1 << 20
ROUNDS = int(os.environ.get("PARK_ROUNDS", "10"))
NATIVE_ROUNDS = int(os.environ.get("PARK_NATIVE_ROUNDS", "3"))
SIZES = ("1", "12", "40")
# What a card has in use beside a program varies by this, MiB.
NOISE = 64


class Server:
    """llama-server, as a held program: a step is one answer without randomness."""

    def __init__(self, mode, preload):
        from llama_server import Server as Llama
        self.server = Llama(f"park-{mode}", preload)
        self.server.ready()
        self.process = self.server.process

    def ask(self, *_):
        # The same text always: a difference shows at once.
        return {"digest": self.server.complete("Once upon a time", 24)["content"]}

    def stop(self, _=0):
        return self.server.stop()


def start(name, mode, preload):
    if name == "llama-server":
        return Server(mode, preload)
    return Held(f"{GROUP}-{name}", mode, [sys.executable, HERE / "programs/py/goes_on.py", name], preload=preload)


def gpumem(*words):
    """The answer of a command, as JSON; RuntimeError with what it says if it fails."""
    done = subprocess.run([CLI, "--json", "--dir", str(WORK / "park-notes"), *map(str, words)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"gpumem {words[0]}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def parked(program, problems):
    """Parks a program, looks at the card, and resumes it; seconds and bytes."""
    pid = program.process.pid
    before, counted, host = device_used(), DEVICES.mib(pid), host_mib(pid)
    begin = time.monotonic()
    said = gpumem("park", pid)
    middle = time.monotonic()
    used = device_used()
    if DEVICES.mib(pid):
        problems.append(f"NVML lists it with {DEVICES.mib(pid)} MiB while it is parked")
    if counted and abs((before - used) / MIB - counted) > NOISE:
        problems.append(f"the card's used memory fell by {(before - used) / MIB:.0f} MiB, NVML counted {counted:.0f}")
    grown = (host_mib(pid) or 0) - (host or 0)
    again = time.monotonic()
    gpumem("resume", pid)
    return {"park_s": middle - begin, "resume_s": time.monotonic() - again, "driver_park_s": said["processes"][0]["park_seconds"],
            "mib": counted, "host_mib": grown}


def rounds_of(name, mode, preload, count, expected):
    """Runs a program with a park around each step."""
    problems, times, digests = [], [], []
    program = start(name, mode, preload)
    try:
        digests.append(program.ask("step", 300)["digest"])
        for _ in range(count):
            times.append(parked(program, problems))
            digests.append(program.ask("step", 300)["digest"])
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as ended:
        problems.append(str(ended))
    program.stop(5)
    if digests != expected[:len(digests)]:
        at = next(i for i, (a, b) in enumerate(zip(digests, expected)) if a != b)
        problems.append(f"answer {at} is {digests[at]}, and {expected[at]} without parking")
    record({"group": GROUP, "name": name, "mode": mode, "rounds": times})
    last = times[-1] if times else {}
    detail = ", ".join(f"{key} {value:.2f}" for key, value in last.items() if value is not None)
    return verdict(GROUP, f"{name}/{mode}", problems, f"{len(times)} rounds; the last: {detail}")


def unparked(name):
    """The answers of a program that is never parked."""
    program = start(name, "unparked", False)
    try:
        steps = max(ROUNDS, NATIVE_ROUNDS) + 1
        return [program.ask("step", 300)["digest"] for _ in range(steps)]
    finally:
        program.stop(5)


def size(gib):
    """Times a program of so many GiB."""
    problems = []
    program = start(gib, "size", False)
    try:
        first = program.ask("step", 120)["digest"]
        took = parked(program, problems)
        second = program.ask("step", 120)["digest"]
        if int(second) - int(first) != 4 * int(gib):
            problems.append(f"{first}, then {second}")
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as ended:
        return verdict(GROUP, f"{gib} GiB", [str(ended)])
    finally:
        program.stop(5)
    rate = float(gib) / took["driver_park_s"]
    detail = f"park {took['park_s']:.1f} s ({took['driver_park_s']:.1f} in the driver, {rate:.1f} GiB/s), resume {took['resume_s']:.1f} s, host + {took['host_mib']:.0f} MiB"
    return verdict(GROUP, f"{gib} GiB", problems, detail, **took)


def main():
    (WORK / "park-notes").mkdir(mode=0o700, parents=True, exist_ok=True)
    names = sys.argv[1:] or ["torch", "graphs", "compile", "cupy", "jax", *SIZES]
    if not sys.argv[1:] and path_of("LLAMA_SERVER") and path_of("LLAMA_MODEL"):
        names.insert(0, "llama-server")
    good = []
    for name in names:
        if name.isdigit():
            good.append(size(name))
            continue
        try:
            expected = unparked(name)
        except (RuntimeError, OSError) as ended:
            print(f"skip {GROUP}/{name} {str(ended)[-160:]}", flush=True)
            continue
        good.append(rounds_of(name, "native", False, NATIVE_ROUNDS, expected))
        good.append(rounds_of(name, "preloaded", True, ROUNDS, expected))
    return 0 if all(good) else 1


sys.exit(main())
