"""Combines several results: rows that differ only in their seed become one entry, and verifications of one
claim are pooled over seeds.

Rows are grouped by the columns that determine what was measured and where
(:data:`~..core.measurement.IDENTITY`), by the name of the result ("compare", "train", an experiment) and by
its settings. Runs that differ only in their seed, theories, networks, processes or machine are pooled; every
other setting separates them, and the entry names it. A seed counts once, however many results hold it.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core import format
from ..core.claims import Claim, Verification
from ..core.measurement import IDENTITY, Measurement
from ..core.result import Result
from ..core.statistics import over_heads, over_seeds
from ..core.table import grouped
from ..core.theory import Theory
from ..probes.paired import PAIRED

COMPARE, REACH, TRAIN, PROBE, VERIFY = "compare", "reach", "train", "probe", "verify"  # names of results
NETWORK = "network"  # entry of the column "theory" in rows that belong to no theory
ON_DATA, IN_NETWORKS = ("on data", "assumption"), ("in network", "network")  # kinds of rows
SAME = 1e-9  # relative difference up to which values from different machines count as equal
_INDIFFERENT = (  # settings in which pooled runs may differ
    *(
        "seed",
        "seeds",
        "claims",
        "claim_seeds",
        "theories",
        "networks",
        "models",
        "run_id",
        "workers",
        "device",
    ),
    *("data", "max_seconds"),  # the data are a column of the rows
    *("until", "inputs", "ladders"),  # of a reach; the rung is a column of the rows
)
# settings of a comparison on which the analysis of raw tokens depends
_OF_DATA = ("n", "seq", "dim", "checksum")


@dataclass(frozen=True, eq=False)
class Entry:
    """One quantity in one place, over all seeds and results that measured it.

    Attributes:
        row: the summary over seeds (:func:`~..core.statistics.over_seeds`).
        rows: the rows that were pooled, one per seed.
        results: index of the result of each row.
        on: the place of the measurement as text: data, model, setting, layer, and the settings in which
            results differ.
        note: the note that all rows share, and warnings about the aggregation.
    """

    row: Measurement
    rows: tuple[Measurement, ...]
    results: tuple[int, ...]
    on: str
    note: str

    @property
    def seeds(self) -> int:
        """Number of rows that have a value."""
        return sum(row.value is not None for row in self.rows)

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of rows with each verdict, the most severe verdict first."""
        counts = Counter(row.verdict for row in self.rows if row.verdict)
        return {name: counts[name] for name in sorted(counts, key=format.severity)}

    @property
    def missing(self) -> bool:
        """Whether there is no value; the row then gives a reason."""
        return self.row.value is None


@dataclass(frozen=True, eq=False)
class Checked:
    """A claim with all seeds of all results.

    Attributes:
        theory: the theory that makes the claim.
        verification: the evidence of every seed.
        note: a warning about the aggregation.
        number: 1, 2, ... among the verifications of this claim that cannot be pooled because their texts
            differ.
    """

    theory: Theory
    verification: Verification
    note: str = ""
    number: int = 1

    @property
    def name(self) -> str:
        """The claim's name without its theory: ``"attention_svm/global-direction" -> "global direction"``."""
        return self.verification.id.partition("/")[2].replace("-", " ")

    @property
    def anchor(self) -> str:
        """The id of the claim's card on the page."""
        return f"claim-{format.slug(self.verification.id)}{f'-{self.number}' if self.number > 1 else ''}"


@dataclass(frozen=True, eq=False)
class Aggregate:
    """Several results as one.

    Attributes:
        results: the results, in the given order.
        entries: quantities sorted by theory, within a theory in order of appearance; quantities of no theory
            come last.
        claims: pooled verifications, in the order of the theories.
        theories: records of the theories in the results: registered theories in the order of the registry,
            then unknown ones.
        notes: warnings about the results as a whole.
    """

    results: tuple[Result, ...]
    entries: tuple[Entry, ...]
    claims: tuple[Checked, ...]
    theories: tuple[Theory, ...]
    notes: tuple[str, ...]

    def select(self, **equal: Any) -> list[Entry]:
        """Returns the entries whose row has the given values in the named columns; a tuple lists several
        accepted values.
        """
        wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in equal.items()}
        return [
            entry
            for entry in self.entries
            if all(getattr(entry.row, name) in choice for name, choice in wanted.items())
        ]

    def headlines(self, theory: Theory) -> list[Entry]:
        """Returns the entries of a theory's headlines: first that on data, then that in networks, averaged
        over layers and heads.
        """
        found: list[Entry] = []
        if (on_data := theory.on_data) is not None:
            found += self.select(
                theory=theory.name, kind="on data", quantity=on_data.headline, layer=None, head=None
            )
        if (inside := theory.in_networks) is not None:
            found += self.select(
                theory=theory.name, kind="in network", quantity=inside.headline, layer=None, head=None
            )
        return found

    def claims_of(self, theory: Theory) -> list[Checked]:
        """Returns the claims of one theory."""
        return [checked for checked in self.claims if checked.theory is theory]

    def labels(self, entry: Entry) -> str:
        """Names the results behind an entry: ``"R1, R3"``."""
        return _names(sorted(set(entry.results)))


