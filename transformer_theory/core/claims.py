"""Claims: a statement of a paper or of this library, a check that could refute it, and a control that must
be refuted.

A claim is one function, decorated with :func:`claim`. Its docstring is the statement, its body the check, and
its control is the same function with one argument changed (:func:`but`).

A theorem about limits is checked at finite time and finite precision, so a check never *proves* anything: its
verdict is "consistent", "violated", "inconclusive" (not finite, or not converged) or "not covered" (the
instance does not satisfy the assumptions). A check without power is worthless: each claim has a control, the
same check with one assumption removed or the target replaced, which must be violated. :class:`Verification`
records the outcome on all seeds.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from statistics import median
from typing import Any, Literal

import torch

from . import format, listeners, parallel
from .errors import NotConverged
from .measurement import Measurement, Null, Op, VerdictName, judge
from .presentation import presenting
from .sources import Source
from .statistics import clopper_pearson
from .typed import typed

Cost = Literal["quick", "training"]
ControlName = Literal["fails", "passes", "inconclusive"]
MARGIN = 2.0  # factor between measured numbers and threshold from which no reason is asked for
# frequent reasons for a smaller factor, see Claim.margin
BOUND = "the threshold is the bound of the statement, which the measured numbers may reach"
BY_CHANCE = "the threshold in standard errors is a level: 4.5 are exceeded by chance in 7 of a million draws"
NEAR = (
    "the threshold is near the measured numbers, so that a small error of the theory is seen; the control is "
    "at least a factor of two beyond it"
)
CONTROL_TEXT: Mapping[ControlName, str] = {  # texts for reports
    "fails": "fails as it must",
    "passes": "PASSES: no power",
    "inconclusive": "inconclusive: power unknown",
}


@dataclass(frozen=True)
class Measured:
    """What one check measured, if there is more to say than its number.

    Attributes:
        value: measured number, which :attr:`Claim.measures` names.
        detail: further numbers of the instance, stored with the verification.
        converged: whether the iteration behind ``value`` met its tolerance.
        covered: whether the instance satisfies the assumptions of the statement.
        note: one short sentence for the reader.
    """

    value: float
    detail: Mapping[str, float] = field(default_factory=dict)
    converged: bool = True
    covered: bool = True
    note: str = ""


@dataclass(frozen=True)
class Evidence:
    """The record of what one check measured, with the threshold of its claim; both are stored, so that a
    reader can apply another threshold.

    >>> Evidence(0.02, 0.1, "<=").verdict
    'consistent'
    >>> Evidence(0.02, 0.1, "<=", converged=False).verdict
    'inconclusive'

    Attributes:
        value: measured number, which :attr:`Claim.measures` names.
        threshold: bound on the value.
        op: ``"<="`` or ``">="``; the claim holds on this instance if ``value op threshold``.
        converged: whether the iteration behind ``value`` met its tolerance.
        covered: whether the instance satisfies the assumptions of the statement.
        detail: further numbers of the instance, stored with the verification.
        note: one short sentence for the reader.

    Raises:
        ValueError: ``op`` is neither ``"<="`` nor ``">="``.
    """

    value: float
    threshold: float
    op: Op
    converged: bool = True
    covered: bool = True
    detail: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self):
        if self.op not in ("<=", ">="):
            raise ValueError(f"op must be '<=' or '>=', got {self.op!r}")
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "threshold", float(self.threshold))

    @property
    def verdict(self) -> VerdictName:
        """Verdict on this instance: "consistent", "violated", "inconclusive" or "not covered"."""
        return judge(self.value, self.op, self.threshold, covered=self.covered, converged=self.converged)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as JSON values; None stands for numbers that are not finite."""
        stored = asdict(self) | {"value": _finite(self.value), "threshold": _finite(self.threshold)}
        return stored | {"detail": {name: _finite(float(number)) for name, number in self.detail.items()}}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Evidence":
        """Creates evidence from JSON values, in which None represents NaN."""
        numbers = {name: _from_json(stored[name]) for name in ("value", "threshold")}
        detail = {name: _from_json(number) for name, number in stored.get("detail", {}).items()}
        return typed(cls(**{**stored, **numbers, "detail": detail}))


