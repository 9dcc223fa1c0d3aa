"""The matrix that shows feasibility without any optimisation."""

import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.attention_svm import builders
from transformer_theory.theories.attention_svm.feasibility import construct


def gaussian(*size: int, seed: int = 0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@each_case(("n", "T", "d"), [(1, 2, 1), (3, 4, 3), (4, 3, 4), (6, 7, 6), (12, 5, 30)])
def test_every_selection_of_wide_data_gets_margin_one(n, T, d):
    """d >= max(T - 1, n): the condition holds for every selection."""
    for seed in range(5):
        x, z = gaussian(n, T, d, seed=seed), gaussian(n, d, seed=100 + seed)
        select = torch.randint(T, (n,), generator=torch.Generator().manual_seed(seed))
        found = construct(builders.constraints(x, z, select))
        assert found.applies
        assert not found.reason
        logits = (x @ (z @ found.W.T)[..., None]).squeeze(-1)
        others = logits.scatter(1, select[:, None], -torch.inf).amax(-1)
        torch.testing.assert_close(
            logits.gather(1, select[:, None]).squeeze(1) - others, torch.ones(n, dtype=torch.float64)
        )


def test_equations_and_many_queries():
    x, z = gaussian(2, 3, 7), gaussian(2, 7, seed=1)
    chosen = torch.tensor([[True, True, False], [False, True, False]])
    pairs = builders.multi_token(x, z, chosen, logits=gaussian(2, 3, seed=2))
    found = construct(pairs)
    assert found.applies
    torch.testing.assert_close(found.margins, pairs.rhs)
    # queries: the four tokens that have a choice
    causal = builders.causal(x, torch.tensor([[0, 1, 1], [0, 0, 2]]))
    found = construct(causal)
    assert found.applies
    torch.testing.assert_close(causal.margins(found.W), torch.ones(6, dtype=torch.float64))


def test_the_reason_names_the_failed_condition():
    x, z, first = gaussian(3, 5, 4), gaussian(3, 4, seed=1), torch.zeros(3, dtype=torch.long)
    narrow = construct(builders.constraints(x[..., :3], z[:, :3], first))
    assert not narrow.applies
    assert "4 differences of input 0 are linearly dependent (3 dimensions)" in narrow.reason
    assert not narrow.W.any()
    alike = construct(builders.constraints(x, z[torch.tensor([0, 1, 0])], first))
    assert "3 queries are linearly dependent (rank 2 in 4 dimensions)" in alike.reason
    silent = construct(builders.constraints(x, z * torch.tensor([[1.0], [0.0], [1.0]]).double(), first))
    assert "queries are linearly dependent" in silent.reason
    twice = construct(builders.constraints(torch.cat([x[:, :3], x[:, :1]], 1), z, first))
    # a token equal to the selected one
    assert "differences of input 0 are linearly dependent" in twice.reason
    close = x.clone()
    close[1, 1] = close[1, 0] + 1e-30
    assert "differences of input 1" in construct(builders.constraints(close, z, first)).reason


def test_nothing_to_select_and_extreme_scales():
    x, z, first = gaussian(3, 4, 5), gaussian(3, 5, seed=1), torch.zeros(3, dtype=torch.long)
    assert construct(builders.constraints(x[:, :1], z, first)).applies
    for scale in (1e-150, 1e-3, 1e150):
        found = construct(builders.constraints(scale * x, z, first))
        assert found.applies
        assert bool(torch.isfinite(found.W).all())
    with pytest.raises(ValueError, match="batch"):
        construct(builders.constraints(x[None], z[None], first[None]))
