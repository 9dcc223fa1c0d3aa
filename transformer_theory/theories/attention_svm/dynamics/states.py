"""Where a run stands: made by :func:`start` and its like, taken and returned by every kind of descent, saved and loaded.

A run of 100 steps is bit for bit a run of 40, a pause, and a run of 60; with :func:`save` and :func:`load` in the pause as well.

Source: random starts are those of the runs of :cite:t:`tarzanagh2023transformers`.
"""

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.files import replacing
from ..constraint_set import came
from ..problem import Instance
from .heads import HeadInstance
from .settings import check_steps


@dataclass(frozen=True)
class Carried:
    """What a run in the span of the data (:mod:`.spaces`) moves in place of W, so that it continues bit for bit.

    Attributes:
        origin: W where the run started, ``[trials, d, d_z]``.
        taken: the coefficients of what was taken off, ``[trials, n, T]``.
        values: the logits ``[trials, n, T]`` or images ``[trials, n, d]``.
        W: what all this amounts to, ``[*trials, d, d_z]``.
        tokens, query: the data of the run. With another W or other data, descent starts from W.
    """

    origin: Float[Tensor, "trials d d_z"]
    taken: Float[Tensor, "trials n T"]
    values: Float[Tensor, "trials n r"]
    W: Float[Tensor, "*trials d d_z"]
    tokens: Float[Tensor, "trials n T d"]
    query: Float[Tensor, "trials n d_z"]

    def belongs(self, W: Tensor, tokens: Tensor, query: Tensor) -> bool:
        """Whether the run was on these data ``[...]`` and came to this W."""
        return torch.equal(self.W, W) and torch.equal(self.tokens, tokens) and torch.equal(self.query, query)


CARRIED = tuple(f.name for f in fields(Carried) if f.name != "W")


@dataclass(frozen=True)
class State:
    """W ``[*trials, d, d_z]`` and the number of steps taken; ``carried`` is the run's own."""

    W: Float[Tensor, "*trials d d_z"]
    step: int = 0
    carried: Carried | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Factors:
    """The factors of W = K Q^T, ``[*trials, d, width]`` and ``[*trials, d_z, width]``, and the number of steps taken."""

    K: Float[Tensor, "*trials d width"]
    Q: Float[Tensor, "*trials d_z width"]
    step: int = 0

    @property
    def W(self) -> Float[Tensor, "*trials d d_z"]:
        """K Q^T."""
        return self.K @ self.Q.mT


def start(instance: Instance | HeadInstance, *, W: Tensor | None = None) -> State:
    """The state before the first step.

    Args:
        instance: the problems, one or a batch of trials.
        W: the weights, ``[*trials, d, d_z]``, float64; zero if not given.
    Returns:
        Those weights at step 0.
    Raises:
        ValueError: W has another shape or is not finite, inputs have a single token (nothing to select), or a trial has no query but zero.
        TypeError: no instance, or W is no tensor.
    """
    check_instance(instance)
    shape = (*instance.trials, instance.tokens.shape[-1], instance.query.shape[-1])
    state = State(instance.tokens.new_zeros(shape) if W is None else W)
    check_state(instance, state)
    return state


def random_start(instance: Instance | HeadInstance, *, generator: torch.Generator) -> State:
    """W with independent entries, uniform in plus or minus 1/sqrt(d): the usual initialisation of a linear layer.

    Raises:
        ValueError, TypeError: as :func:`start`.
    """
    check_instance(instance)
    return start(instance, W=_uniform(*instance.trials, instance.tokens.shape[-1], instance.query.shape[-1], generator=generator))


def random_factors(instance: Instance | HeadInstance, *, generator: torch.Generator, width: int | None = None) -> Factors:
    """K, then Q, with independent entries, uniform in plus or minus 1/sqrt(d) and 1/sqrt(d_z).

    Args:
        instance: the problems, one or a batch of trials.
        generator: of the random numbers.
        width: the number of columns, which bounds the rank of W; min(d, d_z), no bound at all, if None.
    Returns:
        Factors at step 0.
    Raises:
        ValueError: ``width`` is below one or not whole, or as :func:`start`.
        TypeError: ``width`` is no number, or as :func:`start`.
    """
    check_instance(instance)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]
    width = min(d, d_z) if width is None else width
    check_steps(width, "width", least=1)
    K = _uniform(*instance.trials, d, width, generator=generator)
    return Factors(K, _uniform(*instance.trials, d_z, width, generator=generator))


