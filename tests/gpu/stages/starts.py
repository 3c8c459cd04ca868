"""How often a program's calls answer an error that stays, natively and preloaded, in equal numbers and many at once.

    starts.py       STARTS_SECONDS=300 STARTS_AT_ONCE=8 STARTS_SEEDS=3400191..3400192 STARTS_CARDS=1 STARTS_FILE=…

A start is a process of `differ` that runs the programs of those seeds one after another (half of the starts: the last one alone).
Native and preloaded starts take turns, and so do the cards. Each start is a line of STARTS_FILE ($OUT/starts.jsonl); a later batch that is given the
same file goes on from there. It prints how many starts and programs there were, each error that stays by the operation it
answered, and the upper bound of its rate at 95 % confidence (Clopper and Pearson).
"""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

from harness import OUT, WORK, environment, verdict

DIFFER = pathlib.Path(os.environ["KIT"]) / "differ"
SECONDS = float(os.environ.get("STARTS_SECONDS", "300"))
AT_ONCE = int(os.environ.get("STARTS_AT_ONCE", "8"))
FIRST, LAST = map(int, os.environ.get("STARTS_SEEDS", "3400191..3400192").split(".."))
CARDS = int(os.environ.get("STARTS_CARDS", "1"))
FILE = pathlib.Path(os.environ.get("STARTS_FILE", OUT / "starts.jsonl"))
LIMIT = 120
# Errors after which every call answers the same: CUDA_ERROR_ILLEGAL_ADDRESS, LAUNCH_FAILED and their like.
STAY = re.compile(r"^\d+ (.*) = (70[0-9]|71[4-9]|999)\b")
MODES = ("native", "preloaded")
lock = threading.Lock()


def bound(seen, of):
    """The upper bound at 95 % of a rate of which `seen` in `of` were seen."""
    def at_most(rate):
        return sum(math.comb(of, k) * rate**k * (1 - rate) ** (of - k) for k in range(seen + 1))
    low, high = seen / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 0.05 else (low, middle)
    return high


def start(number, mode, programs):
    """Runs one start; what is written down of it."""
    folder = WORK / "starts" / f"{number}-{mode}"
    folder.mkdir(parents=True)
    env = environment(folder, mode == "preloaded", False, {"DIFFER_RUNTIME": "1", **({"CUDA_VISIBLE_DEVICES": str(number // 4 % CARDS)} if CARDS > 1 else {})})
    begin = time.monotonic()
    try:
        done = subprocess.run([DIFFER, "serve"], input="".join(f"{text}\n.\n" for text in programs), capture_output=True,
                              text=True, errors="replace", timeout=LIMIT, env=env)
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        status, out, err = "hung", (late.stdout or b"").decode(errors="replace"), (late.stderr or b"").decode(errors="replace")
    errors, at = [], 0
    for line in out.splitlines():
        at += line == "== end"
        if not any(found[0] == at for found in errors) and (found := STAY.match(line)):
            errors.append((at, found[1], int(found[2])))
    shutil.rmtree(folder)
    said = {"said": err[-300:]} if status or errors else {}
    return {"mode": mode, "programs": len(programs), "done": at, "status": status, "errors": errors,
            "seconds": round(time.monotonic() - begin, 2), **said}


def work(texts, numbers, end, file):
    while time.monotonic() < end:
        with lock:
            number = next(numbers)
        programs = texts if number % 2 else texts[-1:]
        for mode in MODES if number % 4 < 2 else reversed(MODES):
            told = json.dumps(start(number, mode, programs))
            with lock:
                print(told, file=file, flush=True)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    texts = [subprocess.run([DIFFER, "gen", "--seed", str(seed)], capture_output=True, text=True, check=True).stdout
             for seed in range(FIRST, LAST)]
    earlier = len(FILE.read_text().splitlines()) // len(MODES) if FILE.exists() else 0
    numbers, end = iter(range(earlier, 1 << 40)), time.monotonic() + SECONDS
    with open(FILE, "a", encoding="utf-8") as file:
        threads = [threading.Thread(target=work, args=(texts, numbers, end, file)) for _ in range(AT_ONCE)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    lines, problems = [json.loads(line) for line in FILE.read_text().splitlines()], []
    for mode in MODES:
        own = [line for line in lines if line["mode"] == mode]
        failed = [line for line in own if line["status"] or line["errors"]]
        programs = sum(line["programs"] for line in own)
        print(f"     starts/{mode} {len(own)} starts, {programs} programs, {len(failed)} with an error that stays or a status: at most "
              f"{bound(len(failed), len(own)) if own else 1:.2e} of the starts", flush=True)
        for line in failed[:5]:
            print(f"       {json.dumps(line)[:400]}", flush=True)
        if mode == "preloaded" and len(failed) > sum(1 for line in lines if line["mode"] == "native" and (line["status"] or line["errors"])):
            problems.append(f"{len(failed)} preloaded starts failed, more than natively")
    sys.exit(0 if verdict("starts", "errors-that-stay", problems, f"{len(lines)} starts") else 1)


main()
