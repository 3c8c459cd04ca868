"""gpumem from Python: names for what a program does, and what gpumem sees of this very process.

Start the program under gpumem, since its library has to be there before any other:

    python -m gpumem run train.py

    with gpumem.tag("kv-cache"):
        cache = torch.empty(...)
    gpumem.mark("epoch 3")
    gpumem.snapshot("before.gpumem")

In a program that runs without gpumem, tag, mark, allocated and freed do nothing and say nothing, so that they can stay
in it for good. snapshot and stats return None there and warn, once in a process: who calls them waits for an answer.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import warnings

__all__ = ["Error", "allocated", "freed", "is_loaded", "mark", "snapshot", "stats", "tag"]

_HERE = os.path.dirname(os.path.abspath(__file__))
CLI = os.path.join(_HERE, "bin", "gpumem")
"""The program `gpumem` of this package."""
LIBRARY = os.path.join(_HERE, "lib", "libgpumem.so")
"""The library that `python -m gpumem run` preloads."""


class Error(RuntimeError):
    """What `gpumem` answered, where it could not do what was asked."""


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version("libgpumem")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _functions():
    """The functions of gpumem.h, of the library that this process was started with; None for each without it."""
    try:
        # The interpreter's lock is kept over a call: each is shorter than giving the lock up would be.
        process = ctypes.PyDLL(None)
        push, pop = process.gpumem_push_tag, process.gpumem_pop_tag
        report, free = process.gpumem_report_alloc, process.gpumem_report_free
    except (AttributeError, OSError):
        return None, None, None, None
    push.argtypes, pop.argtypes = [ctypes.c_char_p], []
    report.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    free.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    for function in (push, pop, report, free):
        function.restype = None
    return push, pop, report, free


_push, _pop, _report, _free = _functions()
_said = set()


def _say_once(what, above):
    """Warns at the line that called the function of this module so many calls above."""
    if what not in _said:
        _said.add(what)
        warnings.warn(what, RuntimeWarning, stacklevel=above + 2)


def is_loaded():
    """Whether this process was started under gpumem."""
    return _push is not None


def _bytes(text):
    return text.encode("utf-8", "replace")


class tag(contextlib.ContextDecorator):
    """What this thread allocates within carries the tag: `with gpumem.tag("weights"):`, or `@gpumem.tag("weights")`.

    Tags nest. They belong to the thread: what another task of the same event loop allocates at an `await` within
    carries the tag, too.
    """

    def __init__(self, name):
        self._name = _bytes(name)

    def __enter__(self):
        if _push is not None:
            _push(self._name)
        return self

    def __exit__(self, *_):
        if _pop is not None:
            _pop()
        return False


def allocated(pool, address, size):
    """Reports a part that the program's own allocator hands out: gpumem lists it, and counts it in no total."""
    if _report is not None:
        _report(_bytes(pool), address, size)


def freed(pool, address):
    """Takes back what `allocated` reported."""
    if _free is not None:
        _free(_bytes(pool), address)


def mark(name):
    """A named moment among the events of this process. True if it was marked.

    Takes about 10 ms, since it asks by the program `gpumem`. Before the first GPU call there is nothing to mark: False,
    and a warning, the first time.
    """
    if not is_loaded():
        return False
    try:
        _ask("mark", "--", name, str(os.getpid()))
    except Error as error:
        _say_once(f"gpumem.mark: {error}", 1)
        return False
    return True


def snapshot(path):
    """Saves what this process holds to a file, for `gpumem allocs FILE` and `gpumem diff FILE PID`.

    Returns what was saved, as a dict. A snapshot that was there is kept as PATH~. Raises Error where it fails.
    """
    if not _loaded_or_says("snapshot"):
        return None
    return _ask("dump", "-o", os.path.abspath(os.fspath(path)), str(os.getpid()))


def stats():
    """What `gpumem stats --json` says of this process, as a dict. Raises Error where it fails."""
    if not _loaded_or_says("stats"):
        return None
    return _ask("stats", str(os.getpid()))


def _loaded_or_says(name):
    if not is_loaded():
        _say_once(f"gpumem.{name}: this program runs without gpumem; start it by: python -m gpumem run SCRIPT", 2)
    return is_loaded()


def _ask(*words):
    """The answer of `gpumem`, which runs without the preload."""
    environment = dict(os.environ)
    preload = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    others = [library for library in preload if os.path.basename(library) != "libgpumem.so"]
    environment["LD_PRELOAD"] = ":".join(others)
    try:
        done = subprocess.run(
            [CLI, "--json", *words], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise Error(f"cannot run {CLI}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise Error(said or f"gpumem {words[0]} ended with {done.returncode}")
    return json.loads(done.stdout)
