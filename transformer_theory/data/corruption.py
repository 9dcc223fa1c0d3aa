r"""Label noise: a share of the labels is replaced.

``floor(ratio n)`` samples are drawn without replacement, and each gets another label by one of three rules:

* uniform over **all** classes, its own included, so the share of wrong labels is :math:`\frac{k-1}{k}` ratio on average;
* uniform over the **other** classes (symmetric noise), so the share of wrong labels is the ratio itself;
* by a map from class to class: ``j -> j + 1`` (pair flips), or between similar classes (asymmetric noise).

Source: :cite:t:`yu2020learning` (the first rule), :cite:t:`patrini2017making` (the map of CIFAR-10).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..core.validation import converted

Labels = Int[Tensor, " n"]

# truck -> automobile, bird -> aeroplane, deer -> horse, cat <-> dog; the other classes stay
CIFAR10_CONFUSIONS = (0, 1, 0, 5, 7, 3, 6, 7, 8, 1)


@converted(int64=("labels",))
def relabel_uniformly(labels: Labels, ratio: float, *, classes: int, generator: torch.Generator) -> Labels:
    """A copy in which a share of the labels is drawn anew, uniformly over all classes.

    Args:
        labels: ``[n]``, each in [0, classes).
        ratio: share of samples that get a new label, in [0, 1].
        classes: k, at least 2.
        generator: of the samples chosen and of their labels.
    Returns:
        ``[n]``; about (k - 1) / k of the chosen labels are wrong.
    Raises:
        ValueError: labels are not in [0, classes), or ratio is not in [0, 1].
    """
    chosen = _choose(labels, ratio, classes, generator)
    return labels.index_copy(0, chosen, torch.randint(classes, (len(chosen),), generator=generator))


@converted(int64=("labels",))
def relabel_symmetrically(labels: Labels, ratio: float, *, classes: int, generator: torch.Generator) -> Labels:
    """A copy in which a share of the labels is wrong, uniformly over the other classes.

    Args:
        labels: ``[n]``, each in [0, classes).
        ratio: share of wrong labels, in [0, 1].
        classes: k, at least 2.
        generator: of the samples chosen and of their labels.
    Returns:
        ``[n]``; exactly ``floor(ratio n)`` labels differ.
    Raises:
        ValueError: labels are not in [0, classes), or ratio is not in [0, 1].
    """
    chosen = _choose(labels, ratio, classes, generator)
    away = torch.randint(1, classes, (len(chosen),), generator=generator)
    return labels.index_copy(0, chosen, (labels[chosen] + away) % classes)


@converted(int64=("labels",))
def relabel_by_map(labels: Labels, ratio: float, *, mapped: Sequence[int], generator: torch.Generator) -> Labels:
    """A copy in which a share of the labels is replaced by the class that ``mapped`` gives for theirs.

    Args:
        labels: ``[n]``, each in [0, len(mapped)).
        ratio: share of samples that are mapped, in [0, 1].
        mapped: the class that replaces each class, as :data:`CIFAR10_CONFUSIONS` or :func:`next_class`; itself if it stays.
        generator: of the samples chosen.
    Returns:
        ``[n]``.
    Raises:
        ValueError: labels are not in [0, len(mapped)), mapped names another class than these, or ratio is not in [0, 1].
    """
    if wrong := [j for j in mapped if not 0 <= j < len(mapped)]:
        raise ValueError(f"mapped must hold classes 0..{len(mapped) - 1}, one for each class, got {wrong[0]}")
    chosen = _choose(labels, ratio, len(mapped), generator)
    return labels.index_copy(0, chosen, torch.tensor(mapped)[labels[chosen]])


def next_class(classes: int) -> tuple[int, ...]:
    """The map of pair flips: each class is replaced by the next, the last by the first.

    >>> next_class(3)
    (1, 2, 0)
    """
    return (*range(1, classes), 0)


def _choose(labels: Tensor, ratio: float, classes: int, generator: torch.Generator) -> Tensor:
    """Positions of the samples whose label changes."""
    if labels.ndim != 1:
        raise ValueError(f"labels must have shape [n], got {list(labels.shape)}; flatten them")
    if classes < 2:
        raise ValueError(f"classes must be at least 2 for a label to be wrong, got {classes}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must lie in [0, {classes}), got {int(labels.min())} to {int(labels.max())}; pass the right number")
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio must lie in [0, 1], the share of labels to change, got {ratio}")
    # 1e-9: 0.29 * 100 = 28.999... is 29 samples.
    return torch.randperm(len(labels), generator=generator)[: int(ratio * len(labels) + 1e-9)]
