"""One nonlinear unit on a mixture: against autograd of the expected activation by another quadrature, and
Euler's identity.
"""

import pytest
import torch
from scipy import integrate, stats
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.theories.joma.mixture import Mixture, relu_averages, tanh_averages

F64 = torch.float64


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator, dtype=F64) for shape in ((3, 5), (3,), (5,)))  # pyright: ignore


@each_case("width", [0.1, 0.7, 2.0, 20.0])
@each_case("affinity", [-3.0, -0.2, 0.0, 1.3])
@each_case(
    ("averages", "slope"),
    [
        (relu_averages, lambda p: float(p > 0)),
        (tanh_averages, lambda p: 1 - torch.tanh(torch.tensor(p, dtype=F64)).item() ** 2),
    ],
    ids=["relu", "tanh"],
)
def test_averages_are_the_integrals(averages, slope, affinity: float, width: float):
    found = averages(torch.tensor([affinity], dtype=F64), torch.tensor(width, dtype=F64))
    kink = max(-12.0, min(-affinity / width, 12.0))

    def integral(power: int) -> float:
        def inside(x: float) -> float:
            return slope(affinity + width * x) * x**power * float(stats.norm.pdf(x))

        return sum(
            integrate.quad(inside, *part, epsabs=1e-13, limit=400)[0]
            for part in ((-12.0, kink), (kink, 12.0))
        )

    for power, value in enumerate(found):
        assert float(value) == pytest.approx(integral(power), abs=1e-9)


@each_case("seed", range(4))
def test_velocity_is_the_gradient_of_the_expected_activation(seed: int):
    """sum_j a_j E phi(v x) for tanh, differentiated by autograd under a plain sum over a fine grid of xi."""
    centres, pulls, v = drawn(seed)
    v.requires_grad_()
    xi = torch.linspace(-10, 10, 4001, dtype=F64)
    share = torch.exp(-xi * xi / 2)
    share = share / share.sum()
    value = (pulls * (torch.tanh((centres @ v)[:, None] + 0.6 * v.norm() * xi) @ share)).sum()
    (wanted,) = torch.autograd.grad(value, v)
    assert_close(
        Mixture(centres, pulls, 0.6, tanh_averages).velocity(v.detach()), wanted, atol=1e-9, rtol=1e-9
    )


@each_case("seed", range(4))
def test_a_relu_unit_with_a_constant_gradient_obeys_eulers_identity(seed: int):
    """v . dv/dt is the mean activation, weighted by the gradient (Euler's identity): by the mean of a
    rectified Gaussian.
    """
    centres, pulls, v = drawn(seed)
    mean, sd = centres @ v, 0.6 * v.norm()
    normal = torch.distributions.Normal(torch.zeros((), dtype=F64), torch.ones((), dtype=F64))
    rectified = mean * normal.cdf(mean / sd) + sd * normal.log_prob(mean / sd).exp()
    mixture = Mixture(centres, pulls, 0.6, relu_averages)
    assert_close(v @ mixture.velocity(v), pulls @ rectified, atol=1e-12, rtol=1e-12)
    pull, drag = mixture.terms(v)
    assert_close(mixture.velocity(v), pull - drag * v)
