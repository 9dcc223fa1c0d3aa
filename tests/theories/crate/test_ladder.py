"""The ladder of compression: its contract, its nulls, and why the paper's step fails in subspaces that share
directions.
"""

from functools import lru_cache, partial

import pytest
import torch

from tests.cases import each_case
from tests.problems.crate import gaussian
from transformer_theory.core.errors import NotConverged
from transformer_theory.core.ladder import COLUMNS
from transformer_theory.core.statistics import EQUAL_SCALE, UNTRAINED
from transformer_theory.core.table import Table
from transformer_theory.metrics.coding import subspace_coding_rate, unit_norm
from transformer_theory.models.crate import PaperAttention
from transformer_theory.models.crate.compression import expansion
from transformer_theory.models.crate.sparsification import ista_step
from transformer_theory.models.image_networks import Mlp
from transformer_theory.theories import crate
from transformer_theory.theories.crate.in_networks import (
    COMPRESSION,
    EPS,
    IN_NETWORKS,
    NONZEROS,
    ROTATED,
    random_rotations,
)
from transformer_theory.theories.crate.ladder import LADDER, given_tokens, networks, quantities
from transformer_theory.theories.crate.ladder.quantities import (
    INCOHERENCE,
    ROTATED_UPDATES,
    compression_rows,
)
from transformer_theory.theories.crate.ladder.updates import turned, update_rotations

RUNGS = {rung.name: rung for rung in LADDER.rungs}
UNTRAINED_RUNGS = (
    "exact steps",
    "fitted subspaces",
    "digits",
    "paper's step",
    "embedded patches",
    "network's scale",
)


DRAWS, NETWORKS = 19, 3  # fewer draws than in the ladder, for speed


@pytest.fixture(autouse=True, scope="module")
def _few_draws():
    with pytest.MonkeyPatch.context() as patch:
        for module in (given_tokens, networks, quantities):
            patch.setattr(module, "LADDER_DRAWS", DRAWS)
        patch.setattr(given_tokens, "HEADLINE_DRAWS", DRAWS)
        patch.setattr(networks, "RANGE_DRAWS", NETWORKS)
        yield


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def headline(rows):
    return Table(rows).select(quantity=LADDER.quantity).one()


def of_step(tokens, bases, step):
    """The headline of one step, with few draws."""
    return headline(of_update(tokens, bases, step(tokens)))


def of_update(tokens, bases, after):
    return tuple(compression_rows(given_tokens.compression(tokens, after, bases, draws=DRAWS)))


def fall(before, after, frames):
    """1 - R^c after / R^c before, of centred tokens of norm one."""
    rates = (
        subspace_coding_rate(unit_norm(Z - Z.mean(-1, keepdim=True)), frames, eps=EPS).mean()
        for Z in (before, after)
    )
    first, last = rates
    return float(1 - last / first)


@lru_cache
def measured(name):
    return tuple(RUNGS[name].measure(seeded()))


def beyond_nulls(row):
    """For each null 1 if the value lies above all of its draws, -1 if below all, otherwise 0."""
    return tuple((row.value > null.high) - (row.value < null.low) for null in row.nulls)


def test_the_rungs_cover_all_columns():
    assert {rung.column for rung in LADDER.rungs} == set(COLUMNS)
    assert [rung.name for rung in LADDER.rungs if rung.covered] == ["exact steps"]
    assert [rung.name for rung in LADDER.rungs if rung.needs] == ["ViT on images"]
    assert IN_NETWORKS.headline == COMPRESSION


