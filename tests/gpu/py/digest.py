"""Outputs folded into one printed line, so that two runs of a program can be compared."""
import hashlib

import numpy as np

_state = hashlib.sha256()


def add(*arrays):
    """Folds arrays (or anything numpy turns into one) into the digest: shape, type and bytes."""
    for array in arrays:
        array = np.ascontiguousarray(np.asarray(array))
        _state.update(f"{array.shape}{array.dtype}".encode())
        _state.update(array.tobytes())


def hexdigest():
    return _state.hexdigest()


def done():
    print("digest", hexdigest(), flush=True)
