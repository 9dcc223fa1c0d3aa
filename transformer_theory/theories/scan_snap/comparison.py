r"""Predictions for the sequences of one query, compared with gradient descent on them.

Distinctness alone, and each of the four dynamics, predict from counts which tokens gain attention and which
lose it. Theorem 1 predicts that scanning ends at :math:`t_0' = K \ln M / \eta_Y`. The measured quantity is
the change of each logit in training on the same sequences. The null distribution comes from training on
shuffled next tokens. For distinctness in held-out sequences it comes from permuting their next tokens, with
the same training, which gives an exact test.

Orders of tokens are compared by rank correlations (:mod:`.orders`). Source: :cite:t:`tian2023scan`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ...core.measurement import Measurement, Null, Op, VerdictName, judge
from ...core.sources import Source
from ...core.statistics import fixed_generator, permutations
from .closed_form import scanning_time
from .flow import CLOSED, EXACT
from .gains import RelativeGains, relative_gains
from .minimal_model import MinimalRuns, redrawn_error
from .orders import (
    PERMUTED_HELD_OUT,
    SHUFFLED,
    RankCorrelation,
    correlate,
    rank_correlation,
    smallest_significant,
)
from .predictions import PREDICTION_RTOL, Prediction, half_way_step, relative_error
from .problem import estimate_conditional
from .query_data import QueryData, TokenGroups, distinctness, token_groups

NAME, PAPER = "scan_snap", "tian2023scan"
PERMUTED = "permuted next tokens"  # kind of the null of distinctness
MAX_TOKENS = 200  # number of the most frequent tokens whose order is compared
MIN_RATE_RATIO = 10.0  # smallest eta_Y / eta_Z for which the decoder counts as much faster than attention
LISTED_TOKENS = 5  # number of tokens at each end of a printed order

ONE_QUERY = "all sequences have the analysed query"  # names of the assumptions
ONE_COMMON = "at most one token is common to several classes"
WEAK_OVERLAP = "classes overlap weakly, |λ₁(E)| < 1/K"
ENOUGH_OVERLAP = "classes overlap enough, |λ(E)| ≥ √(6/M)"
LONG = "sequences are long"
FAST_DECODER = "the decoder learns faster than attention"
ENOUGH_STEPS = "training outlasts scanning"


@dataclass(frozen=True)
class Match:
    """One of the dynamics, compared with gradient descent.

    Attributes:
        dynamics: name of the dynamics.
        order: rank correlation of predicted and measured change of the logits.
        error: Euclidean distance of predicted and measured change, divided by the norm of the measured
            change.
        null: the same error in training runs on shuffled next tokens; None if there are none.
        half_way: predicted step by which attention has made half of its movement.
    """

    dynamics: str
    order: RankCorrelation
    error: float
    null: Null | None
    half_way: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Predictions for the sequences of one query, the training runs on them, and the agreement of both.

    Attributes:
        data: the sequences as counts.
        eta_y, eta_z: learning rates of decoder and attention.
        predictions: logits by the four dynamics at the recorded steps.
        runs: exact gradient descent.
        by_distinctness: rank correlation of the tokens' distinctness in the learnt sequences and the change
            of their logits.
        by_held_out: the same with distinctness in the held-out sequences, whose permuted next tokens give the
            null. None: they have fewer than two classes or tokens.
        matches: comparisons of the dynamics that predict every token.
        redrawn_error: relative error of the exact flow on sequences of the same length drawn from P(l | n),
            which is due to the finite length alone; NaN if there is no exact flow.
        words: word of each id, for printing. None: ids are printed.
    """

    data: QueryData
    eta_y: float
    eta_z: float
    predictions: tuple[Prediction, ...]
    runs: MinimalRuns
    by_distinctness: RankCorrelation
    by_held_out: RankCorrelation | None
    matches: tuple[Match, ...]
    redrawn_error: float
    words: tuple[str, ...] | None = None

    @property
    def scanning_time(self) -> float:
        """t0', in steps: the end of scanning by Theorem 1."""
        return scanning_time(
            classes=self.data.classes.classes, vocab_size=self.data.classes.vocab_size, eta_y=self.eta_y
        )

    @cached_property
    def groups(self) -> TokenGroups:
        """Distinct and common tokens."""
        return token_groups(self.data.distinctness, self.data.classes.classes)

    @property
    def overlap(self) -> Float[Tensor, "K K"]:
        """E, the inner products of the classes' features at uniform attention."""
        return self.data.classes.overlap()

    @cached_property
    def half_way(self) -> Float[Tensor, " runs"]:
        """The step by which attention has made half of its movement, in each run."""
        steps = self.runs.path.steps.double()
        return torch.tensor(
            [half_way_step(steps, self.runs.logits[:, run]) for run in range(self.runs.logits.shape[1])]
        )

    @cached_property
    def gains(self) -> RelativeGains:
        """Relative gains of tokens of the same class after training: measured, and by Theorem 3 from the
        likelier token's logit.
        """
        return relative_gains(self.data.classes, self.runs.logits[-1:, :1], tokens=self.own_tokens)

    @cached_property
    def likelier_gains(self) -> Float[Tensor, " runs"]:
        """Share of the pairs of tokens of a class in which the likelier token gained more; empty if there is
        no pair.
        """
        _, first, second = self.gains.pairs.T
        change = self.runs.change
        return (change[:, first] > change[:, second]).double().mean(1) if len(first) else change.new_empty(0)

    @property
    def own_tokens(self) -> Bool[Tensor, "K S"]:
        """The tokens that are assigned to each class.

        These are its distinct tokens if some class has two of them, otherwise the tokens that are likelier in
        it than in other classes.
        """
        P, strict = self.data.classes.conditional, self.data.classes.distinct()
        if int(strict.sum(1).max()) >= 2:
            return strict
        return (P.argmax(0) == torch.arange(len(P))[:, None]) & (P > 0)

    @cached_property
    def null_distinctness(self) -> Null | None:
        """Mean distinctness over contextual tokens for permuted next tokens: rare tokens are distinct by
        chance.
        """
        values = []
        for target in self.runs.shuffled:
            conditional = estimate_conditional(self.data.counted.counts, target, self.data.classes.classes)
            values.append(float(self.data.frequency @ distinctness(conditional)))
        return Null(PERMUTED, tuple(values)) if values else None

    @cached_property
    def assumptions(self) -> tuple[Measurement, ...]:
        """The assumptions of the theorems, measured. The paper states no thresholds for "long"
        and "faster".
        """
        data, classes, steps = self.data, self.data.classes, float(self.runs.steps)
        weak, common = classes.weak_overlap(), int(classes.common().sum())
        selection = (
            f"query {data.query_id}: {data.used} of its {data.matching} sequences are used, with "
            f"{classes.classes} next tokens"
        )
        redrawn = f"relative error of the exact flow on redrawn sequences of {data.context} contextual tokens"
        t0 = self.scanning_time
        return (
            _assumption(ONE_QUERY, data.share, ">=", 1.0, "", selection),
            _assumption(
                ONE_COMMON,
                float(common),
                "<=",
                1.0,
                "Thm. 2",
                f"{common} of {classes.tokens} tokens are common",
            ),
            _assumption(
                WEAK_OVERLAP,
                weak.largest,
                "<=",
                weak.upper,
                "Assumption 2",
                "largest absolute eigenvalue of E",
                strict=True,
            ),
            _assumption(
                ENOUGH_OVERLAP,
                weak.smallest,
                ">=",
                weak.lower,
                "Assumption 2",
                "smallest absolute eigenvalue of E",
            ),
            _assumption(LONG, self.redrawn_error, "<=", PREDICTION_RTOL, "Assumption 1", redrawn),
            _assumption(
                FAST_DECODER,
                self.eta_y / self.eta_z,
                ">=",
                MIN_RATE_RATIO,
                "Assumption 1",
                "ratio of the learning rates",
            ),
            _assumption(
                ENOUGH_STEPS,
                steps,
                ">=",
                2 * t0,
                "Thm. 1",
                f"the threshold is twice t0' = K ln M / eta_Y = {t0:.4g}",
            ),
        )

    @property
    def covered(self) -> bool:
        """Whether all assumptions of the theorems hold."""
        return all(assumption.verdict == "holds" for assumption in self.assumptions)

    @property
    def covered_by_exact_flow(self) -> bool:
        """Whether the sequences and the training run are long enough. Apart from small steps the exact flow
        assumes nothing else.
        """
        return self.redrawn_error <= PREDICTION_RTOL and self.runs.steps >= 2 * self.scanning_time

    @property
    def verdict(self) -> VerdictName:
        """Whether distinctness on held-out sequences orders the changes of the logits; "not covered" if an
        assumption fails.
        """
        if self.by_held_out is None:
            return "inconclusive"
        return judge(self.by_held_out.value, ">=", self.by_held_out.threshold, covered=self.covered)

    @property
    def modified_decoder(self) -> float:
        """Largest norm over classes of f_n minus its dual vector, the term that Lemma 3 drops from the
        decoder's gradient.
        """
        f = self.data.classes.features()
        # The pseudo-inverse is the dual basis if the features are independent, and still exists if they are
        # not.
        return float(torch.linalg.vector_norm(f - torch.linalg.pinv(f).T, dim=1).max())

    def order(self, dynamics: str) -> Int[Tensor, " S"]:
        """Returns the ids of the tokens by the predicted change of their logits, largest gain first.

        Args:
            dynamics: dynamics of one of :attr:`matches`.
        Raises:
            ValueError: there is no such prediction, or it describes a single token only.
        """
        for prediction in self.predictions:
            if prediction.dynamics == dynamics != CLOSED and len(prediction.tokens):
                return self.data.counted.token_ids[
                    prediction.logits[-1].argsort(descending=True, stable=True)
                ]
        known = ", ".join(match.dynamics for match in self.matches)
        raise ValueError(
            f"dynamics must predict the order of these tokens, got {dynamics!r}; there are: {known or 'none'}"
        )

    @property
    def measured_order(self) -> Int[Tensor, " S"]:
        """Ids of the tokens by the measured change of their logits, largest gain first."""
        return self.data.counted.token_ids[self.runs.change[0].argsort(descending=True, stable=True)]

    def __str__(self) -> str:
        data, classes, runs = self.data, self.data.classes, self.runs
        strict = int((~classes.common()).sum())
        failed = [assumption.quantity for assumption in self.assumptions if assumption.verdict != "holds"]
        lines = [
            f"query {named(data.query_id, self.words)}: {data.matching} of {data.total} sequences, "
            f"{data.used} used; {classes.classes} next tokens, {classes.tokens} contextual tokens: {strict} "
            f"distinct, {classes.tokens - strict} common",
            f"  assumptions: {len(self.assumptions) - len(failed)} of {len(self.assumptions)} hold"
            + "".join(f"; not: {s}" for s in failed),
            f"  predicted: attention scans until t0' = {self.scanning_time:.4g}, then snaps",
        ]
        if any(match.dynamics == EXACT for match in self.matches):
            lines.append(f"  tokens by predicted gain (exact flow): {_ends(self.order(EXACT), self.words)}")
        lines.append(
            f"  tokens by measured gain, {runs.steps} steps: {_ends(self.measured_order, self.words)}"
        )
        held_out = "undefined: too few tokens" if self.by_held_out is None else str(self.by_held_out)
        lines.append(
            f"  rank correlation with the measured gain: distinctness on held-out sequences {held_out}"
        )
        lines.append(f"    distinctness on the learnt sequences {self.by_distinctness}")
        lines += [
            f"    {match.dynamics} {match.order}; half-way at step {match.half_way:.0f}"
            for match in self.matches
        ]
        lines += [
            f"    {prediction.dynamics}: none, {prediction.reason}"
            for prediction in self.predictions
            if prediction.reason
        ]
        half = self.half_way
        lines.append(f"  measured half-way step {_with_mean(half, '.0f')}")
        if len(runs.held_out):
            lines.append(f"  held-out accuracy {_with_mean(runs.held_out, '.3f')}")
        return "\n".join([*lines, f"  verdict: {self.verdict}"])

    def __repr__(self) -> str:
        K, S = self.data.classes.conditional.shape
        value = math.nan if self.by_held_out is None else self.by_held_out.value
        outcome = f"rank_correlation={value:.3f}, verdict={self.verdict!r}"
        return (
            f"Comparison(query={self.data.query_id}, sequences={self.data.used}, classes={K}, tokens={S}, "
            f"{outcome})"
        )


