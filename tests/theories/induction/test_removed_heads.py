"""Induction heads that are removed, beside other heads that lose as much."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.comparison.test_interventions import CHANGED, INDUCTION, NEXT, UNCHANGED, Repeating, effect, value
from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import Attended
from transformer_theory.core.statistics import fixed_generator
from transformer_theory.probes.changed_pass import changed_attention
from transformer_theory.probes.sample import Sample
from transformer_theory.theories.induction.interventions import (
    ChosenHeads,
    choose_heads,
    other_heads,
    random_direction,
    removed,
    repeated,
)

P = 4
TEXT, SCORE = "induction/induction heads removed on the text", "in-context score"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_matching(shares: list[float], layer: int = 0, lengths: list[float] | None = None) -> Attended:
    """Heads with this prefix matching, whose outputs have these lengths."""
    weights = torch.zeros(2, len(shares), 2 * P, 2 * P)
    weights[..., 0] = 1.0
    for head, share in enumerate(shares):
        for query in range(P, 2 * P):
            weights[:, head, query, 0] = 1 - share
            weights[:, head, query, query - P + 1] += share
    at = attended(n=2, heads=len(shares), T=2 * P)
    values = torch.zeros_like(at.value)
    values[..., 1] = torch.tensor(lengths or [1.0] * len(shares))[:, None]
    return replace(at, layer=layer, weights=weights, value=values)


def chosen_of(*layers: Attended) -> ChosenHeads:
    def read(function):
        for each in layers:
            function(each)

    return choose_heads(read)


def test_heads_with_half_of_the_largest_prefix_matching_are_chosen():
    shares = [0.1, 0.9, 0.46, 0.44, 0.1, 0.1]
    assert dict(chosen_of(with_matching(shares)).removed) == {(0, 1): 1.0, (0, 2): 1.0}
    both = chosen_of(with_matching(shares, 2), with_matching([0.8, 0.0], 5))
    assert set(both.removed) == {(2, 1), (2, 2), (5, 0)}
    # at most half of all heads, those with the largest
    assert set(chosen_of(with_matching([0.9, 0.8, 1.0, 0.7])).removed) == {(0, 2), (0, 0)}
    assert set(chosen_of(with_matching([0.0])).removed) == {(0, 0)}


def test_the_lengths_are_root_mean_squares_in_the_second_block_of_all_batches():
    at = attended(n=4, heads=2, T=8)
    at = replace(at, weights=with_matching([1.0, 0.0]).weights.repeat(2, 1, 1, 1))
    parts = [
        replace(
            at, **{name: getattr(at, name)[part] for name in ("weights", "value", "query", "key", "mask")}
        )
        for part in (slice(0, 1), slice(1, 4))
    ]
    lengths = chosen_of(*parts).lengths
    outputs = (at.weights @ at.value).double().numpy()
    for head in range(2):
        expected = (outputs[:, head, P:] ** 2).sum(-1).mean() ** 0.5
        assert lengths[0, head] == pytest.approx(float(expected), rel=1e-5)


def test_other_heads_of_the_layer_lose_as_much():
    shares, lengths = [1.0, 0.9, 0.0, 0.0, 0.0, 0.0], [3.0, 0.5, 2.0, 6.0, 0.0, 0.1]
    at = with_matching(shares, 1, lengths)
    chosen = chosen_of(at, with_matching([0.0] * 4, 0))
    drawn = [other_heads(chosen, generator(seed)) for seed in range(60)]
    pairs = set()
    for one in drawn:
        assert one is not None
        assert one.lengths == chosen.lengths
        (short, long) = sorted(one.removed, key=lambda head: lengths[head[1]])
        # the longer output stands for that of length 3, the shorter one for that of .5
        assert one.removed[long] == pytest.approx(3.0 / lengths[long[1]])
        assert one.removed[short] == pytest.approx(0.5 / lengths[short[1]])
        pairs.add(frozenset(one.removed))
    # head 4 adds nothing, and the layer has enough other heads
    assert pairs == {frozenset({(1, a), (1, b)}) for a, b in ((2, 3), (2, 5), (3, 5))}


def test_other_layers_stand_in_where_a_layer_has_too_few():
    at = with_matching([1.0, 0.9, 0.0], 1, [3.0, 0.5, 2.0])
    chosen = chosen_of(at, with_matching([0.0] * 3, 0, [4.0, 5.0, 0.0]))
    drawn = [other_heads(chosen, generator(seed)) for seed in range(30)]
    found = {frozenset(one.removed.items()) for one in drawn if one}
    # head 2 takes the place of the shorter of both, and a head of layer 0 that of the longer one
    assert found == {
        frozenset({((1, 2), 0.5 / 2.0), ((0, 0), 3.0 / 4.0)}),
        frozenset({((1, 2), 0.5 / 2.0), ((0, 1), 3.0 / 5.0)}),
    }
    few = ChosenHeads({(0, 0): 1.0}, {(0, 0): 1.0, (1, 0): 0.0})
    assert other_heads(few, generator()) is None


def test_what_the_stream_loses_is_as_long():
    at = with_matching([1.0, 0.9, 0.0, 0.0], 1, [3.0, 0.5, 2.0, 6.0])
    chosen = chosen_of(at, with_matching([0.0] * 4, 0))
    outputs = at.weights @ at.value
    lost = outputs - removed(replace(at, structure=chosen)).weights @ at.value
    assert_close(lost[:, :2], outputs[:, :2])
    assert not lost[:, 2:].any()
    other = other_heads(chosen, generator())
    moved = outputs - removed(replace(at, structure=other)).weights @ at.value
    assert not moved[:, :2].any()
    assert_close(moved.norm(dim=-1).sort(1).values[:, 2:], lost.norm(dim=-1).sort(1).values[:, 2:])
    elsewhere = replace(at, layer=0, structure=chosen)
    assert removed(elsewhere) is elsewhere
    assert random_direction(elsewhere) is elsewhere
    # a module with the heads from 2 on has none of them
    later = replace(at, first_head=2, structure=chosen)
    assert removed(later) is later


def test_random_directions_are_as_long_as_the_outputs():
    at = with_matching([1.0, 0.9, 0.0, 0.0], 1, [3.0, 0.5, 2.0, 6.0])
    chosen = chosen_of(at, with_matching([0.0] * 4, 0))
    outputs = at.weights @ at.value
    drawn = [
        random_direction(replace(at, structure=chosen, generator=generator(seed))).value for seed in (0, 1)
    ]
    for each in drawn:
        assert_close((each - outputs).norm(dim=-1)[:, :2], outputs.norm(dim=-1)[:, :2])
        assert_close(each[:, 2:], outputs[:, 2:])
    assert not torch.allclose(*drawn)


def ids() -> torch.Tensor:
    return torch.randint(40, (8, 40), generator=generator(1))


def test_two_induction_heads_stand_in_for_each_other():
    model = Repeating(induction=(3, 5))
    result = tt.intervene(model, ids(), INDUCTION, draws=2)
    whole, half = (math.log(1 + 39 * math.exp(-logit)) for logit in (10, 5))
    assert value(result, NEXT, UNCHANGED) == pytest.approx(whole, abs=1e-4)
    assert value(result, NEXT, CHANGED) == pytest.approx(math.log(40), abs=1e-4)
    assert effect(result, NEXT).nulls[0].p(effect(result, NEXT).value, ">=") == 1 / 500
    # without one of them the network loses a fifteenth as much
    made = repeated({"vocabulary": 40, "length": 40}, generator())
    with changed_attention(model, removed, structure=ChosenHeads({(1, 3): 1.0}, {})):
        alone = loss(model(made.ids), made.targets)
    assert alone == pytest.approx(half, abs=1e-4)
    assert alone - whole < (math.log(40) - whole) / 15


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1))


def test_a_loud_idle_head_is_no_match_for_a_quiet_induction_head():
    """Idle heads write -30 at id 0, which the network subtracts. A whole one changes the loss more than the
    induction head does, and as much as the induction head adds, 1, changes it less.
    """
    idle = torch.zeros(40)
    idle[0] = -30.0
    model = Repeating(idle=idle)
    row = effect(tt.intervene(model, ids(), INDUCTION, draws=19), NEXT)
    whole = math.log(1 + 39 * math.exp(-10))
    assert row.value == pytest.approx(math.log(40) - whole, abs=1e-4)
    _, heads = row.nulls
    assert (len(heads.draws), heads.p(row.value, ">=")) == (19, 0.05)
    made = repeated({"vocabulary": 40, "length": 40}, generator())
    # the random half of the blocks that does not choose the heads
    scored = made.targets[torch.randperm(len(made.ids), generator=fixed_generator())[1::2]]
    first = (scored == 0).sum() / (scored >= 0).sum()
    # a thirtieth of an idle head: the logits are 10 for the next id and 10 for id 0, 20 if they are the same
    expected = (1 - first) * math.log(2 + 38 * math.exp(-10)) + first * math.log(1 + 39 * math.exp(-20))
    assert heads.draws == pytest.approx([float(expected) - whole] * 19, abs=1e-3)
    with changed_attention(model, removed, structure=ChosenHeads({(1, 0): 1.0}, {})):
        assert loss(model(made.ids), made.targets) > 100


def test_the_in_context_score_of_the_text_by_hand():
    model, text = Repeating(), ids()[:, :20].repeat(1, 2)
    text[-1] = torch.arange(40)  # a text in which nothing recurs
    result = tt.intervene(model, text, TEXT, draws=19)
    losses = (
        nn.functional.cross_entropy(
            model(text)[:, :-1].flatten(0, 1), text[:, 1:].flatten(), reduction="none"
        )
        .view(8, 39)
        .detach()
    )
    expected = losses[:, 30:].mean(1) - losses[:, :10].mean(1)  # the last of forty ids has no next one
    assert float(expected.mean()) < -3
    row = effect(result, SCORE)
    assert row.n == 8
    assert value(result, SCORE, UNCHANGED) == pytest.approx(float(expected.mean()), rel=1e-5)
    # without the heads all ids are equally likely, early and late
    assert value(result, SCORE, CHANGED) == pytest.approx(0.0, abs=1e-4)
    assert row.value == pytest.approx(-float(expected.mean()), rel=1e-4)
    assert row.side == ">="
    # eight sequences are exchanged with their random directions, other heads are drawn for all of them
    assert [null.p(row.value, ">=") for null in row.nulls] == [1 / 500, 1 / 20]
    assert value(result, NEXT, UNCHANGED) == pytest.approx(float(losses.mean()), rel=1e-5)


def test_short_or_partly_scored_sequences_have_no_in_context_score():
    ends = torch.full((3, 8), -1)
    ends[:, -2:] = 1
    for targets in (torch.ones(3, 3, dtype=torch.int64), ends):
        assert [each.name for each in Sample(targets, targets, 3).measures()] == [NEXT]
    ends[:, 1] = 1
    assert [each.name for each in Sample(ends, ends, 3).measures()] == [NEXT, SCORE]


def test_a_network_without_induction_has_nothing_to_lose():
    class Blind(Repeating):
        def forward(self, ids):
            return 0 * super().forward(ids)

    for name, measure in ((INDUCTION, NEXT), (TEXT, NEXT), (TEXT, SCORE)):
        row = effect(tt.intervene(Blind(), ids(), name, draws=19), measure)
        assert (row.value, row.side, row.nulls) == (0.0, None, ())
        assert f"the {measure} of the unchanged network" in row.note


def test_heads_need_attention_among_the_tokens():
    with pytest.raises(ValueError, match="attention among the tokens of a sequence, got none"):
        chosen_of(attended(T=5))
