"""The theory's measurements in a network of the user: heads of any model of ids, and a rung of the ladder.

Models of ``transformers`` with random or local weights and any ``torch`` module that takes ids ``[n, seq]`` are measured alike. Nothing is
downloaded. Source: :cite:t:`olsson2022incontext`.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from ...core.ladder import Rung
from ...core.measurement import Table
from ...core.result import Result, provenance
from ...core.theory import Theory
from ...models.transformers_folder import longest_sequence
from ...probes.respond import responses
from .in_networks import NAME, SEQUENCES, embedding_of
from .scores import BLOCK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def longest(model: nn.Module) -> int | None:
    """Returns the largest number of tokens that a model accepts, from its configuration; None if it states none."""
    positions = getattr(model, "positions", None)  # the networks of this theory
    return longest_sequence(model) or (len(positions) if isinstance(positions, Tensor) else None)


def limits_of_model(model: nn.Module, *, vocabulary: int | None = None, length: int | None = None) -> dict[str, int]:
    """Returns the vocabulary of a model, and the length of the sequences: twice :data:`.BLOCK`, or the model's limit.

    Args:
        model: network that takes ids.
        vocabulary: number of ids from which blocks are drawn, at most that of the model. None: all.
        length: longest sequence. None: see above.
    Raises:
        ValueError: the model takes no ids, or a number exceeds the model's.
    """
    embedding = embedding_of(model)
    if embedding is None:
        raise ValueError(f"the model must take ids, got {type(model).__name__} without an embedding of ids; pass a language model")
    if vocabulary is not None and vocabulary > embedding.num_embeddings:
        raise ValueError(f"vocabulary must be at most the model's, {embedding.num_embeddings} ids, got {vocabulary}; lower it")
    limit = longest(model)
    if length is not None and limit is not None and length > limit:
        raise ValueError(f"length must be at most the model's limit, {limit} tokens, got {length}; shorten the sequences")
    wanted = 2 * BLOCK if length is None else length
    return {"vocabulary": vocabulary or embedding.num_embeddings, "length": min(wanted, limit) if limit else wanted}


def score_heads(
    model: nn.Module,
    *,
    vocabulary: int | None = None,
    length: int | None = None,
    sequences: int = SEQUENCES,
    generator: Generator | None = None,
    name: str | None = None,
) -> Result:
    """Measures which heads of a model do induction, whether they copy, and what the second of two equal blocks costs.

    Args:
        model: network that takes ids ``[n, seq]``.
        vocabulary, length: see :func:`limits_of_model`.
        sequences: number of blocks.
        generator: draws the blocks. None: a generator with seed 0.
        name: value of the column ``model``.
    Returns:
        Rows for each layer and head, each with the null of unrelated blocks, and the loss of the second block.
    Raises:
        ValueError: the model takes no ids, or the limits do not allow blocks of four ids.
    """
    from . import THEORY

    limits = limits_of_model(model, vocabulary=vocabulary, length=length) | {"sequences": sequences}
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    data = torch.zeros(1, limits["length"], dtype=torch.long)  # only its type matters: the blocks are drawn
    rows = responses(model, THEORY, data, limits=limits, generator=generator, name=name)
    return Result(NAME, {**limits, "model": name or type(model).__name__}, Table(rows), {}, (), THEORY.sources, provenance())


def head_map(result: Result, quantity: str) -> "Figure":
    """Draws one quantity of :func:`score_heads` by layer and head, with the largest null beside it."""
    from ...core.plotting import axes, heatmap, text_figure

    rows = result.select(quantity=quantity).where(lambda row: row.value is not None and row.head is not None)
    if not rows:
        return text_figure(f"{quantity}: nothing was measured")
    layers, heads = 1 + max(rows.column("layer")), 1 + max(rows.column("head"))
    maps = torch.full((2, layers, heads), torch.nan)
    for row in rows:
        maps[0, row.layer, row.head] = row.value or 0.0
        if row.null is not None:
            maps[1, row.layer, row.head] = row.null.high
    figure, panels = axes(1, 2, height=max(2.4, 0.22 * layers + 1.2))
    for ax, values, title in zip(panels, maps.numpy(), (quantity, "largest null draw")):
        heatmap(ax, values, "share", vmin=0, vmax=1)
        ax.set(xlabel="head", ylabel="layer", title=title)
    return figure


def with_model(model: nn.Module, *, vocabulary: int | None = None, length: int | None = None, name: str = "given model") -> Theory:
    """Returns the theory with a further rung of its ladder, the user's model, for :func:`transformer_theory.reach`.

    Args:
        model: network that takes ids.
        vocabulary, length: see :func:`limits_of_model`.
        name: name of the rung.
    Raises:
        ValueError: the model takes no ids, or a number exceeds the model's.
    """
    from . import THEORY
    from .ladder import given

    assert THEORY.ladder is not None
    limits = limits_of_model(model, vocabulary=vocabulary, length=length)
    rung = Rung(name, "the networks of the theory: a model of the user", partial(given, model, limits), column="trained network")
    return replace(THEORY, ladder=replace(THEORY.ladder, rungs=(*THEORY.ladder.rungs, rung)))
