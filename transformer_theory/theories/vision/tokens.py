r"""Label-relevant tokens: how many examples does a small transformer need if only few tokens carry the label?

*Data.* M orthonormal patterns. A sequence has T tokens, each a pattern plus Gaussian noise with standard
deviation :math:`\tau` in each coordinate. A share :math:`\alpha` of the tokens, rounded and at least one, is
:math:`\mu_1` if the label is +1 and :math:`\mu_2` if it is -1. All others are drawn from :math:`\mu_3, \dots,
\mu_M`.

*Model.* One layer of attention and one of ReLUs, with the hinge loss,

.. math:: F(X) = \frac1T \sum_i a^\top \mathrm{ReLU}\Bigl(V \sum_j S_{ij} x_j\Bigr), \qquad S_i =
    \mathrm{softmax}(X W x_i), \qquad
    a \in \{\pm h^{-1/2}\}^h \text{ fixed.}

Several models with data of their own are trained at once: their weights are stacked.
Source: :cite:t:`li2023theoretical`; its bound on the number of samples has the exponent -2 in :math:`\alpha`,
up to constants that are subtracted from :math:`\alpha`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn

from ...core.validation import converted, in_range, integers, number, positive
from ...models.embedding import build
from ...training.fitting import fit
from ...training.tasks import StreamTask

HIDDEN, RATE, STEPS, TESTED, BATCH = 32, 1e-2, 200, 200, 64


@dataclass(frozen=True, eq=False)
class LabelledSequences:
    """Sequences ``[*shape, T, dim]`` float32, labels -1 or 1 ``[*shape]``, and which tokens carry the label
    ``[*shape, T]``.
    """

    tokens: Float[Tensor, "*shape T dim"]
    labels: Float[Tensor, "*shape"]
    relevant: Bool[Tensor, "*shape T"]


@dataclass(frozen=True)
class LabelRelevantTokens:
    """The distribution of the sequences.

    Attributes:
        alpha: share of label-relevant tokens, in (0, 1).
        noise: tau, standard deviation of the noise in each coordinate.
        tokens, patterns, dim: T, M and dimension of a token.

    Raises:
        ValueError: alpha lies outside (0, 1), the noise is negative, or there are fewer dimensions than
            patterns.
    """

    alpha: float = 0.2
    noise: float = 0.5
    tokens: int = 40
    patterns: int = 10
    dim: int = 32

    def __post_init__(self):
        if not 0 < number("alpha", self.alpha) < 1:
            raise ValueError(f"alpha must be a share inside (0, 1), got {self.alpha}; pass e.g. 0.2")
        if not 0 <= number("noise", self.noise) < float("inf"):
            raise ValueError(f"noise must be at least 0 and finite, got {self.noise}; pass e.g. 0.5")
        integers(tokens=self.tokens, minimum=2)
        integers(patterns=self.patterns, minimum=3)
        integers(dim=self.dim)
        if self.dim < self.patterns:
            raise ValueError(
                f"dim must be at least the number of patterns, {self.patterns}, got {self.dim}; orthonormal "
                "patterns need it"
            )

    @property
    def relevant(self) -> int:
        """Number of label-relevant tokens of a sequence."""
        return max(1, round(self.alpha * self.tokens))

    def sample(self, *shape: int, generator: Generator) -> LabelledSequences:
        """Draws sequences; the first axes of ``[*shape]`` may be models. The relevant tokens are the first,
        which attention cannot see.
        """
        labels = 1.0 - 2 * torch.randint(2, shape, generator=generator)
        pattern = torch.randint(2, self.patterns, (*shape, self.tokens), generator=generator)
        pattern[..., : self.relevant] = (labels < 0).long()[..., None]
        x = self.noise * torch.randn(*shape, self.tokens, self.dim, generator=generator)
        # The patterns are the first unit vectors; the model is drawn without a preferred direction.
        x.scatter_add_(-1, pattern[..., None], torch.ones(*shape, self.tokens, 1))
        return LabelledSequences(x, labels, (torch.arange(self.tokens) < self.relevant).expand(*shape, -1))


class AttentionReLU(nn.Module):
    """Stacked models, ``[networks, batch, T, dim] -> [networks, batch]``; see the module's docstring.

    Args:
        networks: number of models.
        dim: dimension of the tokens.
        hidden: h, number of ReLUs; even.
    Raises:
        ValueError: a number is too small, or the number of ReLUs is odd.
    """

    output: Tensor

    def __init__(self, networks: int, dim: int, *, hidden: int = HIDDEN):
        super().__init__()
        integers(networks=networks, dim=dim)
        integers(hidden=hidden, minimum=2)
        if hidden % 2:
            raise ValueError(
                f"hidden must be even, so that both signs are as frequent, got {hidden}; pass e.g. 32"
            )
        self.score = nn.Parameter(0.1 * torch.randn(networks, dim, dim) / dim**0.5)
        self.value = nn.Parameter(torch.randn(networks, dim, hidden) / dim**0.5)
        signs = 1.0 - 2 * (torch.arange(hidden) % 2)
        self.register_buffer("output", signs / hidden**0.5)

    def weights(self, tokens: Float[Tensor, "networks batch T dim"]) -> Float[Tensor, "networks batch T T"]:
        """Returns the attention of each token, ``[networks, batch, T, T]``."""
        return torch.softmax(tokens @ self.score[:, None] @ tokens.mT, -1)

    def forward(self, tokens: Tensor) -> Float[Tensor, "networks batch"]:
        """Returns F(X)."""
        values = tokens @ self.value[:, None]
        return (torch.relu(self.weights(tokens) @ values) @ self.output).mean(-1)


@in_range
@converted(floats=("weights",), masks=("relevant",))
def attention_mass(
    weights: Float[Tensor, "*batch T keys"], relevant: Bool[Tensor, "*batch keys"]
) -> Float[Tensor, "*batch"]:
    """Computes the mean weight on the relevant keys over all queries, ``[*batch]``; uniform attention has
    their share.

    Args:
        weights: attention, ``[*batch, T, keys]``.
        relevant: mask, ``[*batch, keys]``.
    Raises:
        ValueError: the mask does not fit the keys, there is no query, or a weight is not finite.
    """
    if relevant.shape != (*weights.shape[:-2], weights.shape[-1]):
        raise ValueError(
            f"relevant must be a mask of the keys, expected {list(weights.shape[:-2])} and the keys, got "
            f"{list(relevant.shape)}"
        )
    return (weights * relevant[..., None, :]).sum(-1).mean(-1)


@dataclass(frozen=True)
class Trained:
    """Accuracy on new sequences and mass on relevant tokens of each model, ``[networks]``, before and after
    the training.
    """

    accuracy: Float[Tensor, " networks"]
    mass: Float[Tensor, " networks"]
    mass_before: Float[Tensor, " networks"]


def hinge_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Float[Tensor, ""]:
    """Returns the sum over the models of the mean hinge loss max(0, 1 - y F)."""
    tokens, labels = batch
    return torch.relu(1 - labels * model(tokens)).mean(-1).sum()


def train_tokens(
    data: LabelRelevantTokens,
    samples: int,
    *,
    networks: int,
    generator: Generator,
    steps: int = STEPS,
    rate: float = RATE,
    random_labels: bool = False,
) -> Trained:
    """Trains models on ``samples`` sequences each, by Adam on batches of at most 64, and measures them on 200
    new ones.

    Args:
        data: distribution of the sequences.
        samples: number of training sequences of each model.
        networks: number of models, each with weights and sequences of its own.
        generator: draws weights and sequences.
        steps, rate: number of steps and learning rate.
        random_labels: whether the training labels are drawn independently of the sequences, as a control.
    """
    integers(samples=samples, networks=networks, steps=steps)
    positive(rate=rate)
    model = build(lambda: AttentionReLU(networks, data.dim), generator)
    assert isinstance(model, AttentionReLU)
    stored, test = (
        data.sample(networks, samples, generator=generator),
        data.sample(networks, TESTED, generator=generator),
    )

    labels = (
        1.0 - 2 * torch.randint(2, stored.labels.shape, generator=generator)
        if random_labels
        else stored.labels
    )

    def stream(draws: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            chosen = torch.randperm(samples, generator=draws)[:BATCH]
            yield stored.tokens[:, chosen], labels[:, chosen]

    @torch.no_grad()
    def mass() -> Float[Tensor, " networks"]:
        return attention_mass(model.weights(test.tokens[:, :50]), test.relevant[:, :50]).mean(1)

    before = mass()
    fit(
        model,
        StreamTask(hinge_loss, stream),
        optimiser=torch.optim.Adam(model.parameters(), lr=rate),
        steps=steps,
        generator=generator,
    )
    with torch.no_grad():
        margin = test.labels * model(test.tokens)
    return Trained((margin > 0).double().mean(1), mass(), before)


def needed_samples(sizes: Sequence[int], accuracies: Sequence[float], target: float) -> float | None:
    """Returns the number of samples at which the accuracy reaches the target, by interpolation in log n.

    It is None if the accuracy is below the target at all sizes, or at least the target at the first.

    Args:
        sizes: increasing numbers of samples.
        accuracies: accuracy at each; the curve is made monotone by its running maximum.
        target: accuracy.
    Raises:
        ValueError: sizes do not increase from at least 1, their number differs from that of the accuracies,
            or a number is NaN.
    """
    increasing = len(sizes) == len(accuracies) and all(low < high for low, high in zip([0, *sizes], sizes))
    if not increasing or any(math.isnan(value) for value in (target, *accuracies)):
        raise ValueError(
            f"sizes must increase from at least 1, with one accuracy each, not NaN, got {list(sizes)} and "
            f"{list(accuracies)}; sort them"
        )
    best, before = [], float("-inf")
    for value in accuracies:
        before = max(before, value)
        best.append(before)
    for (n, low), (following, high) in zip(zip(sizes, best), zip(sizes[1:], best[1:])):
        if low < target <= high:
            return float(n * (following / n) ** ((target - low) / (high - low)))
    return None
