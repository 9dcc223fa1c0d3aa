"""The part of the calibration's page about networks, from the stored numbers alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_theory.core.format import counted
from transformer_theory.core.statistics import LEVEL, RANGE_DRAWS, clopper_pearson
from transformer_theory.theories import list_theories

from ._planted import CORRELATED

Record = Mapping[str, Any]
CALLED = ("as predicted", "opposite")  # outcomes that say more than chance
TESTED = (*CALLED, "not significant", "matched by a second null", "nulls conflict")
EQUAL_SCALE = "equal scale"
# tokens of a sequence have something in common, and rightly differ from those of other sequences
EXCHANGED = "inputs with tokens of other sequences"
DEPENDENT = {("tokens", CORRELATED), ("ids", CORRELATED), ("ids", "rank 2")}


def of(count: int, n: int) -> str:
    """Formats a count with its exact interval: ``"3 of 64 (.01 to .13)"``."""
    if not n:
        return "–"
    low, high = (f"{float(end):.2f}".removeprefix("0") for end in clopper_pearson(count, n))
    return f"{count} of {n} ({low} to {high})"


def too_many(count: int, n: int) -> bool:
    """Returns whether the exact interval of a share lies above 5 %."""
    return bool(n) and float(clopper_pearson(count, n)[0]) > LEVEL


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def networks_of(found: Record) -> list[Record]:
    """Returns the records of all networks on noise."""
    return [
        record for by_kind in found["noise"].values() for records in by_kind.values() for record in records
    ]


def against_copies(record: Record) -> bool:
    """Returns whether a headline is tested against copies."""
    return record["null"] == EQUAL_SCALE and record["outcome"] in TESTED


def families(found: Record) -> list[tuple[str, int, int]]:
    """Returns the name of each family of tests, and in how many of how many networks something is said."""
    networks = networks_of(found)
    n = len(networks)

    def number(says: Any) -> int:
        return sum(bool(says(each)) for each in networks)

    return [
        (
            "headlines against copies, called *as predicted* or *opposite*",
            number(
                lambda each: any(
                    against_copies(one) and one["outcome"] in CALLED for one in each["headlines"]
                )
            ),
            n,
        ),
        (
            "headlines with a sentence on the first screen",
            number(lambda each: any(one["said"] for one in each["headlines"])),
            n,
        ),
        ("heads and layers that are named", number(lambda each: each["heads and layers"]), n),
        ("statements about tokens", number(lambda each: each["tokens"]), n),
    ]


def by_quantity(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Groups records by theory and quantity, in the order in which they come."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["theory"], record["quantity"]), []).append(record)
    return groups


def found_in(record: Record) -> bool:
    """Returns whether a planted effect is found: the quantity is called as predicted."""
    return record["outcome"] == "as predicted"


def network_parts(found: Record) -> dict[str, str]:
    """Returns the parts of the template that are about networks."""
    title = {one.name: one.title.partition(":")[0] for one in list_theories()}
    networks = networks_of(found)
    measured = found["measured"]
    every = families(found)
    headlines = by_quantity(one for each in networks for one in each["headlines"] if against_copies(one))
    rows, refuted = [], [name for name, count, n in every if too_many(count, n)]
    for (theory, quantity), records in headlines.items():
        alone = [one["alone"] for one in records if one["alone"] is not None]
        beyond = sum(p <= LEVEL + 1e-9 for p in alone)
        if too_many(beyond, len(alone)):
            refuted.append(f"{title[theory]} by itself")
        called = [sum(one["outcome"] == outcome for one in records) for outcome in CALLED]
        rows.append([title[theory], quantity, f"{len(records)}", *map(str, called), of(beyond, len(alone))])
    alone = [one["alone"] for records in headlines.values() for one in records if one["alone"] is not None]
    together = sum(p <= LEVEL + 1e-9 for p in alone)
    rows.append(
        [
            "all",
            "",
            f"{sum(map(len, headlines.values()))}",
            *(
                f"{sum(one['outcome'] == outcome for records in headlines.values() for one in records)}"
                for outcome in CALLED
            ),
            of(together, len(alone)),
        ]
    )
    own = by_quantity(
        one
        for reader, by_kind in found["noise"].items()
        for kind, records in by_kind.items()
        for each in records
        for one in (*each["headlines"], *each["others"])
        if one["null"] not in ("", EQUAL_SCALE)
        and one["draws"] >= RANGE_DRAWS
        and one["outcome"] in TESTED
        and not (one["null"] == EXCHANGED and (reader, kind) in DEPENDENT)
    )
    others = []
    for (theory, quantity), records in own.items():
        called = sum(one["outcome"] in CALLED for one in records)
        null = records[0]["null"]
        others.append([title.get(theory, "Network"), quantity, null, of(called, len(records))])
    planted = []
    for effect in found["planted"]:
        for size, records in effect["sizes"].items():
            count = sum(map(found_in, records))
            draws = sorted({one["draws"] for one in records})
            values = sorted(one["value"] for one in records if one["value"] is not None)
            middle = f"{values[len(values) // 2]:.3g}" if values else "–"
            spread = f"{draws[0]}" if len(draws) == 1 else f"{draws[0]} to {draws[-1]}"
            planted.append(
                [
                    title[effect["theory"]],
                    records[0]["quantity"],
                    effect["effect"],
                    size,
                    middle,
                    spread,
                    of(count, len(records)),
                ]
            )
    few = [
        title[effect["theory"]]
        for effect in found["planted"]
        if not any(one["outcome"] in TESTED for records in effect["sizes"].values() for one in records)
    ]
    never = [
        title[effect["theory"]]
        for effect in found["planted"]
        if not any(found_in(one) for records in effect["sizes"].values() for one in records)
    ]
    notes = []
    if few:
        notes.append(
            f"{' and '.join(few)}: the null has too few draws for a test, so that `measure` never calls the "
            "quantity different from chance, however large the effect."
        )
    if never:
        notes.append(
            f"{' and '.join(never)}: found at neither size. The test has no power in networks of this size."
        )
    return {
        "network_count": f"{len(networks)}",
        "inputs": f"{found['settings']['inputs']}",
        "network_date": measured["date"],
        "network_hardware": measured["hardware"],
        "network_torch": measured["torch"],
        "network_minutes": f"{found['seconds'] / 60:.0f}",
        "network_refuted": f"it does for: {'; '.join(refuted)}." if refuted else "none does.",
        "network_families": table(
            ["family", f"in how many of {counted(len(networks), 'network')}"],
            ([name, of(count, n)] for name, count, n in every),
        ),
        "network_headlines": table(
            ["theory", "headline", "tested in", *CALLED, "by itself beyond 19 copies"], rows
        ),
        "network_others": table(["theory", "quantity", "null", "beyond on either side"], others),
        "network_planted": table(
            ["theory", "quantity", "effect", "size", "median value", "draws", "found"], planted
        ),
        "network_notes": " ".join(notes),
    }
