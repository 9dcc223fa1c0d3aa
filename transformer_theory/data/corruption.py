r"""Label noise: functions that replace a share of the labels.

``floor(ratio n)`` samples are drawn without replacement, and each gets a new label by one of three rules:

* uniform over **all** classes including the old one, so the mean share of wrong labels is
  :math:`\frac{k-1}{k}` times the ratio;
* uniform over the **other** classes (symmetric noise), so the share of wrong labels is the ratio itself;
* a map from class to class: ``j -> j + 1`` (pair flips), or between similar classes (asymmetric noise).

Source: :cite:t:`yu2020learning` (the first rule), :cite:t:`patrini2017making` (the map of CIFAR-10).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..core.validation import converted

Labels = Int[Tensor, " n"]

# Class by class: truck -> automobile, bird -> aeroplane, deer -> horse, cat <-> dog; the other classes stay.
CIFAR10_CONFUSIONS = (0, 1, 0, 5, 7, 3, 6, 7, 8, 1)


@converted(labels=("labels",))
def relabel_uniformly(labels: Labels, ratio: float, *, classes: int, generator: torch.Generator) -> Labels:
    """Returns a copy in which a share of the labels is redrawn uniformly from all classes.

    Args:
        labels: class of each sample in [0, classes), ``[n]``.
        ratio: share of samples that get a new label, in [0, 1].
        classes: number of classes k, at least 2.
        generator: source of the random samples and labels.
    Returns:
        The labels, ``[n]``; about (k - 1) / k of the redrawn labels are wrong.
    Raises:
        ValueError: labels are not in [0, classes), or ratio is not in [0, 1].
    """
    samples = _draw_samples(labels, ratio, classes, generator)
    return labels.index_copy(0, samples, torch.randint(classes, (len(samples),), generator=generator))


@converted(labels=("labels",))
def relabel_symmetrically(
    labels: Labels, ratio: float, *, classes: int, generator: torch.Generator
) -> Labels:
    """Returns a copy in which a share of the labels is replaced by other classes, drawn uniformly.

    Args:
        labels: class of each sample in [0, classes), ``[n]``.
        ratio: share of wrong labels, in [0, 1].
        classes: number of classes k, at least 2.
        generator: source of the random samples and labels.
    Returns:
        The labels, ``[n]``; exactly ``floor(ratio n)`` of them differ from the original ones.
    Raises:
        ValueError: labels are not in [0, classes), or ratio is not in [0, 1].
    """
    samples = _draw_samples(labels, ratio, classes, generator)
    shifts = torch.randint(1, classes, (len(samples),), generator=generator)
    return labels.index_copy(0, samples, (labels[samples] + shifts) % classes)


@converted(labels=("labels",))
def relabel_by_map(
    labels: Labels, ratio: float, *, mapped: Sequence[int], generator: torch.Generator
) -> Labels:
    """Returns a copy in which a share of the labels j is replaced by ``mapped[j]``.

    Args:
        labels: class of each sample in [0, len(mapped)), ``[n]``.
        ratio: share of samples whose label is mapped, in [0, 1].
        mapped: replacement of each class, such as :data:`CIFAR10_CONFUSIONS` or ``next_class(k)``; j itself
            if class j stays.
        generator: source of the random samples.
    Returns:
        The labels, ``[n]``.
    Raises:
        ValueError: labels or values of ``mapped`` are not in [0, len(mapped)), or ratio is not in [0, 1].
    """
    if invalid := [j for j in mapped if not 0 <= j < len(mapped)]:
        raise ValueError(
            f"mapped must hold classes 0..{len(mapped) - 1}, one for each class, got {invalid[0]}"
        )
    samples = _draw_samples(labels, ratio, len(mapped), generator)
    return labels.index_copy(0, samples, torch.tensor(mapped)[labels[samples]])


def next_class(classes: int) -> tuple[int, ...]:
    """Returns the map of pair flips, which replaces each class by the next and the last by the first.

    >>> next_class(3)
    (1, 2, 0)
    """
    return (*range(1, classes), 0)


def _draw_samples(labels: Tensor, ratio: float, classes: int, generator: torch.Generator) -> Tensor:
    """Draws the indices of the samples that get a new label."""
    if labels.ndim != 1:
        raise ValueError(f"labels must have shape [n], got {list(labels.shape)}; flatten them")
    if classes < 2:
        raise ValueError(f"classes must be at least 2 for a label to be wrong, got {classes}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must lie in [0, {classes}), got {int(labels.min())} to {int(labels.max())}; pass the "
            "right number"
        )
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio must lie in [0, 1], the share of labels to change, got {ratio}")
    # The 1e-9 absorbs rounding: 0.29 * 100 is 28.999... in floating point, but means 29 samples.
    return torch.randperm(len(labels), generator=generator)[: int(ratio * len(labels) + 1e-9)]
