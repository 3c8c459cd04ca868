"""Outputs folded into one printed line, so that two runs of a program can be compared."""
import hashlib

import numpy as np

_state = hashlib.sha256()


def _fold(state, arrays):
    for array in arrays:
        array = np.ascontiguousarray(np.asarray(array))
        state.update(f"{array.shape}{array.dtype}".encode())
        state.update(array.tobytes())


def add(*arrays):
    """Folds arrays (or anything numpy turns into one) into the digest: shape, type and bytes."""
    _fold(_state, arrays)


def of(*arrays):
    """The digest of these alone."""
    state = hashlib.sha256()
    _fold(state, arrays)
    return state.hexdigest()


def hexdigest():
    return _state.hexdigest()


def done():
    print("digest", hexdigest(), flush=True)
