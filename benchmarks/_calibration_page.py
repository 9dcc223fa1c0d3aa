"""The page of the calibration, from its template and the stored counts alone (:mod:`.calibration`)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_theory.core.format import counted, p_value
from transformer_theory.core.judgement import HEADLINES, Judged, judge
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.statistics import LEVEL, over_seeds
from transformer_theory.theories import list_theories

from ._network_page import network_parts, of, table, too_many
from ._planted import CORRELATED, CORRELATION, NOISE

Found = Mapping[str, Any]
TEMPLATE = Path(__file__).with_name("_calibration_page.md")
# tests about the data in the demo: seven headlines on the raw tokens, and five on the features of each of
# three networks
FAMILY = 7 + 3 * 5
# the quantities are not at chance, and rightly so
TRUE_EFFECTS = {("particles", CORRELATED)}
DEGENERATE = 0.5  # smallest share of p = 1 that is named


def p_of(counts: Sequence[int], *, other: bool = False) -> float:
    """Returns the p-value of the counts beyond, equal and on the other side; with ``other`` on that side."""
    beyond, equal, rest = counts
    return (1 + (rest if other else beyond) + equal) / (1 + sum(counts))


def row_of(counts: Sequence[int], record: Found) -> Measurement:
    """Returns a measurement with the value 0 and as many draws above, at and below it as the counts say."""
    # draws beyond and below differ: a null whose draws are all equal gives no p-value
    beyond, equal, rest = counts
    above, below = (tuple(range(1, 1 + beyond)), tuple(range(-rest, 0)))
    null = Null(record["null"], (*above, *(0.0,) * equal, *below))
    return Measurement(
        record["theory"], "on data", record["quantity"], 0.0, nulls=(null,), side=">=", scope="these data"
    )


def judged(rows: Iterable[Measurement]) -> list[Judged]:
    """Judges measurements of one seed as one family, as the page of a comparison does."""
    return judge([(over_seeds([row]), [row]) for row in rows], HEADLINES)


def is_tested(record: Found) -> bool:
    """Returns whether a quantity is a headline that a comparison tests."""
    return record["headline"] and record["scope"] == "these data" and record["side"] is not None


def chance(record: Found, kinds: Sequence[str] = NOISE) -> list[Sequence[int]]:
    """Returns the counts of the data sets of these kinds where the quantity is at chance and has a value."""
    return [
        each
        for kind in kinds
        if (record["theory"], kind) not in TRUE_EFFECTS
        for each in record["counts"].get(kind, ())
        if each is not None
    ]


def noise_headlines(found: Found, kind: str) -> list[list[Measurement]]:
    """Returns the tested headlines of each data set of one kind of noise."""
    records = [record for record in found["noise"] if is_tested(record)]
    return [
        [
            row_of(record["counts"][kind][number], record)
            for record in records
            if (record["theory"], kind) not in TRUE_EFFECTS
            and number < len(record["counts"].get(kind, ()))
            and record["counts"][kind][number] is not None
        ]
        for number in range(found["settings"]["sets"])
    ]


def large_families(found: Found, kind: str, size: int) -> list[list[Measurement]]:
    """Divides the headlines of one kind of noise into disjoint families of a size; what is left over is not
    used.
    """
    rows = [
        row for family in noise_headlines(found, kind) for row in family if over_seeds([row]).p is not None
    ]
    return [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]


def false_families(families: Iterable[Sequence[Measurement]], outcome: str) -> int:
    """Returns in how many families at least one headline has an outcome."""
    return sum(any(one.outcome == outcome for one in judged(family)) for family in families)


def power(record: Found, size: str, others: Sequence[Sequence[Measurement]]) -> tuple[int, int, int]:
    """Returns the number of data sets with a planted effect, those in which it leaves its null by itself, and
    those in which it is found beside a family of others, or, if it is not tested there, lies beyond all draws
    of its null.
    """
    every = [each for each in record["sizes"][size] if each is not None]
    if not is_tested(record):
        return (
            len(every),
            sum(p_of(each) <= LEVEL for each in every),
            sum(each[0] + each[1] == 0 for each in every),
        )
    outcomes = [
        judged([row_of(each, record), *others[number % len(others)]])[0].outcome
        for number, each in enumerate(every)
    ]
    return len(every), sum(p_of(each) <= LEVEL for each in every), outcomes.count("as predicted")


def page(found: Found) -> str:
    """Returns the page in Markdown."""
    title = {one.name: one.title for one in list_theories()}
    settings, measured = found["settings"], found["measured"]
    records = found["noise"]
    headlines = [record for record in records if is_tested(record)]
    reading = {record["theory"] for record in records}

    def shares(record: Found, kinds: Sequence[str] = NOISE, *, other: bool = False) -> tuple[int, int]:
        every = chance(record, kinds)
        return sum(p_of(each, other=other) <= LEVEL for each in every), len(every)

    def mark(text: str, count: int, n: int) -> str:
        return f"**{text}**" if too_many(count, n) else text

    def cell(record: Found, kind: str) -> str:
        if (record["theory"], kind) in TRUE_EFFECTS:
            return "true effect"
        count, n = shares(record, [kind])
        return f"{count} of {n}"

    def ones(record: Found) -> tuple[int, int]:
        every = chance(record)
        return sum(p_of(each) == 1 for each in every), len(every)

    calibrated = [
        [
            title[record["theory"]],
            *(cell(record, kind) for kind in NOISE),
            mark(of(*shares(record)), *shares(record)),
            of(*shares(record, other=True)),
            "{} of {}".format(*ones(record)),
        ]
        for record in headlines
    ]
    total, total_other = (
        tuple(sum(each) for each in zip(*(shares(record, other=other) for record in headlines)))
        for other in (False, True)
    )
    calibrated.append(
        [
            "all",
            *("" for _ in NOISE),
            mark(of(*total), *total),
            of(*total_other),
            "{} of {}".format(*(sum(each) for each in zip(*map(ones, headlines)))),
        ]
    )
    degenerate = [record for record in headlines if ones(record)[0] >= DEGENERATE * max(1, ones(record)[1])]
    alone = [family for kind in NOISE for family in noise_headlines(found, kind)]
    large = [family for kind in NOISE for family in large_families(found, kind, FAMILY)]
    rows = [
        record
        for record in records
        if not record["headline"] and record["scope"] == "these data" and record["side"] and chance(record)
    ]
    other_rows = [
        [
            title[record["theory"]],
            name_of(record),
            record["null"],
            f"{record['draws']:,}",
            mark(of(*shares(record)), *shares(record)) if reaches(record) else "cannot be ≤ .05",
            "{} of {}".format(*ones(record)),
        ]
        for record in rows
    ]
    any_data = [
        [
            title[record["theory"]],
            name_of(record),
            record["null"],
            f"{record['draws']:,}",
            "{} of {}".format(*shares(record)) if reaches(record) else beyond(chance(record)),
        ]
        for record in records
        if record["scope"] == "any data" and record["side"] and chance(record)
    ]
    others = [family for kind in NOISE for family in large_families(found, kind, FAMILY - 1)]
    powers = [
        [
            title[record["theory"]],
            record["quantity"],
            record["effect"],
            size,
            *power_cells(record, size, others),
        ]
        for record in found["planted"]
        for size in record["sizes"]
    ]
    without_null = [title[each["theory"]] for each in records if each["headline"] and not each["draws"]]
    nothing_read = [title[name] for name in title if name not in reading]
    names = ", ".join(sorted({title[record["theory"]] for record in degenerate}))
    misses = [
        f"{title[record['theory']]}, {name_of(record)}"
        for record in (*headlines, *(row for row in rows if reaches(row)))
        if too_many(*shares(record))
    ]
    graph = next(record for record in records if record["theory"] == "graph_tokens" and record["headline"])
    graph_sets = graph["counts"].get("random graphs", [])
    parts = {
        "date": measured["date"],
        "hardware": measured["hardware"],
        "torch": measured["torch"],
        "minutes": f"{found['seconds'] / 60:.0f}",
        **{
            name: f"{settings[name]:,}"
            for name in ("sets", "word_sets", "planted_sets", "sequences", "draws")
        },
        "correlation": f"{CORRELATION:g}",
        "headlines": table(
            ["theory", *NOISE, "all, 95 % interval", "p ≤ .05 on the other side", "p = 1"], calibrated
        ),
        "misses": f"Too many: {'; '.join(misses)}." if misses else "No quantity has too many.",
        "degenerate": f"In at least half of the data sets p = 1 for: {names}."
        if names
        else "No headline has p = 1 in half of the data sets.",
        **{
            name: of(false_families(families, outcome), len(families))
            for name, families, outcome in (
                ("alone", alone, "as predicted"),
                ("alone_opposite", alone, "opposite"),
                ("large", large, "as predicted"),
                ("large_opposite", large, "opposite"),
            )
        },
        "family": f"{FAMILY}",
        "others": f"{FAMILY - 1}",
        "rows": table(["theory", "quantity", "null", "draws", "p ≤ .05", "p = 1"], other_rows),
        "any_data": table(["theory", "quantity", "null", "draws", "beyond on noise"], any_data),
        "planted": table(["theory", "quantity", "effect", "size", "p ≤ .05", "found"], powers),
        "needed": p_value(LEVEL / FAMILY),
        "most": f"{LEVEL * (1 + settings['draws']) + 1e-9:.0f}",
        "without_null": ", ".join(without_null),
        "nothing_read": ", ".join(nothing_read),
        "graphs": counted(len(graph_sets), "set"),
        "above": f"{sum(each[0] + each[1] == 0 for each in graph_sets)}",
    }
    return TEMPLATE.read_text(encoding="utf-8").format(**parts, **network_parts(found["networks"]))


def name_of(record: Found) -> str:
    """Returns the quantity with its coordinates."""
    return f"{record['quantity']} ({record['setting']})" if record["setting"] else record["quantity"]


def reaches(record: Found) -> bool:
    """Returns whether the null has enough draws for p <= .05."""
    return LEVEL * (1 + record["draws"]) + 1e-9 >= 1


def beyond(every: Sequence[Sequence[int]]) -> str:
    """Formats in how many data sets the value lies beyond all draws."""
    return f"{sum(each[0] + each[1] == 0 for each in every)} of {len(every)}"


def power_cells(record: Found, size: str, others: Sequence[Sequence[Measurement]]) -> tuple[str, str]:
    """Formats the share that leaves its null by itself, and the share that is found."""
    n, alone, together = power(record, size, others)
    return of(alone, n), of(together, n)