def save(state: State | Factors, path: str | os.PathLike[str]) -> None:
    """Writes a state to an npz file, in one stroke: a reader sees the old file or the new one, never half of it.

    Args:
        state: what a run returned.
        path: of the file, in a directory that exists.
    Raises:
        TypeError: it is no state.
    """
    if not isinstance(state, State | Factors):
        raise TypeError(f"state must be a State or Factors, got {came(state)}; start(instance, W=...) makes one of weights")
    path = Path(path)
    arrays = {f.name: np.asarray(getattr(state, f.name)) for f in fields(state) if f.name != "carried"}
    if isinstance(state, State) and state.carried is not None:
        arrays |= {f"carried_{name}": getattr(state.carried, name).numpy() for name in CARRIED}
    with replacing(path) as draft, draft.open("xb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def load(path: str | os.PathLike[str]) -> State | Factors:
    """The state that :func:`save` wrote, bit for bit; nothing is unpickled.

    Raises:
        ValueError: the file holds something else.
        FileNotFoundError: there is none.
    """
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, BadZipFile):  # numpy would have its reader unpickle what it does not know
        raise ValueError(
            f"{os.fspath(path)} must be an npz file of a saved State or Factors, got another kind; save(state, path) makes one"
        ) from None
    if isinstance(file, np.ndarray):
        raise ValueError(
            f"{os.fspath(path)} must be an npz file of a saved State or Factors, got a single array; save(state, path) makes one"
        )
    with file:
        held = {name: file[name] for name in file.files}
    step = int(held.pop("step", -1))
    weights = {name: torch.from_numpy(value) for name, value in held.items()}
    whole = all(f"carried_{name}" in weights for name in CARRIED)
    parts = {name: weights.pop(f"carried_{name}") for name in CARRIED} if whole else {}
    if step >= 0 and set(weights) == {"K", "Q"}:
        return Factors(**weights, step=step)
    if step >= 0 and set(weights) == {"W"}:
        return State(weights["W"], step, Carried(W=weights["W"], **parts) if whole else None)
    raise ValueError(f"{os.fspath(path)} must hold a saved State or Factors, got arrays named {sorted(held)}")


def check_instance(instance: Instance | HeadInstance) -> None:
    """Refuses what gives descent nothing to do.

    Raises:
        ValueError: inputs of one token, or no query but zero: no W changes any attention then.
        TypeError: it is no instance.
    """
    if not isinstance(instance, Instance | HeadInstance):
        raise TypeError(f"instance must be an Instance or a HeadInstance, got {came(instance)}; Instance(tokens, query, scores) makes one")
    if instance.tokens.shape[-2] < 2:
        raise ValueError("inputs must have at least two tokens, got one: there is nothing to select")
    if bool((instance.query == 0).flatten(-2).all(-1).any()):
        raise ValueError("every trial must have a query other than zero, got one with zeros alone: no W changes its attention")


def check_state(instance: Instance | HeadInstance, state: State | Factors) -> None:
    """Refuses weights ``[*trials, d, d_z]`` or factors that do not belong to the instance.

    Raises:
        ValueError: says what was expected and what came.
        TypeError: one of the two is something else.
    """
    check_instance(instance)
    if not isinstance(state, State | Factors):
        raise TypeError(f"state must be a State or Factors, got {came(state)}; start(instance, W=...) makes one of weights")
    rows = {"W": instance.tokens.shape[-1], "K": instance.tokens.shape[-1], "Q": instance.query.shape[-1]}
    for name in ("W",) if isinstance(state, State) else ("K", "Q"):
        value, columns = getattr(state, name), instance.query.shape[-1] if isinstance(state, State) else state.K.shape[-1]
        shape = (*instance.trials, rows[name], columns)
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {came(value)}")
        if tuple(value.shape) != shape or value.dtype != torch.float64:
            raise ValueError(f"{name} must be float64 {list(shape)}, got {came(value)}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} must be finite, got {int((~torch.isfinite(value)).sum())} NaN or infinite values")


def check_weights(instance: Instance | HeadInstance, state: State) -> None:
    """As :func:`check_state`, for descent that knows no factors.

    Raises:
        ValueError: as there.
        TypeError: as there, or the state holds factors.
    """
    if isinstance(state, Factors):
        raise TypeError("state must be a State, got Factors; start(instance, W=state.W) starts from their product")
    check_state(instance, state)


def _uniform(*shape: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) / shape[-2] ** 0.5
