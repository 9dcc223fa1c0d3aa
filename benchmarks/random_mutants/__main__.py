"""``python -m benchmarks.random_mutants [THEORY ...]``: draws and runs the mutants that are not yet stored in
``docs/random_mutants.json``, and stores each outcome as it comes, so that a stopped run goes on.

``--again`` runs those that were not detected once more, after tests were added; their records say that they
were missed at first. ``--seed 49 --count 5 --page FILE`` judges another sample, against which no test was
written: that of ``docs/random_mutants_fresh.json``, which also has the shares that former ones had.
``--list`` shows the sample. ``core data probes report training --count 30 --page
docs/random_mutants_frame.json`` judges the parts that the theories stand on.
``--file FILE`` runs the mutants of a JSON file instead, a list of objects with name, theory, file, old, new
and what, where old must occur once in the file; nothing is stored.
"""

import argparse
import ast
import json
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.__main__ import header
from transformer_theory.core.files import replacing
from transformer_theory.theories import THEORIES

from . import COUNT, FRAME, SEED, Mutant, sample
from .operators import FUNCTIONS, Change, names_bound, qualified
from .runs import SEEDS, Copy, Record

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "random_mutants.json"
EQUIVALENT = Path(__file__).with_name("equivalent.json")
RECORDINGS = ROOT / "runs" / "random_mutants"
DETECTED = ("claims", "tests")
PARTS = (*THEORIES, *FRAME)


def read(file: Path, root: Path = ROOT) -> list[Mutant]:
    """Reads mutants from a JSON file. Those whose old text does not occur exactly once in their file are left
    out and named.
    """
    found = []
    for one in json.loads(file.read_text(encoding="utf-8")):
        text = (root / one["file"]).read_text(encoding="utf-8")
        if (count := text.count(one["old"])) != 1:
            print(f"left out: {one['name']}, {one['old']!r} must occur once in {one['file']}, got {count}")
            continue
        place = text.index(one["old"])
        start = len(text[:place].encode())
        # the first line may end before the expression that is changed
        line = text.count("\n", 0, place + len(one["old"]) - len(one["old"].lstrip())) + 1
        shown = text.split("\n")[line - 1].strip()
        function, bound = _around(text, line)
        end = start + len(one["old"].encode())
        change = Change(one["what"], function, bound, line, shown, one["old"], one["new"], start, end)
        found.append(Mutant(one["name"], one["theory"], one["file"], change))
    return found


