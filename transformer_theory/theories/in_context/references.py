r"""Algorithms with which the answers of a model are compared: one step, many steps, least squares, ridge,
recursive least squares, neighbours.

Each maps prompts to answers ``[n]``, in float64. Recursive least squares takes the examples one by one with
the formula of Sherman and Morrison, :math:`P \leftarrow P - P x x^\top P / (1 + x^\top P x)` from :math:`P =
I / \lambda`, and equals ridge on every prefix. Source: :cite:t:`akyurek2023learning`, :cite:t:`garg2022what`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.measurement import Measurement, Null, present
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, permutations
from ...core.validation import as_float64, full_precision, in_range, integers, positive
from ...maths.linalg import binary_scale, cosine
from .preconditioned import check_step
from .prompts import Prompts

Answers = Float[Tensor, " n"]
Model = Callable[[Tensor], Tensor] | nn.Module
NAME, SLOPE, OTHERS = (
    "in_context",
    "slope of the answers on one preconditioned step",
    "contexts of other prompts",
)
LEAST_NORM = 1e-10  # singular values below this share of the largest count as zero


@in_range
@full_precision
def one_step(prompts: Prompts, G: Float[Tensor, "d d"]) -> Answers:
    """Computes x^T G b, one step of descent from zero, preconditioned by G ``[d, d]``.

    Raises:
        ValueError: G has another shape.
    """
    check_step(G, prompts.x.shape[2])
    return (prompts.query * (prompts.moment @ G.mT)).sum(1)


def many_steps(prompts: Prompts, eta: float, steps: int) -> Answers:
    """Computes the answers after steps of plain descent from zero."""
    integers(steps=steps)
    w = torch.zeros_like(prompts.query)
    for _ in range(steps):
        errors = torch.einsum("njd,nd->nj", prompts.x, w) - prompts.y
        w = w - eta * torch.einsum("nj,njd->nd", errors, prompts.x) / prompts.x.shape[1]
    return (prompts.query * w).sum(1)


def least_squares(prompts: Prompts) -> Answers:
    """Computes the answers of least squares; with fewer examples than coordinates, those of the solution of
    least norm.
    """
    w = torch.linalg.pinv(prompts.x, rtol=LEAST_NORM) @ prompts.y[..., None]
    return (prompts.query * w[..., 0]).sum(1)


def ridge_estimate(prompts: Prompts, strength: float) -> Float[Tensor, "n d"]:
    r"""Computes the w that minimise :math:`\tfrac{1}{2N} \|X w - y\|^2 + \tfrac\lambda2 \|w\|^2`,
    ``[n, d]``.
    """
    positive(strength=strength)
    N, d = prompts.x.shape[1:]
    S = prompts.x.mT @ prompts.x / N + strength * torch.eye(d, dtype=prompts.x.dtype)
    return torch.linalg.solve(S, prompts.moment)


def ridge(prompts: Prompts, strength: float) -> Answers:
    r"""Computes the answers of :func:`ridge_estimate`.

    With :math:`\lambda = \sigma^2 / N` these are the best answers of all for weights from N(0, I).
    """
    return (prompts.query * ridge_estimate(prompts, strength)).sum(1)


@in_range
@full_precision
def recursive_least_squares(prompts: Prompts, strength: float) -> Float[Tensor, "n N"]:
    r"""Computes the answers after each example, ``[n, N]``, by the formula of Sherman and Morrison.

    ``strength`` multiplies :math:`\tfrac12 \|w\|^2` beside the sum of squares :math:`\tfrac12 \|X w - y\|^2`,
    without a factor 1/N.
    """
    positive(strength=strength)
    n, N, d = prompts.x.shape
    P, w = torch.eye(d, dtype=prompts.x.dtype).expand(n, d, d) / strength, torch.zeros_like(prompts.query)
    answers = []
    for j in range(N):
        x, y = prompts.x[:, j], prompts.y[:, j]
        Px = torch.einsum("nde,ne->nd", P, x)
        gain = Px / (1 + (x * Px).sum(1, keepdim=True))
        w = w + gain * (y - (x * w).sum(1))[:, None]
        P = P - gain[:, :, None] * Px[:, None, :]
        answers.append((prompts.query * w).sum(1))
    return torch.stack(answers, dim=1)


def nearest(prompts: Prompts, k: int = 3) -> Answers:
    """Computes the mean y of the k examples (or all, if there are fewer) that are nearest to the query."""
    integers(k=k)
    distances = (prompts.x - prompts.query[:, None]).norm(dim=-1)
    return prompts.y.gather(1, distances.topk(min(k, prompts.x.shape[1]), largest=False).indices).mean(1)


def answers_of(model: Model, prompts: Prompts) -> Answers:
    """Returns the answers of a model of regression tokens in float64, ``[n]``.

    Args:
        model: maps float32 tokens (x, y) with the query (x, 0) last, ``[n, N + 1, d + 1]``, to answers
            ``[n]`` or to one number for each token, ``[n, N + 1]``, of which the last counts.
        prompts: the prompts.
    Raises:
        ValueError: the model takes other inputs, or its outputs have another shape or are not finite.
    """
    tokens = prompts.tokens()
    try:
        with torch.no_grad():
            output = model(tokens)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(
            f"the model must take float tokens {list(tokens.shape)}, got an error: {reason}; wrap it in a "
            "function"
        ) from error
    output = output[:, -1] if isinstance(output, Tensor) and output.shape == tokens.shape[:2] else output
    if not isinstance(output, Tensor) or output.shape != (len(prompts),):
        actual = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"the model must return answers [{len(prompts)}], got {actual}; wrap it in a function"
        )
    if not bool(output.isfinite().all()):
        raise ValueError(
            "the model must return finite answers, got NaN or infinite ones; train it with a smaller rate"
        )
    return output.double()


@dataclass(frozen=True)
class Comparison:
    """Answers beside those of a reference: cosine, slope on the reference, and mean squared difference."""

    cosine: float
    slope: float
    difference: float


@in_range
def compare_predictors(answers: Answers, references: Mapping[str, Answers]) -> dict[str, Comparison]:
    """Compares a model's answers ``[n]`` with those of reference algorithms on the same prompts, in float64.

    Raises:
        ValueError: lengths differ, or answers are all zero or not finite.
    """
    answers, found = as_float64("answers", answers), {}
    for name, reference in references.items():
        reference = as_float64("reference", reference)
        found[name] = Comparison(
            float(cosine(answers, reference)),
            slope(answers, reference),
            float((answers - reference).square().mean()),
        )
    return found


def slope(answers: Answers, reference: Answers) -> float:
    """Computes the slope of the answers on a reference, without a constant; both ``[n]``.

    Raises:
        ValueError: the reference is zero.
    """
    scale = float(binary_scale(reference, 0))  # squares of the scaled reference are in range
    reference = reference / scale
    size = float(reference.square().sum())
    if not size > 0:
        raise ValueError(
            "expected a reference with answers that are not all zero, got zeros; pass another matrix or "
            "other prompts"
        )
    return float((answers / scale) @ reference) / size


@full_precision
def slope_on_step(
    model: Model,
    prompts: Prompts,
    G: Float[Tensor, "d d"],
    *,
    draws: int = LADDER_DRAWS,
    generator: Generator | None = None,
) -> Measurement:
    r"""Measures the slope of a model's answers on one preconditioned step, :math:`\sum \hat y p / \sum p^2`
    with :math:`p = x^\top G b`.

    The theory predicts 1. For the null, the step takes the examples of another prompt, with the same query.

    Args:
        model, prompts: see :func:`answers_of`.
        G: matrix of the step, for example :func:`.preconditioner`, ``[d, d]``.
        draws: number of draws of the null.
        generator: draws the permutations of the null; None: the draws are fixed.
    Raises:
        ValueError: the model takes other inputs, its outputs have another shape or are not finite, or there
            is one prompt only.
    """
    if len(prompts) < 2:
        raise ValueError("the null needs at least 2 prompts, got 1; draw more")
    answers, source = answers_of(model, prompts), Source("zhang2024trained", status="own")
    value = slope(answers, one_step(prompts, G))
    orders = permutations(len(prompts), draws, generator)
    chance = tuple(slope(answers, one_step(prompts.with_contexts(order), G)) for order in orders)
    null = Null(OTHERS, chance) if chance else None
    return Measurement(
        NAME,
        "in network",
        SLOPE,
        value,
        predicted=1.0,
        side=">=",
        nulls=present(null),
        n=len(prompts),
        source=source,
    )
