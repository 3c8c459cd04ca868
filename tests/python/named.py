"""Uses the module gpumem as a program does, under gpumem or without it; prints what it got as a line of JSON."""

import ctypes
import json
import os
import sys
import warnings

import gpumem

runtime = ctypes.CDLL("libcudart.so.13")


def allocate(size):
    pointer = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer.value


@gpumem.tag("weights")
def load():
    return allocate(3 << 20)


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    early = gpumem.mark("before any call of the GPU")
    weights = load()
    with gpumem.tag("model"):
        with gpumem.tag("kv-cache"):
            cache = allocate(1 << 20)
    try:
        with gpumem.tag("broken"):
            raise KeyError
    except KeyError:
        allocate(4096)
    gpumem.allocated("arena", cache, 512)
    gpumem.allocated("arena", cache + 512, 512)
    gpumem.freed("arena", cache)
    marks = [gpumem.mark("--half way"), gpumem.mark("done")]
    snapshots = [gpumem.snapshot(sys.argv[1]) for _ in range(2)]
    stats = [gpumem.stats() for _ in range(2)]
    refused = None
    try:
        gpumem.snapshot(os.path.join(sys.argv[1], "below", "a file"))
    except gpumem.Error as error:
        refused = str(error)

answer = {
    "loaded": gpumem.is_loaded(),
    "version": gpumem.__version__,
    "early": early,
    "marks": marks,
    "snapshot": snapshots[1],
    "stats": stats[1],
    "refused": refused,
    "warnings": [str(warning.message) for warning in caught],
    "places": sorted({os.path.basename(warning.filename) for warning in caught}),
}
print(json.dumps(answer), flush=True)
if "--wait" in sys.argv:
    sys.stdin.read()
