r"""Labels that are wrong on purpose: which samples, and what they are called instead.

``round down(ratio n)`` samples are drawn without replacement, and each gets another label by one of three rules:

* uniform over **all** classes, its own among them, so that the share of wrong labels is :math:`\frac{k-1}{k}` ratio on average;
* uniform over the **other** classes (symmetric noise), so that it is the ratio itself;
* by a map from class to class: ``j -> j + 1`` (pair flips), or classes that look alike (asymmetric noise).

Source: :cite:t:`yu2020learning` (the first rule), :cite:t:`patrini2017making` (the map of CIFAR-10).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

Labels = Int[Tensor, " n"]

# truck -> automobile, bird -> aeroplane, deer -> horse, cat <-> dog; the other classes stay
CIFAR10_CONFUSIONS = (0, 1, 0, 5, 7, 3, 6, 7, 8, 1)


def relabel_uniformly(labels: Labels, ratio: float, *, classes: int, generator: torch.Generator) -> Labels:
    """A copy in which a share of the labels is drawn anew, uniformly over all classes: the rule of the rate reduction's published runs.

    Args:
        labels: ``[n]``, each in [0, classes).
        ratio: share of samples that get a new label, in [0, 1].
        classes: k, at least 2.
        generator: of the samples chosen and of their labels.
    Returns:
        ``[n]``; about (k - 1) / k of the chosen labels are wrong.
    Raises:
        ValueError: labels are no integers in [0, classes), or ratio is not in [0, 1].
    Source: :cite:t:`yu2020learning`.
    """
    chosen = _choose(labels, ratio, classes, generator)
    return labels.index_copy(0, chosen, torch.randint(classes, (len(chosen),), generator=generator).to(labels.dtype))


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
        ValueError: labels are no integers in [0, classes), or ratio is not in [0, 1].
    Source: :cite:t:`patrini2017making`.
    """
    chosen = _choose(labels, ratio, classes, generator)
    away = torch.randint(1, classes, (len(chosen),), generator=generator).to(labels.dtype)
    return labels.index_copy(0, chosen, (labels[chosen] + away) % classes)


def relabel_by_map(labels: Labels, ratio: float, *, mapped: Sequence[int], generator: torch.Generator) -> Labels:
    """A copy in which a share of the labels is replaced by what ``mapped`` says of their class.

    Args:
        labels: ``[n]``, each in [0, len(mapped)).
        ratio: share of samples that are mapped, in [0, 1].
        mapped: class that each class is taken for, as :data:`CIFAR10_CONFUSIONS` or :func:`next_class`; one that stays stands at its place.
        generator: of the samples chosen.
    Returns:
        ``[n]``.
    Raises:
        ValueError: labels are no integers in [0, len(mapped)), mapped names another class than these, or ratio is not in [0, 1].
    Source: :cite:t:`patrini2017making`.
    """
    if wrong := [j for j in mapped if not 0 <= j < len(mapped)]:
        raise ValueError(f"mapped must hold classes 0..{len(mapped) - 1}, one for each class, got {wrong[0]}")
    chosen = _choose(labels, ratio, len(mapped), generator)
    return labels.index_copy(0, chosen, torch.tensor(mapped, dtype=labels.dtype)[labels[chosen]])


def next_class(classes: int) -> tuple[int, ...]:
    """The map of pair flips: each class is taken for the next, the last for the first.

    >>> next_class(3)
    (1, 2, 0)
    """
    return (*range(1, classes), 0)


def _choose(labels: Tensor, ratio: float, classes: int, generator: torch.Generator) -> Tensor:
    """Positions of the samples whose label changes."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers [n], got {labels.dtype} {list(labels.shape)}; convert with .long()")
    if classes < 2:
        raise ValueError(f"a label can only be wrong if there are at least 2 classes, got {classes}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must lie in [0, {classes}), got {int(labels.min())} to {int(labels.max())}; pass the right number")
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio must lie in [0, 1], the share of labels to change, got {ratio}")
    return torch.randperm(len(labels), generator=generator)[: int(ratio * len(labels) + 1e-9)]
