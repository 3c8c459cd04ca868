"""Programs that take turns on a card that cannot hold them all, by `gpumem share`.

    share.py      SHARE_GIB=30 SHARE_CARD_GIB=80 SHARE_PROGRAMS=3 SHARE_SECONDS=600

One program takes what the card has beyond SHARE_CARD_GIB. Then each of SHARE_PROGRAMS programs (programs/py/goes_on.py) takes SHARE_GIB and
makes one step when asked, by turns, for SHARE_SECONDS. Each answer must be right, and each program must answer. Printed: how long each
turn waited, what the service moved, and how long it takes to end and start such a program instead.
"""
import json
import os
import statistics
import subprocess
import sys
import time

from harness import CLI, HERE, WORK, Held, device_used, record, verdict

GROUP = "share"
GIB = 1 << 30
EACH = int(os.environ.get("SHARE_GIB", "30"))
CARD = int(os.environ.get("SHARE_CARD_GIB", "80"))
PROGRAMS = int(os.environ.get("SHARE_PROGRAMS", "3"))
SECONDS = float(os.environ.get("SHARE_SECONDS", "600"))
NAME = "turns"


def start(name, mode, gib, ledgers=None):
    env = {"GPUMEM_SHARE": NAME, "GPUMEM_DIR": str(ledgers)} if ledgers else None
    return Held(f"{GROUP}-{name}", mode, [sys.executable, HERE / "programs/py/goes_on.py", gib], preload=bool(ledgers), env=env)


def total():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    return int(out.split()[0]) * (1 << 20)


def restarted():
    """Seconds from the start of such a program to its first answer: what a proxy that ends and starts servers waits."""
    begin = time.monotonic()
    program = start("alone", "restarted", EACH)
    program.ask("step", 300)
    took = time.monotonic() - begin
    program.stop(5)
    return took


def main():
    ledgers = WORK / "share-ledgers"
    ledgers.mkdir(mode=0o700, parents=True, exist_ok=True)
    again = restarted()
    beyond = (total() - (device_used() or 0)) // GIB - CARD
    ballast = start("ballast", "holds", beyond) if beyond > 0 else None
    problems, waits, digests, programs, moved = [], [], {}, [], {}
    with open(WORK / "service.log", "wb") as log:
        service = subprocess.Popen([CLI, "--dir", str(ledgers), "share", NAME], stdout=log, stderr=log)
    try:
        if ballast:
            ballast.ask("step", 300)
        for at in range(PROGRAMS):
            begin = time.monotonic()
            programs.append(start("program", str(at), EACH, ledgers))
            digests[at] = int(programs[at].ask("step", 300)["digest"])
            print(f"     {GROUP}/program {at} has its memory after {time.monotonic() - begin:.1f} s", flush=True)
        begin, turn = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            at, asked = turn % PROGRAMS, time.monotonic()
            answer = int(programs[at].ask("step", 300)["digest"])
            waits.append(time.monotonic() - asked)
            if answer - digests[at] != 4 * EACH:
                problems.append(f"program {at}: {answer} after {digests[at]}")
            digests[at], turn = answer, turn + 1
            print(f"     {GROUP}/turn {turn}: program {at} waited {waits[-1]:.1f} s", flush=True)
        moved = json.loads((ledgers / f"{NAME}.share.json").read_text())
    except (RuntimeError, OSError, ValueError) as ended:
        problems.append(str(ended))
    for program in [*programs, ballast]:
        if program:
            program.process.kill()
    service.terminate()
    service.wait()
    if problems or not waits:
        print((WORK / "service.log").read_text()[-2000:])
    record({"group": GROUP, "waits": waits, "moved": moved, "restarted_s": again})
    detail = f"no turn in {SECONDS:.0f} s"
    if waits:
        detail = (f"{len(waits)} turns of {PROGRAMS} programs of {EACH} GiB on {CARD} GiB; waits {min(waits):.1f} to {max(waits):.1f} s, median "
                  f"{statistics.median(waits):.1f}; ended and started anew {again:.1f} s; parks {moved.get('parks')} in {moved.get('park_seconds', 0):.0f} s, "
                  f"resumes {moved.get('resumes')} in {moved.get('resume_seconds', 0):.0f} s, failed {moved.get('failed')}")
    return 0 if verdict(GROUP, "turns", problems if waits else [*problems, detail], detail) else 1


sys.exit(main())
