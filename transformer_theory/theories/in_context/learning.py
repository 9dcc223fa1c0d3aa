r"""Models that learn to answer prompts by gradient descent: one attention layer, and decoders.

:class:`AttentionRegression` is one layer of linear (or softmax) attention with free matrices, whose keys are
the examples:
:math:`\hat y = a^\top \tfrac1N \sum_j e_j e_j^\top M x` for tokens :math:`e = (x, y)`. Of the four blocks of
this form only :math:`x^\top G b` with :math:`G = M_x^\top a_y + m_y a_x^\top` has the right degree in y; the
others should vanish. Source: :cite:t:`vonoswald2023transformers`, :cite:t:`zhang2024trained`; decoders
:cite:t:`garg2022what`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.validation import integers
from ...models.decoder import PreNorm
from ...models.embedding import build
from ...training.fitting import Callback, State, fit
from ...training.optimisers import warm_up_cosine
from ...training.tasks import StreamTask
from .prompts import Prompts, function_prompts

INITIAL = 0.5  # sigma, the size of the initial weights
BATCH = 128  # prompts of a step on functions
Draw = Callable[[Generator], Prompts]
Callbacks = Sequence[Callback]


class AttentionRegression(nn.Module):
    """One layer of attention from the query to the examples.

    Args:
        d: number of coordinates of the inputs.
        softmax: whether the weights of the examples are a softmax of the scores; otherwise the scores divided
            by N.
        generator: draws the initial weights.
    """

    def __init__(self, d: int, *, softmax: bool = False, generator: Generator):
        super().__init__()
        self.softmax = softmax
        integers(d=d)
        # Assumption 3.3 of Zhang et al.: positive semi-definite M_x of norm sigma, a_y = sigma, and zeros.
        theta = torch.randn(d, d, generator=generator)
        product = theta @ theta.mT
        self.scores = nn.Parameter(torch.cat([INITIAL * product / product.norm(), torch.zeros(1, d)]))
        self.values = nn.Parameter(torch.cat([torch.zeros(d), torch.tensor([INITIAL])]))

    def forward(self, tokens: Float[Tensor, "n tokens width"]) -> Float[Tensor, " n"]:
        """Answers prompts whose last token is the query, ``[n]``.

        Raises:
            ValueError: the tokens have another width.
        """
        if tokens.shape[-1] != len(self.values):
            raise ValueError(
                f"expected tokens of width d + 1 = {len(self.values)}, got {tokens.shape[-1]}; train with "
                "the prompts' own d"
            )
        examples, query = tokens[:, :-1], tokens[:, -1, :-1]
        scores = torch.einsum("njw,nw->nj", examples, query @ self.scores.mT)
        weights = scores.softmax(1) if self.softmax else scores / examples.shape[1]
        return (weights * (examples @ self.values)).sum(1)

    def preconditioner(self) -> Float[Tensor, "d d"]:
        """Returns the matrix G of the layer's step x^T G b, in float64, ``[d, d]``."""
        M, a = self.scores.detach().double(), self.values.detach().double()
        return M[:-1].mT * a[-1] + M[-1:].mT @ a[None, :-1]


class RegressionDecoder(nn.Module):
    """Causal pre-norm blocks between a linear map of regression tokens and a linear map to answers; there are
    no positions.

    Args:
        width: width d + 1 of the tokens.
        dim, depth, heads: width of the stream, number of blocks, number of heads.
        blocks: blocks to use instead of new ones, with ``dim`` channels.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self,
        width: int,
        *,
        dim: int = 32,
        depth: int = 1,
        heads: int = 2,
        blocks: nn.ModuleList | None = None,
    ):
        super().__init__()
        integers(width=width, dim=dim, depth=depth, heads=heads)
        self.read_in = nn.Linear(width, dim)
        made = (PreNorm(dim, heads=heads, hidden=4 * dim, dropout=0.0) for _ in range(depth))
        self.blocks = nn.ModuleList(made) if blocks is None else blocks
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1)

    def forward(self, tokens: Float[Tensor, "n tokens width"]) -> Float[Tensor, "n tokens"]:
        """Returns one number for each token, ``[n, tokens]``."""
        stream = self.read_in(tokens)
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))[..., 0]


def squared_error(model: nn.Module, prompts: Prompts) -> Float[Tensor, ""]:
    """Computes the mean squared error of the answers to the queries."""
    output = model(prompts.tokens())
    answers = output[:, -1] if output.ndim == 2 else output
    return (answers - prompts.target.float()).square().mean()


def train_on_prompts(
    model: nn.Module,
    draw: Draw,
    *,
    steps: int,
    rate: float = 5e-3,
    generator: Generator,
    callbacks: Callbacks = (),
) -> None:
    """Trains a model on prompts that ``draw(generator)`` returns, by Adam, in place; the rate rises, then
    falls along a cosine.

    Parameters without gradients stay as they are.
    """
    optimiser = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=rate)
    task = StreamTask(squared_error, lambda generator: iter(lambda: draw(generator), None))

    def schedule(state: State) -> float:
        return warm_up_cosine((state.step + 1) / steps)

    fit(
        model,
        task,
        optimiser=optimiser,
        steps=steps,
        schedule=schedule,
        clip=10.0,
        generator=generator,
        callbacks=callbacks,
    )


def train_attention(
    draw: Draw,
    d: int,
    *,
    softmax: bool = False,
    steps: int = 1500,
    rate: float = 0.02,
    generator: Generator,
    callbacks: Callbacks = (),
) -> AttentionRegression:
    """Trains one layer of attention on prompts with inputs ``[d]``, see :func:`train_on_prompts`."""
    model = AttentionRegression(d, softmax=softmax, generator=generator)
    train_on_prompts(model, draw, steps=steps, rate=rate, generator=generator, callbacks=callbacks)
    return model


def train_decoder(draw: Draw, d: int, *, steps: int, generator: Generator, **shape: Any) -> RegressionDecoder:
    """Trains a :class:`RegressionDecoder` of this ``shape`` on prompts with inputs ``[d]``, see
    :func:`train_on_prompts`.
    """
    model = build(lambda: RegressionDecoder(d + 1, **shape), generator)
    assert isinstance(model, RegressionDecoder)
    train_on_prompts(model, draw, steps=steps, generator=generator)
    return model


def train_on_functions(
    name: str, *, d: int, N: int, steps: int, depth: int = 2, generator: Generator
) -> RegressionDecoder:
    """Trains a decoder on a class of functions, see :func:`.function_prompts`; the number of examples of each
    batch is drawn from 1 to N.

    The tokens hold x and y together and have no positions. :cite:t:`garg2022what` alternate x and y in a
    sequence with positions.

    Raises:
        ValueError: the name is unknown, or a number is below 1.
    """
    integers(N=N)

    def draw(generator: Generator) -> Prompts:
        examples = int(torch.randint(1, N + 1, (), generator=generator))
        return function_prompts(name, BATCH, examples, d, generator=generator)

    return train_decoder(draw, d, steps=steps, generator=generator, depth=depth)
