"""``python -m benchmarks.mutants [THEORY ...] [--workers N]``: runs the mutants and stores the score as
``docs/mutants.json``.

If theories are named, the records of the others stay as they are.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    # numpy and torch read these variables on import; a process that forks must have one thread
    os.environ.setdefault(_name, "1")

import torch  # noqa: E402

from benchmarks.__main__ import header  # noqa: E402
from benchmarks.mutants import SEEDS, THEORIES, judge, mutants  # noqa: E402
from transformer_theory.core.files import replacing  # noqa: E402
from transformer_theory.theories import theory as theory_of  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "mutants.json"


def run(job: tuple[str, int]) -> dict[str, str]:
    """Judges one mutant in a process of its own, which has not run anything before."""
    name, number = job
    torch.set_num_threads(1)
    mutant = mutants(name)[number]
    outcome, by = judge(mutant, [claim for claim in theory_of(name).claims if claim.cost == "quick"])
    fields = {
        "theory": name,
        "function": mutant.function,
        "kind": mutant.kind,
        "description": mutant.description,
    }
    return {**fields, "outcome": outcome, "by": by}


def main(arguments: list[str]) -> int:
    """Runs the mutants of the named theories and stores the record."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description="perturbs the mathematics and runs the claims"
    )
    parser.add_argument(
        "theories", nargs="*", metavar="THEORY", help=f"any of {', '.join(THEORIES)}; default: all"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.theories if name not in THEORIES]:
        parser.error(f"unknown theory {unknown[0]!r}; there are: {', '.join(THEORIES)}")
    torch.set_num_threads(1)
    names = tuple(chosen.theories) or THEORIES
    jobs = [(name, number) for name in names for number in range(len(mutants(name)))]
    started, records = time.perf_counter(), []
    with multiprocessing.get_context("fork").Pool(chosen.workers, maxtasksperchild=1) as pool:
        for record in pool.imap(run, jobs):
            records.append(record)
            print(
                f"{record['outcome']:10s}  {record['theory']:15s} {record['description']}  [{record['by']}]",
                flush=True,
            )
    for name in names:
        counts = Counter(record["outcome"] for record in records if record["theory"] == name)
        different = counts.total() - counts["equivalent"]
        print(f"{name}: {counts['detected']} of {different} detected; {counts['equivalent']} equivalent")
    elapsed = time.perf_counter() - started
    print(
        f"{len(jobs)} mutants, seeds {', '.join(map(str, SEEDS))}, {elapsed:.0f} s in {chosen.workers} "
        "processes"
    )
    if names != THEORIES:
        before = json.loads(PAGE.read_text(encoding="utf-8"))
        elapsed = before["seconds"]  # of the last run of all theories
        records += [record for record in before["mutants"] if record["theory"] not in names]
        records.sort(key=lambda record: THEORIES.index(record["theory"]))
    stored = {
        "made": header().splitlines(),
        "seeds": list(SEEDS),
        "seconds": round(elapsed),
        "mutants": records,
    }
    with replacing(PAGE) as draft:
        draft.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
