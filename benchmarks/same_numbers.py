"""Do two versions of this library compute the same numbers? For changes of form that must keep every number.

    python -m benchmarks.same_numbers store old.jsonl                # in the old version
    python -m benchmarks.same_numbers store new.jsonl                # in the new version
    python -m benchmarks.same_numbers compare old.jsonl new.jsonl    # exit status 1 if a number differs

``--parts figures --only attention_svm.rank`` limits both commands. The parts are:

- claims: every claim with its texts; for quick claims the evidence of check and control on three seeds;
- reach: the rows and the description of all ladders, as ``transformer-theory reach --quick`` measures them;
- demo: the rows of ``transformer-theory compare --data digits`` without the claims;
- figures: the rows, settings and arrays of every experiment with its quick settings.

A file has one JSON record per line and item (a claim, a theory, an experiment). An interrupted ``store``
continues with the items that are missing; items that were stored by other sources of the library are
computed again. How files are compared: :mod:`._number_differences`.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # numpy and torch read these variables on import

import torch  # noqa: E402

import transformer_theory as tt  # noqa: E402

PARTS = ("claims", "reach", "demo", "figures")
SEEDS = range(3)  # of claims
REACH_SEEDS, UNTIL = range(2), ("full block", "relaxed encoding")  # of `transformer-theory reach --quick`
RESULT = "(result)"  # the item that holds the settings and the arrays of a run of all theories
CLAIM_TEXTS = ("statement", "measures", "assumptions", "control_description", "corrects", "cost")
EVIDENCE = ("value", "threshold", "op", "converged", "covered", "detail", "note")
Record = dict[str, Any]


# Computation. Everything that reads the library's objects is here.


def row_of(row: Any) -> Record:
    """Returns a measurement of either version as JSON values with ``at`` and ``nulls``."""
    names = [
        field.name
        for field in dataclasses.fields(row)
        if field.name not in ("setting", "at", "null", "nulls")
    ]
    stored = {name: _plain(getattr(row, name)) for name in names}
    at = getattr(row, "at", None)
    stored["at"] = {"setting": row.setting} if at is None and row.setting else _plain(dict(at or {}))
    nulls = getattr(row, "nulls", None)
    nulls = ([] if row.null is None else [row.null]) if nulls is None else nulls
    stored["nulls"] = [{"kind": null.kind, "draws": list(null.draws)} for null in nulls]
    for null, record in zip(nulls, stored["nulls"]):
        # The value beside which the draws stand, if it is not that of the row, is a field of later versions.
        if (value := getattr(null, "value", None)) is not None and value != row.value:
            record["value"] = _plain(value)
    return stored


def _plain(value: Any) -> Any:
    """Returns JSON values: numbers of numpy and torch become numbers, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # a source
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if hasattr(value, "item") else value


def _content(rows: Iterable[Any], result: Any = None) -> Record:
    """Returns the rows of an item and, of a result, its settings and arrays."""
    stored: Record = {"rows": [row_of(row) for row in rows]}
    if result is not None:
        stored["settings"] = json.loads(json.dumps(result.settings))
        stored["arrays"] = {name: _digest(array) for name, array in result.arrays.items()}
    return stored


