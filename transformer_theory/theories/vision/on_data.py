r"""Label-relevant patches of the user's images: the share of patches whose word and place tell the label.

Posteriors :math:`\hat p(y \mid w, t)` are counted on one half of the images (:mod:`.relevance`). A patch of
the other half is label-relevant if the mean gain of its word at its place is at least a tenth of the entropy
of the labels on this other half. The headline is the share of such patches, the :math:`\alpha` of
:cite:t:`li2023theoretical`. Its null permutes the labels of the other half; on noise it is at chance. Beside
it stands the mean gain in nats.

Words are the ids of the data, or the nearest of at most sixteen k-means centres of the tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.measurement import Measurement, Null, present
from ...core.plotting import axes, caption, colour, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator, permutations
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.bridges import codebook, nearest_centre, number_of_words
from ...data.tokens import TokenData, stratified
from .relevance import relevant_share, word_posteriors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "vision", Source("li2023theoretical", status="own")
SHARE, GAIN = "share of label-relevant patches", "mean gain of a patch about the label"
NULL_KIND = "permuted labels of the measured images"
MAX_SAMPLES, MAX_TOKENS, MAX_WORDS, WORDS, RELEVANT = 4000, 256, 256, 16, 0.1
CENTRES = 4000  # tokens from which the k-means centres are found


@dataclass(frozen=True, eq=False)
class LabelledWords:
    """Words ``[n, T]`` below ``words``, labels 0 to k - 1 ``[n]``, and the indices of the counted and of the
    measured images.
    """

    ids: Int[Tensor, "n T"]
    labels: Int[Tensor, " n"]
    words: int
    counted: Int[Tensor, " counted"]
    measured: Int[Tensor, " measured"]


def read(data: TokenData) -> LabelledWords | Unsupported:
    """Takes up to 4,000 images; needs labels of at least two classes with four images each on average."""
    if data.labels is None:
        return Unsupported("needs labels: a patch is relevant if it tells the label")
    n, T, _ = data.tokens.shape
    if T > MAX_TOKENS:
        return Unsupported(f"needs at most {MAX_TOKENS} patches, got {T}")
    chosen = torch.randperm(n, generator=fixed_generator())[:MAX_SAMPLES]
    found, labels = data.labels[chosen].unique(return_inverse=True)
    if len(found) < 2:
        return Unsupported("needs at least two classes")
    if len(chosen) < 4 * len(found):
        return Unsupported(f"needs at least {4 * len(found)} images for {len(found)} classes, got {n}")
    if data.ids is not None and len(different := data.ids[chosen].unique()) <= MAX_WORDS:
        ids = torch.searchsorted(different, data.ids[chosen])
    else:
        ids = words_of(data.tokens[chosen])
    counted, measured = stratified(len(labels), labels, 0.5, fixed_generator(), what="images")
    if min(len(labels[half].unique()) for half in (counted, measured)) < 2:
        return Unsupported("needs at least two classes with two images each")
    return LabelledWords(ids, labels, int(ids.max()) + 1, counted, measured)


def words_of(tokens: Tensor) -> Int[Tensor, "n T"]:
    """Returns the nearest of up to sixteen k-means centres, which a subset of the tokens determines, ``[n,
    T]``.
    """
    largest = tokens.abs().amax()
    flat = (tokens / largest if largest > 0 else tokens).flatten(0, 1).double()
    some = flat[torch.randperm(len(flat), generator=fixed_generator())[:CENTRES]]
    _, centres = codebook(some, number_of_words(some, WORDS), generator=fixed_generator())
    return nearest_centre(flat, centres).reshape(tokens.shape[:2])


def measure(problem: LabelledWords, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the share of label-relevant patches and the mean gain.

    Args:
        problem: result of :func:`read`.
        generator: not used: split and permutations are shared by all seeds.
        draws: number of null draws.
    """
    classes = int(problem.labels.max()) + 1
    ids, labels = problem.ids[problem.measured], problem.labels[problem.measured]
    posteriors = word_posteriors(
        problem.ids[problem.counted], problem.labels[problem.counted], words=problem.words, classes=classes
    )
    prior = torch.bincount(labels).double() / len(labels)
    entropy = float(torch.special.entr(prior).sum())
    threshold = RELEVANT * entropy

    def share(found: Tensor) -> float:
        return relevant_share(posteriors, ids, found, threshold=threshold)

    orders = permutations(len(labels), draws)
    columns = {"n": len(labels), "split": "test", "side": ">=", "source": SOURCE}
    null = Null(NULL_KIND, tuple(share(labels[order]) for order in orders)) if draws else None
    note = (
        f"{problem.words} words at {ids.shape[1]} places; a patch counts from {threshold:.3f} nats on, a "
        "tenth of the labels' entropy"
    )
    yield Measurement(
        NAME, "on data", SHARE, share(labels), unit="share", nulls=present(null), note=note, **columns
    )
    gains = posteriors.gains(ids, labels)
    few = orders[: min(draws, RANGE_DRAWS)]
    null = (
        Null(NULL_KIND, tuple(float(posteriors.gains(ids, labels[order]).mean()) for order in few))
        if draws
        else None
    )
    yield Measurement(NAME, "on data", GAIN, float(gains.mean()), unit="nats", nulls=present(null), **columns)
    yield Arrays({f"{NAME}/gain": gains.mean(0).numpy()})


@style()
def plot(result: Result) -> "Figure":
    """Draws the mean gain at each place: as a map if the places form a square, as bars otherwise."""
    if f"{NAME}/gain" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Vision transformers: {reasons[0] if reasons else 'nothing was measured'}")
    gain = result.arrays[f"{NAME}/gain"]
    figure, (ax,) = axes(width=5.0, height=3.4)
    side = math.isqrt(len(gain))
    if side**2 == len(gain) and side > 1:
        image = ax.imshow(gain.reshape(side, side), cmap="Reds", vmin=0, vmax=max(float(gain.max()), 1e-9))
        figure.colorbar(image, ax=ax, label="nats")
        ax.set(xlabel="column", ylabel="row", xticks=range(side), yticks=range(side))
        ax.grid(visible=False)
    else:
        ax.bar(range(len(gain)), gain, color=colour(NAME))
        ax.set(xlabel="place", ylabel="mean gain, nats")
    caption(
        figure,
        "What the word of a patch tells about the label, by its place, on images that were not counted.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=SHARE, plot=plot)
