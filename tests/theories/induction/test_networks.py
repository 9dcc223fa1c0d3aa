"""Scores of heads in trained, written and foreign networks; the ladder; errors."""

import math
from functools import cache

import pytest
import torch
from torch import nn

import transformer_theory as tt
from transformer_theory.core.metric import Activations
from transformer_theory.models import ViT
from transformer_theory.models.decoder import Decoder
from transformer_theory.probes import NoAttention, probe
from transformer_theory.theories import induction
from transformer_theory.theories.induction import ladder
from transformer_theory.theories.induction.in_networks import COPYING, POSITIONAL, limits_of, repeated_blocks
from transformer_theory.theories.induction.ladder import BEST, LADDER, PREDICTED, measured
from transformer_theory.theories.induction.learning import copy_accuracy, repeated_loss, repeated_patterns
from transformer_theory.theories.induction.scores import (
    DUPLICATE,
    PREFIX,
    PREVIOUS,
    block_length,
    draw_blocks,
    uniform_score,
)
from transformer_theory.theories.induction.user_models import limits_of_model


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def trained() -> induction.Network:
    return induction.train_induction(2, steps=150, generator=generator(), norm=True)


def test_blocks():
    value, null = draw_blocks(20, length=6, vocabulary=12, generator=generator())
    assert torch.equal(value[:, :6], value[:, 6:])
    assert torch.equal(value[:, 6:], null[:, 6:])
    assert all(not set(a) & set(b) for a, b in zip(null[:, :6].tolist(), null[:, 6:].tolist()))
    with pytest.raises(
        ValueError, match="vocabulary must be at least 14, the ids of two blocks of 7, got 12"
    ):
        draw_blocks(1, length=7, vocabulary=12, generator=generator())


def test_scores_are_entries_of_the_weights():
    A = torch.rand(2, 3, 8, 8, generator=generator())
    previous, prefix, duplicate = induction.score_weights(A)
    assert float(previous[1, 2]) == pytest.approx(sum(float(A[1, 2, i, i - 1]) for i in range(1, 8)) / 7)
    assert float(prefix[0, 1]) == pytest.approx(sum(float(A[0, 1, i, i - 3]) for i in range(4, 7)) / 3)
    assert float(duplicate[0, 1]) == pytest.approx(sum(float(A[0, 1, i, i - 4]) for i in range(4, 7)) / 3)
    uniform = torch.ones(8, 8).tril() / torch.arange(1, 9)[:, None]
    for quantity, score in zip((PREVIOUS, PREFIX, DUPLICATE), induction.score_weights(uniform[None, None])):
        assert float(score) == pytest.approx(uniform_score(8, quantity))
    with pytest.raises(ValueError, match="2P, 2P"):
        induction.score_weights(torch.rand(1, 1, 7, 7))


def test_training_forms_an_induction_head():
    ids, _ = draw_blocks(64, length=16, vocabulary=32, generator=generator(9))
    assert copy_accuracy(trained(), ids) > 0.95
    previous, prefix, _ = induction.sequence_scores(trained(), ids).mean(1)
    assert prefix.argmax() >= 2  # in the second layer
    assert prefix.max() > 0.9
    assert previous.argmax() < 2
    ids, period = next(repeated_patterns(generator()))
    silent = induction.Network(vocabulary=32, length=32)
    nn.init.zeros_(silent.head.weight)
    assert repeated_loss(silent, (ids, period)).item() == pytest.approx(math.log(32))
    assert torch.equal(ids[:, period:], ids[:, :-period])


