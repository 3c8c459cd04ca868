"""compute-sanitizer's memcheck, where it is there: the guard is held beside it.

  COMPUTE_SANITIZER=file   (default: that of CUDA_HOME, of PATH, or of the wheel nvidia-cuda-sanitizer-api)
"""
import os
import pathlib
import re
import shutil
import sysconfig

from harness import WORK, run

_HOME = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
_WHEELS = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"


def _found():
    """The program, and why there is none."""
    if named := os.environ.get("COMPUTE_SANITIZER"):
        path = pathlib.Path(named)
        return (path.resolve(), "") if path.is_file() else (None, f"COMPUTE_SANITIZER: {named} is not there")
    all = [_HOME / "bin/compute-sanitizer", _HOME / "compute-sanitizer/compute-sanitizer", shutil.which("compute-sanitizer"),
           *sorted(_WHEELS.glob("*/compute-sanitizer/compute-sanitizer"))]
    path = next((pathlib.Path(path) for path in all if path and pathlib.Path(path).is_file()), None)
    return path, "" if path else "set COMPUTE_SANITIZER: there is none"


PROGRAM, MISSING = _found()


def command(log, argv, clean):
    """The command that runs a program under memcheck. In a clean program calls may be refused, which is no fault of its."""
    options = ["--tool", "memcheck", "--log-file", log, *(["--report-api-errors", "no"] if clean else [])]
    return [PROGRAM, *options, *argv]


def errors(log):
    """How many errors memcheck has told of; None where it did not come to say."""
    text = pathlib.Path(log).read_text(errors="replace") if pathlib.Path(log).exists() else ""
    counts = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    return sum(map(int, counts)) if counts else len(re.findall(r"=+ Invalid ", text)) or None


def check(name, argv, env=None, timeout=60, clean=False):
    """Runs a program under memcheck: its run, and how many errors were told; None without memcheck."""
    if not PROGRAM:
        return None, None
    log = WORK / name / "memcheck.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    done = run(name, "memcheck", command(log, argv, clean), env=env, timeout=timeout)
    return done, errors(log)
