r"""The theory on labelled data: one attention head, trained by descent on W, compared with the max-margin
solution of its selection.

One class against the rest gives labels Y in {-1, 1}. A linear head v is fitted to the mean tokens of half of
the inputs by ridge regression and then fixed; its accuracy is measured on the other half. The scores
:math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` define the best token of each input. The queries are part of the
data. There are two measurements. Feasibility: the share of random sets of inputs, of growing size, in which
one W selects all best tokens. Descent: the direction of W after descent from W = 0 on a feasible set
(:mod:`.feasible_sets`).

Each seed draws a class, an order of the inputs and the sets. The statements about descent hold for any data,
so their null needs no permutations that the seeds share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.measurement import CORRELATION, Measurement, Null, judge, present
from ...core.plotting import axes, caption, colour, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator, permutations, with_interval
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.tokens import TokenData
from .analysis import RATE, STEPS, Analysis, Selection, analyse, unit_scale
from .analysis_plot import plot_attention, plot_cosines, plot_margins
from .feasible_sets import MAX_INPUTS, FeasibleSet, feasible_shares, grow_feasible
from .in_networks import MARGIN
from .problem import Instance, token_scores
from .selection import ties

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
HEADLINE = "cosine of W to the max-margin direction of the selected tokens"
HEAD_ACCURACY = "held-out accuracy of the linear head on mean tokens"
SELECTABLE = "number of inputs whose best tokens one W can select"
COSINE_THRESHOLD = 0.95
MARGIN_THRESHOLD = 0.9
SCORE_RTOL = 1e-9  # largest relative spread of scores that count as equal


@dataclass(frozen=True)
class Problem:
    """Labelled inputs with one query each: tokens ``[n, T, d]`` with T > 1, query ``[n, d]``, labels ``[n]``
    of at least two classes.
    """

    tokens: Float[Tensor, "n T d"]
    query: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]


def read(data: TokenData) -> Problem | Unsupported:
    """Returns tokens, queries and labels of a data set, or the reason why it does not suit the theory."""
    if data.tokens.shape[1] < 2:
        return Unsupported("needs at least two tokens per input to select from")
    if data.labels is None or data.query is None or len(data.labels.unique()) < 2:
        return Unsupported("needs labels of at least two classes")
    return Problem(data.tokens, data.query, data.labels)


@dataclass(frozen=True)
class Task:
    """The training task of the attention head: one class against the rest, with a linear head.

    Attributes:
        instance: training problem; tokens and queries are divided by their root-mean-square norms, which
            changes only the scale of W.
        index: position of each input in the data, ``[n]``.
        predicted: labels that the head predicts from the mean tokens of the held-out inputs, ``[held_out]``.
        sign: their labels, -1 or 1, ``[held_out]``; empty if there are fewer than two inputs on each side.
        positive: class with the label 1; all others have the label -1.
    """

    instance: Instance
    index: Int[Tensor, " n"]
    predicted: Float[Tensor, " held_out"]
    sign: Float[Tensor, " held_out"]
    positive: int


def one_against_rest(problem: Problem, generator: torch.Generator, *, max_samples: int = 1000) -> Task:
    """Returns a task in which inputs of one random class alternate with inputs of the other classes, in
    random order.

    Args:
        generator: random generator of the class and the order.
        max_samples: largest number of inputs in total.
    """
    labels = problem.labels
    classes = labels.unique()
    positive = int(classes[torch.randint(len(classes), (1,), generator=generator)])
    order = torch.randperm(len(labels), generator=generator)
    inside, outside = order[labels[order] == positive], order[labels[order] != positive]
    half = min(len(inside), len(outside), max_samples // 2)
    index = torch.stack([inside[:half], outside[:half]], 1).ravel()
    sign = torch.where(labels[index] == positive, 1.0, -1.0).double()
    tokens, query = (unit_scale(v[index].detach().cpu().double()) for v in (problem.tokens, problem.query))
    means = tokens.mean(1)
    # The inputs alternate between the two sides, so both halves are balanced. A single pair is not divided.
    fitted = slice(2 * (half - half // 2))
    head = ridge_head(means[fitted], sign[fitted])
    held_out = slice(fitted.stop, None)
    return Task(
        Instance(tokens, query, token_scores(tokens, head, sign)),
        index,
        (means[held_out] @ head).sign(),
        sign[held_out],
        positive,
    )


def ridge_head(means: Float[Tensor, "n d"], sign: Float[Tensor, " n"]) -> Float[Tensor, " d"]:
    """Returns the unit vector v that ridge regression of the signs -1 and 1 on the mean tokens gives.

    The ridge is a thousandth of the mean eigenvalue of the Gram matrix.
    """
    gram = means.T @ means
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=torch.float64)
    head = torch.linalg.solve(gram + ridge, means.T @ sign)
    return head / head.norm().clamp(min=1e-300)


def measure(problem: Problem, generator: torch.Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the assumptions, the predictions with measurements, and the arrays of the figure; see the module
    docstring.

    Args:
        problem: the labelled inputs.
        generator: random generator of the class, the order of the inputs, and the sets of inputs.
        draws: largest number of null draws; 0: no nulls. The headline holds for any data and has no p-value,
            so the range of 19 sign flips suffices.
    """
    task = one_against_rest(problem, generator)
    instance, (n, T, d) = task.instance, task.instance.tokens.shape
    tied = ties(instance.scores, instance.tokens)
    yield _head_accuracy(task, draws)
    yield _assumption(
        "every input has one best token",
        not bool(tied.any()),
        float((~tied).double().mean()),
        unit="share",
        n=n,
        note="share of inputs in which no different token scores as high; the others are dropped",
    )
    if bool(tied.all()):
        yield _on_data(HEADLINE, None, reason="no input has a single best token")
        return
    untied = instance[(~tied).nonzero().squeeze(-1)]
    sizes, shares = feasible_shares(untied, generator)
    feasible = grow_feasible(untied, generator)
    yield from _feasibility(sizes, shares, feasible, T, d)
    if feasible.solution is None:
        yield _on_data(HEADLINE, None, reason="infeasible: no W selects the best token of even one input")
        return
    trained, seed = untied[feasible.inputs], fixed_generator().initial_seed()
    yield from describe(
        analyse(
            trained.tokens,
            trained.query,
            trained.scores,
            steps=STEPS,
            rate=RATE,
            draws=min(draws, RANGE_DRAWS),
            seed=seed,
        )
    )


