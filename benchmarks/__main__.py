"""All benchmarks, one after the other, or those that are named: ``python -m benchmarks [name ...]``.

Each file compares this library with the textbook version in one process. Times on a shared machine drift, so
the versions take turns, and their ratio is reported. At the end stands one table of all ratios. With the name
``peers`` all benchmarks with ratios to official and textbook versions run, and their table is also stored
(:mod:`._rows`).
"""

import importlib
import os
import platform
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # numpy and torch read these variables on import

import torch  # noqa: E402

# benchmarks that return rows of the table
PEERS = (
    "attention_descent",
    "max_margin",
    "nuclear_max_margin",
    "mcr2_loss",
    "coding_rate",
    "crate_step",
    "scan_snap_sgd",
    "redunet",
)
# commands of their own, which measure no time
APART = ("margins", "readability", "real_network", "same_numbers", "second_route", "second_run", "size")
NAMES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if not path.stem.startswith("_") and path.stem not in APART
)


def processor() -> str:
    """Returns the name of the processor: on Linux from /proc/cpuinfo, otherwise from Python's platform
    module.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def header(used: int = 1) -> str:
    """Returns two lines with the date, the machine, the cores that are used and the versions."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC · {processor()}, {os.cpu_count()} cores, "
        f"{used} used{load}\n"
        f"{platform.system()} {platform.machine()} · Python {platform.python_version()} · torch "
        f"{torch.__version__}"
    )


def main(names: list[str]) -> int:
    """Runs the named benchmarks, or all of them, and returns the exit status: 0, 1 if a benchmark failed, 2
    if a name is unknown.

    If a name is unknown, no benchmark runs.
    """
    if unknown := [name for name in names if name not in (*NAMES, "peers")]:
        print(f"unknown benchmark {unknown[0]!r}; there are: peers, {', '.join(NAMES)}", file=sys.stderr)
        return 2
    from benchmarks._rows import store, table  # it imports numpy

    torch.set_num_threads(1)
    machine = header()
    print(machine)
    failed, rows = [], []
    for name in PEERS if names == ["peers"] else names or NAMES:
        started = time.perf_counter()
        print(f"\n{name}", flush=True)
        try:
            found = importlib.import_module(f"benchmarks.{name}").main() or []
            rows += [replace(row, command=name) for row in found]
        except Exception:  # the other benchmarks still run; the exit status is 1
            traceback.print_exc()
            failed.append(name)
        print(f"({time.perf_counter() - started:.0f} s)", flush=True)
    if rows:
        print(f"\n{table(rows)}")
    if names == ["peers"] and not failed:
        store(rows, machine)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