def test_scores_of_a_network():
    table = induction.score_heads(trained(), sequences=200).table
    best = max(table.select(quantity=PREFIX), key=lambda row: row.value)
    assert best.layer == 1
    assert best.value > 0.9
    assert best.null.kind == "unrelated blocks"
    assert len(best.null.draws) == 19
    assert best.null.high < 0.4
    assert "uniform" in best.note
    loss = table.select(quantity="loss at a position").one()
    assert loss.value < 0.5 < 3 < loss.null.draws[0]
    copying = table.select(quantity=COPYING, layer=1)
    network = trained()
    qkv, out = (
        network.layers[1].attention.qkv.weight.double(),
        network.layers[1].attention.out.weight.double(),
    )
    W_E, W_U = network.embedding.weight.double(), network.head.weight.double().mT
    for head, row in enumerate(copying):
        rows = slice(128 + 32 * head, 160 + 32 * head)
        score = induction.copying_score(qkv[rows].mT, out[:, 32 * head : 32 * head + 32].mT, W_E, W_U)
        assert row.value == pytest.approx(float(score.detach()), abs=1e-4)
        assert max(row.null.draws) < row.value
    figure = induction.head_map(tt.Result("scores", table=table), PREFIX)
    assert len(figure.axes) >= 2


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 40,
        "n_positions": 24,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
    }
    return LlamaForCausalLM(
        LlamaConfig(**sizes, vocab_size=40, max_position_embeddings=24, initializer_range=0.3)
    )


def pythia():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(**sizes, vocab_size=40, max_position_embeddings=24, initializer_range=0.3)
    )


@pytest.mark.parametrize("make", [gpt2, llama, pythia])
def test_models_of_transformers(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
    assert limits_of_model(model) == {"vocabulary": 40, "length": 24}
    table = induction.score_heads(model, sequences=10).table
    for quantity in (PREVIOUS, PREFIX, DUPLICATE, COPYING):
        rows = table.select(quantity=quantity)
        assert {(row.layer, row.head) for row in rows} == {
            (layer, head) for layer in (0, 1) for head in range(4)
        }
        assert all(row.value is not None for row in rows), quantity
    ids, _ = draw_blocks(1, length=12, vocabulary=40, generator=generator())  # one of twenty sets
    with torch.no_grad():
        maps = make_eager(model)(input_ids=ids, output_attentions=True).attentions
    expected = torch.cat([induction.score_weights(A.double()) for A in maps], -1).mean(1)[1]
    rows = table.select(quantity=PREFIX)
    assert [row.value for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)  # both draw with seed 0
    W_V, W_O = matrices(model, layer=1, head=3)
    W_E, W_U = (each().weight.double() for each in (model.get_input_embeddings, model.get_output_embeddings))
    score = float(induction.copying_score(W_V.double(), W_O.double(), W_E, W_U.mT))
    assert table.select(quantity=COPYING, layer=1, head=3).one().value == pytest.approx(score, abs=1e-4)


def make_eager(model):
    model.set_attn_implementation("eager")
    return model.eval()


def matrices(model, *, layer: int, head: int):
    """W_V and W_O of a head by the layout of each kind of model."""
    p, rows = 4, slice(4 * head, 4 * head + 4)
    if type(model).__name__.startswith("GPT2"):
        attention = model.transformer.h[layer].attn
        return attention.c_attn.weight[:, 32:][:, rows], attention.c_proj.weight[rows]
    if type(model).__name__.startswith("Llama"):
        attention = model.model.layers[layer].self_attn
        return attention.v_proj.weight.mT[
            :, p * (head // 2) : p * (head // 2) + p
        ], attention.o_proj.weight.mT[rows]
    attention = model.gpt_neox.layers[layer].attention
    return attention.query_key_value.weight.mT.reshape(16, 4, 3, p)[:, head, 2], attention.dense.weight.mT[
        rows
    ]


def test_the_null_of_a_head_that_reads_positions():
    """A head that looks at a fixed distance has prefix matching 1 and the same null."""

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(40, 48)

        def forward(self, ids):
            n = ids.shape[1]
            scores = torch.full((n, n), -30.0)
            scores[torch.arange(7, n), torch.arange(n - 7)] = 30.0
            eye = torch.eye(n)[None, None].expand(len(ids), 1, n, n)
            return nn.functional.scaled_dot_product_attention(
                30 * scores[None, None] @ eye, eye, eye, scale=1.0
            )[:, 0]

    table = induction.score_heads(Fixed(), vocabulary=16, length=16, sequences=4).table
    row = table.select(quantity=PREFIX).one()
    assert row.value == pytest.approx(1)
    assert min(row.null.draws) == pytest.approx(1)


def share(scores: torch.Tensor) -> float | None:
    metric, tokens = induction.PositionalShare(), torch.zeros(len(scores), scores.shape[-1], 2)
    metric.update(Activations("attention", 0, "attention", tokens, tokens, weights=scores.softmax(-1)))
    return metric.compute()[0].value


def test_positional_share():
    g = generator(3)
    common, own = torch.randn(1, 1, 6, 6, generator=g), torch.randn(400, 1, 6, 6, generator=g)
    assert share(common.expand(5, 1, 6, 6)) == pytest.approx(1, abs=1e-6)
    assert share(own) == pytest.approx(0, abs=0.02)
    assert share(common * 2 + own) == pytest.approx(
        4 * float(centred(common)) / (4 * float(centred(common)) + float(centred(own))), abs=0.03
    )
    metric, tokens = induction.PositionalShare(), torch.zeros(10, 6, 2)
    own_scores = torch.randn(10, 300, 6, 6, generator=g)
    metric.update(Activations("attention", 0, "attention", tokens, tokens, weights=own_scores.softmax(-1)))
    # a mean map of ten sequences would have a share of .1
    assert abs(sum(row.value for row in metric.compute()) / 300) < 0.02
    assert share(own[:1]) is None
    assert share(torch.zeros(4, 1, 6, 6)) is None


def test_the_positional_share_of_long_sequences_is_that_of_some_queries():
    n, tokens, g = 4, 250, generator(5)
    S = torch.randn(1, 2, tokens, tokens, generator=g) + torch.randn(n, 2, tokens, tokens, generator=g)
    S = S.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool).tril(), -math.inf)
    metric = induction.PositionalShare()
    x = torch.zeros(n, tokens, 2)
    metric.update(Activations("attention", 0, "attention", x, x, weights=S.softmax(-1)))
    # 40,000 scores of a sequence are 160 queries of 250 keys
    chosen = torch.randperm(tokens, generator=torch.Generator().manual_seed(tokens))[:160]
    for head, row in enumerate(metric.compute()):
        together = squares = 0.0
        for i in chosen.tolist():
            seen = S[:, head, i, : i + 1].double()
            seen = seen - seen.mean(1, keepdim=True)
            products = seen @ seen.mT  # of two sequences
            together += float(products.sum() - products.trace()) / (n - 1)
            squares += float(products.trace())
        assert row.value == pytest.approx(together / squares, rel=1e-5)
        assert row.n == n