Check = Callable[..., "float | Measured"]  # of a generator, and of keywords that have defaults
Outcome = tuple[Evidence, Evidence]  # of the check and of its control on one seed


@dataclass(frozen=True)
class Control:
    """The change that must violate a claim, made by :func:`but`: arguments of its function, or another
    function.
    """

    description: str
    instead: Check | None
    changed: Mapping[str, Any] = field(hash=False)


def but(description: str, instead: Check | None = None, /, **changed: Any) -> Control:
    """Describes the control of a claim: the same function with these arguments changed, or another function.

    >>> but("the scores are not scaled", scale=1.0).changed
    {'scale': 1.0}

    Args:
        description: the change, for the reader.
        instead: function of a generator that takes the place of the claim's.
        changed: keyword arguments of the function.

    Raises:
        ValueError: nothing is changed.
    """
    if instead is None and not changed:
        raise ValueError(f"a control must change an argument or the function, got only {description!r}")
    return Control(description, instead, changed)


class _Statement:
    """What a claim and its verification have in common."""

    id: str
    source: Source
    corrected: Source | None

    @property
    def theory(self) -> str:
        """Name of the theory."""
        return self.id.partition("/")[0]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The source of the statement, and the text that the claim corrects."""
        return (self.source,) if self.corrected is None else (self.source, self.corrected)

    @property
    def corrects_published(self) -> bool:
        """Whether the claim corrects a published text."""
        return self.corrected is not None and self.corrected.published


@dataclass(frozen=True)
class Claim(_Statement):
    """One statement of a theory with its check and its control; :func:`claim` makes it from a function.

    Attributes:
        id: ``"theory/name"``.
        statement: LaTeX in the notation of ``docs/notation.md``, a sentence with ``$...$``.
        measures: name of the number that is compared with the threshold, e.g. "1 - cosine to the max-margin
            direction".
        op: ``"<="`` or ``">="``; the claim holds on an instance if the measured number ``op threshold``.
        threshold: bound on the measured number.
        source: passage of the literature that makes the statement.
        assumptions: assumptions of the statement, one short sentence each. They include every condition by
            which the check selects random instances.
        function: function of a generator that draws an instance satisfying the assumptions and measures it.
        change: the control: the change that removes one assumption or replaces the target; it must violate
            the claim.
        corrects: error that must be corrected for the claim to hold: the statement, figure or number as it
            stands in ``corrected``, and the correct one. Markdown with LaTeX between dollars; empty if there
            is no error.
        corrected: the text with the error, its place there and whether we read it there; None if there is
            no error. Only a published text counts as corrected (:attr:`corrects_published`).
        cost: "quick" (about a second per seed) or "training" (trains a network).
        margin: reason why the threshold lies within a factor of :data:`MARGIN` of measured numbers, see
            :attr:`Verification.margins`; empty if it does not.

    Raises:
        ValueError: the id is not of the form ``"theory/name"``, ``measures`` is empty, the threshold is not
            finite, or a correction does not name its text.
    """

    id: str
    statement: str
    measures: str
    op: Op
    threshold: float
    source: Source
    assumptions: tuple[str, ...]
    function: Check
    change: Control
    corrects: str = ""
    corrected: Source | None = None
    cost: Cost = "quick"
    margin: str = ""

    def __post_init__(self):
        theory, slash, name = self.id.partition("/")
        if not (theory and slash and name):
            raise ValueError(f"the id of a claim must be theory/name, got {self.id!r}")
        if not self.measures:
            raise ValueError(
                f"the claim {self.id} must name the number that it compares with the threshold (measures)"
            )
        if not math.isfinite(self.threshold):
            raise ValueError(f"the threshold of the claim {self.id} must be finite, got {self.threshold}")
        if bool(self.corrects) != (self.corrected is not None):
            raise ValueError(
                f"the claim {self.id} must have both corrects and corrected, the text that it corrects, or "
                "neither"
            )

    def __repr__(self) -> str:
        limit = f"{format.sign(self.op)} {format.number(self.threshold)}"
        return f"Claim({self.id!r}, measures={self.measures!r}, {limit})"

    def _repr_html_(self) -> str:
        return presenting().to_html(self)

    def __reduce__(self) -> Any:
        """Sends the name of a decorated function to other processes: its body is not sent.

        A claim of the main module, which other processes do not have, or one that was changed by ``replace``
        is sent as a whole.
        """
        module, name = (getattr(self.function, key, "") for key in ("__module__", "__name__"))
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is self:
            return _imported, (module, name)
        return super().__reduce__()

    @property
    def control_description(self) -> str:
        """Description of the change that the control makes."""
        return self.change.description

    def evidence(self, measured: float | Measured) -> Evidence:
        """Compares a measured number with the threshold."""
        if not isinstance(measured, Measured):
            measured = Measured(measured)
        return Evidence(
            measured.value,
            self.threshold,
            self.op,
            converged=measured.converged,
            covered=measured.covered,
            detail=measured.detail,
            note=measured.note,
        )

    def check(self, generator: torch.Generator, **changed: Any) -> Evidence:
        """Draws an instance and measures it, with other arguments of the function if any are given."""
        return self.evidence(self.function(generator, **changed))

    def control(self, generator: torch.Generator) -> Evidence:
        """Makes the change, draws an instance and measures it."""
        function = self.change.instead or self.function
        return self.evidence(function(generator, **self.change.changed))

    def run(self, seed: int) -> Outcome:
        """Runs check and control on one seed, each with a new generator. Evidence is inconclusive if a solver
        does not converge.
        """
        return self._on(self.check, seed), self._on(self.control, seed)

    def verify(self, seeds: Iterable[int] = range(5)) -> "Verification":
        """Runs check and control once per seed.

        Raises:
            ValueError: ``seeds`` is empty.
        """
        seeds = tuple(seeds)
        if not seeds:
            raise ValueError("seeds must name at least one seed, got none; pass e.g. seeds=range(5)")
        outcomes = []
        for number, seed in enumerate(seeds, 1):
            listeners.progress(f"check and control on seed {seed} ({number} of {len(seeds)})")
            outcomes.append(self.run(seed))
        return Verification.of(self, seeds, outcomes)

    def _on(self, check: Callable[[torch.Generator], Evidence], seed: int) -> Evidence:
        """Runs the check or the control on one seed."""
        try:
            return check(torch.Generator().manual_seed(seed))
        except NotConverged as error:
            note = f"not converged: {' '.join(str(error).split())}"
            return self.evidence(Measured(math.nan, converged=False, note=note))


def sources_of(claims: "Iterable[Claim | Verification]") -> list[Source]:
    """Returns the sources of claims, and the texts that they correct."""
    return [source for one in claims for source in one.sources]


def _imported(module: str, name: str) -> Claim:
    """Returns the claim with this name in a module."""
    return getattr(import_module(module), name)


def claim(
    id: str,
    *,
    measures: str,
    at_most: float | None = None,
    at_least: float | None = None,
    source: Source,
    assumptions: tuple[str, ...],
    control: Control,
    corrects: str = "",
    corrected: Source | None = None,
    cost: Cost = "quick",
    margin: str = "",
) -> Callable[[Check], Claim]:
    """Makes a claim from a function that draws an instance and measures it.

    The docstring of the function is the statement; its line breaks do not count. The function takes a
    generator, and as keywords with defaults what the control changes. It returns the number that ``measures``
    names, or :class:`Measured`.

    >>> @claim(
    ...     "numbers/square",
    ...     measures="smallest power",
    ...     at_least=0.0,
    ...     source=Source("tian2023scan"),
    ...     assumptions=("a hundred Gaussian numbers",),
    ...     control=but("third powers", power=3),
    ... )
    ... def square(generator: torch.Generator, *, power: int = 2) -> float:
    ...     "Squares of real numbers are not negative: $x^2 \\ge 0$."
    ...     return float((torch.randn(100, generator=generator) ** power).min())
    >>> square
    Claim('numbers/square', measures='smallest power', ≥ 0)
    >>> square.verify(range(3)).outcome
    'consistent'

    Args:
        id, measures, source, assumptions, corrects, corrected, cost, margin: as in :class:`Claim`.
        at_most: threshold of a number that the statement bounds from above.
        at_least: threshold of a number that the statement bounds from below; one of the two is needed.
        control: the change that must violate the claim, see :func:`but`.

    Raises:
        RuntimeError: Python runs with ``-OO``, which removes docstrings.
        ValueError: the function has no docstring, or not exactly one threshold is given.
    """
    if (at_most is None) == (at_least is None):
        raise ValueError(f"the claim {id} needs one threshold: pass at_most or at_least")

    def decorate(function: Check) -> Claim:
        if not function.__doc__:
            if sys.flags.optimize > 1:
                raise RuntimeError("the statements of claims are docstrings: run Python without -OO")
            raise ValueError(f"the claim {id} has no statement: write it as the docstring of its function")
        return Claim(
            id=id,
            statement=" ".join(function.__doc__.split()),
            measures=measures,
            op="<=" if at_most is not None else ">=",
            threshold=float(at_most if at_most is not None else at_least),  # pyright: ignore[reportArgumentType]
            source=source,
            assumptions=assumptions,
            function=function,
            change=control,
            corrects=corrects,
            corrected=corrected,
            cost=cost,
            margin=margin,
        )

    return decorate


def _from_json(number: float | None) -> float:
    """Returns a stored number; None represents NaN."""
    return math.nan if number is None else number


@dataclass(frozen=True)
class Verification(_Statement):
    """The outcome of a claim on its seeds. ``verdict`` is never "proved".

    Attributes:
        id, statement, measures, source, assumptions, control_description, corrects, corrected, cost: as in
            :class:`Claim`.
        seeds: random seeds of the instances.
        evidence: evidence of the check, one entry per seed.
        controls: evidence of the control, one entry per seed.
    """

    id: str
    statement: str
    measures: str
    source: Source
    assumptions: tuple[str, ...]
    control_description: str
    corrects: str
    corrected: Source | None
    cost: Cost
    seeds: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    controls: tuple[Evidence, ...]

    @classmethod
    def of(cls, claim: Claim, seeds: Iterable[int], outcomes: Iterable[Outcome]) -> "Verification":
        """Creates the verification from the results of :meth:`Claim.run`, one per seed and in the order of
        ``seeds``.
        """
        evidence, controls = zip(*outcomes)
        fields = {name: getattr(claim, name) for name in (*_CLAIM_FIELDS, "corrected")}
        return cls(**fields, seeds=tuple(seeds), evidence=evidence, controls=controls)

    @property
    def verdict(self) -> VerdictName:
        """The first of violated, consistent, inconclusive and not covered that is the verdict of at least one
        seed.
        """
        verdicts = {evidence.verdict for evidence in self.evidence}
        order: tuple[VerdictName, ...] = ("violated", "consistent", "inconclusive", "not covered")
        return next(name for name in order if name in verdicts)

    @property
    def control(self) -> ControlName:
        """State of the control: "fails" if it is violated on every seed, "passes" if it is consistent on some
        seed, else "inconclusive".

        The check has power only if its control fails. A control drops an assumption, so ``covered`` is
        ignored.
        """
        verdicts = {judge(one.value, one.op, one.threshold, converged=one.converged) for one in self.controls}
        return (
            "fails" if verdicts == {"violated"} else "passes" if "consistent" in verdicts else "inconclusive"
        )

    @property
    def consistent(self) -> int:
        """Number of seeds that are consistent."""
        return sum(evidence.verdict == "consistent" for evidence in self.evidence)

    @property
    def decided(self) -> int:
        """Number of seeds that are consistent or violated."""
        return sum(evidence.verdict in ("consistent", "violated") for evidence in self.evidence)

    @property
    def undecided(self) -> int:
        """Number of seeds that are neither."""
        return len(self.seeds) - self.decided

    @property
    def share(self) -> float | None:
        """Share of the decided seeds that are consistent; None if no seed is decided."""
        return self.consistent / self.decided if self.decided else None

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper-Pearson 95 % interval of the share; (0, 1) if no seed is decided."""
        low, high = clopper_pearson(self.consistent, self.decided)
        return float(low), float(high)

    @property
    def worst(self) -> Evidence:
        """The evidence with the least slack: nearest to its threshold, or farthest on the wrong side.

        It is the worst of all seeds, undecided ones included, but numbers that are not finite do not count.
        """
        return min(self.evidence, key=_slack)

    @property
    def worst_control(self) -> Evidence:
        """The control with the most slack, which is the nearest to passing."""
        # _slack is infinite for a control whose numbers are not finite. Such a control counts as the farthest
        # from passing.
        return max(
            self.controls, key=lambda control: slack if math.isfinite(slack := _slack(control)) else -math.inf
        )

    @property
    def margins(self) -> tuple[float, float]:
        """Factors between threshold and worst decided number, and between nearest control and threshold.

        They are (2, 5) if all numbers are at most half the threshold and those of the control at least five
        times it.

        A number on the other side of 0 is infinitely far. Both factors are infinite if there is no tolerance:
        the threshold is 0, or equals every measured number.
        """
        decided = [evidence for evidence in self.evidence if evidence.verdict in ("consistent", "violated")]
        worst = min(decided or self.evidence, key=_slack)
        if not worst.threshold or all(evidence.value == evidence.threshold for evidence in self.evidence):
            return math.inf, math.inf
        control = _factor(self.worst_control)
        return _factor(worst), 1 / control if control else math.inf

    @property
    def median(self) -> float | None:
        """Median of the finite values; None if no value is finite."""
        values = [evidence.value for evidence in self.evidence if math.isfinite(evidence.value)]
        return median(values) if values else None

    @property
    def outcome(self) -> str:
        """The verdict if the control fails; otherwise the state of the control, since a check without power
        decides nothing.
        """
        return self.verdict if self.control == "fails" else f"control {CONTROL_TEXT[self.control]}"

    @property
    def passed(self) -> bool:
        """Whether the claim is not violated and its control fails."""
        return self.verdict != "violated" and self.control == "fails"

    def measurements(self) -> list[Measurement]:
        """Returns one row per seed; its quantity is the claim's id and its null the control's value."""
        rows = []
        for seed, evidence, control in zip(self.seeds, self.evidence, self.controls):
            finite = math.isfinite(evidence.value)
            rows.append(
                Measurement(
                    theory=self.theory,
                    kind="claim",
                    quantity=self.id,
                    value=evidence.value if finite else None,
                    reason="" if finite else evidence.note or "the value is not finite",
                    op=evidence.op,
                    threshold=evidence.threshold,
                    verdict=evidence.verdict,
                    nulls=(Null("control", (control.value,)),),
                    source=self.source,
                    seed=seed,
                    note=evidence.note,
                )
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as JSON values, with the quantities derived from them: verdict, share, interval,
        worst value and control.
        """
        stored = {name: getattr(self, name) for name in _CLAIM_FIELDS}
        stored |= {"source": self.source.to_json(), "assumptions": list(self.assumptions)}
        if self.corrected is not None:
            stored["corrected"] = self.corrected.to_json()
        worst, control = self.worst, self.worst_control
        derived = {
            "verdict": self.verdict,
            "outcome": self.outcome,
            "consistent": self.consistent,
            "decided": self.decided,
            "share": self.share,
            "interval": list(self.interval),
            "worst": _finite(worst.value),
            "threshold": _finite(worst.threshold),
            "op": worst.op,
            "median": self.median,
            "control": {"verdict": self.control, "value": _finite(control.value)},
        }
        seeds = [
            {"seed": seed, "evidence": evidence.to_json(), "control": control.to_json()}
            for seed, evidence, control in zip(self.seeds, self.evidence, self.controls)
        ]
        return {**stored, **derived, "seeds": seeds}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Verification":
        """Restores a verification from :meth:`to_json`; derived quantities are recomputed from the evidence.

        Raises:
            ValueError: a field is missing or unknown, or has another type.
        """
        try:
            fields = {name: stored[name] for name in _CLAIM_FIELDS}
            fields |= {
                "source": Source.from_json(stored["source"]),
                "assumptions": tuple(stored["assumptions"]),
                "corrected": Source.from_json(stored["corrected"]) if "corrected" in stored else None,
            }
            restored = cls(
                **fields,
                seeds=tuple(record["seed"] for record in stored["seeds"]),
                evidence=tuple(Evidence.from_json(record["evidence"]) for record in stored["seeds"]),
                controls=tuple(Evidence.from_json(record["control"]) for record in stored["seeds"]),
            )
            if not restored.seeds or "/" not in restored.id:
                raise ValueError("a stored verification must have an id, theory/name, and at least one seed")
            return typed(restored)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"a stored verification must hold a claim and its seeds, got another record ({error})"
            ) from error

    def __repr__(self) -> str:
        return f"Verification({self})"

    def _repr_html_(self) -> str:
        return presenting().to_html(self)

    def __str__(self) -> str:
        interval = format.share_of_seeds(self.interval)
        seeds = f"{self.consistent}/{self.decided} seeds, 95 % interval {interval}"
        return f"{self.id}: {self.verdict} ({seeds}; control {CONTROL_TEXT[self.control]})"


_CLAIM_FIELDS = (
    "id",
    "statement",
    "measures",
    "source",
    "assumptions",
    "control_description",
    "corrects",
    "cost",
)


def _slack(evidence: Evidence) -> float:
    """Returns the distance of the value from the threshold, negative on the wrong side; infinite if either is
    not finite.
    """
    slack = (
        evidence.threshold - evidence.value if evidence.op == "<=" else evidence.value - evidence.threshold
    )
    return slack if math.isfinite(slack) else math.inf


def _factor(evidence: Evidence) -> float:
    """Returns the factor by which a value lies on the predicted side of its threshold, which is not 0: below
    1 on the wrong side, 0 or infinite if the value has the other sign.
    """
    ratio = evidence.value / evidence.threshold
    if (evidence.op == ">=") == (evidence.threshold > 0):  # the predicted side has the larger ratios
        return max(ratio, 0.0)
    return 1 / ratio if ratio > 0 else math.inf


def _finite(number: float) -> float | None:
    """Returns the number, or None if it is not finite: JSON has no NaN and no infinities."""
    return number if math.isfinite(number) else None


def verify_claims(
    claims: Sequence[Claim],
    seeds: Iterable[int] = range(5),
    *,
    done: Mapping[tuple[str, int], Outcome] | None = None,
    finished: Callable[[Claim, int, Outcome], None] = lambda claim, seed, outcome: None,
) -> Iterator[Verification]:
    """Verifies each claim on every seed, on the active workers (:func:`~.parallel.workers`), which share even
    a single claim.

    Args:
        claims, seeds: what to verify.
        done: outcomes of an earlier run, by claim and seed.
        finished: called with each new outcome as soon as it is there, in any order.
    Returns:
        The verifications, in the order of the claims. Raises ValueError if ``claims`` or ``seeds`` is empty.
    """
    seeds, known = tuple(seeds), dict(done or {})
    if not claims or not seeds:
        raise ValueError(
            f"at least one claim and one seed are needed, got {len(claims)} claims and {len(seeds)} seeds; "
            "add one"
        )
    jobs = [(claim, seed) for claim in claims for seed in seeds if (claim.id, seed) not in known]
    outcomes = parallel.as_completed(Claim.run, ({"self": claim, "seed": seed} for claim, seed in jobs))

    def verification(claim: Claim) -> Verification:
        while any((claim.id, seed) not in known for seed in seeds):
            number, outcome = next(outcomes)
            finished(*jobs[number], outcome)
            known[jobs[number][0].id, jobs[number][1]] = outcome
        return Verification.of(claim, seeds, (known[claim.id, seed] for seed in seeds))

    return (verification(claim) for claim in claims)
