"""Attacks the command line and prints what broke.

    python -m benchmarks.attack KIND [--seed N] [--count N] [--only TEXT] [--out FILE.json]

KIND is command_lines, files, flips, kills, writers, full_disk, identity, overwrite or all. A row has the
kind, the cases tried and failed, the time, and the outcomes where a kind counts them; below it stands each
failure with the commands that led to it. The exit code is 1 if something failed. The library under attack is
the one that ``import transformer_theory`` finds, so PYTHONPATH chooses it. Linux only; as root it also tries
device nodes and small file systems of its own.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, as in the commands

from . import common, fixtures

KINDS = ("command_lines", "files", "flips", "kills", "writers", "full_disk", "identity", "overwrite")


def main() -> int:
    """Runs the chosen kinds and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack", description="attack the command line"
    )
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("--seed", type=int, default=0, help="seed of all cases (default: 0)")
    parser.add_argument("--count", type=int, help="cases of each group (default: of each kind its own)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this text in their name")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the cases")
    parser.add_argument("--show", action="store_true", help="print each case when it ends")
    parser.add_argument("--out", type=Path, help="file for the rows and failures, as JSON")
    options = parser.parse_args()
    common.warm()
    place = Path(tempfile.mkdtemp(prefix="attack-"))
    print("| kind | tried | failed | time | outcomes |\n|---|---|---|---|---|", flush=True)
    tallies = []
    try:
        stores = fixtures.build(place)
        for kind in KINDS if options.kind == "all" else [options.kind]:
            module = importlib.import_module(f"{__package__}.{kind}")
            cases = module.cases(stores, options.seed, options.count or module.COUNT)
            tally = common.attempt(
                cases,
                kind,
                place,
                stores,
                seed=options.seed,
                only=options.only,
                keep=options.keep,
                show=options.show,
            )
            print(tally.row().encode("utf-8", "backslashreplace").decode(), flush=True)
            tallies.append(tally)
            if options.out:
                options.out.write_text(json.dumps([vars(tally) for tally in tallies], indent=1) + "\n")
    finally:
        if options.keep:
            print(f"the folders of the cases lie in {place}")
        else:
            shutil.rmtree(os.fsencode(place), ignore_errors=True)
    return int(any(tally.failed for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
