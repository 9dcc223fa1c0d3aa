r"""The router-selector: a router scores the tokens, one of them is chosen, and a head predicts the label from
it alone.

.. math:: s = \mathrm{router}(x), \quad z = \text{Gumbel-softmax}(s, \tau), \quad \hat y =
    \mathrm{head}\Bigl(\sum_i z_i x_i\Bigr), \quad
    \text{loss} = \text{cross-entropy} + \lambda H(\mathrm{softmax}(s)).

At inference the token of the largest score is chosen. Router and head have one hidden layer of ReLUs. The
router may see fewer coordinates than the head, e.g. only the keys. Blocks of a transformer may process the
tokens before both.

A :class:`Schedule` fixes temperature, noise, hardness and penalty over the training. :data:`ANNEALED` is the
one that succeeds: soft with temperature 3 to .5 and no penalty in the first half, then hard with penalty .05.

Several selectors are trained at once: their weights are stacked, and the loss is the sum of theirs.

A machine-written summary of arXiv 2308.16898 describes this selector under the name of another method: the
Routing Transformer of Roy et al. (2021) clusters keys by k-means. Sources:
:cite:t:`lei2016rationalizing` (select and predict), :cite:t:`jang2017categorical` (the estimator).
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...core.validation import finite, integers, number, positive
from ...models.embedding import build
from ...models.vit import Block
from ...training.fitting import fit
from ...training.tasks import StreamTask
from .choice import gumbel_noise, gumbel_softmax
from .information import choice_information
from .needle import KEY_DIM, Needles, draw_needles

HIDDEN, RATE, STEPS, BATCH, NETWORKS = 32, 1e-2, 500, 32, 6
WIDTH = 16  # of the blocks


@dataclass(frozen=True)
class Schedule:
    """Temperature, noise, hardness and penalty as functions of the completed share of the training.

    Attributes:
        start, end: temperature at the beginning, and from the share ``hard_from`` on; geometric in between.
        hard_from: share of the training after which the choice is hard; 1: never.
        penalty, penalty_from: weight of the entropy in the loss, and the share of the training after which it
            counts.
        noisy: whether Gumbel noise is added; without it the choice is the mixture softmax(s / temperature).

    Raises:
        ValueError: a temperature is not positive, the penalty is negative, or a share lies outside [0, 1].
    """

    start: float = 3.0
    end: float = 0.5
    hard_from: float = 0.5
    penalty: float = 0.05
    penalty_from: float = 0.5
    noisy: bool = True

    def __post_init__(self):
        positive(start=self.start, end=self.end)
        if not 0 <= number("penalty", self.penalty) < float("inf"):
            raise ValueError(
                f"penalty must be at least 0 and finite, got {self.penalty}; a negative one would reward "
                "uniform choices"
            )
        for name in ("hard_from", "penalty_from"):
            if not 0 <= number(name, getattr(self, name)) <= 1:
                raise ValueError(
                    f"{name} must be a share of the training, expected [0, 1], got {getattr(self, name)}; "
                    "pass e.g. 0.5"
                )

    def at(self, done: float) -> tuple[float, bool, float]:
        """Returns temperature, hardness and penalty after a share of the training."""
        way = min(1.0, done / self.hard_from) if self.hard_from else 1.0
        return (
            self.start * (self.end / self.start) ** way,
            done >= self.hard_from,
            self.penalty if done >= self.penalty_from else 0.0,
        )


ANNEALED = Schedule()


def straight_through(penalty: float) -> Schedule:
    """Returns hard choices at temperature 1 with a penalty, both from the first step."""
    return Schedule(1.0, 1.0, 0.0, penalty, 0.0)


def mixture(penalty: float) -> Schedule:
    """Returns the mixture softmax(s) without noise, with a penalty from the first step."""
    return Schedule(1.0, 1.0, 1.0, penalty, 0.0, noisy=False)


class RouterSelector(nn.Module):
    """Chooses one token and predicts from it, ``[batch, T, dim] -> [batch, classes]``; see the module's
    docstring.

    Args:
        dim: dimension of the tokens.
        classes: number of classes.
        sees: number of leading coordinates that the router sees. None: all.
        blocks: number of pre-norm transformer blocks of width 16 before router and head; the router then sees
            their whole output.
    Raises:
        ValueError: a number is too small, or the router would see more coordinates than there are.
    """

    def __init__(self, dim: int, *, classes: int = 2, sees: int | None = None, blocks: int = 0):
        super().__init__()
        integers(dim=dim)
        integers(classes=classes, minimum=2)
        integers(blocks=blocks, minimum=0)
        integers(sees=dim if sees is None else sees)
        if sees is not None and sees > dim:
            raise ValueError(
                f"sees must be at most the dimension of the tokens, expected 1 to {dim}, got {sees}; lower it"
            )
        self.dim, width = dim, WIDTH if blocks else dim
        self.sees = width if sees is None or blocks else sees
        self.embed = nn.Linear(dim, width) if blocks else nn.Identity()
        self.blocks = nn.Sequential(*(Block(width, heads=2) for _ in range(blocks)))
        self.router = nn.Sequential(nn.Linear(self.sees, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.head = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

    def check(self, tokens: Tensor) -> None:
        """Checks the shape of tokens ``[*networks, batch, T, dim]``.

        Raises:
            ValueError: the tokens are no sequences of the router's dimension, or there is only one token.
        """
        if tokens.ndim < 3 or tokens.shape[-1] != self.dim:
            raise ValueError(f"tokens must be [batch, T, {self.dim}], got {list(tokens.shape)}; reshape them")
        if tokens.shape[-2] < 2:
            raise ValueError(
                f"tokens must hold sequences of at least two tokens, got {list(tokens.shape)}; one token "
                "leaves no choice"
            )

    def scores(
        self, tokens: Float[Tensor, "batch T dim"]
    ) -> tuple[Float[Tensor, "batch T"], Float[Tensor, "batch T width"]]:
        """Returns the router's scores and the tokens that the head may read, ``[batch, T]`` and ``[batch, T,
        width]``.

        Raises:
            ValueError: the tokens are no sequences of the router's dimension, or there is only one token.
        """
        self.check(tokens)
        x = self.blocks(self.embed(tokens))
        return self.router(x[..., : self.sees])[..., 0], x

    def forward(
        self, tokens: Tensor, noise: Tensor | None = None, temperature: float = 1.0, hard: bool = True
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch T"]]:
        """Returns logits and scores. Without noise the token of the largest score is chosen, if ``hard``."""
        scores, x = self.scores(tokens)
        z = gumbel_softmax(
            scores, torch.zeros_like(scores) if noise is None else noise, temperature=temperature, hard=hard
        )
        return self.head((z[..., None] * x).sum(-2)), scores

    @torch.no_grad()
    def choose(self, tokens: Tensor) -> Int[Tensor, " batch"]:
        """Returns the position of the largest score of each sequence, ``[batch]``.

        Raises:
            ValueError: there is only one token, or a value is not finite.
        """
        finite(tokens=tokens)
        return self.scores(tokens)[0].argmax(-1)


class Stack(nn.Module):
    """Several :class:`RouterSelector` with weights of their own, ``[networks, batch, T, dim] -> [networks,
    batch, classes]``.
    """

    def __init__(self, networks: list[RouterSelector]):
        super().__init__()
        parameters, _ = stack_module_state(networks)  # pyright: ignore[reportArgumentType]
        self.names = list(parameters)
        self.weights = nn.ParameterList([parameters[name].detach() for name in self.names])
        self.base = [copy.deepcopy(networks[0])]  # in a list, so that its parameters are not trained

    def forward(
        self, tokens: Tensor, noise: Tensor | None = None, temperature: float = 1.0, hard: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Returns the logits and scores of each network on its own batch."""
        base = self.base[0]
        base.check(tokens)
        x = self._mixed(tokens) if len(base.blocks) else tokens
        scores = self._perceptron("router", x[..., : base.sees].flatten(1, 2)).view(x.shape[:-1])
        noise = torch.zeros_like(scores) if noise is None else noise
        z = gumbel_softmax(scores, noise, temperature=temperature, hard=hard)
        return self._perceptron("head", (z[..., None] * x).sum(-2)), scores

    def _perceptron(
        self, name: str, x: Float[Tensor, "networks n width"]
    ) -> Float[Tensor, "networks n outputs"]:
        """Applies the routers or the heads: batched products, since :func:`torch.vmap` costs more than layers
        of this size.
        """
        weights = dict(zip(self.names, self.weights))
        first, second = (
            (weights[f"{name}.{i}.bias"][:, None], weights[f"{name}.{i}.weight"].mT) for i in (0, 2)
        )
        return torch.baddbmm(second[0], torch.baddbmm(first[0], x, first[1]).relu(), second[1])

    def _mixed(
        self, tokens: Float[Tensor, "networks batch T dim"]
    ) -> Float[Tensor, "networks batch T width"]:
        """Applies the blocks."""
        body = nn.Sequential(OrderedDict(embed=self.base[0].embed, blocks=self.base[0].blocks))
        weights = {
            name: weight
            for name, weight in zip(self.names, self.weights)
            if name.startswith(("embed.", "blocks."))
        }
        # torch has no batching rule for its fused kernels of attention, so blocks use the plain one.
        with sdpa_kernel(SDPBackend.MATH):
            return vmap(partial(functional_call, body))(weights, tokens)

    def network(self, number: int) -> RouterSelector:
        """Returns one of the networks."""
        network = copy.deepcopy(self.base[0])
        network.load_state_dict(
            {name: weight[number].detach() for name, weight in zip(self.names, self.weights)}
        )
        return network.eval()


