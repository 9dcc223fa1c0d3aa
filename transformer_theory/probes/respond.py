"""Measurements of a network on synthetic inputs (:func:`respond`), and the inputs of common tests.

A probe measures a network on the inputs of the caller. Some questions require other inputs: does the output
depend on the order of the tokens (:func:`permuted_tokens`) or on the number of times that a token occurs
(:func:`doubled_tokens`)? Does the network continue a sequence that has occurred once before
(:func:`repeated_blocks`)? :func:`respond` computes the same metrics on such inputs.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
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
from .evaluation import evaluation, logits_of
from .main_input import MainInput
from .passes import Batch, Inputs, batches, count, measure_metrics, run, selected

VALUE, NULL, TARGETS, REFERENCE = "value", "null", "targets", "reference"
BATCH_SIZE = 32  # sequences per forward pass; attention maps of long sequences need fewer


def respond(
    model: nn.Module,
    inputs: Any,
    metrics: Sequence[Metric],
    *,
    targets: Any = None,
    null_kind: str = "other inputs",
    draws: int = RANGE_DRAWS,
    batch_size: int = BATCH_SIZE,
    name: str | None = None,
    layers: str = "*",
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
) -> Result:
    """Computes metrics of a network on synthetic inputs.

    The network runs in evaluation mode and without gradients; its mode and the random state are restored.

    Args:
        model: network that takes float tokens ``[n, seq, dim]``, images ``[n, c, h, w]`` or ids ``[n, seq]``.
            A model of ``transformers`` receives the inputs as the keyword argument that its
            ``main_input_name`` names.
        inputs: inputs, a tensor or numpy array ``[n, ...]``, or several of them by the name of the argument;
            or, with no other keys, ``{"value": inputs, "null": null_inputs}``. The chance level is measured
            on the null inputs or, for several draws of the null, on each of a sequence of them.
        metrics: metrics to compute; they are reset first.
        targets: targets of the outputs, ``[n, ...]``: classes, next ids, or the outputs for other inputs.
            Metrics receive them as :attr:`.Activations.targets`; integers ``[n]`` also serve as labels.
        null_kind: description of the null inputs, for example "unrelated blocks".
        draws: number of draws of a null that a metric makes itself.
        batch_size: number of sequences per forward pass.
        name: value of the column ``model``. None: the name of the model's type.
        layers: glob over names of modules, see :func:`.probe`.
        special_ids, grid: see :func:`.probe`.
    Returns:
        The rows of the metrics on the value inputs. The null of a row has the values of the same row on the
        null inputs.
    Raises:
        ValueError: inputs and targets differ in length, the inputs are empty, "value" is missing, or the
            network has no argument of a name.
        NoAttention: a metric needs attention and the network has none.
    """
    parts = dict(inputs) if isinstance(inputs, Mapping) and not inputs.keys() - {VALUE, NULL} else None
    parts = {VALUE: inputs} if parts is None else parts
    if VALUE not in parts:
        names = ", ".join(map(str, parts)) or "none"
        raise ValueError(f'inputs must be a tensor or {{"value": ..., "null": ...}}, got the keys {names}')
    integers(batch_size=batch_size)
    nulls = parts.get(NULL, ())
    nulls = [nulls] if isinstance(nulls, Tensor | np.ndarray | Mapping) else list(nulls)
    values, *nulls = (_as_inputs(model, each) for each in (parts[VALUE], *nulls))
    targets = None if targets is None else as_tensor("targets", targets)
    for each in (values, *nulls):
        if not count(each) or (targets is not None and len(targets) != count(each)):
            raise ValueError(
                f"inputs and targets must have one entry per sequence, got {count(each)} and "
                f"{'no' if targets is None else len(targets)}"
            )
    title = type(model).__name__ if name is None else name
    known = {"layers": layers, "special_ids": special_ids, "grid": grid}
    options = {"targets": targets, "batch_size": batch_size, "name": title, **known}
    chance = [_measured(model, each, metrics, draws=0, **options) for each in nulls]
    rows = _measured(model, values, metrics, draws=draws, **options)
    settings = {
        "model": title,
        "layers": layers,
        "sequences": count(values),
        "null_kind": null_kind if nulls else "",
    }
    drawn = nulls_of(chance, null_kind)
    table = Table(replace(row, nulls=(drawn.get(place_of(row), row.null),)) for row in rows)
    return Result("respond", settings, table, {}, (), (), provenance())


def _as_inputs(model: nn.Module, inputs: Any) -> Inputs:
    """Converts inputs to tensors; those of a mapping are arguments of the network.

    Raises:
        ValueError: the network has no such argument, or the arguments differ in length.
    """
    if not isinstance(inputs, Mapping):
        return as_tensor("inputs", inputs)
    try:
        inspect.signature(type(model).forward).bind(model, **inputs)
    except TypeError as error:
        raise ValueError(
            f'inputs must be a tensor, the arguments of {type(model).__name__} by name, or {{"value": ..., '
            f'"null": ...}}, got the keys {", ".join(map(str, inputs)) or "none"} ({error})'
        ) from error
    tensors = {str(key): as_tensor(f"inputs {key!r}", value) for key, value in inputs.items()}
    if len({len(x) for x in tensors.values()}) > 1:
        lengths = ", ".join(f"{key} {len(x)}" for key, x in tensors.items())
        raise ValueError(f"inputs must have one entry per sequence in each array, got {lengths}")
    return tensors


def responses(
    model: nn.Module,
    theory: Theory,
    data: Tensor,
    *,
    limits: Mapping[str, int],
    generator: torch.Generator,
    name: str | None = None,
    batch_size: int = BATCH_SIZE,
) -> list[Measurement]:
    """Runs the tests of a theory, :attr:`.InNetworks.responses`, on one network.

    Args:
        model: network, see :func:`respond`.
        theory: theory whose tests run.
        data: inputs that the network accepts, ``[n, ...]``. Tests that read ids are left out if these are
            floats.
        limits: sizes that the synthetic inputs must not exceed: "length" of a sequence, "vocabulary", number
            of "sequences", of which no more are read from the data either.
        generator: random generator of the synthetic inputs.
        name: value of the column ``model``. None: the name of the model's type.
        batch_size: number of sequences per forward pass.
    Returns:
        The rows of all tests; the coordinate ``test`` is the name of the test.
    """
    rows: list[Measurement] = []
    for test in theory.in_networks.responses if theory.in_networks else ():
        if test.reads == "ids" and data.is_floating_point():
            continue
        main, options = MainInput(data), {"name": name, "batch_size": batch_size}
        rows += response(model, theory.name, test, main, limits=limits, generator=generator, **options)
    return rows


def response(
    model: nn.Module,
    theory: str,
    test: Response,
    main: MainInput,
    *,
    limits: Mapping[str, int],
    generator: torch.Generator,
    name: str | None = None,
    batch_size: int = BATCH_SIZE,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
) -> list[Measurement]:
    """Runs one test of a theory on one network, see :func:`responses`.

    Args:
        model, limits, generator, name, batch_size: see :func:`responses`.
        theory: name of the theory.
        test: the test.
        main: inputs that the network accepts.
        special_ids, grid: see :func:`.probe`.
    """
    data = main.data[: limits.get("sequences")]
    made = dict(test.inputs(data, limits, generator))
    targets, reference = made.pop(TARGETS, None), made.pop(REFERENCE, None)
    if reference is not None:
        targets = _outputs(model, main.inputs(reference), batch_size)
    inputs: dict[str, Any] = {VALUE: main.inputs(made[VALUE])}
    if (nulls := made.get(NULL)) is not None:
        nulls = [nulls] if isinstance(nulls, Tensor) else nulls
        inputs[NULL] = [main.inputs(each) for each in nulls]
    result = respond(
        model,
        inputs,
        test.metrics(),
        targets=targets,
        null_kind=test.null_kind,
        draws=test.draws,
        batch_size=batch_size,
        name=name,
        special_ids=special_ids,
        grid=grid,
    )
    at = {"test": test.name}
    return [replace(row, theory=theory, kind="in network", at={**at, **row.at}) for row in result.table]


def _outputs(model: nn.Module, inputs: Inputs, batch_size: int) -> Tensor:
    """Returns the outputs of a network for all inputs, on the CPU."""
    outputs: list[Tensor] = []
    with evaluation(model), torch.random.fork_rng():
        for batch in batches(inputs, None, batch_size):
            output = logits_of(run(model, batch.inputs))
            if output is None:
                raise ValueError(
                    f"{type(model).__name__} must return a tensor for a test with reference inputs, got none"
                )
            outputs.append(output.cpu())
    return torch.cat(outputs)


def _measured(
    model: nn.Module,
    inputs: Inputs,
    metrics: Sequence[Metric],
    *,
    draws: int,
    targets: Tensor | None,
    batch_size: int,
    name: str,
    **known: Any,
) -> list[Measurement]:
    """Measures the network once on all batches and returns the rows."""
    n = count(inputs)
    parts = (slice(start, start + batch_size) for start in range(0, n, batch_size))
    passes = (_with_targets(selected(inputs, part), targets, part) for part in parts)
    with torch.random.fork_rng():
        rows, unmeasured = measure_metrics(model, passes, metrics, name=name, draws=draws, n=n, **known)
    return [*rows, *unmeasured]


def _with_targets(inputs: Inputs, targets: Tensor | None, part: slice) -> Batch:
    """Returns inputs ``[batch, ...]`` with their targets; integers ``[batch]`` are labels as well."""
    if targets is None:
        return Batch(inputs)
    some = targets[part]
    return Batch(inputs, some if some.ndim == 1 and not some.is_floating_point() else None, some)


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