def _digest(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def claim_record(claim_id: str) -> Record:
    """Returns the texts of a claim, without line breaks, and the evidence on all seeds if it is quick."""
    claim = next(claim for theory in tt.list_theories() for claim in theory.claims if claim.id == claim_id)
    texts = {name: _plain(getattr(claim, name)) for name in CLAIM_TEXTS}
    words = {name: " ".join(text.split()) if isinstance(text, str) else text for name, text in texts.items()}
    record: Record = {"texts": words | {"source": _plain(claim.source)}}
    if claim.cost == "quick":
        outcomes = {str(seed): dict(zip(("check", "control"), claim.run(seed))) for seed in SEEDS}
        record["seeds"] = {
            seed: {
                kind: {name: _plain(getattr(found, name)) for name in EVIDENCE}
                for kind, found in both.items()
            }
            for seed, both in outcomes.items()
        }
    return record


def figure_record(name: str) -> Record:
    """Returns the rows, settings and arrays of an experiment with its quick settings."""
    kind = next(kind for theory in tt.list_theories() for kind in theory.experiments if kind.name == name)
    result = kind.quick().run(workers=1, progress=False)
    return _content(result.table, result)


def reach_result(only: Sequence[str], workers: int) -> Any:
    """Measures all ladders, or those of the chosen theories, on two seeds and up to the full block."""
    names = [theory.name for theory in tt.list_theories() if theory.ladder and chosen(theory.name, only)]
    return tt.reach(names, seeds=REACH_SEEDS, until=UNTIL, workers=workers, progress=False)


def demo_result(only: Sequence[str], workers: int) -> Any:
    """Compares all theories on the digits, without claims; fewer theories would not be the same run."""
    return tt.compare("digits", claim_seeds=0, workers=workers, progress=False)


def by_theory(result: Any) -> dict[str, Record]:
    """Divides a result into one item per theory, and one with the settings and arrays as the last."""
    names = dict.fromkeys(row.theory for row in result.table)
    items = {name: _content(row for row in result.table if row.theory == name) for name in names}
    return {**items, RESULT: _content((), result)}


def _computed(part: str, item: str) -> tuple[str, Record]:
    """Computes one item on one thread; an error is stored, so that the comparison shows it."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    try:
        record = {"claims": claim_record, "figures": figure_record}[part](item)
    except Exception as error:  # the other items still count
        record = {"error": f"{type(error).__name__}: {error}"}
    return item, record | {"seconds": round(time.perf_counter() - started, 2)}


def items_of(part: str) -> list[str]:
    """Returns the names of the claims or of the experiments."""
    theories = tt.list_theories()
    if part == "claims":
        return [claim.id for theory in theories for claim in theory.claims]
    return [kind.name for theory in theories for kind in theory.experiments]


# Storage.


def sources() -> str:
    """Returns a digest of the sources of the library."""
    digest = hashlib.sha256()
    for path in sorted(Path(tt.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read(path: Path) -> list[Record]:
    """Reads the records of a file. An unfinished last line, which an interruption leaves, is ignored."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def store(path: Path, parts: Sequence[str], only: Sequence[str], workers: int) -> None:
    """Computes the missing items of the parts and appends each to the file when it is done."""
    from joblib import Parallel, delayed

    version = sources()
    # Records of other sources and errors are dropped; the file is replaced at once.
    kept = [record for record in read(path) if record["sources"] == version and "error" not in record]
    draft = path.with_name(path.name + ".draft")
    draft.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
    draft.replace(path)
    done = {(record["part"], record["item"]) for record in kept}
    for part in parts:
        started = time.perf_counter()
        found: Iterable[tuple[str, Record]]
        if part in ("reach", "demo"):
            run = {"reach": reach_result, "demo": demo_result}[part]
            # The item (result) is stored last, and only if all theories were measured.
            items = {} if (part, RESULT) in done else by_theory(run(only, workers))
            found = [(item, record) for item, record in items.items() if chosen(item, only)]
        else:
            names = [name for name in items_of(part) if chosen(name, only) and (part, name) not in done]
            jobs = (delayed(_computed)(part, name) for name in names)
            found = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)(jobs)
        count = 0
        with path.open("a", encoding="utf-8") as file:
            for item, record in found:
                file.write(json.dumps({"part": part, "item": item, "sources": version} | record) + "\n")
                file.flush()
                count += 1
                if "error" in record:
                    print(f"{part} {item}: {record['error']}", file=sys.stderr, flush=True)
        print(f"{part}: {count} items in {time.perf_counter() - started:.0f} s", flush=True)


def chosen(item: str, only: Sequence[str]) -> bool:
    """Returns whether an item begins with one of the names; all do if there are none."""
    return not only or any(item.startswith(name) for name in only)


def main(words: Sequence[str] | None = None) -> int:
    """Runs one of the two commands and returns the exit status: 1 if there are differences."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    shared.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="items that begin with one of these names"
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_numbers")
    commands = parser.add_subparsers(dest="command", required=True)
    storing = commands.add_parser("store", parents=[shared], help="compute all numbers and store them")
    storing.add_argument("file", type=Path)
    storing.add_argument("--workers", type=int, default=2)
    comparing = commands.add_parser("compare", parents=[shared], help="print the differences of two files")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument(
        "--show-map", action="store_true", help="print the coordinates that differ, old and new"
    )
    comparing.add_argument("--all", action="store_true", help="print all differences")
    options = parser.parse_args(words)
    if options.command == "store":
        store(options.file, options.parts, options.only, options.workers)
        return 0
    from benchmarks._number_differences import SHOWN, compare

    shown = sys.maxsize if options.all else SHOWN
    return int(
        compare(options.old, options.new, options.parts, options.only, show_map=options.show_map, shown=shown)
        > 0
    )


if __name__ == "__main__":
    sys.exit(main())