def _around(text: str, line: int) -> tuple[str, tuple[str, ...]]:
    """Returns the qualified name of the innermost function around a line, "" outside of functions, and the
    names that are bound there.
    """
    tree = ast.parse(text)
    names, statements = qualified(tree), (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    around = [
        node for node in statements if node.lineno <= line <= (node.end_lineno or 0)
    ]  # outer ones first
    if functions := [names[node] for node in around if isinstance(node, FUNCTIONS)]:
        return functions[-1], ()
    return "", tuple(name for node in around for name in names_bound(node))


def key(record: dict[str, Any]) -> tuple[str, ...]:
    """Returns what identifies a mutant in the list of equivalent ones."""
    return tuple(record[name] for name in ("file", "function", "text", "old", "new"))


def records_of(mutants: Iterable[Mutant]) -> dict[str, dict[str, Any]]:
    """Returns the description of each mutant as it is stored, by name."""
    return {
        one.name: {"name": one.name, "theory": one.theory, "file": one.file}
        | {name: value for name, value in asdict(one.change).items() if name not in ("bound", "start", "end")}
        for one in mutants
    }


def shown(record: dict[str, Any]) -> str:
    """Returns one line about a mutant."""
    place = f"{record['file'].removeprefix('transformer_theory/').removeprefix('theories/')}:{record['line']}"
    change = f"{record['old']} -> {record['new'] or '(left out)'}"
    return f"{record['theory']:16s} {place}  {record['operator']}: {' '.join(change.split())}"


class Runner:
    """Judges mutants in one or two processes, each in a copy of its own."""

    def __init__(self, folder: Path, workers: int, seconds: float, source: Path = ROOT):
        self.copies: queue.Queue[Copy] = queue.Queue()
        for number in range(workers):
            (root := folder / str(number)).mkdir()
            self.copies.put(Copy.of(source, root, seconds=seconds))
        self.workers = workers

    def close(self) -> None:
        """Ends the processes."""
        while not self.copies.empty():
            self.copies.get().close()

    def recording(self, theory: str) -> tuple[Record, Record]:
        copy = self.copies.get()
        try:
            return copy.recording(theory, RECORDINGS / f"{'frame' if theory in FRAME else theory}.json")
        finally:
            self.copies.put(copy)

    def judge(self, mutants: Sequence[Mutant], recording: tuple[Record, Record]) -> Iterable[dict[str, Any]]:
        """Yields the outcomes in the order of the mutants."""

        def one(mutant: Mutant) -> dict[str, Any]:
            copy = self.copies.get()
            try:
                started = time.monotonic()
                outcome = asdict(copy.judge(mutant, recording))
                return outcome | {"seconds": round(time.monotonic() - started, 1)}
            finally:
                self.copies.put(copy)

        with ThreadPoolExecutor(self.workers) as pool:
            yield from pool.map(one, mutants)


def store(
    page: Path,
    records: Iterable[dict[str, Any]],
    seed: int,
    former: Sequence[dict[str, int]] = (),
    *,
    workers: int = 1,
) -> None:
    """Writes all records, sorted by theory and place, with the proofs of the equivalent ones.

    Args:
        page: JSON file.
        records: of all mutants.
        seed: seed of the sample.
        former: of former samples of this page, their seed, number of mutants, and how many were detected.
        workers: processes that ran the mutants, one core each.
    """
    proofs = {key(one): one["proof"] for one in json.loads(EQUIVALENT.read_text(encoding="utf-8"))}
    found = []
    for record in records:
        if record["outcome"] not in DETECTED and key(record) in proofs:
            record = record | {"outcome": "equivalent", "by": proofs[key(record)]}
        elif record["outcome"] == "equivalent":  # its proof was taken back
            record = record | {"outcome": "undetected", "by": ""}
        found.append(record)
    found.sort(key=lambda one: (PARTS.index(one["theory"]), one["file"], one["line"], one["name"]))
    stored = {"made": header(workers).splitlines(), "seed": seed, "seeds": list(SEEDS), "mutants": found}
    if former:
        stored["former"] = list(former)
    with replacing(page) as draft:
        draft.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Runs the mutants of the named theories and stores their outcomes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_mutants",
        description="writes random errors and runs claims and tests",
    )
    parser.add_argument(
        "theories", nargs="*", metavar="THEORY", help="or a part of the frame; default: all theories"
    )
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), help="processes (default 1)")
    parser.add_argument("--count", type=int, default=COUNT, help=f"mutants of each theory (default {COUNT})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of the sample (default {SEED})")
    parser.add_argument(
        "--seconds", type=float, default=300, help="time of the tests of a mutant (default 300)"
    )
    parser.add_argument("--again", action="store_true", help="run those that were not detected once more")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the outcomes, of another sample")
    parser.add_argument("--list", action="store_true", help="show the sample and run nothing")
    parser.add_argument("--file", type=Path, help="mutants of a JSON file instead of the sample")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.theories if name not in PARTS]:
        parser.error(f"unknown theory {unknown[0]!r}; there are: {', '.join(PARTS)}")
    names = tuple(options.theories) or THEORIES
    if options.file:
        listed = read(options.file)
        drawn = {name: [one for one in listed if one.theory == name] for name in names}
    else:
        drawn = {
            name: sample(ROOT, "transformer_theory", name, options.count, seed=options.seed) for name in names
        }
    if options.list:
        for record in records_of(one for part in drawn.values() for one in part).values():
            print(
                f"{record['name']}  {shown(record)}\n    {record['function'] or 'module'}: {record['text']}"
            )
        return 0
    page = options.page
    stored = json.loads(page.read_text(encoding="utf-8")) if page.exists() and not options.file else {}
    if stored.get("seed", options.seed) != options.seed:
        parser.error(
            f"{page.name} holds the sample of seed {stored['seed']}; name another page for another sample"
        )
    kept = {
        one["name"]: one
        for one in stored.get("mutants", ())
        if one["outcome"] in (*DETECTED, "equivalent") or not options.again or one["theory"] not in names
    }
    former = stored.get("former", ())
    missed = {one["name"] for one in stored.get("mutants", ()) if one["name"] not in kept}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runner = Runner(Path(folder), options.workers, options.seconds)
        stack.callback(runner.close)
        for name, mutants in drawn.items():
            records = records_of(mutants)
            # a record of a place that moved keeps its outcome, one that is no longer drawn goes
            kept = {
                one: record | records.get(one, {})
                for one, record in kept.items()
                if record["theory"] != name or one in records
            }
            open_ = [one for one in mutants if one.name not in kept]
            if open_:
                recording = runner.recording(name)
            for mutant, outcome in zip(open_, runner.judge(open_, recording) if open_ else ()):
                record = records[mutant.name] | outcome
                if mutant.name in missed:
                    record["missed"] = True
                kept[mutant.name] = record
                print(f"{record['outcome']:10s}  {shown(record)}  [{record['by']}]", flush=True)
                if not options.file:
                    store(page, kept.values(), options.seed, former, workers=options.workers)
    if not options.file:
        store(
            page, kept.values(), options.seed, former, workers=options.workers
        )  # with the proofs as they are now
    for name in drawn:
        counts = Counter(one["outcome"] for one in kept.values() if one["theory"] == name)
        if counts:
            print(f"{name}: {', '.join(f'{counts[each]} {each}' for each in sorted(counts))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
