r"""Constraints on attention weights: the one form that every problem of this room takes.

.. math:: d_c^\top W z_c \;\ge\; b_c \quad\text{or}\quad d_c^\top W z_c = b_c, \qquad c = 1, \dots, m,

with a difference of two tokens :math:`d_c`, a query :math:`z_c` and a number :math:`b_c` (one, unless said otherwise). Cross-, self- and
causal attention, prompts, several tokens an input and graphs differ in which differences and queries they list (:mod:`.builders`);
solvers see the list only. Several problems with the same number of constraints are one batch: the tensors have leading dimensions.

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers` is the case :math:`d = x_{i,a_i} - x_{i,t}`, :math:`z = z_i`,
:math:`\ge 1`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, init=False)
class Constraints:
    r"""m linear constraints :math:`d_c^\top W z_c \ge b_c` (or :math:`=`) on a matrix W ``[d_x, d_z]``; a batch of such problems if there
    are leading dimensions. Data that are being trained are kept without their history: no solver has a derivative.

    Attributes:
        difference: :math:`d_c`, ``[*batch, m, d_x]``, float64.
        query: :math:`z_c`, ``[*batch, m, d_z]``, float64.
        rhs: :math:`b_c`, ``[*batch, m]``; ones if not given.
        equality: where the constraint is an equation, ``[*batch, m]``; nowhere if not given.
        input: i of each constraint, for messages, ``[*batch, m]``; 0, 1, ... if not given.
        token: t of each constraint, for messages, ``[*batch, m]``; 0 if not given.
        position: of the query within its input, for messages, ``[*batch, m]``; 0 if not given.

    Raises:
        TypeError: not a tensor.
        ValueError: wrong rank, length or type of the entries, or a value that is not finite.
    """

    difference: Float[Tensor, "*batch m d_x"]
    query: Float[Tensor, "*batch m d_z"]
    rhs: Float[Tensor, "*batch m"]
    equality: Bool[Tensor, "*batch m"]
    input: Int[Tensor, "*batch m"]
    token: Int[Tensor, "*batch m"]
    position: Int[Tensor, "*batch m"]

    def __init__(
        self,
        difference: Float[Tensor, "*batch m d_x"],
        query: Float[Tensor, "*batch m d_z"],
        *,
        rhs: Float[Tensor, "*batch m"] | None = None,
        equality: Bool[Tensor, "*batch m"] | None = None,
        input: Int[Tensor, "*batch m"] | None = None,
        token: Int[Tensor, "*batch m"] | None = None,
        position: Int[Tensor, "*batch m"] | None = None,
    ):
        """The constraints with what is not given filled in."""
        check_real(difference, "difference", "[..., m, d_x]", max(2, getattr(difference, "ndim", 2)))
        check_real(query, "query", "[..., m, d_z]", difference.ndim)
        shape = difference.shape[:-1]
        if query.shape[:-1] != shape:
            raise ValueError(f"query must have one row a constraint, {list(shape)}, got {list(query.shape[:-1])}")
        none = torch.zeros(shape, dtype=torch.long)
        values = {
            "difference": difference,
            "query": query,
            "rhs": difference.new_ones(shape) if rhs is None else rhs,
            "equality": none.bool() if equality is None else equality,
            "input": torch.arange(shape[-1]).expand(shape) if input is None else input,
            "token": none if token is None else token,
            "position": none if position is None else position,
        }
        check_real(values["rhs"], "rhs", f"{list(shape)} of float64", len(shape))
        for name, value in values.items():
            if name in ("difference", "query"):
                continue
            kind = {"rhs": "float64", "equality": "booleans"}.get(name, "integers")
            check_tensor(value, name, f"{list(shape)} of {kind}")
            if value.shape != shape or value.is_floating_point() != (name == "rhs") or (value.dtype == torch.bool) != (name == "equality"):
                raise ValueError(f"{name} must be a tensor {list(shape)} of {kind}, got {came(value)}")
        for name, value in values.items():
            object.__setattr__(self, name, value.detach() if value.requires_grad else value)

    def __repr__(self) -> str:
        """Sizes, in one line."""
        sizes = f"m={len(self)}, d_x={self.difference.shape[-1]}, d_z={self.query.shape[-1]}, equations={int(self.equality.sum())}"
        return f"Constraints({sizes}{f', batch={list(self.batch)}' if self.batch else ''})"

    def __len__(self) -> int:
        """m, the number of constraints of a problem."""
        return self.difference.shape[-2]

    @property
    def batch(self) -> tuple[int, ...]:
        """Shape of the batch of problems; () for a single one."""
        return tuple(self.difference.shape[:-2])

    def problem(self, index) -> "Constraints":
        """One problem (or several) of a batch."""
        return Constraints(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def take(self, index: Tensor | slice) -> "Constraints":
        """The constraints at ``index`` of a single problem."""
        if self.batch:
            raise ValueError(f"take() picks constraints of one problem, got a batch {list(self.batch)}; pick a problem first")
        return self.problem(index)

    def gram(self) -> Float[Tensor, "*batch m m"]:
        r"""Inner products :math:`\langle d_c z_c^\top, d_e z_e^\top\rangle = (d_c^\top d_e)(z_c^\top z_e)`: all that a rotation leaves
        alone."""
        return (self.difference @ self.difference.mT) * (self.query @ self.query.mT)

    def margins(self, W: Float[Tensor, "*batch d_x d_z"]) -> Float[Tensor, "*batch m"]:
        r""":math:`d_c^\top W z_c`, to be held against ``rhs``."""
        return ((self.difference @ W) * self.query).sum(-1)

    def combine(self, weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch d_x d_z"]:
        r""":math:`\sum_c \lambda_c d_c z_c^\top`."""
        return (self.difference * weights[..., None]).mT @ self.query

    def names(self, index: int) -> tuple[int, int]:
        """(input, token) of one constraint of a single problem."""
        return int(self.input[index]), int(self.token[index])


def stack(problems: Sequence[Constraints]) -> Constraints:
    """A batch of single problems. Shorter ones are filled up with constraints that hold whatever W is: 0 >= -1.

    Args:
        problems: B of them, of any lengths, on matrices of one shape.
    Returns:
        The batch ``[B, m]`` with the m of the longest.
    Raises:
        TypeError: a problem that is not :class:`Constraints`.
        ValueError: no problem, or problems on matrices of different shapes.
    """
    if isinstance(problems, Constraints):
        raise TypeError(f"problems must be a sequence of single problems, got {problems}; a batch need not be stacked")
    for one in problems:
        check_constraints(one, "every problem")
    if not problems:
        raise ValueError("problems must hold at least one, got none")
    longest = max(len(one) for one in problems)

    def column(name: str, filler: float) -> Tensor:
        values = [getattr(one, name) for one in problems]
        padded = values[0].new_full((len(values), longest, *values[0].shape[1:]), filler)
        for row, value in zip(padded, values):
            row[: len(value)] = value
        return padded

    if len({(one.difference.shape[-1], one.query.shape[-1], one.batch) for one in problems}) > 1 or problems[0].batch:
        raise ValueError("problems must be single ones on matrices of one shape; stack those of each shape by themselves")
    return Constraints(**{field.name: column(field.name, -1 if field.name == "rhs" else 0) for field in fields(Constraints)})


def check_constraints(value, name: str = "constraints") -> None:
    """Refuses what is not :class:`Constraints`.

    Raises:
        TypeError: says what came and which functions make constraints.
    """
    if not isinstance(value, Constraints):
        raise TypeError(f"{name} must be Constraints, got {came(value)}; constraints(tokens, query, select) makes them")


def check_tensor(value, name: str, wanted: str) -> None:
    """Refuses what is not a tensor ``[...]``.

    Raises:
        TypeError: says what was expected and what came.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor {wanted}, got {came(value)}; torch.as_tensor makes one")


