"""How a network responds to inputs that are made for a test: :func:`respond`, and the inputs of the common tests.

Passive metrics measure a network on the data that it is given. Some questions need other inputs: does the output depend on the order of
the tokens (:func:`permuted_tokens`), on how often a token occurs (:func:`doubled_tokens`), does a network continue a sequence that it has
seen once (:func:`repeated_blocks`)? The same metrics run on both inputs, under the same probe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from ..core.measurement import Measurement, Table
from ..core.metric import Metric
from ..core.result import Result, provenance
from ..core.statistics import nulls_of, place_of
from ..core.validation import integers
from .probing import probe

VALUE, NULL = "value", "null"


def respond(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    metrics: Sequence[Metric],
    *,
    targets: Tensor | None = None,
    null_kind: str = "other inputs",
    batch_size: int = 64,
    name: str | None = None,
    layers: str = "*",
) -> Result:
    """Runs a network on synthetic inputs and measures it.

    The network runs in evaluation mode and without gradients; its mode and the random state are restored.

    Args:
        model: any network of float tokens ``[n, seq, dim]``, images ``[n, c, h, w]`` or ids ``[n, seq]``. A model of ``transformers``
            receives its ``main_input_name`` as a keyword.
        inputs: of the network, ``[n, ...]``; or ``{"value": inputs, "null": inputs}``, where "null" holds inputs of the same targets, or
            a sequence of them, on which the chance level is measured: one draw of the null each.
        metrics: are reset first.
        targets: what the outputs are compared with, ``[n, ...]``: classes, next ids, or the outputs of another input. Metrics receive
            them as :attr:`.Activations.targets`; integers ``[n]`` are the labels too.
        null_kind: names the null inputs, e.g. "unrelated blocks".
        batch_size: sequences per forward pass.
        name: column ``model``; the type's name if None.
        layers: glob over names of modules, see :func:`.probe`.
    Returns:
        The rows of the metrics on the value inputs, each with the null of the same row on the null inputs.
    Raises:
        ValueError: inputs and targets differ in number, there are none, or "value" is missing.
        NoAttention: a metric needs attention and the network has none.
    """
    given = dict(inputs) if isinstance(inputs, Mapping) else {VALUE: inputs}
    if VALUE not in given or given.keys() - {VALUE, NULL}:
        names = ", ".join(map(str, given)) or "none"
        raise ValueError(f'inputs must be a tensor or {{"value": ..., "null": ...}}, got the keys {names}')
    integers(batch_size=batch_size)
    nulls = given.get(NULL, ())
    nulls = [nulls] if isinstance(nulls, Tensor) else list(nulls)
    for each in (given[VALUE], *nulls):
        if not len(each) or (targets is not None and len(targets) != len(each)):
            raise ValueError(
                f"inputs and targets must be one per sequence, got {len(each)} and {'no' if targets is None else len(targets)}"
            )
    title = type(model).__name__ if name is None else name
    run = {"targets": targets, "batch_size": batch_size, "name": title, "layers": layers}
    chance = [_measured(model, each, metrics, **run) for each in nulls]
    rows = _measured(model, given[VALUE], metrics, **run)
    settings = {"model": title, "layers": layers, "sequences": len(given[VALUE]), "null_kind": null_kind if nulls else ""}
    draws = nulls_of(chance, null_kind)
    table = Table(replace(row, null=draws.get(place_of(row), row.null)) for row in rows)
    return Result("respond", settings, table, {}, (), (), provenance())


def _measured(
    model: nn.Module, inputs: Tensor, metrics: Sequence[Metric], *, targets: Tensor | None, batch_size: int, name: str, layers: str
) -> list[Measurement]:
    """The rows of one measurement on all batches."""
    parameter, training = next(model.parameters(), torch.empty(0)), model.training
    keyword = getattr(model, "main_input_name", None)
    model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad(), probe(model, metrics, layers=layers, name=name) as p, p.together():
            for start in range(0, len(inputs), batch_size):
                batch = inputs[start : start + batch_size].to(parameter.device)
                batch = batch.to(parameter.dtype) if batch.is_floating_point() else batch
                if targets is not None:
                    part = targets[start : start + batch_size].to(parameter.device)
                    p.targets = part
                    p.labels = part if part.ndim == 1 and not part.is_floating_point() else None
                model(**{keyword: batch}) if isinstance(keyword, str) else model(batch)
    finally:
        model.train(training)
    return [replace(row, n=len(inputs) if row.n is None else row.n, step=None) for row in [*p.rows, *p.silent()]]


def permuted_tokens(inputs: Shaped[Tensor, "n seq *rest"], generator: torch.Generator) -> Shaped[Tensor, "n seq *rest"]:
    """Permutes the tokens of each sequence, each by its own permutation.

    A network without positions returns the same outputs in the same order as the tokens.
    """
    order = torch.rand(inputs.shape[:2], generator=generator).argsort(1)
    return torch.stack([sequence[permutation] for sequence, permutation in zip(inputs, order)])


def doubled_tokens(inputs: Shaped[Tensor, "n seq *rest"]) -> Shaped[Tensor, "n twice *rest"]:
    """Repeats each sequence once. Softmax attention without positions and masks is unchanged: every weight is halved."""
    return torch.cat([inputs, inputs], dim=1)


def repeated_blocks(*, vocabulary: int, length: int, n: int, generator: torch.Generator, repeats: int = 2) -> Int[Tensor, "n seq"]:
    """Returns random ids ``[n, repeats * length]``: a block of ``length`` different ids, repeated.

    In the first block nothing predicts the next id; in the later blocks an induction head does.

    Raises:
        ValueError: a number is below 1, or the block is longer than the vocabulary.
    """
    integers(vocabulary=vocabulary, length=length, n=n, repeats=repeats)
    if length > vocabulary:
        raise ValueError(f"length must be at most the vocabulary, {vocabulary} ids, since the ids of a block differ, got {length}")
    return torch.rand(n, vocabulary, generator=generator).argsort(1)[:, :length].repeat(1, repeats)