@each_case("name", UNTRAINED_RUNGS)
def test_rungs_without_training_keep_the_contract(name):
    rows = measured(name)
    assert {row.kind for row in rows} == {"rung"}
    row, raw = headline(rows), Table(rows).select(quantity=COMPRESSION).one()
    assert LADDER.null == ROTATED
    assert (
        [null.kind for null in row.nulls] == [null.kind for null in raw.nulls] == [ROTATED, ROTATED_UPDATES]
    )
    assert [len(null.draws) for null in row.nulls] == [DRAWS, DRAWS]
    assert row.null.median == pytest.approx(0, abs=1e-12)
    assert row.predicted is None
    assert row.value == pytest.approx(raw.value - raw.null.median)
    expected = {"paper's step": (-1, -1), "embedded patches": (0, -1), "network's scale": (-1, -1)}.get(
        name, (1, 1)
    )
    assert beyond_nulls(row) == expected
    assert (
        Table(rows).select(quantity=NONZEROS).one().null.low
        > Table(rows).select(quantity=NONZEROS).one().value
    )


def test_digits_and_the_step_in_the_paper_form_differ_in_the_step_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(given_tokens, "step_rows", lambda *arguments, **_: seen.append(arguments) or ())
    list(given_tokens.paper_rows(seeded(), embedded=False))
    list(given_tokens.digit_rows(seeded()))
    (tokens, bases, paper), (others, other_bases, exact) = seen
    assert torch.equal(tokens, others)
    assert torch.equal(bases, other_bases)
    assert paper.keywords["kappa"] == exact.keywords["kappa"]
    assert paper.keywords["eps"] == exact.keywords["eps"] == EPS
    assert float(tokens.square().sum(-1).mean()) == pytest.approx(1)


@pytest.mark.parametrize("name", UNTRAINED_RUNGS[:3])
def test_exact_steps_fall_by_the_guarantee(name):
    row = Table(measured(name)).select(quantity=given_tokens.LENGTHS_KEPT).one()
    assert row.verdict == "consistent"
    assert row.value > row.threshold > 0


def test_rungs_are_determined_by_the_generator():
    rung = RUNGS["fitted subspaces"]
    assert tuple(rung.measure(seeded())) == measured(rung.name)
    assert headline(rung.measure(seeded(1))).value != headline(measured(rung.name)).value


def test_the_guarantee_is_that_of_the_descent_lemma():
    bases, tokens = crate.random_subspaces(3, 12, 4, generator=seeded()), gaussian(16, 5, 12)
    row = list(given_tokens.exact_rows(tokens, bases, data=""))[-1]
    L = crate.lipschitz(bases, n=5, eps=EPS)
    Z = tokens.clone().requires_grad_()
    rate = subspace_coding_rate(Z, bases, eps=EPS).sum()
    (gradient,) = torch.autograd.grad(rate, Z)
    after = subspace_coding_rate(tokens - gradient / L, bases, eps=EPS).sum()
    assert row.value == pytest.approx(float((1 - after / rate).detach()))
    assert row.threshold == pytest.approx(float((gradient.square().sum() / (2 * L * rate)).detach()))


def test_a_step_along_other_subspaces_is_not_beyond_chance():
    _, tokens, bases = given_tokens.mixture(seeded())
    other = crate.random_subspaces(*bases.shape, generator=seeded(1))
    step = partial(crate.exact_step, bases=other, kappa=1 / crate.lipschitz(other, n=17, eps=EPS), eps=EPS)
    assert beyond_nulls(of_step(tokens, bases, step))[0] < 1


def test_rotations_are_orthogonal_and_do_not_depend_on_their_number():
    drawn = random_rotations(5, 3)
    torch.testing.assert_close(drawn.mT @ drawn, torch.eye(5, dtype=torch.float64).expand(3, 5, 5))
    assert torch.equal(drawn[:2], random_rotations(5, 2))
    assert float((drawn[0] - drawn[1]).abs().max()) > 0.1


def test_the_null_measures_rotated_subspaces():
    bases = torch.linalg.qr(gaussian(3, 12, 4))[0]  # they share directions
    tokens, after = gaussian(4, 5, 12), gaussian(4, 5, 12, seed=1)
    rows = given_tokens.compression(tokens, after, bases, draws=2)

    row = rows.select(quantity=COMPRESSION).one()
    assert row.value == pytest.approx(fall(tokens, after, bases))
    assert row.null.draws == pytest.approx(
        [fall(tokens, after, rotation @ bases) for rotation in random_rotations(12, 2)]
    )
    assert rows.select(quantity=INCOHERENCE).one().value == pytest.approx(crate.incoherence(bases))


