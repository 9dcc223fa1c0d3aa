"""Metrics in networks and the part on data: hand-made models of ids with known losses, and inputs with known
moments.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.models import Decoder, build
from transformer_theory.probes.respond import responses
from transformer_theory.theories import in_context
from transformer_theory.theories.in_context.in_networks import (
    DUAL,
    SCORE,
    DualShare,
    InContextScore,
    own_context,
    repeated_context,
)
from transformer_theory.theories.in_context.inputs import TokenInputs
from transformer_theory.theories.in_context.on_data import BEST_RISK, COSINE, PLAIN_RISK, TRAINED_RISK, read

VOCABULARY = 12


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Copier(nn.Module):
    """Predicts the successor of the last earlier copy of the token with probability .9, otherwise the uniform
    distribution.
    """

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for i in range(ids.shape[1]):
            for row in range(len(ids)):
                earlier = (ids[row, :i] == ids[row, i]).nonzero()[:, 0]
                if len(earlier):
                    logits[row, i, ids[row, earlier[-1] + 1]] = math.log(0.9 / (0.1 / (VOCABULARY - 1)))
        return logits


class Unigram(nn.Module):
    """Ignores the context."""

    def forward(self, ids):
        return torch.arange(VOCABULARY).float().expand(*ids.shape, VOCABULARY) / 7


def test_the_score_of_a_copier_is_the_difference_of_exact_losses():
    data = torch.randint(VOCABULARY, (6, 20), generator=generator())
    inputs = repeated_context(data, {"vocabulary": VOCABULARY, "length": 20}, generator(1))
    assert inputs["value"].shape == (12, 20)
    assert len(inputs["null"]) == 4
    blocks = inputs["value"][:6, 15:]
    assert torch.equal(blocks, inputs["value"][:6, 10:15])
    assert torch.equal(blocks, inputs["value"][6:, :5])
    assert all(torch.equal(null[:6, 15:], blocks) for null in inputs["null"])
    targets = inputs.pop("targets")
    assert int((targets >= 0).sum()) == 12 * 4
    (row,) = tt.respond(Copier(), inputs, [InContextScore()], targets=targets).select(quantity=SCORE)
    # Early: ids of the block differ and have no earlier copy, ln 12. Late: the copy is certain, unless the
    # last id also stands in between.
    assert row.value == pytest.approx(-math.log(0.9) - math.log(VOCABULARY), abs=1e-6)
    assert row.null is not None
    assert row.null.low > row.value + 1


def test_a_model_without_context_has_the_score_zero():
    data = torch.randint(VOCABULARY, (6, 24), generator=generator())
    inputs = own_context(data, {"length": 16}, generator(1), draws=3)
    targets = inputs.pop("targets")
    (row,) = tt.respond(Unigram(), inputs, [InContextScore()], targets=targets).select(quantity=SCORE)
    assert row.value == pytest.approx(0.0, abs=1e-9)
    assert [*row.null.draws] == pytest.approx([0.0] * 3, abs=1e-9)
    with torch.no_grad():
        assert inputs["value"].shape[1] == 16


def test_responses_run_on_a_decoder_and_are_left_out_for_floats():
    model = build(lambda: Decoder(vocabulary=VOCABULARY, dim=16, depth=2, heads=2), generator())
    data = torch.randint(VOCABULARY, (5, 16), generator=generator())
    limits = {"vocabulary": VOCABULARY, "length": 16, "sequences": 5}
    rows = responses(model, in_context.THEORY, data, limits=limits, generator=generator())
    assert {row.setting for row in rows} == {"own context", "repeated block"}
    assert all(
        row.theory == "in_context" and row.null is not None and len(row.null.draws) == 1199 for row in rows
    )
    assert (
        responses(model, in_context.THEORY, data[..., None].float(), limits=limits, generator=generator())
        == []
    )


def attention(scores, value, *, mask=None) -> Activations:
    weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
    eye = torch.eye(scores.shape[-1]).expand_as(scores)  # queries are scores, keys the identity
    return Activations(
        "a",
        0,
        "attention",
        value[:, 0],
        value[:, 0],
        query=scores,
        key=eye,
        value=value,
        weights=weights,
        mask=mask,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_dual_share_is_one_at_small_scores_only(causal):
    scores, value = (
        torch.randn(2, 1, 8, 8, generator=generator()),
        torch.randn(2, 1, 8, 3, generator=generator()),
    )
    mask = torch.ones(8, 8, dtype=torch.bool).tril().expand(2, 1, 8, 8) if causal else None
    shares = []
    for scale in (1e-3, 8.0):
        metric = DualShare()
        metric.update(attention(scale * scores, value, mask=mask))
        (row,) = metric.compute(draws=5)
        assert row.quantity == DUAL
        assert len(row.null.draws) == 5
        shares.append(row.value)
    assert shares[0] == pytest.approx(1.0, abs=1e-3)
    assert shares[1] < 0.9
    metric = DualShare()
    metric.update(attention(0 * scores, value, mask=mask))
    (row,) = metric.compute()
    assert row.value is None
    assert "scores" in row.reason


def first_order(scores: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The derivative of the outputs of softmax attention by the size of its scores, at 0."""

    def outputs(size: torch.Tensor) -> torch.Tensor:
        return (size * scores).masked_fill(~mask, -math.inf).softmax(-1) @ value

    return torch.func.jvp(outputs, (torch.zeros((), dtype=torch.float64),), (torch.ones(()).double(),))[1]