def centred(scores: torch.Tensor) -> torch.Tensor:
    return (scores - scores.mean(-1, keepdim=True)).square().mean()


def test_the_metric_reads_vision_transformers_too():
    torch.manual_seed(0)
    model = ViT.for_tokens(5, 4, 3, dim=8, depth=2, heads=2)
    with probe(model, induction.THEORY.in_networks.metrics()) as p, torch.no_grad():
        model(torch.randn(8, 5, 4))
    assert len(p.result().table.select(quantity=POSITIONAL)) == 4


def test_rungs(monkeypatch):
    monkeypatch.setattr(ladder, "DRAWS", 39)
    assert [rung.name for rung in LADDER.rungs if rung.covered] == ["weights by hand"]
    assert all(len(rung.name) <= 24 for rung in LADDER.rungs)
    row, predicted = LADDER.rungs[0].measure(generator())
    assert row.value > 0.99
    assert 0 < row.null.low < row.null.high < 0.1
    assert "uniform attention: 0.043" in row.note
    assert (predicted.quantity, predicted.value) == (PREDICTED, 1.0)
    torch.manual_seed(0)
    rows = list(
        measured(
            induction.Network(vocabulary=20, length=16),
            length=8,
            vocabulary=20,
            generator=generator(),
            draws=19,
            blocks=8,
        )
    )
    assert rows[0].value < 0.5
    text = tt.data.text.Text(torch.arange(40) % 5, tt.data.text.Vocabulary(("<unk>", "a", "b", "c", "d")))
    (row,) = LADDER.rungs[-1].measure(generator(), text)
    assert row.value is None
    assert row.reason


def test_a_model_of_the_user_is_a_rung(monkeypatch):
    monkeypatch.setattr(ladder, "DRAWS", 3)  # of the first rung, which test_rungs measures
    torch.manual_seed(0)
    model = Decoder(vocabulary=30, dim=16, heads=2, hidden=16, depth=2)
    theory = induction.with_model(model, length=20, name="my decoder")
    result = tt.reach(theory, seeds=1, until="own setting")
    assert result.table.select(rung="weights by hand", quantity=BEST)
    rung = theory.ladder.rungs[-1]
    rows = list(rung.measure(generator()))
    assert (rung.name, rung.column, rows[0].model) == ("my decoder", "trained network", "Decoder")
    assert rows[0].value < 0.5
    assert len(rows[0].null.draws) == 19