def _head_accuracy(task: Task, draws: int) -> Measurement:
    """Returns the head's accuracy on the held-out inputs; the null permutes their labels."""
    n = len(task.sign)
    where: dict[str, Any] = {
        "unit": "share",
        "side": ">=",
        "split": "validation",
        "note": f"class {task.positive} against the rest; this head scores the tokens",
    }
    if not n:
        reason = "fewer than two inputs of the class, or of the rest, so that none can be held out"
        return Measurement(NAME, "on data", HEAD_ACCURACY, None, reason=reason, **where)
    value = float((task.predicted == task.sign).double().mean())
    permuted = task.sign[permutations(n, min(draws, RANGE_DRAWS))]
    null = (
        Null("permuted labels", tuple((task.predicted == permuted).double().mean(-1).tolist()))
        if draws
        else None
    )
    return with_interval(
        Measurement(NAME, "on data", HEAD_ACCURACY, value, nulls=present(null), n=n, **where)
    )


def _feasibility(
    sizes: list[int], shares: list[float], feasible: FeasibleSet, T: int, d: int
) -> Iterator[Measurement | Arrays]:
    count, guaranteed = len(feasible.inputs), min(feasible.guaranteed, MAX_INPUTS)
    yield Arrays(
        {
            f"{NAME}/feasible_n": np.array(sizes),
            f"{NAME}/feasible_share": np.array(shares),
            f"{NAME}/grown": np.array(count),
        }
    )
    if guaranteed:
        note = f"guaranteed up to {feasible.guaranteed} inputs, the rank of the queries"
    elif d < T - 1:
        note = f"nothing is guaranteed: the dimension {d} is below T - 1 = {T - 1}"
    else:
        note = "nothing is guaranteed: the tokens of each input are linearly dependent"
    converged = feasible.resolved or count >= guaranteed
    yield _on_data(
        SELECTABLE,
        count,
        # a count is always at least zero, so without a guarantee there is no inequality
        op=">=" if guaranteed else None,
        threshold=guaranteed or None,
        verdict=judge(count, ">=", guaranteed, converged=converged) if guaranteed else None,
        note=note,
    )


