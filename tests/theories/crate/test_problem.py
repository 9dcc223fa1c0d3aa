"""Subspaces, their measures, and the objective."""

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import gaussian, subspaces
from transformer_theory.metrics.coding import coding_rate, subspace_coding_rate
from transformer_theory.theories import crate


def test_random_subspaces_are_orthonormal_and_orthogonal_as_far_as_dimensions_allow():
    bases = subspaces(3, 12, 4)
    assert crate.incoherence(bases) < 1e-14
    assert crate.incompleteness(bases) < 1e-14
    crowded = subspaces(5, 12, 4)
    assert crowded.shape == (5, 12, 4)
    assert_close(crowded.mT @ crowded, torch.eye(4, dtype=torch.float64).expand(5, 4, 4))
    assert 0.1 < crate.incoherence(crowded) <= 1


def test_incoherence_and_incompleteness_of_planes_at_an_angle():
    angle = torch.tensor(0.3, dtype=torch.float64)
    bases = torch.stack(
        [torch.tensor([[1.0], [0.0]], dtype=torch.float64), torch.stack([angle.cos(), angle.sin()])[:, None]]
    )
    assert crate.incoherence(bases) == pytest.approx(float(angle.cos()))
    # eigenvalues of the sum are 1 +- cos
    assert crate.incompleteness(bases) == pytest.approx(float(angle.cos()))


def test_fitted_subspaces_are_those_of_a_mixture():
    true = subspaces(3, 12, 2, seed=4)
    tokens = torch.cat([gaussian(60, 2, seed=k) @ true[k].T for k in range(3)])
    bases, assigned = crate.fit_subspaces(tokens, K=3, p=2, generator=torch.Generator().manual_seed(0))
    assert len({tuple(assigned[60 * k : 60 * k + 60].unique().tolist()) for k in range(3)}) == 3
    projected = torch.stack([z @ bases[k] @ bases[k].T for z, k in zip(tokens, assigned)])
    assert_close(projected, tokens, atol=1e-10, rtol=0)


def test_objective_is_its_three_terms():
    tokens, bases = gaussian(2, 5, 12).relu(), subspaces()
    objective = crate.sparse_rate_objective(tokens, bases, eps=0.5, lam=0.1)
    count = torch.tensor([float((z > 0).sum()) for z in tokens], dtype=torch.float64)
    assert_close(
        objective, subspace_coding_rate(tokens, bases, eps=0.5) + 0.1 * count - coding_rate(tokens, eps=0.5)
    )
    assert_close(crate.nonzeros(tokens), count / 60)


def test_subspaces_larger_than_the_space_are_refused(unchecked):
    with pytest.raises(ValueError, match="p=5 and d=4"):
        subspaces(2, 4, 5)
    for K, message in ((2.5, r"got float 2\.5"), ("2", "got str '2'")):
        with pytest.raises(TypeError, match=f"K must be an integer, {message}"):
            subspaces(K, 4, 2)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e-250)]
)
def test_subspaces_of_tokens_of_any_scale(dtype, scale):
    draw = torch.Generator().manual_seed(0)
    frame = torch.linalg.qr(torch.randn(8, 4, generator=draw, dtype=torch.float64)).Q
    code = torch.randn(40, 2, generator=draw, dtype=torch.float64)
    tokens = torch.cat([code[:20] @ frame[:, :2].T, code[20:] @ frame[:, 2:].T])
    bases, labels = crate.fit_subspaces(
        (scale * tokens).to(dtype), K=2, p=2, generator=torch.Generator().manual_seed(1)
    )
    assert len(set(labels[:20].tolist())) == len(set(labels[20:].tolist())) == 1
    assert labels[0] != labels[-1]
    # every token lies in its subspace
    kept = torch.stack([(z @ bases[j].double()).norm() / z.norm() for z, j in zip(tokens, labels)])
    assert torch.allclose(kept, torch.ones_like(kept), atol=1e-5)