def compare(
    data: QueryData,
    predicted: tuple[Prediction, ...],
    runs: MinimalRuns,
    *,
    eta_y: float,
    eta_z: float,
    draws: int,
    generator: Generator,
    words: tuple[str, ...] | None = None,
) -> Comparison:
    """Compares the order of the most frequent tokens and the size of the changes of all tokens.

    Args:
        data, predicted, runs: the sequences, the predictions for them, and the training runs on them.
        eta_y, eta_z: learning rates of decoder and attention.
        draws: number of permutations of the held-out next tokens.
        generator: draws redrawn sequences and their batches.
        words: word of each id, for printing.
    """
    top = data.frequency.argsort(descending=True, stable=True)[:MAX_TOKENS]
    change, steps = runs.change, runs.path.steps.double()
    by_distinctness = correlate(data.distinctness[top], change[:, top], fixed_generator())
    matches = []
    for prediction in predicted:
        if prediction.dynamics == CLOSED or prediction.reason:
            continue
        z = prediction.logits[-1]
        errors = relative_error(z, change).tolist()
        order = correlate(z[top], change[:, top], fixed_generator())
        half_way = half_way_step(steps, prediction.logits)
        matches.append(
            Match(
                prediction.dynamics,
                order,
                errors[0],
                Null(SHUFFLED, tuple(errors[1:])) if errors[1:] else None,
                half_way,
            )
        )
    by_held_out = _correlate_held_out(data, change[0], top, draws)
    redrawn = math.nan
    for prediction in predicted:
        if prediction.dynamics == EXACT and not prediction.reason:
            redrawn = redrawn_error(data, prediction, runs, eta_y=eta_y, eta_z=eta_z, generator=generator)
    return Comparison(
        data, eta_y, eta_z, predicted, runs, by_distinctness, by_held_out, tuple(matches), redrawn, words
    )