def describe(analysis: Analysis) -> Iterator[Measurement | Arrays]:
    """Yields the measurements and arrays of one run of descent."""
    n, T = analysis.instance.scores.shape
    half, end = analysis.states[-3], analysis.states[-1]  # STEPS ends with 2000, 3000 and 4000
    unequal = _score_spread(analysis)
    yield _assumption(
        "all other tokens of each input score the same",
        unequal < SCORE_RTOL,
        unequal,
        n=n,
        note="largest spread of the other tokens' scores relative to the best token's lead",
    )
    yield _assumption(
        "the first step from W = 0 raises every best token above the others",
        analysis.first_step > 0,
        analysis.first_step,
        n=n,
        note="smallest margin of the first step, relative to its norm",
    )
    yield _on_data(
        "share of inputs whose best token is selected",
        float(analysis.agreement.double().mean()),
        unit="share",
        predicted=1.0,
        n=n,
        note=_run_note(analysis),
    )
    yield _on_data(
        "attention on the selected token (smallest over the inputs)",
        float(analysis.attention.min()),
        unit="share",
        predicted=1.0,
        basis="limit",
        nulls=(None if analysis.null is None else Null("uniform attention", (1 / T,)),),
        side=">=",
        n=n,
        note="below .999 the run has not settled and the following verdicts are inconclusive",
    )
    yield _on_data(
        "norm of W relative to half-way",
        float(end.W.norm() / half.W.norm()) if float(half.W.norm()) else 1.0,
        predicted=end.step / half.step,
        basis="limit",
        n=n,
        note=f"norm {float(half.W.norm()):.0f} at step {half.step}, {float(end.W.norm()):.0f} at step "
        f"{end.step}",
    )
    covered = analysis.first_step > 0 and unequal < SCORE_RTOL
    yield _cosine(
        "cosine of W to the max-margin direction of the best tokens", analysis, analysis.best, covered, None
    )
    if analysis.selected.solution is None:
        yield _on_data(HEADLINE, None, reason=analysis.selected.reason, n=n, note=_run_note(analysis))
        return
    settled = analysis.saturated and _late_rise(analysis, analysis.selected) < 0.002
    optimal = float(analysis.locally_optimal.double().mean())
    yield _on_data(
        "share of inputs whose selected token scores above its neighbours",
        optimal,
        unit="share",
        predicted=1.0,
        op=">=",
        threshold=1.0,
        verdict=judge(optimal, ">=", 1.0, converged=settled),
        n=n,
        note="locally optimal selections; inputs that select none do not count",
    )
    yield _on_data(
        MARGIN,
        analysis.margin,
        unit="share",
        predicted=1.0,
        basis="limit",
        op=">=",
        threshold=MARGIN_THRESHOLD,
        verdict=judge(analysis.margin, ">=", MARGIN_THRESHOLD, converged=settled),
        n=n,
    )
    stable = not settled or bool(analysis.locally_optimal.all())
    yield _cosine(HEADLINE, analysis, analysis.selected, stable, analysis.null)
    yield Arrays({f"{NAME}/{name}": value for name, value in analysis.arrays().items()})


def _on_data(quantity: str, value: float | None, **columns) -> Measurement:
    """Returns a measurement of a statement about descent that holds or fails on any data."""
    return Measurement(NAME, "on data", quantity, value, source=SOURCE, scope="any data", **columns)


def _assumption(quantity: str, holds: bool, value: float, **columns) -> Measurement:
    return Measurement(
        NAME, "assumption", quantity, value, verdict="holds" if holds else "fails", source=SOURCE, **columns
    )


def _score_spread(analysis: Analysis) -> float:
    """Returns the largest spread of the other tokens' scores, relative to the best token's lead."""
    spreads = []
    for scores, best in zip(analysis.instance.scores, analysis.best.tokens):
        others = scores[torch.arange(len(scores)) != best]
        spreads.append(float((others.max() - others.min()) / (scores[best] - others.min()).clamp(min=1e-300)))
    return max(spreads)


def _cosine(
    quantity: str, analysis: Analysis, selection: Selection, covered: bool, null: Null | None
) -> Measurement:
    value, caveat = float(analysis.cosines(selection)[-1]), ""
    if value < COSINE_THRESHOLD and _late_rise(analysis, selection) > 0.005:
        caveat = "; still rising"
    elif value < COSINE_THRESHOLD and not analysis.saturated:
        caveat = "; attention is not yet saturated"
    return _on_data(
        quantity,
        value,
        predicted=1.0,
        basis="limit",
        op=">=",
        threshold=COSINE_THRESHOLD,
        verdict=judge(value, ">=", COSINE_THRESHOLD, converged=not caveat, covered=covered),
        nulls=(null,),
        side=">=",
        bounds=CORRELATION,
        n=len(analysis.tied),
        note=_run_note(analysis) + caveat,
    )


def _run_note(analysis: Analysis) -> str:
    return f"{analysis.states[-1].step} normalised steps of {RATE} from W = 0"


def _late_rise(analysis: Analysis, selection: Selection) -> float:
    """Returns the rise of the cosine to the selection's solution over the last quarter of the run."""
    before, after = analysis.cosines(selection)[-2:]
    return float(after - before)


@style()
def plot(result: Result) -> "Figure":
    """Plots the cosine to the max-margin direction, the margins, the attention, and the share of feasible
    random sets.
    """
    arrays = {
        name.partition("/")[2]: value
        for name, value in result.arrays.items()
        if name.partition("/")[0] == NAME
    }
    if "cosine_selected" not in arrays:
        missing = [row.reason for row in result.table.select(theory=NAME, kind="on data", value=None)]
        return text_figure(missing[0] if missing else "attention_svm: nothing was measured on these data")
    figure, (left, middle, right, last) = axes(2, 2, width=7.0, height=5.0)
    plot_cosines(left, arrays)
    plot_margins(middle, arrays)
    plot_attention(right, arrays)
    n, share = arrays["feasible_n"], arrays["feasible_share"]
    last.plot(n, share, color=colour(NAME), marker="o")
    last.set(
        title="Feasible random sets",
        xlabel="inputs in the set",
        ylabel="share",
        ylim=(-0.04, 1.06),
        xlim=(0, max(n.max(), 4) + 1),
    )
    caption(
        figure,
        "Descent on W from zero, on inputs whose best tokens have a joint max-margin solution. Margins are "
        "in units of the largest possible smallest margin. Feasible: share of random sets of that many "
        "inputs whose best tokens one W can select.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=HEADLINE, plot=plot)
