"""Programs that take turns on a card that cannot hold them all, by `gpumem share`.

    share.py [programs] [llama-server] [managed]      SHARE_GIB=30 SHARE_CARD_GIB=80 SHARE_PROGRAMS=3 SHARE_SECONDS=600

One program takes what the card has beyond SHARE_CARD_GIB. Then each of SHARE_PROGRAMS programs takes SHARE_GIB and makes one step when
asked, by turns, for SHARE_SECONDS. Each answer must be right, and each program must answer. Printed: how long each turn waited, what the
service moved, and how long it takes to end and start such a program instead.

`programs` are those of programs/py/goes_on.py. `llama-server` are two servers (LLAMA_SERVER, LLAMA_MODEL; LLAMA_ARGS gives them their size,
SHARE_LLAMA_CARD_GIB what they share). `managed` moves SHARE_GIB of managed memory to the host and back: a program with more managed memory
than the card has free can hang the card, so this is one program and no turn.
"""
import json
import os
import statistics
import subprocess
import sys
import time

from harness import CLI, HERE, WORK, Held, device_used, path_of, record, verdict

GROUP = "share"
GIB = 1 << 30
EACH = int(os.environ.get("SHARE_GIB", "30"))
CARD = int(os.environ.get("SHARE_CARD_GIB", "80"))
PROGRAMS = int(os.environ.get("SHARE_PROGRAMS", "3"))
SECONDS = float(os.environ.get("SHARE_SECONDS", "600"))
LLAMA_CARD = int(os.environ.get("SHARE_LLAMA_CARD_GIB", "50"))
NAME = "turns"


class Program:
    """A program that holds EACH GiB; its digest grows by the same with each step."""

    def __init__(self, name, mode, ledgers=None, what=EACH):
        self.held = Held(f"{GROUP}-{name}", mode, [sys.executable, HERE / "programs/py/goes_on.py", what], preload=bool(ledgers), env=member(ledgers))
        self.process, self.last = self.held.process, None

    def step(self):
        """Returns why the answer is wrong; None if it is right."""
        digest = int(self.held.ask("step", 300)["digest"])
        before, self.last = self.last, digest
        return None if before is None or digest - before == 4 * EACH else f"{digest} after {before}"

    def end(self):
        self.process.kill()
        self.process.wait()


class LlamaServer:
    """A llama-server that is asked the same each time, without randomness."""

    answers = set()

    def __init__(self, name, mode, ledgers=None):
        from llama_server import Server
        self.server = Server(f"{GROUP}-{name}-{mode}", bool(ledgers), env=member(ledgers))
        self.server.ready(300)
        self.process = self.server.process

    def step(self):
        self.answers.add(self.server.complete("Once upon a time", 24)["content"])
        return None if len(self.answers) == 1 else f"answers differ: {self.answers}"

    def end(self):
        self.server.stop()


def member(ledgers):
    return {"GPUMEM_SHARE": NAME, "GPUMEM_DIR": str(ledgers)} if ledgers else None


def total():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    return int(out.split()[0]) * (1 << 20)


def restarted(kind):
    """Seconds from the start of such a program to its first answer, the second time: what a proxy that ends and starts servers waits."""
    for _ in range(2):
        begin = time.monotonic()
        program = kind("alone", "restarted")
        program.step()
        took = time.monotonic() - begin
        program.end()
    return took


def turns(name, kind, count, card):
    """Programs of a kind take turns on so many GiB of the card."""
    ledgers = WORK / f"share-ledgers-{name}"
    ledgers.mkdir(mode=0o700, parents=True, exist_ok=True)
    again = restarted(kind)
    beyond = (total() - (device_used() or 0)) // GIB - card
    ballast = Program("ballast", name, what=beyond) if beyond > 0 else None
    problems, waits, programs, moved = [], [], [], {}
    log = WORK / f"service-{name}.log"
    with open(log, "wb") as out:
        service = subprocess.Popen([CLI, "--dir", str(ledgers), "share", NAME], stdout=out, stderr=out)
    try:
        if ballast:
            ballast.step()
        for at in range(count):
            begin = time.monotonic()
            programs.append(kind(name, str(at), ledgers))
            programs[at].step()
            print(f"     {GROUP}/{name} {at} has its memory after {time.monotonic() - begin:.1f} s", flush=True)
        begin, turn = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            at, asked = turn % count, time.monotonic()
            if wrong := programs[at].step():
                problems.append(f"{name} {at}: {wrong}")
            waits.append(time.monotonic() - asked)
            turn += 1
            print(f"     {GROUP}/turn {turn}: {name} {at} waited {waits[-1]:.1f} s", flush=True)
        moved = json.loads((ledgers / f"{NAME}.share.json").read_text())
    except (RuntimeError, OSError, ValueError) as ended:
        problems.append(str(ended))
    for program in [*programs, ballast]:
        if program:
            program.process.kill()
    service.terminate()
    service.wait()
    if problems or not waits:
        print(log.read_text()[-2000:])
    record({"group": GROUP, "name": name, "waits": waits, "moved": moved, "restarted_s": again})
    detail = f"no turn in {SECONDS:.0f} s"
    if waits:
        detail = (f"{len(waits)} turns of {count} on {card} GiB; waits {min(waits):.1f} to {max(waits):.1f} s, median "
                  f"{statistics.median(waits):.1f}; ended and started anew {again:.1f} s; parks {moved.get('parks')} in {moved.get('park_seconds', 0):.0f} s, "
                  f"resumes {moved.get('resumes')} in {moved.get('resume_seconds', 0):.0f} s, {moved.get('parked_bytes', 0) / GIB:.0f} GiB parked, failed {moved.get('failed')}")
    return verdict(GROUP, name, problems if waits else [*problems, detail], detail)


def managed():
    """What the driver takes to move managed memory to the host and back, by its own faults."""
    try:
        program = Held(f"{GROUP}-managed", "managed", [sys.executable, HERE / "programs/py/goes_on.py", f"managed:{EACH}"])
        times = [program.ask("step", 300)["digest"] for _ in range(4)][1:]
        program.process.kill()
    except (RuntimeError, OSError) as ended:
        return verdict(GROUP, "managed", [str(ended)])
    out, back = (statistics.median(float(pair.split()[at]) for pair in times) for at in (0, 1))
    record({"group": GROUP, "name": "managed", "times": times})
    return verdict(GROUP, "managed", [], f"{EACH} GiB of managed memory: to the host {out:.1f} s, back by faults {back:.1f} s")


def main():
    names = sys.argv[1:] or ["programs", *(["llama-server"] if path_of("LLAMA_SERVER") and path_of("LLAMA_MODEL") else []), "managed"]
    of = {"programs": lambda: turns("programs", Program, PROGRAMS, CARD), "llama-server": lambda: turns("llama-server", LlamaServer, 2, LLAMA_CARD),
          "managed": managed}
    return 0 if all([of[name]() for name in names]) else 1


sys.exit(main())
