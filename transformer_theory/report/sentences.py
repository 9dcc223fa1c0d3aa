"""Sentences about what was found: per theory a statement about its headlines, about its ladder, and about one
network, made from judged rows alone (:mod:`~..comparison.judged`); and about the curves of the timeline.

Names of data and networks are escaped (:func:`~..core.math_text.literal`).
"""

from collections.abc import Iterable, Iterator, Sequence

from ..comparison.judged import Finding, Findings, Quantity, RungResult, by_theory, notable
from ..core import format
from ..core.judgement import OUTCOMES, Judged, in_words
from ..core.math_text import literal
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import EQUAL_SCALE, LEVEL
from ..core.table import grouped
from ..core.theory import Theory
from .curves import Series

MAX_LEADS = 3  # findings before everything else
MAX_STATEMENTS = 5  # about headlines
MAX_OF_NETWORK = 4  # about one network
HALF = 0.5  # effect below which a sentence says so
_BEYOND = ("as predicted", "opposite")  # outcomes of what lies beyond its null
_MATCHED = ("matched by a second null", "nulls conflict")
TESTED = (*_BEYOND, "not significant", *_MATCHED)
# outcomes of the headlines of one network, in the order of the table
_ORDER = (*_BEYOND, *_MATCHED, "not tested", "too few draws", "not significant", "not measured")
NOTHING = (
    "No headline of a theory leaves the copies of this network and its other nulls by an effect that is "
    "worth a sentence."
)
FALSE_DISCOVERIES = f"false discovery rate at most {100 * LEVEL:.0f}\u00a0%"
MEANING_OF_P = (
    "p: the rank of this network among randomised copies of itself, whose matrices have the same entries in "
    "random order, adjusted for the family: all headlines, or all heads and layers. A small p rejects "
    "unstructured weights of equal size. It supports no theory by itself, and it says nothing about other "
    "seeds or about the task."
)
OF_LABELS = "but a quantity of the labels, which needs networks trained on permuted labels beside this one"
NAMED_PLACES = (
    "A head or layer is named if it leaves its copies significantly in the family of all heads and layers of "
    "all headlines, and if its interval over inputs that the copies have not seen lies beyond 95 % of them."
)
# outcome of a theory in all cells of a view, and how the overview says so
OUTCOME_TEXT = {
    "as predicted": "as predicted",
    "differs": "different from case to case",
    "matched by a second null": "matched by the quantity's own null",
    "nulls conflict": "between two nulls that conflict",
    "opposite": "opposite to the prediction",
    "not significant": "not significant",
    "any data": "statements about any data",
    "too few draws": "too few draws for a test",
    "not tested": "without a test",
    "not measured": "not measured",
}


# ---- headlines of comparisons


def sentences(found: Findings) -> list[str]:
    """Returns the :func:`statements` with their theories: ``"Scan and snap: On the raw tokens ..."``."""
    return [f"{title}: {text}." for title, text in statements(found)]


def statements(found: Findings, *, most: int = MAX_STATEMENTS) -> list[tuple[str, str]]:
    """Returns at most ``most`` pairs (title of a theory, what was found), without the last full stop.

    Of more theories, those with the most decided outcomes are chosen. A statement gives the
    headline on the raw tokens with its interval; its chance level; its value on noise, if it holds for any
    data; then the trained networks in which the theory's quantity differs from copies of equal scale.
    """
    decided = {
        theory.name: sum(each.judged.outcome in _BEYOND for each in found.of(theory))
        for theory in found.theories
    }
    chosen = sorted(decided, key=lambda name: -decided[name])[:most]
    said = (
        (theory.title, _statement(found.of(theory))) for theory in found.theories if theory.name in chosen
    )
    return [(title, _literal(found, text)) for title, text in said if text]


def leads(found: Findings) -> list[tuple[str, str]]:
    """Returns at most :data:`MAX_LEADS` pairs (title of a theory, the strongest finding), without the last
    full stop: where training moved the theory's quantity as predicted, in most networks first; then where the
    data are as predicted.
    """
    said = []
    for theory in found.theories:
        measured = [each for each in found.of(theory) if each.judged.row.value is not None]
        predicted = [each for each in measured if each.judged.outcome == "as predicted"]
        inside = [each for each in predicted if each.view == "network"]
        raw = [each for each in predicted if each.view == "raw tokens"]
        networks = sum(each.view == "network" for each in measured)
        lead = [*_in_networks(inside, networks)] or [*(_on_data(raw[0]) if raw else ())]
        if lead:
            text = _literal(found, ". ".join(map(format.sentence_case, lead)))
            said.append((len(inside), (theory.title, text)))
    return [pair for _, pair in sorted(said, key=lambda each: -each[0])[:MAX_LEADS]]


