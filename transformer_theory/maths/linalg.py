r"""Linear algebra that several theories share: log-determinants, cosines, bases, ranks, principal angles.

Vectors are rows: ``X [*batch, n, d]`` holds n vectors. Bases of subspaces are columns: ``U [*batch, d, p]``. Everything is batched
and differentiable where the mathematics is.

:math:`\log\det(I + sX^\top X)` by LU of the larger Gram matrix in float32 loses every eigenvalue below
:math:`s\|X\|^2 \cdot 6\cdot 10^{-8}`, and can silently be wrong by more than half. The Cholesky factor of the *smaller* Gram matrix
cannot turn negative, costs less, and is computed in float64 whenever float32 could not hold three digits. (The determinants agree by
Sylvester's identity :math:`\det(I_d + sX^\top X) = \det(I_n + sXX^\top)`.) A Gram matrix squares the singular values of X: where its
rounding would reach a millionth of the identity, they are computed from X itself.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

LARGEST_FLOAT32_CONDITION = 1e4  # times the rounding unit 6e-8: three digits of each logarithm are safe
LARGEST_GRAM_CONDITION = 1e10  # times the rounding unit 1e-16: a millionth of the identity, if formed in float64
LARGEST_CONDITION = 1e20  # the same for its root, by which singular values of the vectors themselves are off


def logdet_identity_plus(X: Float[Tensor, "*batch n d"], scale: float | Float[Tensor, "..."]) -> Float[Tensor, "*batch"]:
    r"""``log det(I + scale X^T X)`` through the smaller of the two Gram matrices, with its gradient in closed form.

    Value :math:`2\sum_i\log L_{ii}` with :math:`LL^\top = I + sXX^\top` (or :math:`I + sX^\top X`), gradient
    :math:`2s\,X(I + sX^\top X)^{-1}` from the same factor; second derivatives exist. Rows of zeros change nothing, so batches of
    unequal size may be padded. float32 input is promoted to float64 inside if ``scale ||X||_F^2`` exceeds 1e4, half precision to float32
    at least; autocast is switched off. From 1e10 on the singular values of X replace the Gram matrix, which would lose digits where X has
    less than full rank; they are slower, and accurate to a millionth of each logarithm up to 1e20. The result has the dtype of ``X``.

    Args:
        X: rows are vectors, ``[*batch, n, d]``.
        scale: s >= 0, a number or a tensor that broadcasts to ``[*batch]``.
    Returns:
        ``[*batch]``, nats, >= 0.
    Raises:
        ValueError: X holds NaN or infinite values, the scale is negative or NaN, or ``scale ||X||_F^2`` exceeds 1e20, where adding the
            identity is lost to rounding.
    """
    if X.ndim < 2:
        raise ValueError(f"X must have shape [*batch, n, d], got {list(X.shape)}")
    dtype = torch.promote_types(X.dtype, torch.float32)
    s = torch.as_tensor(scale, dtype=dtype, device=X.device).expand(X.shape[:-2])
    with torch.autocast(X.device.type, enabled=False):
        wide = X.to(dtype)
        with torch.no_grad():
            largest = (s * wide.square().sum((-2, -1))).amax() if s.numel() else s.sum()
        if not bool(largest <= LARGEST_CONDITION) or bool((s < 0).any()):
            _diagnose(X, s, float(largest))
        if dtype == torch.float32 and bool(largest > LARGEST_FLOAT32_CONDITION):
            wide, s = wide.double(), s.double()
        return _LogdetIdentityPlus.apply(wide, s).to(X.dtype)  # pyright: ignore[reportReturnType, reportOptionalMemberAccess]


def _diagnose(X: Tensor, s: Tensor, largest: float) -> None:
    if not bool(torch.isfinite(X).all()):
        raise ValueError(
            f"the vectors must be finite, got {int((~torch.isfinite(X)).sum())} NaN or infinite values of {X.numel()}; drop them"
        )
    if not bool((s >= 0).all()):
        raise ValueError("scale must be a number >= 0, got a negative one or NaN")
    raise ValueError(
        f"scale * ||X||^2 must be at most {LARGEST_CONDITION:g}, beyond which adding the identity is lost to rounding, got {largest:.1e}; "
        "normalise the vectors, or lower the scale (take a larger eps)"
    )


class _LogdetIdentityPlus(torch.autograd.Function):
    """log det(I + s X^T X); the backward pass reuses the factor of the forward pass."""

    @staticmethod
    def forward(ctx, X: Tensor, s: Tensor) -> Tensor:
        if bool((s * X.square().sum((-2, -1)) > LARGEST_GRAM_CONDITION).any()):
            value, through = logdet_and_resolvent(X, s)
            ctx.save_for_backward(X, s, through)
            ctx.of_gram = False
            return value
        factor = torch.linalg.cholesky(_identity_plus(X, s))
        ctx.save_for_backward(X, s, factor)
        ctx.of_gram = True
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        X, s, saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the result must be a differentiable function of X
            through = _on_smaller_side(torch.linalg.inv(_identity_plus(X, s)), X) if ctx.of_gram else _by_augmented_system(X, s)
        else:
            through = _on_smaller_side(torch.cholesky_inverse(saved), X) if ctx.of_gram else saved
        to_s = grad * (through * X).sum((-2, -1)) if ctx.needs_input_grad[1] else None
        return (2 * grad * s)[..., None, None] * through, to_s


def logdet_and_resolvent(
    X: Float[Tensor, "*batch n d"], scale: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch n d"]]:
    r"""``log det(I + s X^T X)`` and :math:`X(I + sX^\top X)^{-1} = \sum_i \frac{\sigma_i}{1 + s\sigma_i^2} u_i v_i^\top` from the singular
    values of X, which no Gram matrix has rounded. Those below the rounding of the largest count as zero: the resolvent may be as large as
    :math:`1 / (2\sqrt s)` where σ is near :math:`1/\sqrt s`, and would turn rounding errors into directions.

    Args:
        X: ``[*batch, n, d]`` float64.
        scale: s >= 0, ``[*batch]``.
    Returns:
        ``[*batch]`` nats and ``[*batch, n, d]``, without a graph.
    """
    with torch.no_grad():
        left, sizes, right = torch.linalg.svd(X, full_matrices=False)
        sizes = torch.where(sizes > max(X.shape[-2:]) * torch.finfo(X.dtype).eps * sizes[..., :1], sizes, 0)
        squares = scale[..., None] * sizes.square()
        return squares.log1p().sum(-1), (left * (sizes / (1 + squares))[..., None, :]) @ right


def _identity_plus(X: Tensor, s: Tensor) -> Tensor:
    small = X @ X.mT if X.shape[-2] <= X.shape[-1] else X.mT @ X
    return torch.eye(small.shape[-1], dtype=X.dtype, device=X.device) + s[..., None, None] * small


def _on_smaller_side(inverse: Tensor, X: Tensor) -> Tensor:
    return inverse @ X if X.shape[-2] <= X.shape[-1] else X @ inverse


def _by_augmented_system(X: Tensor, s: Tensor) -> Tensor:
    r"""The same resolvent, differentiable, for :math:`A = \sqrt s X`: :math:`[I, A; A^\top, -I]` has singular values
    :math:`\sqrt{1 + s\sigma^2}`, so that solving it loses half as many digits as a Gram matrix would; its inverse has
    :math:`A(I + A^\top A)^{-1}` off the diagonal."""
    n, d = X.shape[-2:]
    root = s.clamp(min=torch.finfo(s.dtype).tiny).sqrt()[..., None, None]
    A = root * X
    rows, columns = (torch.eye(size, dtype=X.dtype, device=X.device).expand(*X.shape[:-2], size, size) for size in (n, d))
    system = torch.cat([torch.cat([rows, A], -1), torch.cat([A.mT, -columns], -1)], -2)
    return torch.linalg.solve(system, torch.cat([torch.zeros_like(A), columns], -2))[..., :n, :] / root


def cosine(A: Float[Tensor, "..."], B: Float[Tensor, "..."], *, dim: int | tuple[int, ...] | None = None) -> Float[Tensor, "..."]:
    r"""Cosine of the angle between two tensors of one shape, as vectors (for matrices: the Frobenius inner product).

    Computed as :math:`(\|a+b\|^2 - \|a-b\|^2) / (\|a+b\|^2 + \|a-b\|^2)` of the unit vectors, which never leaves [-1, 1], is exactly 1
    for equal tensors, and loses no digit of ``1 - cosine`` to cancellation beyond the rounding of the result.

    Args:
        A, B: equal shapes.
        dim: dimensions that make up a vector; all by default (the result is then a scalar tensor).
    Returns:
        the shape without ``dim``, in [-1, 1].
    Raises:
        ValueError: shapes differ, or a vector is zero or not finite (its direction is undefined).
    """
    if A.shape != B.shape:
        raise ValueError(f"a cosine needs two tensors of one shape, got {list(A.shape)} and {list(B.shape)}")
    dims = tuple(range(A.ndim)) if dim is None else (dim,) if isinstance(dim, int) else dim
    units = []
    for name, vector in (("first", A), ("second", B)):
        vector = vector / vector.abs().amax(dims, keepdim=True)  # no overflow in the square
        norm = vector.square().sum(dims, keepdim=True).sqrt()
        if not bool(torch.isfinite(norm).all()):
            raise ValueError(f"a cosine needs finite vectors other than zero, the {name} argument has one that is zero, NaN or infinite")
        units.append(vector / norm)
    plus, minus = (units[0] + units[1]).square().sum(dims), (units[0] - units[1]).square().sum(dims)
    return (plus - minus) / (plus + minus)


def orthonormalise(A: Float[Tensor, "*batch d p"]) -> Float[Tensor, "*batch d p"]:
    """Orthonormal basis of the column space, by QR with a positive diagonal of R (so it is unique and continuous in A).

    Args:
        A: linearly independent columns, ``[*batch, d, p]`` with p <= d.
    Returns:
        U with ``U^T U = I`` and the span of A, ``[*batch, d, p]``.
    Raises:
        ValueError: p > d, or the columns are linearly dependent to rounding.
    """
    if A.ndim < 2 or A.shape[-1] > A.shape[-2]:
        raise ValueError(f"orthonormalise expects at most as many columns as rows, [*batch, d, p] with p <= d, got {list(A.shape)}")
    Q, R = torch.linalg.qr(A)
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    size = torch.linalg.vector_norm(A, dim=(-2, -1))[..., None]
    if not bool((diagonal.abs() > A.shape[-2] * torch.finfo(A.dtype).eps * size).all()):
        raise ValueError("orthonormalise expects finite, linearly independent columns, got dependent or non-finite ones; drop columns")
    return Q * diagonal.sign()[..., None, :]


def stable_rank(A: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""The stable rank :math:`\|A\|_F^2 / \|A\|_2^2` (:cite:t:`rudelson2007sampling`), between 1 and the rank.

    It is insensitive to small singular values.

    Args:
        A: ``[*batch, m, n]``, not zero.
    Returns:
        ``[*batch]``.
    Raises:
        ValueError: A is zero or not finite.
    """
    s = _singular_values(A)
    return (s / s[..., :1]).square().sum(-1)


