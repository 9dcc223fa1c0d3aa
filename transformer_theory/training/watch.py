"""Training that every theory watches: at chosen steps the order parameters are read on held-out sequences, beside their nulls.

A quantity whose reducer computes no null itself is given what untrained networks of the same recipe read on the same sequences
("random weights"), layer by layer and head by head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..core.measurement import Arrays, Row
from ..core.notes import annotate, percent
from ..data.bridges import features
from ..data.tokens import TokenData
from ..models import build
from ..probes import AttentionMaps, Reducer, probe
from .observe import UNTRAINED, and_general, fill_nulls, nulls_of
from .recipes import Recipe
from .supervised import train

PROBED = 256  # held-out sequences on which the order parameters are read
PICTURED = 6  # of them, those whose attention maps are kept
MAPPED = 2**22  # numbers in all maps of a network, 16 MiB in the arrays; of longer sequences fewer maps are kept
READINGS = 14  # checkpoints over the training


@dataclass(frozen=True)
class Watched:
    """A trained network with its timeline.

    Attributes:
        model: trained, in evaluation mode.
        rows: the readings, with ``model`` and ``step``.
        arrays: ``network/<name>/steps`` and ``network/<name>/attention``, maps [steps, layers, heads, sequences, queries, keys].
        queries: at each of these steps what the last block hands on of the query's token, [n, dim], of the first held-out sequences.
    """

    model: nn.Module
    rows: list[Row]
    arrays: Arrays
    queries: list[torch.Tensor]


def checkpoints(steps: int, readings: int = READINGS) -> tuple[int, ...]:
    """Steps at which to read: 0, the last, and between them denser at the start, where most happens (uniform in the square root).

    >>> checkpoints(100, 5)
    (0, 6, 25, 56, 100)
    """
    return tuple(sorted({round(steps * (i / (readings - 1)) ** 2) for i in range(readings)}))


def watched_training(
    recipe: Recipe,
    train_data: TokenData,
    held_out: TokenData,
    *,
    reducers: Callable[[], Sequence[Reducer]],
    steps: int,
    seed: int,
    featured: int,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Watched:
    """Trains the recipe's network on ``train_data`` and reads ``reducers`` on the first held-out sequences while it trains.

    Args:
        recipe: network and settings.
        train_data, held_out: with labels; ``[n, seq, dim]`` tokens.
        reducers: makes fresh reducers (the theories' order parameters); :func:`~.observe.and_general` adds others.
        steps: optimiser steps.
        seed: of initial weights, batches and dropout.
        featured: held-out sequences whose queries are kept at each reading.
        device: where to train.
        progress: called with one line at each reading.
    Returns:
        The network, the rows of every reading (with nulls), and arrays for pictures.
    Raises:
        NotConverged: the loss became infinite or NaN.
        ValueError: data without labels, or settings out of range.
    """
    generator = torch.Generator().manual_seed(seed)
    model = build(lambda: recipe.build(train_data), generator)
    if (labels := held_out.labels) is None:
        raise ValueError(f"held_out must have labels, {held_out.name} has none")
    probed = held_out[:PROBED]
    at = checkpoints(steps)
    own = and_general(reducers())
    rows: list[Row] = []
    maps: list[np.ndarray] = []
    queries: list[torch.Tensor] = []

    def watch(step: int, network: nn.Module) -> None:
        rows.extend(_read(network, probed, own, name=recipe.name, step=step))
        logits = network(_inputs(network, held_out)).cpu()
        right, loss = (logits.argmax(-1) == labels).double().mean().item(), cross_entropy(logits, labels).item()
        for quantity, value in (("held-out accuracy", right), ("held-out loss", loss)):
            rows.append(Row(theory="network", quantity=quantity, value=value, model=recipe.name, step=step))
        maps.append(_maps(network, probed, MAPPED // len(at)))
        queries.append(_queries(network, held_out[:featured]))
        if progress:
            progress(f"{recipe.name}: step {step} of {steps}, held-out accuracy {percent(right, 1)}")

    trained = train(
        model,
        train_data,
        held_out,
        steps=steps,
        learning_rate=recipe.learning_rate,
        batch_size=recipe.batch_size,
        generator=generator,
        at=at,
        watch=watch,
        device=device,
    )
    untrained = (build(lambda: recipe.build(train_data), generator).to(device).eval() for _ in range(UNTRAINED))
    fill_nulls(rows, nulls_of([_read(network, probed, and_general(reducers()), name="", step=0) for network in untrained]))
    arrays = Arrays({f"network/{recipe.name}/steps": np.array(at)})
    if maps[0].size:
        arrays[f"network/{recipe.name}/attention"] = np.stack(maps)
    return Watched(trained.model, rows, arrays, queries)


def _inputs(model: nn.Module, data: TokenData) -> torch.Tensor:
    parameter = next(model.parameters())
    return data.tokens.to(parameter.device, parameter.dtype)


def _read(model: nn.Module, data: TokenData, reducers: Sequence[Reducer], *, name: str, step: int) -> list[Row]:
    """One reading: a forward pass of all probed sequences."""
    with probe(model, reducers, name=name) as p, torch.no_grad():
        p.labels, p.step = data.labels, step
        model(_inputs(model, data))
    rows = p.result().table
    annotate(rows, f"{len(data)} held-out sequences")
    return rows


def _maps(model: nn.Module, data: TokenData, room: int) -> np.ndarray:
    """Attention maps of the pictured sequences, ``[layers, heads, sequences, queries, keys]`` float32: as many sequences as need no more
    than ``room`` numbers."""
    keeper = AttentionMaps(keep=PICTURED)
    with probe(model, [keeper]) as p, torch.no_grad():
        model(_inputs(model, data[:PICTURED]))
    arrays = p.result().arrays
    found = np.stack([arrays[name].swapaxes(0, 1) for name in sorted(arrays)]).astype(np.float32)
    return found[:, :, : room * found.shape[2] // found.size]


def _queries(model: nn.Module, data: TokenData) -> torch.Tensor:
    """What the last block hands on of each sequence's query, [n, dim]."""
    query = features(model, data).query
    assert query is not None
    return query.clone()  # of all tokens a part