def _literal(found: Findings, text: str) -> str:
    """Escapes the names of data and networks in a text."""
    known = {name for each in found.all for name in (each.data, each.model) if literal(name) != name}
    for name in sorted(known, key=len, reverse=True):
        text = text.replace(name, literal(name))
    return text


def _statement(cells: Sequence[Finding]) -> str:
    """Returns the statement about the findings of one theory; empty if nothing was measured."""
    measured = [cell for cell in cells if cell.judged.row.value is not None]
    on_data = [cell for cell in measured if cell.view != "network"]
    raw = [cell for cell in on_data if cell.view == "raw tokens"] or on_data
    inside = [cell for cell in measured if cell.view == "network"]
    said = [*(_on_data(raw[0]) if raw else ()), *_in_networks(inside, len(inside))]
    return ". ".join(map(format.sentence_case, said))


def _on_data(cell: Finding) -> Iterator[str]:
    """Yields sentences about the headline on one view of the data: its value, and what chance gives."""
    judged, row = cell.judged, cell.judged.row
    known = _prediction(row)
    where = f"the {format.view_name(cell.model)} of {cell.data}"
    yield f"on {where}, the {row.quantity} is {format.value_text(row)}{f' ({known})' if known else ''}"
    any_data = judged.scope == "any data"
    if row.null is not None and row.null.draws:
        facts = [row.null.kind]
        if row.p is None and len(row.null.draws) > 1:
            facts.append(format.bounds((row.null.low, row.null.high), row.unit, row.interval))
        elif row.p is not None and not any_data:
            facts.append(f"p = {format.p_value(row.p)}")
        chance = f"the chance level is {format.of_row(row.null.median, row)} ({', '.join(facts)})"
        if any_data:
            yield chance + (", and the value is no better" if _within_null(row) else "")
        else:
            yield chance + {
                "as predicted": ", so this is a property of these data",
                "not significant": ", so this may be chance",
                "opposite": ", so the value lies on the side opposite to the prediction",
                "matched by a second null": f", but the value is {judged.words}",
                "nulls conflict": f", and the value is {judged.words}",
            }.get(judged.outcome, "")
    if any_data:
        yield from _noise(judged)


def _prediction(row: Measurement) -> str:
    """Describes the prediction of a headline on data; empty without one."""
    if row.verdict == "not covered":
        return "not covered by the theorem"
    if row.predicted is not None:
        limit = " in the limit" if row.basis == "limit" else ""
        # a prediction is exact: "100 %", not "100.00 %"
        exact = f"{100 * row.predicted:g}\u00a0%" if row.unit == "share" else format.amount(row.predicted)
        return f"predicted {exact}{limit}"
    if row.threshold is not None and row.op is not None and row.p is None:
        most = "most" if row.op == "<=" else "least"
        return f"predicted at {most} {format.amount(row.threshold, row.unit)}"
    return ""


def _within_null(row: Measurement) -> bool:
    """Returns whether the value lies within the range of its null, or beyond it on the side opposite to the
    prediction.
    """
    if row.value is None or row.null is None or len(row.null.draws) < 2:
        return False
    return row.null.low <= row.value <= row.null.high or format.unexpected_side(row)


def _noise(judged: Judged) -> Iterator[str]:
    """Compares a statement about any data with its value on noise."""
    row = judged.row
    if row.on_noise is None or row.value is None:
        return
    noise = format.of_row(row.on_noise, row)
    same = (
        row.null is not None
        and bool(row.null.draws)
        and abs(row.value - row.on_noise) <= 0.1 * abs(row.value - row.null.median)
    )
    if same:
        yield f"noise gives {noise} as well, so this is no finding about these data"
    else:
        yield f"noise gives {noise}"


