r"""Label-relevant patches: which words, at which place, tell the label?

For a word w at a place t the posterior of the label is estimated by counting,

.. math:: \hat p(y \mid w, t) = \frac{n_{wty} + \kappa\, \hat p(y)}{n_{wt} + \kappa},

which shrinks to the frequencies :math:`\hat p(y)` where the word is rare. The *relevance* of a patch is
:math:`KL(\hat p(y \mid w, t) \,\|\, \hat p(y))`, and the *gain* of a patch with label y, on images that were
not counted, is
:math:`\log \hat p(y \mid w, t) - \log \hat p(y)`. If words are independent of labels, its mean is at most 0
in expectation, up to the error of :math:`\hat p(y)`, which has one image more of each class than were
counted: this matters if a class is rarer than 1 in n images.

Source: :cite:t:`li2023theoretical` has label-relevant tokens; the estimator is our own.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from ...core.validation import converted, in_range, integers, number, positive

SHRINKAGE = 5.0  # kappa, images


@dataclass(frozen=True, eq=False)
class WordPosteriors:
    """Estimated posteriors of the label for each word and place.

    Attributes:
        log_ratio: log p(y | w, t) - log p(y), nats, ``[places, words, classes]``.
        relevance: KL(p(y | w, t) || p(y)), nats, ``[places, words]``.
    """

    log_ratio: Float[Tensor, "places words classes"]
    relevance: Float[Tensor, "places words"]

    def of_patches(self, ids: Int[Tensor, "n places"]) -> Float[Tensor, "n places"]:
        """Returns the relevance of each patch, nats, ``[n, places]``."""
        return self.relevance[torch.arange(ids.shape[1]), ids]

    def gains(self, ids: Int[Tensor, "n places"], labels: Int[Tensor, " n"]) -> Float[Tensor, "n places"]:
        """Returns the gain of each patch, nats, ``[n, places]``."""
        return self.log_ratio[torch.arange(ids.shape[1]), ids, labels[:, None]]


@converted(int64=("ids",), labels=("labels",))
def word_posteriors(
    ids: Int[Tensor, "n places"],
    labels: Int[Tensor, " n"],
    *,
    words: int,
    classes: int,
    shrinkage: float = SHRINKAGE,
) -> WordPosteriors:
    """Counts words at places by label.

    Args:
        ids: word of each patch, below ``words``, ``[n, places]``.
        labels: class of each image, below ``classes``, ``[n]``.
        words, classes: sizes.
        shrinkage: kappa.
    Raises:
        ValueError: the sizes do not fit.
    """
    integers(words=words)
    integers(classes=classes, minimum=2)
    positive(shrinkage=shrinkage)
    if ids.ndim != 2 or not ids.numel() or labels.shape != ids.shape[:1]:
        shapes = f"{list(ids.shape)} and {list(labels.shape)}"
        raise ValueError(
            f"ids and labels must have shapes [n, places] and [n], got {shapes}; pass the word of each "
            "patch of each image"
        )
    for name, values, size in (("ids", ids, words), ("labels", labels, classes)):
        if int(values.min()) < 0 or int(values.max()) >= size:
            raise ValueError(
                f"{name} must lie in [0, {size}), got {int(values.min())} to {int(values.max())}; recode "
                "them from zero"
            )
    n, T = ids.shape
    cell = (torch.arange(T) * words + ids) * classes + labels[:, None]
    counts = torch.bincount(cell.flatten(), minlength=T * words * classes).reshape(T, words, classes).double()
    prior = (torch.bincount(labels, minlength=classes).double() + 1) / (n + classes)
    posterior = (counts + shrinkage * prior) / (counts.sum(-1, keepdim=True) + shrinkage)
    ratio = posterior.log() - prior.log()
    return WordPosteriors(ratio, (posterior * ratio).sum(-1).clamp(min=0))


@converted(int64=("ids",), labels=("labels",))
def relevant_share(
    posteriors: WordPosteriors, ids: Int[Tensor, "n places"], labels: Int[Tensor, " n"], *, threshold: float
) -> float:
    """Computes the share of patches whose word and place have a mean gain of at least ``threshold`` nats on
    these images.

    Args:
        posteriors: estimated on other images.
        ids, labels: words and classes, ``[n, places]`` and ``[n]``.
        threshold: nats.
    Raises:
        ValueError: the words and classes do not fit the posteriors.
    """
    places, words, classes = posteriors.log_ratio.shape
    fits = ids.ndim == 2 and ids.shape[1] == places and labels.shape == ids.shape[:1] and ids.numel() > 0
    if (
        not fits
        or int(ids.min()) < 0
        or int(ids.max()) >= words
        or int(labels.min()) < 0
        or int(labels.max()) >= classes
    ):
        raise ValueError(
            f"ids and labels must fit posteriors of {words} words at {places} places and {classes} classes, "
            f"got shapes {list(ids.shape)} and {list(labels.shape)}; recode them as the counted images"
        )
    if math.isnan(number("threshold", threshold)):
        raise ValueError("threshold must be a number of nats, got nan; pass e.g. 0.1")
    cell = (torch.arange(places) * words + ids).flatten()
    gains = posteriors.gains(ids, labels).flatten()
    total = torch.zeros(places * words, dtype=torch.float64).index_add_(0, cell, gains)
    counts = torch.bincount(cell, minlength=places * words)
    return float((total / counts.clamp(min=1) >= threshold)[cell].double().mean())


@in_range
@converted(floats=("weights", "relevance"))
def relevant_mass(
    weights: Float[Tensor, "n *heads places"], relevance: Float[Tensor, "n places"], *, share: float = 0.2
) -> Float[Tensor, "n *heads"]:
    """Computes the weight on the most relevant patches of each image, as a share of the weight on all
    patches.

    Args:
        weights: nonnegative weights on the patches, ``[n, *heads, places]``.
        relevance: relevance of the patches, ``[n, places]``.
        share: share of the patches that count as relevant; at least one.
    Raises:
        ValueError: the shapes do not fit, numbers are NaN, weights are negative or infinite, or the share
            lies outside (0, 1).
    """
    if (
        relevance.ndim != 2
        or weights.shape[0] != relevance.shape[0]
        or weights.shape[-1] != relevance.shape[-1]
    ):
        shapes = f"{list(weights.shape)} and {list(relevance.shape)}"
        raise ValueError(
            f"weights and relevance must have shapes [n, ..., places] and [n, places], got {shapes}; leave "
            "out the class token"
        )
    if not bool((weights >= 0).all()) or bool(relevance.isnan().any()):
        raise ValueError(
            f"weights must be nonnegative and relevance not NaN, got weights from {float(weights.min())}; "
            "apply the softmax"
        )
    top = most_relevant(relevance, share=share).to(weights.dtype)
    top = top.reshape(len(top), *[1] * (weights.ndim - 2), -1)
    total = weights.sum(-1).clamp(min=torch.finfo(weights.dtype).tiny)
    return (weights * top).sum(-1) / total


def most_relevant(relevance: Float[Tensor, "n places"], *, share: float = 0.2) -> Int[Tensor, "n places"]:
    """Returns 1 for the share of the patches of each image with the largest relevance, at least one, and 0
    for the others.

    Raises:
        ValueError: the share lies outside (0, 1).
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie inside (0, 1), got {share}; pass e.g. 0.2")
    count = max(1, round(share * relevance.shape[1]))
    return functional.one_hot(relevance.topk(count, dim=1).indices, relevance.shape[1]).sum(1)
