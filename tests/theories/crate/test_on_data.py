"""CRATE on data: the unrolled model, its guarantee, and what it finds in a mixture of subspaces."""

import numpy as np
import pytest
import torch

from tests.problems.crate import gaussian, subspaces
from transformer_theory.core.measurement import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data.synthetic import subspace_mixture
from transformer_theory.data.tokens import TokenData
from transformer_theory.theories.crate import on_data, unrolled
from transformer_theory.theories.crate.figures.unrolled import Unrolled


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def measured(data):
    return collect(on_data.measure(on_data.read(data), generator()))


@pytest.fixture(scope="module")
def mixture():
    return subspace_mixture(64, seq=8, dim=24, classes=4, rank=6, generator=generator())


def test_the_guarantee_holds_at_every_layer_and_is_not_vacuous(mixture):
    bases = mixture.bases
    run = unrolled.unroll(mixture.data.tokens, bases, unrolled.forms(bases, n=8, eps=0.5)["exact"], eps=0.5)
    bound = unrolled.guaranteed_rates(run, bases, eps=0.5)
    assert (run.rates <= bound + 1e-12).all()
    assert bound[-1] < 0.8 * bound[0]
    assert (run.changes < 0).all()


def test_a_mixture_of_subspaces_is_recovered_and_coded_as_sparsely_as_predicted(mixture):
    table, arrays = measured(mixture.data)
    rows = {row.quantity: row for row in table}
    assert rows["tokens lie in one of the subspaces"].verdict == "holds"
    assert rows["subspaces are incoherent"].verdict == "holds"
    assert rows[on_data.ON_DATA.headline].verdict == "consistent"
    sparse = rows[on_data.CODE_NONZEROS]
    assert sparse.value <= sparse.predicted == 1 / 8 < sparse.null.low
    assert rows[on_data.SMALLEST_CHANGE].value > 0
    assert {row.verdict for row in table if row.scope == "any data"} == {None}
    assert arrays["crate/rate/exact"].shape == (unrolled.LAYERS + 1,)
    assert np.isfinite(np.concatenate([array.ravel() for array in arrays.values()])).all()


def test_scale_of_the_data_does_not_matter(mixture):
    data = mixture.data[:8]
    small = TokenData(tokens=2.0**-20 * data.tokens)
    first, second = (measured(d)[0].column("value") for d in (data, small))
    assert first == pytest.approx(second)


def test_tokens_that_are_all_zero_are_not_supported():
    answer = on_data.read(TokenData(tokens=torch.zeros(3, 2, 4, dtype=torch.float64)))
    assert isinstance(answer, Unsupported)
    assert "zero" in answer.reason


def test_the_figure_shows_the_three_forms(tmp_path):
    result = Unrolled.quick().run()
    rates = {name: result.arrays[f"crate/rate/{name}"] for name in ("exact", "paper", "tied residual")}
    assert (np.diff(rates["exact"]) <= 0).all()
    assert (np.diff(rates["paper"]) <= 0).all()
    assert (np.diff(rates["tied residual"]) > 0).all()
    assert {row.verdict for row in result.table if row.verdict} == {"consistent"}
    for name in ("ISTA", "FISTA"):
        gap = result.arrays[f"crate/gap/{name}"]
        assert gap[-1] < 1e-3 * gap[0]
    assert (np.diff(result.arrays["crate/gap/ISTA"]) <= 1e-12).all()
    Unrolled.quick().plot(result).savefig(tmp_path / "figure.svg")


def test_tokens_that_grow_stop_before_the_rate_is_lost_to_rounding():
    tokens, bases = 0.3 * gaussian(2, 5, 12), subspaces()  # beta ||W_k||^2 is about 6, so 1e4 is the last factor below the limit
    run = unrolled.unroll(tokens, bases, lambda state: 100 * state, eps=0.5, layers=6)
    sizes = run.states.abs().amax((1, 2, 3)) / tokens.abs().max()
    assert sizes.tolist() == pytest.approx([1, 1e2, 1e4, 1e4, 1e4, 1e4, 1e4])
    assert bool(torch.isfinite(run.rates).all())
    infinite = unrolled.unroll(tokens, bases, lambda state: state / 0, eps=0.5, layers=2)
    assert torch.equal(infinite.states[-1], tokens)
