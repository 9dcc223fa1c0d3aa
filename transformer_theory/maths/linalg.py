r"""Linear algebra that several theories share: norms, log-determinants, cosines, bases, ranks, principal
angles.

Vectors are rows: ``X [*batch, n, d]`` holds n vectors. Bases of subspaces are columns: ``U [*batch, d, p]``.
All functions are batched, and differentiable wherever the mathematical function is.

**Log-determinants.** In float32 an LU factorisation of the larger Gram matrix loses every eigenvalue of
:math:`sX^\top X` below :math:`s\|X\|^2 \cdot 6\cdot 10^{-8}`; the result can be wrong by more than half
without warning. Here
:math:`\log\det(I + sX^\top X)` is computed from the Cholesky factor of the *smaller* Gram matrix, which costs
less and has positive pivots. (The determinants agree by Sylvester's identity :math:`\det(I_d + sX^\top X) =
\det(I_n + sXX^\top)`.) Float64 is used whenever float32 could not hold three digits. Rounding of the Gram
matrix that would reach a millionth of the identity is refused. If :math:`s\|X\|^2 < 1`, where the identity
would take digits from the sum, the logarithms are those of :math:`1 + (L_{ii}^2 - 1)`, with
:math:`L_{ii}^2 - 1 = sG_{ii} - \sum_{j<i} L_{ij}^2`.

**Scales.** Squares of numbers below 1e-23 or above 1e19 leave the range of float32. So norms are computed of
vectors divided by a power of two (:func:`binary_scale`). This division is exact, so it changes no digit of
other vectors.
"""

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from ..core.validation import converted, full_precision

# Largest s ||X||^2 for which I + s X^T X is computed
LARGEST_FLOAT32_CONDITION = 1e4  # float32 keeps three digits of each logarithm: its rounding unit is 6e-8
# a float64 Gram matrix has an error of a millionth of the identity: the rounding unit is 1e-16
LARGEST_GRAM_CONDITION = 1e10
ORDINARY = (1e-15, 1e15)  # norms of vectors whose squares are in the range of float32
SMALL = 1.0  # value of s ||X||^2 below which the identity is kept out of the sums
LOGDET_ATOL = 1e-6  # largest accepted rounding error of a log-determinant beyond that, nats


def binary_scale(X: Float[Tensor, "..."], dim: int | tuple[int, ...]) -> Float[Tensor, "..."]:
    """Returns the largest power of two that is at most the largest absolute entry of each vector, but no
    subnormal number; NaN for a vector with NaN. It is a constant to autograd.

    Squares of the divided vector neither overflow nor underflow, and the division is exact.

    Args:
        X: vectors, float32 or float64.
        dim: dimensions of a vector, which keep the size 1.
    """
    dims, X = (dim,) if isinstance(dim, int) else dim, X.detach()
    if any(X.shape[each] == 0 for each in dims):
        return torch.ones_like(X.sum(dims, keepdim=True))
    limits = torch.finfo(X.dtype)
    largest = X.abs().amax(dims, keepdim=True).clamp(limits.tiny, limits.max)
    # largest = mantissa 2^e with a mantissa in [1/2, 1), so the quotient is 2^(e - 1) without rounding.
    return largest / (2 * torch.frexp(largest).mantissa)


def _are_ordinary(norms: Tensor) -> bool:
    """Returns whether vectors of these norms have squares in range."""
    if not norms.numel():
        return True
    least, largest = torch.aminmax(norms.detach())
    return float(least) > ORDINARY[0] and float(largest) < ORDINARY[1]


@converted(floats=("X",))
def vector_norm(X: Float[Tensor, "..."], dim: int | tuple[int, ...]) -> Float[Tensor, "..."]:
    """Computes Euclidean norms (for matrices: Frobenius norms) of vectors of any scale.

    >>> print(f"{float(vector_norm(torch.full((4,), 1e-30), -1)):.1e}")
    2.0e-30

    Args:
        X: vectors.
        dim: dimensions of a vector.
    Returns:
        The norms, in the shape of X without ``dim``; infinite or NaN for such vectors.
    """
    norms = torch.linalg.vector_norm(X, dim=dim)
    if _are_ordinary(norms):
        return norms
    scale = binary_scale(X, dim)
    return scale.squeeze(dim) * torch.linalg.vector_norm(X / scale, dim=dim)