def _correlate_held_out(
    data: QueryData, change: Float[Tensor, " S"], top: Int[Tensor, " top"], draws: int
) -> RankCorrelation | None:
    """Returns the rank correlation with distinctness on the held-out sequences, for the tokens that occur in
    them.

    Draw i of the null permutes the next tokens of the held-out sequences; the changes of the logits stay.
    """
    if data.held_out is None:
        return None
    counts, target = data.held_out.counts, data.held_out.target
    top = top[counts.sum(0)[top] > 0]
    classes = target.unique()
    if len(classes) < 2 or len(top) < 2:
        return None
    targets = torch.cat([target[None], target[permutations(len(target), draws)]])
    member = (targets[:, None] == classes[:, None]).to(counts.dtype)  # [1 + draws, classes, n]
    conditional = (member @ counts[:, top]) / (member @ counts.sum(1))[..., None]
    by_draw = conditional.amax(1) / conditional.sum(1)  # distinctness, [1 + draws, top]
    value, *others = rank_correlation(change[top], by_draw).tolist()
    # Each seed holds out other sequences of the same data, so the seeds are neither equal nor independent.
    # Sorted draws are averaged over seeds as if the seeds moved together, which is the widest null of their
    # mean.
    null = Null(PERMUTED_HELD_OUT, tuple(sorted(others))) if others else None
    return RankCorrelation(value, math.nan if null is None else smallest_significant(null), null, len(top))


