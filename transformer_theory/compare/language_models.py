"""The theories' quantities in a causal language model: metrics of its attention on ids, and responses to synthetic inputs.

The metrics read sequences of the user's ids, or random ids. Rows without a null of their own are compared with networks of the same
configuration and random weights. The responses (:attr:`.InNetworks.responses`) make their own inputs within the limits of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.measurement import Measurement, Table
from ..core.result import Result, provenance
from ..core.statistics import RANGE_DRAWS, UNTRAINED, nulls_of, place_of
from ..core.theory import Theory
from ..core.validation import integers
from ..data.ids import integer_tensor
from ..models.transformers_folder import LanguageModel, language_model
from ..probes import probe
from ..probes.evaluation import evaluation, forward, logits_of
from ..probes.respond import responses
from ..theories import choose

if TYPE_CHECKING:
    from numpy import ndarray

CAUSAL_RTOL = 1e-2  # largest relative change of earlier logits by the last id; half precision rounds to 4e-3
BATCH = 8  # sequences per forward pass: attention maps of a large model fill the memory soon
LENGTH, SEQUENCES = 64, 8  # of the random sequences; some nulls cost several seconds per sequence of a model of 124 million parameters
RESPONSE_SEQUENCES = 60  # of synthetic inputs: 20 sets of three where one set is the value
UNTRAINED_NETWORKS = 3  # each costs as much as the model itself


def probe_language_model(
    model: LanguageModel | nn.Module,
    ids: "Tensor | ndarray | None" = None,
    *,
    theories: Sequence[str | Theory] | None = None,
    length: int | None = None,
    sequences: int = SEQUENCES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Measures a causal language model with the metrics and the responses of all theories that have any.

    Args:
        model: language model, see :func:`.read_language_model`; or a model of ``transformers``.
        ids: sequences ``[n, seq]``. None: ``sequences`` random sequences of ``length`` ids, uniform over the vocabulary.
        theories: theories or their names. None: all.
        length: length of the random sequences, at least 2. None: :data:`LENGTH`, or the longest that the model takes if that is shorter.
        sequences: number of the random sequences.
        seed: seed of random ids, synthetic inputs and untrained networks.
        progress: receives a line per step.
    Returns:
        Rows of kind "in network" by layer and head, each with its null where there is one. A test that does not fit the limits of the
        model, such as blocks that are longer than its sequences, has one row with the reason.
    Raises:
        ValueError: the model has no vocabulary, is not causal or has weights that are not finite; ids lie outside its vocabulary or are
            longer than the model allows; or a number is too small.
    """
    described = model if isinstance(model, LanguageModel) else language_model(model)
    length = min(LENGTH, described.length or LENGTH) if length is None else length
    integers(length=length, sequences=sequences)
    generator = torch.Generator().manual_seed(seed)
    data = _checked(ids, described, length, sequences, generator)
    _check_network(described, data[:1])
    chosen = [theory for theory in choose(theories) if theory.in_networks]
    progress(f"metrics of {len(chosen)} theories on {len(data)} sequences of {data.shape[1]} ids")
    rows = _passive(described.network, chosen, data, described.name, draws=RANGE_DRAWS)
    chance = []
    if any(row.null is None and row.value is not None for row in rows) and hasattr(described.network, "config"):
        for number in range(UNTRAINED_NETWORKS):
            progress(f"untrained network {number + 1} of {UNTRAINED_NETWORKS}")
            chance.append(_passive(described.untrained(seed + number), chosen, data, described.name, draws=0))
    draws = nulls_of(chance, UNTRAINED)
    rows = [row if row.null is not None else replace(row, null=draws.get(place_of(row))) for row in rows]
    limits = {"vocabulary": described.vocabulary, "length": described.length or data.shape[1], "sequences": RESPONSE_SEQUENCES}
    for theory in chosen:
        if theory.in_networks is not None and theory.in_networks.responses:
            progress(f"responses to synthetic inputs: {theory.title}")
            own = torch.Generator().manual_seed(seed)
            for test in theory.in_networks.responses:
                alone = replace(theory, in_networks=replace(theory.in_networks, responses=(test,)))
                try:
                    rows += responses(described.network, alone, data, limits=limits, generator=own, name=described.name)
                except ValueError as error:  # the test needs longer sequences or more ids than the model has
                    rows.append(Measurement(theory.name, "in network", test.name, None, reason=str(error), model=described.name))
    settings: dict[str, Any] = {
        "model": described.name,
        "ids": "random ids" if ids is None else "ids of the user",
        "sequences": len(data),
        "length": data.shape[1],
        "vocabulary": described.vocabulary,
        "seed": seed,
    }
    sources = tuple(dict.fromkeys(source for theory in chosen for source in theory.sources))
    return Result("probe", settings, Table(rows), sources=sources, provenance=provenance())


