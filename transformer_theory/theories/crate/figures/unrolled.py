"""The three forms of compression on tokens that satisfy the theory's model, or violate it by noise; ISTA
compared with FISTA.

Sources: :cite:t:`yu2023white`, :cite:t:`hu2024indepth`, :cite:t:`beck2009fast`.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.measurement import Null
from ....core.sources import Source
from ....data.synthetic import subspace_mixture
from ....models.crate.sparsification import curvature, fista_steps
from ..approximations import spectral_radii
from ..on_data import LARGEST_CHANGE, SMALLEST_CHANGE
from ..problem import DECREASE, LASSO, PAPER, RATES, SIGN, STEP
from ..sparse_coding import fista, ista, lasso, optimal_code, signed_dictionary
from ..unrolled import LAM, forms, guaranteed_rates, unroll

MAX_CODED = 64  # tokens whose sparse codes are followed
RATE, BOUND, GAP = "R^c", "upper bound of R^c", "objective above its optimum"
LAST_GAP = "objective above its optimum after the last step of FISTA"
OPTIMUM = "optimum of the LASSO, closed form against FISTA: relative difference"
RATE_AXES = {"ylabel": "nats", "ylim": (1e-3, None)}
GAP_AXES = {"ylabel": "per token", "ylim": (1e-12, None)}  # smaller gaps are rounding errors
BOUNDED = {BOUND: {"label": "exact, bound", "color": "raw", "linestyle": "--"}}


@figure(
    "crate.unrolled",
    source=(PAPER, Source("hu2024indepth"), LASSO),
    view=curves(
        "layer",
        panels=(
            (
                Panel("$R^c(Z; U)$", RATE, lines="form", legend="ends", axes=RATE_AXES),
                Panel("", BOUND, lines=("quantity", BOUNDED)),
            ),
            Panel("LASSO above its optimum", GAP, lines="method", legend="ends", axes=GAP_AXES, x="step"),
        ),
        xlabel="step",
        log="y",
        caption="Bound: the guarantee of the exact steps. Smaller values are below the panels.",
        size=(7.0, 2.8),
    ),
    quick={"sequences": 16, "layers": 6, "codings": 8},
)
def unrolled(
    *,
    sequences: int = setting(128, ge=1, help="number of sequences"),
    tokens: int = setting(32, ge=1, help="number of tokens per sequence"),
    classes: int = setting(4, ge=1, help="number of subspaces"),
    rank: int = setting(6, ge=1, help="dimension of each subspace"),
    noise: float = setting(
        0.1,
        ge=0,
        le=1e3,
        help="standard deviation of the noise outside the subspaces, relative to the tokens",
    ),
    eps: float = setting(2.0, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    layers: int = setting(12, ge=1, help="steps of compression"),
    codings: int = setting(24, ge=1, help="steps of ISTA and FISTA"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Exact, paper's and tied residual steps on a mixture of orthogonal subspaces whose bases are known.

    The tokens have classes * rank dimensions, so the bases are complete. The paper's step needs a small beta
    = rank / (tokens eps^2). Tokens are also coded in D = [U, -U], for which the optimal code is known. After
    each step, ISTA and FISTA from zero are compared with this optimum.
    """
    generator, dim = torch.Generator().manual_seed(seed), classes * rank
    sizes = {"seq": tokens, "dim": dim, "classes": classes, "rank": rank, "noise": noise}
    mixture = subspace_mixture(sequences, **sizes, generator=generator)
    Z, bases = mixture.data.tokens, mixture.bases
    radius = float(spectral_radii(Z, bases, eps=eps).max())
    runs = {
        name: unroll(Z, bases, step, eps=eps, layers=layers)
        for name, step in forms(bases, n=tokens, eps=eps).items()
    }
    note = f"as a share of the first R^c; spectral radius of the Neumann series: {radius:.2g}"
    for name, run in runs.items():
        rises = name == "tied residual"
        bound = {"at_least": 0.0} if rises else {"at_most": 0.0}
        yield reading(
            SMALLEST_CHANGE if rises else LARGEST_CHANGE,
            float(run.changes.min() if rises else run.changes.max()),
            predicted=0.0,
            covered=radius < 1 or name == "exact",
            at={"form": name},
            n=sequences,
            source={"exact": DECREASE, "paper": STEP, "tied residual": SIGN}[name],
            note=note,
            **bound,
        )
        for layer, rate in enumerate(run.rates.tolist()):
            yield reading(RATE, rate, unit="nats", at={"form": name}, layer=layer, source=None)
    for layer, rate in enumerate(guaranteed_rates(runs["exact"], bases, eps=eps).tolist()):
        yield reading(BOUND, rate, unit="nats", at={"form": "exact"}, layer=layer, source=DECREASE)
    yield from coded(Z.flatten(0, 1)[:MAX_CODED], bases, codings)


def coded(tokens: Float[Tensor, "n dim"], bases: Float[Tensor, "K dim p"], codings: int) -> Iterator[Reading]:
    """Yields the distance of the objective to its optimum after each step of ISTA and FISTA, per token."""
    dictionary = signed_dictionary(bases)
    best = optimal_code(tokens, bases, lam=LAM)
    optimum, L = lasso(best, tokens, dictionary, lam=LAM), curvature(dictionary)
    solved = fista(tokens, dictionary, lam=LAM).objective.sum()
    yield reading(
        OPTIMUM,
        float((optimum - solved).abs() / optimum),
        predicted=1e-8,
        at_most=1e-8,
        n=len(tokens),
        source=LASSO,
        note="the optimum in [U, -U] with U orthogonal is soft thresholding",
    )

    def gap(code: Float[Tensor, "n codes"]) -> float:
        return max(0.0, float(lasso(code, tokens, dictionary, lam=LAM) - optimum) / len(tokens))

    steps, start = range(codings + 1), torch.zeros_like(best)
    options = {"eta": 1 / L, "lam": LAM}
    gaps = {
        "ISTA": [gap(ista(tokens, dictionary, lam=LAM, steps=step)) for step in steps],
        "FISTA": [gap(fista_steps(start, tokens, dictionary, **options, steps=step)) for step in steps],
    }
    for name, values in gaps.items():
        for step, value in zip(steps, values):
            yield reading(GAP, value, at={"method": name}, step=step, source=LASSO)
    allowed = float(2 * L * best.square().sum()) / len(tokens) / (codings + 1) ** 2
    yield reading(
        LAST_GAP,
        gaps["FISTA"][-1],
        predicted=allowed,
        at_most=allowed,
        nulls=(Null("ISTA", (gaps["ISTA"][-1],)),),
        side="<=",
        n=len(tokens),
        source=RATES,
        note=f"per token, {codings} steps from zero; the threshold is the bound of the theory",
    )
