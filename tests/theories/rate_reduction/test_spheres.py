"""The rate reduction on a product of spheres: derivatives along geodesics, and what its critical
points are.
"""

import itertools

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.metrics.coding import rate_reduction
from transformer_theory.theories import rate_reduction as theory
from transformer_theory.theories.rate_reduction.ascent import ascend, polish
from transformer_theory.theories.rate_reduction.landscape import reduction_hessian
from transformer_theory.theories.rate_reduction.problem import sorted_labels
from transformer_theory.theories.rate_reduction.spheres import OnSpheres, on_lines, uneven

SIZES, DIM, EPS = (3, 4, 5), 5, 0.7
PROBLEM = OnSpheres(SIZES, DIM, EPS)


def random_point(generator):
    return PROBLEM.project(torch.randn(sum(SIZES), DIM, dtype=torch.float64, generator=generator))


def along(X, generator):
    """A direction along the spheres, of length 1."""
    v = torch.randn(X.shape, dtype=X.dtype, generator=generator)
    parts = [
        part - (part * x).sum() / x.square().sum() * x for part, x in zip(v.split(SIZES), X.split(SIZES))
    ]
    v = torch.cat(parts)
    return v / v.norm()


def rotations(X, sizes):
    """Dimensions of the orbit of X: of the span of A_j X_j and X B over skew A_j and B, which leave the rate
    reduction alone.
    """
    spanned = []
    for p, q in itertools.combinations(range(X.shape[1]), 2):
        turned = torch.zeros_like(X)
        turned[:, p], turned[:, q] = X[:, q], -X[:, p]
        spanned.append(turned)
    labels = sorted_labels(sizes)
    for i, j in itertools.combinations(range(len(X)), 2):
        if labels[i] == labels[j]:
            turned = torch.zeros_like(X)
            turned[i], turned[j] = X[j], -X[i]
            spanned.append(turned)
    return int(torch.linalg.matrix_rank(torch.stack(spanned).flatten(1), rtol=1e-9))


def critical(problem, X):
    return float(problem.gradient(X).norm()) < 1e-12 * problem.unit


def test_the_hessian_of_the_reduction_is_autograds(generator):
    X = torch.randn(sum(SIZES), DIM, dtype=torch.float64, generator=generator)
    expected = torch.autograd.functional.hessian(
        lambda x: rate_reduction(x, sorted_labels(SIZES), eps=EPS), X
    )
    assert_close(
        reduction_hessian(X, SIZES, eps=EPS), torch.as_tensor(expected).reshape(60, 60), rtol=0, atol=1e-13
    )


def test_derivatives_are_finite_differences_along_geodesics(generator):
    """Also where the gradient does not vanish: there a path other than a geodesic would have another second
    derivative.
    """
    X, h = random_point(generator), 1e-2
    assert float(PROBLEM.gradient(X).norm()) > 0.1
    for _ in range(10):
        v = along(X, generator)
        f = {t: PROBLEM.value(PROBLEM.move(X, t * h * v)) for t in range(-3, 4)}
        first = (45 * (f[1] - f[-1]) - 9 * (f[2] - f[-2]) + (f[3] - f[-3])) / (60 * h)
        second = (270 * (f[1] + f[-1]) - 27 * (f[2] + f[-2]) + 2 * (f[3] + f[-3]) - 490 * f[0]) / (180 * h**2)
        assert_close(float((PROBLEM.gradient(X) * v).sum()), first, rtol=0, atol=1e-9)
        assert_close(float(v.flatten() @ PROBLEM.hessian(X) @ v.flatten()), second, rtol=0, atol=1e-8)
        straight = {t: PROBLEM.value(X + t * h * v) for t in (-1, 0, 1)}
        # the curvature term counts
        assert abs((straight[1] + straight[-1] - 2 * straight[0]) / h**2 - second) > 1e-3


def test_geodesics_stay_on_the_spheres_and_are_as_long_as_their_directions(generator):
    X = random_point(generator)
    v = along(X, generator)
    for length in (0.0, 0.3, 4.0):
        moved = PROBLEM.move(X, length * v)
        for x, y, part, size in zip(X.split(SIZES), moved.split(SIZES), v.split(SIZES), SIZES):
            assert_close(float(y.square().sum()), float(size), rtol=1e-12, atol=0)
            assert_close(
                float((x * y).sum()) / size,
                float(torch.cos(length * part.norm() / size**0.5)),
                rtol=0,
                atol=1e-12,
            )


def test_the_hessian_is_blind_to_radii(generator):
    X = random_point(generator)
    H = PROBLEM.hessian(X)
    assert_close(H, H.mT, rtol=0, atol=1e-12)
    for j in range(len(SIZES)):
        radius = X * (sorted_labels(SIZES) == j)[:, None]
        assert float((PROBLEM.gradient(X) * radius).sum().abs()) < 1e-12
        assert float((H @ radius.flatten()).norm()) < 1e-12
    assert PROBLEM.eigenvalues(X).shape == (sum(SIZES) * DIM - len(SIZES),)


@each_case("ranks", [None, (1, 1, 1), (1, 1, 2), (2, 1, 2), (1, 3, 1)], ids=str)
def test_orthogonal_flat_classes_are_maximisers_up_to_rotations(ranks, generator):
    """The closed-form optimum (None), and flat classes of other ranks, which are poorer: the Hessian vanishes
    on the orbit, where ΔR is constant, and is negative elsewhere.
    """
    X, _ = theory.orthogonal_classes(
        SIZES, ranks or theory.optimum(SIZES, DIM, eps=EPS).ranks, DIM, generator=generator
    )
    assert critical(PROBLEM, X)
    assert PROBLEM.disorder(X) < 1e-12
    eigenvalues, free = PROBLEM.eigenvalues(X), rotations(X, SIZES)
    assert float(eigenvalues[-free:].abs().max()) < 1e-12
    assert float(eigenvalues[: len(eigenvalues) - free].max()) < -0.01