Draw = Callable[[Generator], tuple[Tensor, Tensor]]
"""Draws tokens ``[networks, batch, T, dim]`` and labels ``[networks, batch]`` of one step."""


def selector_loss(
    model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, tuple[float, bool, float]]
) -> Float[Tensor, ""]:
    """Returns the sum over the networks of cross-entropy + penalty * entropy, nats, ``[]``."""
    tokens, labels, noise, (temperature, hard, penalty) = batch
    logits, scores = model(tokens, noise, temperature, hard)
    loss = (
        functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum") / labels.shape[-1]
    )
    if not penalty:
        return loss
    log_p = functional.log_softmax(scores, -1)
    return loss - penalty * (log_p.exp() * log_p).sum(-1).mean(-1).sum()


def train_selectors(
    draw: Draw,
    dim: int,
    *,
    networks: int = NETWORKS,
    steps: int = STEPS,
    schedule: Schedule = ANNEALED,
    generator: Generator,
    decay: float = 0.0,
    **sizes: Any,
) -> Stack:
    """Trains several selectors at once by AdamW (Adam, without decay).

    Args:
        draw: draws the batch of a step.
        dim: dimension of the tokens.
        networks: number of selectors.
        steps: number of steps.
        schedule: temperature, hardness and penalty.
        generator: draws weights, batches and noise.
        decay: weight decay.
        sizes: ``classes``, ``sees`` and ``blocks`` of :class:`RouterSelector`.
    Raises:
        ValueError: the first batch has other shapes, or labels that are not integers from 0 to classes - 1.
    """
    integers(networks=networks, steps=steps)
    model = build(lambda: Stack([RouterSelector(dim, **sizes) for _ in range(networks)]), generator)
    assert isinstance(model, Stack)

    def stream(draws: Generator) -> Iterator[tuple[Tensor, Tensor, Tensor, tuple[float, bool, float]]]:
        for step in range(steps):
            tokens, labels = draw(draws)
            if not step:
                _check_batch(tokens, labels, networks, sizes.get("classes", 2))
            noise = gumbel_noise(*tokens.shape[:-1], generator=draws, dtype=tokens.dtype)
            yield tokens, labels, noise * schedule.noisy, schedule.at(step / steps)

    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=decay)
    fit(model, StreamTask(selector_loss, stream), optimiser=optimiser, steps=steps, generator=generator)
    return model


