"""The theory's measurements in a network of the user: heads of any model of ids, and a rung of the ladder.

Models of ``transformers`` with random or local weights and any ``torch`` module that takes ids ``[n, seq]``
are measured alike. Nothing is downloaded. Source: :cite:t:`olsson2022incontext`.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from ...core.ladder import Rung
from ...core.metric import SHARED, ActivationKind, Activations, Metric
from ...core.result import Result, provenance
from ...core.statistics import fixed_generator
from ...core.table import Table
from ...core.theory import Theory
from ...core.validation import integers
from ...models.transformers_folder import longest_sequence
from ...probes.evaluation import evaluation, forward, logits_of
from ...probes.respond import responses
from .circuits import AttentionOnly, Heads
from .in_networks import COPYING, NAME, SEQUENCES
from .matrices import MATCH_RTOL, embedding_of, unembedding_of, value_and_output
from .scores import BLOCK, observe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def limits_of_model(
    model: nn.Module, *, vocabulary: int | None = None, length: int | None = None
) -> dict[str, int]:
    """Returns the vocabulary of a model, and the length of the sequences: twice :data:`.BLOCK`, or the
    model's limit.

    Args:
        model: network that takes ids.
        vocabulary: number of ids from which blocks are drawn, at most that of the model. None: all.
        length: longest sequence. None: see above.
    Raises:
        ValueError: the model takes no ids, its parameters are not finite, or a number exceeds the model's or
            is below 1.
        TypeError: a number is not an integer.
    """
    embedding = embedding_of(model) if isinstance(model, nn.Module) else None
    if embedding is None:
        raise ValueError(
            f"the model must take ids, got {type(model).__name__} without an embedding of ids; pass a "
            "language model"
        )
    spoilt = [name for name, each in model.named_parameters() if not bool(each.isfinite().all())]
    if spoilt:
        raise ValueError(
            f"the model's parameters must be finite, got NaN or infinity in {', '.join(spoilt[:3])}; load "
            "the weights again"
        )
    positions = getattr(model, "positions", None)  # the networks of this theory
    longest = longest_sequence(model) or (len(positions) if isinstance(positions, Tensor) else None)
    sizes = {"vocabulary": embedding.num_embeddings, "length": min(2 * BLOCK, longest or 2 * BLOCK)}
    for name, number, limit in (
        ("vocabulary", vocabulary, embedding.num_embeddings),
        ("length", length, longest),
    ):
        if number is not None:
            integers(**{name: number})
            if limit is not None and number > limit:
                raise ValueError(
                    f"{name} must be at most the model's, {limit}, got {number}; use a smaller one"
                )
            sizes[name] = number
    return sizes


def attention_only(model: nn.Module, *, length: int | None = None) -> AttentionOnly:
    """Finds the matrices of an attention-only network of ids from one forward pass, and checks that they give
    its logits.

    Args:
        model: causal network of ids with absolute positions.
        length: longest sequence of the result. None: see :func:`limits_of_model`.
    Returns:
        The matrices, float64.
    Raises:
        ValueError: the model takes no ids, a matrix was not found, or the logits are no sum over paths, as
            with norms, MLPs or biases.
    """
    sizes = limits_of_model(model, length=length)
    ids = torch.randint(sizes["vocabulary"], (4, sizes["length"]), generator=fixed_generator())
    metric, embedding, W_U, error = _Matrices(), embedding_of(model), unembedding_of(model), float("nan")
    observe(model, metric, ids)
    if (
        embedding is not None
        and W_U is not None
        and len(metric.sums) > 1
        and all(part.numel() for part in metric.sums.values())
    ):
        (_, stream), *parts = sorted(metric.sums.items(), key=lambda item: item[0])
        W_E = embedding.weight.detach().double().cpu()
        heads = tuple(Heads(*part.unbind(1)) for _, part in parts)
        found = AttentionOnly(W_E, (stream - W_E[ids]).mean(0), heads, W_U.double().cpu().mT)
        with evaluation(model):
            logits = logits_of(forward(model, ids))
        if logits is not None and logits.shape == (*ids.shape, len(W_E)):
            error = float((found.run(ids)[0] - logits.cpu()).norm() / logits.norm())
        if error < MATCH_RTOL:
            return found
    raise ValueError(
        "the model must consist of causal attention only, without norms, MLPs and biases, got "
        f"{type(model).__name__} (relative error of the logits: {error:.2g}); use copying_score for its "
        "heads"
    )


class _Matrices(Metric):
    """W_QK and W_OV of each attention, ``[heads, 2, dim, dim]``, empty if unknown; at place -1 the first
    stream, ``[batch, n, dim]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def update(self, activations: Activations) -> None:
        found, matrices = value_and_output(activations), torch.empty(0)
        if activations.bilinear is not None and found.numel():
            matrices = torch.stack(
                [activations.bilinear.detach().double().cpu(), found[:, 0] @ found[:, 1].mT], 1
            )
        self.sums[activations.layer, activations.first_head] = matrices
        self.sums.setdefault(SHARED, activations.tokens.double().cpu())

    def compute(self, **_: Any) -> list[Any]:
        return []


