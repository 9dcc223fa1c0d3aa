"""The memory of the machine: how much it has, and how much of it is free."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
# limit and use of the control group, version 2 and version 1
GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
UNKNOWN_MEMORY = 4 * 2**30


def memory() -> float:
    """Returns the memory of the machine, or of its control group if that has less, in bytes; infinity if the
    system reports neither.
    """
    limits = [float("inf")]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    for file, _ in GROUPS:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        limits.append(float(text) if text.isdigit() else float("inf"))
    return min(limits)


def free_memory() -> int:
    """Returns the bytes that are free on this machine.

    On Linux they are "MemAvailable" of the machine or what the control group still permits, if that is less.
    Other systems do not say what is free: half of the memory of the machine, or 4 GiB if that is unknown.
    """
    free = [size for size in (_machine_memory(), *_group_memory()) if size is not None]
    if free:
        return min(free)
    total = memory()
    return int(total / 2) if math.isfinite(total) else UNKNOWN_MEMORY


def _machine_memory() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if words is None else 1024 * int(words[1])


def _group_memory() -> Iterator[int]:
    """Yields what the limit of each control group leaves; file pages that the kernel can drop are free."""
    for limit, used in GROUPS:
        try:
            most, now = limit.read_text().strip(), int(used.read_text())
            stated = dict(line.split() for line in (used.parent / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most.isdigit():
            yield max(0, int(most) - now + int(stated.get("inactive_file", 0)))


def gib(size: float) -> str:
    """Returns a number of bytes as text in GiB: "0.0737 GiB", "1,400 GiB", "7.15e+11 GiB"."""
    value = size / 2**30
    return f"{value:.3g} GiB" if value < 1000 or value >= 1e6 else f"{value:,.0f} GiB"