def effective_rank(A: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""The effective rank :math:`\exp H(p)` (:cite:t:`roy2007effective`), between 1 and the rank.

    Here :math:`p_i = \sigma_i / \sum_j \sigma_j`, and H is the entropy in nats.

    Args:
        A: ``[*batch, m, n]``, not zero.
    Returns:
        ``[*batch]``.
    Raises:
        ValueError: A is zero or not finite.
    """
    s = _singular_values(A)
    return torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp()


def numerical_rank(A: Float[Tensor, "*batch m n"], *, tolerance: float) -> Int[Tensor, "*batch"]:
    """Number of singular values above ``tolerance`` times the largest; 0 for a zero matrix.

    Args:
        A: ``[*batch, m, n]``.
        tolerance: relative to the largest singular value, in (0, 1). Choose it above the accuracy of A:
            the rank at 1e-7 of a matrix known to 1e-5 is noise.
    Returns:
        ``[*batch]``, integers.
    Raises:
        ValueError: the tolerance is outside (0, 1), or A is not finite.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie in (0, 1), relative to the largest singular value, got {tolerance}")
    s = _singular_values(A, zero_allowed=True)
    return (s > tolerance * s[..., :1]).sum(-1)


def _singular_values(A: Tensor, *, zero_allowed: bool = False) -> Tensor:
    if A.ndim < 2 or A.numel() == 0:
        raise ValueError(f"a rank needs non-empty matrices [*batch, m, n], got {list(A.shape)}")
    if not bool(torch.isfinite(A).all()):
        raise ValueError(f"a rank needs finite entries, got {int((~torch.isfinite(A)).sum())} NaN or infinite values of {A.numel()}")
    s = torch.linalg.svdvals(A)
    if not zero_allowed and bool((s[..., 0] == 0).any()):
        raise ValueError("the rank measure of a zero matrix is undefined, got one; leave it out")
    return s


def principal_angles(A: Float[Tensor, "*batch d p"], B: Float[Tensor, "*batch d q"]) -> Float[Tensor, "*batch r"]:
    r"""Principal angles between the column spaces, ascending, ``r = min(p, q)`` of them.

    Cosines are the singular values of :math:`Q_A^\top Q_B`, sines those of :math:`(I - Q_AQ_A^\top)Q_B`; the sine is used below 45 degrees,
    where the cosine has lost its digits, and the cosine above (:cite:t:`bjorck1973numerical`).

    Args:
        A, B: linearly independent columns, ``[*batch, d, p]`` and ``[*batch, d, q]``.
    Returns:
        radians in [0, pi/2], ``[*batch, min(p, q)]``.
    Raises:
        ValueError: columns are linearly dependent.
    """
    Q, P = orthonormalise(A), orthonormalise(B)
    if Q.shape[-1] < P.shape[-1]:
        Q, P = P, Q
    overlap = Q.mT @ P
    cosines = torch.linalg.svdvals(overlap).clamp(max=1)
    sines = torch.linalg.svdvals(P - Q @ overlap).flip(-1).clamp(max=1)
    return torch.where(cosines.square() > 0.5, sines.asin(), cosines.acos())
