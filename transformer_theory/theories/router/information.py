r"""What the choice says about the label: hit, information, and the largest accuracy of a choice that is blind
to the label.

*Information.* :math:`I(C; Y)` of the chosen position C and the label Y, from counts. Its plug-in estimate
from n samples is too large, by :math:`(|C| - 1)(|Y| - 1)/(2n)` nats to first order if C and Y are
independent; this is subtracted. With a condition K, as the position of the needle, the information is the
mean over the groups of equal K. *The condition matters*: a shortcut may leave the position of the choice
independent of the label, and still tell the label to whoever knows the keys.

*Bound.* If labels are balanced and all tokens but the needle are independent of the label, then a choice that
depends on the keys alone has
:math:`\text{accuracy} \le \text{hit} + (1 - \text{hit})/2`. A larger accuracy shows that the choice itself
carries the label.

Sources: the shortcut is described by :cite:t:`jacovi2021aligning` and :cite:t:`jethani2021learned`; estimator
and bound are elementary.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.statistics import permutations
from ...core.validation import as_float64, as_int64, converted


def _groups(name: str, values: Tensor, n: int) -> tuple[Int[Tensor, " n"], int]:
    """Returns the values as integers 0 to k - 1, and k."""
    if values.ndim != 1 or len(values) != n or not n:
        raise ValueError(
            f"{name} must be one integer per sample, [n], expected n = {n} >= 1, got {list(values.shape)}; "
            "reshape it"
        )
    found, places = values.unique(return_inverse=True)
    return places, len(found)


def _plug_in(
    choice: Int[Tensor, " n"], labels: Int[Tensor, "draws n"], a: int, b: int
) -> Float[Tensor, " draws"]:
    """Computes the information of the counts of choice and each row of labels, nats."""
    draws, n = labels.shape
    cells = (torch.arange(draws)[:, None] * a + choice) * b + labels
    joint = torch.bincount(cells.flatten(), minlength=draws * a * b).reshape(draws, a, b).double() / n
    # H(C) + H(Y) - H(C, Y)
    parts = [torch.special.entr(each).flatten(1).sum(1) for each in (joint.sum(2), joint.sum(1), joint)]
    return parts[0] + parts[1] - parts[2]


def information_bias(choices: int, labels: int, n: int) -> float:
    """Computes (choices - 1)(labels - 1) / 2n, the first-order bias of the plug-in estimate for independent
    variables, nats.
    """
    return (choices - 1) * (labels - 1) / (2 * n)


@converted(int64=("choice", "given"), labels=("labels",))
def choice_information(
    choice: Int[Tensor, " n"],
    labels: Int[Tensor, " n"],
    *,
    given: Int[Tensor, " n"] | None = None,
    corrected: bool = True,
) -> float:
    """Estimates I(choice; label), or I(choice; label | given), from samples, nats. With the correction it may
    be slightly negative.

    Args:
        choice: chosen token of each sample, ``[n]``.
        labels: class of each sample, ``[n]``; samples with negative labels are left out.
        given: condition, such as the position of the needle, ``[n]``. None: no condition.
        corrected: whether :func:`information_bias` is subtracted.
    Raises:
        ValueError: the shapes differ, or there are no samples.
    """
    if labels.shape == choice.shape:  # samples without label are left out
        known = labels >= 0
        choice, labels = choice[known], labels[known]
        given = given[known] if given is not None and given.shape == known.shape else given
    n = choice.numel()
    _groups("choice", choice, n)
    _groups("labels", labels, n)
    if given is None:
        return float(_information(choice, labels[None], corrected=corrected)[0])
    groups, count = _groups("given", given, n)
    total = 0.0
    for group in range(count):
        inside = groups == group
        total += (
            int(inside.sum())
            / n
            * float(_information(choice[inside], labels[inside][None], corrected=corrected)[0])
        )
    return total


def _information(
    choice: Int[Tensor, " n"], labels: Int[Tensor, "draws n"], *, corrected: bool = True
) -> Float[Tensor, " draws"]:
    places, a = _groups("choice", choice, len(choice))
    classes, codes = labels.unique(return_inverse=True)
    values = _plug_in(places, codes, a, len(classes))
    return values - information_bias(a, len(classes), len(choice)) if corrected else values


@converted(int64=("choice",), labels=("labels",))
def information_null(choice: Int[Tensor, " n"], labels: Int[Tensor, " n"], draws: int) -> tuple[float, ...]:
    """Estimates the corrected I(choice; label) with permuted labels, nats, ``draws`` values; the permutations
    depend on n only.
    """
    if not draws:
        return ()
    choice, labels = choice[labels >= 0], labels[labels >= 0]
    return tuple(_information(choice, labels[permutations(len(labels), draws)]).tolist())


def hit(choice: object, needle: object) -> float:
    """Computes the share of samples whose choice is the needle; both ``[n]``.

    Raises:
        ValueError: the shapes differ, or there are no samples.
    """
    chosen, place = as_int64("choice", choice), as_int64("needle", needle)
    if chosen.shape != place.shape or not chosen.numel():
        shapes = f"{list(chosen.shape)} and {list(place.shape)}"
        raise ValueError(
            f"choice and needle must be positions of the same samples, expected equal shapes, got {shapes}; "
            "pass both [n]"
        )
    return float((chosen == place).double().mean())


def label_blind_bound(hit: object) -> Tensor:
    """Computes hit + (1 - hit) / 2, the largest accuracy of a label-blind choice with two balanced labels,
    ``[...]``.

    Raises:
        ValueError: a share lies outside [0, 1].
    """
    share = as_float64("hit", hit)
    if not bool(((share >= 0) & (share <= 1)).all()):
        raise ValueError(
            f"hit must be a share, expected numbers in [0, 1], got {share.flatten().tolist()[:3]}; divide "
            "by the samples"
        )
    return share + (1 - share) / 2
