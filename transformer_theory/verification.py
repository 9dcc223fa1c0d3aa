"""Verifications: claims checked on many seeds, in one process or several, as rows that can be stored and as a document of plain JSON.

A verification is a :class:`~.experiment.Result` named "verify": of each claim one row "claim: ID" a seed (:meth:`~.claims.Verdict.rows`)
and one row "claim verdict: ID". :func:`summaries` reads it, fresh or stored, and everything that is told of it is made from these.

Source: none, this is machinery; the interval: :cite:t:`clopper1934use`.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, Literal, get_args

from .citations import Source
from .claims import CLAIM, CLAIM_VERDICT, CONTROL_WORDS, Claim, ControlName, Evidence, Verdict, VerdictName, overall
from .experiment import Result, jsonable, provenance
from .intervals import clopper_pearson
from .rows import Row
from .threads import one_thread
from .workers import at_work, stream

NAME = "verify"  # of the result
FORMAT = 1  # of the document


def rows(verdict: Verdict) -> list[Row]:
    """A row a seed, and one for all of them: its value is the share of decided seeds that are consistent."""
    claim = verdict.claim
    total = Row(
        theory=claim.id.split("/")[0],
        quantity=f"{CLAIM_VERDICT}{claim.id}",
        value=verdict.share,
        verdict=_said(verdict.verdict, verdict.control),
        control=verdict.control,
        source=str(claim.source),
        note=str(verdict),
    )
    return [*(Row(**row) for row in verdict.rows()), total]


def _said(verdict: VerdictName, control: ControlName) -> str:
    """The verdict; what is wrong with the control instead if it does not fail, since the check has no power then."""
    return verdict if control == "fails" else f"control {CONTROL_WORDS[control]}"


def verification(
    claims: Iterable[Claim],
    seeds: Iterable[int] = range(5),
    *,
    workers: int | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Every claim with its control on every seed. Each runs on one thread, so the rows do not depend on the workers.

    Args:
        claims: each is checked once, in this order.
        seeds: each draws an instance.
        workers: processes on this machine, or the address of a dask scheduler (see :func:`~.workers.at_work`); None leaves the active
            joblib context as it is. They share claims and seeds, since a few slow claims take most of the time.
        progress: called with a line before each claim.
    Returns:
        A result with params "claims" (their ids) and "seeds" (how many).
    Raises:
        ValueError: no claim, no seed, or no such workers.
        ConnectionError: no scheduler answers, or it has no workers.
    """
    started = time.perf_counter()
    chosen, numbers = list({claim.id: claim for claim in claims}.values()), tuple(seeds)
    if not chosen or not numbers:
        raise ValueError(f"claims and seeds must name at least one each, got {len(chosen)} claims and {len(numbers)} seeds; name one")
    told = "1 seed" if len(numbers) == 1 else f"{len(numbers)} seeds, each"
    table: list[Row] = []
    with at_work(workers) as present, one_thread():
        found = verdicts(chosen, numbers)
        for number, claim in enumerate(chosen, 1):
            if progress:
                progress(f"{claim.id} ({number} of {len(chosen)}): {told} with its control")
            table += rows(next(found))
        record = provenance(started=started) | {"workers": present.number}
    sources = tuple(dict.fromkeys(claim.source for claim in chosen))
    return Result(NAME, {"claims": [claim.id for claim in chosen], "seeds": len(numbers)}, table, {}, sources, record)


def verdicts(claims: Sequence[Claim], seeds: Sequence[int]) -> Iterator[Verdict]:
    """Each claim's verdict over the seeds, in order, as soon as it is there (:func:`~.workers.stream`)."""
    examined = stream(_examine, ({"claim": claim, "seed": seed} for claim in claims for seed in seeds))
    return (Verdict.of(claim, seeds, islice(examined, len(seeds))) for claim in claims)


def _examine(*, claim: Claim, seed: int) -> tuple[Evidence, Evidence]:
    return claim.examine(seed)