def _in_networks(cells: Sequence[Finding], total: int) -> Iterator[str]:
    """Yields sentences about how training changed the theory's quantity in some of ``total`` trained
    networks, relative to the null that decides, copies of equal scale. The labels are mentioned only where
    networks trained on permuted labels do not reach the value.
    """
    tested = [cell for cell in cells if cell.judged.outcome in TESTED]
    if not tested:
        if cells:
            first = cells[0].judged
            value = f"the {first.row.quantity} is {format.value_text(first.row)}"
            yield f"in {cells[0].model}, {value} ({first.reason})"
        return
    row = tested[0].judged.row
    up, down = {">=": ("raised", "lowered"), "<=": ("lowered", "raised")}.get(
        row.side or "", ("moved", "moved")
    )
    name = f"the {row.quantity}"
    for outcome in OUTCOMES:
        for side, verb in ((1, up), (-1, down), (0, "")):
            shown = [c for c in tested if (c.judged.outcome, c.judged.side) == (outcome, side)]
            if not shown:
                continue
            where = _listed(shown, total, named=outcome != "not significant")
            if outcome == "not significant":
                yield f"{name} cannot be distinguished from {_chance(shown)} in {where}"
            elif outcome == "as predicted":
                yield f"training {verb} {name}, as predicted, in {where}{_about_labels(shown)}"
            elif outcome == "opposite":
                yield f"training moved {name} to the opposite side in {where}{_about_labels(shown)}"
            else:
                kind = " and ".join(shown[0].judged.nulls)
                but = "give as much" if outcome == "matched by a second null" else "put it on the other side"
                yield f"training {verb} {name} in {where}, but {kind} {but}"
            name = "it"


def _chance(cells: Sequence[Finding]) -> str:
    """Names the null that decides."""
    null = cells[0].judged.row.null
    return "copies of equal scale" if null is None or null.kind == EQUAL_SCALE else null.kind


def _about_labels(cells: Sequence[Finding]) -> str:
    """Names the networks that lie beyond all networks trained on permuted labels; empty if there are none."""
    beyond = [cell.model for cell in cells if cell.judged.task == "beyond"]
    if not beyond:
        return ""
    where = "" if len(beyond) == len(cells) else f" in {joined(beyond)}"
    return f", beyond training on permuted labels{where}"


def _listed(cells: Sequence[Finding], total: int, *, named: bool) -> str:
    """Names the networks, with the span of the values and that of the medians of the null; ``named``: copies
    of equal scale are named, too.
    """
    row = cells[0].judged.row
    models = [cell.model for cell in cells]
    names = f"all {total} networks" if len(cells) == total > 1 else joined(models)
    medians = [cell.judged.row.null.median for cell in cells if cell.judged.row.null is not None]
    of_copies = named and row.null is not None and row.null.kind == EQUAL_SCALE
    values = span([cell.judged.compared for cell in cells], row)
    return f"{names} ({values} against {span(medians, row)}{' in copies' if of_copies else ''})"


def span(numbers: Sequence[float | None], row: Measurement) -> str:
    """Formats the smallest and the largest number: ``"0.11 to 0.16"``."""
    known = [number for number in numbers if number is not None]
    ends = (min(known), max(known)) if known else (None,)
    return " to ".join(dict.fromkeys(format.amount(number, row.unit) for number in ends))


