"""The parts of a process's device memory, as gpumem lists them, add up to NVML's count, alone on a card and beside neighbours.

    sums.py [PROGRAM...]      SUMS_NEIGHBOURS=15

Each program runs preloaded and pauses once it has all its memory. `gpumem stats` must have the count that NVML gives here,
parts and rest must add up to it, and the rest may be at most the larger of 16 MiB and 2 % of the count, with 50 MiB
or more of code of 48 MiB and 4 %. Then all programs again, at once, beside neighbours that allocate, free and load code
(programs/neighbour.c): the count of each is what it was alone, what is recorded too, and parts and rest add up.
"""
import concurrent.futures
import importlib.util
import os
import sys
import time

from harness import BUILD, HERE, Held, inspect, path_of, record, verdict
from memory import DEVICES

GROUP = "sums"
MIB = 1 << 20
NEIGHBOURS = int(os.environ.get("SUMS_NEIGHBOURS", "15"))
# The shim tells its idle bytes, and what it asked the driver, once a second.
SETTLE = 3
CODE = ("code", "first launches")
# What two runs of a program may differ by: pages of what the driver shares out.
SAME_MIB = 16


def python(name, module, **env):
    return module, [sys.executable, HERE / "programs/py" / "hold.py", name], env


PROGRAMS = {
    "demo": (None, [BUILD / "programs" / "demo", "--seconds", 5, "--slots", 4, "--hold", 120], {}),
    "cublas": (None, [BUILD / "gemm"], {"HOLD": "1"}),
    "local": (None, [BUILD / "local"], {"HOLD": "1"}),
    "torch-train": python("torch_train", "torch"),
    "torch-compile": python("torch_compile", "torch"),
    "torch-graphs": python("torch_graphs", "torch"),
    "torch-segments": python("torch_segments", "torch", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    "torch-async": python("torch_segments", "torch", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
    "cupy": python("cupy_arrays", "cupy"),
    "cupy-modules": python("cupy_modules", "cupy"),
    "jax": python("jax_jit", "jax"),
    "numba": python("numba_jit", "numba"),
}


class Server:
    """llama-server, as a held program."""

    def __init__(self, mode):
        from llama_server import Server as Llama, requests
        self.server = Llama(f"sums-{mode}", True)
        self.server.ready()
        for prompt in requests(1, 8):
            self.server.complete(*prompt)
        self.process = self.server.process

    def ledger(self):
        return self.server.ledger()

    def stop(self, _):
        return self.server.stop()


def held(name, mode):
    """Starts a program and waits for its pause."""
    if name == "llama-server":
        return Server(mode)
    _, argv, env = PROGRAMS[name]
    program = Held(f"{GROUP}-{name}", mode, argv, preload=True, env=env)
    try:
        program.answer(300)
    except RuntimeError:
        program.stop()
        raise
    return program


def mib(parts, wanted=lambda part: True):
    return sum(part["bytes"] for part in parts if wanted(part)) / MIB


def adds_up(said, counted):
    """The problems that an account has by itself, and its sums in a line."""
    parts, count, rest = said["parts"], said.get("counted_bytes"), said.get("rest_bytes")
    listed = ", ".join(f"{part['name']} {part['bytes'] / MIB:.1f}" for part in parts)
    if count is None or rest is None:
        return [f"not compared: {said.get('why')}"], listed
    problems = []
    if counted is None or abs(count / MIB - counted) > 0.01:
        problems.append(f"counted {count / MIB:.1f} MiB, NVML says {counted}")
    if sum(part["bytes"] for part in parts) + rest != count:
        problems.append("parts and rest do not add up")
    if min([rest, *(part["bytes"] for part in parts)]) < 0:
        problems.append("a part is negative")
    return problems, f"{count / MIB:.0f} MiB = {listed}, rest {rest / MIB:.1f}, left out {said['left_out_bytes'] / MIB:.1f}"


def asked(name, mode):
    """The account that gpumem gives of the first device of a program in its pause, its problems, and its sums in a line."""
    program = held(name, mode)
    try:
        time.sleep(SETTLE)
        said = inspect("stats", program.ledger())["devices"][0]["of_process"]
        counted = DEVICES.mib(program.process.pid)
    finally:
        program.stop(5)
    record({"group": GROUP, "name": f"{name}-{mode}-account", "said": said, "nvml_mib": counted})
    return said, *adds_up(said, counted)


def alone(name):
    """Judges a program that is alone on the card; its account."""
    try:
        said, problems, listed = asked(name, "alone")
    except RuntimeError as ended:
        verdict(GROUP, name, [str(ended)])
        return None
    code = mib(said["parts"], lambda part: part["name"] in CODE)
    share, least = (0.02, 16) if code < 50 else (0.04, 48)
    if not problems and said["rest_bytes"] / MIB > max(least, share * said["counted_bytes"] / MIB):
        problems.append(f"rest {said['rest_bytes'] / MIB:.1f} MiB")
    return said if verdict(GROUP, name, problems, listed) else None


def recorded(said):
    """What is recorded, without what our pool keeps for the moment."""
    return mib(said["parts"], lambda part: part["how"] == "recorded" and not part["name"].startswith("idle"))


def beside(name, before):
    """Judges a program beside others by its account from when it was alone."""
    said, problems, listed = asked(name, "beside")
    apart = (said.get("counted_bytes") or 0) / MIB - before["counted_bytes"] / MIB
    if abs(apart) > max(SAME_MIB, 0.02 * before["counted_bytes"] / MIB):
        problems.append(f"counted {apart:+.1f} MiB against alone")
    if abs(recorded(said) - recorded(before)) > 2:
        problems.append(f"recorded {recorded(said):.1f} MiB, alone {recorded(before):.1f}")
    return verdict(GROUP, f"{name} beside", problems, listed)


def here(name):
    module = PROGRAMS[name][0] if name in PROGRAMS else None
    missing = module if module and not importlib.util.find_spec(module) else None
    if name == "llama-server" and not (path_of("LLAMA_SERVER") and path_of("LLAMA_MODEL")):
        missing = "LLAMA_SERVER and LLAMA_MODEL"
    if missing:
        print(f"skip {GROUP}/{name} {missing} is missing", flush=True)
    return not missing


def main():
    if not DEVICES.library:
        print(f"skip {GROUP} NVML does not answer")
        return 0
    names = [name for name in sys.argv[1:] or [*PROGRAMS, "llama-server"] if here(name)]
    accounts = {name: alone(name) for name in names}
    neighbours = [Held(f"{GROUP}-neighbour", str(number), [BUILD / "neighbour", number]) for number in range(NEIGHBOURS)]
    for neighbour in neighbours:
        neighbour.answer()
    with concurrent.futures.ThreadPoolExecutor(len(names) or 1) as all_at_once:
        good = list(all_at_once.map(lambda name: accounts[name] is None or beside(name, accounts[name]), names))
    statuses = {neighbour.stop() for neighbour in neighbours}
    if NEIGHBOURS:
        good.append(verdict(GROUP, "neighbours", [] if statuses == {0} else [f"statuses {statuses}"], f"{NEIGHBOURS} to the end"))
    return 0 if all(good) and all(accounts.values()) else 1


sys.exit(main())