def test_rotations_of_updates_fix_the_vector_of_ones():
    drawn, ones = update_rotations(5, 3), torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(drawn.mT @ drawn, torch.eye(5, dtype=torch.float64).expand(3, 5, 5))
    torch.testing.assert_close(drawn @ ones, ones.expand(3, 5))
    assert torch.equal(drawn[:2], update_rotations(5, 2))
    assert float((drawn[0] - drawn[1]).abs().max()) > 0.1


def test_turned_tokens_keep_their_angles_and_turn_in_rotated_directions():
    tokens, after = gaussian(4, 5, 12), gaussian(4, 5, 12, seed=1)
    z, target = (unit_norm(Z - Z.mean(-1, keepdim=True)) for Z in (tokens, after))
    torch.testing.assert_close(turned(tokens, after, torch.eye(12, dtype=torch.float64)), target)
    rotation = update_rotations(12, 1)[0]
    found = turned(tokens, after, rotation)
    torch.testing.assert_close((found * z).sum(-1), (target * z).sum(-1))
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(4, 5, dtype=torch.float64))
    torch.testing.assert_close(found.sum(-1), torch.zeros(4, 5, dtype=torch.float64))
    # In the plane of z and the rotated turn: nothing is left after both are projected out.
    turn = (target - (target * z).sum(-1, keepdim=True) * z) @ rotation
    axes = torch.linalg.qr(torch.stack([z, turn], -1))[0]
    torch.testing.assert_close(axes @ (axes.mT @ found[..., None]), found[..., None])
    assert float((found - target).abs().max()) > 0.1
    # lengths and means are not seen, so they are not rotated
    torch.testing.assert_close(turned(tokens, 3 * tokens + 2, rotation), z)


def test_the_second_null_measures_rotated_updates_in_the_own_subspaces_and_in_rotated_ones():
    bases, tokens, after = (
        torch.linalg.qr(gaussian(3, 12, 4))[0],
        gaussian(4, 5, 12),
        gaussian(4, 5, 12, seed=1),
    )
    rows = Table(of_update(tokens, bases, after))
    updates, rotations = update_rotations(12, DRAWS), random_rotations(12, DRAWS)
    own = [fall(tokens, turned(tokens, after, update), bases) for update in updates]
    both = [
        fall(tokens, turned(tokens, after, pair[0]), pair[1] @ bases)
        for pair in zip(updates, rotations, strict=True)
    ]
    median = float(torch.tensor(both).median())
    assert rows.select(quantity=COMPRESSION).one().nulls[1].draws == pytest.approx(own)
    assert headline(rows).nulls[1].draws == pytest.approx([draw - median for draw in own])


def test_updates_that_ignore_the_subspaces_leave_one_null_and_not_both():
    """The tokens have most of their energy in the subspaces, as in trained networks; random directions return
    it to the mean.
    """
    bases = crate.random_subspaces(4, 64, 8, generator=seeded())
    noise = gaussian(16, 17, 64)
    tokens = unit_norm(noise + 2 * torch.einsum("bnd,kdp,kep->bne", noise, bases, bases))
    blind = 0.5 * unit_norm(gaussian(16, 17, 64, seed=1))
    average = tokens.mean(1, keepdim=True) - tokens
    for update in (blind, blind + 0.3 * average):
        rows = of_update(tokens, bases, tokens + update)
        assert beyond_nulls(headline(rows)) in ((1, 0), (1, -1))
    exact = crate.exact_step(tokens, bases, kappa=1 / crate.lipschitz(bases, n=17, eps=EPS), eps=EPS)
    rows = of_update(tokens, bases, exact)
    assert beyond_nulls(headline(rows)) == (1, 1)


