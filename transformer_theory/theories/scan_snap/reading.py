r"""What the theory says of the sequences of one query, and what descent did: the record behind rows, summaries and pictures.

*Predicted*, from counts: which tokens gain attention (those distinct to a class) and which lose it (common ones), by distinctness alone and
by each of the four dynamics; when attention snaps, :math:`t_0' = K \ln M / \eta_Y`. *Measured*: how far each logit moved in training, on
the same sequences, beside trainings on shuffled next tokens.

Source: :cite:t:`tian2023scan`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.claims import Evidence, VerdictName
from .closed_form import scanning_time
from .flow import CLOSED, EXACT
from .gains import RelativeGains, relative_gains
from .orders import Groups, Order, distinctness, groups, order_of
from .predictions import CLOSE, Prediction, half_way
from .problem import WeakOverlap
from .redrawn import redrawn_error, relative_error
from .subject import Subject
from .trained import Trained

MOST_TOKENS = 200  # the most frequent ones, whose order is compared
SLOW = 10.0  # eta_Y / eta_Z from which on the decoder counts as much faster
SHOWN = 5  # tokens a line names


@dataclass(frozen=True)
class Assumption:
    """One assumption of the theorems on these data.

    Attributes:
        says: in words.
        value: what was measured.
        bound: the line, and on which side of it the assumption holds (``op``).
        source: where the paper makes it.
        note: what the numbers are.
    """

    says: str
    value: float
    bound: float
    op: str
    source: str
    note: str

    @property
    def holds(self) -> bool:
        """Whether the value lies on the right side; ``"<"`` is strict."""
        return {"<": self.value < self.bound, "<=": self.value <= self.bound, ">=": self.value >= self.bound}[self.op]


@dataclass(frozen=True)
class Match:
    """One of the dynamics beside what descent did.

    Attributes:
        dynamics: its name.
        order: rank correlation of predicted and measured change of the logits.
        error: distance of predicted and measured change, as a share of the measured one.
        null_error: the same for shuffled next tokens, the mean over them.
        half_way: the step by which attention has made half of its movement.
    """

    dynamics: str
    order: Order
    error: float
    null_error: float
    half_way: float


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """The sequences of one query, read and learnt.

    Attributes:
        subject: the sequences as counts, and what was left out.
        eta_y, eta_z: learning rates.
        predictions: logits by the four dynamics at the steps of ``trained``.
        trained: exact gradient descent.
        by_distinctness: order of the tokens by distinctness, against that of their change.
        by_held_out: the same with distinctness counted on the held-out sequences; None if they have fewer than two classes or tokens.
        matches: of those dynamics that speak of every token.
        finite: relative error of the exact flow on sequences as long as these, but drawn from P(l | n): what length alone spoils; NaN if
            there is no exact flow.
    """

    subject: Subject
    eta_y: float
    eta_z: float
    predictions: tuple[Prediction, ...]
    trained: Trained
    by_distinctness: Order
    by_held_out: Order | None
    matches: tuple[Match, ...]
    finite: float

    @property
    def scanning_time(self) -> float:
        """t0', in steps: until then attention scans, by Theorem 1."""
        return scanning_time(classes=self.subject.classes.classes, vocab_size=self.subject.classes.vocab_size, eta_y=self.eta_y)

    @cached_property
    def groups(self) -> Groups:
        """Distinct and common tokens."""
        return groups(self.subject.distinctness, self.subject.classes.classes)

    @property
    def overlap(self) -> Float[Tensor, "K K"]:
        """E, the inner products of the classes' features at uniform attention."""
        return self.subject.classes.overlap()

    @cached_property
    def half_way(self) -> Float[Tensor, " runs"]:
        """The step by which attention has made half of its movement: the run on true next tokens, then those on shuffled ones."""
        steps = self.trained.path.steps.double()
        return torch.tensor([half_way(steps, self.trained.logits[:, run]) for run in range(self.trained.logits.shape[1])])

    @cached_property
    def gains(self) -> RelativeGains:
        """Relative gains of tokens of the same class at the end: measured, and by Theorem 3 from the likelier one's logit."""
        return relative_gains(self.subject.classes, self.trained.logits[-1:, :1], tokens=self.own)

    @cached_property
    def likelier_gains(self) -> Float[Tensor, " runs"]:
        """Share of the pairs of tokens of a class in which the likelier one gained more; empty if there is no pair."""
        _, first, second = self.gains.pairs.T
        change = self.trained.change
        return (change[:, first] > change[:, second]).double().mean(1) if len(first) else change.new_empty(0)

    @property
    def own(self) -> Tensor:
        """Tokens of each class, bool ``[K, S]``: those distinct to it if any class has two, else those likelier in it than elsewhere."""
        P, strict = self.subject.classes.conditional, self.subject.classes.distinct()
        if int(strict.sum(1).max()) >= 2:
            return strict
        return (P.argmax(0) == torch.arange(len(P))[:, None]) & (P > 0)

    @cached_property
    def null_distinctness(self) -> float:
        """Mean distinctness over contextual tokens if next tokens are shuffled: what chance gives rare tokens."""
        values = []
        for target in self.trained.shuffled:
            total = torch.zeros_like(self.subject.classes.conditional).index_add_(0, target, self.subject.counted.counts)
            shares = total / total.sum(1, keepdim=True)
            values.append(float(self.subject.frequency @ distinctness(shares)))
        return sum(values) / len(values)

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the theorems assume, measured; the lines of "long" and of "much faster" are ours."""
        read, classes = self.subject, self.subject.classes
        weak, common = classes.weak_overlap(), int(classes.common().sum())
        asked = f"share of the {read.total} sequences with this query; {read.kept} of them are read, with {classes.classes} next tokens"
        return (
            Assumption("all sequences ask with one query", read.share, 1.0, ">=", "", asked),
            Assumption(
                "at most one token is common to several classes",
                float(common),
                1.0,
                "<=",
                "Thm. 2",
                f"number of such tokens among {classes.tokens}; the others occur in one class only",
            ),
            *_overlap(weak, classes.classes, classes.vocab_size),
            Assumption(
                "sequences are long",
                self.finite,
                CLOSE,
                "<=",
                "Assumption 1",
                f"relative error of the exact flow on sequences of {read.context} contextual tokens drawn from P(l | n), the worse of two; "
                "the theorems let length grow without end, the line is ours",
            ),
            Assumption(
                "the decoder learns faster than attention",
                self.eta_y / self.eta_z,
                SLOW,
                ">=",
                "Assumption 1",
                "ratio of the learning rates; the line is ours",
            ),
            Assumption(
                "training outlasts scanning",
                float(self.trained.steps),
                2 * self.scanning_time,
                ">=",
                "Thm. 1",
                f"steps; the line is twice t0' = K ln M / eta_Y = {self.scanning_time:.4g}",
            ),
        )

    @property
    def met(self) -> bool:
        """Whether all assumptions hold."""
        return all(assumed.holds for assumed in self.assumptions)

    @property
    def settled(self) -> bool:
        """Whether the sequences are long, and learnt long enough: all that the exact flow assumes besides small steps."""
        return self.finite <= CLOSE and self.trained.steps >= 2 * self.scanning_time

    @property
    def verdict(self) -> VerdictName:
        """Whether the tokens' order by distinctness shows in the change of the logits; "outside assumptions" if one fails."""
        return Evidence(self.by_distinctness.value, self.by_distinctness.line, ">=", covered=self.met).verdict

    @property
    def modified_decoder(self) -> float:
        """What Lemma 3 leaves out of the decoder's gradient: f_n against the dual basis, relative size, the largest over classes."""
        f = self.subject.classes.features()
        return float(torch.linalg.vector_norm(f - torch.linalg.pinv(f).T, dim=1).max())

    def order(self, dynamics: str) -> Int[Tensor, " S"]:
        """Ids of the tokens by the predicted change of their logits, those that gain most first.

        Args:
            dynamics: name of one of :attr:`matches`.
        Raises:
            ValueError: it does not exist for these data, or speaks of one token only.
        """
        for prediction in self.predictions:
            if prediction.dynamics == dynamics != CLOSED and len(prediction.tokens):
                return self.subject.counted.token_ids[prediction.logits[-1].argsort(descending=True, stable=True)]
        there = ", ".join(match.dynamics for match in self.matches)
        raise ValueError(f"dynamics must be one that predicts the order of these tokens, got {dynamics!r}; there are: {there or 'none'}")

    @property
    def measured_order(self) -> Int[Tensor, " S"]:
        """Ids of the tokens by how far their logits moved, those that gained most first."""
        return self.subject.counted.token_ids[self.trained.change[0].argsort(descending=True, stable=True)]

    def __str__(self) -> str:
        read, classes = self.subject, self.subject.classes
        strict = int((~classes.common()).sum())
        failed = [assumed.says for assumed in self.assumptions if not assumed.holds]
        lines = [
            f"query {read.query_id}: {read.asked} of {read.total} sequences, {read.kept} read; {classes.classes} next tokens, "
            f"{classes.tokens} contextual tokens: {strict} distinct, {classes.tokens - strict} common",
            f"  assumptions: {len(self.assumptions) - len(failed)} of {len(self.assumptions)} hold"
            + "".join(f"; not: {s}" for s in failed),
            f"  predicted: attention scans until t0' = {self.scanning_time:.4g}, then snaps",
        ]
        if any(match.dynamics == EXACT for match in self.matches):
            lines.append(f"  tokens by predicted gain (exact flow): {_ends(self.order(EXACT))}")
        lines.append(f"  tokens by measured gain, {self.trained.steps} steps: {_ends(self.measured_order)}")
        lines.append(f"  rank correlation with the measured gain: distinctness {_told(self.by_distinctness)}")
        lines += [f"    {match.dynamics} {_told(match.order)}; half-way at step {match.half_way:.0f}" for match in self.matches]
        lines += [f"    {given.dynamics}: none, {given.reason}" for given in self.predictions if given.reason]
        half = self.half_way
        lines.append(f"  half-way measured at step {float(half[0]):.0f} (shuffled next tokens: {float(half[1:].mean()):.0f})")
        held = self.trained.held_out
        if len(held):
            lines.append(f"  held-out accuracy {float(held[0]):.3f} (shuffled next tokens: {float(held[1:].mean()):.3f})")
        return "\n".join([*lines, f"  verdict: {self.verdict}"])

    def __repr__(self) -> str:
        K, S = self.subject.classes.conditional.shape
        found = f"rank_correlation={self.by_distinctness.value:.3f}, verdict={self.verdict!r}"
        return f"Reading(query={self.subject.query_id}, sequences={self.subject.kept}, classes={K}, tokens={S}, {found})"


