"""Calibration and power of the tests in networks: ``python -m benchmarks.network_calibration``.

Forty small networks with random weights (:mod:`._planted_networks`) are measured on noise as a user's network
is, with 99 copies of equal scale. Their weights are independent, and a copy permutes them: whatever is said
of such a network is an error, which each family (headlines; heads and layers; tokens) may make in 5 % of the
networks. The theories without a part on data, and in-context learning, are measured in networks with an
effect of known size.

The run is one process and goes on where it was interrupted (``runs/network_calibration.jsonl``; delete it if
the code has changed). It writes its numbers into ``docs/calibration.json`` and the page anew.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from transformer_theory import __version__, measure
from transformer_theory.comparison.judged import Quantity, headlines, notable, quantities
from transformer_theory.core.statistics import COPIES, EQUAL_SCALE, RANGE_DRAWS, studentised_maximum
from transformer_theory.report.token_sentences import token_statements
from transformer_theory.theories import list_theories

from ._planted import NOISE
from ._planted_networks import INPUTS, PLANTED_IN_NETWORKS, READERS, PlantedInNetwork, inputs, network
from .calibration import DOCS, counts, finished, origin, write

NETWORKS, DRAWS = 5, 99  # networks of each reader and kind of noise, and copies of each
# networks with each planted effect: those with copies, which are dear, and those without
PLANTED_NETWORKS, PLANTED_CHEAP = 5, 12
MINUTES = 60.0  # time for one network, so that it sets no limit
JOURNAL = Path("runs") / "network_calibration.jsonl"
Record = dict[str, Any]


def alone(one: Quantity) -> float | None:
    """Returns the two-sided p-value of a headline by itself, in units of 1/20, from the first 19 copies; None
    with fewer.

    How many more copies are measured depends on these, so that a p-value from all of them would be another
    one than that of a fixed number.
    """
    row = one.mean
    null = row.null
    if null is None or null.kind != EQUAL_SCALE or len(null.draws) < RANGE_DRAWS or row.value is None:
        return None
    value = row.value if null.value is None else null.value
    draws = torch.tensor(null.draws[:RANGE_DRAWS], dtype=torch.float64)[:, None].numpy()
    return float(studentised_maximum(torch.tensor([value], dtype=torch.float64).numpy(), draws)[0])


def record_of(one: Quantity) -> Record:
    """Returns what is stored of a quantity."""
    null = one.mean.null
    return {
        "theory": one.theory,
        "quantity": one.label,
        "outcome": one.judged.outcome,
        "q": one.judged.q,
        "null": "" if null is None else null.kind,
        "draws": 0 if null is None else len(null.draws),
        "alone": alone(one),
        "said": one.is_said,
    }


def on_noise(reader: str, kind: str, seed: int) -> Record:
    """Measures a network with random weights on noise."""
    data, labels = inputs(reader, kind, seed)
    result = measure(network(reader, seed), data, labels, networks=DRAWS, minutes=MINUTES)
    theories = list_theories()
    found = quantities(result, theories)
    chosen = headlines(found, theories)
    names = {(one.theory, one.label) for one in chosen}
    return {
        "headlines": [record_of(one) for one in chosen],
        "others": [
            record_of(one)
            for one in found
            if (one.theory, one.label) not in names
            and one.mean.null is not None
            and one.mean.null.kind not in COPIES
            and one.mean.side is not None
        ],
        "heads and layers": [one.theory for one in notable(found)],
        "tokens": [title for title, *_ in token_statements(result, found)],
    }


def on_planted(effect: PlantedInNetwork, size: float, seed: int) -> Record:
    """Measures the quantity that should show a planted effect: a headline in its family, or a quantity of the
    theory by itself, with the counts of its null.
    """
    data, labels = inputs(effect.reader, effect.kind, seed)
    result = measure(
        effect.make(size, seed),
        data,
        labels,
        networks=DRAWS if effect.copies else 0,
        theories=None if effect.copies else [effect.theory],
        minutes=MINUTES,
    )
    theories = [one for one in list_theories() if effect.copies or one.name == effect.theory]
    found = quantities(result, theories)
    chosen = found if effect.quantity else headlines(found, theories)
    (one,) = (
        one
        for one in chosen
        if one.theory == effect.theory
        if not effect.quantity or (one.name, one.setting) == (effect.quantity, effect.setting)
    )
    return record_of(one) | {"counts": counts(one.mean), "value": one.mean.value}


def parts(networks: int, planted: int, cheap: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yields the parts of the run: a name, and the function that measures it."""
    for number in range(networks):
        for place, kind in enumerate(NOISE):
            for other, reader in enumerate(READERS):
                seed = 10_000 * (1 + place) + 1_000 * other + number
                yield f"noise/{reader}/{kind}/{number}", lambda r=reader, k=kind, s=seed: on_noise(r, k, s)
    for place, effect in enumerate(PLANTED_IN_NETWORKS):
        for number in range(planted if effect.copies else cheap):
            for size in effect.sizes:
                yield (
                    f"planted/{place}/{size:g}/{number}",
                    lambda e=effect, z=size, s=70_000 + number: on_planted(e, z, s),
                )


def collected(lines: Mapping[str, Record]) -> dict[str, Any]:
    """Returns the numbers from the records of all parts: noise by reader and kind, effects by size."""
    noise: dict[str, dict[str, list[Record]]] = {reader: {kind: [] for kind in NOISE} for reader in READERS}
    planted = [
        {
            "theory": effect.theory,
            "effect": effect.effect,
            "headline": not effect.quantity and effect.copies,
            "sizes": {f"{size:g}": [] for size in effect.sizes},
        }
        for effect in PLANTED_IN_NETWORKS
    ]
    for name, record in lines.items():
        part, first, second, _ = name.split("/")
        if part == "noise":
            noise[first][second].append(record)
        else:
            planted[int(first)]["sizes"][second].append(record)
    return {"noise": noise, "planted": planted}


def run(
    journal: Path = JOURNAL,
    *,
    networks: int = NETWORKS,
    planted: int = PLANTED_NETWORKS,
    cheap: int = PLANTED_CHEAP,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measures all parts that the journal lacks and returns the contents of the JSON file."""
    settings = {
        "networks": networks,
        "planted": planted,
        "cheap": cheap,
        "inputs": INPUTS,
        "copies": DRAWS,
        "version": __version__,
    }
    records, seconds = finished(journal, settings, parts(networks, planted, cheap), summary, say)
    return {"settings": settings, "seconds": seconds, **collected(records)}


def summary(record: Record) -> str:
    """Formats a record in a few words."""
    if "headlines" not in record:
        return f"{record['quantity']} {record['outcome']}"
    found = [f"{one['theory']} {one['outcome']}" for one in record["headlines"] if is_found(one)]
    return ", ".join([*found, *record["heads and layers"], *record["tokens"]]) or "nothing found"


def is_found(record: Record) -> bool:
    """Returns whether a quantity is called different from chance."""
    return record["outcome"] in ("as predicted", "opposite", "matched by a second null", "nulls conflict")


def main() -> None:
    """Runs or goes on, and writes the numbers and the page."""
    torch.set_num_threads(1)
    networks = run() | {"measured": origin()}
    found = json.loads((DOCS / "calibration.json").read_text(encoding="utf-8"))
    write({**found, "networks": networks})
    JOURNAL.unlink()


if __name__ == "__main__":
    main()
