"""Makes the allocator of the C library keep the memory that is freed.

glibc maps large blocks anew at each request and returns them at once. A measurement requests and frees
attention maps of tens of MiB thousands of times, and the kernel then spends its time on clearing their pages.
"""

import ctypes
import os
import platform
from collections.abc import Callable

# numbers of glibc's malloc.h, and values in bytes; mallopt takes integers below 2 GiB
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = ((M_MMAP_THRESHOLD, 2**30), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26))
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> bool:
    """Makes glibc serve blocks up to 1 GiB from its heap and keep up to 2 GiB of freed memory for this
    process.

    Returns whether it did: other C libraries are left alone, and so are settings that the user has made in
    the environment.
    """
    chosen = any(name in os.environ for name in VARIABLES)
    if chosen or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = _of_glibc("mallopt")
    return mallopt is not None and all(mallopt(number, value) == 1 for number, value in SETTINGS)


def give_back_freed_memory() -> None:
    """Makes glibc return the memory that is freed to the system, as far as it lies in whole pages."""
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Returns a function of glibc; None with another C library, or if this one lacks it."""
    if platform.libc_ver()[0] != "glibc":
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