@pytest.mark.parametrize(("eps", "largest"), [(1.0, 4.24), (2.0**0.5, 2.12)])
def test_flat_spectra_are_maximisers_up_to_the_bound_on_the_rank(eps, largest, generator):
    """Eigenvalues in closed form: 4 s f''(s) between two singular values, and -λ for a zero one in a new
    dimension.
    """
    problem = OnSpheres((6, 6), 6, eps)
    for rank in (2, 3):
        X, _ = theory.orthogonal_classes((6, 6), (rank, rank), 6, generator=generator)
        alpha, s, share = problem.unit, 6 / rank, 0.5
        bend = 2 * s * alpha**2 * (1 / share / (1 + alpha * s / share) ** 2 - 1 / (1 + alpha * s) ** 2)
        multiplier = alpha / (1 + alpha * s) - alpha / (1 + alpha * s / share)
        assert theory.largest_rank(6, 12, 6, eps=eps) == pytest.approx(largest, abs=0.01)
        assert critical(problem, X)
        eigenvalues = problem.eigenvalues(X)
        nearest = [
            float((eigenvalues - value / alpha).abs().min()) for value in (bend, *[-multiplier] * (rank < 3))
        ]
        assert max(nearest) < 1e-12
        assert (bend < 0) == (rank < largest)
        assert_close(problem.steepest(X), max(bend / alpha, 0.0), rtol=0, atol=1e-12)


@each_case(
    "saddle",
    [
        lambda generator: uneven(PROBLEM, (1, 1, 2), generator=generator),
        lambda generator: uneven(PROBLEM, (2, 2, 1), generator=generator),
        lambda generator: uneven(PROBLEM, (1, 1, 3), generator=generator),
        lambda generator: on_lines(PROBLEM, (0, 0, 1), generator=generator),
        lambda generator: on_lines(PROBLEM, (2, 2, 2), generator=generator),
        lambda generator: polish(PROBLEM, on_lines(PROBLEM, (0, 1, 1), generator=generator)),
    ],
    ids=["uneven", "two uneven", "uneven of rank 3", "a shared line", "one line", "polished"],
)
def test_other_critical_points_have_a_way_up(saddle, generator):
    X = saddle(generator)
    assert critical(PROBLEM, X)
    assert PROBLEM.disorder(X) > 0.5
    values, vectors = torch.linalg.eigh(PROBLEM.hessian(X))
    assert PROBLEM.steepest(X) > 0.05
    assert_close(PROBLEM.steepest(X), float(values[-1]) / PROBLEM.unit, rtol=0, atol=1e-12)
    beside = PROBLEM.move(X, 0.1 * vectors[:, -1].view_as(X))
    assert PROBLEM.value(beside) > PROBLEM.value(X) + 1e-4
    # off the symmetries that the direction keeps
    end = ascend(PROBLEM, PROBLEM.move(beside, 0.01 * along(beside, generator)))
    assert critical(PROBLEM, end)
    assert PROBLEM.steepest(end) < 1e-9
    assert PROBLEM.disorder(end) < 1e-8


def test_equal_moments_are_a_minimum(generator):
    """ΔR = 0 is its least value, so the gradient vanishes and no direction leads down."""
    problem = OnSpheres((4, 5), 3, EPS)
    X = problem.project(theory.equal_moments((4, 5), 3, generator=generator)[0])
    assert abs(problem.value(X)) < 1e-12
    assert critical(problem, X)
    assert float(problem.eigenvalues(X)[0]) > -1e-12
    assert problem.steepest(X) > 0.05


def test_ascents_end_at_flat_orthogonal_classes(generator, unchecked):
    best = theory.optimum(SIZES, DIM, eps=EPS).value
    for _ in range(4):
        start = random_point(generator)
        end = ascend(PROBLEM, start)
        assert PROBLEM.value(start) < PROBLEM.value(end) <= best + 1e-12
        assert critical(PROBLEM, end)
        assert PROBLEM.steepest(end) < 1e-9
        assert PROBLEM.disorder(end) < 1e-8


@each_case(
    ("call", "message"),
    [
        (lambda: OnSpheres((3,), 2, 1.0), r"two classes with samples in each, got \[3\]"),
        (lambda: OnSpheres((3, 0), 2, 1.0), "samples in each"),
        (lambda: OnSpheres((3, 3), 0, 1.0), "dim must be at least 1, got 0"),
        (lambda: OnSpheres((3, 3), 2, -1.0), "eps must be positive and finite, got -1.0"),
        (
            lambda: uneven(OnSpheres((3, 3), 4, 3.0), (2, 2), generator=torch.Generator()),
            "no uneven critical spectrum of rank 2 at eps 3",
        ),
        (
            lambda: uneven(OnSpheres((3, 3), 2, 0.1), (2, 1), generator=torch.Generator()),
            "do not fit into classes",
        ),
        (
            lambda: on_lines(PROBLEM, (0, 1), generator=torch.Generator()),
            r"from 0 to 4, one for each of 3 classes, got \[0, 1\]",
        ),
        (lambda: on_lines(PROBLEM, (0, 1, 5), generator=torch.Generator()), r"got \[0, 1, 5\]"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
