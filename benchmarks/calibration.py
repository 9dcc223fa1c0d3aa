"""Calibration and power of the tests on data: ``python -m benchmarks calibration``.

On four kinds of noise (:mod:`._planted`) every quantity on data with a null is ranked among its draws. Of
these p-values at most 5 % should be 5 % or less. A headline on data with a planted effect of known size is
judged as the page judges, in a family as large as that of the demo, whose other members come from noise.

The run is one process and goes on where it was interrupted (``runs/calibration.jsonl``; delete it if the code
has changed). It writes ``docs/calibration.json``, and ``docs/calibration.md`` from it alone
(:mod:`._calibration_page`). ``python -m benchmarks.calibration`` writes the page anew from the
stored numbers. The part about networks is measured by :mod:`.network_calibration`, and kept here.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from transformer_theory import __version__
from transformer_theory.core.journal import Journal
from transformer_theory.core.judgement import OTHER_SIDE
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.statistics import DATA_DRAWS
from transformer_theory.core.theory import Theory, Unsupported
from transformer_theory.data import Graphs, TokenData
from transformer_theory.theories import list_theories, theory

from ._planted import NOISE, PLANTED, SEQUENCES, Planted, noise, twins, words

SETS, WORD_SETS, PLANTED_SETS = 16, 10, 12  # data sets of each kind of noise, and of each planted effect
WITHOUT_NULL = ("in_context", "collapse")  # nothing to rank; measured on one set only, to say so
ON_WORDS = ("scan_snap", "joma")  # theories that read words
DOCS = Path(__file__).parents[1] / "docs"
JOURNAL = Path("runs") / "calibration.jsonl"
Counts = tuple[int, int, int]
Record = dict[str, Any]


def counts(row: Measurement) -> Counts | None:
    """Returns how many draws of the null lie beyond the value on the predicted side, equal it, and lie on the
    other side of it; None without a value or a null. If no side is predicted, larger is beyond.
    """
    null, value, upwards = row.null, row.value, row.side or ">="
    other = OTHER_SIDE[upwards]
    if null is None or value is None or not null.draws or (upwards == "==" and row.predicted is None):
        return None
    value = value if null.value is None else null.value
    total = len(null.draws)
    at_least, at_most = (
        round(null.p(value, side, predicted=row.predicted) * (1 + total)) - 1 for side in (upwards, other)
    )
    equal = at_least + at_most - total
    return at_least - equal, equal, at_most - equal


def measured(one: Theory, data: TokenData | Graphs, seed: int, draws: int = DATA_DRAWS) -> list[Record]:
    """Measures a theory on data and returns one record per quantity, with the counts of its null."""
    assert one.on_data is not None
    problem = one.on_data.read(data)
    if isinstance(problem, Unsupported):
        raise ValueError(f"{one.name}: {problem.reason}")
    found = one.on_data.measure(problem, torch.Generator().manual_seed(seed), draws=draws)
    return [
        {
            "theory": one.name,
            "quantity": row.quantity,
            "setting": row.setting if row.split == "" else ", ".join(filter(None, (row.setting, row.split))),
            "scope": row.scope,
            "headline": row.quantity == one.on_data.headline,
            "side": row.side,
            "null": "" if row.null is None else row.null.kind,
            "draws": 0 if row.null is None else len(row.null.draws),
            "counts": counts(row),
        }
        for row in found
        if isinstance(row, Measurement) and row.kind == "on data"
    ]


def on_noise(kind: str, number: int, *, with_words: bool) -> list[Record]:
    """Measures all theories that read this kind of data on one set of noise."""
    data = (words if with_words else noise)(kind, 1000 * (1 + NOISE.index(kind)) + number)
    return [
        record
        for one in list_theories()
        if one.on_data is not None and one.on_data.reads is None and (one.name in ON_WORDS) == with_words
        if number == 0 or one.name not in WITHOUT_NULL
        for record in measured(one, data, number)
    ]


def on_graphs(number: int) -> list[Record]:
    """Measures the theory of graphs on random graphs without copies."""
    return measured(theory("graph_tokens"), twins(0.0, number), number)


def on_planted(effect: Planted, size: float, number: int) -> list[Record]:
    """Measures the quantity that should show a planted effect."""
    one = theory(effect.theory)
    assert one.on_data is not None
    wanted = effect.quantity or one.on_data.headline
    records = measured(one, effect.make(size, 50_000 + number), number)
    return [record for record in records if record["quantity"] == wanted]


def parts(sets: int, word_sets: int, planted_sets: int) -> Iterator[tuple[str, Callable[[], list[Record]]]]:
    """Yields the parts of the run: a name, and the function that measures it."""
    for number in range(sets):
        for kind in NOISE:
            yield f"noise/{kind}/{number}", lambda k=kind, i=number: on_noise(k, i, with_words=False)
            if number < word_sets:
                yield f"words/{kind}/{number}", lambda k=kind, i=number: on_noise(k, i, with_words=True)
    for number in range(planted_sets):
        yield f"noise/random graphs/{number}", lambda i=number: on_graphs(i)
        for place, effect in enumerate(PLANTED):
            for size in effect.sizes:
                yield (
                    f"planted/{place}/{size:g}/{number}",
                    lambda e=effect, s=size, i=number: on_planted(e, s, i),
                )


def collected(lines: Mapping[str, list[Record]]) -> dict[str, Any]:
    """Returns the contents of the JSON file from the records of all parts: noise by quantity and kind, and
    planted effects by size.
    """
    rows: dict[tuple[str, str, str], Record] = {}
    planted = [
        {
            "theory": effect.theory,
            "effect": effect.effect,
            "sizes": {f"{size:g}": [] for size in effect.sizes},
        }
        for effect in PLANTED
    ]
    for name, records in lines.items():
        part, *place = name.split("/")
        if part == "planted":
            one, (record,) = planted[int(place[0])], records
            one |= {name: record[name] for name in ("quantity", "scope", "headline", "draws", "null", "side")}
            one["sizes"][place[1]].append(record["counts"])
            continue
        for record in records:
            key = record["theory"], record["quantity"], record["setting"]
            described = {name: value for name, value in record.items() if name != "counts"}
            row = rows.setdefault(key, described | {"counts": {}})
            row["draws"] = max(row["draws"], record["draws"])
            row["null"], row["side"] = row["null"] or record["null"], row["side"] or record["side"]
            row["counts"].setdefault(place[0], []).append(record["counts"])
    order = [one.name for one in list_theories()]
    return {
        "noise": sorted(rows.values(), key=lambda row: (order.index(row["theory"]), not row["headline"])),
        "planted": planted,
    }


def run(
    journal: Path = JOURNAL,
    *,
    sets: int = SETS,
    word_sets: int = WORD_SETS,
    planted_sets: int = PLANTED_SETS,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measures all parts that the journal lacks and returns the contents of the JSON file."""
    settings = {
        "sets": sets,
        "word_sets": word_sets,
        "planted_sets": planted_sets,
        "sequences": SEQUENCES,
        "draws": DATA_DRAWS,
        "version": __version__,
    }
    records, seconds = finished(journal, settings, parts(sets, word_sets, planted_sets), summary, say)
    return {"settings": settings, "seconds": seconds, **collected(records)}