def _check_batch(tokens: Tensor, labels: Tensor, networks: int, classes: int) -> None:
    if tokens.ndim != 4 or len(tokens) != networks or labels.shape != tokens.shape[:2]:
        shapes = f"{list(tokens.shape)} and {list(labels.shape)}"
        raise ValueError(
            f"draw must return tokens [{networks}, batch, T, dim] and labels [{networks}, batch], got "
            f"{shapes}; reshape them"
        )
    if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= classes:
        found = f"{labels.dtype} from {labels.min():g} to {labels.max():g}"
        raise ValueError(
            f"labels must be integers from 0 to {classes - 1}, got {found}; relabel, or pass classes"
        )


@dataclass(frozen=True)
class Measured:
    """What trained selectors do on new sequences: choices ``[networks, n]``; accuracy, hit and I(choice;
    label | needle) ``[networks]``.
    """

    choices: Int[Tensor, "networks n"]
    accuracy: Float[Tensor, " networks"]
    hit: Float[Tensor, " networks"]
    information: Float[Tensor, " networks"]


@torch.no_grad()
def measure_selectors(model: Stack, data: Needles) -> Measured:
    """Measures the hard choice without noise on sequences of the networks, ``[networks, n, T, d]``."""
    logits, scores = model(data.tokens)
    choices = scores.argmax(-1)
    accuracy = (logits.argmax(-1) == data.labels).double().mean(-1)
    each = [
        choice_information(*three, given=place) for *three, place in zip(choices, data.labels, data.needle)
    ]
    return Measured(
        choices, accuracy, (choices == data.needle).double().mean(-1), torch.tensor(each, dtype=torch.float64)
    )


def train_on_needles(
    schedule: Schedule,
    *,
    sees_contents: bool,
    networks: int,
    generator: Generator,
    steps: int = STEPS,
    n: int = 1000,
) -> tuple[Measured, Needles]:
    """Trains selectors on new needle sequences in each step and measures them on ``n`` further ones.

    Args:
        schedule: temperature, hardness and penalty.
        sees_contents: whether the router sees keys and contents, or the keys alone.
        networks, generator, steps: see :func:`train_selectors`.
        n: number of sequences for the measurement, of each network.
    """

    def draw(draws: Generator) -> tuple[Tensor, Tensor]:
        data = draw_needles(networks, BATCH, generator=draws)
        return data.tokens, data.labels

    sees = None if sees_contents else KEY_DIM
    model = train_selectors(
        draw, KEY_DIM + 1, networks=networks, steps=steps, schedule=schedule, generator=generator, sees=sees
    )
    data = draw_needles(networks, n, generator=generator)
    return measure_selectors(model, data), data
