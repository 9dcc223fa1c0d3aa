"""The ladder of JoMA: its rungs, its null distribution, and the identities behind its predictions."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from transformer_theory.core.ladder import COLUMNS
from transformer_theory.core.statistics import LADDER_DRAWS, RANGE_DRAWS, permutations
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.models import ViT, build
from transformer_theory.models.decoder import Decoder, PostNorm, PreNorm
from transformer_theory.theories.joma.block import (
    Block,
    Exponential,
    Softmax,
    gaussian_block,
    sampled_contexts,
)
from transformer_theory.theories.joma.dynamics import Model, Path, gradient_flow, tanh
from transformer_theory.theories.joma.invariants import (
    first_term,
    fixed_mean,
    goodness_of_fit,
    moving_mean,
    shift_invariant,
)
from transformer_theory.theories.joma.ladder import LADDER, blocks, networks
from transformer_theory.theories.joma.ladder.blocks import Setting, adamw, descent, flow, measure_block
from transformer_theory.theories.joma.ladder.comparison import (
    EARLY,
    ERROR,
    GROUP,
    SIZE,
    Change,
    rows_of,
    similar_orders,
)

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def short(monkeypatch):
    """Shortens all trainings of the theory's block and of the decoders of digits."""
    for module in (blocks, networks):
        monkeypatch.setattr(module, "STEPS", 20)


def values(rows) -> dict[str, float | None]:
    return {row.quantity: row.value for row in rows}


def test_the_last_rungs_need_no_more_than_a_text():
    assert {rung.needs for rung in LADDER.rungs} == {"", "text"}
    assert {rung.column for rung in LADDER.rungs} == set(COLUMNS)
    assert [rung.name for rung in LADDER.rungs if rung.covered] == ["own flow"]


CHEAP = [rung.name for rung in LADDER.rungs if rung.column != COLUMNS[-1] and rung.name != "two layers"]


UNSIZED = ("AdamW", "several queries", "MLP with LayerNorm")


@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.usefixtures("short")
def test_a_rung_repeats_its_rows_and_has_two_nulls(name: str):
    measured = list(RUNGS[name].measure(generator(3)))
    first, size, error, early = measured[:4]
    assert [row.quantity for row in measured[:4]] == [LADDER.quantity, SIZE, ERROR, EARLY]
    assert (first.predicted, first.side) == (1.0, ">=")
    assert [len(row.nulls) for row in measured[:4]] == [2, 1, 1, 1]
    assert first.nulls[1].kind == size.null.kind != first.null.kind
    assert (early.predicted, early.side) == (1.0, ">=")
    assert [len(row.null.draws) for row in (first, error, early)] == [LADDER_DRAWS] * 3
    assert (
        len(first.nulls[1].draws)
        == len(size.null.draws)
        == (LADDER_DRAWS if name == "MLP with LayerNorm" else RANGE_DRAWS)
    )
    # AdamW and factored scores have no ratio of learning rates, so the theory names no size there.
    named = (None, None, None, "<=") if name in UNSIZED else (0.0, "==", 0.0, "<=")
    assert (size.predicted, size.side, error.predicted, error.side) == named
    for row in measured:
        assert (row.kind, row.theory) == ("rung", "joma")
        assert math.isfinite(row.value)
    if name in ("finite batch", "MLP with LayerNorm"):
        assert list(RUNGS[name].measure(generator(3))) == measured


@pytest.mark.usefixtures("short")
def test_the_own_setting_agrees_and_a_broken_one_does_not():
    own = list(measure_block(generator(), setting=Setting(flow)))
    broken = values(measure_block(generator(), setting=Setting(flow, decay=0.1)))
    assert values(own)[ERROR] < 1e-6 < 0.05 < broken[ERROR]
    assert own[0].value == pytest.approx(1, abs=1e-12)
    assert own[0].null.p(own[0].value, ">=") == 1 / (1 + LADDER_DRAWS)
    assert own[1].null.high < 0.9 < own[0].value  # a block of other targets predicts other logits
    assert own[0].null.median < 0.7


def test_ten_units_keep_the_task_of_one_unit():
    """The rung of ten units changes their number only; the next one changes the task and the loss."""
    one, ten, classes = (
        RUNGS[name].measure.keywords["setting"] for name in ("weight decay", "ten units", "ten classes")
    )
    assert ten == replace(one, units=10)
    assert classes == replace(ten, classes=10)
    before, after, digit = (setting.contexts(generator()).targets for setting in (one, ten, classes))
    assert torch.equal(before, after)
    assert set(before.tolist()) == {0, 1}
    assert torch.equal(before, blocks.digit_contexts()[0].classes[digit] % 2)
    assert one.model() == ten.model()
    assert ten.model().loss is not classes.model().loss


