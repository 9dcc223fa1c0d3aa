"""What attention approximates: the Neumann series and the denoiser, by closed forms and by sampling."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.crate import axis_subspaces, flat_tokens, gaussian, subspaces
from transformer_theory.models import crate as blocks
from transformer_theory.models.crate.compression import coordinates, expansion
from transformer_theory.theories import crate
from transformer_theory.theories.crate import approximations
from transformer_theory.theories.crate.claims.compression import complete_instance


def test_neumann_sum_is_its_powers():
    A = gaussian(4, 4)
    assert_close(approximations.neumann_sum(A, terms=0), torch.eye(4, dtype=torch.float64))
    assert_close(approximations.neumann_sum(A, terms=3), torch.eye(4).double() - A + A @ A - A @ A @ A)


@each_case(("radius", "terms"), [(0.3, 1), (0.3, 4), (2.0, 1), (2.0, 3)])
def test_neumann_error_is_the_closed_form(radius, terms):
    assert crate.neumann_error(radius, terms=terms) == pytest.approx(radius ** (terms + 1) / (1 + radius))
    exact = 1 / (1 + radius)
    assert abs(exact - sum((-radius) ** j for j in range(terms + 1))) == pytest.approx(
        crate.neumann_error(radius, terms=terms)
    )


@pytest.mark.parametrize("sigma", [0.02, 0.4, 4.0])
def test_error_of_the_gradient_of_flat_tokens_is_the_square_of_the_radius(sigma):
    """All eigenvalues but zero are equal, so the relative error (1 - x)(1 + x) - 1 = -x^2 is the same in
    every direction.
    """
    tokens, bases = flat_tokens(3, 4, sigma), axis_subspaces(3, 4)
    error, radius = crate.gradient_error(tokens, bases, eps=0.5)
    assert float(radius) == pytest.approx(sigma**2 / 0.25)
    assert float(error) == pytest.approx((sigma**2 / 0.25) ** 2, rel=1e-9)


def test_the_series_does_not_approximate_on_layer_normalised_tokens():
    torch.manual_seed(0)
    block = blocks.ReleasedAttention(192, heads=3, head_dim=64).double()
    tokens = torch.nn.functional.layer_norm(gaussian(65, 192), (192,))
    error, radius = crate.gradient_error(tokens, block.subspaces().detach(), eps=math.sqrt(0.5))
    assert 100 < float(radius) < 400
    assert 1000 < float(error) < float(radius) ** 2
    small, _ = crate.gradient_error(0.001 * tokens, block.subspaces().detach(), eps=math.sqrt(0.5))
    assert float(small) < 1e-3


def spread(values):
    """Mean, smallest and largest value; the page on the theory quotes them to three digits."""
    return sum(values) / len(values), min(values), max(values)


def rounded(quoted):
    return pytest.approx(quoted, rel=5e-3)


@pytest.mark.parametrize(
    ("radius", "quoted"),
    [(0.0017, [1.50e-6, 1.24e-6, 1.78e-6]), (0.17, [0.0144, 0.0117, 0.0172]), (16.5, [76.7, 54.3, 99.2])],
)
def test_error_of_the_series_at_a_spectral_radius(radius, quoted):
    """Twenty instances of the claims, their tokens scaled to the radius."""
    errors = []
    for seed in range(20):
        tokens, bases = complete_instance(torch.Generator().manual_seed(seed))
        drawn = float(crate.gradient_error(tokens, bases, eps=1.0)[1])
        error, scaled = crate.gradient_error(tokens * (radius / drawn) ** 0.5, bases, eps=1.0)
        assert float(scaled) == pytest.approx(radius)
        errors.append(float(error))
    assert spread(errors) == rounded(quoted)


def test_spectral_radius_of_layer_normalised_tokens():
    radii, orthonormal = {0.5: [], 0.01: []}, []
    for seed in range(20):
        torch.manual_seed(seed)
        bases = blocks.ReleasedAttention(192, heads=3, head_dim=64).subspaces().detach().double()
        tokens = torch.nn.functional.layer_norm(gaussian(65, 192, seed=seed), (192,))
        for square, values in radii.items():
            values.append(float(crate.gradient_error(tokens, bases, eps=math.sqrt(square))[1]))
        drawn = crate.random_subspaces(3, 192, 64, generator=torch.Generator().manual_seed(seed))
        orthonormal.append(float(crate.gradient_error(tokens, drawn, eps=math.sqrt(0.5))[1]))
    assert spread(radii[0.5]) == rounded([208, 188, 229])
    assert spread(radii[0.01]) == rounded([10_400, 9_400, 11_500])
    assert spread(orthonormal) == rounded([492, 456, 539])


def test_remaining_noise_of_the_denoisers():
    """Relative to the signal: softmax over subspaces, the best estimate that knows the subspaces, softmax
    over tokens.
    """
    (claim,) = (each for each in crate.THEORY.claims if each.id == "crate/denoiser")
    ours, known, tokens = [], [], []
    for seed in range(20):
        measured = claim.check(torch.Generator().manual_seed(seed)).detail
        ours.append(measured["remaining noise"])
        known.append(measured["subspaces known"])
        tokens.append(claim.control(torch.Generator().manual_seed(seed)).detail["remaining noise"])
    assert spread(ours) == rounded([0.304, 0.273, 0.315])
    assert spread(known) == rounded([0.288, 0.268, 0.299])
    assert spread(tokens) == rounded([0.962, 0.957, 0.971])


def test_denoiser_is_the_posterior_mean_by_sampling():
    """E[z_0 | z] as the mean of clean samples, each weighted by how likely it makes the noisy token."""
    generator = torch.Generator().manual_seed(0)
    bases, sigma, samples = subspaces(3, 6, 2), 0.8, 400_000
    subspace = torch.randint(3, (samples,), generator=generator)
    clean = torch.empty(samples, 6, dtype=torch.float64)
    for k in range(3):
        clean[subspace == k] = (
            torch.randn(int((subspace == k).sum()), 2, generator=generator, dtype=torch.float64) @ bases[k].T
        )
    noisy = gaussian(2, 6, seed=3)
    weights = (-(noisy[:, None] - clean).square().sum(-1) / (2 * sigma**2)).softmax(-1)
    estimate = approximations.denoise(noisy, bases, sigma=sigma)
    assert_close(weights @ clean, estimate, atol=0.02, rtol=0)
    assert (estimate - noisy).norm() > 0.5


def test_log_density_is_that_of_the_mixture():
    bases, noisy, sigma = subspaces(3, 6, 2), gaussian(4, 6), 0.3
    covariances = bases @ bases.mT + sigma**2 * torch.eye(6, dtype=torch.float64)
    each = [
        torch.distributions.MultivariateNormal(torch.zeros(6).double(), C).log_prob(noisy)
        for C in covariances
    ]
    assert_close(
        approximations.log_density(noisy, bases, sigma=sigma), torch.stack(each).logsumexp(0) - math.log(3)
    )


def test_series_and_gradient_agree_where_the_radius_is_small():
    tokens, bases = 0.01 * gaussian(6, 12), subspaces()
    coords = coordinates(tokens, bases)
    A = expansion(bases, n=6, eps=0.5) * coords @ coords.mT
    by_series = expansion(bases, n=6, eps=0.5) * (
        approximations.neumann_sum(A, terms=6) @ coords @ bases.mT
    ).sum(-3)
    assert_close(by_series, crate.rate_gradient(tokens, bases, eps=0.5), atol=1e-14, rtol=1e-12)


def test_bad_input_is_named(unchecked):
    for radius in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"radius must be a finite number >= 0, got {radius}"):
            crate.neumann_error(radius)
    with pytest.raises(TypeError, match=r"terms must be an integer, got float 1\.5"):
        crate.neumann_error(0.5, terms=1.5)