def _checked(ids: Any, model: LanguageModel, length: int, sequences: int, generator: torch.Generator) -> Tensor:
    """Returns sequences of ids ``[n, seq]`` that the model accepts.

    Raises:
        ValueError: ids lie outside the vocabulary, or sequences are too short or too long.
    """
    longest = model.length
    if ids is None:
        if length < 2 or (longest is not None and length > longest):
            limit = "2" if longest is None else f"2 and at most {longest}, the longest sequence of {model.name}"
            raise ValueError(f"length must be at least {limit}, got {length}")
        return torch.randint(model.vocabulary, (sequences, length), generator=generator)
    data = integer_tensor(np.asarray(ids) if not isinstance(ids, Tensor) else ids, "ids", shape="[n, seq]")
    if data.shape[1] < 2 or (longest is not None and data.shape[1] > longest):
        limit = "at least 2 per sequence" if longest is None else f"2 to {longest} per sequence, as {model.name} takes"
        raise ValueError(f"ids must be {limit}, got {data.shape[1]}; cut them into windows")
    low, high = int(data.min()), int(data.max())
    if low < 0 or high >= model.vocabulary:
        wrong = low if low < 0 else high
        raise ValueError(f"ids must lie in [0, {model.vocabulary}), the vocabulary of {model.name}, got {wrong}; use its own tokenizer")
    return data


def _check_network(model: LanguageModel, sequence: Tensor) -> None:
    """Checks that the weights of a model are finite, and that the logits of earlier ids do not depend on the last id.

    Raises:
        ValueError: one of them is not so.
    """
    for name, weight in model.network.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{model.name} must have finite weights, got NaN or infinity in {name}; use another checkpoint")
    changed = sequence.clone()
    changed[:, -1] = (changed[:, -1] + 1) % model.vocabulary
    with evaluation(model.network), torch.random.fork_rng():
        outputs = [logits_of(forward(model.network, ids)) for ids in (sequence, changed)]
    if outputs[0] is None or outputs[1] is None or outputs[0].shape[:2] != sequence.shape:
        raise ValueError(f"{model.name} must return logits [n, seq, vocabulary], got none; pass a causal language model")
    first, second = (output[:, :-1].float() for output in outputs if output is not None)
    if float((first - second).abs().max()) > CAUSAL_RTOL * float(first.abs().max()):
        raise ValueError(f"{model.name} must be causal, but its last id changes earlier logits; pass a causal language model")


def _passive(network: nn.Module, theories: Sequence[Theory], data: Tensor, name: str, *, draws: int) -> list[Measurement]:
    """Measures the metrics of the theories in forward passes on the ids; rows that need labels have no value."""
    metrics = [metric for theory in theories if theory.in_networks for metric in theory.in_networks.metrics()]
    if not metrics:
        return []
    with evaluation(network), torch.random.fork_rng(), probe(network, metrics, name=name, draws=draws) as p, p.together():
        for start in range(0, len(data), BATCH):
            forward(network, data[start : start + BATCH])
    return [replace(row, n=len(data) if row.n is None else row.n, step=None) for row in [*p.rows, *p.silent()]]
