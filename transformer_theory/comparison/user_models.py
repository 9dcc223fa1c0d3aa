"""The theories' quantities in one network of a user, on the user's inputs.

Metrics measure every attention and every block in passes over the inputs, the tests of the theories
(:attr:`.InNetworks.responses`) make inputs of their own. Rows without a null of their own are compared with
networks of the same kind and random weights. A quantity that cannot be measured has one row with the reason.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import first_line
from ..core.measurement import Measurement, Null, Table
from ..core.result import Result, provenance
from ..core.statistics import HEADLINE_DRAWS, RANGE_DRAWS, UNTRAINED, nulls_of, over_heads, place_of, spaced
from ..core.theory import Theory
from ..data import Images
from ..metrics.class_token import TokenLayout
from ..metrics.networks import AttentionMaps
from ..models.user_model import UserModel, checked, untrained_network
from ..probes import NoAttention, probe
from ..probes.evaluation import evaluation, forward, logits_of
from ..probes.respond import responses
from ..theories import choose
from ..training.monitor import with_general
from .small_networks import metrics_of

Inputs = Tensor | Mapping[str, Tensor]

# sequences of ids, whose nulls cost most; images and tokens, fewer for a network above SMALL
SEQUENCES, IMAGES, FEW_IMAGES = 8, 128, 64
BATCH = 8  # sequences per forward pass: attention maps of a large model fill the memory soon
BATCH_IMAGES = 32
RESPONSE_SEQUENCES = 60  # of synthetic inputs: 20 sets of three where one set is the value
# parameters of a network up to which it is drawn anew 19 times, which permits a test; a larger one is drawn
# three times
SMALL = 5_000_000
FEW_UNTRAINED = 3  # each costs as much as the model itself
CAUSAL_RTOL = 1e-2  # largest relative change of earlier logits by the last id; half precision rounds to 4e-3
# sequences whose attention maps are stored, and the largest number of entries, 4 MiB
PICTURED, MAP_NUMBERS = 4, 2**20
BLOCKS = "of an image, a block of pixels stands for a token"
NEEDS_CAUSAL = "the test needs a causal language model, which returns logits for every id"


def probe_model(
    model: nn.Module | UserModel,
    inputs: Any = None,
    labels: Any = None,
    *,
    name: str | None = None,
    theories: Sequence[str | Theory] | None = None,
    max_samples: int | None = None,
    seed: int = 0,
    described: str = "",
    images: Images | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Measures a network with the metrics and the tests of all theories; ``report.write`` makes a page of the
    result.

    Args:
        model: network; an :class:`.UserModel` brings its inputs and labels.
        inputs: ids ``[n, seq]``, images ``[n, c, h, w]`` or tokens ``[n, seq, dim]``; or several of them by
            the name of the argument.
        labels: class of each sequence, ``[n]``, for quantities of classes.
        name: name of the network. None: the name of its type.
        theories: theories or their names. None: all.
        max_samples: largest number of sequences, evenly spaced. None: :func:`default_samples`.
        seed: seed of synthetic inputs and untrained networks.
        described: the inputs in words. Empty: their number and shape.
        images, progress: images before normalisation, for the pictures; receives a line per step.
    Returns:
        Rows of kind "in network" and "network" by layer and head, each with its null where there is one, and
        attention maps.
    Raises:
        ValueError: weights are not finite, inputs or labels do not fit (:func:`.checked`), the network raises
            on them, or it has neither attention nor a list of blocks.
    """
    if not isinstance(model, nn.Module | UserModel):
        raise ValueError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; build or load the network first"
        )
    own = (
        model
        if isinstance(model, UserModel)
        else checked(model, inputs, labels, name=name or type(model).__name__)
    )
    if own.inputs is None:
        raise ValueError(f"{own.name} must have inputs to be measured on, got none; pass a tensor [n, ...]")
    limit = max_samples or default_samples(own.network, ids=_are_ids(own.inputs))
    data, classes = (
        _chosen(own.inputs, limit),
        None if own.labels is None else own.labels[spaced(len(own.labels), limit)],
    )
    check_weights(own.network, own.name)
    outputs = _first_pass(own, data)
    causal = (
        isinstance(data, Tensor)
        and not data.is_floating_point()
        and is_causal(own.network, data[:1], outputs)
    )
    vocabulary = (
        max(int(data.max()) + 1, outputs.shape[-1])
        if causal and outputs is not None and isinstance(data, Tensor)
        else 0
    )
    limits = (
        {"vocabulary": vocabulary, "length": int(data.shape[1])}
        if causal and isinstance(data, Tensor)
        else {}
    )
    given = count(own.inputs)
    words = described or f"{'' if count(data) == given else f'{count(data):,} of '}{_described(own.inputs)}"
    settings = {"inputs": words, "labels": 0 if classes is None else len(classes.unique())}
    if (
        classes is not None
        and outputs is not None
        and outputs.ndim == 2
        and int(classes.max()) < outputs.shape[1]
    ):
        settings["right"] = _right(own.network, data, classes)
    return measure(
        own,
        data,
        classes,
        limits=limits,
        theories=theories,
        seed=seed,
        settings=settings,
        pictured=images,
        progress=progress,
    )