@converted(floats=("X",))
def directions(X: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Divides each vector by its Euclidean norm, whatever its scale; zero vectors stay zero.

    Raises:
        ValueError: a vector is infinite or NaN.
    """
    norms = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    if _are_ordinary(norms):
        return X / norms
    if not bool(torch.isfinite(X).all()):
        raise ValueError(
            "a direction needs finite vectors, got a vector with NaN or infinite values; leave it out"
        )
    X = X / binary_scale(X, -1)
    norms = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    return X / norms.clamp(min=torch.finfo(X.dtype).tiny)


@converted(reals=("X",))
def logdet_identity_plus(
    X: Float[Tensor, "*batch n d"], scale: float | Float[Tensor, "..."]
) -> Float[Tensor, "*batch"]:
    r"""Computes ``log det(I + scale X^T X)`` from the smaller of the two Gram matrices, with its gradient in
    closed form.

    The value is :math:`2\sum_i\log L_{ii}` with :math:`LL^\top = I + sXX^\top` (or :math:`I + sX^\top X`),
    the gradient :math:`2s\,X(I + sX^\top X)^{-1}` from the same factor. Second derivatives are supported.
    Rows of zeros do not change the value, so matrices of different heights may be padded to one batch.

    Precision: half precision is promoted to float32, and float32 to float64 if ``scale ||X||_F^2`` exceeds
    1e4; autocast is switched off. Below 1 the value has the relative precision of its dtype. Above 1e10 the
    Gram matrix may lose the identity, and the value is returned only if its error is below a millionth
    (:func:`require_resolved`). That is the case if the smaller Gram matrix has no small eigenvalues, so X
    must have full rank.

    Args:
        X: one vector per row, ``[*batch, n, d]``.
        scale: s >= 0, a number or a tensor that broadcasts to ``[*batch]``.
    Returns:
        ``[*batch]`` in the dtype of X, nats, >= 0.
    Raises:
        ValueError: X holds NaN or infinite values, the scale is negative or NaN, or ``scale ||X||_F^2``
            exceeds 1e10 and X has less than full rank, so that the identity is lost to rounding.
    """
    if X.ndim < 2:
        raise ValueError(f"X must have shape [*batch, n, d], got {list(X.shape)}")
    dtype = torch.promote_types(X.dtype, torch.float32)
    wide = X.to(dtype)
    factor = torch.as_tensor(scale, dtype=torch.float64, device=X.device).expand(X.shape[:-2])
    # Tiny vectors come with a large factor and huge ones with a small one, so the power of two is moved from
    # the vectors to the factor.
    power = binary_scale(wide, (-2, -1))
    wide, size = wide / power, power.double()[..., 0, 0]
    s = (factor * size * size).to(dtype)
    with torch.no_grad():
        sizes = s * torch.linalg.vector_norm(wide, dim=(-2, -1)).square()
        largest = sizes.amax() if s.numel() else s.sum()
    if not bool(torch.isfinite(largest)) or bool((factor < 0).any()):
        _raise_for(X, factor, float(largest))
    if dtype == torch.float32 and bool(largest > LARGEST_FLOAT32_CONDITION):
        wide, s = wide.double(), s.double()
    return _LogdetIdentityPlus.apply(wide, s, sizes, bool(largest > LARGEST_GRAM_CONDITION)).to(X.dtype)  # pyright: ignore[reportReturnType, reportOptionalMemberAccess]


def _raise_for(X: Tensor, s: Tensor, largest: float) -> None:
    """Raises the appropriate ValueError. It is called only if an argument is invalid, because these checks
    take time.
    """
    if not bool(torch.isfinite(X).all()):
        raise ValueError(
            f"the vectors must be finite, got {int((~torch.isfinite(X)).sum())} NaN or infinite values of "
            f"{X.numel()}; drop them"
        )
    if not bool((s >= 0).all()):
        invalid = float(s[~(s >= 0)][0])
        raise ValueError(f"scale must be a number >= 0, got {invalid:g}")
    raise _lost(largest)


def require_resolved(
    matrix: Inexact[Tensor, "*batch m m"],
    factor: Inexact[Tensor, "*batch m m"],
    failed: Int[Tensor, "*batch"],
) -> None:
    r"""Refuses :math:`I + sG` if rounding of the Gram matrix G changes its log-determinant by more than a
    millionth.

    Up to a trace of 1e10 the rounding is below a millionth of the identity. Beyond, an error E of sG changes
    the log-determinant by
    :math:`\mathrm{tr}((I + sG)^{-1}E)`, which is at most the norm of E times the trace of the inverse over
    the rows of G that are not zero (rows of zeros have no rounding error). The bound is small if G has full
    rank.

    Args:
        matrix: :math:`I + sG`, ``[*batch, m, m]``, real symmetric or Hermitian.
        factor: its Cholesky factor, ``[*batch, m, m]``.
        failed: 0 where the factorisation succeeded, ``[*batch]``, as ``torch.linalg.cholesky_ex`` returns it.
    Raises:
        ValueError: a factorisation failed, or the bound exceeds a millionth.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1).real
    largest = (diagonal - 1).sum(-1)
    if not bool(failed.any()) and bool((largest <= LARGEST_GRAM_CONDITION).all()):
        return
    if not bool(failed.any()):
        inverse = torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1).real
        error = torch.finfo(largest.dtype).eps * largest * torch.where(diagonal > 1, inverse, 0).sum(-1)
        if bool((error <= LOGDET_ATOL).all()):
            return
    raise _lost(float(largest.max()))


