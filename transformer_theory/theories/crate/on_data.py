r"""CRATE without training: unrolled steps on given tokens, with subspaces estimated from these tokens.

**Compression.** K subspaces of dimension d / K are fitted to the tokens (K-subspaces). Then the tokens of
every sequence are moved step by step, and R^c(Z; U_[K]) is measured after each step. The exact gradient step
with kappa = 1/L guarantees R^c(l+1) <= R^c(l) - ||grad||^2 / (2L). The paper's step assumes orthonormal
incoherent subspaces and small beta. The residual form with tied output should raise R^c. The null consists of
exact steps of the same size along random subspaces, with R^c measured in the fitted ones. Every step also
shortens the tokens, which alone lowers R^c; therefore R^c is also measured with all tokens scaled to norm
one, so that only directions count. The subspaces are fitted to the same tokens, so noise is compressed as
well: these quantities have the scope "any data".

**Sparsification.** Tokens of norm one are coded in the dictionary D = [U_1 ... U_K, -U_1 ... -U_K] by ISTA. A
token of subspace k needs at most p of the 2 K p atoms, a share of 1 / (2 K). The null is the code in random
subspaces.

Sources: :cite:t:`yu2023white`, :cite:t:`hu2024indepth` (the sign), :cite:t:`beck2009fast` (ISTA). Notation:
docs/notation.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.measurement import Measurement, Null, Op, judge
from ...core.plotting import (
    COLOURS,
    TINTS,
    axes,
    colour,
    heatmap,
    label_ends,
    line,
    null_band,
    style,
    text_figure,
)
from ...core.result import Result
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.tokens import TokenData
from ...metrics.coding import subspace_coding_rate, unit_norm
from ...models.crate.compression import Bases, coordinates
from .approximations import spectral_radii
from .in_networks import RANDOM_SUBSPACES, null_subspaces
from .problem import DECREASE, LASSO, PAPER, SIGN, STEP, fit_subspaces, incoherence, incompleteness, nonzeros
from .sparse_coding import optimal_code
from .steps import lipschitz
from .unrolled import (
    ISTA_STEPS,
    LAM,
    LAYERS,
    Sequences,
    exact_steps,
    forms,
    guaranteed_rates,
    sparse_code,
    unroll,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# sequences compressed, tokens coded, tokens in the figure
MAX_SEQUENCES, MAX_CODED, MAX_PLOTTED = 256, 512, 64
# fewer sequences of long or wide tokens: at most 2^17 entries, but at least 16 sequences
MIN_SEQUENCES, MAX_ENTRIES = 16, 2**17
SUBSPACES, EPS = 4, 0.5
# largest cosine of subspaces that count as incoherent, largest incompleteness of ones that count as complete
INCOHERENCE_ATOL = 0.1
# smallest share of energy in the best subspace of each token for tokens that count as lying in the subspaces
ENERGY_SHARE = 0.95

LEFT = "R^c left by exact steps, tokens of norm one"
LEFT_LENGTHS_KEPT = "R^c left by exact steps, lengths kept"
LARGEST_CHANGE, SMALLEST_CHANGE = "largest change of R^c in a step", "smallest change of R^c in a step"
CODE_NONZEROS = "share of non-zeros of the sparse code"
NONZEROS_CHANGE = "change of the share of non-zeros by compression"
LASSO_DECREASE = "largest change of the LASSO in an ISTA step"

# measurements


@dataclass(frozen=True)
class Problem:
    """Sequences of tokens to compress, [N, n, d], float64, not all zero."""

    tokens: Sequences


def read(data: TokenData) -> Problem | Unsupported:
    """Returns the tokens of a data set in float64, or the reason why there is nothing to compress."""
    tokens = data.tokens.double()
    if not len(tokens) or not bool((tokens != 0).any()):
        return Unsupported("all tokens are zero, so there is nothing to compress")
    return Problem(tokens)


def measure(problem: Problem, generator: torch.Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the measurements that the module's docstring describes, on at most ``MAX_SEQUENCES`` sequences.

    Args:
        problem: result of :func:`read`.
        generator: draws the starts of the fit of the subspaces.
        draws: largest number of sets of random subspaces; there are at most 19.
    """
    tokens = _sample(problem)
    if tokens is None:
        yield _row(LEFT, None, unit="share", side="<=", reason="all sampled tokens are zero")
        return
    m, n, d = tokens.shape
    K = min(SUBSPACES, d)
    bases, assigned = fit_subspaces(tokens.flatten(0, 1), K=K, p=d // K, generator=generator, rounds=15)
    random = [null_subspaces(K, d, d // K, seed=seed) for seed in range(min(draws, RANGE_DRAWS))]
    runs = {name: unroll(tokens, bases, step, eps=EPS) for name, step in forms(bases, n=n, eps=EPS).items()}
    # The steps along random subspaces have the size of those along the fitted ones. This size is safe,
    # because L has its smallest value, beta, for the mutually orthogonal random subspaces.
    kappa = 1 / lipschitz(bases, n=n, eps=EPS)
    left = [_left(tokens, exact_steps(tokens, frame, kappa=kappa, eps=EPS), bases) for frame in random]
    bound = guaranteed_rates(runs["exact"], bases, eps=EPS)

    assumptions = _assumptions(tokens, bases)
    yield from assumptions
    holds = [row.verdict == "holds" for row in assumptions]
    # Exact steps need only the first two assumptions, neither completeness nor the Neumann series.
    mixture, ideal = all(holds[:2]), all(holds)
    first_rate = float(runs["exact"].rates[0])
    kept, unit = _left(tokens, runs["exact"].states[-1], bases)
    columns: dict[str, Any] = {"unit": "share", "side": "<=", "n": m, "source": DECREASE}
    note = f"share of the first rate after {LAYERS} steps, {K} fitted subspaces of dimension {d // K}"
    yield _judged(
        LEFT,
        unit,
        "<=",
        1.0,
        covered=mixture,
        nulls=(_null([share for _, share in left]),),
        note=note,
        **columns,
    )
    note, threshold = (
        "share of the first rate; the threshold is the descent inequality",
        float(bound[-1]) / first_rate + 1e-9,
    )
    null = _null([share for share, _ in left])
    yield _row(LEFT_LENGTHS_KEPT, kept, op="<=", threshold=threshold, nulls=(null,), note=note, **columns)
    note = "as a share of the first rate"
    largest = float(runs["paper"].changes.max())
    yield _judged(
        LARGEST_CHANGE,
        largest,
        "<=",
        0.0,
        covered=ideal,
        at={"attention step": "paper"},
        n=m,
        source=STEP,
        note=note,
    )
    smallest = float(runs["tied residual"].changes.min())
    yield _judged(
        SMALLEST_CHANGE,
        smallest,
        ">=",
        0.0,
        covered=ideal,
        at={"attention step": "tied residual"},
        n=m,
        source=SIGN,
        note=note,
    )
    arrays = {f"crate/rate/{name}": run.rates.numpy() for name, run in runs.items()}
    arrays["crate/shape/exact"] = runs["exact"].unit_rates(bases, eps=EPS).numpy()
    if random:
        arrays["crate/rate/random"] = (
            first_rate * _first_and_last(torch.tensor([share for share, _ in left])).numpy()
        )
    yield Arrays({**arrays, "crate/rate/guaranteed": bound.numpy()})
    yield from _sparsify(runs["exact"].states, bases, random, ideal)
    yield _cosines(runs["exact"].states, assigned.view(m, n))


def _left(before: Sequences, after: Sequences, bases: Bases) -> tuple[float, float]:
    """Returns R^c after divided by R^c before, means over the sequences: of the tokens, and of the tokens
    scaled to norm one.
    """
    pairs = (before, after), (unit_norm(before), unit_norm(after))
    rates = [
        [float(subspace_coding_rate(tokens, bases, eps=EPS).mean()) for tokens in pair] for pair in pairs
    ]
    kept, unit = (last / first if first > 0 else float("nan") for first, last in rates)
    return kept, unit


def _first_and_last(last: Float[Tensor, " draws"]) -> Float[Tensor, "2"]:
    """Returns 1 and the median of the shares that are left: the ends of a straight line in the figure."""
    return torch.stack([torch.ones_like(last[0]), last.median()])


def _sample(problem: Problem) -> Sequences | None:
    """Draws sequences, scaled so that the mean squared norm of a token is one; None if all are zero. The draw
    is the same in every call.
    """
    number, length, dim = problem.tokens.shape
    most = min(MAX_SEQUENCES, max(MIN_SEQUENCES, MAX_ENTRIES // (length * dim)))
    tokens = problem.tokens[torch.randperm(number, generator=fixed_generator())[:most].sort().values]
    largest = tokens.abs().max()
    if largest == 0:
        return None
    tokens = tokens / largest  # the squares of the entries then neither overflow nor underflow
    return tokens / tokens.square().sum(-1).mean().sqrt()


def _assumptions(tokens: Sequences, bases: Bases) -> list[Measurement]:
    """Returns one row per assumption of the theory, with the verdict whether it holds for these tokens and
    subspaces.
    """
    coords = coordinates(tokens, bases)
    radius = float(spectral_radii(tokens, bases, eps=EPS).max())
    energy = float(coords.square().sum(-1).max(-2).values.sum() / tokens.square().sum())
    largest_cosine, deviation = incoherence(bases), incompleteness(bases)

    def row(quantity: str, value: float, op: Op, threshold: float, note: str) -> Measurement:
        holds = value >= threshold if op == ">=" else value <= threshold
        return Measurement(
            "crate",
            "assumption",
            quantity,
            value,
            verdict="holds" if holds else "fails",
            op=op,
            threshold=threshold,
            source=PAPER,
            note=note,
        )

    return [
        row(
            "tokens lie in one of the subspaces",
            energy,
            ">=",
            ENERGY_SHARE,
            "share of the energy in the best of the fitted subspaces",
        ),
        row(
            "subspaces are incoherent",
            largest_cosine,
            "<=",
            INCOHERENCE_ATOL,
            "largest cosine between directions of two subspaces",
        ),
        row(
            "projections add up to the identity",
            deviation,
            "<=",
            INCOHERENCE_ATOL,
            "spectral norm of the difference",
        ),
        row(
            "the Neumann series behind attention converges",
            radius,
            "<=",
            1.0,
            "largest eigenvalue of beta W_k W_k^T; the series converges below 1",
        ),
    ]


def _sparsify(
    states: Tensor, bases: Bases, random: list[Bases], ideal: bool
) -> Iterator[Measurement | Arrays]:
    """Yields measurements and arrays of the sparse codes by layer."""
    flat = states.flatten(1, 2)
    most = min(MAX_CODED, MAX_ENTRIES // (4 * flat.shape[-1]))
    indices = torch.randperm(flat.shape[1], generator=fixed_generator())[: max(MIN_SEQUENCES, most)]
    layers = [unit_norm(state[indices]) for state in flat]
    codes = [sparse_code(layer, bases) for layer in layers]
    shares = torch.stack([nonzeros(code) for code, _, _ in codes])
    # The columns of random subspaces are orthonormal, so ISTA from zero has the non-zeros of the minimiser
    # after every step.
    nulls = torch.tensor(
        [[float(nonzeros(optimal_code(layers[end], frame, lam=LAM))) for end in (0, -1)] for frame in random]
    )
    starts, changes = (nulls[:, 0].tolist(), (nulls[:, 1] - nulls[:, 0]).tolist()) if random else ([], [])
    worst = max(worst for _, _, worst in codes)
    columns: dict[str, Any] = {"covered": ideal, "n": len(indices), "side": "<=", "source": PAPER}
    bound = 0.5 / len(bases)
    note = f"{ISTA_STEPS} ISTA steps; a token of one subspace needs at most 1 in {2 * len(bases)} atoms"
    yield _judged(
        CODE_NONZEROS,
        float(shares[0]),
        "<=",
        bound,
        unit="share",
        nulls=(_null(starts),),
        note=note,
        **columns,
    )
    # A difference of two shares may be negative, so its unit is not "share".
    note = f"difference of two shares, after {LAYERS} layers; deeper layers should be sparser"
    yield _judged(
        NONZEROS_CHANGE,
        float(shares[-1] - shares[0]),
        "<=",
        0.0,
        bounds=(-1.0, 1.0),
        nulls=(_null(changes),),
        note=note,
        **columns,
    )
    converged = worst > -torch.inf
    yield _row(
        LASSO_DECREASE,
        worst if converged else None,
        reason="" if converged else "every step was smaller than rounding",
        op="<=",
        threshold=-1 + 1e-4,
        n=len(indices),
        source=LASSO,
        note="in units of the decrease that a step of size 1/L guarantees",
    )
    arrays = {"nonzeros": shares, "nonzeros/predicted": torch.tensor(bound), "objective": codes[0][1]}
    if random:
        arrays["nonzeros/random"] = nulls.median(0).values
    yield Arrays({f"crate/{name}": values.numpy() for name, values in arrays.items()})


def _cosines(states: Tensor, assigned: Int[Tensor, "m n"]) -> Arrays:
    """Returns the cosines between the tokens of the first sequences, sorted by subspace, before and after the
    exact steps.
    """
    sequences = -(-MAX_PLOTTED // states.shape[2])  # tokens to plot over tokens per sequence, rounded up
    subspace = assigned[:sequences].flatten()
    order = torch.argsort(subspace, stable=True)
    first, last = (unit_norm(state[:sequences].flatten(0, 1)[order]) for state in (states[0], states[-1]))
    return Arrays(
        {
            "crate/cosine/before": (first @ first.mT).abs().numpy(),
            "crate/cosine/after": (last @ last.mT).abs().numpy(),
            "crate/cosine/subspace": subspace[order].numpy(),
        }
    )


def _row(quantity: str, value: float | None, **columns: Any) -> Measurement:
    return Measurement("crate", "on data", quantity, value, scope="any data", **columns)


def _judged(
    quantity: str, value: float, op: Op, threshold: float, *, covered: bool, **columns: Any
) -> Measurement:
    verdict = judge(value, op, threshold, covered=covered)
    return _row(quantity, value, op=op, threshold=threshold, verdict=verdict, **columns)


def _null(draws: list[float]) -> Null | None:
    return Null(RANDOM_SUBSPACES, tuple(draws)) if draws else None


# the figure

DASHED = (0, (4, 3))
RATE_FLOOR = 1e-3  # smaller shares of the first rate are drawn at this level


@style()
def plot(result: Result) -> "Figure":
    """Plots R^c and non-zeros by layer, and cosines of tokens before and after compression. Without arrays,
    the figure is a text.
    """
    if "crate/rate/exact" not in result.arrays:
        return text_figure("CRATE: there was nothing to compress in these data.")
    figure, (rates, sparse, before, after) = axes(1, 4, height=2.3)
    rate_panel(rates, result.arrays)
    _nonzero_panel(sparse, result.arrays)
    for ax, when in ((before, "before"), (after, "after")):
        heatmap(ax, result.arrays[f"crate/cosine/{when}"], f"tokens {when}", vmin=0, vmax=1, bar=False)
        ax.set_xlabel("|cosine|")
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def rate_panel(ax: "Axes", arrays: Mapping[str, np.ndarray]) -> None:
    """Plots R^c(Z; U), relative to its first value, by step: the three forms, the guarantee of the exact
    steps, and random subspaces.
    """
    for name, label, tint, dashes in (
        ("exact", "exact", colour("crate"), "-"),
        ("guaranteed", "exact, bound", colour("crate"), DASHED),
        ("paper", "paper", TINTS[0], "-"),
        ("tied residual", "tied residual", TINTS[2], "-"),
        ("random", "random U", COLOURS["null"], DASHED),
    ):
        if (curve := arrays.get(f"crate/rate/{name}")) is not None:
            # Of the random subspaces only the ends are known.
            steps = np.linspace(0, len(arrays["crate/rate/exact"]) - 1, len(curve))
            line(
                ax,
                steps,
                np.maximum(curve / curve[0], RATE_FLOOR),
                label=label,
                color=tint,
                linestyle=dashes,
            )
    ax.set_yscale("log")
    ax.set_title("$R^c(Z; U)$, start = 1")
    _layer_axis(ax)
    mark_floor(ax, RATE_FLOOR, "smaller values are drawn here")
    label_ends(ax)


def mark_floor(ax: "Axes", floor: float, label: str) -> None:
    """Labels the level at which curves are cut off, if any curve reaches it."""
    if any(np.min(np.asarray(curve.get_ydata(), dtype=float)) <= floor for curve in ax.get_lines()):
        null_band(ax, floor, label=label)


def _nonzero_panel(ax: "Axes", arrays: Mapping[str, np.ndarray]) -> None:
    """Plots the share of non-zeros of the sparse codes by layer."""
    shares = arrays["crate/nonzeros"]
    line(ax, range(len(shares)), shares, name="crate", label="measured")
    if "crate/nonzeros/random" in arrays:
        line(
            ax,
            (0, len(shares) - 1),
            arrays["crate/nonzeros/random"],
            name="null",
            label="random U",
            linestyle=DASHED,
        )
    line(
        ax,
        (0, len(shares) - 1),
        [float(arrays["crate/nonzeros/predicted"])] * 2,
        name="raw",
        label="predicted",
        linestyle=(0, (1, 2)),
    )
    ax.set_ylim(bottom=0)
    ax.set_title("Share of non-zeros")
    _layer_axis(ax)
    label_ends(ax)


def _layer_axis(ax: "Axes") -> None:
    ax.set_xlabel("layer")
    ax.locator_params(axis="x", integer=True)


ON_DATA = OnData(read=read, measure=measure, headline=LEFT, plot=plot)
