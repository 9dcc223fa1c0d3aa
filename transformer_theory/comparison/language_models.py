"""The theories' quantities in a causal language model: metrics of its attention on ids, and responses to
synthetic inputs.

The metrics read sequences of the user's ids, or random ids, here and in randomised copies. The responses
(:attr:`.InNetworks.responses`) make their own inputs within the limits of the model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import first_line
from ..core.result import Result
from ..core.theory import Theory
from ..core.validation import integers
from ..data.ids import integer_tensor
from ..models.text_windows import LENGTH
from ..models.transformers_folder import LanguageModel, language_model
from ..models.user_model import checked
from ..probes.evaluation import evaluation, logits_of
from ..probes.main_input import IDS, main_input
from ..probes.passes import Inputs, count, run, selected
from .checks import check_weights, is_causal
from .user_models import SEQUENCES, label_settings, measure_user_model

if TYPE_CHECKING:
    from numpy import ndarray

MAX_IDS = 2**20  # largest number of random ids: attention maps of longer inputs do not fit into memory


def probe_language_model(
    model: LanguageModel | nn.Module,
    ids: "Tensor | ndarray | Mapping[str, Tensor] | None" = None,
    labels: Tensor | None = None,
    *,
    theories: Sequence[str | Theory] | None = None,
    length: int | None = None,
    sequences: int = SEQUENCES,
    seed: int = 0,
    described: str = "",
    causal: bool = True,
    special_ids: Collection[int] | None = None,
    **budget: Any,
) -> Result:
    """Measures a causal language model with the metrics and the responses of all theories that have any.

    Args:
        model: language model, see :func:`.read_language_model`; or a model of ``transformers``.
        ids: sequences ``[n, seq]``, or ``input_ids`` with masks and others by the name of the argument. None:
            ``sequences`` random sequences of ``length`` ids, uniform over the vocabulary.
        labels: class of each sequence, ``[n]``.
        theories: theories or their names. None: all.
        length: length of the random sequences, at least 2. None: :data:`LENGTH`, or the longest that the
            model takes if that is shorter.
        sequences: number of the random sequences.
        seed: seed of random ids, synthetic inputs and copies.
        described: the ids in words. Empty: "random ids" or "ids of the user".
        causal: whether a model that is not causal is refused. If not, it is measured without the tests that
            need a causal one.
        special_ids: see :func:`.probe`.
        budget: networks, memory, minutes, device, against, journal and progress, see
            :func:`.user_models.measure`.
    Returns:
        Rows of kind "in network" by layer and head, each with its null where there is one. A test that does
        not fit the limits of the model, such as blocks that are longer than its sequences, has one row with
        the reason.
    Raises:
        ValueError: the model has no vocabulary, is not causal or has weights that are not finite; ids lie
            outside its vocabulary or are longer than the model allows; or a number is too small.
    """
    known = model if isinstance(model, LanguageModel) else language_model(model)
    length = min(LENGTH, known.length or LENGTH) if length is None else length
    integers(length=length, sequences=sequences)
    data = _checked(ids, known, length, sequences, torch.Generator().manual_seed(seed))
    check_weights(known.network, known.name)
    outputs, limits = _limits(known, data, causal, special_ids)
    words = described or ("random ids" if ids is None else "ids of the user")
    settings: dict[str, Any] = {
        "inputs": f"{count(data)} sequences of {_lengths(data)} {words}",
        "length": _ids(data).shape[1],
        "vocabulary": known.vocabulary,
    }
    user = replace(checked(known.network, data, labels, name=known.name), folder=known.folder)
    if user.labels is not None:
        settings |= label_settings(known.network, data, user.labels, outputs)
    return measure_user_model(
        user,
        data,
        user.labels,
        limits=limits,
        theories=theories,
        seed=seed,
        settings=settings,
        special_ids=special_ids,
        **budget,
    )


def _checked(
    ids: Any, model: LanguageModel, length: int, sequences: int, generator: torch.Generator
) -> Inputs:
    """Returns sequences of ids ``[n, seq]`` that the model accepts, with the tensors that were given beside
    them.

    Raises:
        ValueError: ids lie outside the vocabulary, or sequences are too short or too long.
    """
    longest = model.length
    if ids is None:
        if length < 2 or (longest is not None and length > longest):
            limit = (
                "2" if longest is None else f"2 and at most {longest}, the longest sequence of {model.name}"
            )
            raise ValueError(f"length must be at least {limit}, got {length}")
        if sequences * length > MAX_IDS:
            raise ValueError(
                f"sequences and length must give at most {MAX_IDS:,} ids, got {sequences * length:,}; "
                "choose fewer"
            )
        return torch.randint(model.vocabulary, (sequences, length), generator=generator)
    given = ids[IDS] if isinstance(ids, Mapping) else ids
    data = integer_tensor(
        np.asarray(given) if not isinstance(given, Tensor) else given, "ids", shape="[n, seq]"
    )
    if data.shape[1] < 2 or (longest is not None and data.shape[1] > longest):
        limit = (
            "at least 2 per sequence"
            if longest is None
            else f"2 to {longest} per sequence, as {model.name} takes"
        )
        raise ValueError(f"ids must be {limit}, got {data.shape[1]}; cut them into windows")
    low, high = int(data.min()), int(data.max())
    if low < 0 or high >= model.vocabulary:
        wrong = low if low < 0 else high
        raise ValueError(
            f"ids must lie in [0, {model.vocabulary}), the vocabulary of {model.name}, got {wrong}; use its "
            "own tokenizer"
        )
    return {**ids, IDS: data} if isinstance(ids, Mapping) else data


def _ids(data: Inputs) -> Tensor:
    return data if isinstance(data, Tensor) else data[IDS]


def _lengths(data: Inputs) -> str:
    """Returns the number of ids of a sequence, or the smallest and the largest, without padding."""
    mask = None if isinstance(data, Tensor) else data.get("attention_mask")
    if mask is None:
        return str(_ids(data).shape[1])
    low, high = int(mask.sum(1).min()), int(mask.sum(1).max())
    return f"{low} to {high}" if low < high else str(high)


def _limits(
    model: LanguageModel, data: Inputs, causal: bool, special_ids: Collection[int] | None
) -> tuple[Tensor | None, dict[str, int]]:
    """Returns the outputs for the first sequence, and the sizes for tests on ids; none if the model is not
    causal.

    Raises:
        ValueError: the model raises on a sequence, or should be a causal language model and is none.
    """
    main = main_input(model.network, data, special_ids=special_ids)
    first = selected(data, slice(1)) if isinstance(main, str) else main.inputs(main.data[:1])
    try:
        with evaluation(model.network), torch.random.fork_rng():
            outputs = logits_of(run(model.network, first))
    except Exception as error:  # models raise errors of many kinds
        raise ValueError(
            f"{model.name} must run on ids {list(_ids(first).shape)}, but raised {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    if causal and (outputs is None or outputs.shape[:2] != _ids(first).shape):
        raise ValueError(
            f"{model.name} must return logits [n, seq, vocabulary], got none; pass a causal language model"
        )
    if isinstance(main, str) or (outputs is not None and not causal and outputs.shape[-1] < model.vocabulary):
        return outputs, {}  # features or the scores of classes
    if not is_causal(model.network, main, outputs):
        if causal:
            raise ValueError(
                f"{model.name} must be causal, but its last id changes earlier logits; pass a causal "
                "language model"
            )
        return outputs, {}
    return outputs, {"vocabulary": model.vocabulary, "length": model.length or _ids(data).shape[1]}
