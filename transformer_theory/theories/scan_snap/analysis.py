r"""What scan-and-snap says about given sequences of discrete tokens, and what its own one-layer model does when it is trained on them.

From the ids alone the theory predicts where attention goes: away from tokens that occur in many classes, towards those of one class.
:math:`P(l | n)` is estimated by counting, each token gets its *distinctness* :math:`\max_n P(l|n) / \sum_n P(l|n)` (1: it occurs in one
class only; 1/K: equally likely in all), and the assumptions are measured. Then the model of :mod:`.dynamics` learns the next token from
the actual sequences by gradient descent, exactly, beside copies that learn shuffled next tokens (the null).

The theory treats one query at a time: the sequences of the most frequent query are read, and rows say how many that are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...citations import Source
from ...claims import Evidence
from ...data.tokens import TokenData
from ...errors import Infeasible
from ...rows import Arrays, Row, assumption, finding, not_applicable
from .closed_form import gamma, scanning_time
from .dynamics import Batch, Trajectory, Weights, attend, forward, gradient_descent, minibatches
from .flow import lemma4_velocity
from .gains import RelativeGains, relative_gains
from .problem import SequenceClasses
from .subject import Groups, Subject, agreement, chance, groups, subject

NAME = "scan_snap"
PAPER = "tian2023scan"
ANSWER = "rank correlation of distinctness and logit change"
ETA_Y, ETA_Z = 1.0, 0.1
BATCH, STEPS, SHUFFLES = 128, 1000, 3
MOST_TOKENS = 200  # the most frequent ones, whose order is compared
WORK = 1e9  # multiplications that the training may cost; fewer steps for huge vocabularies
LONG = 100  # contextual tokens from which on a sequence counts as long


@dataclass(frozen=True, eq=False)
class Trained:
    """The model trained on the sequences: run 0 on their own next tokens, the others on shuffled ones."""

    path: Trajectory
    accuracy: Float[Tensor, " runs"]
    sharpness: Float[Tensor, " runs"]

    @property
    def change(self) -> Float[Tensor, "runs S"]:
        """How far the logit of each token moved."""
        return self.path.attention[-1, :, 0]


def train(read: Subject, generator: torch.Generator) -> Trained:
    """Exact gradient descent (batches of 128, eta_Y = 1, eta_Z = 0.1) from zero on the sequences and on three shuffles of their targets."""
    data, n = read.counted, len(read.counted.target)
    shuffled = [data.target[torch.randperm(n, generator=generator)] for _ in range(SHUFFLES)]
    targets = torch.stack([data.target, *shuffled])
    S, K = read.classes.tokens, read.classes.classes
    steps = int(min(STEPS, max(50, WORK / (len(targets) * min(BATCH, n) * S * (K + 1)))))
    path = gradient_descent(
        Weights.zeros(S, 1, K, data.vocab_size, runs=(len(targets),)),
        minibatches(data, BATCH, generator=generator, targets=targets),
        steps=steps,
        eta_y=ETA_Y,
        eta_z=ETA_Z,
        keep=np.unique(np.geomspace(1, steps, 50).astype(int)).tolist(),
    )
    whole = Batch(data.counts.expand(len(targets), -1, -1), data.query.expand(len(targets), -1), targets)
    return Trained(path, forward(path.final, whole).correct, _sharpness(attend(path.final, whole), data.counts, read.context))


def _sharpness(attended: Float[Tensor, "runs n S"], counts: Float[Tensor, "n S"], context: int) -> Float[Tensor, " runs"]:
    """1 - H / log T over positions, the mean over sequences: a token that occurs several times shares its weight among them."""
    entropy = -torch.special.xlogy(attended, attended / counts.clamp(min=1)).sum(-1)
    return (1 - entropy / math.log(context)).mean(-1)


def predict_and_measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Assumptions, predictions from counts alone, and what exact gradient descent on the sequences does. See the module's docstring.

    Args:
        data: with ``ids`` (the last one is the query) and ``next_id``.
        generator: draws batches, shuffles and, of large data, the sequences.
    """
    read = subject(data, generator)
    if isinstance(read, str):
        yield not_applicable(NAME, read)
        return
    assumed = list(_assumptions(read))
    yield from assumed
    met = all(row.get("verdict") == "holds" for row in assumed)
    yield _modified_decoder(read)
    distinctness, groups_, velocity = read.distinctness, groups(read.distinctness), _lemma4(read)
    trained = train(read, generator)
    yield from _fates(read, trained, groups_, met, generator)
    yield from _lemma4_rows(read, trained, velocity, generator)
    yield from _attention_rows(read, trained, met)
    gains = relative_gains(read.classes, trained.path.attention[-1:, 0], tokens=_own(read.classes))
    yield _gain_row(gains)
    yield Arrays(
        {
            f"{NAME}/steps": trained.path.steps.numpy(),
            f"{NAME}/logits": trained.path.attention[:, 0, 0].numpy(),
            f"{NAME}/null_change": trained.change[1:].numpy(),
            f"{NAME}/distinctness": distinctness.numpy(),
            f"{NAME}/distinct": groups_.distinct.numpy(),
            f"{NAME}/common": groups_.common.numpy(),
            f"{NAME}/frequency": read.frequency.numpy(),
            f"{NAME}/conditional": read.classes.conditional.numpy(),
            f"{NAME}/attended": read.classes.attended(trained.path.attention[-1, 0]).numpy(),
            f"{NAME}/gain_start": gains.start.numpy(),
            f"{NAME}/gain_measured": gains.measured[0].numpy(),
            f"{NAME}/gain_predicted": gains.predicted[0].numpy(),
            f"{NAME}/token_ids": read.counted.token_ids.numpy(),
            f"{NAME}/next_ids": read.counted.next_ids.numpy(),
            f"{NAME}/scanning_time": np.array(_scanning_time(read)),
        }
    )


