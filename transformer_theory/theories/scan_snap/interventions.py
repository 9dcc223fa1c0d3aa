r"""Predictions of scan and snap for a trained network: after the snap a query needs the few keys that it
attends to, and it has learnt to ignore uninformative tokens.

The keys that hold 90 % of the weight of a query are kept, and their weights are divided by their sum. Two
controls match it: as many keys, drawn at random; and the removal of as much weight from keys in a random
order, the last of them in part, to the others.

A token is *common* if it occurs with all next tokens alike, and *distinct* if it occurs with one
(:func:`.token_groups`). On one half of the inputs the values of the first attention, less their mean at each
place, are divided into at most 16 words. For each word l and each class n, the label of a sequence or the
next id of a causal language model, :math:`P(l | n)` is counted in the sequences of the class, or before the
id. On the other half the common words are no keys of the first attention any more. The control takes as much
weight from distinct words in a random order, and from further ones where these have less. Places whose
values never vary, such as a class token, and padding are neither. Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.intervention import (
    Attended,
    Control,
    Intervention,
    at_random,
    given_to_others,
    largest_mass,
    normalised,
    taken_at_random,
    without,
)
from ...core.sources import Source
from ...core.statistics import fixed_generator
from ...data.bridges import codebook, nearest_centre, number_of_words
from ...data.queries import most_frequent
from .query_data import MAX_CLASSES, MIN_PER_CLASS, distinctness, token_groups

KEPT = 0.9  # share of the weight of a query that the kept keys hold
WORDS, CENTRES = 16, 4000  # largest number of words, and of tokens from which they are found
VARIES_RTOL = 1e-9  # variance of a place, relative to the largest one, up to which its values never vary


# keys that hold most of the weight


def kept_keys(attended: Attended) -> Attended:
    """Keeps the fewest keys of each query that hold :data:`KEPT` of its weight."""
    keep = largest_mass(attended.weights, KEPT)
    return attended.with_weights(normalised(attended.weights * keep))


def random_keys(attended: Attended) -> Attended:
    """Keeps as many keys of each query, drawn at random."""
    keep = at_random(attended, largest_mass(attended.weights, KEPT).sum(-1))
    return attended.with_weights(normalised(attended.weights * keep))


def random_weight(attended: Attended) -> Attended:
    """Moves as much weight of each query as :func:`kept_keys`, from keys in a random order to the others in
    proportion to their weights.
    """
    weights = attended.weights
    removed = (weights * ~largest_mass(weights, KEPT)).sum(-1, keepdim=True)
    return attended.with_weights(given_to_others(attended, taken_at_random(attended, removed)))


# common and distinct tokens


@dataclass(frozen=True, eq=False)
class Words:
    """Words of the tokens of the first attention.

    Attributes:
        means: mean value of each place, ``[tokens, width]``.
        varying: True for places whose values vary.
        centres: values of the words, less the mean of their place, ``[words, width]``.
        common, distinct: True for the words of each group.
    """

    means: Float[Tensor, "tokens width"]
    varying: Bool[Tensor, " tokens"]
    centres: Float[Tensor, "words width"]
    common: Bool[Tensor, " words"]
    distinct: Bool[Tensor, " words"]

    def of(self, values: Float[Tensor, "n tokens width"]) -> Int[Tensor, "n tokens"]:
        """Returns the word of each token; -1 at places whose values never vary."""
        centred = (values.to(self.means) - self.means).flatten(0, 1)
        words = nearest_centre(centred, self.centres).reshape(values.shape[:2])
        return words.masked_fill(~self.varying, -1)


def choose_words(read: Callable[[Callable[[Attended], None]], None]) -> Words:
    """Divides the tokens into words, and these into common and distinct ones.

    Raises:
        ValueError: there are neither labels nor next ids, fewer than two of them occur twice, the tokens have
            fewer than two words, or the numbers of tokens differ.
    """
    values: list[Tensor] = []
    classes: list[Tensor] = []
    real: list[Tensor] = []  # padding is no key of any query

    def add(attended: Attended) -> None:
        if attended.layer or attended.first_head:
            return
        values.append(_values(attended).cpu().double())
        if attended.labels is not None:
            # the whole sequence belongs to its class
            found = torch.full(values[-1].shape[:2], -1)
            found[:, -1] = attended.labels.cpu()
        elif attended.next_ids is not None:
            found = attended.next_ids.cpu()
        else:
            raise ValueError("common tokens need a class of each sequence or next ids, got neither")
        classes.append(found)
        real.append(attended.mask.flatten(1, 2).any(1).cpu())

    read(add)
    if len({part.shape[1] for part in (*values, *classes)}) > 1:
        raise ValueError("common tokens need sequences of one length, got several")
    every, following, known = torch.cat(values), torch.cat(classes), torch.cat(real)
    shares = (known / known.sum(0).clamp_min(1)).double()
    means = torch.einsum("ntd,nt->td", every, shares)
    spread = torch.einsum("ntd,nt->t", (every - means).square(), shares)
    varying = spread > VARIES_RTOL * spread.max()
    counted = known & varying
    flat = (every - means)[counted]
    some = flat[torch.randperm(len(flat), generator=fixed_generator())[:CENTRES]]
    number = number_of_words(some, WORDS)
    if number < 2:
        raise ValueError("common tokens need two different words, got one")
    _, centres = codebook(some, number, generator=fixed_generator())
    nothing = torch.zeros(number, dtype=torch.bool)
    words = Words(means, varying, centres, nothing, nothing)
    conditional = _conditional(words.of(every).masked_fill(~counted, -1), following, number)
    # words that occur in no class are neither common nor distinct
    found = conditional.sum(0) > 0
    groups = token_groups(distinctness(conditional[:, found]), len(conditional))
    masks = (nothing.masked_scatter(found, group) for group in (groups.common, groups.distinct))
    return replace(words, **dict(zip(("common", "distinct"), masks)))


def _conditional(
    words: Int[Tensor, "n tokens"], following: Int[Tensor, "n tokens"], number: int
) -> Float[Tensor, "classes words"]:
    """Returns P(l | n): the share of each word among all tokens up to the places that n follows."""
    known = following >= 0
    frequent = most_frequent(following[known], MAX_CLASSES, min_count=MIN_PER_CLASS)
    if len(frequent) < 2:
        raise ValueError(
            "common tokens need two classes or next ids that occur at least twice in half of the inputs, got "
            f"{len(frequent)}"
        )
    # words up to each place; -1 is no word
    counts = torch.nn.functional.one_hot(words + 1, number + 1)[..., 1:].cumsum(1).double()
    rows = torch.stack([counts[following == n].sum(0) for n in frequent])
    return rows / rows.sum(1, keepdim=True).clamp_min(1)


def _values(attended: Attended) -> Float[Tensor, "n tokens width"]:
    """Returns the values of all heads side by side.

    Raises:
        ValueError: the attention has windows.
    """
    if len(attended.value) != attended.sequences:
        raise ValueError("common tokens need attention among all tokens, got windows")
    return attended.value.transpose(1, 2).flatten(2)


def _words_of(attended: Attended) -> Int[Tensor, "n tokens"]:
    """Returns the words of the keys.

    Raises:
        ValueError: there is another number of tokens than where the words were chosen.
    """
    chosen: Words = attended.structure
    values = _values(attended)
    if values.shape[1] != len(chosen.means):
        raise ValueError(
            f"common tokens need sequences of one length, got {len(chosen.means)} and {values.shape[1]} "
            "tokens"
        )
    return chosen.of(values.cpu()).to(values.device)


def _in_group(words: Int[Tensor, "n tokens"], group: Bool[Tensor, " words"]) -> Bool[Tensor, "n 1 1 tokens"]:
    """True for the keys whose word is in a group."""
    return (group.to(words.device)[words.clamp_min(0)] & (words >= 0))[:, None, None]


def _common_keys(
    attended: Attended, words: Int[Tensor, "n tokens"]
) -> Bool[Tensor, "windows heads q tokens"]:
    """True for the common keys to which a query attends; none where it attends to no other key."""
    common = _in_group(words, attended.structure.common) & (attended.weights > 0)
    return common & ((attended.weights > 0) & ~common).any(-1, keepdim=True)


def common_removed(attended: Attended) -> Attended:
    """Removes common words from the keys of the first attention; a query that attends to no others keeps its
    weights.

    Raises:
        ValueError: the number of tokens is another one than where the words were chosen.
    """
    if attended.layer or attended.first_head:
        return attended
    return without(attended, _common_keys(attended, _words_of(attended)))


def distinct_taken(attended: Attended) -> Attended:
    """Takes as much weight of each query from distinct words in a random order, and from the others where
    these have less.

    Raises:
        ValueError: as for :func:`common_removed`.
    """
    if attended.layer or attended.first_head:
        return attended
    words = _words_of(attended)
    amount = (attended.weights * _common_keys(attended, words)).sum(-1, keepdim=True)
    distinct = _in_group(words, attended.structure.distinct)
    first = taken_at_random(replace(attended, mask=attended.mask & distinct), amount)
    missing = (amount - first.sum(-1, keepdim=True)).clamp_min(0.0)
    further = taken_at_random(replace(attended, mask=attended.mask & ~distinct), missing)
    return attended.with_weights(given_to_others(attended, first + further))


INTERVENTIONS = (
    Intervention(
        name="keys that hold 90 % of the weight",
        change=kept_keys,
        predicts="kept",
        controls=(
            Control("as many random keys", random_keys),
            Control("as much weight moved at random keys", random_weight),
        ),
        source=Source("tian2023scan", status="own"),
    ),
    Intervention(
        name="common tokens removed from the first keys",
        change=common_removed,
        predicts="kept",
        controls=(Control("as much weight of distinct tokens", distinct_taken),),
        source=Source("tian2023scan", status="own"),
        choose=choose_words,
    ),
)
