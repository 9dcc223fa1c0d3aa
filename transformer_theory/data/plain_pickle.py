"""Pickles that hold nothing but numbers and text: CIFAR's batches are pickles of Python 2, and a pickle may run any code when it is read.

Of the names a pickle can call up only three are known here, those that NumPy writes for an array of bytes, and each is a stand-in that
does no more than these files need; any other is refused before it runs.
"""

import io
import pickle
from typing import Any

import numpy as np

# whatever reading bytes at random was seen to raise, besides the errors that pickle documents
FAULTS = (pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, TypeError, ValueError)


def read_plain_pickle(blob: bytes) -> Any:
    """Numbers, text, lists, dicts and uint8 arrays out of a pickle; text of Python 2 is read as Latin-1.

    Raises:
        ValueError: it calls up anything else (the message names it), or is damaged or cut short.
    """
    try:
        return _Plain(io.BytesIO(blob), encoding="latin1").load()
    except _Refused:
        raise
    except FAULTS as error:
        raise ValueError("a damaged pickle, or one cut short") from error


class _Refused(ValueError):
    pass


class _Plain(pickle._Unpickler):  # the one in Python: the one in C sets up as much memory for its memo as a pickle names
    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy", "ndarray"): _ARRAY,
            ("numpy", "dtype"): _bytes_dtype,
            ("numpy.core.multiarray", "_reconstruct"): _empty_array,
            ("numpy._core.multiarray", "_reconstruct"): _empty_array,
            ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes for Python 2
        }
        if (module, name) not in known:
            raise _Refused(f"a pickle that calls up {module}.{name}, which is never run")
        return known[module, name]


_ARRAY = object()  # stands for the class, so that a pickle cannot ask it for an array of any size


def _empty_array(*asked: object) -> np.ndarray:
    """What NumPy's pickles start from, whatever is asked; the contents follow as the array's state, whose length NumPy checks."""
    return np.empty(0, np.uint8)


def _bytes_dtype(code: object, *flags: object) -> np.dtype:
    if code != "u1":
        raise _Refused(f"a pickle with an array of type {code!r} instead of uint8")
    return np.dtype(np.uint8)


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")