def test_merging_adds_the_rotated_updates():
    bases, tokens, after = (
        torch.linalg.qr(gaussian(3, 12, 4))[0],
        gaussian(6, 5, 12),
        gaussian(6, 5, 12, seed=1),
    )
    whole, first, rest = (
        given_tokens.measured(tokens[part], after[part], bases, draws=3)
        for part in (slice(6), slice(2), slice(2, 6))
    )
    first.merge(rest)
    values = [
        [x for row in metric.compute(draws=3) if row.null for x in (row.value, *row.null.draws)]
        for metric in (whole, first)
    ]
    assert values[0]
    assert values[0] == pytest.approx(values[1])


def test_the_paper_step_compresses_in_orthogonal_subspaces_and_fails_in_coherent_ones():
    """Tied to subspaces that share directions, attention moves the tokens into these; the exact step does
    not.
    """
    tokens, orthogonal = gaussian(16, 17, 64), crate.random_subspaces(4, 64, 16, generator=seeded())
    coherent = torch.cat([orthogonal[:1, :, :8].expand(4, -1, -1), orthogonal[:, :, 8:]], dim=2)
    found = []
    for bases in (orthogonal, torch.linalg.qr(coherent)[0]):
        paper = partial(crate.paper_step, bases=bases, kappa=1.0, eps=1.5)
        exact = partial(
            crate.exact_step, bases=bases, kappa=1 / crate.lipschitz(bases, n=17, eps=EPS), eps=EPS
        )
        found.append([beyond_nulls(of_step(tokens, bases, step))[0] for step in (exact, paper)])
    assert found == [[1, 1], [1, -1]]


def test_without_norms_a_layer_is_the_derived_step():
    model = networks.small_crate(attention=PaperAttention, norms=False).double()
    tokens, (layer,) = gaussian(2, 17, 64), model.transformer.layers
    block, sparsify = layer[0].fn, layer[1].fn
    half = crate.paper_step(tokens, block.subspaces().detach(), kappa=block.kappa, eps=block.eps)
    code = ista_step(half, half, sparsify.weight.detach(), eta=sparsify.eta, lam=sparsify.lam)
    torch.testing.assert_close(layer(tokens).detach(), code)
    assert block.kappa * expansion(block.subspaces(), n=17, eps=block.eps) < 1  # the shrinkage keeps its sign


def test_the_rows_of_a_network_are_means_over_layers_with_copies_as_the_null_of_non_zeros():
    rows = Table(
        networks.trained_rows(
            seeded(3), constructor=partial(networks.small_crate, sparsify=Mlp), training=lambda *_: None
        )
    )
    assert [len(null.draws) for null in headline(rows).nulls] == [DRAWS, DRAWS]
    shares = rows.select(quantity=NONZEROS).one()
    assert shares.value == 1.0
    sizes = {null.kind: len(null.draws) for null in shares.nulls}
    assert shares.null.kind == EQUAL_SCALE
    assert sizes == {EQUAL_SCALE: networks.COPIES, UNTRAINED: NETWORKS}
    assert {row.data for row in rows} == {"digits"}


def test_training_changes_the_network_and_not_the_untrained_networks(monkeypatch):
    monkeypatch.setattr(networks, "ADAMW_STEPS", 3)
    untrained, trained = (
        list(networks.trained_rows(seeded(), constructor=networks.small_crate, training=training))
        for training in (lambda *_: None, networks.adamw)
    )
    assert headline(untrained).value != headline(trained).value
    # with random weights the free output knows nothing of the subspaces
    assert beyond_nulls(headline(untrained))[0] == 0
    first, second = (Table(rows).select(quantity=NONZEROS).one().nulls for rows in (untrained, trained))
    assert first[1] == second[1]  # untrained networks
    assert first[0] != second[0]  # copies of the network itself


def test_a_training_that_diverges_gives_a_row_with_the_reason():
    def diverge(*_):
        raise NotConverged("step 3: the loss is nan")

    (row,) = networks.trained_rows(seeded(), constructor=networks.small_crate, training=diverge)
    assert row.value is None
    assert row.quantity == LADDER.quantity
    assert row.reason == "step 3: the loss is nan"
