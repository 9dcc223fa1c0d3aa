"""``python -m benchmarks.references [NAME ...]`` prints each reference number beside its recomputation;
without a name, all figures.
"""

import importlib
import os
import sys
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # numpy and torch read these variables on import

import torch  # noqa: E402

from benchmarks.references import NAMES, table  # noqa: E402


def main(names: list[str]) -> int:
    """Prints the references of the named figures, or of all; returns the exit status: 0, or 2 if a name is
    unknown.
    """
    if unknown := [name for name in names if name not in NAMES]:
        print(f"unknown figure {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    for name in names or NAMES:
        module, started = importlib.import_module(f"benchmarks.references.{name}"), time.process_time()
        print(
            f"{name}: {(module.__doc__ or '').splitlines()[0]}\n  {'quantity':<66} {'stored':>14} "
            f"{'computed':>14} {'difference':>10}"
        )
        for line in table(module.references()):
            print(line, flush=True)
        print(f"  ({time.process_time() - started:.0f} s of CPU)\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
