"""Claims about the intervention on sharpness in the trained setting of the theorems."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....probes.changed_pass import changed_attention, check_changed
from ..dynamics import normalised_descent, start
from ..interventions import FACTORS, sharper
from .common import raised_at_first

STEPS = 700


class _Head(nn.Module):
    """The head of the theorems: tokens, queries and token scores to predictions ``[n]``."""

    def __init__(self, W: Float[Tensor, "d d_z"]):
        super().__init__()
        self.W = W

    def forward(
        self,
        tokens: Float[Tensor, "n T d"],
        query: Float[Tensor, "n d_z"],
        scores: Float[Tensor, "n T"],
    ) -> Float[Tensor, " n"]:
        weights = ((query @ self.W.mT)[:, None] @ tokens.mT).softmax(-1)
        return (weights @ scores[..., None])[:, 0, 0]


@claim(
    "attention_svm/sharper-attention",
    measures="largest change of a prediction over all factors, in units of the gap of token scores",
    at_most=1e-4,
    source=Source("tarzanagh2023transformers", status="own"),
    assumptions=(
        "all tokens of each input but the optimal one have the same score",
        "the first step already raises every optimal token above the others",
        f"{STEPS} normalised steps from W = 0 on 6 inputs of 6 tokens, dimension 10",
    ),
    control=but("W after one step", steps=1),
)
def sharper_attention(generator: Generator, *, steps: int = STEPS) -> Measured:
    r"""After descent scores times 2, 4 and $\infty$ change no prediction: the norm of W grows along the
    max-margin direction, so that the weights $a_i$ of the optimal tokens tend to 1, and all weight on the
    largest score adds exactly $1 - a_i$ gaps to prediction i.
    """
    instance = raised_at_first(generator)
    W = normalised_descent(instance, start(instance), steps=steps).W
    model, given = _Head(W), (instance.tokens, instance.query, instance.scores)
    with torch.no_grad():
        before = model(*given)
    changes = {}
    for factor in FACTORS:
        with changed_attention(model, partial(sharper, factor=factor)) as changed:
            changes[factor] = model(*given) - before
        check_changed(changed, f"scores times {factor:g}")
    a = instance.attention(W).gather(-1, instance.optimal()[:, None])[:, 0]
    error = float((changes[math.inf] - (1 - a)).abs().max())
    largest = max(float(change.abs().max()) for change in changes.values())
    return Measured(max(largest, error), {"smallest weight": float(a.min()), "error of 1 - a": error})


CLAIMS = (sharper_attention,)