def test_descent_misses_the_invariant_by_the_squares_of_its_steps():
    g = generator(1)
    contexts = sampled_contexts(g, n=40, classes=3)
    start = gaussian_block(contexts, units=3, scale=0.3, generator=g)
    model = Model(Exponential())
    path = descent_saving_all(start, contexts, model, g)
    gap = first_term(Exponential(), path)[-1] - (path.states.logits[-1, 0] - path.states.logits[0, 0])
    steps = path.states.lower[1:] - path.states.lower[:-1]
    assert torch.allclose(gap, steps.square().sum((0, 1)) / 2, rtol=1e-9)
    assert float(gap.max()) > 0.01


def descent_saving_all(start, contexts, model, g) -> Path:
    from transformer_theory.theories.joma.dynamics import gradient_descent

    states = [start]
    for _ in range(30):
        batch = torch.randperm(len(contexts.query), generator=g)[:10]
        states.append(
            gradient_descent(states[-1], blocks._rows(contexts, batch), model, rate=0.5, steps=1).state(-1)
        )
    return blocks._path(states)


def test_descent_stays_on_the_samples_of_its_batches():
    g = generator(2)
    contexts = sampled_contexts(g, n=64, classes=2)
    start = gaussian_block(contexts, units=2, scale=0.1, generator=g)
    path = descent(start, contexts, Model(Softmax()), g)
    assert len(path.times) == 1 + blocks.STEPS // 2
    assert float(path.times[-1]) == blocks.STEPS * blocks.TIME_STEP
    model = Model(Softmax())
    assert model.mean_loss(path.state(-1), contexts) < model.mean_loss(start, contexts)


def test_blocks_with_other_targets_do_not_disturb_adamw(monkeypatch):
    monkeypatch.setattr(blocks, "STEPS", 6)
    g = generator(3)
    contexts = sampled_contexts(g, n=64, classes=2)
    start = gaussian_block(contexts, units=2, scale=0.1, generator=g)
    pair = Block(*(part.expand(2, *part.shape) for part in (start.logits, start.lower, start.offset)))
    both = replace(contexts, targets=torch.stack([contexts.targets, 1 - contexts.targets]))
    alone = adamw(start, contexts, Model(Softmax()), generator(4))
    together = adamw(pair, both, Model(Softmax()), generator(4))
    assert torch.allclose(alone.states.lower, together.states.lower[:, 0], rtol=1e-6, atol=1e-9)
    assert not torch.allclose(together.states.lower[-1, 0], together.states.lower[-1, 1])


@pytest.fixture(scope="module")
def softmax_flows():
    """Flows from two starts that differ by a shift of v, which the offset compensates: softmax attention sums
    to one.
    """
    g = generator(5)
    contexts = sampled_contexts(g, n=60, tokens=6, classes=3)
    start = gaussian_block(contexts, units=3, scale=0.3, generator=g)
    shifted = Block(start.logits, start.lower + 2.0, start.offset - 2.0)
    model = Model(Softmax(), tanh)
    runs = [
        gradient_flow(each, contexts, model, step=0.1, steps=100, save_steps=range(100))
        for each in (start, shifted)
    ]
    return contexts, model, runs


def test_a_shift_of_the_weights_changes_the_invariant_but_not_the_logits(softmax_flows):
    contexts, model, runs = softmax_flows
    change = [run.states.logits[-1, 0] - run.states.logits[0, 0] for run in runs]
    assert torch.allclose(*change, atol=1e-9)
    free = [shift_invariant(model, contexts, run)[-1] for run in runs]
    assert torch.allclose(*free, atol=1e-9)
    bound = [fixed_mean(model, contexts, run)[-1] for run in runs]
    assert not torch.allclose(*bound, rtol=0.1)
    errors = [
        float(goodness_of_fit(predicted[-1] if predicted.ndim > 1 else predicted, change[1]).error)
        for predicted in (free[1], bound[1])
    ]
    assert errors[0] < 0.5 < 1 < errors[1]


def test_both_covariances_vanish_for_equal_contexts():
    g = generator(6)
    drawn = sampled_contexts(g, n=30, tokens=5, classes=3)
    contexts = replace(drawn, counts=drawn.counts.mean(0).expand_as(drawn.counts))
    model = Model(Softmax(0.5), rate_logits=0.7)
    start = gaussian_block(contexts, units=3, scale=0.5, generator=g)
    path = gradient_flow(start, contexts, model, step=0.02, steps=200, save_steps=range(200))
    change = path.states.logits[:, 0] - path.states.logits[0, 0]
    for predict in (shift_invariant, moving_mean):
        assert float(goodness_of_fit(predict(model, contexts, path)[-1], change[-1]).error) < 1e-3
    with pytest.raises(ValueError, match="softmax"):
        shift_invariant(Model(Exponential()), contexts, path)


