r"""Predictions of label-relevant patches for a network: without them it cannot classify.

On one half of the images, the values of the first attention, less their mean at each place, are divided into
words (:func:`.words_of`). The relevance of a place is the mean divergence of the labels given the word from
all labels (:func:`.word_posteriors`). On the other half the most relevant s of the places, rounded down, are
no keys any more, in any attention, where s is a tenth to nine tenths from image to image (:func:`.tenths`):
the effect is the area under the *deletion curve*. The control removes as many places in a random order.
Places whose values never vary, such as a class token, stay. Source: :cite:t:`li2023theoretical`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ...core.intervention import Attended, Control, Intervention, tenths, without
from ...core.sources import Source
from .on_data import words_of
from .relevance import word_posteriors


@dataclass(frozen=True)
class Order:
    """Places of tokens in the order in which they are removed.

    Attributes:
        places: the places.
        tokens: number of tokens of a sequence.
    """

    places: tuple[int, ...]
    tokens: int


def order_places(read: Callable[[Callable[[Attended], None]], None]) -> Order:
    """Orders the places by their relevance, the largest first.

    Raises:
        ValueError: the sequences have no labels, all have the same one, or places differ among sequences.
    """
    values: list[Tensor] = []
    labels: list[Tensor] = []

    def add(attended: Attended) -> None:
        if attended.layer or attended.first_head:
            return
        if attended.labels is None:
            raise ValueError("relevant patches need a class of each image, got no labels")
        if len(attended.value) != attended.sequences:
            raise ValueError("relevant patches need attention among all patches, got windows")
        labels.append(attended.labels.cpu())
        values.append(attended.value.transpose(1, 2).flatten(2).cpu())

    read(add)
    if len({part.shape[1] for part in values}) > 1:
        raise ValueError("relevant patches need images of one size, got several")
    tokens, classes = torch.cat(values), torch.cat(labels).unique(return_inverse=True)[1]
    number = int(classes.max()) + 1
    if number < 2:
        raise ValueError("relevant patches need two classes, got one")
    spread = tokens.var(0).sum(-1)
    varying = (spread > 1e-9 * spread.max()).nonzero().squeeze(1)
    ids = words_of(tokens[:, varying] - tokens[:, varying].mean(0))
    found = word_posteriors(ids, classes, words=int(ids.max()) + 1, classes=number)
    relevance = found.of_patches(ids).mean(0)
    order = varying[relevance.argsort(descending=True, stable=True)]
    return Order(tuple(order.tolist()), tokens.shape[1])


def other_order(chosen: Order, generator: Generator) -> Order:
    """Draws another order of the places."""
    drawn = torch.randperm(len(chosen.places), generator=generator).tolist()
    return Order(tuple(chosen.places[index] for index in drawn), chosen.tokens)


def removed(attended: Attended) -> Attended:
    """Removes the first places of the order from the keys, the share of the sequence.

    Raises:
        ValueError: an attention has another number of keys than the first one.
    """
    chosen: Order = attended.structure
    if attended.weights.shape[-1] != chosen.tokens:
        raise ValueError(
            f"places need attention to the {chosen.tokens} tokens of the first one, got "
            f"{attended.weights.shape[-1]} keys"
        )
    places = torch.tensor(chosen.places, device=attended.weights.device)
    rank = torch.full((chosen.tokens,), len(places), device=places.device)
    rank[places] = torch.arange(len(places), device=places.device)
    return without(attended, rank < len(places) * tenths(attended)[..., None] // 10)


INTERVENTIONS = (
    Intervention(
        name="deletion curve of label-relevant places",
        change=removed,
        predicts="broken",
        controls=(Control("as many places removed in a random order", structure=other_order),),
        source=Source("li2023theoretical", status="own"),
        choose=order_places,
    ),
)
