"""Networks on inputs made for a test: order of tokens, doubled tokens, repeated blocks, and inputs that do
not fit.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

import transformer_theory as tt
from transformer_theory.core.theory import InNetworks, Response
from transformer_theory.metrics.responses import CHANGE, LOSS, OutputChange, PositionLoss
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.probes import NoAttention, doubled_tokens, permuted_tokens, repeated_blocks
from transformer_theory.probes.measure import NEEDS_CAUSAL, run_synthetic_tests
from transformer_theory.probes.respond import responses
from transformer_theory.theories import attention_svm

N, SEQ, DIM = 6, 5, 4


def blocks(data, limits, generator):
    """Random blocks that are repeated once, with the next ids as targets."""
    ids = repeated_blocks(vocabulary=limits["vocabulary"], length=4, n=8, generator=generator)
    return {"value": ids, "targets": torch.cat([ids[:, 1:], torch.full((len(ids), 1), -1)], 1)}


BLOCKS = Response("repeated blocks", blocks, lambda: (PositionLoss(blocks=2),), reads="ids")


class SetModel(nn.Module):
    """One layer of attention without positions; returns the tokens, or their mean."""

    def __init__(self, *, pool: bool):
        super().__init__()
        self.pool, self.attention = pool, nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, tokens):
        out = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return out.mean(1) if self.pool else out


class Copier(nn.Module):
    """An induction head written by hand: the next id is the one that followed the last occurrence of the
    present id.
    """

    def __init__(self, vocabulary: int):
        super().__init__()
        self.vocabulary, self.scale = vocabulary, nn.Parameter(torch.tensor(30.0))

    def forward(self, ids):
        one_hot = nn.functional.one_hot(ids, self.vocabulary).float()
        # key: what stands before a token
        previous = torch.cat([torch.zeros_like(one_hot[:, :1]), one_hot[:, :-1]], 1)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        scores = (one_hot @ previous.mT * self.scale).masked_fill(~causal, -torch.inf)
        return 30 * scores.softmax(-1) @ one_hot


def tokens(seed=0):
    return torch.randn(N, SEQ, DIM, generator=torch.Generator().manual_seed(seed))


def change(model, inputs):
    with torch.no_grad():
        targets = model.eval()(tokens())
    result = tt.respond(model, inputs, [OutputChange()], targets=targets)
    return result.table.select(quantity=CHANGE).one()


def test_a_network_without_positions_does_not_depend_on_the_order():
    torch.manual_seed(0)
    row = change(SetModel(pool=True), permuted_tokens(tokens(), torch.Generator().manual_seed(1)))
    assert row.value < 1e-6
    assert row.null.draws[0] > 0.5  # the outputs of other sequences differ


def test_a_network_with_positions_depends_on_the_order():
    for kind in (ViT, CRATE):
        model = build(
            lambda kind=kind: kind.for_tokens(SEQ, DIM, 3, dim=8, depth=1, heads=2),
            torch.Generator().manual_seed(0),
        )
        assert change(model, permuted_tokens(tokens(), torch.Generator().manual_seed(1))).value > 1e-3


def test_softmax_attention_does_not_notice_doubled_tokens():
    torch.manual_seed(0)
    model = SetModel(pool=True)
    assert change(model, doubled_tokens(tokens())).value < 1e-6
    assert change(model, torch.cat([tokens(), tokens(1)], 1)).value > 0.1  # other tokens in their place


def test_the_second_block_is_predicted_by_an_induction_head_only():
    generator = torch.Generator().manual_seed(0)
    ids = repeated_blocks(vocabulary=50, length=8, n=32, generator=generator)
    assert torch.equal(ids[:, :8], ids[:, 8:])
    others = torch.cat([ids[:, :8], torch.randint(50, (32, 8), generator=generator)], 1)
    targets = torch.cat([ids[:, 1:], torch.full((32, 1), -1)], 1)
    result = tt.respond(
        Copier(50),
        {"value": ids, "null": [others]},
        [PositionLoss(blocks=2)],
        targets=targets,
        null_kind="other blocks",
    )
    first, second = (result.table.select(quantity=LOSS, at={"block": number}).one() for number in (0, 1))
    assert first.value > 2
    assert second.value < 0.5
    assert second.null.kind == "other blocks"
    assert second.null.draws[0] > 2
    assert second.unit == "nats"
    assert second.n == 32


def test_metrics_of_theories_run_on_synthetic_inputs():
    model = build(
        lambda: ViT.for_tokens(SEQ, DIM, 3, dim=8, depth=2, heads=2), torch.Generator().manual_seed(0)
    )
    result = tt.respond(
        model, tokens(), attention_svm.THEORY.in_networks.metrics(), targets=torch.arange(N) % 3
    )
    rows = result.table.select(theory="attention_svm")
    assert {row.layer for row in rows if row.value is not None} == {0, 1}


def test_tests_of_ids_are_left_out_of_networks_of_floats():
    theory = replace(attention_svm.THEORY, in_networks=InNetworks(lambda: (), "loss", responses=(BLOCKS,)))
    run = {"limits": {"vocabulary": 9}, "generator": torch.Generator().manual_seed(0)}
    rows = responses(Copier(9), theory, torch.zeros(1, 2, dtype=torch.long), **run)
    assert [row.at for row in rows] == [{"test": "repeated blocks", "block": block} for block in (0, 1)]
    assert responses(SetModel(pool=True), theory, torch.zeros(1, 2, DIM), **run) == []


def test_a_test_that_does_not_fit_a_network_has_one_row_with_the_reason():
    def refused(data, limits, generator):
        raise ValueError("the order of images cannot be changed")

    def broken(data, limits, generator):
        return {"value": data[..., :2]}

    tests = [
        replace(BLOCKS, name="refused", inputs=refused, reads="any"),
        replace(BLOCKS, name="broken", inputs=broken, reads="any"),
        replace(BLOCKS, name="ids"),
    ]
    run = {"limits": {"sequences": N}, "generator": torch.Generator().manual_seed(0), "name": "net"}
    rows = [*run_synthetic_tests(SetModel(pool=True), "joma", tests, tokens(), **run)]
    assert [(row.theory, row.quantity, row.value, row.model) for row in rows] == [
        ("joma", name, None, "net") for name in ("refused", "broken", "ids")
    ]
    assert rows[0].reason == "the order of images cannot be changed"
    assert rows[1].reason.startswith("the network raised AssertionError: was expecting embedding dimension")
    assert rows[2].reason == NEEDS_CAUSAL
    (several,) = run_synthetic_tests(
        SetModel(pool=True), "joma", tests[:1], {"x": tokens(), "y": tokens()}, **run
    )
    assert several.reason.endswith("one tensor of inputs, and the network takes several: x, y")


def test_batches_change_nothing_and_mode_and_random_state_are_restored():
    torch.manual_seed(0)
    model = SetModel(pool=False).train()
    state = torch.get_rng_state()
    targets = tokens(1)
    values = [
        tt.respond(model, tokens(), [OutputChange()], targets=targets, batch_size=size)
        .table.select(quantity=CHANGE)
        .one()
        .value
        for size in (2, N)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())


def test_inputs_that_do_not_fit_are_named():
    model = SetModel(pool=True)
    with pytest.raises(ValueError, match="got the keys null"):
        tt.respond(model, {"null": tokens()}, [OutputChange()])
    with pytest.raises(ValueError, match="got 6 and 5"):
        tt.respond(model, tokens(), [OutputChange()], targets=torch.zeros(5))
    with pytest.raises(ValueError, match="got 0"):
        tt.respond(model, tokens()[:0], [OutputChange()])
    with pytest.raises(ValueError, match="batch_size"):
        tt.respond(model, tokens(), [OutputChange()], batch_size=0)
    with pytest.raises(ValueError, match="length"):
        repeated_blocks(vocabulary=3, length=0, n=1, generator=torch.Generator())
    with pytest.raises(ValueError, match=r"at most the vocabulary, 3 ids.*got 4"):
        repeated_blocks(vocabulary=3, length=4, n=1, generator=torch.Generator())
    with pytest.raises(NoAttention):
        tt.respond(nn.Linear(DIM, DIM), tokens(), attention_svm.THEORY.in_networks.metrics())


def test_targets_of_another_shape_are_a_row_with_the_reason():
    row = tt.respond(SetModel(pool=True), tokens(), [OutputChange()], targets=torch.zeros(N, 3)).table[0]
    assert row.value is None
    assert "[6, 4]" in row.reason
