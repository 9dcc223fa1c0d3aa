"""All benchmarks, one after the other: ``python -m benchmarks [name ...]``.

Each file compares our version with the textbook version in one process. Times on a shared machine drift, so the versions take turns and
their ratio is reported.
"""

import importlib
import os
import platform
import sys
import time
import traceback
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # numpy and torch read them when they are loaded

import torch  # noqa: E402

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def processor() -> str:
    """The name of the processor, as Linux knows it; what Python knows elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def header() -> str:
    """Date, machine and versions of a measurement."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC · {processor()}, {os.cpu_count()} cores, 1 used{load}\n"
        f"{platform.system()} {platform.machine()} · Python {platform.python_version()} · torch {torch.__version__}"
    )


def main(names: list[str]) -> int:
    """Runs the named benchmarks, or all. Returns the exit status: 1 if one failed, 2 if a name is unknown (then none runs)."""
    if unknown := [name for name in names if name not in NAMES]:
        print(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    print(header())
    failed = []
    for name in names or NAMES:
        started = time.perf_counter()
        print(f"\n{name}", flush=True)
        try:
            importlib.import_module(f"benchmarks.{name}").main()
        except Exception:  # the others still run; the exit status is 1
            traceback.print_exc()
            failed.append(name)
        print(f"({time.perf_counter() - started:.0f} s)", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
