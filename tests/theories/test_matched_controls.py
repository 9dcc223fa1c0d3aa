"""Controls are random maps of the whole data, and take as much weight as the changes that they match."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext

import pytest
import torch
from torch.testing import assert_close

from tests.theories.test_changes_by_hand import generator
from tests.theories.test_further_changes_by_hand import projected
from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import Attended, NotChanged, own_generator, tenths
from transformer_theory.models import CRATE, ViT
from transformer_theory.probes.changed_pass import changed_attention, check_changed
from transformer_theory.theories.chain_of_thought import interventions as chain
from transformer_theory.theories.chain_of_thought.tasks import Sample
from transformer_theory.theories.crate import interventions as crate
from transformer_theory.theories.joma import interventions as joma
from transformer_theory.theories.length import interventions as length
from transformer_theory.theories.particles import interventions as particles
from transformer_theory.theories.router import interventions as router


def in_batches(model, change, x: torch.Tensor, size: int, *, site, seed: int = 3) -> torch.Tensor:
    with changed_attention(model, change, site=site, seed=seed):
        return torch.cat([model(part) for part in x.split(size)])


# --- one random matrix for all batches


@pytest.mark.parametrize(
    ("model", "change", "site"),
    [(ViT, particles.rotated_values, "output"), (CRATE, crate.rotated, "attention")],
)
def test_a_random_map_is_the_same_in_batches_of_any_size(model, change, site):
    torch.manual_seed(0)
    model, x = model.for_tokens(5, 6, 3, dim=8, depth=2, heads=2), torch.randn(16, 5, 6)
    model.eval()
    small, large = (in_batches(model, change, x, size, site=site) for size in (4, 16))
    assert_close(small, large, rtol=1e-4, atol=1e-5)
    other = in_batches(model, change, x, 16, site=site, seed=4)
    assert not torch.allclose(other, large, atol=1e-3)


def test_noise_of_each_token_goes_on_from_batch_to_batch():
    torch.manual_seed(0)
    model = ViT.for_tokens(5, 6, 3, dim=8, depth=2, heads=2).eval()
    twice = torch.randn(4, 5, 6).repeat(2, 1, 1)
    first, second = in_batches(model, particles.random_step, twice, 4, site="block").chunk(2)
    assert not torch.allclose(first, second, atol=1e-3)


def test_each_attention_has_a_generator_of_its_own():
    at = attended()

    def draw(at: Attended) -> float:
        return float(torch.rand((), generator=own_generator(at)))

    first = draw(at)
    torch.rand(10, generator=at.generator)  # an earlier batch
    assert draw(at) == first
    others = [
        replace(at, layer=layer, first_head=head, generator=generator(seed))
        for layer, head, seed in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 1, 1), (1, 0, 1))
    ]
    assert len({first, *map(draw, others)}) == 7


# --- the sink


def rows(weights: list[list[float]]) -> Attended:
    """One head and sequence with these weights."""
    A = torch.tensor([[weights]], dtype=torch.float64)
    q, n = A.shape[-2:]
    at = attended(n=1, heads=1, T=n)
    mask = torch.ones(1, 1, q, n, dtype=torch.bool)
    return replace(at, query=torch.zeros(1, 1, q, 4), weights=A, mask=mask)


def variation(new: Attended, old: Attended) -> list[float]:
    """Total variation of each row."""
    return [round(x, 9) for x in ((new.weights - old.weights).abs().sum(-1) / 2).flatten().tolist()]


def test_sink_and_others_lose_as_much():
    # a sink of more than half, of less, of half, and alone; the first key receives most
    at = rows([[0.9, 0.05, 0.05], [0.4, 0.35, 0.25], [0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    named, control = length.moved_sink(at), length.moved_others(at)
    amounts = [0.1, 0.4, 0.5, 0.0, 0.0]
    assert variation(named, at) == amounts
    assert variation(control, at) == amounts
    expected = [[0.8, 0.1, 0.1], [0.0, 0.35 / 0.6, 0.25 / 0.6], [0.0, 0.6, 0.4], [1, 0, 0], [0, 0.5, 0.5]]
    assert_close(named.weights[0, 0], torch.tensor(expected, dtype=torch.float64))
    assert_close(control.weights[0, 0, 0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    # the others give .4 of their .6: all of the first in their order, and a part of the last
    drawn = {
        tuple(
            round(x, 6)
            for x in length.moved_others(replace(at, generator=generator(seed))).weights[0, 0, 1].tolist()
        )
        for seed in range(20)
    }
    assert drawn == {(0.8, 0.0, 0.2), (0.8, 0.2, 0.0)}


def test_a_sink_without_other_keys_is_not_changed():
    class Alone(torch.nn.Module):
        def forward(self, x):
            scores, keys = torch.tensor([200.0, 0.0, 0.0]).expand(len(x), 1, 3, 3), torch.eye(3)
            keys = keys.expand(len(x), 1, 3, 3)
            return torch.nn.functional.scaled_dot_product_attention(scores, keys, x[:, None], scale=1.0)

    for change in (length.moved_sink, length.moved_others):
        model = Alone()
        with changed_attention(model, change) as changed:
            model(torch.randn(4, 3, 2))
        with pytest.raises(NotChanged):
            check_changed(changed, "this")


# --- JoMA


def test_permuted_predictions_stay_one_row_for_all_queries():
    at = projected(attended(n=40))
    predicted, drawn = joma.predicted(at).weights, joma.permuted(at).weights
    assert torch.equal(drawn, drawn[:, :, :1].expand_as(drawn))
    assert_close(drawn.sort(-1).values, predicted.sort(-1).values)
    # a permutation of each head and sequence: where the largest weight goes is uniform
    went = drawn[:, :, 0].argmax(-1)
    assert set(went.flatten().tolist()) == set(range(6))
    assert not torch.equal(went[:, 0], went[:, 1])


def test_permuted_predictions_of_a_causal_mask_are_those_of_each_row():
    at = projected(attended(n=40, causal=True))
    predicted, drawn = joma.predicted(at).weights, joma.permuted(at).weights
    assert_close(drawn.sort(-1).values, predicted.sort(-1).values)
    assert not drawn[~at.mask].any()
    heaviest = [x[..., 4:, :5].argmax(-1) for x in (predicted, drawn)]
    assert bool((heaviest[1][..., 0] != heaviest[1][..., 1]).any())


def test_permuted_uniform_weights_are_not_changed():
    flat = joma.uniform(projected(attended()))
    assert torch.equal(joma.permuted(flat).weights, flat.weights)


# --- routing


def test_as_much_weight_as_that_of_the_heaviest_key():
    at = rows([[0.4, 0.35, 0.25], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]])
    drawn = set()
    for seed in range(20):
        new = router.other_weight_removed(replace(at, generator=generator(seed))).weights[0, 0]
        drawn.add(tuple(round(x, 6) for x in new[0].tolist()))
        # the others have .3, less than .7; a single key stays, bit for bit
        assert_close(new[1], torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
        assert torch.equal(new[2], at.weights[0, 0, 2])
    # .4 of the others' .6 are taken, and .6 are left
    assert drawn == {(0.666667, 0.0, 0.333333), (0.666667, 0.333333, 0.0)}


def test_as_much_weight_on_the_deletion_curve():
    at = attended(n=9, heads=1, T=10)
    named, new = (change(at).weights for change in (router.heaviest_removed, router.random_weight_removed))
    drawn = router.random_weight_removed(replace(at, generator=generator(1))).weights
    assert not torch.allclose(new, drawn, atol=0.05)
    for i in range(9):
        for query in range(10):
            own = at.weights[i, 0, query].double()
            amount = float(own.sort(descending=True).values[: i + 1].sum())
            assert float(own[named[i, 0, query] == 0].sum()) == pytest.approx(amount, abs=1e-6)
            given = own - (1 - amount) * new[i, 0, query].double()
            assert float(given.sum()) == pytest.approx(amount, abs=1e-5)
            part = (given > 1e-4 * own) & (given < (1 - 1e-4) * own)
            assert int(part.sum()) <= 1  # every other key gives all or nothing


def test_rows_stay_distributions_where_the_removed_keys_have_nearly_all_weight():
    dust = math.exp(-30)
    row = torch.tensor([0.5, 0.5, dust, dust, dust, dust]).expand(900, 1, 6, 6)
    at = attended(n=900, heads=1).with_weights(row)
    new, named = router.random_weight_removed(at).weights, router.heaviest_removed(at).weights
    assert_close(new.sum(-1), torch.ones(900, 1, 6))
    # A share of 4 tenths removes the two heavy keys. In a random order the last of them gives what is left to
    # give, and keeps the weight of the light keys before it: of each with probability 2/3.
    both = (named[..., 1] == 0) & (named[..., 2] > 0.2)
    assert int(both.sum()) > 500
    assert float(new[..., :2].sum(-1)[both].double().mean()) == pytest.approx(2 / 3, abs=0.05)


def test_single_keys_lose_no_weight():
    at = rows([[1.0, 0.0, 0.0]] * 3)
    for change in (router.other_weight_removed, router.random_weight_removed):
        assert torch.equal(change(at).weights, at.weights)


# --- shares of sequences of large numbers


def test_shares_of_large_numbers_are_those_of_exact_arithmetic():
    numbers = torch.arange(99_000, 101_000)
    at = replace(attended(n=2000, heads=1, T=2), numbers=numbers)
    with localcontext() as context:
        context.prec = 50
        golden = (Decimal(5).sqrt() - 1) / 2
        turns = [int(9 * ((n // 9) ** 2 * golden % 1)) for n in numbers.tolist()]
    assert tenths(at).flatten().tolist() == [(n + t) % 9 + 1 for n, t in zip(numbers.tolist(), turns)]
    counts = torch.tensor(turns).bincount(minlength=9)
    assert int(counts.min()) > 150  # of 222
    assert math.isclose(float(tenths(at).double().mean()), 5, abs_tol=0.05)


# --- chains


def test_a_question_without_another_of_its_lengths_is_refused():
    sample = Sample(("1", "+", "2"), ("3",), ("3",))
    same, longer = Sample(("2", "+", "1"), ("3",), ("3",)), Sample(("1", "+", "2", "+", "1"), ("4",), ("4",))
    with pytest.raises(ValueError, match=r"has lengths \(3, 1\) of question and chain and another answer"):
        chain._another(sample, (same, longer), generator())
    other = Sample(("2", "+", "2"), ("4",), ("4",))
    assert chain._another(sample, (same, longer, other), generator()) is other
