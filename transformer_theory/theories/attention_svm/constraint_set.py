r"""Linear constraints on attention weights, the input of every solver of this theory.

.. math:: d_c^\top W z_c \;\ge\; b_c \quad\text{or}\quad d_c^\top W z_c = b_c, \qquad c = 1, \dots, m,

with a difference of two tokens :math:`d_c`, a query :math:`z_c` and a right-hand side :math:`b_c` (one by
default). Cross-, self- and causal attention, prompts, several selected tokens per input and token-priority
graphs differ only in these differences and queries (:mod:`.builders`). Several problems with the same number
of constraints form a batch: all tensors then have leading dimensions.

Problem (Att-SVM) of :cite:t:`tarzanagh2023transformers` is the case :math:`d = x_{i,a_i} - x_{i,t}`, :math:`z
= z_i`, :math:`\ge 1`.
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
    r"""m linear constraints :math:`d_c^\top W z_c \ge b_c` (or :math:`=`) on a matrix W ``[d_x, d_z]``, or a
    batch of such problems.

    Numpy arrays, float32 and integers are converted. Tensors that require a gradient are detached: no solver
    is differentiable.

    Attributes:
        difference: :math:`d_c`, ``[*batch, m, d_x]``, float64.
        query: :math:`z_c`, ``[*batch, m, d_z]``, float64.
        rhs: :math:`b_c`, ``[*batch, m]``; ones by default.
        equality: mask of the equations, ``[*batch, m]``; all False by default.
        input, token, position: i, t and the position of the query within its input, ``[*batch, m]``, for
            messages. By default ``input`` is 0, 1, ... and the other two are 0.

    Raises:
        TypeError: an argument is not a tensor or array.
        ValueError: a rank or shape is wrong, or a value is not finite.
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
            raise ValueError(
                f"query must have one row per constraint, {list(shape)}, got {list(query.shape[:-1])}"
            )
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
        """Returns the sizes in one line."""
        sizes = (
            f"m={len(self)}, d_x={self.difference.shape[-1]}, d_z={self.query.shape[-1]}, "
            f"equations={int(self.equality.sum())}"
        )
        return f"Constraints({sizes}{f', batch={list(self.batch)}' if self.batch else ''})"

    def __len__(self) -> int:
        """Returns m, the number of constraints of a problem."""
        return self.difference.shape[-2]

    @property
    def batch(self) -> tuple[int, ...]:
        """Shape of the batch of problems; () for a single one."""
        return tuple(self.difference.shape[:-2])

    def problem(self, index) -> "Constraints":
        """Returns one problem (or several) of a batch."""
        return Constraints(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def take(self, index: Tensor | slice) -> "Constraints":
        """Returns the constraints of a single problem that ``index`` selects.

        Raises:
            ValueError: this is a batch of problems.
        """
        if self.batch:
            raise ValueError(
                f"take() needs a single problem, got a batch {list(self.batch)}; select one with problem(b) "
                "first"
            )
        return self.problem(index)

    def gram(self) -> Float[Tensor, "*batch m m"]:
        r"""Returns the inner products :math:`\langle d_c z_c^\top, d_e z_e^\top\rangle = (d_c^\top
        d_e)(z_c^\top z_e)`.
        """
        return (self.difference @ self.difference.mT) * (self.query @ self.query.mT)

    def margins(self, W: Float[Tensor, "*batch d_x d_z"]) -> Float[Tensor, "*batch m"]:
        r"""Returns the margins :math:`d_c^\top W z_c`, which the constraints compare with ``rhs``."""
        return ((self.difference @ W) * self.query).sum(-1)

    def combine(self, weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch d_x d_z"]:
        r"""Returns :math:`\sum_c \lambda_c d_c z_c^\top` for weights :math:`\lambda`."""
        return (self.difference * weights[..., None]).mT @ self.query

    def names(self, index: int) -> tuple[int, int]:
        """Returns the pair (input, token) of one constraint of a single problem."""
        return int(self.input[index]), int(self.token[index])


def stack(problems: Sequence[Constraints]) -> Constraints:
    """Combines single problems into a batch. Shorter problems are padded with constraints that hold for every
    W: 0 >= -1.

    Args:
        problems: B problems with any numbers of constraints, on matrices W of one shape.
    Returns:
        The batch ``[B, m]``, where m is the largest number of constraints.
    Raises:
        TypeError: a problem is not :class:`Constraints`.
        ValueError: there is no problem, a problem is itself a batch, or the matrices differ in shape.
    """
    if isinstance(problems, Constraints):
        raise TypeError(
            f"problems must be a sequence of single problems, got {problems}; a batch need not be stacked"
        )
    for problem in problems:
        check_type("every problem", problem, Constraints, hint=HINT)
    if not problems:
        raise ValueError("problems must contain at least one problem, got an empty sequence")
    # A constraint with zero difference and right-hand side -1 holds strictly for every W, so padding changes
    # no solution or active set.
    longest = max(len(problem) for problem in problems)

    def column(name: str, padding: float) -> Tensor:
        values = [getattr(problem, name) for problem in problems]
        padded = values[0].new_full((len(values), longest, *values[0].shape[1:]), padding)
        for row, value in zip(padded, values):
            row[: len(value)] = value
        return padded

    if (
        len({(problem.difference.shape[-1], problem.query.shape[-1], problem.batch) for problem in problems})
        > 1
        or problems[0].batch
    ):
        raise ValueError(
            "problems must be single problems on matrices of one shape; stack each shape separately"
        )
    return Constraints(
        **{field.name: column(field.name, -1 if field.name == "rhs" else 0) for field in fields(Constraints)}
    )