def joined(names: Sequence[str]) -> str:
    """Joins names: ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def overview(found: Findings, theories: Sequence[Theory]) -> list[tuple[str, list[tuple[str, list[Theory]]]]]:
    """Returns groups (title, lines) that name every theory, each line an outcome with the theories that have
    it: the headlines on data, those in networks, and the theories without a headline.

    On data the raw tokens count, or features if there are no raw tokens. In networks a theory has an outcome
    if it has it in every network.

    Args:
        found: the findings.
        theories: all theories of the page.
    """
    on_data: dict[str, list[Theory]] = {}
    inside: dict[str, list[Theory]] = {}
    rest = []
    for theory in theories:
        outcomes: dict[str, set[str]] = {}
        for cell in found.all:
            if cell.theory is theory:
                any_data = cell.judged.scope == "any data" and cell.judged.row.value is not None
                outcome = "any data" if any_data else cell.judged.outcome
                outcomes.setdefault(cell.view, set()).add(outcome)
        outside = outcomes.get("raw tokens") or outcomes.get("features")
        for group, seen in ((on_data, outside), (inside, outcomes.get("network"))):
            if seen:
                group.setdefault(next(iter(seen)) if len(seen) == 1 else "differs", []).append(theory)
        if not outside and not outcomes.get("network"):
            rest.append(theory)
    groups = [
        (title, [(text, group[outcome]) for outcome, text in OUTCOME_TEXT.items() if outcome in group])
        for title, group in (("On the data", on_data), ("In networks", inside))
    ]
    groups += [("Neither", [("claims and figures only", rest)])] if rest else []
    return [(title, lines) for title, lines in groups if lines]


# ---- rungs of ladders


def reach_statements(rungs: Sequence[RungResult]) -> list[tuple[str, str]]:
    """Returns a pair (title of a theory, how far it reaches) per theory, without full stops."""
    return [(group[0].theory.title, text) for group in by_theory(rungs) if (text := _reach(group))]


def _reach(rungs: Sequence[RungResult]) -> str:
    """Returns the sentence about one theory: effect at the start, where it ends, and what follows; empty if
    nothing was tested.
    """
    rungs = [rung for rung in rungs if rung.judged.outcome in TESTED]
    others = [rung for rung in rungs if rung.quantity]
    apart = [f"the {rung.quantity} is {_word(rung)} at {_quoted([rung])}" for rung in others]
    rungs = [rung for rung in rungs if not rung.quantity]
    if not rungs:
        return "; ".join(apart)
    outcomes = [rung.judged.outcome for rung in rungs]
    count = next((i for i, outcome in enumerate(outcomes) if outcome != "as predicted"), len(rungs))
    subject, rest = f"the {rungs[0].judged.row.quantity}", rungs[max(1, count) :]
    parts = [
        f"{subject} is as predicted {_span(rungs, count)}"
        if count
        else f"{subject} is {_word(rungs[0])} at {_quoted(rungs[:1])}"
    ]
    order = list(OUTCOMES)[1:] + list(OUTCOMES)[:1]
    groups = grouped(sorted(rest, key=lambda rung: order.index(rung.judged.outcome)), _word)
    for word, group in groups.items():
        again = " again" if group[0].judged.outcome == "as predicted" and count else ""
        if len(groups) == 1:
            several = len(group) > 1
            parts.append(
                f"{word} {'from' if several else 'at'} {_quoted(group[:1])}{' on' if several else ''}"
            )
        else:
            parts.append(f"{word}{again} at {_quoted(group)}")
    return "; ".join([*parts, *apart])


def _span(rungs: Sequence[RungResult], count: int) -> str:
    """Describes the first ``count`` rungs, which are as predicted: the last of them, and the effect at both
    ends.

    If the effect falls below one half and stays there, the rung on which it does is named before the last
    one. Earlier rungs below one half are named, too.
    """
    first, last = rungs[0], rungs[count - 1]
    if count == len(rungs):
        where = f"on all {count} rungs"
    else:
        where = f"up to {_quoted([last])}" if count > 1 else f"at {_quoted([first])} only"
    if first.judged.effect is None:
        return f"{where} ({first.number} at {_quoted([first])})"
    kind = "effect relative to the first rung" if first.judged.row.basis == "own setting" else "effect"
    low = [rung.judged.effect is not None and rung.judged.effect < HALF for rung in rungs[:count]]
    start = next((index for index in range(count) if all(low[index:])), count)
    numbers = [f"{kind} {first.number} at {_quoted([first])}"]
    if between := [rung for rung, below in zip(rungs[:start], low) if below]:
        numbers.append(f"below {format.effect(HALF)} at {_quoted(between)}")
    if 0 < start < count - 1:
        fall = _quoted([rungs[start]])
        numbers.append(f"below {format.effect(HALF)} from {fall} on, {last.number} at {_quoted([last])}")
    elif count > 1:
        numbers.append(f"{last.number} at {_quoted([last])}")
    return f"{where} ({', '.join(numbers)})"


def _word(rung: RungResult) -> str:
    return "on the opposite side" if rung.judged.outcome == "opposite" else rung.judged.words


def _quoted(rungs: Sequence[RungResult]) -> str:
    return joined([f"“{rung.name}”" for rung in rungs])


# ---- the timeline


def timeline_sentences(group: Iterable[Series]) -> list[str]:
    """Returns one sentence per network: which quantities leave the band of their null, in the order in which
    they do, and which do not.

    For those that leave it, the sentence also names the step at which they have made half of their change.
    With several seeds, a last sentence says what the means are taken over.
    """
    group, texts = list(group), []
    for model in dict.fromkeys(s.model for s in group):
        of_model = [s for s in group if s.model == model]
        left = sorted(
            (s for s in of_model if s.judged and s.departure is not None), key=lambda s: s.departure or 0
        )
        rest = [s for s in of_model if s not in left]
        judged, unknown = [s for s in rest if s.judged], [s for s in rest if not s.judged]
        with_side = [s for s in left if s.side is not None]
        parts = [_departures([s for s in with_side if s.as_predicted], " as predicted")]
        parts.append(
            _departures(
                [s for s in with_side if not s.as_predicted], " on the side opposite to the prediction"
            )
        )
        parts.append(_departures([s for s in left if s.side is None], ""))
        groups = (
            (
                [s for s in judged if not s.outside.any()],
                "stays within its null band",
                "stay within their null bands",
            ),
            (
                [s for s in judged if s.within and s.outside.any()],
                "is outside its null band only briefly",
                "are outside only briefly",
            ),
            (
                [s for s in judged if not s.within],
                "leaves its null band and returns",
                "leave their null bands and return",
            ),
            ([s for s in unknown if s.still], "does not move", "do not move"),
            (
                [s for s in unknown if s.draws and not s.still],
                "has too few null draws",
                "have too few null draws",
            ),
            ([s for s in unknown if not s.draws and not s.still], "has no null", "have no null"),
        )
        parts += [
            f"{joined([s.label for s in members])} {one if len(members) == 1 else several}"
            for members, one, several in groups
            if members
        ]
        if parts := list(filter(None, parts)):
            texts.append(f"In {model}, {'; '.join(parts)}.")
    seeds = max((s.seeds for s in group), default=1)
    if texts and seeds > 1:
        texts.append(f"All curves, and the correlations below, are those of means over {seeds} seeds.")
    return texts


def _departures(left: Sequence[Series], way: str) -> str:
    """Describes when quantities leave their null bands: ``"a leaves its null band as predicted at step 10
    (half of its change: 20)"``.
    """
    if not left:
        return ""
    first, *later = left
    return ", ".join(
        [f"{first.label} leaves its null band{way} {_when(first)}", *(f"{s.label} {_when(s)}" for s in later)]
    )


def _when(s: Series) -> str:
    """Says when a curve leaves its band, and when it has made half of its change."""
    start = "from the start" if s.departure == s.steps[0] else f"at step {s.departure:,}"
    return start + ("" if s.crossing is None else f" (half of its change: step {s.crossing:,})")


# ---- one network


def network_statements(chosen: Sequence[Quantity], found: Sequence[Quantity]) -> list[tuple[str, str, str]]:
    """Returns at most :data:`MAX_OF_NETWORK` triples (title of a theory, what stands out, what the quantity
    is).

    Headlines that leave their nulls by an effect that is worth a sentence (:attr:`.Quantity.is_said`) come
    first, the largest effect first, then headlines of which single heads or layers do
    (:func:`~..comparison.judged.notable`). A headline that another null gives as well does not stand out.

    Args:
        chosen: the headlines.
        found: all quantities.
    """
    leaving = sorted((each for each in chosen if each.is_said), key=strength)
    named = {each.theory for each in chosen if each.judged.outcome in (*_BEYOND, *_MATCHED)}
    pairs = [(each, _headline(each)) for each in leaving]
    for each in notable(found):
        if each.theory not in named and each.judged.outcome not in _MATCHED:
            named.add(each.theory)
            pairs.append((each, _places(each)))
    return [(each.title, text, each.meaning) for each, text in pairs[:MAX_OF_NETWORK]]


def other_outcomes(chosen: Sequence[Quantity], found: Sequence[Quantity]) -> list[tuple[str, str]]:
    """Returns pairs (outcome, titles of theories) for the headlines that have no sentence, those beyond their
    null first.
    """
    named = {title for title, *_ in network_statements(chosen, found)}
    rest = [each for each in chosen if not (each.is_said and each.title in named)]

    def outcome(each: Quantity) -> str:
        if each.judged.outcome not in _BEYOND:
            return each.judged.words
        if each.of_labels:
            return f"{each.judged.words}, {OF_LABELS}"
        return f"also {each.judged.words}" if each.is_large else f"{each.judged.words}, by a small effect"

    groups = grouped(sorted(rest, key=lambda each: _ORDER.index(each.judged.outcome)), outcome)
    return [(word, ", ".join(each.short_title for each in same)) for word, same in groups.items()]


def strength(quantity: Quantity) -> tuple[int, bool, float]:
    """Orders quantities by outcome, those with a p-value first, and by the size of the effect."""
    judged = quantity.judged
    return _ORDER.index(judged.outcome), judged.q is None, -abs(judged.effect or 0.0)


def _headline(quantity: Quantity) -> str:
    """Describes a headline that leaves its nulls: ``"sharpness: 0.396 on average over 72 heads in 6 layers;
    copies of equal scale have 0.059 (p = .010, effect 0.36), as predicted"``.
    """
    judged, row = quantity.judged, quantity.mean
    assert row.null is not None
    assert row.value is not None
    average = f" on average over {quantity.places}" if len(quantity.rows) > 1 else ""
    side = "above" if row.value > row.null.median else "below"
    value, median = format.of_row(row.value, row), format.of_row(row.null.median, row)
    predicted = "as predicted" if judged.outcome == "as predicted" else "opposite to the prediction"
    p = f"p = {format.p_value(judged.q)}" if judged.q is not None else f"{len(row.null.draws)} draws"
    numbers = ", ".join(filter(None, (p, effect_in_words(quantity))))
    value += f", {quantity.below_zero}," if row.value < 0 and quantity.below_zero else ""
    text = f"{quantity.label}: {value}{average}, {side} {in_words(row.null.kind)} with {median} ({numbers}), "
    text += predicted
    if quantity.beyond and len(quantity.rows) > 1:
        kind = "heads" if quantity.beyond[0].head is not None else "layers"
        count = f"{len(quantity.beyond)} of {quantity.tested}"
        text += f"; {count} {kind} are so by themselves, most of all {place(quantity.beyond[0])}"
        text += _below_zero(quantity)
    return text


def _below_zero(quantity: Quantity) -> str:
    """Says what the negative value of the farthest place means; empty if it is not negative."""
    value = quantity.beyond[0].value
    return f", {quantity.below_zero}" if quantity.below_zero and value is not None and value < 0 else ""


def effect_in_words(quantity: Quantity) -> str:
    """Returns the effect size with its unit; empty without one."""
    effect = quantity.judged.effect
    if effect is None:
        return ""
    size = format.effect(effect)
    if quantity.judged.effect_unit == "median":
        return f"effect {size} × the median of the copies"
    return f"effect {size} of the way to the {quantity.judged.effect_unit}"


def _places(quantity: Quantity) -> str:
    """Describes single places that leave their copies, of a quantity whose mean does not."""
    row, first = quantity.mean, quantity.beyond[0]
    kind = "heads" if first.head is not None else "layers"
    chance = f", copies of equal scale {format.of_row(row.null.median, row)}" if row.null is not None else ""
    most = f"{place(first)}{_below_zero(quantity)}"
    return (
        f"{quantity.label}: beyond copies of equal scale in {len(quantity.beyond)} of {quantity.tested} "
        f"{kind}, most of all in {most}; mean over all {kind}: {format.of_row(row.value, row)}{chance}"
    )


def place(row: Measurement, *, beside_chance: bool = True) -> str:
    """Names a head or layer with its value and the median of its own null."""
    known = beside_chance and row.null is not None and bool(row.null.draws)
    kind = "copies" if row.null is not None and row.null.kind == EQUAL_SCALE else "chance"
    chance = f", {kind} {format.of_row(row.null.median, row)}" if row.null is not None and known else ""
    return f"{format.place(row, 'layer', 'head')} ({format.of_row(row.value, row)}{chance})"


def shape(result: Result) -> str:
    """Returns layers and heads of a network in words: ``"4 layers of 4 heads"``; empty if nothing was
    measured by layer.
    """
    rows = [row for row in result.table if row.layer is not None and row.value is not None]
    if not rows:
        return ""
    heads = {row.layer: 0 for row in rows}
    for row in rows:
        if row.head is not None:
            heads[row.layer] = max(heads[row.layer], row.head + 1)
    counts = set(heads.values())
    own = f" of {format.counted(counts.pop(), 'head')}" if len(counts) == 1 and counts != {0} else ""
    return f"{format.counted(len(heads), 'layer')}{own}"


def inputs_of(result: Result) -> str:
    """Returns the inputs of a probed network in words, or the number of its forward passes."""
    passes = int(result.settings.get("forward_passes") or 1)
    return str(result.settings.get("inputs") or f"{passes:,} forward pass{'es' * (passes > 1)}")


def subject(result: Result) -> str:
    """Returns what was measured: ``"my ViT (4 layers of 4 heads) on 128 images of shape [1, 8, 8]"``."""
    model = next((row.model for row in result.table if row.model), "the network")
    size = shape(result)
    return f"{model}{f' ({size})' if size else ''} on {inputs_of(result)}"
