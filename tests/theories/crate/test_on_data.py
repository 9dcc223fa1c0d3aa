"""CRATE on data: the unrolled model, its guarantee, and what it finds in a mixture of subspaces."""

import numpy as np
import pytest
import torch

from tests.cases import each_case
from tests.problems.crate import gaussian, subspaces
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import RANGE_DRAWS
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data.synthetic import subspace_mixture
from transformer_theory.data.tokens import TokenData
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.theories.crate import on_data, random_subspaces, unrolled
from transformer_theory.theories.crate.figures import unrolled as figure
from transformer_theory.theories.crate.in_networks import null_subspaces
from transformer_theory.theories.crate.sparse_coding import optimal_code


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def measured(data, *, draws=199, seed=0):
    return collect(on_data.measure(on_data.read(data), generator(seed), draws=draws))


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
    assert sparse.value <= sparse.threshold == 1 / 8 < sparse.null.low
    left = rows[on_data.LEFT]
    assert left.value < left.null.low  # along its own subspaces R^c falls further than along random ones
    assert {len(row.null.draws) for row in table if row.null} == {RANGE_DRAWS}
    assert {row.predicted for row in table} == {None}  # inequalities only
    assert rows[on_data.SMALLEST_CHANGE].value > 0
    assert {row.scope for row in table if row.kind == "on data"} == {"any data"}
    assert arrays["crate/rate/exact"].shape == (unrolled.LAYERS + 1,)
    assert np.isfinite(np.concatenate([array.ravel() for array in arrays.values()])).all()


def test_without_draws_there_is_no_null(mixture):
    (none, arrays), (some, _) = (measured(mixture.data[:12], draws=draws) for draws in (0, 2))
    assert {row.null for row in none} == {None}
    assert none.column("value") == some.column("value")
    assert {len(row.null.draws) for row in some if row.null} == {2}
    on_data.ON_DATA.plot(Result("compare", table=none, arrays=arrays))


def test_seeds_share_sequences_and_random_subspaces(mixture, monkeypatch):
    monkeypatch.setattr(on_data, "MAX_SEQUENCES", 5)
    seen = []
    monkeypatch.setattr(
        on_data, "null_subspaces", lambda *sizes, seed: seen.append(null_subspaces(*sizes, seed=seed))
    )
    monkeypatch.setattr(on_data, "unroll", lambda tokens, *_, **__: seen.append(tokens) or 1 / 0)
    for seed in (0, 1):
        with pytest.raises(ZeroDivisionError):
            measured(mixture.data, draws=2, seed=seed)
    assert [len(values) for values in seen] == [4, 4, 5] * 2
    for first, second in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(first, second)


def test_codes_in_random_subspaces_have_the_nonzeros_of_the_minimiser():
    """ISTA from zero has them after every step, because the columns are orthonormal."""
    bases = random_subspaces(3, 12, 4, generator=generator())
    tokens = unit_norm(gaussian(40, 12))
    code = unrolled.sparse_code(tokens, bases)[0]
    assert torch.equal(code != 0, optimal_code(tokens, bases, lam=unrolled.LAM) != 0)
    assert 0.1 < float((code != 0).double().mean()) < 0.4


def test_wide_tokens_are_taken_from_fewer_sequences():
    tokens = torch.zeros(300, 10, 1000, dtype=torch.float64)
    tokens[:, :, :20] = gaussian(300, 10, 20)
    assert len(on_data._sample(on_data.read(TokenData(tokens=tokens)))) == on_data.MIN_SEQUENCES
    assert len(on_data._sample(on_data.read(TokenData(tokens=tokens[:, :, :20])))) == on_data.MAX_SEQUENCES


@each_case(
    "tokens",
    [
        torch.ones(6, 3, 5),  # constant tokens
        gaussian(2, 3, 4),  # two sequences
        gaussian(1, 1, 8),  # one token
        gaussian(3, 2, 40),  # fewer sequences than dimensions
        gaussian(5, 3, 1),
        torch.cat([torch.zeros(5, 3, 4), torch.ones(1, 3, 4)]),
    ],
)
def test_unusual_tokens_give_values_or_reasons(tokens):
    table, arrays = measured(TokenData(tokens=tokens), draws=3)
    assert len(table.select(quantity=on_data.LEFT)) == 1
    assert all(row.reason if row.value is None else np.isfinite(row.value) for row in table)
    on_data.ON_DATA.plot(Result("compare", table=table, arrays=arrays))


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
    result = figure.unrolled.quick().run()
    rates = {
        name: result.select(quantity=figure.RATE, at={"form": name}).column("value")
        for name in ("exact", "paper", "tied residual")
    }
    assert (np.diff(rates["exact"]) <= 0).all()
    assert (np.diff(rates["paper"]) <= 0).all()
    assert (np.diff(rates["tied residual"]) > 0).all()
    assert {row.verdict for row in result.table if row.verdict} == {"consistent"}
    gaps = {
        name: result.select(quantity=figure.GAP, at={"method": name}).column("value")
        for name in ("ISTA", "FISTA")
    }
    assert all(gap[-1] < 1e-3 * gap[0] for gap in gaps.values())
    assert (np.diff(gaps["ISTA"]) <= 1e-12).all()
    figure.unrolled.quick().plot(result).savefig(tmp_path / "figure.svg")


def test_tokens_that_grow_stop_before_the_rate_is_lost_to_rounding():
    # beta ||W_k||^2 is about 6, so 1e4 is the last factor below the limit
    tokens, bases = 0.3 * gaussian(2, 5, 12), subspaces()
    run = unrolled.unroll(tokens, bases, lambda state: 100 * state, eps=0.5, layers=6)
    sizes = run.states.abs().amax((1, 2, 3)) / tokens.abs().max()
    assert sizes.tolist() == pytest.approx([1, 1e2, 1e4, 1e4, 1e4, 1e4, 1e4])
    assert bool(torch.isfinite(run.rates).all())
    infinite = unrolled.unroll(tokens, bases, lambda state: state / 0, eps=0.5, layers=2)
    assert torch.equal(infinite.states[-1], tokens)