def _lost(largest: float) -> ValueError:
    return ValueError(
        "vectors of less than full rank must have a scaled squared norm s ||X||^2 = d ||X||^2 / (n eps^2) "
        f"of at most {LARGEST_GRAM_CONDITION:g}, beyond which adding the identity is lost to rounding, got "
        f"{largest:.1e}; normalise the vectors, or lower the scale (take a larger eps)"
    )


class _LogdetIdentityPlus(torch.autograd.Function):
    """log det(I + s X^T X). The gradient with respect to X is 2 s times the resolvent X (I + s X^T X)^-1;
    with respect to s it is the inner product of X and the resolvent.
    """

    @staticmethod
    def forward(ctx, X: Tensor, s: Tensor, sizes: Tensor, is_large: bool) -> Tensor:
        # Store the factor for the backward pass: computing the inverse from it costs a third of a new
        # factorisation.
        matrix = _identity_plus(X, s)
        if is_large:
            factor, failed = torch.linalg.cholesky_ex(matrix)
            require_resolved(matrix, factor, failed)
        else:
            factor = torch.linalg.cholesky(matrix)
        ctx.save_for_backward(X, s, factor)
        value = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        is_small = sizes < SMALL
        if not bool(is_small.any()):
            return value
        # s G_ii from the vectors themselves, since the diagonal of I + sG has lost its digits
        diagonal = s[..., None] * X.square().sum(-1 if X.shape[-2] <= X.shape[-1] else -2)
        return torch.where(is_small, small_logdet(diagonal, factor), value)

    @staticmethod
    @full_precision
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        X, s, factor = ctx.saved_tensors
        # With create_graph=True the gradient is differentiated again. Autograd treats the saved tensors as
        # constants, so recompute the resolvent as a function of X.
        inverse = (
            torch.linalg.inv(_identity_plus(X, s))
            if torch.is_grad_enabled()
            else torch.cholesky_inverse(factor)
        )
        resolvent = _on_smaller_side(inverse, X)
        to_s = grad * (resolvent * X).sum((-2, -1)) if ctx.needs_input_grad[1] else None
        return (2 * grad * s)[..., None, None] * resolvent, to_s, None, None


def small_logdet(
    diagonal: Float[Tensor, "*batch m"], factor: Inexact[Tensor, "*batch m m"]
) -> Float[Tensor, "*batch"]:
    """Computes log det(I + A) of a small A >= 0 to the relative precision of its dtype, nats.

    Args:
        diagonal: A_ii, ``[*batch, m]``.
        factor: Cholesky factor L of I + A, ``[*batch, m, m]``. The logarithms are those of
            ``L_ii^2 = 1 + A_ii - sum_(j<i) |L_ij|^2``.
    """
    return (diagonal - factor.tril(-1).abs().square().sum(-1)).log1p().sum(-1)