def measure(
    own: UserModel,
    data: Inputs,
    labels: Tensor | None,
    *,
    limits: Mapping[str, int],
    theories: Sequence[str | Theory] | None,
    seed: int,
    settings: Mapping[str, Any],
    pictured: Images | None = None,
    progress: Callable[[str], None],
) -> Result:
    """Measures a network on inputs that were checked.

    Args:
        own: the network with its name.
        data: inputs, tensors ``[n, ...]``.
        labels: class of each sequence, ``[n]``, or None.
        limits: "vocabulary" and "length" of a causal language model; empty for other networks, in which tests
            on ids do not run.
        theories, seed, progress: see :func:`probe_model`.
        settings: settings of the result that the caller knows.
        pictured: images of the inputs.
    """
    chosen = [theory for theory in choose(theories) if theory.in_networks]
    number = sum(parameter.numel() for parameter in own.network.parameters())
    title = f"metrics of {len(chosen)} theories"
    rows = passive(
        own.network,
        chosen,
        data,
        labels,
        own.name,
        draws=HEADLINE_DRAWS,
        progress=lambda done: progress(f"{title}, {done}"),
    )
    untrained: list[list[Measurement]] = []
    if any(row.null is None and row.value is not None for row in rows):
        networks = RANGE_DRAWS if number <= SMALL else FEW_UNTRAINED
        try:
            for index in range(networks):
                progress(f"untrained network {index + 1} of {networks}")
                drawn = untrained_network(own.network, seed + index)
                untrained.append(
                    passive(drawn, chosen, data, labels, own.name, draws=0, progress=lambda done: None)
                )
        except ValueError as error:
            reason = f"{str(error).rstrip('.')}: quantities without a null of their own stand alone"
            rows.append(
                Measurement("network", "network", "untrained networks", None, reason=reason, model=own.name)
            )
    draws: dict[tuple, Null] = nulls_of(untrained, UNTRAINED)
    rows = [row if row.null is not None else replace(row, nulls=(draws.get(place_of(row)),)) for row in rows]
    rows = [*_without_zeros(rows)]
    rows += _beside_untrained(chosen, rows, untrained)
    for theory in chosen:
        rows += _responses(own, theory, data, limits, seed, progress)
    maps, layout = ({}, {}) if isinstance(data, Mapping) else _maps(own, data, pictured)
    shape = {} if isinstance(data, Mapping) else {"shape": " × ".join(map(str, data.shape[1:]))}
    config = getattr(own.network, "config", None)
    parameter = next(own.network.parameters(), None)
    record = {
        "model": own.name,
        "class": type(own.network).__name__,
        "parameters": number,
        "sequences": count(data),
        **shape,
        **layout,
        "causal": bool(limits),
        "precision": "" if parameter is None else str(parameter.dtype).removeprefix("torch."),
        "attention": str(getattr(config, "_attn_implementation", None) or ""),
        "untrained_networks": len(untrained),
        "theories": [theory.name for theory in chosen],
        **settings,
        "seed": seed,
    }
    sources = tuple(dict.fromkeys(source for theory in chosen for source in theory.sources))
    return Result("probe", record, Table(rows), maps, sources=sources, provenance=provenance())