def result_label(index: int) -> str:
    """Returns the name of a result in tables: ``"R1"`` for index 0."""
    return f"R{index + 1}"


def aggregate(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> Aggregate:
    """Combines the results.

    Args:
        results: one or several results of ``compare``, ``verify``, ``train``, ``probe`` or experiments, in
            any mixture.
        theories: known theories; the registry if None.
    Raises:
        ValueError: there is no result.
    """
    all_results = (results,) if isinstance(results, Result) else tuple(results)
    if not all_results:
        raise ValueError(
            "results must hold at least one, got none; name a folder that compare, verify, run or train has "
            "written"
        )
    records = theories_of(all_results, theories)
    order = {theory.name: index for index, theory in enumerate(records)}
    # rows that an earlier version has stored without bounds have those of the ladder today
    bounds = {(one.name, one.ladder.quantity): one.ladder.bounds for one in records if one.ladder is not None}
    entries = sorted(_entries(all_results, bounds), key=lambda entry: order.get(entry.row.theory, len(order)))
    return Aggregate(
        all_results,
        tuple(entries),
        tuple(_claims(all_results, records)),
        tuple(records),
        tuple(_notes(all_results)),
    )


def theories_of(results: Iterable[Result], known: Iterable[Theory] | None = None) -> list[Theory]:
    """Returns records of the theories in the results: known theories in their order, then unknown ones, whose
    records have only a name.
    """
    if known is None:
        from ..theories import list_theories

        known = list_theories()
    records = {theory.name: theory for theory in known}
    names: dict[str, None] = {}
    for result in results:
        names |= dict.fromkeys(result.settings.get("theories") or ())
        names |= dict.fromkeys(row.theory for row in result.table)
        names |= dict.fromkeys(verification.theory for verification in result.verifications)
    unknown = [name for name in names if name not in records and name != NETWORK]
    return [theory for name, theory in records.items() if name in names] + [
        Theory(name=name, title=name, question="", statement="", sources=(), assumptions=(), claims=())
        for name in unknown
    ]


def data_name(result: Result) -> str:
    """Returns the name of the data of a comparison or a training run, that of a probed network, or else the
    name of the result.
    """
    if result.name == PROBE:
        return str(result.settings.get("model") or result.name)
    return str(result.settings.get("data") or "data") if result.name in (COMPARE, TRAIN) else result.name


def _entries(results: Sequence[Result], bounds: Mapping[tuple[str, str], Any]) -> Iterator[Entry]:
    """Groups the rows of all results by quantity, place and settings, and yields one entry per group.

    Args:
        results: the results.
        bounds: bounds of rows that have none, by theory and quantity.
    """
    import pandas

    rows: list[Measurement] = []
    keys: list[dict[str, Hashable]] = []
    for index, result in enumerate(results):
        run = result.settings.get("run_id") or result.settings.get("seed")
        for row in _final_rows(result):
            known = bounds.get((row.theory, row.quantity)) if row.bounds is None else None
            row = row if known is None else replace(row, bounds=known)
            identity: dict[str, Hashable] = {name: getattr(row, name) for name in IDENTITY}
            identity |= {
                "data": row.data or str(result.settings.get("data", "")),
                "op": row.op,
                "basis": row.basis,
            }
            keys.append(
                identity
                | {
                    "result": result.name,
                    "settings": _settings(result, row),
                    "run": str((run, row.seed)),
                    "index": index,
                }
            )
            rows.append(row)
    if not rows:
        return
    frame = pandas.DataFrame(keys)
    group = [*IDENTITY, "op", "basis", "result", "settings"]
    # Rows of one run that agree in all these columns are different measurements, not seeds of the same
    # measurement. They are numbered, so that the first is pooled with the first of every other run, the
    # second with the second.
    frame["repeat"] = frame.groupby([*group, "run", "index"], dropna=False, sort=False).cumcount()
    differences = _differing_settings({(str(key["result"]), key["settings"]) for key in keys})
    several_data = len({key["data"] for key in keys if key["data"]}) > 1
    several_splits = len({row.split for row in rows if row.kind == "in network"}) > 1
    for indices in frame.groupby([*group, "repeat"], dropna=False, sort=False).indices.values():
        row, key = rows[indices[0]], keys[indices[0]]
        split = row.split if several_splits and row.kind == "in network" else ""
        differing = ", ".join(
            filter(None, (split and f"{split} data", differences[str(key["result"]), key["settings"]]))
        )
        on = _on(row, str(key["result"]), str(key["data"]) if several_data else "", differing)
        yield _entry([(str(keys[i]["run"]), int(str(keys[i]["index"])), rows[i]) for i in indices], on)


def _entry(group: Sequence[tuple[str, int, Measurement]], on: str) -> Entry:
    """Pools triples ``(run, index of the result, row)``. If several results hold the same run, only its row
    with the most severe verdict is used.
    """
    runs = grouped(group, lambda one: one[0]).values()
    unique = [min(same, key=lambda one: format.severity(one[2].verdict)) for same in runs]
    rows = tuple(row for *_, row in unique)
    row = over_seeds(rows)
    notes = [row.note]
    if any(not _same(same[0][2], other) for same in runs for *_, other in same):
        where = _names(sorted({index for _, index, _ in group}))
        notes.append(
            f"{where} hold different numbers for one seed; it counts once, with its most severe verdict"
        )
    return Entry(row, rows, tuple(index for _, index, _ in unique), on, _notes_together(*notes))


def _same(first: Measurement, second: Measurement) -> bool:
    """Returns whether two rows of one run have the same verdict and, up to rounding, the same value."""
    if first.verdict != second.verdict or (first.value is None) != (second.value is None):
        return False
    if first.value is None or second.value is None:
        return True
    scale = max(
        abs(number) for number in (first.value, second.value, first.threshold or 0.0, first.predicted or 0.0)
    )
    return math.isclose(first.value, second.value, rel_tol=SAME, abs_tol=SAME * scale)


def _final_rows(result: Result) -> Iterator[Measurement]:
    """Yields the rows that tables show.

    Rows of claims are omitted, because tables show their verifications, and so are differences of two
    networks, which have a table of their own. A quantity that was measured during training gets one row: the
    summary row without step and layer if the result holds one, otherwise the mean
    over layers and heads at the last step.
    """
    timelines: dict[tuple, list[Measurement]] = {}
    summarised = {
        (row.theory, row.quantity, row.model)
        for row in result.table
        if row.kind == "in network" and (row.step, row.layer) == (None, None)
    }
    for row in result.table:
        if row.kind in IN_NETWORKS and row.step is not None:
            if (row.theory, row.quantity, row.model) not in summarised:
                timelines.setdefault(
                    (row.theory, row.kind, row.quantity, row.split, row.setting, row.model, row.seed), []
                ).append(row)
        elif row.kind != "claim" and not PAIRED & row.at.keys():
            yield row
    for rows in timelines.values():
        last = max(row.step or 0 for row in rows)
        ends = [row for row in rows if row.step == last]
        if len(ends) == 1:  # a quantity of the whole network, or of its only head
            yield replace(ends[0], step=None, note=_notes_together(ends[0].note, f"step {last:,}"))
        else:
            note = _notes_together(ends[0].note, f"mean over layers and heads, step {last:,}")
            yield replace(over_heads(ends), layer=None, step=None, note=note)


def _notes_together(*notes: str) -> str:
    """Joins notes by semicolons: first the note of the measurement, without its full stop, then the remarks
    of the report.
    """
    first, *remarks = notes
    return "; ".join(filter(None, (first.removesuffix(".") if any(remarks) else first, *remarks)))


def _settings(result: Result, row: Measurement) -> tuple[tuple[str, str], ...]:
    """Returns the settings of the result on which the row depends, as pairs (name, value) sorted by name."""
    names = set(result.settings) - set(_INDIFFERENT)
    if result.name == COMPARE and row.kind in ON_DATA and not row.model:
        names &= set(_OF_DATA)
    flat = format.flatten({name: result.settings[name] for name in sorted(names)})
    # networks from different files are different networks
    if file := (result.settings.get("models") or {}).get(row.model):
        flat.append(("file", str(file)))
    return tuple((name, text) for name, text in flat if name.rpartition(": ")[2] not in _INDIFFERENT)


def _differing_settings(pairs: Collection[tuple[str, Any]]) -> dict[tuple[str, Any], str]:
    """Maps each pair (name of the result, settings) to the settings in which results of this name differ, as
    text: ``"steps 200"``.
    """
    by_name = grouped(pairs, lambda pair: pair[0])
    texts = {}
    for name, settings in pairs:
        others = [dict(other) for _, other in by_name[name]]
        # Results without the setting are not compared: their rows do not depend on it.
        differing = [key for key, _ in settings if len({other[key] for other in others if key in other}) > 1]
        texts[name, settings] = ", ".join(
            f"{key.replace('_', ' ')} {dict(settings)[key]}" for key in differing
        )
    return texts


def _on(row: Measurement, result: str, data: str, differing: str) -> str:
    """Describes where a row was measured; ``differing`` names the settings and the split in which it differs
    from other entries.
    """
    if row.kind in ON_DATA:
        where = format.view_name(row.model)
    elif row.kind == "in network":
        where = f"trained {row.model}" if row.model else "trained network"
    elif row.kind == "network":
        where = (row.model or "network") if result != TRAIN else f"{row.model or 'network'}, in its training"
    else:
        where = ", ".join(filter(None, (result, row.model, row.rung)))
    where = f"{data}: {where}" if data and row.kind != "figure" else where
    names = ("setting", "layer", "head", "step")
    return ", ".join(filter(None, (where, format.place(row, *names), differing)))


def _claims(results: Sequence[Result], theories: Sequence[Theory]) -> Iterator[Checked]:
    """Yields the verifications of each claim. Verifications with the same texts are pooled; a seed counts
    once.
    """
    made = [(index, one) for index, result in enumerate(results) for one in result.verifications]
    by_claim = grouped(made, lambda pair: (pair[1].theory, pair[1].id))
    for theory in theories:
        for same in (same for (name, _), same in by_claim.items() if name == theory.name):
            groups = grouped(same, lambda pair: _texts(pair[1])).values()
            for number, group in enumerate(groups, 1):
                where = _names([index for index, _ in group])
                note = (
                    f"of {where}: the text of the claim differs between the results"
                    if len(groups) > 1
                    else ""
                )
                yield Checked(theory, pooled([one for _, one in group]), note, number)


_TEXTS = ("id", "statement", "measures", "assumptions", "control_description")


def _texts(claim: Verification | Claim) -> tuple:
    return tuple(getattr(claim, name) for name in _TEXTS)


def pooled(verifications: Sequence[Verification]) -> Verification:
    """Pools the seeds of several verifications of one claim. If several hold a seed, the last one is used."""
    seeds = {
        seed: pair for item in verifications for seed, *pair in zip(item.seeds, item.evidence, item.controls)
    }
    evidence, controls = zip(*seeds.values())
    return dataclasses.replace(verifications[0], seeds=tuple(seeds), evidence=evidence, controls=controls)


def unfinished(result: Result) -> bool:
    """Returns whether the result is a training run that has not finished: it has no measurements on test data
    yet.
    """
    return result.name == TRAIN and not result.select(kind="network", split="test")


def _notes(results: Sequence[Result]) -> Iterator[str]:
    """Yields warnings about the results as a whole."""
    if early := [index for index, result in enumerate(results) if unfinished(result)]:
        yield f"The training of {_names(early)} has not finished; its last measurements are shown."
    commits = grouped(
        range(len(results)), lambda index: str(results[index].provenance.get("commit") or "")[:8]
    )
    if len(commits) > 1:
        listed = "; ".join(
            f"{commit or 'commit not known'}: {_names(indices)}" for commit, indices in commits.items()
        )
        yield f"The results were measured by different versions of the library ({listed})."
    if changed := [index for index, result in enumerate(results) if result.provenance.get("dirty")]:
        yield f"{_names(changed)} {'was' if len(changed) == 1 else 'were'} measured with changes that were not committed."  # noqa: E501


def _names(indices: Sequence[int]) -> str:
    return ", ".join(map(result_label, indices))