def test_tokens_exchange_predictions_with_tokens_of_similar_frequency():
    frequency = torch.tensor([0.05, 0.3, 0.01, 0.2, 0.1, 0.02, 0.15, 0.04, 0.13])
    orders = similar_orders(frequency, permutations(9, 50))
    rank = torch.empty(9, dtype=torch.long)
    rank[frequency.argsort(descending=True)] = torch.arange(9)
    assert bool((orders.sort().values == torch.arange(9)).all())
    assert bool((rank[orders] // GROUP == rank // GROUP).all())
    assert len({tuple(order) for order in orders.tolist()}) > 40


def test_direction_and_size_are_apart():
    measured = torch.randn(2, 12, generator=generator(7), dtype=torch.float64)
    change = Change(
        2 * measured + 5, measured, None, torch.arange(12.0), ("none", -0.5 * measured[None]), True
    )
    found = values(rows_of(change))
    assert found[LADDER.quantity] == pytest.approx(1, abs=1e-12)
    assert found[LADDER.quantity] <= 1
    assert found[SIZE] == pytest.approx(math.log(2))
    assert found[ERROR] == pytest.approx(1)
    (row,) = rows_of(replace(change, measured=torch.ones(2, 12)))
    assert row.value is None
    assert "same for all tokens" in row.reason


def test_the_second_null_predicts_the_same_logits_from_other_weights():
    measured = torch.randn(3, 12, generator=generator(7), dtype=torch.float64)
    others = torch.stack([0.01 * measured, -measured])
    change = Change(
        100 * measured.flip(-1), measured, None, torch.arange(12.0), ("other weights", others), False
    )
    row, size, *_ = rows_of(change)
    assert row.nulls[1].draws == pytest.approx((1, -1))  # a small prediction earns nothing by its size
    assert size.null.draws == pytest.approx((math.log(0.01), 0), abs=1e-12)
    assert (size.value, size.predicted) == (pytest.approx(math.log(100)), None)


@pytest.mark.parametrize("block", [PostNorm, PreNorm])
def test_the_lower_layer_of_a_decoder_is_the_input_of_its_hidden_units(block: type[PostNorm]):
    """The sum of v over heads and tokens, weighted by attention, and the query's own part make up the input
    of the hidden units.
    """
    network = build(
        lambda: Decoder(
            vocabulary=4, dim=8, hidden=5, heads=2, positions=nn.Identity, block=block, dropout=0.0
        ),
        generator(),
    )
    layer = network.blocks[0]
    norm = layer.attention_norm if block is PostNorm else layer.mlp_norm
    for parameter in (norm.weight, norm.bias):
        nn.init.uniform_(parameter, 0.5, 1.5, generator=generator(1))
    ids = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 0, 2, 2, 2, 1, 0]])
    stored = {}
    handles = [
        layer.mlp[0].register_forward_hook(
            lambda module, inputs, output: stored.update(hidden=output[0, -1].detach().double())
        ),
        norm.register_forward_pre_hook(
            lambda module, inputs: stored.update(total=inputs[0][0, -1].detach().double())
        ),
    ]
    probe = networks.Probe.of(ids, ids, query=-1)
    found = probe.measure(network)
    # the probe leaves only these hooks
    assert [len(handle.hooks_dict_ref() or {}) for handle in handles] == [1, 1]
    assert torch.allclose(found.mean.sum(-1), torch.ones(2, dtype=torch.float64))
    own = (network.embedding(ids[0, -1]) * math.sqrt(8)).detach().double()
    sigma = stored["total"].std(unbiased=False)
    first = layer.mlp[0]
    constant = (
        first.weight.double() @ (norm.weight.double() * (own - own.mean()) / sigma + norm.bias.double())
        + first.bias.double()
    )
    attended = torch.einsum("hkl,hl->k", found.lower, found.mean)
    assert torch.allclose(constant + attended, stored["hidden"], rtol=1e-3, atol=1e-3)
    assert float(attended.detach().abs().max()) > 0.01


def test_the_logits_of_a_vision_transformer_are_its_scores():
    network = build(lambda: ViT.for_tokens(6, 4, 3, dim=8, depth=1, heads=2), generator())
    inputs = torch.eye(4)[torch.tensor([[0, 1, 2, 3, 1, 2]])].repeat(5, 1, 1)
    nn.init.zeros_(network.pos_embedding)
    words = torch.tensor([[4, 0, 1, 2, 3, 1, 2]]).repeat(5, 1)  # the class token is token 4
    probe = networks.Probe.of(inputs, words, query=0)
    found = probe.measure(network)
    occurrences = torch.bincount(probe.tokens.flatten()) / 5
    expected = torch.softmax(found.logits + occurrences.double().log(), dim=-1)
    assert torch.allclose(found.mean, expected, atol=1e-6)


def test_a_training_that_diverges_gives_its_reason(monkeypatch):
    monkeypatch.setattr(blocks, "TIME_STEP", 1e4)
    (row,) = measure_block(generator(), setting=Setting(descent, real=True))
    assert row.value is None
    assert "NaN or infinity" in row.reason


@pytest.mark.parametrize("length", [3, 60])
def test_a_text_without_repeated_words_gives_its_reason(length: int):
    words = tuple(f"w{number}" for number in range(length))
    text = Text(torch.arange(1, length + 1), Vocabulary(("<unk>", *words)))
    (row,) = RUNGS["decoder on WikiText"].measure(generator(), text)
    assert row.value is None
    assert "longer text" in row.reason
