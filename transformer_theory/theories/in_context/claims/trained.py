"""Claims about models that learn to answer prompts by gradient descent."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import cosine
from ..learning import train_attention, train_on_functions
from ..preconditioned import preconditioner, risk
from ..prompts import Prompts, function_prompts, gaussian_inputs, linear_prompts
from ..references import answers_of, least_squares, nearest, ridge
from .layers import SPECTRUM
from .steps import COVARIANCE, SETTING, N

BATCH, STEPS, TESTED = 256, 2000, 2000
D, EXAMPLES, DECODER_STEPS = 3, 24, 600


def _trained(generator: Generator, *, target: str) -> Evidence:
    """Trains one layer and compares its matrix with the closed form, or with the inverse covariance."""

    def draw(generator: Generator) -> Prompts:
        return linear_prompts(BATCH, N, gaussian_inputs(SPECTRUM), generator=generator)

    G = train_attention(draw, len(SPECTRUM), steps=STEPS, generator=generator).preconditioner()
    eye, best = torch.eye(len(SPECTRUM), dtype=torch.float64), preconditioner(COVARIANCE, N)
    matrices = {"closed form": best, "inverse covariance": torch.linalg.inv(COVARIANCE), "plain descent": eye}
    cosines = {name: float(cosine(G, matrix)) for name, matrix in matrices.items()}
    risks = {"risk": risk(G, COVARIANCE, N), "smallest risk": risk(best, COVARIANCE, N)}
    return Evidence(cosines[target], 0.999, ">=", detail=cosines | risks)


def _trees(generator: Generator, *, own: bool) -> Evidence:
    """Trains a decoder on decision trees and divides its error after 24 examples by the smallest of three algorithms."""
    model = train_on_functions("tree", d=D, N=EXAMPLES, steps=DECODER_STEPS, generator=generator)
    prompts = function_prompts("tree", TESTED, EXAMPLES, D, generator=generator)
    shown = prompts if own else prompts.with_contexts(torch.arange(TESTED).roll(1))
    others = {"least squares": least_squares(prompts), "ridge": ridge(prompts, 0.1), "3 neighbours": nearest(prompts)}
    errors = {name: float((answers - prompts.target).square().mean()) for name, answers in others.items()}
    error = float((answers_of(model, shown) - prompts.target).square().mean())
    return Evidence(error / min(errors.values()), 1.0, "<=", detail=errors | {"decoder": error})


def _functions(generator: Generator, *, own: bool) -> Evidence:
    """Trains a decoder on linear functions and measures its error after 24 examples, as a share of that of the answer zero."""
    model = train_on_functions("linear", d=D, N=EXAMPLES, steps=DECODER_STEPS, generator=generator)
    prompts = function_prompts("linear", TESTED, EXAMPLES, D, generator=generator)
    shown = prompts if own else prompts.with_contexts(torch.arange(TESTED).roll(1))
    errors = [(answers - prompts.target).square().mean() for answers in (answers_of(model, shown), least_squares(prompts))]
    zero = prompts.target.square().mean()
    return Evidence(float(errors[0] / zero), 0.1, "<=", detail={"least squares": float(errors[1] / zero)})


TRAINED = (
    Claim(
        id="in_context/trained",
        statement=r"One layer of linear attention that is trained on prompts finds $\Gamma^{-1}$, not $\eta I$ and not $\Lambda^{-1}$.",
        measures="cosine of the trained layer's matrix",
        source=Source("zhang2024trained", "Theorem 4.1", "second-hand"),
        assumptions=(SETTING, "2,000 batches of 256 prompts, Adam; the theorem is about gradient flow"),
        check=lambda generator: _trained(generator, target="closed form"),
        control=lambda generator: _trained(generator, target="inverse covariance"),
        control_description=r"compares with $\Lambda^{-1}$",
        cost="training",
    ),
    Claim(
        id="in_context/functions",
        statement="A decoder of two blocks that is trained on linear functions, of a new $w$ in each prompt, answers from its examples: "
        "its error is below a tenth of that of the answer zero. The threshold is ours.",
        measures="mean squared error after 24 examples, as a share of that of the answer zero",
        source=Source("garg2022what", status="own"),
        assumptions=("3 dimensions, no noise", "600 batches of 128 prompts, Adam"),
        check=lambda generator: _functions(generator, own=True),
        control=lambda generator: _functions(generator, own=False),
        control_description="the examples of another prompt",
        cost="training",
    ),
    Claim(
        id="in_context/trees",
        statement="A decoder of two blocks that is trained on decision trees of depth 2 over signs of coordinates, $x_i > 0$, has a "
        "smaller error than least squares, ridge and the mean of three neighbours.",
        measures="mean squared error after 24 examples, relative to the best of the three algorithms",
        source=Source("garg2022what", status="own"),
        assumptions=("3 dimensions, no noise", "600 batches of 128 prompts, Adam"),
        check=lambda generator: _trees(generator, own=True),
        control=lambda generator: _trees(generator, own=False),
        control_description="the examples of another prompt",
        cost="training",
    ),
)