def smaller_gram(X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m m"]:
    """Computes ``X X^T`` if n <= d, otherwise ``X^T X``, so m = min(n, d). The other Gram matrix has
    additional zero eigenvalues.
    """
    return X @ X.mT if X.shape[-2] <= X.shape[-1] else X.mT @ X


def _identity_plus(X: Tensor, s: Tensor) -> Tensor:
    """Computes I + s X X^T or I + s X^T X, whichever is smaller."""
    matrix = smaller_gram(X)
    # In place, because a second batch of matrices costs as much time as the product. Gradients with respect
    # to s need the product itself.
    matrix = s[..., None, None] * matrix if torch.is_grad_enabled() else matrix.mul_(s[..., None, None])
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


def _on_smaller_side(inverse: Tensor, X: Tensor) -> Tensor:
    """Computes the resolvent from the inverse of :func:`_identity_plus`, by X (I + X^T X)^-1 = (I + X X^T)^-1
    X.
    """
    return inverse @ X if X.shape[-2] <= X.shape[-1] else X @ inverse


@converted(reals=("A", "B"))
def cosine(
    A: Float[Tensor, "..."], B: Float[Tensor, "..."], *, dim: int | tuple[int, ...] | None = None
) -> Float[Tensor, "..."]:
    r"""Computes the cosine of the angle between two tensors of one shape, treated as vectors (for matrices:
    Frobenius inner product).

    Args:
        A, B: tensors of one shape.
        dim: dimensions of a vector. None: all dimensions, with a scalar result.
    Returns:
        The cosines in [-1, 1], exactly 1 for equal tensors. Their shape is the shape of A without ``dim``.
    Raises:
        ValueError: shapes differ, or a vector is zero or not finite (its direction is undefined).
    """
    if A.shape != B.shape:
        raise ValueError(f"a cosine needs two tensors of one shape, got {list(A.shape)} and {list(B.shape)}")
    dims = tuple(range(A.ndim)) if dim is None else (dim,) if isinstance(dim, int) else dim
    units = []
    for name, vector in (("first", A), ("second", B)):
        # Scale by the largest entry first, so that squares neither overflow nor underflow.
        vector = vector / vector.abs().amax(dims, keepdim=True)
        norm = vector.square().sum(dims, keepdim=True).sqrt()
        if not bool(torch.isfinite(norm).all()):
            raise ValueError(
                "a cosine needs finite, non-zero vectors, got one that is zero, NaN or infinite in the "
                f"{name} argument"
            )
        units.append(vector / norm)
    # For unit vectors ||a + b||^2 = 2 + 2 cos and ||a - b||^2 = 2 - 2 cos. Their normalised difference always
    # lies in [-1, 1], and the small distance ||a - b|| is computed without the cancellation that 1 - <a, b>
    # would suffer near cos = 1.
    plus, minus = (units[0] + units[1]).square().sum(dims), (units[0] - units[1]).square().sum(dims)
    return (plus - minus) / (plus + minus)


@converted(floats=("A",))
def orthonormalise(A: Float[Tensor, "*batch d p"]) -> Float[Tensor, "*batch d p"]:
    """Computes an orthonormal basis of the column space by QR. The diagonal of R is positive, so the basis is
    unique and continuous in A.

    Args:
        A: linearly independent columns, ``[*batch, d, p]`` with p <= d.
    Returns:
        U with ``U^T U = I`` and the column space of A, ``[*batch, d, p]``.
    Raises:
        ValueError: p > d, or the columns are linearly dependent up to rounding.
    """
    if A.ndim < 2 or A.shape[-1] > A.shape[-2]:
        raise ValueError(
            "orthonormalise expects at most as many columns as rows, [*batch, d, p] with p <= d, got "
            f"{list(A.shape)}"
        )
    A = A / binary_scale(A, (-2, -1))
    Q, R = torch.linalg.qr(A)
    # A diagonal entry of R is the distance of a column from the span of the columns before it; below the
    # rounding error of A it is noise.
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    size = torch.linalg.vector_norm(A, dim=(-2, -1))[..., None]
    if not bool((diagonal.abs() > A.shape[-2] * torch.finfo(A.dtype).eps * size).all()):
        raise ValueError(
            "orthonormalise expects finite, linearly independent columns, got dependent or non-finite "
            "columns; drop them"
        )
    return Q * diagonal.sign()[..., None, :]


@converted(floats=("A",))
def stable_rank(A: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""Computes the stable rank :math:`\|A\|_F^2 / \|A\|_2^2` (:cite:t:`rudelson2007sampling`), between 1 and
    the rank.

    It is insensitive to small singular values.

    Args:
        A: non-zero matrices, ``[*batch, m, n]``.
    Returns:
        ``[*batch]``.
    Raises:
        ValueError: A is zero or not finite.
    """
    s = _singular_values(A)
    return (s / s[..., :1]).square().sum(-1)


@converted(floats=("A",))
def effective_rank(A: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""Computes the effective rank :math:`\exp H(p)` (:cite:t:`roy2007effective`), between 1 and the rank.

    Here :math:`p_i = \sigma_i / \sum_j \sigma_j`, and H is the entropy in nats.

    Args:
        A: non-zero matrices, ``[*batch, m, n]``.
    Returns:
        ``[*batch]``.
    Raises:
        ValueError: A is zero or not finite.
    """
    s = _singular_values(A)
    return torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp()


@converted(floats=("A",))
def numerical_rank(A: Float[Tensor, "*batch m n"], *, tolerance: float) -> Int[Tensor, "*batch"]:
    """Counts the singular values above ``tolerance`` times the largest; 0 for a zero matrix.

    Args:
        A: matrices, ``[*batch, m, n]``.
        tolerance: threshold relative to the largest singular value, in (0, 1). It should exceed the relative
            error of A: with an error of 1e-5 and a tolerance of 1e-7, the rank counts noise.
    Returns:
        ``[*batch]``, integers.
    Raises:
        ValueError: the tolerance is outside (0, 1), or A is not finite.
    """
    if not 0 < tolerance < 1:
        raise ValueError(
            f"tolerance must lie in (0, 1), relative to the largest singular value, got {tolerance}"
        )
    s = _singular_values(A, zero_allowed=True)
    return (s > tolerance * s[..., :1]).sum(-1)


def _singular_values(A: Tensor, *, zero_allowed: bool = False) -> Tensor:
    """Computes the singular values in descending order, up to a common factor. Raises ValueError if A is
    empty, not finite, or zero and not allowed to be.
    """
    if A.ndim < 2 or A.numel() == 0:
        raise ValueError(f"a rank needs non-empty matrices [*batch, m, n], got {list(A.shape)}")
    if not bool(torch.isfinite(A).all()):
        raise ValueError(
            f"a rank needs finite entries, got {int((~torch.isfinite(A)).sum())} NaN or infinite values of "
            f"{A.numel()}"
        )
    s = torch.linalg.svdvals(A / binary_scale(A, (-2, -1)))  # ranks do not depend on the scale
    if not zero_allowed and bool((s[..., 0] == 0).any()):
        raise ValueError("a rank measure needs non-zero matrices, got a zero matrix; leave it out")
    return s


@converted(floats=("A", "B"))
def principal_angles(
    A: Float[Tensor, "*batch d p"], B: Float[Tensor, "*batch d q"]
) -> Float[Tensor, "*batch r"]:
    r"""Computes the ``r = min(p, q)`` principal angles between the column spaces, in ascending order
    (:cite:t:`bjorck1973numerical`).

    The cosines are the singular values of :math:`Q_A^\top Q_B`, the sines the singular values of :math:`(I -
    Q_AQ_A^\top)Q_B`.

    Args:
        A, B: linearly independent columns, ``[*batch, d, p]`` and ``[*batch, d, q]``.
    Returns:
        Radians in [0, pi/2], ``[*batch, min(p, q)]``.
    Raises:
        ValueError: the columns are linearly dependent.
    """
    Q, P = orthonormalise(A), orthonormalise(B)
    # Project the smaller space onto the larger one: then there are as many sines as angles.
    if Q.shape[-1] < P.shape[-1]:
        Q, P = P, Q
    overlap = Q.mT @ P
    cosines = torch.linalg.svdvals(overlap).clamp(max=1)
    sines = torch.linalg.svdvals(P - Q @ overlap).flip(-1).clamp(max=1)
    # acos loses half the digits near angle 0, where the cosine is flat, and asin near 90 degrees. Use each
    # function where it is steep.
    return torch.where(cosines.square() > 0.5, sines.asin(), cosines.acos())
