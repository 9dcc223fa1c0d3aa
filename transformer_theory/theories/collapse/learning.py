r"""Networks that the theory follows from random weights to trained ones: a single head, and vision
transformers on the digits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.table import Table
from ...data.digits import digits
from ...data.tokens import TokenData
from ...probes.evaluation import evaluation
from ...probes.probing import probe
from ...training.trained_rungs import fit_classifier, vit_for
from .in_networks import CONTRACTION, HeadContraction
from .initialisation import gaussian_scores_matrix

MEASURED = 256


@dataclass(frozen=True)
class Head:
    """One head without skip connection, whose mean output is classified linearly.

    Attributes:
        W: matrix of the scores, ``[d, d]``.
        out: value matrix times the linear classifier, ``[d, classes]``.
    """

    W: Float[Tensor, "d d"]
    out: Float[Tensor, "d classes"]

    @classmethod
    def start(cls, d: int, classes: int, deviation: float, generator: Generator) -> "Head":
        """Returns a head with Gaussian scores of this standard deviation and a zero classifier."""
        return cls(
            gaussian_scores_matrix(d, deviation, generator), torch.zeros(d, classes, dtype=torch.float64)
        )


def train_head(
    head: Head,
    tokens: Float[Tensor, "n T d"],
    labels: Int[Tensor, " n"],
    generator: Generator,
    *,
    steps: int,
    rate: float,
    batch: int = 0,
) -> Head:
    """Trains both matrices with the cross-entropy: by gradient descent on all sequences, or by AdamW on
    batches.

    Args:
        head, tokens, labels: start and data.
        generator: draws the batches.
        steps, rate: number of steps and learning rate.
        batch: sequences per step; 0: all, by plain gradient descent.
    """
    W, out = (each.clone().requires_grad_() for each in (head.W, head.out))
    optimiser = torch.optim.AdamW([W, out], lr=rate) if batch else torch.optim.SGD([W, out], lr=rate)
    for _ in range(steps):
        chosen = torch.randint(len(tokens), (batch,), generator=generator) if batch else slice(None)
        x = tokens[chosen]
        # The mean over outputs, (1/T) sum_i a_i X, depends on the scores through the mean row of A.
        logits = ((x @ W @ x.mT).softmax(-1).mean(1, keepdim=True) @ x).squeeze(1) @ out
        loss = functional.cross_entropy(logits, labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Head(W.detach(), out.detach())


def digit_tokens(n: int) -> tuple[Float[Tensor, "n T d"], Int[Tensor, " n"]]:
    """Returns the first n digits as tokens of root mean square norm root d, ``[n, 16, 4]`` float64, and their
    labels.
    """
    data = digits()
    tokens = data.tokens[:n].double()
    assert data.labels is not None
    return tokens * (tokens.shape[-1] / tokens.square().sum(-1).mean()) ** 0.5, data.labels[:n]


def train_vit(
    train: TokenData,
    validation: TokenData,
    generator: Generator,
    *,
    depth: int,
    steps: int,
    width: int = 32,
    heads: int = 2,
    train_scores: bool = True,
) -> tuple[nn.Module, float]:
    """Trains a vision transformer by AdamW; returns it with its validation accuracy.

    Args:
        train, validation: data with labels.
        generator: draws initial weights and batches.
        depth, steps, width, heads: number of blocks and steps, width, number of heads.
        train_scores: whether W_Q and W_K are trained.
    """
    model = vit_for(train, generator, depth=depth, width=width, heads=heads)
    if not train_scores:
        for block in model.get_submodule("blocks").children():
            weight = block.get_parameter("attention.qkv.weight")
            # Rows of the fused matrix: queries, keys, values. A hook zeroes the gradient of the first two.
            weight.register_hook(
                lambda gradient: torch.cat([torch.zeros_like(gradient[: 2 * width]), gradient[2 * width :]])
            )
    return model, fit_classifier(model, train, validation, generator, steps=steps, weight_decay=0.0)


def measured(model: nn.Module, data: TokenData, *, draws: int = 0) -> Table:
    """Returns the quantities of :class:`.HeadContraction` in a network on up to 256 sequences."""
    metric = HeadContraction(most_draws=draws)
    with evaluation(model), torch.no_grad(), probe(model, [metric], draws=draws) as p, p.accumulate(0):
        model(data.tokens[:MEASURED].float())
    return p.result().table


def contractions(model: nn.Module, data: TokenData) -> list[float]:
    """Returns the contraction of each head."""
    return measured(model, data).select(quantity=CONTRACTION).column("value")