def _assumptions(read: Subject) -> Iterator[Row]:
    classes, overlap = read.classes, read.classes.weak_overlap()
    common, M = int(classes.common().sum()), classes.vocab_size
    n = len(read.counted.target)
    lemma = Source(PAPER, "Assumption 2")
    yield assumption(
        NAME,
        "all sequences ask with one query",
        read.share == 1,
        value=read.share,
        source=Source(PAPER),
        note=f"share of the {read.total} sequences with the most frequent query; {n} of them are read, with {classes.classes} next tokens",
    )
    yield assumption(
        NAME,
        "at most one token is common to several classes",
        common <= 1,
        value=float(common),
        bound=1.0,
        op="<=",
        source=Source(PAPER, "Thm. 2"),
        note=f"number of such tokens among {classes.tokens}; the others occur in one class only",
    )
    yield assumption(
        NAME,
        "classes overlap weakly, |λ₁(E)| < 1/K",
        overlap.largest < overlap.upper,
        value=overlap.largest,
        bound=overlap.upper,
        op="<=",
        source=lemma,
        note=f"largest eigenvalue of the classes' inner products; the line is 1/{classes.classes}",
    )
    yield assumption(
        NAME,
        "classes overlap enough, |λ(E)| ≥ √(6/M)",
        overlap.smallest >= overlap.lower,
        value=overlap.smallest,
        bound=overlap.lower,
        op=">=",
        source=lemma,
        note=f"smallest eigenvalue in absolute value; M = {M} tokens in the vocabulary",
    )
    yield assumption(
        NAME,
        "sequences are long",
        read.context >= LONG,
        value=float(read.context),
        bound=float(LONG),
        op=">=",
        source=Source(PAPER, "Assumption 1"),
        note="contextual tokens a sequence; the theorems let it grow without end, the line is ours",
    )
    yield assumption(
        NAME,
        "the decoder learns faster than attention",
        ETA_Y >= 10 * ETA_Z,
        value=ETA_Y / ETA_Z,
        bound=10.0,
        op=">=",
        source=Source(PAPER, "Assumption 1"),
        note="ratio of the learning rates, chosen here; the line is ours",
    )


def _modified_decoder(read: Subject) -> Row:
    """What Lemma 3 leaves out of the decoder's gradient: f_n against the dual basis, relative size, the largest over classes."""
    f = read.classes.features()
    dual = torch.linalg.pinv(f).T
    return assumption(
        NAME,
        "the decoder follows Lemma 3 (closed forms only)",
        False,
        value=float(torch.linalg.vector_norm(f - dual, dim=1).max()),
        source=Source(PAPER, "Lemma 3"),
        note="gradient descent trains the exact decoder; the value is the relative size of what Lemma 3 leaves out of its gradient",
    )


def _fates(read: Subject, trained: Trained, split: Groups, met: bool, generator: torch.Generator) -> Iterator[Row]:
    """The qualitative prediction: attention moves from common to distinct tokens."""
    change, frequency = trained.change, read.frequency
    yield _agreement_row(
        ANSWER,
        read.distinctness,
        read,
        trained,
        generator,
        Source(PAPER, "Thm. 2"),
        met,
        f"do tokens of one class gain attention and tokens of many lose it, in {len(trained.path.loss)} steps?",
    )
    for name, group in (("distinct", split.distinct), ("common", split.common)):
        share = frequency * group / (frequency * group).sum()
        moved = change @ share
        note = f"mean over {int(group.sum())} tokens by how often they occur; {split.rule}"
        evidence = Evidence(float(moved[0]), 0.0, ">=" if name == "distinct" else "<=", in_assumptions=met)
        yield _finding(f"logit change of {name} tokens", evidence, Source(PAPER, "Thm. 2"), null=float(moved[1:].mean()), note=note)


def _lemma4(read: Subject) -> Float[Tensor, " S"] | str:
    """Where Lemma 4's flow starts to, from the counts alone; or why it does not exist."""
    try:
        zero = torch.zeros(1, read.classes.tokens, dtype=torch.float64)
        return lemma4_velocity(read.classes, zero, _scanning_time(read), eta_y=ETA_Y)[0]
    except Infeasible as error:
        return str(error)