PADDING = torch.arange(9) < torch.tensor([9, 6, 4])[:, None]
CAUSAL = torch.ones(9, 9, dtype=torch.bool).tril()


@each_case(
    "mask",
    [
        CAUSAL[None, None],
        PADDING[:, None, None],
        PADDING[:, None, None] & CAUSAL,
        torch.stack([CAUSAL, torch.ones_like(CAUSAL)])[None],
    ],
    ids=["causal", "padding", "both", "of each head"],
)
def test_the_dual_share_with_a_mask_is_the_cosine_with_a_derivative(mask):
    scores, value = (
        2 + torch.randn(3, 2, 9, size, generator=generator(size), dtype=torch.float64) for size in (9, 4)
    )
    metric, allowed = DualShare(), mask.expand(3, 2, 9, 9)
    metric.update(attention(scores.float(), value.float(), mask=mask))
    rows = metric.compute(draws=3)
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    output = weights @ value - allowed.double() / allowed.sum(-1, keepdim=True) @ value
    orders = [torch.arange(9), *permutations(9, 3)]
    for head, row in enumerate(rows):
        expected = []
        for order in orders:
            dual = first_order(scores[:, head, order], value[:, head], allowed[:, head])
            own = output[:, head]
            expected.append(float((own * dual).sum() ** 2 / (own.square().sum() * dual.square().sum())))
        assert row.value == pytest.approx(expected[0], rel=1e-5)
        assert row.null.draws == pytest.approx(expected[1:], rel=1e-4)


def test_a_sequence_that_is_not_finite_changes_nothing_else():
    mask = CAUSAL.clone().expand(3, 1, 9, 9)
    scores, value = (torch.randn(3, 1, 9, size, generator=generator(size)) for size in (9, 4))
    metric, others, spoilt = DualShare(), DualShare(), value.clone()
    metric.update(attention(scores, value, mask=mask))
    # a further sequence of which a value is infinite
    spoilt[0, 0, 0, 0] = math.inf
    others.update(
        attention(
            torch.cat([scores[:1], scores]), torch.cat([spoilt[:1], value]), mask=mask[:1].expand(4, 1, 9, 9)
        )
    )
    (row,), (other,) = metric.compute(draws=2), others.compute(draws=2)
    assert row.value == pytest.approx(other.value, rel=1e-5)
    assert row.null.draws == pytest.approx(other.null.draws, rel=1e-4)


