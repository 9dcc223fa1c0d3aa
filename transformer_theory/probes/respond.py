"""Measurements of a network on synthetic inputs (:func:`respond`), and the inputs of common tests.

A probe measures a network on the inputs of the caller. Some questions require other inputs: does the output
depend on the order of the tokens (:func:`permuted_tokens`) or on the number of times that a token occurs
(:func:`doubled_tokens`)? Does the network continue a sequence that has occurred once before
(:func:`repeated_blocks`)? :func:`respond` computes the same metrics on such inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from ..core.measurement import Measurement
from ..core.metric import Metric
from ..core.result import Result, provenance
from ..core.statistics import RANGE_DRAWS, nulls_of, place_of
from ..core.table import Table
from ..core.theory import Response, Theory
from ..core.validation import as_tensor, integers
from .evaluation import evaluation, forward, logits_of
from .passes import Batch, measure_metrics

VALUE, NULL, TARGETS, REFERENCE = "value", "null", "targets", "reference"


def respond(
    model: nn.Module,
    inputs: Any,
    metrics: Sequence[Metric],
    *,
    targets: Any = None,
    null_kind: str = "other inputs",
    batch_size: int = 64,
    name: str | None = None,
    layers: str = "*",
) -> Result:
    """Computes metrics of a network on synthetic inputs.

    The network runs in evaluation mode and without gradients; its mode and the random state are restored.

    Args:
        model: network that takes float tokens ``[n, seq, dim]``, images ``[n, c, h, w]`` or ids ``[n, seq]``.
            A model of ``transformers`` receives the inputs as the keyword argument that its
            ``main_input_name`` names.
        inputs: inputs, a tensor or numpy array ``[n, ...]``, or ``{"value": inputs, "null": null_inputs}``.
            The chance level is measured on the null inputs: one tensor or array ``[n, ...]`` or, for several
            draws of the null, a sequence of them.
        metrics: metrics to compute; they are reset first.
        targets: targets of the outputs, ``[n, ...]``: classes, next ids, or the outputs for other inputs.
            Metrics receive them as :attr:`.Activations.targets`; integers ``[n]`` also serve as labels.
        null_kind: description of the null inputs, for example "unrelated blocks".
        batch_size: number of sequences per forward pass.
        name: value of the column ``model``. None: the name of the model's type.
        layers: glob over names of modules, see :func:`.probe`.
    Returns:
        The rows of the metrics on the value inputs. The null of a row has the values of the same row on the
        null inputs.
    Raises:
        ValueError: inputs and targets differ in length, the inputs are empty, or "value" is missing.
        NoAttention: a metric needs attention and the network has none.
    """
    parts = dict(inputs) if isinstance(inputs, Mapping) else {VALUE: inputs}
    if VALUE not in parts or parts.keys() - {VALUE, NULL}:
        names = ", ".join(map(str, parts)) or "none"
        raise ValueError(f'inputs must be a tensor or {{"value": ..., "null": ...}}, got the keys {names}')
    integers(batch_size=batch_size)
    nulls = parts.get(NULL, ())
    nulls = [nulls] if isinstance(nulls, Tensor | np.ndarray) else list(nulls)
    values, *nulls = (as_tensor("inputs", each) for each in (parts[VALUE], *nulls))
    targets = None if targets is None else as_tensor("targets", targets)
    for each in (values, *nulls):
        if not len(each) or (targets is not None and len(targets) != len(each)):
            raise ValueError(
                f"inputs and targets must have one entry per sequence, got {len(each)} and "
                f"{'no' if targets is None else len(targets)}"
            )
    title = type(model).__name__ if name is None else name
    run = {"targets": targets, "batch_size": batch_size, "name": title, "layers": layers}
    chance = [_measured(model, each, metrics, draws=0, **run) for each in nulls]
    rows = _measured(model, values, metrics, draws=RANGE_DRAWS, **run)
    settings = {
        "model": title,
        "layers": layers,
        "sequences": len(values),
        "null_kind": null_kind if nulls else "",
    }
    draws = nulls_of(chance, null_kind)
    table = Table(replace(row, nulls=(draws.get(place_of(row), row.null),)) for row in rows)
    return Result("respond", settings, table, {}, (), (), provenance())


def responses(
    model: nn.Module,
    theory: Theory,
    data: Tensor,
    *,
    limits: Mapping[str, int],
    generator: torch.Generator,
    name: str | None = None,
) -> list[Measurement]:
    """Runs the tests of a theory, :attr:`.InNetworks.responses`, on one network.

    Args:
        model: network, see :func:`respond`.
        theory: theory whose tests run.
        data: inputs that the network accepts, ``[n, ...]``. Tests that read ids are left out if these are
            floats.
        limits: sizes that the synthetic inputs must not exceed: "length" of a sequence, "vocabulary", number
            of "sequences".
        generator: random generator of the synthetic inputs.
        name: value of the column ``model``. None: the name of the model's type.
    Returns:
        The rows of all tests; the coordinate ``test`` is the name of the test.
    """
    rows: list[Measurement] = []
    for test in theory.in_networks.responses if theory.in_networks else ():
        if test.reads == "ids" and data.is_floating_point():
            continue
        rows += response(model, theory.name, test, data, limits=limits, generator=generator, name=name)
    return rows


def response(
    model: nn.Module,
    theory: str,
    test: Response,
    data: Tensor,
    *,
    limits: Mapping[str, int],
    generator: torch.Generator,
    name: str | None = None,
) -> list[Measurement]:
    """Runs one test of a theory on one network, see :func:`responses`.

    Args:
        model, limits, generator, name: see :func:`responses`.
        theory: name of the theory.
        test: the test.
        data: inputs that the network accepts, ``[n, ...]``.
    """
    inputs = dict(test.inputs(data, limits, generator))
    targets, reference = inputs.pop(TARGETS, None), inputs.pop(REFERENCE, None)
    if reference is not None:
        targets = _outputs(model, reference)
    table = respond(model, inputs, test.metrics(), targets=targets, null_kind=test.null_kind, name=name).table
    return [replace(row, theory=theory, kind="in network", at={"test": test.name, **row.at}) for row in table]


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """Returns the outputs of a network for all inputs."""
    with evaluation(model), torch.random.fork_rng():
        output = logits_of(forward(model, inputs))
    if output is None:
        raise ValueError(
            f"{type(model).__name__} must return a tensor for a test with reference inputs, got none"
        )
    return output


def _measured(
    model: nn.Module,
    inputs: Tensor,
    metrics: Sequence[Metric],
    *,
    draws: int,
    targets: Tensor | None,
    batch_size: int,
    name: str,
    layers: str,
) -> list[Measurement]:
    """Measures the network once on all batches and returns the rows."""
    passes = (
        _with_targets(inputs[start : start + batch_size], targets, start)
        for start in range(0, len(inputs), batch_size)
    )
    with torch.random.fork_rng():
        rows, unmeasured = measure_metrics(
            model, passes, metrics, name=name, draws=draws, n=len(inputs), layers=layers
        )
    return [*rows, *unmeasured]


def _with_targets(inputs: Tensor, targets: Tensor | None, start: int) -> Batch:
    """Returns inputs ``[batch, ...]`` with their targets; integers ``[batch]`` are labels as well."""
    if targets is None:
        return Batch(inputs)
    part = targets[start : start + len(inputs)]
    return Batch(inputs, part if part.ndim == 1 and not part.is_floating_point() else None, part)


def permuted_tokens(
    inputs: Shaped[Tensor, "n seq *rest"], generator: torch.Generator
) -> Shaped[Tensor, "n seq *rest"]:
    """Permutes the tokens of each sequence. Every sequence has an independent permutation.

    A network without positional information permutes its outputs in the same way.
    """
    order = torch.rand(inputs.shape[:2], generator=generator).argsort(1)
    return torch.stack([sequence[permutation] for sequence, permutation in zip(inputs, order)])


def doubled_tokens(inputs: Shaped[Tensor, "n seq *rest"]) -> Shaped[Tensor, "n twice *rest"]:
    """Repeats each sequence once. Softmax attention without positions and masks returns the same outputs, as
    every weight is halved.
    """
    return torch.cat([inputs, inputs], dim=1)


def repeated_blocks(
    *, vocabulary: int, length: int, n: int, generator: torch.Generator, repeats: int = 2
) -> Int[Tensor, "n seq"]:
    """Returns random ids ``[n, repeats * length]``: in each sequence a block of ``length`` different ids,
    repeated.

    The ids of the first block cannot be predicted; an induction head predicts the ids of the later blocks.

    Raises:
        ValueError: a number is below 1, or the block is longer than the vocabulary.
    """
    integers(vocabulary=vocabulary, length=length, n=n, repeats=repeats)
    if length > vocabulary:
        raise ValueError(
            f"length must be at most the vocabulary, {vocabulary} ids, since the ids of a block differ, got "
            f"{length}"
        )
    return torch.rand(n, vocabulary, generator=generator).argsort(1)[:, :length].repeat(1, repeats)
