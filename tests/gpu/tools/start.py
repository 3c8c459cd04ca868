"""How long a short program takes from start to end: natively, under each library, and with it disabled, by turns.

  python3 tests/gpu/tools/start.py [--turns 81] [--command "PROGRAM ARGUMENT..."] LIBGPUMEM.SO...

Without --command it is short.c, built with cc. Each row: the median of the turns and the quartiles, in ms; what a library
adds to the native median; the median of the processor time, in ms; and how often the program's threads waited (voluntary
switches, the median).
On the simulator: LD_LIBRARY_PATH=a folder that tests/sim/stage.sh has filled. On a GPU: nothing is set.
"""
import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def turn(command, way, ledgers):
    """One run: seconds, seconds of processor time, voluntary switches."""
    library, disabled = way
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUMEM_") and name != "LD_PRELOAD"}
    env.update(GPUMEM_DIR=ledgers, GPUMEM_DISABLE=disabled, **({"LD_PRELOAD": library} if library else {}))
    begin = time.monotonic()
    pid = os.posix_spawn(command[0], command, env)
    _, status, used = os.wait4(pid, 0)
    took = time.monotonic() - begin
    if status:
        sys.exit(f"{' '.join(command)} with {library or 'no library'}: status {os.waitstatus_to_exitcode(status)}")
    return took, used.ru_utime + used.ru_stime, used.ru_nvcsw


def built(folder):
    """short.c, built there."""
    program = f"{folder}/short"
    subprocess.run(["cc", "-O1", "-o", program, Path(__file__).parent.parent / "programs/short.c", "-ldl"], check=True)
    return program


def by_turns(command, ways, turns, folder):
    """What each way's runs took, as turn() has it."""
    took = {way: [] for way in ways}
    for _ in range(turns + 2):
        for way in ways:
            took[way].append(turn(command, way, f"{folder}/ledgers-{ways.index(way)}"))
    # The first two turns warm up.
    return {way: runs[2:] for way, runs in took.items()}


def text(times, native):
    """The median of so many seconds and its quartiles, and what that is more than natively, in ms."""
    low, middle, high = (1e3 * seconds for seconds in statistics.quantiles(times, n=4))
    return f"{middle:8.2f} ms [{low:.2f} .. {high:.2f}]  {middle - 1e3 * statistics.median(native):+7.2f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=81)
    parser.add_argument("--command", type=shlex.split)
    parser.add_argument("library", nargs="+", type=os.path.abspath)
    asked = parser.parse_args()
    ways = [(None, "0"), *((library, disabled) for library in asked.library for disabled in "01")]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        took = by_turns(asked.command or [built(folder)], ways, asked.turns, folder)
    native = [seconds for seconds, _, _ in took[ways[0]]]
    for way, runs in took.items():
        times, busy, waits = zip(*runs)
        print(f"{text(times, native)}  {1e3 * statistics.median(busy):6.2f} ms busy"
              f"  {statistics.median(waits):3.0f} waits  {way[0] or 'native'}{', disabled' if way[1] == '1' else ''}")


if __name__ == "__main__":
    main()