def reading(
    subject: Subject, predicted: tuple[Prediction, ...], trained: Trained, *, eta_y: float, eta_z: float, generator: Generator
) -> Reading:
    """The record: orders of the most frequent tokens compared, with chance drawn by the generator.

    Source: :cite:t:`tian2023scan`; the comparisons are ours.
    """
    top = subject.frequency.argsort(descending=True, stable=True)[:MOST_TOKENS]
    change, steps = trained.change, trained.path.steps.double()
    by_distinctness = order_of(subject.distinctness[top], change[:, top], generator)
    matches = []
    for given in predicted:
        if given.dynamics == CLOSED or given.reason:
            continue
        z = given.logits[-1]
        off = relative_error(z, change)
        order = order_of(z[top], change[:, top], generator)
        matches.append(Match(given.dynamics, order, float(off[0]), float(off[1:].mean()), half_way(steps, given.logits)))
    held = _by_held_out(subject, change, top, generator)
    finite = math.nan
    for given in predicted:
        if given.dynamics == EXACT and not given.reason:
            finite = redrawn_error(subject, given, trained, eta_y=eta_y, eta_z=eta_z, generator=generator)
    return Reading(subject, eta_y, eta_z, predicted, trained, by_distinctness, held, tuple(matches), finite)


def _by_held_out(subject: Subject, change: Tensor, top: Tensor, generator: Generator) -> Order | None:
    """Distinctness of the tokens that held-out sequences have too."""
    if subject.held_out is None:
        return None
    present = subject.held_out.target.unique()
    total = torch.zeros_like(subject.classes.conditional).index_add_(0, subject.held_out.target, subject.held_out.counts)[present]
    shares = total / total.sum(1, keepdim=True)
    top = top[shares.sum(0)[top] > 0]
    if len(present) < 2 or len(top) < 2:
        return None
    return order_of(distinctness(shares[:, top]), change[:, top], generator)