def finished(
    journal: Path,
    settings: Mapping[str, Any],
    work: Iterable[tuple[str, Callable[[], Any]]],
    summary: Callable[[Any], str],
    say: Callable[[str], None],
) -> tuple[dict[str, Any], int]:
    """Measures all parts that the journal lacks, and returns the records by part, and the seconds of all."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    stored = Journal(journal, settings)
    head, lines = stored.read()
    if head != settings:
        raise ValueError(f"{journal} belongs to other settings; delete it")
    done = {line["part"]: line for line in lines}
    for name, measure in work:
        if name not in done:
            started = time.process_time()
            record = measure()
            done[name] = {"part": name, "seconds": time.process_time() - started, "record": record}
            stored.append(done[name])
            say(f"  {name}: {summary(record)} ({done[name]['seconds']:.1f} s)")
    records = {name: line["record"] for name, line in done.items()}
    return records, round(sum(line["seconds"] for line in done.values()))


def summary(records: Sequence[Record]) -> str:
    """Formats the ranks of the headlines."""
    headlines = [r for r in records if r["headline"] and r["counts"] and r["scope"] == "these data"]
    ranks = ", ".join(
        f"{r['theory']} {(1 + r['counts'][0] + r['counts'][1]) / (1 + r['draws']):.3f}" for r in headlines
    )
    return ranks or "no test"


def origin() -> dict[str, str]:
    """Returns date, hardware and version of torch of a run."""
    from .__main__ import processor

    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": f"one core of {processor()}",
        "torch": torch.__version__,
    }


def write(found: Mapping[str, Any], folder: Path = DOCS) -> None:
    """Writes the numbers and the page."""
    from ._calibration_page import page

    (folder / "calibration.json").write_text(json.dumps(found, indent=None) + "\n", encoding="utf-8")
    (folder / "calibration.md").write_text(page(found), encoding="utf-8")


def main() -> None:
    """Runs or goes on, writes the numbers and the page, and prints the page's tables."""
    torch.set_num_threads(1)
    found = run() | {"measured": origin()}
    stored = json.loads((DOCS / "calibration.json").read_text(encoding="utf-8"))
    write({**found, "networks": stored["networks"]})  # measured by .network_calibration
    JOURNAL.unlink()
    print((DOCS / "calibration.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    write(json.loads((DOCS / "calibration.json").read_text(encoding="utf-8")))
