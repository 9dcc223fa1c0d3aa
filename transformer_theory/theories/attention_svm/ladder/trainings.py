r"""Data and trainings of the rungs on real tokens.

**Data.** The images of two digits, drawn by the seed; 16 patches each, in random order of the images. The
query is the patch at :data:`POSITION`, near the centre, and the attention of this query is read out. The last
patch, the default query, is blank in 48 % of the images; a blank query scores all tokens the same whatever W
is, so it selects nothing. At :data:`POSITION` .3 % are blank; these images are left out. The linear head is
the ridge regression of the labels on the mean patches of all images of the two digits.

**Descent on K, Q and v.** With :math:`M = -\nabla_W L`, the factors of :math:`W = K Q^\top` take a step of
length :math:`\eta` along :math:`(M Q, M^\top K)` with one common norm (:mod:`~..balance`), and the head a
step of the same length along its own gradient, as in joint descent on prompt and head
(:mod:`~..dynamics.joint`). M is exact to rounding for any norm of W (:mod:`~..dynamics.gradient`).

**Networks.** :class:`OneHead` is the theory's head as a torch module; :class:`Layers` puts pre-norm blocks
around several heads. Both read out the query position, without a class token: a class token is the same query
in every input, and W would be trained in one direction of queries only. They train in float64: attention
saturates, and float32 would round its gradients to zero.

The head comes from :cite:t:`tarzanagh2023transformers`, equal steps on attention and head from
:cite:t:`tarzanagh2023maxmargin`, the blocks from :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ....core.threads import single_threaded
from ....data import digits
from ....data.tokens import TokenData
from ....models import build
from ....models.vit import Block
from ....training.supervised import Trained, train_classifier
from ..analysis import unit_scale
from ..dynamics import LOGISTIC, Factors, HeadInstance
from ..dynamics.descent import NORM_FLOOR
from ..dynamics.gradient import Gradient
from ..on_data import ridge_head
from ..problem import Instance, token_scores

POSITION = 10  # of the query among the 16 patches: third row, third column
ADAM_RATE, BATCH = 1e-2, 8


@cache
def load() -> TokenData:
    """Returns the digits whose query patch is not blank, with that patch as the query and patches of
    root-mean-square norm one.
    """
    data = digits(words=2)
    data = data[(data.tokens[:, POSITION] != 0).any(-1)]
    tokens = unit_scale(data.tokens)
    return TokenData(
        tokens, labels=data.labels, query=tokens[:, POSITION], name=data.name, sources=data.sources
    )


@dataclass(frozen=True)
class Pair:
    """The images of two digits.

    Attributes:
        tokens: ``[n, T, d]``.
        labels: 0 or 1, ``[n]``.
        head: v, ``[d]``.
        digits: the two digits; the second has the label 1.
    """

    tokens: Float[Tensor, "n T d"]
    labels: Int[Tensor, " n"]
    head: Float[Tensor, " d"]
    digits: tuple[int, int]

    @classmethod
    def draw(cls, generator: torch.Generator) -> "Pair":
        """Draws two digits and the order of their images."""
        data = load()
        assert data.labels is not None
        first, second = torch.randperm(data.classes, generator=generator)[:2].tolist()
        order = torch.randperm(len(data), generator=generator)
        order = order[(data.labels[order] == first) | (data.labels[order] == second)]
        tokens, labels = data.tokens[order], (data.labels[order] == second).long()
        return cls(tokens, labels, ridge_head(tokens.mean(1), 2.0 * labels.double() - 1), (first, second))

    def few(self, inputs: int) -> "Pair":
        """Returns the first images, as many of one digit as of the other; the head stays the same."""
        chosen = torch.cat([(self.labels == label).nonzero().squeeze(-1)[: inputs // 2] for label in (0, 1)])
        return Pair(self.tokens[chosen], self.labels[chosen], self.head, self.digits)

    @property
    def query(self) -> Float[Tensor, "n d"]:
        """The queries."""
        return self.tokens[:, POSITION]

    @property
    def sign(self) -> Float[Tensor, " n"]:
        """The labels Y as -1 and 1."""
        return 2.0 * self.labels.double() - 1

    @property
    def instance(self) -> Instance:
        """The training problem with the fixed head."""
        return Instance(self.tokens, self.query, token_scores(self.tokens, self.head, self.sign))

    @property
    def data(self) -> TokenData:
        """The images as labelled sequences."""
        return TokenData(self.tokens, labels=self.labels, query=self.query, name="digits")


@single_threaded
@torch.no_grad()
def descend_with_head(
    pair: Pair, state: Factors, head: Float[Tensor, " d"], *, steps: int, rate: float
) -> tuple[Factors, Float[Tensor, " d"]]:
    """Runs normalised descent on K, Q and v; see the module docstring.

    Args:
        pair: the inputs.
        state: first K and Q.
        head: first v, ``[d]``.
        steps: number of steps.
        rate: length of the joint step of K and Q, and of the step of v.
    Returns:
        The last factors and head.
    """
    K, Q, v = state.K.clone(), state.Q.clone(), head.clone()
    latest = torch.empty_like(pair.query)

    # The gradient calls the head once per step, with the mixtures that the step of v needs as well, and so
    # sees the changes of v.
    def moving_head(mixture: Tensor) -> tuple[Tensor, Tensor]:
        latest.copy_(mixture)
        return mixture @ v, v.expand_as(mixture)

    gradient = Gradient(HeadInstance(pair.tokens, pair.query, pair.sign, moving_head), LOGISTIC)
    for _ in range(steps):
        M, _ = gradient.descent(K @ Q.mT)
        to_K, to_Q = M @ Q, M.mT @ K
        length = rate / (to_K.square().sum() + to_Q.square().sum()).sqrt().clamp(min=NORM_FLOOR)
        signed = pair.sign[:, None] * latest
        log_slope = LOGISTIC.log_slope(signed @ v)
        to_v = ((log_slope - log_slope.max()).exp()[:, None] * signed).sum(0)
        K += length * to_K
        Q += length * to_Q
        v += rate * to_v / to_v.norm().clamp(min=NORM_FLOOR)
    return Factors(K, Q, state.step + steps), v


def uniform(*shape: int) -> nn.Parameter:
    """Returns a parameter with independent entries, uniform between plus and minus 1/sqrt(number of rows)."""
    return nn.Parameter((2 * torch.rand(*shape) - 1) / shape[0] ** 0.5)


class Positions(nn.Module):
    """A linear embedding plus positions, ``[batch, T, token_dim] -> [batch, T, dim]``, initialised as in a
    ViT.
    """

    def __init__(self, seq: int, token_dim: int, dim: int):
        super().__init__()
        self.embed = nn.Linear(token_dim, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(seq, dim))

    def forward(self, tokens: Float[Tensor, "batch T token_dim"]) -> Float[Tensor, "batch T dim"]:
        return self.embed(tokens) + self.positions


class OneHead(nn.Module):
    r"""The theory's network, :math:`X^\top \operatorname{softmax}(X K Q^\top z)` and a linear head, ``[batch,
    T, d] -> [batch, classes]``.

    Args:
        dim: d, width of the embedded tokens.
        classes: number of classes.
        embedding: module that embeds the tokens. None: the tokens themselves.
    """

    def __init__(self, dim: int, *, classes: int = 2, embedding: nn.Module | None = None):
        super().__init__()
        self.embedding = nn.Identity() if embedding is None else embedding
        self.K, self.Q = uniform(dim, dim), uniform(dim, dim)
        self.head = nn.Linear(dim, classes, bias=False)

    def forward(self, tokens: Float[Tensor, "batch T token_dim"]) -> Float[Tensor, "batch classes"]:
        x = self.embedding(tokens)
        weights = ((x @ self.K) @ (x[:, POSITION] @ self.Q)[..., None]).softmax(1)  # [batch, T, 1]
        return self.head((weights * x).sum(1))

    @classmethod
    @torch.no_grad()
    def of(cls, state: Factors, head: Float[Tensor, " d"]) -> "OneHead":
        """Returns the network of two classes with these factors and head v; the difference of its logits is
        the theory's output.
        """
        network = cls(len(head)).double()
        network.K.copy_(state.K)
        network.Q.copy_(state.Q)
        network.head.weight.copy_(torch.stack([-head / 2, head / 2]))
        return network


class Layers(nn.Module):
    """Pre-norm blocks with several heads, ``[batch, T, token_dim] -> [batch, classes]``; the query position
    is read out.
    """

    def __init__(self, embedding: nn.Module, dim: int, *, depth: int, heads: int, classes: int):
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(Block(dim, heads=heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, tokens: Float[Tensor, "batch T token_dim"]) -> Float[Tensor, "batch classes"]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, POSITION]))

    def attended(self, tokens: Float[Tensor, "batch T token_dim"]) -> list[Float[Tensor, "batch T dim"]]:
        """Returns the normalised tokens on which the attention of each layer acts."""
        x, inputs = self.embedding(tokens), []
        for block in self.blocks:
            inputs.append(block.attention_norm(x))  # pyright: ignore[reportCallIssue]
            x = block(x)
        return inputs


def trained(
    constructor: Callable[[], nn.Module], data: TokenData, generator: torch.Generator, *, steps: int
) -> Trained:
    """Trains a network in float64 on batches of :data:`BATCH` by AdamW; the accuracy is that on the training
    data.
    """
    model = build(constructor, generator).double()
    return train_classifier(
        model, data, data, steps=steps, learning_rate=ADAM_RATE, batch_size=BATCH, generator=generator
    )
