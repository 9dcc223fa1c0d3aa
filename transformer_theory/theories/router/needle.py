r"""The needle task, small enough to be enumerated.

A sequence has T tokens :math:`x_i = (k_i, c_i)`: a key :math:`k_i` and a content :math:`c_i = \pm 1`,
independent and balanced. One token, the needle, has a marked key; its content is the label.
:func:`draw_needles` draws keys with Gaussian noise for training; :func:`enumerate_needles` lists all
sequences with keys 0 and 1.

*Uniform start.* A router with equal scores leaves the head with one random token, or with the mean of all.
The best accuracies are

.. math:: \frac12 + \frac1{2T} \ \text{(random token)}, \qquad \frac12 + 2^{-T} \binom{T-1}{\lfloor T/2
    \rfloor} \ \text{(mean)}:

for T = 16 these are .531 and .598. The mean tells the head more, of the order :math:`1/\sqrt T` instead of
1/T.

*Shortcut.* A router that sees contents may choose the needle if its content is +1, and any other token if
not. A head that tells whether the chosen key is marked has accuracy 1, with hit 1/2.

The task is our own, after :cite:t:`lei2016rationalizing`, where a generator selects words and an encoder
predicts from them.
"""

import math
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.validation import SHARES_ATOL, converted, finite, integers, positive

TOKENS, KEY_DIM, GAIN = 16, 8, 6.0


@dataclass(frozen=True)
class Needles:
    """Sequences of the needle task.

    Attributes:
        tokens: keys, then contents, ``[*batch, T, d]``.
        labels: 0 or 1, ``[*batch]``.
        needle: position of the needle, ``[*batch]``.
    """

    tokens: Float[Tensor, "*batch T d"]
    labels: Int[Tensor, "*batch"]
    needle: Int[Tensor, "*batch"]


def marked_keys(
    needle: Int[Tensor, "*batch"], *, tokens: int, generator: Generator
) -> Float[Tensor, "*batch T key"]:
    """Draws Gaussian keys of :data:`KEY_DIM` dimensions; the first coordinate of the needle's key is raised
    by :data:`GAIN`.
    """
    keys = torch.randn(*needle.shape, tokens, KEY_DIM, generator=generator)
    keys[..., 0] += GAIN * torch.nn.functional.one_hot(needle, tokens)
    return keys


def draw_needles(*shape: int, tokens: int = TOKENS, generator: Generator) -> Needles:
    """Draws sequences with noisy keys, float32; the last coordinate is the content.

    Raises:
        ValueError: there are fewer than two tokens, or a size is below 1.
    """
    integers(minimum=2, tokens=tokens)
    for size in shape:
        integers(n=size)
    needle = torch.randint(tokens, shape, generator=generator)
    contents = torch.randint(2, (*shape, tokens), generator=generator)
    labels = contents.gather(-1, needle[..., None])[..., 0]
    x = torch.cat(
        [marked_keys(needle, tokens=tokens, generator=generator), 2.0 * contents[..., None] - 1], -1
    )
    return Needles(x, labels, needle)


def enumerate_needles(tokens: int) -> Needles:
    """Lists all T 2^T sequences with keys 0 and 1 (the needle) and contents -1 and 1, ``[n, T, 2]`` float64.

    Raises:
        ValueError: there are fewer than two tokens, or more than 16.
    """
    integers(minimum=2, tokens=tokens)
    if tokens > 16:
        raise ValueError(
            f"tokens must be at most 16, got {tokens}; 2^{tokens} sequences are too many to list"
        )
    contents = torch.tensor(list(product((0, 1), repeat=tokens)), dtype=torch.float64)
    needle = torch.arange(tokens).repeat_interleave(len(contents))
    contents = contents.repeat(tokens, 1)
    labels = contents.gather(1, needle[:, None])[:, 0].long()
    keys = torch.nn.functional.one_hot(needle, tokens).double()
    return Needles(torch.stack([keys, 2 * contents - 1], -1), labels, needle)


def uniform_accuracies(tokens: int) -> tuple[float, float]:
    """Computes the best accuracies from a random token and from the mean of all tokens, see the module's
    docstring.

    Raises:
        ValueError: the number of tokens is below 1.
    """
    integers(tokens=tokens)
    return 0.5 + 0.5 / tokens, 0.5 + math.comb(tokens - 1, tokens // 2) / 2**tokens


@converted(int64=("observed",), labels=("labels",), float64=("weights",))
def best_accuracy(
    observed: Int[Tensor, "n fields"], labels: Int[Tensor, " n"], weights: Float[Tensor, " n"] | None = None
) -> float:
    """Computes the largest accuracy of any function of what is observed, over listed sequences.

    Args:
        observed: integers that the head sees of each sequence, ``[n, fields]``.
        labels: labels, ``[n]``.
        weights: probability of each sequence; None: equal, ``[n]``.
    Raises:
        ValueError: the shapes differ, there are no sequences, a label is negative, a weight is negative or
            not finite, or the weights do not sum to 1.
    """
    if observed.ndim != 2 or labels.shape != observed.shape[:1] or not len(labels) or int(labels.min()) < 0:
        shapes = f"{list(observed.shape)} and {list(labels.shape)}"
        raise ValueError(
            "observed and labels must be integers [n, fields] and [n], n >= 1, labels from 0, got "
            f"{shapes}; relabel"
        )
    if weights is not None:
        finite(weights=weights)
        if weights.shape != labels.shape or bool((weights < 0).any()):
            raise ValueError(
                f"weights must be probabilities [{len(labels)}], got {list(weights.shape)}, some of them "
                "negative or too many"
            )
        if not abs(float(weights.sum()) - 1) <= SHARES_ATOL:
            raise ValueError(
                f"weights must be probabilities that sum to 1, got a sum of {float(weights.sum()):g}; divide "
                "by it"
            )
    places = observed.unique(dim=0, return_inverse=True)[1]
    classes = int(labels.max()) + 1
    w = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64) if weights is None else weights
    joint = torch.bincount(places * classes + labels, weights=w, minlength=(int(places.max()) + 1) * classes)
    return float(joint.reshape(-1, classes).amax(1).sum())


def chosen_tokens(data: Needles, choice: Int[Tensor, " n"]) -> Int[Tensor, "n fields"]:
    """Returns key and content of the chosen tokens as integers, ``[n, 2]``."""
    return data.tokens[torch.arange(len(choice)), choice].round().long()


def shortcut(data: Needles) -> Int[Tensor, " n"]:
    """Chooses the needle if its content is +1, otherwise the token after it; the token after the last is the
    first, ``[n]``.
    """
    return torch.where(data.labels == 1, data.needle, (data.needle + 1) % data.tokens.shape[-2])


def label_blind(data: Needles, share: float, *, generator: Generator) -> Int[Tensor, " n"]:
    """Chooses by the keys and a coin: for each position of the needle one random token, which is the needle
    with probability ``share``.

    Raises:
        ValueError: the share is not in (0, 1].
    """
    positive(share=share)
    if share > 1:
        raise ValueError(
            f"share must be a probability, expected at most 1, got {share}; pass a number in (0, 1]"
        )
    T = data.tokens.shape[-2]
    rule = torch.where(
        torch.rand(T, generator=generator) < share,
        torch.arange(T),
        torch.randint(T, (T,), generator=generator),
    )
    return rule[data.needle]
