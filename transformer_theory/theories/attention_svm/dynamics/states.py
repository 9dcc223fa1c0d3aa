"""The state of a run. :func:`start` creates it, every kind of descent maps a state to a state, and
:func:`save` and :func:`load` store it.

A run of 100 steps equals, bit for bit, a run of 40 steps followed by a run of 60, even if the state is saved
and loaded in between.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.files import replacing
from ....core.reading import check_file, read_arrays
from ....core.threads import single_threaded
from ....core.validation import as_float64, integers
from ..problem import Instance
from ..validation import check_real, check_shape, check_type
from .heads import HeadInstance

STATE_HINT = "start(instance, W=...) makes one of weights"
INSTANCE_HINT = "Instance(tokens, query, scores) makes one"


@dataclass(frozen=True)
class Carried:
    """The numbers that a run in the span of the data (:mod:`.spaces`) updates instead of W. They let it
    continue bit for bit.

    Attributes:
        origin: W at the start of the run, ``[trials, d, d_z]``.
        taken: sum of the coefficients of all steps so far, ``[trials, n, T]``.
        values: the logits ``[trials, n, T]`` or images ``[trials, n, d]``.
        W: the weights that follow from these numbers, ``[*trials, d, d_z]``.
        tokens, query: the data of the run. If W or the data differ, descent ignores these numbers and starts
            from W.
    """

    origin: Float[Tensor, "trials d d_z"]
    taken: Float[Tensor, "trials n T"]
    values: Float[Tensor, "trials n r"]
    W: Float[Tensor, "*trials d d_z"]
    tokens: Float[Tensor, "trials n T d"]
    query: Float[Tensor, "trials n d_z"]

    def belongs(self, W: Tensor, tokens: Tensor, query: Tensor) -> bool:
        """Returns whether the run used these tokens and queries and ended at this W."""
        return torch.equal(self.W, W) and torch.equal(self.tokens, tokens) and torch.equal(self.query, query)


@dataclass(frozen=True)
class Frame:
    r"""The numbers that a run on factors (:class:`~.spaces.Pair`) updates instead of Q. They let it continue
    bit for bit.

    With the basis V, the coordinates C, the share s and the rest R, :math:`Q = V C + s R`.

    Attributes:
        basis: orthonormal columns that span the queries, ``[trials, d_z, n]``.
        coordinates: C, ``[trials, n, width]``.
        share: s, ``[trials, 1, 1]``.
        rest: R, the part of the first Q outside the span of the queries, ``[trials, d_z, width]``.
        Q: the factor that follows from these numbers, ``[*trials, d_z, width]``.
        query: the queries of the run. If Q or the queries differ, descent ignores these numbers and starts
            from Q.
    """

    basis: Float[Tensor, "trials d_z n"]
    coordinates: Float[Tensor, "trials n width"]
    share: Float[Tensor, "trials 1 1"]
    rest: Float[Tensor, "trials d_z width"]
    Q: Float[Tensor, "*trials d_z width"]
    query: Float[Tensor, "trials n d_z"]

    def belongs(self, Q: Tensor, query: Tensor) -> bool:
        """Returns whether the run used these queries and ended at this Q."""
        return torch.equal(self.Q, Q) and torch.equal(self.query, query)


@dataclass(frozen=True)
class State:
    """W ``[*trials, d, d_z]`` and the number of steps so far; ``carried`` is internal to the run."""

    W: Float[Tensor, "*trials d d_z"]
    step: int = 0
    carried: Carried | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Factors:
    """The factors of W = K Q^T, ``[*trials, d, width]`` and ``[*trials, d_z, width]``, and the number of
    steps so far.
    """

    K: Float[Tensor, "*trials d width"]
    Q: Float[Tensor, "*trials d_z width"]
    step: int = 0
    carried: Frame | None = field(default=None, repr=False, compare=False)

    @property
    def W(self) -> Float[Tensor, "*trials d d_z"]:
        """The weights K Q^T."""
        return self.K @ self.Q.mT


Record = TypeVar("Record", bound="State | Factors | Carried | Frame")


def part_of(record: Record, trials: int, rows: slice) -> Record:
    """Returns a state, or its carried numbers, of the trials ``rows``; ``trials`` is the number of all
    trials.
    """
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = value.detach().reshape(trials, *value.shape[-3 if name == "tokens" else -2 :])[
                rows
            ]
        elif isinstance(value, Carried | Frame):
            values[name] = part_of(value, trials, rows)
    return type(record)(**values)


def joined(records: Sequence[Record], trials: tuple[int, ...]) -> Record:
    """Combines states of consecutive parts of the trials, or their carried numbers; ``trials`` is the shape
    of all trials.
    """
    first, values = records[0], {}
    for name in (f.name for f in fields(first)):
        column = [getattr(record, name) for record in records]
        if isinstance(column[0], Tensor):
            whole = torch.cat(column)
            column[0] = whole.reshape(*trials, *whole.shape[1:]) if name in ("W", "K", "Q") else whole
        elif isinstance(column[0], Carried | Frame):
            column[0] = joined(column, trials)
        values[name] = column[0]
    return type(first)(**values)


@single_threaded
def start(instance: Instance | HeadInstance, *, W: Float[Tensor, "*trials d d_z"] | None = None) -> State:
    """Returns the state before the first step.

    Args:
        instance: the problems, one or a batch of trials.
        W: initial weights, ``[*trials, d, d_z]``. None: zero.
    Returns:
        The initial weights as the state at step 0.
    Raises:
        ValueError: W has a wrong shape or is not finite, inputs have a single token (nothing to select), or
            all queries of a trial are zero.
        TypeError: ``instance`` is not an instance, or W is not a tensor or array.
    """
    check_instance(instance)
    shape = (*instance.trials, instance.tokens.shape[-1], instance.query.shape[-1])
    state = State(instance.tokens.new_zeros(shape) if W is None else as_float64("W", W))
    check_state(instance, state)
    return state


@single_threaded
def random_start(instance: Instance | HeadInstance, *, generator: torch.Generator) -> State:
    """Draws W with independent entries, uniform between -1/sqrt(d) and 1/sqrt(d), a common initialisation of
    linear layers.

    Raises:
        ValueError, TypeError: as for :func:`start`.
    """
    check_instance(instance)
    return start(
        instance,
        W=_uniform(
            *instance.trials, instance.tokens.shape[-1], instance.query.shape[-1], generator=generator
        ),
    )


@single_threaded
def random_factors(
    instance: Instance | HeadInstance, *, generator: torch.Generator, width: int | None = None
) -> Factors:
    """Draws K, then Q, with independent uniform entries: between plus and minus 1/sqrt(d) in K, and
    1/sqrt(d_z) in Q.

    Args:
        instance: the problems, one or a batch of trials.
        generator: random generator of the entries.
        width: number of columns, which bounds the rank of W. None: min(d, d_z), which allows every rank.
    Returns:
        The factors at step 0.
    Raises:
        ValueError: as for :func:`start`, or ``width`` is below one.
        TypeError: as for :func:`start`, or ``width`` is not an integer.
    """
    check_instance(instance)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]
    width = min(d, d_z) if width is None else width
    integers(width=width)
    K = _uniform(*instance.trials, d, width, generator=generator)
    return Factors(K, _uniform(*instance.trials, d_z, width, generator=generator))


def save(state: State | Factors, path: str | os.PathLike[str]) -> None:
    """Writes a state to an npz file atomically: a reader sees either the old or the new file.

    Args:
        state: state from :func:`start` or from a run.
        path: output file, in an existing directory.
    Raises:
        TypeError: ``state`` is not a state.
    """
    check_type("state", state, State, Factors, hint=STATE_HINT)
    arrays = {f.name: np.asarray(getattr(state, f.name)) for f in fields(state) if f.name != "carried"}
    if state.carried is not None:
        arrays |= {
            f"carried_{f.name}": getattr(state.carried, f.name).numpy()
            for f in fields(state.carried)
            if f.name not in arrays
        }
    with replacing(Path(path)) as draft, draft.open("xb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def load(path: str | os.PathLike[str]) -> State | Factors:
    """Reads the state that :func:`save` wrote, bit for bit. Nothing is unpickled.

    Raises:
        ValueError: the file does not contain a state.
        FileNotFoundError: the file does not exist.
    """
    requirement = f"{os.fspath(path)} must be an npz file of a saved State or Factors"
    check_file(Path(path))
    try:
        arrays = read_arrays(Path(path))
    except ValueError as error:
        raise ValueError(f"{requirement}, got {error}; save(state, path) makes one") from None
    step = int(arrays.pop("step", -1))
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    if step >= 0 and set(tensors) >= {"K", "Q"}:
        K, Q = tensors.pop("K"), tensors.pop("Q")
        return Factors(K, Q, step, _carried(path, Frame, tensors, Q=Q))
    if step >= 0 and "W" in tensors:
        W = tensors.pop("W")
        return State(W, step, _carried(path, Carried, tensors, W=W))
    raise ValueError(
        f"{os.fspath(path)} must hold a saved State or Factors, got arrays named {sorted(arrays)}"
    )


def _carried(path: str | os.PathLike[str], kind: Any, tensors: dict[str, Tensor], **weights: Tensor) -> Any:
    """Returns the carried numbers of a file, or None if it has none.

    Raises:
        ValueError: the file has other arrays, or not all of them.
    """
    names = [f.name for f in fields(kind) if f.name not in weights]
    if not tensors:
        return None
    if set(tensors) != {f"carried_{name}" for name in names}:
        expected = ", ".join(f"carried_{name}" for name in names)
        raise ValueError(
            f"{os.fspath(path)} must hold a saved state with arrays {expected} or none of these, got "
            f"{sorted(tensors)}"
        )
    return kind(**{name: tensors[f"carried_{name}"] for name in names}, **weights)


def check_instance(instance: Instance | HeadInstance, *kinds: type) -> None:
    """Checks that descent can change the attention.

    Args:
        kinds: accepted classes of instances; all classes if none is passed.
    Raises:
        ValueError: inputs have a single token, or all queries of a trial are zero, so that its attention is
            the same for every W.
        TypeError: the instance is not of these classes.
    """
    check_type("instance", instance, *(kinds or (Instance, HeadInstance)), hint=INSTANCE_HINT)
    if instance.tokens.shape[-2] < 2:
        raise ValueError("inputs must have at least two tokens, got one: there is nothing to select")
    if bool((instance.query == 0).flatten(-2).all(-1).any()):
        raise ValueError(
            "every trial must have a non-zero query, got a trial with zero queries only: no W changes its "
            "attention"
        )


def check_state(instance: Instance | HeadInstance, state: State | Factors, *kinds: type) -> None:
    """Checks that weights ``[*trials, d, d_z]`` or factors belong to the instance.

    Args:
        kinds: accepted classes of states; both classes if none is passed.
    Raises:
        ValueError: a tensor has a wrong shape or dtype, or a value is not finite.
        TypeError: ``instance`` is not an instance, or the state is not of these classes.
    """
    check_instance(instance)
    check_type("state", state, *(kinds or (State, Factors)), hint=STATE_HINT)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]
    if isinstance(state, State):
        parts = {"W": (state.W, d, d_z)}
    else:
        width = state.K.shape[-1] if isinstance(state.K, Tensor) and state.K.ndim else 0
        parts = {"K": (state.K, d, width), "Q": (state.Q, d_z, width)}
    for name, (value, *matrix) in parts.items():
        shape = (*instance.trials, *matrix)
        check_real(name, value, str(list(shape)), len(shape))
        check_shape(name, value, shape)


def _uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Draws independent entries, uniform between plus and minus 1/sqrt(number of rows)."""
    return (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) / shape[-2] ** 0.5
