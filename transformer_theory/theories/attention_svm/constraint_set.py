r"""Constraints on attention weights: the form in which every problem of this theory reaches a solver.

.. math:: d_c^\top W z_c \;\ge\; b_c \quad\text{or}\quad d_c^\top W z_c = b_c, \qquad c = 1, \dots, m,

with a difference of two tokens :math:`d_c`, a query :math:`z_c` and a right-hand side :math:`b_c` (one unless set). Cross-, self- and
causal attention, prompts, several selected tokens per input and token-priority graphs differ only in the differences and queries that they
list (:mod:`.builders`). Several problems with the same number of constraints form a batch: all tensors then have leading dimensions.

Problem (Att-SVM) of :cite:t:`tarzanagh2023transformers` is the case :math:`d = x_{i,a_i} - x_{i,t}`, :math:`z = z_i`, :math:`\ge 1`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import as_float64, as_int64
from .validation import as_bool, check_real, check_shape, check_type

HINT = "constraints(tokens, query, select) makes them"


@dataclass(frozen=True, init=False)
class Constraints:
    r"""m linear constraints :math:`d_c^\top W z_c \ge b_c` (or :math:`=`) on a matrix W ``[d_x, d_z]``, or a batch of such problems.

    Numpy arrays, float32 and integers are converted. Tensors that require a gradient are detached: no solver is differentiable.

    Attributes:
        difference: :math:`d_c`, ``[*batch, m, d_x]``, float64.
        query: :math:`z_c`, ``[*batch, m, d_z]``, float64.
        rhs: :math:`b_c`, ``[*batch, m]``; ones by default.
        equality: where the constraint is an equation, ``[*batch, m]``; nowhere by default.
        input, token, position: i, t and the position of the query within its input, ``[*batch, m]``, for messages. Defaults: 0, 1, ... for
            the input, 0 for the others.

    Raises:
        TypeError: an argument that is no tensor or array.
        ValueError: wrong rank or shape, or a value that is not finite.
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
        """Fills in the defaults and checks the shapes."""
        difference, query = as_float64("difference", difference), as_float64("query", query)
        check_real("difference", difference, "[..., m, d_x]", max(2, difference.ndim))
        check_real("query", query, "[..., m, d_z]", difference.ndim)
        shape = difference.shape[:-1]
        if query.shape[:-1] != shape:
            raise ValueError(f"query must have one row per constraint, {list(shape)}, got {list(query.shape[:-1])}")
        rhs = difference.new_ones(shape) if rhs is None else as_float64("rhs", rhs)
        check_real("rhs", rhs, f"{list(shape)} of float64", len(shape))
        zeros = torch.zeros(shape, dtype=torch.long)
        integers = {
            "input": torch.arange(shape[-1]).expand(shape) if input is None else as_int64("input", input),
            "token": zeros if token is None else as_int64("token", token),
            "position": zeros if position is None else as_int64("position", position),
        }
        for name, value in {"rhs": rhs, **integers}.items():
            check_shape(name, value, shape)
        values = {"difference": difference, "query": query, "rhs": rhs, **integers}
        values["equality"] = zeros.bool() if equality is None else as_bool("equality", equality, shape)
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
        """The constraints at ``index`` of a single problem.

        Raises:
            ValueError: a batch of problems.
        """
        if self.batch:
            raise ValueError(f"take() needs a single problem, got a batch {list(self.batch)}; select one with problem(b) first")
        return self.problem(index)

    def gram(self) -> Float[Tensor, "*batch m m"]:
        r"""Inner products :math:`\langle d_c z_c^\top, d_e z_e^\top\rangle = (d_c^\top d_e)(z_c^\top z_e)`, invariant under rotations."""
        return (self.difference @ self.difference.mT) * (self.query @ self.query.mT)

    def margins(self, W: Float[Tensor, "*batch d_x d_z"]) -> Float[Tensor, "*batch m"]:
        r""":math:`d_c^\top W z_c`, to be compared with ``rhs``."""
        return ((self.difference @ W) * self.query).sum(-1)

    def combine(self, weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch d_x d_z"]:
        r""":math:`\sum_c \lambda_c d_c z_c^\top`."""
        return (self.difference * weights[..., None]).mT @ self.query

    def names(self, index: int) -> tuple[int, int]:
        """(input, token) of one constraint of a single problem."""
        return int(self.input[index]), int(self.token[index])


def stack(problems: Sequence[Constraints]) -> Constraints:
    """A batch of single problems. Shorter ones are padded with constraints that hold for every W: 0 >= -1.

    Args:
        problems: B problems of any lengths, on matrices of one shape.
    Returns:
        The batch ``[B, m]`` with the m of the longest.
    Raises:
        TypeError: a problem that is not :class:`Constraints`.
        ValueError: no problem, or problems on matrices of different shapes.
    """
    if isinstance(problems, Constraints):
        raise TypeError(f"problems must be a sequence of single problems, got {problems}; a batch need not be stacked")
    for problem in problems:
        check_type("every problem", problem, Constraints, hint=HINT)
    if not problems:
        raise ValueError("problems must hold at least one, got none")
    # Equal zero differences with right-hand side -1 hold for every W, so padding changes no solution and no active set.
    longest = max(len(problem) for problem in problems)

    def column(name: str, padding: float) -> Tensor:
        values = [getattr(problem, name) for problem in problems]
        padded = values[0].new_full((len(values), longest, *values[0].shape[1:]), padding)
        for row, value in zip(padded, values):
            row[: len(value)] = value
        return padded

    if len({(problem.difference.shape[-1], problem.query.shape[-1], problem.batch) for problem in problems}) > 1 or problems[0].batch:
        raise ValueError("problems must be single ones on matrices of one shape; stack each shape separately")
    return Constraints(**{field.name: column(field.name, -1 if field.name == "rhs" else 0) for field in fields(Constraints)})