def _assumption(
    quantity: str, value: float, op: Op, threshold: float, locator: str, note: str, *, strict: bool = False
) -> Measurement:
    """Returns the row of an assumption; with ``strict`` equality fails."""
    holds = value <= threshold if op == "<=" else value >= threshold
    verdict: VerdictName = "holds" if holds and not (strict and value == threshold) else "fails"
    source = Source(PAPER, locator, "confirmed" if locator else "")
    return Measurement(
        NAME,
        "assumption",
        quantity,
        value,
        op=op,
        threshold=threshold,
        verdict=verdict,
        source=source,
        note=note,
    )


def named(token_id: int, words: tuple[str, ...] | None) -> str:
    """Returns the word of an id in quotation marks, or the id if there are no words."""
    return str(token_id) if words is None else repr(words[token_id])


def _with_mean(values: Float[Tensor, " runs"], form: str) -> str:
    """Formats the value of run 0, with the mean of the other runs if there are any."""
    first, *others = values.tolist()
    return f"{first:{form}}" + (f" ({SHUFFLED}: {sum(others) / len(others):{form}})" if others else "")


def _ends(ids: Int[Tensor, " S"], words: tuple[str, ...] | None) -> str:
    """Formats the first and the last ids or words, with an ellipsis between them."""
    names = [named(token_id, words) for token_id in ids.tolist()]
    if len(names) > 2 * LISTED_TOKENS:
        names = [*names[:LISTED_TOKENS], "...", *names[-LISTED_TOKENS:]]
    return ", ".join(names)
