"""Claims about the intervention on induction heads: what a written network loses without one of its heads."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....probes.intervene import apply_intervention, draw_controls
from ....probes.sample import NEXT, Sample
from ....probes.subject import Subject
from ..circuits import AttentionOnly, Heads
from ..heads import InductionHead
from ..interventions import INTERVENTIONS, ChosenHeads, choose_heads

OTHERS = 3  # further heads of each layer


class _Layer(nn.Module):
    """One attention layer with its skip connection, on the stream ``[batch, n, dim]``."""

    def __init__(self, heads: Heads):
        super().__init__()
        self.heads = heads

    def forward(self, x: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch n dim"]:
        return x + (self.heads.attention(x) @ x[:, None] @ self.heads.W_OV).sum(1)


class _Written(nn.Module):
    """A network that is given by its matrices, as modules; its logits are multiplied by a factor."""

    def __init__(self, network: AttentionOnly, factor: float):
        super().__init__()
        self.network, self.factor = network, factor
        self.layers = nn.ModuleList(map(_Layer, network.layers))

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n outputs"]:
        x = self.network.stream(ids)
        for layer in self.layers:
            x = layer(x)
        return self.factor * x @ self.network.W_U


def _among_others(head: InductionHead, generator: Generator) -> AttentionOnly:
    """Returns the network of an induction head with further heads: their scores are Gaussian, and they write
    tokens to coordinates of their own, which the output does not read.
    """
    own = head.network()
    dim, V = own.W_E.shape[1], len(own.W_E)

    def wider(x: Tensor, *axes: int) -> Tensor:
        return nn.functional.pad(x, [n for axis in (-1, -2) for n in (0, V if axis in axes else 0)])

    layers = []
    for heads in own.layers:
        W_QK = torch.randn(1 + OTHERS, dim + V, dim + V, generator=generator, dtype=torch.float64)
        W_OV = torch.zeros_like(W_QK)
        W_OV[:, :V, dim:] = torch.eye(V, dtype=torch.float64)
        W_QK[0], W_OV[0] = wider(heads.W_QK[0], -1, -2), wider(heads.W_OV[0], -1, -2)
        layers.append(Heads(W_QK, W_OV))
    return AttentionOnly(wider(own.W_E, -1), wider(own.positions, -1), tuple(layers), wider(own.W_U, -2))


def _written_loss(
    ids: Int[Tensor, "n twice"], vocabulary: int, scale: float, factor: float
) -> Float[Tensor, " n"]:
    r"""Returns the mean loss of the second block of each sequence, from counts alone.

    The previous-token head of key j has the weight :math:`e^b / (e^b + j)` on key j - 1 and :math:`1 / (e^b +
    j)` on all others up to j; the first token attends to itself. The score of key j for a query is b times
    the weight that this gives to the query's id, and the output is the weight of each id.
    """
    T = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None, :]).double()  # [sequence, query, earlier token]
    before = torch.cat([torch.zeros_like(same[..., :1]), same[..., :-1]], -1)  # the token before key j
    j = torch.arange(T, dtype=torch.float64)
    matching = (same.cumsum(-1) + math.expm1(scale) * before) / (math.exp(scale) + j)
    matching[..., 0] = same[..., 0]
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    weights = (scale * matching).masked_fill(~allowed, -math.inf).softmax(-1)
    output = weights @ nn.functional.one_hot(ids, vocabulary).double()
    queries = torch.arange(T // 2, T - 1)
    losses = -(factor * output[:, queries]).log_softmax(-1).gather(-1, ids[:, queries + 1, None])
    return losses.mean((1, 2))


def _this(head: tuple[int, int]) -> Callable[[Any], ChosenHeads]:
    """Returns a choice that takes this head, whatever its scores, and leaves the others."""

    def choose(read: Any) -> ChosenHeads:
        return ChosenHeads({head: 1.0}, choose_heads(read).lengths)

    return choose


@claim(
    "induction/removed-head",
    measures="largest error of the effects, in nats: of the chosen head, and of each other head of its layer",
    at_most=1e-5,
    source=Source("olsson2022incontext", status="own"),
    assumptions=(
        "two layers of four heads, of which one writes the previous token and one is the induction head; "
        "b between 6 and 10, logits times 4 to 12",
        "the other heads have Gaussian scores and write tokens to coordinates that the output does not read",
        "64 blocks of 10 to 16 different ids that occur twice; one half chooses the head, the other half is "
        "scored",
    ),
    control=but("another head of the second layer is removed", choose=_this((1, 2))),
)
def removed_head(generator: Generator, *, choose: Callable[[Any], ChosenHeads] = choose_heads) -> Measured:
    r"""A network with one induction head loses exactly its bigram if the head with the largest prefix
    matching is removed: the loss of the repeated block rises to $\ln V$ from the loss that the counts of the
    sequence give at the scale b. Without any other head of the same layer it stays as it is.
    """
    length = int(torch.randint(10, 17, (), generator=generator))
    scale, factor = (
        low + (high - low) * float(torch.rand((), generator=generator)) for low, high in ((6, 10), (4, 12))
    )
    V, seed = 2 * length, int(torch.randint(2**31, (), generator=generator))
    model = _Written(_among_others(InductionHead(V, 2 * length, scale), generator), factor)
    limits = {"vocabulary": V, "length": 2 * length}
    intervention = replace(INTERVENTIONS[0], choose=choose)
    # the intervention makes its own inputs
    given = Subject(model, Sample(torch.zeros(1, 2 * length, dtype=torch.long), None, 64))
    applied = apply_intervention(given, None, "induction", intervention, limits=limits, seed=seed)
    # the first control changes the head itself
    one_of_others = replace(applied, intervention=replace(intervention, controls=intervention.controls[1:]))
    ((drawing,),) = draw_controls([one_of_others], draws=OTHERS, seed=seed)
    before, after = (
        float(numbers[NEXT].mean()) for numbers in (applied.effects.unchanged, applied.effects.changed)
    )
    scored = applied.subject.sample.inputs
    assert isinstance(scored, torch.Tensor)
    loss = float(_written_loss(scored, V, scale, factor).mean())
    errors = {
        "loss with the head": abs(before - loss),
        "loss without it": abs(after - math.log(V)),
        "largest effect of another head": max(abs(draw) for draw in drawing.null(NEXT).draws),
    }
    return Measured(max(errors.values()), errors | {"exact loss": loss, "draws": float(len(drawing.drawn))})


CLAIMS = (removed_head,)