@dataclass(frozen=True)
class Summary:
    """What all seeds said of a claim, from the rows of a result.

    Attributes:
        id: of the claim.
        source: as the rows state it; None if they state none that is in the bibliography.
        seeds, consistent, decided: how many there were, how many were consistent, and how many consistent or violated.
        verdict: of all seeds (:func:`~.claims.overall`).
        op: the claim holds if ``value op bound``.
        worst: the value nearest to its line, or farthest beyond it, over the decided seeds (if there is none, over all); None if no value
            is finite.
        bound: the line of that seed; None if no seed has one, as where a solver always gave up.
        median: over the seeds with a finite value; None if there is none.
        control: what the controls did: "passes" if any row says so, "fails" only if all do.
        control_value: the control's value that comes nearest to passing; None if no value is finite.
    """

    id: str
    source: Source | None
    seeds: int
    consistent: int
    decided: int
    verdict: VerdictName
    op: Literal["<=", ">="]
    worst: float | None
    bound: float | None
    median: float | None
    control: ControlName
    control_value: float | None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Summary":
        """From a claim of a :func:`document`."""
        source, control = told["source"], told["control"]
        return cls(
            **{name: told[name] for name in ("id", "seeds", "consistent", "decided", "verdict", "op", "bound", "median")},
            source=Source(source["key"], source["locator"]),
            worst=told["value"],
            control=control["verdict"],
            control_value=control["value"],
        )

    @property
    def share(self) -> float | None:
        """Of the decided seeds that are consistent; None if none was decided."""
        return self.consistent / self.decided if self.decided else None

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper-Pearson 95 % interval of the share; (0, 1) if no seed was decided."""
        low, high = clopper_pearson(self.consistent, self.decided)
        return float(low), float(high)

    @property
    def said(self) -> str:
        """The verdict, or what is wrong with the control: ``"control PASSES: no power"``."""
        return _said(self.verdict, self.control)

    @property
    def passed(self) -> bool:
        """Neither is the claim violated nor did its control do anything but fail."""
        return self.verdict != "violated" and self.control == "fails"


def summaries(result: Result) -> list[Summary]:
    """Of each claim that the result holds seeds of, in its order; any result may hold some, as that of a comparison does."""
    found: dict[str, list[Row]] = {}
    for row in result.table:
        if row["quantity"].startswith(CLAIM):
            found.setdefault(row["quantity"].removeprefix(CLAIM), []).append(row)
    return [_summary(id, own) for id, own in found.items()]


def _summary(id: str, own: Sequence[Row]) -> Summary:
    verdicts = [_known(row.get("verdict"), get_args(VerdictName)) for row in own]
    controls = [_known(row.get("control"), get_args(ControlName)) for row in own]
    lined = next((row for row in own if _finite(row.get("bound")) is not None), own[0])  # a solver that gave up has no line
    op, bound = lined.get("op", "<="), _finite(lined.get("bound"))
    decided = [row for row in own if row.get("verdict") in ("consistent", "violated")]
    nearest = min(_lines(decided or own, "value", op), default=(0.0, None, bound))
    control = max(_lines(own, "null", op), default=(0.0, None, None))
    return Summary(
        id=id,
        source=next((source for row in own if (source := Source.find(row.get("source")))), None),
        seeds=len(own),
        consistent=verdicts.count("consistent"),
        decided=len(decided),
        verdict=overall(verdicts),
        op=op,
        worst=nearest[1],
        bound=nearest[2],
        median=median(values) if (values := [value for row in own if (value := _finite(row["value"])) is not None]) else None,
        control=next(name for name in ("passes", "inconclusive", "fails") if name in controls),
        control_value=control[1],
    )


def _known(word: str | None, words: Collection[str]) -> Any:
    """The word; "inconclusive" if a row has none, or one that this version does not know."""
    return word if word in words else "inconclusive"


def _lines(own: Iterable[Row], column: Literal["value", "null"], op: str) -> list[tuple[float, float, float]]:
    """How far on its side of the line each number lies, the number, and the line; of rows where both are finite."""
    pairs = [(_finite(row.get(column)), _finite(row.get("bound"))) for row in own]
    sign = 1 if op == ">=" else -1
    return [(sign * (value - bound), value, bound) for value, bound in pairs if value is not None and bound is not None]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def document(result: Result, claims: Iterable[Claim]) -> dict[str, Any]:
    """The verification as JSON values, all numbers finite; what is none is null.

    Args:
        result: of :func:`verification`, fresh or stored.
        claims: the records, which have the words; those not among them are left out.
    Returns:
        * ``format``: 1; it will change if a field is taken away or changes its meaning.
        * ``claims``: a list, each with
          ``id``; ``statement`` (LaTeX between dollars);
          ``source``: ``key`` (BibTeX), ``locator``, ``label`` (for a reader), ``url`` (may be empty);
          ``assumptions`` (a list of sentences); ``corrects`` (what of the printed statement, empty if nothing);
          ``verdict``: "consistent", "violated", "inconclusive" or "outside assumptions";
          ``seeds``, ``consistent``, ``decided``: numbers of them; ``share`` of the decided that are consistent, and its 95 % ``interval``;
          ``value``: that of the worst seed, held against ``bound`` by ``op``; ``median`` over the seeds;
          ``control``: ``verdict`` ("fails" as it must, "passes" or "inconclusive"), ``says`` (what it changes), and ``value`` (that which
          comes nearest to passing).
        * ``provenance``: as in every stored result (:func:`~.experiment.provenance`), with the number of ``workers``.
    """
    words = {claim.id: claim for claim in claims}
    told = [_told(found, words[found.id]) for found in summaries(result) if found.id in words]
    return jsonable({"format": FORMAT, "claims": told, "provenance": result.provenance})


def _told(found: Summary, claim: Claim) -> dict[str, Any]:
    numbers = {
        "id": found.id,
        "verdict": found.verdict,
        "seeds": found.seeds,
        "consistent": found.consistent,
        "decided": found.decided,
        "share": found.share,
        "interval": found.interval,
        "value": found.worst,
        "median": found.median,
        "bound": found.bound,
        "op": found.op,
        "control": {"verdict": found.control, "value": found.control_value},
    }
    return reworded(numbers, claim)


def reworded(told: Mapping[str, Any], claim: Claim) -> dict[str, Any]:
    """A claim of a document with the words that its record has today; the numbers stay."""
    source = claim.source
    words = {
        "id": claim.id,
        "statement": claim.statement,
        "source": {"key": source.key, "locator": source.locator, "label": source.label, "url": source.url},
        "assumptions": list(claim.assumptions),
        "corrects": claim.corrects,
    }
    return {**words, **told, **words, "control": {**told["control"], "says": claim.control_says}}
