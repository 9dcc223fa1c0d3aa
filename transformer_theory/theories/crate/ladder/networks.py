"""Rungs with training: small networks that learn to classify the digits, and the networks of a comparison."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ....core.errors import NotConverged
from ....core.measurement import Measurement, Null
from ....core.statistics import (
    EQUAL_SCALE,
    LADDER_DRAWS,
    RANGE_DRAWS,
    UNTRAINED,
    fixed_generator,
    over_heads,
)
from ....core.table import Table
from ....data import Images
from ....data.tokens import TokenData
from ....models import CRATE, ViT, build
from ....models.copies import Copies
from ....models.crate import ReleasedAttention, layers_of
from ....probes import probe
from ....probes.evaluation import evaluation
from ....training.fitting import fit
from ....training.objectives.protocol import ACCURACY
from ....training.recipes import RECIPES
from ....training.supervised import accuracy, train_classifier
from ....training.tasks import Classification
from ....training.trained_rungs import digit_parts, trained_network
from ..in_networks import NONZEROS, Sparsity
from ..networks import DIM, HEADS
from .quantities import LADDER, CompressionInSubspaces, compression_rows

LENGTH = 17  # tokens of a digit, with the class token
COPIES = 39  # copies of equal scale of each network
SAMPLES = 256  # sequences per measurement; of these, R^c takes 16, evenly spaced
IMAGES, DESCENT_STEPS, DESCENT_RATE, MOMENTUM = 512, 120, 0.1, 0.9  # accuracies of about .6
ADAMW_STEPS, ADAMW_RATE = 300, 3e-3  # the rate of the recipes

Constructor = Callable[[], nn.Module]
Training = Callable[[nn.Module, TokenData, TokenData, torch.Generator], None]


def small_crate(
    *, norms: bool = True, attention: Callable[..., nn.Module] = ReleasedAttention, **blocks
) -> CRATE:
    """Builds a CRATE of one layer for the digits, width 64, 4 heads.

    Args:
        norms: whether a layer norm precedes each half of the layer, as in networks. Without norms and with
            ``PaperAttention`` the layer is the one that the paper derives, :math:`(1 - \\kappa\\beta) Z +
            \\kappa\\beta\\,\\mathrm{MSSA}(Z)` and an ISTA step.
        attention: constructor of the compression block.
        blocks: other arguments of :class:`~transformer_theory.models.CRATE`.
    """
    model = CRATE.for_tokens(LENGTH - 1, 4, 10, dim=DIM, depth=1, heads=HEADS, attention=attention, **blocks)
    if not norms:
        for layer in (layer for layer, _ in layers_of(model)):
            for half in layer:
                half.norm = nn.Identity()
    return model


def small_vit(*, depth: int = 1) -> ViT:
    """Builds a ViT for the digits, width 64, 4 heads."""
    return ViT.for_tokens(LENGTH - 1, 4, 10, dim=DIM, depth=depth, heads=HEADS)


def descend(model: nn.Module, train: TokenData, validation: TokenData, generator: torch.Generator) -> None:
    """Trains all parameters by gradient descent with momentum on the mean loss of the first 512 images."""
    task = Classification(train[:IMAGES], validation, IMAGES)
    optimiser = torch.optim.SGD(model.parameters(), lr=DESCENT_RATE, momentum=MOMENTUM)
    fit(model, task, optimiser=optimiser, steps=DESCENT_STEPS, clip=1.0, generator=generator)


def adamw(model: nn.Module, train: TokenData, validation: TokenData, generator: torch.Generator) -> None:
    """Trains all parameters by AdamW on mini-batches of 64 images."""
    train_classifier(
        model, train, validation, steps=ADAMW_STEPS, learning_rate=ADAMW_RATE, generator=generator
    )


def trained_rows(
    generator: torch.Generator, *, constructor: Constructor, training: Training = adamw
) -> Iterator[Measurement]:
    """Yields the rows of a network that is trained on the digits; a row with the reason if the training
    diverges.
    """
    train, validation = digit_parts()
    model = build(constructor, generator)
    try:
        training(model, train, validation, generator)
    except NotConverged as error:
        yield LADDER.row(None, reason=str(error), data=validation.name)
        return
    yield from network_rows(model, constructor, validation, name=type(model).__name__)


def recipe_rows(
    generator: torch.Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Yields the rows of a network of a comparison, trained on the digits or on the caller's images."""
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    yield from network_rows(model, partial(RECIPES[recipe].build, validation), validation, name=recipe)


def network_rows(
    model: nn.Module, constructor: Constructor, data: TokenData, *, name: str
) -> Iterator[Measurement]:
    """Yields the rows of compression, the share of non-zeros after each layer, both as means over layers, and
    the accuracy.

    The null of the non-zeros consists of 39 copies of the network of equal scale. The 19 untrained networks,
    which all seeds share, are shown beside it.

    Args:
        model: trained network.
        constructor: function that builds an untrained network of the same form.
        data: sequences with labels on which the network is measured.
        name: name of the network.
    """
    columns: dict[str, Any] = {"data": data.name, "model": name}
    rows = _probed(model, data[:SAMPLES], draws=LADDER_DRAWS)
    yield from compression_rows(rows, **columns)
    fixed = fixed_generator()
    untrained = tuple(
        _nonzeros(_probed(build(constructor, fixed), data[:SAMPLES], draws=0)) for _ in range(RANGE_DRAWS)
    )
    drawn = Copies(model)
    copies = tuple(
        _nonzeros(_probed(drawn.draw(EQUAL_SCALE, index), data[:SAMPLES], draws=0)) for index in range(COPIES)
    )
    nulls = (Null(EQUAL_SCALE, copies), Null(UNTRAINED, untrained))
    columns = {"unit": "share", "split": "validation", **columns}
    n = min(SAMPLES, len(data))
    yield LADDER.other_row(NONZEROS, _nonzeros(rows), side="<=", nulls=nulls, n=n, **columns)
    yield LADDER.other_row(ACCURACY, accuracy(model, data), source=None, n=len(data), **columns)


def _probed(model: nn.Module, data: TokenData, *, draws: int) -> Table:
    """Returns the rows of every layer: non-zeros and, unless ``draws`` is 0, compression."""
    metrics = [CompressionInSubspaces(), Sparsity()] if draws else [Sparsity()]
    with evaluation(model), probe(model, metrics, draws=draws) as p, p.accumulate(0):
        model(data.tokens.float())
    return Table(p.rows)


def _nonzeros(rows: Table) -> float:
    """Returns the mean share of non-zeros over layers."""
    value = over_heads(rows.select(quantity=NONZEROS)).value
    assert value is not None
    return value