def _lemma4_rows(read: Subject, trained: Trained, velocity: Float[Tensor, " S"] | str, generator: torch.Generator) -> Iterator[Row]:
    quantity = "rank correlation of Lemma 4's velocity and logit change"
    if isinstance(velocity, str):
        reason = f"not applicable: {velocity.split(',')[0]}, which these do not have"
        yield Row(theory=NAME, quantity=quantity, value=None, verdict=reason, source=str(Source(PAPER, "Lemma 4")))
        return
    note = "the theory's own rate of change at uniform attention against exact gradient descent"
    yield _agreement_row(quantity, velocity, read, trained, generator, Source(PAPER, "Lemma 4"), False, note)


def _agreement_row(
    quantity: str,
    predictor: Float[Tensor, " S"],
    read: Subject,
    trained: Trained,
    generator: torch.Generator,
    source: Source,
    met: bool,
    note: str,
) -> Row:
    """Rank correlation of a prediction with the change of the logits, beside shuffled next tokens and chance."""
    kept = read.frequency.argsort(descending=True, stable=True)[:MOST_TOKENS]
    value, *nulls = agreement(predictor[kept], trained.change[:, kept])
    line = chance(predictor[kept], trained.change[0, kept], generator)
    note += f" Over {len(kept)} tokens; null: shuffled next tokens; the line: chance, 5 %"
    evidence = Evidence(float(value), line, ">=", in_assumptions=met)
    return _finding(quantity, evidence, source, predicted=1.0, null=_mean(torch.stack(nulls)), note=note)


def _attention_rows(read: Subject, trained: Trained, met: bool) -> Iterator[Row]:
    """Attention becomes sparser, moves fastest around t0' and then slows down; and the model does learn."""
    note = "1 - entropy / log of the length, mean over the sequences; attention starts uniform, at 0; null: shuffled next tokens"
    value, null = float(trained.sharpness[0]), float(trained.sharpness[1:].mean())
    yield Row(theory=NAME, quantity="sharpness after training", value=value, null=null, source=str(Source(PAPER)), note=note)
    steps = trained.path.steps.double()
    speed = torch.linalg.vector_norm(trained.path.attention.diff(dim=0)[:, :, 0], dim=-1) / steps.diff()[:, None]
    fastest = ((steps[1:] + steps[:-1]) / 2)[speed.argmax(0)]
    t0, K = _scanning_time(read), read.classes.classes
    times = torch.linspace(0.05, 4, 800, dtype=torch.float64) * t0
    predicted = float(times[gamma(times, classes=K, vocab_size=read.classes.vocab_size, eta_y=ETA_Y).argmax()])
    yield _finding(
        "step at which attention moves fastest",
        Evidence(float(fastest[0]), 2 * t0, "<=", in_assumptions=met),
        Source(PAPER, "Thm. 1"),
        predicted=predicted,
        null=float(fastest[1:].mean()),
        note=f"predicted: where gamma(t) peaks; the line is twice t0' = K ln M / eta_Y = {t0:.0f}, after which attention snaps",
    )
    steps_taken, value, null = len(trained.path.loss), float(trained.accuracy[0]), float(trained.accuracy[1:].mean())
    note = f"share of its own training sequences that the one-layer model predicts after {steps_taken} steps; null: shuffled next tokens"
    yield Row(theory=NAME, quantity="accuracy of the minimal model", value=value, null=null, note=note)


def _gain_row(gains: RelativeGains) -> Row:
    """How much of the change of the relative gains Theorem 3 misses, the median over pairs."""
    moved = gains.measured[0] - gains.start
    left = (gains.measured[0] - gains.predicted[0]).abs()[moved != 0] / moved[moved != 0].abs()
    pairs = len(left)
    return _finding(
        "share of the change of relative gains that the closed form misses",
        Evidence(float(left.median()) if pairs else math.nan, 0.05, "<=", in_assumptions=False),
        Source(PAPER, "Thm. 3"),
        predicted=0.0,
        null=1.0,
        note=f"median over {pairs} pairs of tokens of a class, r(t) against r(0) exp(2 Δz); 1 would be no better than predicting no change",
    )


def _own(classes: SequenceClasses) -> Bool[Tensor, "K S"]:
    """The tokens that belong to each class: those distinct to it if any class has two, else those likelier in it than in any other."""
    P = classes.conditional
    strict = classes.distinct()
    if int(strict.sum(1).max()) >= 2:
        return strict
    return (P.argmax(0) == torch.arange(classes.classes)[:, None]) & (P > 0)


def _scanning_time(read: Subject) -> float:
    return scanning_time(classes=read.classes.classes, vocab_size=read.classes.vocab_size, eta_y=ETA_Y)


def _finding(quantity: str, evidence: Evidence, source: Source, *, null: float | None = None, **columns) -> Row:
    """A finding whose verdict is "inconclusive" if nothing could be measured; a null that is not finite is left out."""
    if not math.isfinite(evidence.value):
        evidence = replace(evidence, in_assumptions=True)
    if null is not None and math.isfinite(null):
        columns["null"] = null
    return finding(NAME, quantity, evidence, source=source, **columns)


def _mean(values: Float[Tensor, " runs"]) -> float:
    return float(values.nanmean())