def check_real(value, name: str, wanted: str, ndim: int) -> None:
    """Refuses what is not a finite float64 tensor ``[...]`` of this rank.

    Raises:
        TypeError: not a tensor.
        ValueError: says what was expected and what came.
    """
    check_tensor(value, name, wanted)
    if value.ndim != ndim:
        raise ValueError(f"{name} must be a tensor {wanted}, got {came(value)}")
    if value.dtype != torch.float64:
        raise ValueError(f"{name} must be float64 (margins are compared to 1e-12), got {value.dtype}; convert with .double()")
    if not math.isfinite(float(value.detach().sum())) and not bool(torch.isfinite(value).all()):  # a sum is cheaper, and may only overflow
        raise ValueError(f"{name} must be finite, got {int((~torch.isfinite(value)).sum())} NaN or infinite values of {value.numel()}")


def check_whole(value, name: str, shape: Sequence[int]) -> None:
    """Refuses what is not a tensor of integers of this shape ``[...]``.

    Raises:
        TypeError: not a tensor.
        ValueError: says what was expected and what came.
    """
    shape = list(shape)
    check_tensor(value, name, f"{shape} of integers")
    if value.dtype not in (torch.int64, torch.int32) or value.ndim != len(shape):  # torch takes no others as positions
        raise ValueError(f"{name} must be a tensor {shape} of integers, got {came(value)}; .long() makes them such")
    if list(value.shape) != shape:
        got = f"length {shape[0]}, got {len(value)}" if len(shape) == 1 else f"shape {shape}, got {list(value.shape)}"
        raise ValueError(f"{name} must have {got}")


def came(value) -> str:
    """What came, for messages: type and shape of a tensor ``[...]``, else the type's name."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
