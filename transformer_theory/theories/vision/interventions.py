r"""What label-relevant patches say of a network: without them it cannot tell the classes.

On one half of the images, the values of the first attention, less their mean at each place, are divided into
words (:func:`.words_of`). The relevance of a place is the mean divergence of the labels given the word from
all labels (:func:`.word_posteriors`). On the other half the fifth of the places with the largest relevance
are no keys any more, in any attention. The control removes as many other places. Places whose values never
vary, such as a class token, are neither. Source: :cite:t:`li2023theoretical`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.intervention import Attended, Control, Intervention, Places, normalised, other_places
from ...core.sources import Source
from .on_data import words_of
from .relevance import word_posteriors

SHARE = 0.2  # of the places


def choose_places(read: Callable[[Callable[[Attended], None]], None]) -> Places:
    """Chooses the places with the largest relevance.

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
    count = max(1, int(SHARE * len(varying)))
    chosen = frozenset(varying[relevance.argsort(descending=True)[:count]].tolist())
    return Places(chosen, frozenset(varying.tolist()) - chosen, tokens.shape[1])


def removed(attended: Attended) -> Attended:
    """Removes the places from the keys.

    Raises:
        ValueError: an attention has another number of keys than the first one.
    """
    chosen: Places = attended.structure
    if attended.weights.shape[-1] != chosen.tokens:
        raise ValueError(
            f"places need attention to the {chosen.tokens} tokens of the first one, got "
            f"{attended.weights.shape[-1]} keys"
        )
    kept = torch.ones(chosen.tokens, dtype=attended.weights.dtype, device=attended.weights.device)
    kept[sorted(chosen.places)] = 0.0
    return attended.with_weights(normalised(attended.weights * kept))


INTERVENTIONS = (
    Intervention(
        name="label-relevant places removed from the keys",
        change=removed,
        predicts="broken",
        controls=(Control("as many other places removed", structure=other_places),),
        source=Source("li2023theoretical", status="own"),
        choose=choose_places,
    ),
)
