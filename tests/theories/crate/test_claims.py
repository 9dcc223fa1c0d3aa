"""What the claims assume and measure. The contract tests and the ledger check that they hold and that their
controls fail.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import axis_subspaces
from transformer_theory.data.synthetic import subspace_mixture
from transformer_theory.metrics.coding import subspace_coding_rate, unit_norm
from transformer_theory.theories import crate
from transformer_theory.theories.crate.claims import causal, compression, sparse_coding


def test_the_paper_step_claim_measures_that_the_neumann_series_converges(generator):
    (claim,) = (each for each in crate.THEORY.claims if each.id == "crate/paper-step")
    evidence = claim.check(generator)
    assert 0.3 < evidence.detail["beta ||W_k||^2"] < 1
    assert evidence.covered
    bases = crate.random_subspaces(4, 24, 6, generator=generator)
    # beta = 0.3 < 1 does not make the series converge
    alike = torch.ones(20, 24, dtype=torch.float64) / 24**0.5
    assert 0.3 * max(float(torch.linalg.matrix_norm(alike @ U, 2)) ** 2 for U in bases) > 1


def named(name):
    (claim,) = (each for each in crate.THEORY.claims if each.id == f"crate/{name}")
    return claim


def test_long_tokens_of_unequal_length_lower_the_rate_in_the_tied_residual_form():
    """Why `crate/released-sign` assumes tokens of norm one: one head, U the identity."""
    rows = [[-16.6, 3.6, -0.2, 15.9], [6.4, -7.9, 2.3, -11.1], [-16.2, 7.1, -0.2, 17.5], [3.8, -3.1, 0.7, -6.1], [9.2, -5.3, 1, -11.8],  # noqa: E501
            [7.1, -7.4, 2.1, -11.4], [14.1, -3.1, -0.2, -12], [1.7, 2.6, -1.3, -0.8], [1.7, 2.6, -1.3, -0.8], [-17.7, -0.9, 1.7, 13.9],  # noqa: E501
            [0.9, 2.5, -1.9, 1.3], [0.7, 2.2, -1.8, 1.2]]  # fmt: skip
    tokens, bases = torch.tensor(rows, dtype=torch.float64), torch.eye(4, dtype=torch.float64)[None]
    before = subspace_coding_rate(tokens, bases, eps=0.1)
    changes = [
        subspace_coding_rate(crate.released_step(tokens, bases, c * bases.mT), bases, eps=0.1) - before
        for c in (0.05, 0.1, 0.25)
    ]
    assert [round(float(change), 4) for change in changes] == [-0.0078, -0.0132, -0.0094]
    one = unit_norm(tokens)
    for c in (0.05, 0.1, 0.25, 1.0):
        after = crate.released_step(one, bases, c * bases.mT)
        assert subspace_coding_rate(after, bases, eps=0.1) > subspace_coding_rate(one, bases, eps=0.1)


def test_one_token_and_two_lines_that_are_not_orthogonal_lower_the_rate_in_the_tied_residual_form():
    """Why `crate/released-sign` assumes mutually orthogonal subspaces. Two lines at 60 degrees, coordinates w
    of a token: with c = 1 they become 2 w_1 + w_2 / 2 and 2 w_2 + w_1 / 2, so (1, -4) / sqrt(28) becomes (0,
    -7.5) / sqrt(28) and one of two rates vanishes.
    """
    token = torch.tensor([[1.0, -3 * 3**0.5]], dtype=torch.float64) / 28**0.5
    bases = torch.tensor([[[1.0], [0.0]], [[0.5], [3**0.5 / 2]]], dtype=torch.float64)
    assert crate.incoherence(bases) == pytest.approx(0.5)
    after = crate.released_step(token, bases, bases.mT)
    assert_close((after @ bases).flatten(), torch.tensor([0.0, -7.5], dtype=torch.float64) / 28**0.5)
    rates = [float(subspace_coding_rate(tokens, bases, eps=0.05)) for tokens in (token, after)]
    beta = 400  # 1 / eps^2
    assert rates == pytest.approx(
        [math.log((1 + beta / 28) * (1 + 16 * beta / 28)) / 2, math.log(1 + 56.25 * beta / 28) / 2]
    )
    assert rates[1] < 0.83 * rates[0]  # 3.35 after 4.08 nats
    orthogonal = torch.eye(2, dtype=torch.float64)[:, :, None]
    assert subspace_coding_rate(
        crate.released_step(token, orthogonal, orthogonal.mT), orthogonal, eps=0.05
    ) > subspace_coding_rate(token, orthogonal, eps=0.05)


def test_the_paper_step_raises_the_rate_of_a_single_token_beyond_a_beta_of_one():
    """Why `crate/paper-step` assumes beta <= 1: the token is multiplied by 1 + kappa beta (beta - 1), the
    series converging or not.
    """
    bases = axis_subspaces(4, 6)
    token = torch.zeros(1, 24, dtype=torch.float64)
    token[0, ::6] = 0.5
    # beta is 3, 1 and 2/3
    for eps, kappa, factor in ((2**0.5, 0.5 / 3, 2.0), (6**0.5, 0.5, 1.0), (3.0, 0.75, 5 / 6)):
        assert_close(crate.paper_step(token, bases, kappa=kappa, eps=eps), factor * token)
    rates = [float(subspace_coding_rate(size * token, bases, eps=2**0.5)) for size in (1.0, 2.0)]
    assert rates == pytest.approx([1.119, 2.773], abs=5e-4)


def test_both_halves_of_a_statement_are_checked(generator, monkeypatch):
    bound, rates = compression.variational_rate, causal.added_rates
    monkeypatch.setattr(compression, "variational_rate", lambda *args, **kwargs: 2 * bound(*args, **kwargs))
    assert named("tssa-bound").check(generator).verdict == "violated"
    monkeypatch.setattr(causal, "added_rates", lambda *args, **kwargs: rates(*args, **kwargs) + 1)
    assert named("causal-exact-step").check(generator).verdict == "violated"


def test_spectral_radii_of_the_series_are_drawn_on_both_sides_of_one():
    details = [
        named("neumann-converges").check(torch.Generator().manual_seed(seed)).detail for seed in range(5)
    ]
    for side, low, high in (("below", 0.2, 0.99), ("above", 1.01, 3.0)):
        radii = [detail[f"rho {side} 1"] for detail in details]
        assert len({round(radius, 3) for radius in radii}) == 5
        assert low < min(radii) < max(radii) < high
        assert [detail[f"largest factor, rho {side} 1"] for detail in details] == pytest.approx(
            radii, rel=1e-5
        )


def test_twenty_starts_find_the_subspaces_where_one_does_not():
    """Which starts fail depends on the last bits of the processor's products, so the numbers over 24 mixtures
    are compared.
    """
    lost = {1: 0, 20: 0}
    for seed in range(24):
        for starts in lost:
            generator = torch.Generator().manual_seed(seed)
            tokens = subspace_mixture(96, seq=1, dim=24, classes=4, rank=6, generator=generator).data.tokens[
                :, 0
            ]
            bases, assigned = crate.fit_subspaces(tokens, K=4, p=6, generator=generator, starts=starts)
            residual = tokens - torch.einsum("nd,ndp,nep->ne", tokens, bases[assigned], bases[assigned])
            lost[starts] += int(residual.square().sum() > 0.01 * tokens.square().sum())
    assert lost[1] >= 3
    assert lost[20] == 0


@pytest.mark.parametrize("name", ["exact-step", "tssa-step", "causal-exact-step"])
def test_controls_claim_twice_the_decrease_and_half_of_it_is_measured(name, generator):
    state = generator.get_state()
    checked, control = named(name).check(generator), named(name).control(generator.set_state(state))
    largest = [
        max(value for key, value in evidence.detail.items() if "kappa L" in key)
        for evidence in (checked, control)
    ]
    assert -1.1 < largest[0] < -1
    assert largest[1] == pytest.approx(largest[0] / 2)
    assert (checked.verdict, control.verdict) == ("consistent", "violated")


def test_the_duality_gap_is_zero_at_a_minimiser_of_zero(generator, monkeypatch):
    """The largest correlation may be negative: s = min(1, lambda / it) would not be 1."""
    dictionary, token = (
        torch.tensor([[1.0, 1.0], [0.0, 0.5]], dtype=torch.float64),
        torch.tensor([[-1.0, 0.0]], dtype=torch.float64),
    )
    assert crate.sparse_coding.duality_gap(torch.zeros_like(token), token, dictionary, lam=0.1).tolist() == [
        0.0
    ]

    def gap(code, tokens, dictionary, *, lam):
        residual = tokens - code @ dictionary.mT
        scale = (lam / (residual @ dictionary).amax(-1, keepdim=True)).clamp(max=1)
        slack = (lam - scale * (residual @ dictionary)).clamp(min=0)
        return 0.5 * (1 - scale.squeeze(-1)).square() * residual.square().sum(-1) + (code * slack).sum(-1)

    assert gap(torch.zeros_like(token), token, dictionary, lam=0.1).tolist() == pytest.approx([0.605])
    monkeypatch.setattr(sparse_coding, "duality_gap", gap)
    assert named("duality-gap").check(generator).verdict == "violated"
