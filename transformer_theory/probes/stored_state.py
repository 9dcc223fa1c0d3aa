"""The state of a probe as texts and tensors, for the checkpoints of a training.

A state is a flat dictionary of texts (JSON) and tensors, so that ``torch.load(..., weights_only=True)`` reads
it. Arrays are stored as the bytes of an ``.npy`` file, which keep their type.
"""

import base64
import contextlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.files import checked_line, checked_record
from ..core.measurement import Measurement
from ..core.metric import Metric
from ..core.reading import parse_json

State = dict[str, Any]
"""Texts and tensors by name."""
ARRAY, METRIC = "array ", "metric "  # beginnings of the names of tensors


def text_of(rows: Iterable[Measurement]) -> str:
    """Returns the rows as JSON lines."""
    return "".join(checked_line(row.to_json()) for row in rows)


def rows_of(text: str) -> list[Measurement]:
    """Returns the rows of JSON lines."""
    return [Measurement.from_json(checked_record(line, required=False)) for line in text.splitlines()]


def tensors_of(
    arrays: Mapping[int, Mapping[str, np.ndarray]], metrics: Sequence[Metric]
) -> dict[str, Tensor]:
    """Returns the arrays of all steps, and what the metrics keep for comparison with later measurements.

    Raises:
        ValueError: an array holds objects, or a key of a persistent state is not made of texts, numbers and
            tuples.
    """
    state = {
        f"{ARRAY}{step}/{name}": _bytes_of(array)
        for step, stored in arrays.items()
        for name, array in stored.items()
    }
    for number, metric in enumerate(metrics):
        for key, tensor in metric.persistent_state().items():
            try:
                name = json.dumps(key)
            except TypeError:
                raise ValueError(
                    f"keys of the persistent state of {type(metric).__name__} must be made of texts, numbers "
                    f"and tuples, got {type(key).__name__}"
                ) from None
            state[f"{METRIC}{number} {name}"] = tensor.detach().to("cpu", copy=True)
    return state


def arrays_of(state: Mapping[str, Any]) -> dict[int, dict[str, np.ndarray]]:
    """Returns the arrays of a state, by step."""
    arrays: dict[int, dict[str, np.ndarray]] = {}
    for full, tensor in state.items():
        if full.startswith(ARRAY):
            step, name = full.removeprefix(ARRAY).split("/", 1)
            stored = io.BytesIO(tensor.cpu().numpy().tobytes())
            arrays.setdefault(int(step), {})[name] = np.load(stored, allow_pickle=False)
    return arrays


def restore_metrics(metrics: Sequence[Metric], state: Mapping[str, Any]) -> None:
    """Resets the metrics and gives each its persistent state."""
    stored: list[dict[Any, Tensor]] = [{} for _ in metrics]
    for full, tensor in state.items():
        if full.startswith(METRIC):
            number, key = full.removeprefix(METRIC).split(" ", 1)
            stored[int(number)][_tuples(parse_json(key))] = tensor
    for metric, own in zip(metrics, stored, strict=True):
        metric.reset()
        metric.load_persistent_state(own)


def check_file(path: Path, end: int, last: int) -> None:
    """Checks that a file of rows belongs to a state: that it reaches to the position ``end``, and that only
    later steps than ``last`` follow there.

    Raises:
        ValueError: it does not.
    """
    content = path.read_bytes() if path.exists() else b""
    if len(content) < end:
        raise ValueError(
            f"{path} must hold the rows of the state, {end} bytes, got {len(content)}; put the file of that "
            "run there"
        )
    for line in content[end:].splitlines():
        with contextlib.suppress(ValueError):  # a line that was being written when the training ended
            step = parse_json(line).get("step", last)
            if step < last:
                break
    else:
        return
    raise ValueError(
        f"{path} holds rows of another run, from step {step}, after those of the state, until step {last}; "
        "move them to another file"
    )


def to_text(state: State) -> str:
    """Returns a state as one text, for programs that store JSON only; tensors are stored as in a
    ``.safetensors`` file.
    """
    from safetensors.torch import save

    texts = {name: value for name, value in state.items() if isinstance(value, str)}
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return json.dumps({"texts": texts, "tensors": base64.b64encode(save(tensors)).decode()})


def from_text(text: str) -> State:
    """Restores a state from :func:`to_text`."""
    from safetensors.torch import load

    parts = parse_json(text)
    return {**parts["texts"], **load(base64.b64decode(parts["tensors"]))}


def _bytes_of(array: np.ndarray) -> Tensor:
    stored = io.BytesIO()
    np.save(stored, array, allow_pickle=False)
    return torch.frombuffer(bytearray(stored.getvalue()), dtype=torch.uint8)


def _tuples(key: Any) -> Any:
    """Returns a key in which JSON's lists are tuples again."""
    return tuple(map(_tuples, key)) if isinstance(key, list) else key
