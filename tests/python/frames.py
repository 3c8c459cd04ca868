"""Allocates in random call shapes, and says which frames of Python each allocation was made in.

    frames.py SEED COUNT [THREADS]

Prints JSON: for each allocation, by its size, which no other one has, the frames as the interpreter itself tells them,
innermost first: name, file, line. Under the preload the ledger has to say the same.
"""
import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import random
import sys
import threading

SEED, COUNT = int(sys.argv[1]), int(sys.argv[2])
THREADS = int(sys.argv[3]) if len(sys.argv) > 3 else 1

# CDLL releases the GIL around each call, PyDLL does not.
CUDART = os.environ.get("CUDART", "libcudart.so.13")
CALLS = [kind(CUDART).cudaMalloc for kind in (ctypes.CDLL, ctypes.PyDLL)]
for call in CALLS:
    call.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)

told = {}
local = threading.local()
lock = threading.Lock()


def stack():
    """The frames of the caller, innermost first."""
    frame, frames = sys._getframe(1), []
    while frame is not None:
        frames.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames


def size():
    with lock:
        size.last += 1
        return size.last


size.last = 1000


def leaf():
    bytes, pointer = size(), ctypes.c_void_p()
    told[bytes], failed = stack(), random.choice(CALLS)(ctypes.byref(pointer), bytes)
    assert failed == 0
    return pointer


class Layer:
    def __init__(self, then):
        self.then = then

    def __call__(self):
        return self.forward()

    def forward(self):
        return self.then()

    @property
    def weight(self):
        return self.then()

    @staticmethod
    def static(then):
        return then()

    @classmethod
    def made(cls, then):
        return cls(then)()

    def __getattr__(self, name):
        return self.then()

    def __lt__(self, other):
        self.then()
        return False


def nested(then):
    def inner():
        def innermost():
            return then()

        return innermost()

    return inner()


def generated(then):
    def values():
        yield then()
        yield from more()

    def more():
        yield 1
        with contextlib.suppress(ValueError):
            yield then()

    return list(values())


def recursive(then, depth=4):
    return then() if depth == 0 else recursive(then, depth - 1)


def finally_(then):
    try:
        try:
            raise ValueError("planted")
        except ValueError:
            then()
    finally:
        then()


@contextlib.contextmanager
def manager(then):
    then()
    yield
    then()


def managed(then):
    with manager(then):
        pass


def coroutine(then):
    async def awaited():
        return then()

    async def run():
        return await awaited()

    try:
        run().send(None)
    except StopIteration as stop:
        return stop.value


def in_thread(then):
    thread = threading.Thread(target=then)
    thread.start()
    thread.join()


def event_loop(then):
    async def run():
        await asyncio.sleep(0)
        return then()

    # A loop inside another one needs a thread of its own.
    return in_thread(lambda: asyncio.run(run()))


def through_native(then):
    def called(_):
        then()
        return 0

    return CALLBACK(called)(1)


def wrapped(then):
    @functools.wraps(then)
    def wrapper(*args, **kwargs):
        return then(*args, **kwargs)

    return wrapper()


def executed(then):
    """Code that comes and goes: its addresses come back with other names, files and lines."""
    name = random.choice(["f", "g", "longer", "größe", "变量", "𐐀"]) + str(random.randrange(3))
    file = random.choice(["<made>", "/models/größe.py", "/models/变量.py", "x.py"])
    lines = "\n" * random.randrange(4) + "def " + name + "(then):\n" + "\n" * random.randrange(300)
    lines += "    return then(\n" + "\n" * random.randrange(2) + "    )\n"
    space = {}
    exec(compile(lines, file, "exec"), space)
    result = space[name](then)
    del space
    if random.random() < 0.1:
        gc.collect()
    return result


def class_body(then):
    class Body:
        value = then()

    return Body


def deep_line(then):
    # fmt: off
    return [
        None,


        then(),
    ]
    # fmt: on


class Initialised:
    def __init__(self, then):
        self.value = then()


def initialised(then):
    """Since 3.12 the interpreter runs __init__ from a frame of its own, once a call has been made a few times."""
    for _ in range(3):
        Initialised(then)


def collected(then):
    class Dying:
        def __del__(self):
            then()

    Dying()


SHAPES = [
    nested, generated, recursive, finally_, in_thread, managed, coroutine, event_loop, through_native, wrapped, executed,
    executed, executed, class_body, deep_line, collected, initialised,
    Layer.static, Layer.made,
    lambda then: Layer(then)(),
    lambda then: Layer(then).weight,
    lambda then: Layer(then).no_such_name,
    lambda then: sorted([Layer(then), Layer(then)]),
    lambda then: [then() for _ in range(2)],
    lambda then: {id(then()): None for _ in range(1)},
    lambda then: next(then() for _ in range(1)),
    lambda then: functools.reduce(lambda _, __: then(), range(2), None),
    lambda then: list(map(lambda _: then(), range(2))),
    lambda then: sorted([2, 1], key=lambda _: (then(), 0)[1]),
    lambda then: eval("then()", {"then": then}),
]


def shape(depth):
    """A call shape around another, and at last around an allocation."""
    if depth == 0:
        return leaf
    form, then = random.choice(SHAPES), shape(depth - 1)
    return lambda: form(then)


def run():
    while size.last < 1000 + COUNT:
        # What calls more than once does so at each depth.
        shape(random.randrange(7))()


def main():
    random.seed(SEED)
    # The recorded stacks are those of all that is not cut off: see GPUMEM_STACKS.
    sys.setrecursionlimit(10_000)
    threads = [threading.Thread(target=run) for _ in range(THREADS - 1)]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    json.dump({"version": sys.version.split()[0], "allocations": told}, sys.stdout)


main()