@pytest.mark.usefixtures("unchecked")
def test_bad_inputs():
    torch.manual_seed(0)
    network = induction.Network(vocabulary=20, length=16)
    for arguments, message in (
        ({"length": 17}, "length must be at most the model's, 16, got 17"),
        ({"vocabulary": 21}, "vocabulary must be at most the model's, 20, got 21"),
        ({"vocabulary": 7}, "at least 8, got vocabulary 7"),
        ({"length": 6}, "at least 8, got length 6"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"vocabulary": 0}, "vocabulary must be at least 1, got 0"),
        ({"sequences": 0}, "sequences must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            induction.score_heads(network, **arguments)
    with pytest.raises(TypeError, match=r"vocabulary must be an integer, got float 10\.5"):
        induction.score_heads(network, vocabulary=10.5)
    for model in (ViT.for_tokens(5, 4, 3, dim=8, depth=1, heads=2), None):
        with pytest.raises(ValueError, match=f"the model must take ids, got {type(model).__name__}"):
            induction.with_model(model)
    with pytest.raises(ValueError, match=r"data must be ids \[n, seq\], got torch.float32"):
        limits_of(torch.zeros(2, 3), {})
    with pytest.raises(NoAttention, match="no attention was observed in Embedding"):
        induction.sequence_scores(nn.Embedding(5, 3), torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(ValueError, match=r"ids must be \[n, 2P\] with n >= 1 and P >= 2, got \[2, 7\]"):
        induction.sequence_scores(network, torch.zeros(2, 7, dtype=torch.long))
    for weights in (torch.rand(6, 6), torch.ones(1, 1, 6, 6, dtype=torch.long)):
        with pytest.raises(ValueError, match="weights must be floats"):
            induction.score_weights(weights)
    with pytest.raises(
        ValueError, match=r"quantities must be some of 'attention to the previous token', .*, got 'prefix'"
    ):
        induction.head_map(induction.score_heads(network, sequences=1), "prefix")
    with torch.no_grad():
        network.head.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"parameters must be finite, got NaN or infinity in head\.weight"):
        induction.score_heads(network)
    assert block_length({"length": 100, "vocabulary": 1000}) == 25


def test_value_and_null_have_equally_many_blocks():
    blocks = repeated_blocks(torch.arange(40).view(2, 20), {"sequences": 50}, generator())
    assert blocks["value"].shape == (3, 20)
    assert [len(null) for null in blocks["null"]] == [3] * 19


def test_the_copying_score_in_half_precision():
    """Values and outputs are then rounded to eight bits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = gpt2()
    expected = induction.score_heads(model, sequences=1).select(quantity=COPYING).column("value")
    rounded = induction.score_heads(model.bfloat16(), sequences=1).select(quantity=COPYING).column("value")
    assert len(expected) == 8
    assert rounded == pytest.approx(expected, abs=0.05)


def test_random_heads_exceed_the_null_of_the_copying_score_as_often_as_chance_allows():
    metric, heads = induction.CopyingScore(), 1000
    metric.sums = {
        (-1,): torch.eye(9).double(),
        (0, 0): torch.randn(heads, 2, 9, 4, generator=generator(1), dtype=torch.float64),
    }
    rows = metric.compute(draws=19)
    # standard error .007
    assert sum(row.value > row.null.high for row in rows) / heads == pytest.approx(1 / 20, abs=0.025)


def test_a_head_without_a_copying_score_has_a_reason():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = induction.Network(vocabulary=20, length=16)
    nn.init.zeros_(network.layers[0].attention.out.weight)
    rows = induction.score_heads(network, sequences=1).select(quantity=COPYING)
    assert [(row.layer, row.value is None, row.reason) for row in rows] == [
        (0, True, "W_V, W_O, W_E or W_U is zero or not finite"),
        (1, False, ""),
        (1, False, ""),
    ]