def _without_zeros(rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yields the rows, and one with the reason for a quantity that is 0 at every place, here and with random
    weights.

    Such are changes since an earlier measurement of the same network.
    """
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in rows:
        groups.setdefault((row.theory, row.quantity, row.setting), []).append(row)
    for group in groups.values():
        nulls = [
            row.null.draws if row.null is not None and row.null.kind == UNTRAINED else () for row in group
        ]
        if all(row.value == 0 and draws and not any(draws) for row, draws in zip(group, nulls)):
            reason = (
                "0 at every place, and also with random weights: one measurement of one network does not "
                "change it"
            )
            yield replace(group[0], value=None, nulls=(), layer=None, head=None, reason=reason)
        else:
            yield from group


def _beside_untrained(
    theories: Sequence[Theory], rows: Sequence[Measurement], untrained: Sequence[Sequence[Measurement]]
) -> Iterator[Measurement]:
    """Yields the mean of each headline that has a null of its own, beside networks with random weights;
    UNTRAINED is its setting.
    """
    for theory in theories:
        assert theory.in_networks is not None
        place = {"theory": theory.name, "quantity": theory.in_networks.headline, "at": {"setting": ""}}
        own = [row for row in Table(rows).select(**place) if row.value is not None and row.null is not None]
        if not own or own[0].null is None or own[0].null.kind == UNTRAINED:
            continue
        draws = [
            over_heads(found).value
            for each in untrained
            if (found := [r for r in Table(each).select(**place) if r.value is not None])
        ]
        if draws:
            null = Null(UNTRAINED, tuple(draw for draw in draws if draw is not None))
            yield replace(
                over_heads(own),
                layer=None,
                at={"setting": UNTRAINED},
                side=theory.in_networks.side,
                nulls=(null,),
                scope="training",
            )


def passive(
    network: nn.Module,
    theories: Sequence[Theory],
    data: Inputs,
    labels: Tensor | None,
    name: str,
    *,
    draws: int,
    progress: Callable[[str], None],
) -> list[Measurement]:
    """Measures the metrics of the theories and the general ones in forward passes on inputs, tensors ``[n,
    ...]``.

    Raises:
        ValueError: the network has neither attention nor a list of similar modules.
    """
    metrics = with_general(metrics_of(theories))
    number = count(data)
    for attempt in (metrics, [metric for metric in metrics if "attention" not in metric.kinds]):
        try:
            with (
                evaluation(network),
                torch.random.fork_rng(),
                probe(network, attempt, name=name, draws=draws) as p,
                p.together(),
            ):
                for start, batch in _batches(data):
                    progress(f"sequence {start + 1} of {number}")
                    p.labels = None if labels is None else labels[start : start + count(batch)]
                    _run(network, batch)
        except NoAttention as error:
            missing = Measurement("network", "network", "attention", None, reason=str(error), model=name)
            continue
        found = [*p.rows, *_named(p.silent(), p.rows, theories)]
        rows = [replace(row, n=number if row.n is None else row.n, step=None) for row in found]
        return rows if attempt is metrics else [missing, *rows]
    raise ValueError(f"{name} must have attention or a list of similar blocks to be measured, got neither")


def _named(
    silent: Iterable[Measurement], rows: Sequence[Measurement], theories: Sequence[Theory]
) -> Iterator[Measurement]:
    """Yields the rows of metrics that measured nothing, with their theory: its headline if that is missing,
    or the metric in words.
    """
    owners = {type(metric).__name__: theory for theory in theories for metric in metrics_of([theory])}
    kinds = {*owners, *(type(metric).__name__ for metric in with_general([]))}
    words = {kind: re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower() for kind in kinds}
    measured = {(row.theory, row.quantity) for row in rows}
    for row in silent:
        name, theory = words.get(row.quantity, row.quantity), owners.get(row.quantity)
        if theory is None or theory.in_networks is None:
            yield replace(row, quantity=name)
            continue
        headline = (theory.name, theory.in_networks.headline)
        if headline not in measured:
            measured.add(headline)
            name = headline[1]
        yield replace(row, theory=theory.name, kind="in network", quantity=name)


def default_samples(network: nn.Module, *, ids: bool) -> int:
    """Returns the largest number of inputs on which a network is measured if the user names none."""
    small = sum(parameter.numel() for parameter in network.parameters()) <= SMALL
    return SEQUENCES if ids else IMAGES if small else FEW_IMAGES


def count(data: Inputs) -> int:
    """Returns the number of sequences of inputs ``[n, ...]``."""
    return len(data) if isinstance(data, Tensor) else len(next(iter(data.values())))


def check_weights(network: nn.Module, name: str) -> None:
    """Checks that the weights of a network are finite.

    Raises:
        ValueError: a weight is NaN or infinite.
    """
    for key, weight in network.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ValueError(
                f"{name} must have finite weights, got NaN or infinity in {key}; use another checkpoint"
            )


def is_causal(network: nn.Module, sequence: Tensor, outputs: Tensor | None) -> bool:
    """Returns whether a network of ids returns logits for each of them that do not depend on later ids.

    Args:
        network: network of ids.
        sequence: one sequence ``[1, seq]``.
        outputs: its logits ``[1, seq, vocabulary]``, or another output.
    """
    if outputs is None or outputs.ndim != 3 or outputs.shape[:2] != sequence.shape or sequence.shape[1] < 2:
        return False
    if int(sequence.max()) >= outputs.shape[-1]:  # features, not logits over the vocabulary
        return False
    changed = sequence.clone()
    changed[:, -1] = (changed[:, -1] + 1) % (int(sequence.max()) + 1)
    if torch.equal(changed, sequence):
        changed[:, -1] = 1
    with evaluation(network), torch.random.fork_rng():
        other = logits_of(forward(network, changed))
    first, second = (
        outputs[:, :-1].float(),
        other[:, :-1].float() if other is not None else outputs[:, 1:].float(),
    )
    return float((first - second).abs().max()) <= CAUSAL_RTOL * float(first.abs().max())


def _first_pass(own: UserModel, data: Inputs) -> Tensor | None:
    """Runs the network on one sequence and returns its output; a ValueError names the error of the network."""
    one = next(_batches(_chosen(data, 1)))[1]
    shape = (
        list(one.shape)
        if isinstance(one, Tensor)
        else ", ".join(f"{key} {list(value.shape)}" for key, value in one.items())
    )
    try:
        with evaluation(own.network), torch.random.fork_rng():
            return logits_of(_run(own.network, one))
    except Exception as error:  # a network of a user raises errors of many kinds
        raise ValueError(
            f"{own.name} must run on inputs {shape}, but raised {type(error).__name__}: {first_line(error)}"
        ) from error


def _run(network: nn.Module, batch: Inputs) -> Any:
    return forward(network, batch) if isinstance(batch, Tensor) else network(**batch)


def _batches(data: Inputs) -> Iterator[tuple[int, Inputs]]:
    size = BATCH if _are_ids(data) else BATCH_IMAGES
    for start in range(0, count(data), size):
        if isinstance(data, Tensor):
            yield start, data[start : start + size]
        else:
            yield start, {key: value[start : start + size] for key, value in data.items()}


def _chosen(data: Inputs, limit: int) -> Inputs:
    """Returns at most ``limit`` sequences, evenly spaced."""
    indices = spaced(count(data), limit)
    return data[indices] if isinstance(data, Tensor) else {key: value[indices] for key, value in data.items()}


def _are_ids(data: Inputs) -> bool:
    tensors = [data] if isinstance(data, Tensor) else list(data.values())
    return not any(tensor.is_floating_point() for tensor in tensors)


def _described(data: Inputs) -> str:
    if isinstance(data, Mapping):
        return f"{count(data)} sequences of {', '.join(data)}"
    kind = (
        {2: "ids", 3: "tokens"}.get(data.ndim, "images")
        if not data.is_floating_point() or data.ndim != 2
        else "rows"
    )
    return (
        f"{len(data)} sequences of {data.shape[1]} ids"
        if kind == "ids"
        else f"{len(data)} {kind} of shape {list(data.shape[1:])}"
    )


def _responses(
    own: UserModel,
    theory: Theory,
    data: Inputs,
    limits: Mapping[str, int],
    seed: int,
    progress: Callable[[str], None],
) -> Iterator[Measurement]:
    """Yields the rows of a theory's tests; a test that does not fit the network has one row with the reason."""
    assert theory.in_networks is not None
    tests = theory.in_networks.responses
    if tests:
        progress(f"responses to synthetic inputs: {theory.title}")
    generator = torch.Generator().manual_seed(seed)
    for test in tests:
        reason = ""
        if not isinstance(data, Tensor):
            reason = "the tests change one tensor of inputs, and the network takes several"
        elif test.reads == "ids" and not limits:
            reason = NEEDS_CAUSAL
        if not reason and isinstance(data, Tensor):
            alone = replace(theory, in_networks=replace(theory.in_networks, responses=(test,)))
            sizes = {"length": data.shape[1]} if data.ndim == 3 else {}
            everything = {"sequences": RESPONSE_SEQUENCES, **sizes, **limits}
            try:
                rows = responses(
                    own.network, alone, data, limits=everything, generator=generator, name=own.name
                )
                yield from (replace(row, note=row.note or BLOCKS) for row in rows) if data.ndim > 3 else rows
            except Exception as error:
                # the test needs longer sequences, more ids, or inputs that the network refuses
                first = first_line(error)
                reason = (
                    first
                    if isinstance(error, ValueError)
                    else f"the network raised {type(error).__name__}: {first}"
                )
        if reason:
            yield Measurement(theory.name, "in network", test.name, None, reason=reason, model=own.name)


def _maps(
    own: UserModel, data: Tensor, images: Images | None
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Returns attention maps ``[1, layers, heads or 1, n, queries, keys]`` of the first sequences with their
    images in [0, 1], and the numbers of tokens and of class and register tokens in the first block.
    """
    recorder, layout = AttentionMaps(keep=PICTURED), TokenLayout()
    try:
        with evaluation(own.network), torch.random.fork_rng(), probe(own.network, [recorder, layout]):
            _run(own.network, next(_batches(data))[1])
    except NoAttention:
        return {}, {}
    numbers = {"tokens": layout.tokens, "leading": layout.leading or 0} if layout.tokens else {}
    maps = [recorder.sums[where].float().cpu().numpy().swapaxes(0, 1) for where in sorted(recorder.sums)]
    if not maps or len({array.shape for array in maps}) != 1:
        return {}, numbers
    stacked = np.stack(maps).astype(np.float32)
    # too large for two sequences: figures show the mean over heads
    if 2 * stacked[:, :, 0].size > MAP_NUMBERS:
        stacked = stacked.mean(1, keepdims=True)
    stacked = stacked[:, :, : MAP_NUMBERS * stacked.shape[2] // stacked.size]
    if not stacked.size:
        return {}, numbers
    arrays = {
        f"network/{own.name}/attention": stacked[None],
        f"network/{own.name}/steps": np.zeros(1, dtype=int),
    }
    if images is not None:
        arrays["network/images"] = images.pixels[:PICTURED].double().numpy() / 255
    elif data.ndim == 4 and data.shape[1] in (1, 3):
        # each image fills [0, 1], since its normalisation is not known
        pixels = data[:PICTURED].double()
        low, high = (
            bound.view(-1, 1, 1, 1) for bound in (pixels.flatten(1).amin(1), pixels.flatten(1).amax(1))
        )
        arrays["network/images"] = ((pixels - low) / (high - low).clamp(min=1e-12)).cpu().numpy()
    return arrays, numbers


def _right(network: nn.Module, data: Inputs, labels: Tensor) -> float:
    """Returns the share of sequences whose largest output is their label."""
    with evaluation(network), torch.random.fork_rng():
        found = [logits_of(_run(network, batch)) for _, batch in _batches(data)]
    largest = torch.cat([each.argmax(1).cpu() for each in found if each is not None])
    return float((largest == labels.cpu()).double().mean())