def _overlap(weak: WeakOverlap, classes: int, vocab_size: int) -> tuple[Assumption, Assumption]:
    return (
        Assumption(
            "classes overlap weakly, |λ₁(E)| < 1/K",
            weak.largest,
            weak.upper,
            "<",
            "Assumption 2",
            f"largest eigenvalue of the classes' inner products; the line is 1/{classes}",
        ),
        Assumption(
            "classes overlap enough, |λ(E)| ≥ √(6/M)",
            weak.smallest,
            weak.lower,
            ">=",
            "Assumption 2",
            f"smallest eigenvalue in absolute value; M = {vocab_size} tokens in the vocabulary",
        ),
    )


def _told(order: Order) -> str:
    if not math.isfinite(order.value):
        return "cannot be read: all tokens are tied"
    if not math.isfinite(order.line):
        return f"{order.value:+.2f} (any order of so few or tied tokens may be chance; shuffled next tokens {order.null:+.2f})"
    return f"{order.value:+.2f} (chance {order.chance:.2f}, shuffled next tokens {order.null:+.2f})"


def _ends(ids: Int[Tensor, " S"]) -> str:
    """The first and the last few of many."""
    if len(ids) <= 2 * SHOWN:
        return ", ".join(map(str, ids.tolist()))
    return f"{', '.join(map(str, ids[:SHOWN].tolist()))}, ..., {', '.join(map(str, ids[-SHOWN:].tolist()))}"