def test_queries_that_see_no_key_do_not_count():
    mask = CAUSAL.clone()
    mask[7:] = False
    scores, value = (torch.randn(3, 1, 9, size, generator=generator(size)) for size in (9, 4))
    found = attention(scores, value, mask=mask.expand(3, 1, 9, 9))
    found = replace(found, weights=found.weights.nan_to_num(0.0))
    metric = DualShare()
    metric.update(found)
    seen, v = scores.double()[:, 0, :7], value.double()[:, 0]
    allowed = CAUSAL[:7].expand(3, 7, 9)
    output = (
        seen.masked_fill(~allowed, -math.inf).softmax(-1) @ v - allowed / allowed.sum(-1, True) @ v.float()
    )
    dual = first_order(seen, v, allowed)
    share = (output * dual).sum() ** 2 / (output.square().sum() * dual.square().sum())
    assert metric.compute()[0].value == pytest.approx(float(share), rel=1e-5)


def test_inputs_of_tokens_have_the_moments_that_they_state():
    tokens = torch.randn(50, 6, 9, generator=generator(), dtype=torch.float64) * torch.linspace(0.1, 3, 9) + 5
    inputs = TokenInputs.of(tokens, components=4)
    assert inputs.points.shape == (300, 4)
    assert float(inputs.covariance.trace()) == pytest.approx(4.0)
    x = inputs.draw()((200_000,), generator(1))
    assert torch.allclose(x.mT @ x / len(x), inputs.covariance, atol=0.05)
    assert float(x.mean(0).abs().max()) < 0.02
    scaled = TokenInputs.of(1e200 * tokens, components=4)
    assert torch.allclose(scaled.points.abs(), inputs.points.abs(), atol=1e-6)


def test_on_data_predicts_the_risks():
    tokens = torch.randn(400, 4, 3, generator=generator(), dtype=torch.float64) * torch.tensor(
        [2.0, 1.0, 0.5]
    )
    table, arrays = collect(in_context.THEORY.on_data.measure(read(TokenData(tokens)), generator(), draws=0))
    values = {row.quantity: row for row in table}
    assert values[COSINE].value > 0.995
    for name in (TRAINED_RISK, BEST_RISK, PLAIN_RISK):
        low, high = values[name].interval
        slack = high - low
        assert low - slack < values[name].predicted < high + slack
    assert values[PLAIN_RISK].predicted > values[BEST_RISK].predicted
    assert arrays["in_context/trained"].shape == (3,)
    assert isinstance(read(TokenData(torch.ones(3, 2, 2))), Unsupported)


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("call", "message"),
    [
        (
            lambda ids: own_context(ids.float(), {}, generator()),
            r"the in-context score needs ids \[n, seq\], got torch.float32",
        ),
        (lambda ids: own_context(ids[:1], {}, generator()), "needs 2 sequences of 8 ids, got 1 of 20"),
        (lambda ids: own_context(ids, {"length": 5}, generator()), "needs 2 sequences of 8 ids, got 4 of 5"),
        (lambda ids: own_context(ids > 3, {}, generator()), r"needs ids \[n, seq\], got torch.bool"),
        (lambda ids: own_context(ids - 30, {}, generator()), "ids must be at least 0, got -"),
        (lambda ids: own_context(ids, {}, generator(), draws=-1), "draws must be at least 0, got -1"),
        (
            lambda ids: own_context(ids, {"vocabulary": 3}, generator()),
            "ids must lie below the vocabulary, 3, got",
        ),
        (
            lambda ids: repeated_context(ids % 3, {"vocabulary": 3}, generator()),
            "must hold 5 different ids for a block, got 3",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randint(VOCABULARY, (4, 20), generator=generator()))


@pytest.mark.usefixtures("unchecked")
def test_outputs_that_are_no_logits():
    targets = torch.zeros(2, 8, dtype=torch.long)
    metric = InContextScore()
    base = {
        "name": "",
        "layer": 0,
        "kind": "outputs",
        "tokens": torch.zeros(2, 8, 1),
        "output": torch.zeros(2, 8, 1),
    }
    with pytest.raises(ValueError, match=r"needs logits .* pass a language model of ids"):
        metric.update(Activations(**base, outputs=torch.zeros(2, 3), targets=targets))
    with pytest.raises(ValueError, match="targets must lie below the vocabulary, 4 ids, got 7"):
        metric.update(Activations(**base, outputs=torch.zeros(2, 8, 4), targets=targets + 7))
