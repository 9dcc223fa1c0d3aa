r"""The data of the published figures, drawn exactly as there: in single precision, in the published order, then made double.

:func:`published_picture` gives the two examples in the plane (n = 2, d = 2) and :func:`published_instances` the random problems of the
other figures, one a seed. Labels of the pictures are 1, so the token scores are :math:`\gamma_{i,t} = v^\top x_{i,t}`.

Source: the notebooks released with :cite:t:`tarzanagh2023transformers`.
"""

from collections.abc import Iterable

import torch

from .problem import Instance, published_instance, token_scores

PICTURES = (1, 2)


def published_picture(number: int) -> Instance:
    """One of the two examples that are pictured in the plane: two inputs of three (1) or five (2) tokens.

    Args:
        number: 1 or 2.
    Returns:
        A single problem with d = 2.
    Raises:
        ValueError: another number.

    Source: as the module's.
    """
    if number not in PICTURES:
        raise ValueError(f"number must be 1 or 2, got {number!r}; there are two pictures")
    generator = torch.Generator().manual_seed(1 if number == 1 else 3)
    head = torch.nn.functional.normalize(torch.randn(2, generator=generator), dim=0)
    left = torch.tensor([-1.0, 0.0])
    if number == 1:
        tokens = 0.3 * torch.randn(2, 3, 2, generator=generator) + torch.stack([left, -left])[:, None]
    else:
        tokens = 0.5 * torch.randn(2, 5, 2, generator=generator) + left
        tokens[:, 0] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
    query = torch.nn.functional.normalize(torch.randn(2, 2, generator=generator), dim=-1)
    x, label = tokens.double(), torch.ones(2, dtype=torch.float64)
    return Instance(x, query.double(), token_scores(x, head.double(), label))


def published_instances(seeds: Iterable[int], *, inputs: int, tokens: int, dim: int) -> Instance:
    """The random problems of these seeds as one batch of trials: :func:`~.problem.published_instance` of each.

    Args:
        seeds: one a trial.
        inputs, tokens, dim: n, T and d.
    Returns:
        The problems, ``[trials]``.
    Raises:
        ValueError: no seed was given, or a size below one.

    Source: as the module's.
    """
    drawn = [published_instance(seed, inputs=inputs, tokens=tokens, dim=dim) for seed in seeds]
    if not drawn:
        raise ValueError("seeds must name at least one seed, got none; pass e.g. range(100)")
    return Instance(*(torch.stack([getattr(one, name) for one in drawn]) for name in ("tokens", "query", "scores")))
