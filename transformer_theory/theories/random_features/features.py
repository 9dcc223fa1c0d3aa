r"""Random-feature attention: relu attention whose query-key matrices are drawn once and never trained.

With :math:`\tilde x = (x, 1)`, heads :math:`W_1, \dots, W_M` and trained vectors :math:`v_1, \dots, v_M`,

.. math:: f(x_0, x_1, \dots, x_N) = \sum_m \frac1N \sum_i \mathrm{relu}(\tilde x_0^\top W_m \tilde x_i)\,
    v_m^\top \tilde x_i .

The output is linear in v, so training is least squares. :math:`W_m = G_m + (b + s z_m) J` with Gaussian
:math:`G_m, z_m`, where J is the identity on the first d coordinates: b is the bias towards the correlation of
query and key, and s the spread of its weight. With b = 0 the matrices are centred Gaussian, and
:mod:`.kernels` has the kernel in closed form.
Source: :cite:t:`fu2023what`. The spread is our own: the scale and form of the paper's bias are not known to
us.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.validation import as_float64, finite, integers, number
from ...maths.linalg import binary_scale
from .kernels import Inputs, check

MAX_ENTRIES = 2**28  # float64 entries of a feature matrix: 2 GiB
CHUNK = 2**24  # entries of the largest temporary array
# as shares of the mean squared norm of the features
PENALTIES = 10.0 ** torch.arange(-8.0, 3.0, 0.5, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class RandomFeatureAttention:
    """Heads of random-feature attention.

    Attributes:
        weights: the matrices W_m, ``[heads, d + 1, d + 1]``.
    """

    weights: Float[Tensor, "heads dim dim"]

    @classmethod
    def draw(
        cls, heads: int, d: int, *, bias: float = 0.0, spread: float = 0.0, generator: Generator
    ) -> "RandomFeatureAttention":
        """Draws the matrices for tokens of dimension d.

        Args:
            heads: number M of heads; M (d + 1) numbers are trained.
            d: dimension of the tokens.
            bias, spread: mean and standard deviation of the weight of the correlation of query and key.
            generator: random generator.

        Raises:
            ValueError: a number is out of range, or the matrices would need more than 2 GiB.
        """
        integers(heads=heads, d=d)
        _drawable(heads, (d + 1) ** 2, "heads")
        for name, value in (("bias", bias), ("spread", spread)):
            if not math.isfinite(number(name, value)):
                raise ValueError(f"{name} must be finite, got {value}")
        correlation = torch.diag(torch.tensor([1.0] * d + [0.0], dtype=torch.float64))
        weights = torch.randn(heads, d + 1, d + 1, generator=generator, dtype=torch.float64)
        scale = bias + spread * torch.randn(heads, 1, 1, generator=generator, dtype=torch.float64)
        return cls(weights + scale * correlation)

    def features(self, x: Inputs) -> Float[Tensor, "n features"]:
        r"""Computes :math:`\frac{1}{N\sqrt M} \sum_i \mathrm{relu}(\tilde x_0^\top W_m \tilde x_i)\, \tilde
        x_i`, ``[n, M (d + 1)]``.

        The inner product of the features of two inputs tends to :func:`.attention_kernel` for many heads.

        Args:
            x: inputs ``[n, 1 + N, d]``; the first token is the query.

        Raises:
            ValueError: the inputs do not fit, or the features would need more than 2 GiB.
        """
        x = as_float64("x", x)
        check("x", x)
        heads, dim = self.weights.shape[:2]
        if x.shape[2] + 1 != dim:
            raise ValueError(
                f"x must have tokens of dimension {dim - 1}, as the heads have, got {x.shape[2]}"
            )
        _fits(len(x), heads * dim)
        tokens = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        projected, keys = torch.einsum("na,mab->nmb", tokens[:, 0], self.weights), tokens[:, 1:]
        rows = max(1, CHUNK // (heads * keys.shape[1]))
        parts = [
            torch.einsum("nmi,nib->nmb", torch.einsum("nmb,nib->nmi", q, k).relu(), k) / keys.shape[1]
            for q, k in zip(projected.split(rows), keys.split(rows))
        ]
        return torch.cat(parts).flatten(1) / math.sqrt(heads)


@dataclass(frozen=True, eq=False)
class RandomFeatureMLP:
    """A random-feature MLP on the concatenated tokens: relu of Gaussian projections of ``(x_0, ..., x_N,
    1)``.

    Attributes:
        weights: projections, ``[units, (1 + N) d + 1]``.
    """

    weights: Float[Tensor, "units inputs"]

    @classmethod
    def draw(cls, units: int, tokens: int, d: int, *, generator: Generator) -> "RandomFeatureMLP":
        """Draws ``units`` projections for inputs of ``tokens`` tokens (query included) of dimension d;
        ``units`` numbers are trained.

        Raises:
            ValueError: a number is below 1, or the projections would need more than 2 GiB.
        """
        integers(units=units, tokens=tokens, d=d)
        _drawable(units, tokens * d + 1, "units")
        return cls(torch.randn(units, tokens * d + 1, generator=generator, dtype=torch.float64))

    def features(self, x: Inputs) -> Float[Tensor, "n units"]:
        """Computes the features, ``[n, units]``, divided by the root of their number; their inner products
        tend to :func:`.mlp_kernel`.

        Raises:
            ValueError: the inputs do not fit, or the features would need more than 2 GiB.
        """
        x = as_float64("x", x)
        check("x", x)
        units, inputs = self.weights.shape
        if x.shape[1] * x.shape[2] + 1 != inputs:
            raise ValueError(
                f"x must have {inputs - 1} numbers per input, as the units have, got {x.shape[1]} tokens of "
                f"dimension {x.shape[2]}"
            )
        _fits(len(x), units)
        flat = torch.cat([x.flatten(1), torch.ones_like(x[:, 0, :1])], 1)
        return (flat @ self.weights.mT).relu() / math.sqrt(units)


@dataclass(frozen=True, eq=False)
class Ridge:
    """Ridge regression whose penalty was chosen on validation inputs.

    Attributes:
        penalty: chosen penalty, as a share of the mean squared norm of the centred features.
        validation_error: mean squared error on the validation inputs, as a share of the error of the mean.
        test: predictions for the test inputs, ``[test, outputs]``.
    """

    penalty: float
    validation_error: float
    test: Float[Tensor, "test outputs"]


class RidgePath:
    """Ridge regression from one factorisation: all penalties and any number of targets.

    Features are centred on the training inputs and divided by the root of their mean squared norm. The Gram
    matrix of the smaller side is decomposed once, so each further target costs two products.

    Raises:
        ValueError: the features of all training inputs are equal, a part is no matrix of finite numbers or
            has no input, or the numbers of features differ.
    """

    def __init__(
        self, train: Float[Tensor, "n p"], validation: Float[Tensor, "v p"], test: Float[Tensor, "t p"]
    ):
        train, validation, test = (
            _matrix(name, part)
            for name, part in (("train", train), ("validation", validation), ("test", test))
        )
        if not train.shape[1] == validation.shape[1] == test.shape[1]:
            widths = f"{train.shape[1]}, {validation.shape[1]} and {test.shape[1]}"
            raise ValueError(
                f"train, validation and test must have equally many features, got {widths}; use the same "
                "heads for all"
            )
        mean = train.mean(0)
        scale = (train - mean).square().sum(1).mean().sqrt()
        if not scale > 0:
            raise ValueError("features must differ between the training inputs, got equal ones")
        train, *self.others = ((part - mean) / scale for part in (train, validation, test))
        U, s, Vh = torch.linalg.svd(train, full_matrices=False)
        self.U, self.s = U, s
        self.others = [part @ Vh.mT for part in self.others]

    def fit(self, train: Float[Tensor, "n outputs"], validation: Float[Tensor, "v outputs"]) -> Ridge:
        """Fits the targets of the training inputs with the penalty that has the least error on the validation
        inputs.

        Raises:
            ValueError: the targets of the training inputs are all equal, a part is no matrix of finite
                numbers, or targets and inputs differ in number.
        """
        train, validation = _matrix("train", train), _matrix("validation", validation)
        expected, got = (len(self.U), len(self.others[0])), (len(train), len(validation))
        if got != expected or train.shape[1] != validation.shape[1]:
            shapes = f"{list(train.shape)} and {list(validation.shape)}"
            raise ValueError(
                f"targets must be [{expected[0]}, outputs] and [{expected[1]}, outputs], as the features "
                f"are, got {shapes}"
            )
        mean = train.mean(0)
        reference = (validation - mean).square().mean()
        if not (train - mean).any():
            raise ValueError("targets must differ between the training inputs, got equal ones")
        projected = self.U.mT @ (train - mean)
        penalties = PENALTIES * len(train)
        # [penalties, rank, outputs]
        coefficients = (self.s / (self.s.square() + penalties[:, None]))[..., None] * projected
        errors = (self.others[0] @ coefficients + mean - validation).square().mean((1, 2))
        best = int(errors.argmin())
        error = float(errors[best] / reference) if reference > 0 else float("inf")
        return Ridge(float(PENALTIES[best]), error, self.others[1] @ coefficients[best] + mean)


def share_explained(predicted: Float[Tensor, "t outputs"], target: Float[Tensor, "t outputs"]) -> float:
    """Computes one minus the squared error as a share of that of the targets' mean, as sklearn's ``r2_score``
    with pooled outputs.

    Raises:
        ValueError: all targets are equal, the shapes differ, or an argument is no matrix of finite numbers.
    """
    predicted, target = _matrix("predicted", predicted), _matrix("target", target)
    if predicted.shape != target.shape:
        raise ValueError(
            f"predicted and target must have equal shapes, got {list(predicted.shape)} and "
            f"{list(target.shape)}"
        )
    scale = binary_scale(target, (0, 1))
    predicted, target = predicted / scale, target / scale
    spread = float((target - target.mean(0)).square().sum())
    if spread == 0:
        raise ValueError("targets must differ, got equal ones")
    return 1 - float((predicted - target).square().sum()) / spread


def _fits(n: int, features: int) -> None:
    if n * features > MAX_ENTRIES:
        gigabytes = 8 * n * features / 2**30
        raise ValueError(
            f"features must fit into 2 GiB, got {n} inputs with {features} features, {gigabytes:.0f} GiB; "
            "use fewer heads or inputs"
        )


def _drawable(number: int, each: int, name: str) -> None:
    """Checks, before they are drawn, that ``number`` heads or units of ``each`` weights fit into memory."""
    if number * each > MAX_ENTRIES:
        raise ValueError(
            f"{name} must fit into 2 GiB, got {number} with {each} weights each; use fewer {name} or "
            "smaller tokens"
        )


def _matrix(name: str, value: Tensor) -> Float[Tensor, "rows columns"]:
    """Converts an argument to a float64 matrix of finite numbers with at least one row and one column."""
    value = as_float64(name, value)
    if value.ndim != 2 or not value.numel():
        raise ValueError(
            f"{name} must be a matrix with at least one row and one column, got shape {list(value.shape)}"
        )
    finite(**{name: value})
    return value