def score_heads(
    model: nn.Module,
    *,
    vocabulary: int | None = None,
    length: int | None = None,
    sequences: int = SEQUENCES,
    generator: Generator | None = None,
    name: str | None = None,
) -> Result:
    """Measures which heads of a model do induction, whether they copy, and what the second of two equal
    blocks costs.

    Args:
        model: network that takes ids ``[n, seq]``.
        vocabulary, length: see :func:`limits_of_model`.
        sequences: number of blocks, rounded up to 20 sets of equal size: one of repeated blocks, and 19 of
            unrelated ones.
        generator: draws the blocks. None: a generator with seed 0.
        name: value of the column ``model``.
    Returns:
        Rows for each layer and head, each with the null of unrelated blocks, and the loss of the second
        block.
    Raises:
        ValueError: the model takes no ids, its parameters are not finite, or the limits do not allow blocks
            of four ids.
        TypeError: a number is not an integer.
    """
    from . import THEORY

    integers(sequences=sequences)

    limits = limits_of_model(model, vocabulary=vocabulary, length=length) | {"sequences": sequences}
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    data = torch.zeros(1, limits["length"], dtype=torch.long)  # only its type matters: the blocks are drawn
    rows = responses(model, THEORY, data, limits=limits, generator=generator, name=name)
    return Result(
        NAME,
        {**limits, "model": name or type(model).__name__},
        Table(rows),
        {},
        (),
        THEORY.sources,
        provenance(),
    )


def head_map(result: Result, *quantities: str) -> "Figure":
    """Draws quantities of :func:`score_heads` by layer and head, and below each its largest null draw.

    Raises:
        ValueError: the result lacks one of the quantities.
    """
    from ...core.plotting import axes, heatmap

    table = result.table.where(
        lambda row: row.value is not None and row.null is not None and row.head is not None
    )
    names = list(dict.fromkeys(table.column("quantity")))
    if not quantities or not {*quantities} <= {*names}:
        raise ValueError(
            f"quantities must be some of {', '.join(map(repr, names)) or 'none'}, got "
            f"{', '.join(map(repr, quantities))}"
        )
    size = 1 + max(table.column("layer")), 1 + max(table.column("head"))
    figure, panels = axes(2, len(quantities), height=max(3.0, 0.44 * size[0] + 2.0))
    for column, quantity in enumerate(quantities):
        signed, maps = quantity == COPYING, torch.full((2, *size), torch.nan)
        for row in table.select(quantity=quantity):
            assert row.null is not None
            maps[:, row.layer, row.head] = torch.tensor([row.value, row.null.high])
        for ax, values in zip(panels[column :: len(quantities)], maps.numpy()):
            heatmap(ax, values, bar=False, vmin=-signed, vmax=1, cmap="RdBu_r" if signed else "viridis")
            for place, value in np.ndenumerate(values if values.size <= 64 else values[:0]):
                dark = abs(value) > 0.7 if signed else value < 0.6
                ax.text(
                    *place[::-1],
                    f"{value:.2f}",
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if dark else "black",
                )
        panels[column].set_title(quantity.replace(" to the ", " to\nthe "))
        panels[column + len(quantities)].set(title="largest null", xlabel="head")
    for ax in panels[:: len(quantities)]:
        ax.set_ylabel("layer")
    return figure


def with_model(
    model: nn.Module, *, vocabulary: int | None = None, length: int | None = None, name: str = "given model"
) -> Theory:
    """Returns the theory with a further rung of its ladder, the user's model, for
    :func:`transformer_theory.reach`.

    Args:
        model: network that takes ids.
        vocabulary, length: see :func:`limits_of_model`.
        name: name of the rung.
    Raises:
        ValueError: the model takes no ids, or a number exceeds the model's.
    """
    from . import THEORY
    from .ladder import user_model

    assert THEORY.ladder is not None
    limits = limits_of_model(model, vocabulary=vocabulary, length=length)
    rung = Rung(
        name,
        "the networks of the theory: a model of the user",
        partial(user_model, model, limits),
        column="trained network",
    )
    return replace(THEORY, ladder=replace(THEORY.ladder, rungs=(*THEORY.ladder.rungs, rung)))
