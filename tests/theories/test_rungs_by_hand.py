"""Rungs measure the trained network, its layers and heads, on samples that the training has not seen.

Trainings are short, and values are computed by numpy from the weights.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.theories.collapse.test_by_hand import squared_contraction
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.data import digits
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.models import ViT
from transformer_theory.models.decoder import Decoder
from transformer_theory.theories import theory
from transformer_theory.theories.bottleneck import ladder as bottleneck
from transformer_theory.theories.collapse import ladder as collapse
from transformer_theory.theories.in_context import ladder as in_context
from transformer_theory.theories.induction import ladder as induction
from transformer_theory.theories.length import ladder as length
from transformer_theory.theories.particles import ladder as particles
from transformer_theory.theories.vision import ladder as vision
from transformer_theory.training import trained_rungs
from transformer_theory.training.trained_rungs import digit_parts, headline_in


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rungs(module) -> dict:
    return {rung.name: rung for rung in module.LADDER.rungs}


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def kept(monkeypatch, module, name: str) -> list:
    """Results of a function of the module, as they come."""
    found, function = [], getattr(module, name)

    def called(*arguments, **options):
        found.append((function(*arguments, **options), arguments, options))
        return found[-1][0]

    monkeypatch.setattr(module, name, called)
    return found


def attention_maps(model, tokens: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens that the attention of each block reads, and the weights of its heads [n, heads, T, T]."""
    x = torch.cat([model.cls_token.expand(len(tokens), -1, -1), model.embed(tokens)], 1) + model.pos_embedding
    found = []
    for block in model.blocks:
        read = block.attention_norm(x).detach().double().numpy()
        heads, width = block.attention.heads, block.attention.head_dim
        query, key = (
            read @ part.T
            for part in block.attention.qkv.weight.detach().double().numpy().reshape(3, heads * width, -1)[:2]
        )
        split = [part.reshape(*part.shape[:2], heads, width).transpose(0, 2, 1, 3) for part in (query, key)]
        found.append((read, softmax(split[0] @ split[1].transpose(0, 1, 3, 2) / math.sqrt(width))))
        x = block(x)
    return found


# ---- collapse


@pytest.mark.parametrize(
    ("name", "depth", "width", "heads"),
    [("one block of a ViT", 1, 32, 2), ("two blocks", 2, 32, 2), ("a wider ViT on digits", 2, 64, 4)],
)
def test_the_contraction_of_a_trained_network(monkeypatch, name: str, depth: int, width: int, heads: int):
    """The mean over heads and layers of root mean squares over 32 validation images, over the null."""
    monkeypatch.setattr(collapse, "NETWORK_STEPS", 2)
    trained = kept(monkeypatch, collapse, "train_vit")
    ratio, plain, accuracy = rungs(collapse)[name].measure(generator(1))
    ((model, share), (train, validation, _), _), *others = trained
    assert not others
    assert (len(model.blocks), model.blocks[0].attention.heads, model.norm.weight.numel()) == (
        depth,
        heads,
        width,
    )
    images = validation.tokens[:32].float()
    known = {tuple(each.flatten().tolist()) for each in train.tokens}
    assert sum(tuple(each.flatten().tolist()) in known for each in validation.tokens) <= 2, "other images"
    values = []
    for read, weights in attention_maps(model, images):
        values += [math.sqrt(squared_contraction(weights[:, head], read).mean()) for head in range(heads)]
    assert len(values) == depth * heads
    assert plain.value == pytest.approx(np.mean(values), rel=1e-3)
    draws = np.array(ratio.null.draws)
    assert len(draws) == 399
    assert np.mean(draws**2) == pytest.approx(1)
    rng = np.random.default_rng(2)
    chance = []
    for _ in range(20):
        shuffled = []
        for read, weights in attention_maps(model, images):
            order = rng.permuted(weights, axis=-1)
            shuffled += [math.sqrt(squared_contraction(order[:, head], read).mean()) for head in range(heads)]
        chance.append(np.mean(shuffled))
    assert plain.value / ratio.value == pytest.approx(np.mean(chance), rel=0.02)
    assert (ratio.side, ratio.predicted, plain.predicted) == (">=", None, None)
    assert accuracy.value == share
    right = (model(validation.tokens.float()).argmax(-1) == validation.labels).double().mean()
    assert share == pytest.approx(float(right))


@pytest.mark.parametrize(("name", "batch"), [("one trained head", 0), ("AdamW on batches", 64)])
def test_the_contraction_of_a_trained_head(monkeypatch, name: str, batch: int):
    monkeypatch.setattr(collapse, "STEPS", 3)
    monkeypatch.setattr(collapse, "ADAM_STEPS", 3)
    trained = kept(monkeypatch, collapse, "train_head")
    ratio, plain = rungs(collapse)[name].measure(generator(2))
    (head, (start, tokens, *_), options), *others = trained
    assert not others
    assert options == {"steps": 3, "rate": 0.02 if batch else 0.5, "batch": batch}
    assert not torch.equal(head.W, start.W)
    x = tokens.numpy()[:32]
    scores = x @ head.W.numpy() @ x.transpose(0, 2, 1)
    assert plain.value == pytest.approx(math.sqrt(squared_contraction(softmax(scores), x).mean()), rel=1e-4)
    assert (ratio.predicted, len(ratio.null.draws), ratio.n) == (None, 399, 32)
    assert float(start.out.abs().sum()) == 0
    # scores of random weights have the deviation .6
    own = x @ start.W.numpy() @ x.transpose(0, 2, 1)
    assert own.std(-1).mean() == pytest.approx(0.6, rel=0.25)


# ---- vision


def test_groups_and_samples_of_trained_vision_transformers(monkeypatch):
    """The groups of the theory's data, with 512 other images; the quadrants of sixteen patches of digits."""
    seen = []
    monkeypatch.setattr(
        vision, "measured", lambda *arguments, **options: iter(seen.append((arguments, options)) or ())
    )
    for name in ("one block of a ViT", "two blocks", "ViT on the digits"):
        list(rungs(vision)[name].measure(generator(3)))
    for ((train, validation, groups, _), options), depth in zip(seen[:2], (1, 2)):
        assert options == {"depth": depth, "steps": 200}
        assert torch.equal(groups, vision.DATA.groups)
        assert (len(train.tokens), len(validation.tokens)) == (1024, 512)
        # one direction w for both: the signal of a group has the sign of the label
        signs = []
        for part in (train, validation):
            x, y = part.tokens.double().numpy(), 2 * part.labels.numpy() - 1
            sums = np.stack([x[:, groups.numpy() == g].sum(1) for g in range(int(groups.max()) + 1)], 1)
            signs.append((sums.sum(1) * y[:, None]).mean(0))
        cosine = signs[0] @ signs[1] / np.linalg.norm(signs[0]) / np.linalg.norm(signs[1])
        assert cosine > 0.8
    (train, validation, groups, _), options = seen[2]
    first, second = digit_parts()
    assert options == {"depth": 2, "steps": 150}
    assert train is first
    assert validation is second
    assert groups.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]


def test_trained_positional_attention(monkeypatch):
    seen = []

    def trained(data, **options):
        seen.append(options)
        S = torch.softmax(torch.randn(data.patches, data.patches, generator=generator(len(seen))), -1)
        return SimpleNamespace(model=SimpleNamespace(weights=lambda: S), accuracy=0.5 + len(seen) / 10)

    monkeypatch.setattr(vision, "train_patches", trained)
    expected = {
        "P P^T, trained": (vision.DATA.patches, 0, 0.0),
        "free A": (0, 0, 0.0),
        "AdamW, 1,024 images": (0, 1024, 0.01),
    }
    for number, (name, sizes) in enumerate(expected.items(), 1):
        mass, _, accuracy = rungs(vision)[name].measure(generator(4))
        options = seen[-1]
        assert (options["rank"], options["stored"], options["decay"]) == sizes
        assert options["steps"] == 800
        S = torch.softmax(
            torch.randn(len(vision.DATA.groups), len(vision.DATA.groups), generator=generator(number)), -1
        ).numpy()
        groups = vision.DATA.groups.numpy()
        own = [(S[i, groups == groups[i]].sum() - S[i, i]) / (1 - S[i, i]) for i in range(len(groups))]
        assert mass.value == pytest.approx(np.mean(own), rel=1e-5)
        assert accuracy.value == 0.5 + number / 10


# ---- particles


@pytest.mark.parametrize(("name", "depth"), [("one block of a ViT", 1), ("four blocks", 4)])
def test_the_blocks_of_a_vision_transformer_move_particles(monkeypatch, name: str, depth: int):
    """The first 256 validation images, the network after its training, and its accuracy on all of them."""
    monkeypatch.setattr(particles, "TRAINING_STEPS", 2)
    built, seen = kept(monkeypatch, particles, "vit_for"), []

    def measured(model, samples, **options):
        seen.append((model, samples, options))
        return iter([particles.LADDER.row(0.5)])

    monkeypatch.setattr(particles, "in_network", measured)
    _, accuracy = rungs(particles)[name].measure(generator(5))
    ((model, (train, _), _),) = built
    ((one, samples, options),) = seen
    _, validation = digit_parts()
    assert one is model
    assert len(model.blocks) == depth
    assert train is digit_parts()[0]
    assert torch.equal(samples.tokens, validation.tokens[:256])
    assert options == {"name": "ViT", "steps": 2}
    right = (model.eval()(validation.tokens.float()).argmax(-1) == validation.labels).double().mean()
    assert accuracy.value == pytest.approx(float(right))


# ---- attention to many keys


@pytest.mark.parametrize(("name", "depth"), [("one block", 1), ("two blocks", 2)])
def test_the_class_token_of_trained_blocks_sees_sixteen_times_the_keys(monkeypatch, name: str, depth: int):
    """Scores of all heads by numpy, on new sequences: 500 short ones, 80 long ones."""
    monkeypatch.setattr(length, "BLOCK_STEPS", 2)
    built, drawn, seen = kept(monkeypatch, length, "build"), kept(monkeypatch, length, "draw"), []
    monkeypatch.setattr(
        length, "rows_of", lambda short, long, g, **o: iter(seen.append((short, long, o)) or ())
    )
    list(rungs(length)[name].measure(generator(6)))
    ((model, *_),) = built
    stored, few, many = (data for data, *_ in drawn)
    assert (len(stored.tokens), stored.tokens.shape[1]) == (1024, 16)
    assert few.tokens.shape[:2] == (500, 16)
    assert many.tokens.shape[:2] == (80, 256)
    ((short, long, options),) = seen
    assert len(short) == len(long) == 2 * depth
    assert options["first"] == (2 if depth > 1 else 0)
    for scores, data in ((short, few), (long, many)):
        hidden = torch.cat([model.token.expand(len(data.tokens), 1, -1), model.embed(data.tokens)], 1)
        expected = []
        for block in model.blocks:
            read = block.attention_norm(hidden)
            p = block.attention.head_dim
            query, key, _ = block.attention.qkv(read).split(read.shape[-1], -1)
            for head in range(2):
                part = slice(head * p, (head + 1) * p)
                expected.append((key[:, :, part] @ query[:, 0, part, None])[..., 0] / math.sqrt(p))
            hidden = block(hidden)
        for one, other in zip(scores, expected):
            assert one.numpy() == pytest.approx(other.detach().numpy(), abs=2e-3)


# ---- induction


def test_a_trained_network_of_the_induction_ladder(monkeypatch):
    trained, seen = kept(monkeypatch, induction, "train_induction"), []
    monkeypatch.setattr(induction, "STEPS", 1)
    monkeypatch.setattr(
        induction, "measured", lambda network, **options: iter(seen.append((network, options)) or ())
    )
    shapes = {
        "attention only, trained": (2, False, False),
        "LayerNorm": (2, True, False),
        "MLP": (2, True, True),
        "4 layers": (4, True, True),
    }
    for name, (layers, norm, mlp) in shapes.items():
        list(rungs(induction)[name].measure(generator(7)))
        network, options = seen[-1]
        assert network is trained[-1][0]
        _, (depth,), given = trained[-1]
        assert (depth, given["norm"], given["mlp"], given["steps"]) == (layers, norm, mlp, 1)
        assert options["length"] == induction.LENGTH // 2
        assert options["vocabulary"] == induction.VOCABULARY


def a_text(words: int = 4000, vocabulary: int = 60, seed: int = 0) -> Text:
    """Words whose frequency falls with their number."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, vocabulary + 1)
    ids = rng.choice(vocabulary, size=words, p=p / p.sum())
    return Text(torch.from_numpy(ids), Vocabulary(("<unk>", *(f"w{i}" for i in range(1, vocabulary)))), "own")


def test_the_decoder_of_a_text_is_measured_on_blocks_of_its_words(monkeypatch):
    monkeypatch.setattr(induction, "TEXT_STEPS", 2)
    built, seen = kept(monkeypatch, induction, "build"), []
    monkeypatch.setattr(
        induction, "measured", lambda network, **options: iter(seen.append((network, options)) or ())
    )
    fits = kept(monkeypatch, induction, "fit")
    text = a_text()
    list(rungs(induction)["decoder on WikiText"].measure(generator(8), text))
    ((network, *_),) = built
    ((one, options),) = seen
    assert one is network
    assert isinstance(network, Decoder)
    assert (len(network.blocks), network.blocks[0].attention.heads, network.head.out_features) == (4, 4, 60)
    assert (options["length"], options["vocabulary"]) == (17, 60)
    _, (trained, task), given = fits[0]
    assert trained is network
    assert task.text is text
    assert given["steps"] == 2
    (row,) = rungs(induction)["decoder on WikiText"].measure(generator(8), a_text(vocabulary=33))
    assert row.value is None
    assert "34 words" in row.reason


# ---- learning in context


def test_blocks_trained_on_text_are_frozen_and_compared_with_random_ones(monkeypatch):
    """Nine tenths of the text are learnt; windows of 64 words come from the rest; nothing but the linear maps
    learns prompts.
    """
    monkeypatch.setattr(in_context, "TEXT_STEPS", 3)
    monkeypatch.setattr(in_context, "STEPS", 2)
    monkeypatch.setattr(in_context, "TESTED", 50)
    built, scored, decoders = (
        kept(monkeypatch, in_context, name) for name in ("build", "respond", "train_decoder")
    )
    fits = kept(monkeypatch, in_context, "fit")
    text = a_text()
    score, *rows = rungs(in_context)["blocks trained on text"].measure(generator(9), text)
    (untrained, *_), (network, *_) = built
    assert len(network.blocks) == 2
    assert network.head.out_features == 60
    _, (learner, task), options = fits[0]
    assert learner is network
    assert task.text.ids.tolist() == text.ids[:3600].tolist()
    assert options["steps"] == 3
    # the score is that of the trained decoder on the last tenth of the text
    (table, (model, inputs, _), _), *others = scored
    assert not others
    assert model is network
    rest = text.ids[3600:].tolist()
    windows = {tuple(rest[i : i + 64]) for i in range(len(rest) - 63)}
    own = inputs["value"].tolist()
    n = len(own) // 2
    assert all(tuple(row) in windows for row in own[:n])
    # then the same with the last quarter first
    assert [row[16:] + row[:16] for row in own[n:]] == own[:n]
    assert len(inputs["null"]) == 19
    assert score.value == table.table.select(quantity=score.quantity).one().value
    assert (score.kind, score.theory, score.data) == ("rung", "in_context", "own")
    # both decoders of prompts have given blocks, of which nothing moves
    (first, _, shape), (_, _, other) = decoders
    assert shape["blocks"] is network.blocks
    assert other["blocks"] is untrained.blocks
    assert shape["dim"] == other["dim"] == 64
    assert first.blocks is network.blocks
    fresh = in_context.build  # weights of the seed, drawn again in the same order
    g = generator(9)
    again = [fresh(arguments[0], g) for _, arguments, _ in list(built)[:2]]
    for one, expected in zip(untrained.blocks.parameters(), again[0].blocks.parameters()):
        assert torch.equal(one, expected)
        assert not one.requires_grad
    moved = [
        not torch.equal(one, start)
        for one, start in zip(network.blocks.parameters(), again[1].blocks.parameters())
    ]
    assert any(moved), "the blocks have learnt the text"
    assert all(not one.requires_grad for one in network.blocks.parameters())
    head, *errors, random = rows
    assert (head.quantity, len(head.nulls), head.predicted) == (in_context.LADDER.quantity, 2, 1.0)
    assert len(errors) == 3
    assert random.quantity == f"{in_context.LADDER.quantity}, blocks with random weights"
    assert (random.nulls, random.side, random.predicted) == ((), None, None)
    assert random.value != head.value


@pytest.mark.parametrize(("name", "depth"), [("GPT block", 1), ("two GPT blocks", 2)])
def test_blocks_answer_prompts_of_patches(monkeypatch, name: str, depth: int):
    monkeypatch.setattr(in_context, "STEPS", 2)
    decoders, seen = kept(monkeypatch, in_context, "train_decoder"), []
    monkeypatch.setattr(
        in_context,
        "compared",
        lambda answers, setting, g, note="": iter(seen.append((answers, setting)) or ()),
    )
    list(rungs(in_context)[name].measure(generator(10)))
    ((model, (draw, d), options),) = decoders
    ((answers, setting),) = seen
    assert options["depth"] == len(model.blocks) == depth
    assert setting is in_context.digit_setting()
    assert d == len(setting.covariance) == 4
    prompts = setting.draw(generator(11), 6)
    tokens = torch.cat([prompts.x, prompts.y[..., None]], -1)
    query = torch.cat([prompts.query, torch.zeros(6, 1)], -1)[:, None]
    with torch.no_grad():
        expected = model(torch.cat([tokens, query], 1).float())[:, -1]
    assert answers(prompts).numpy() == pytest.approx(expected.double().numpy(), rel=1e-5)
    assert draw(generator(12)).x.shape == (128, 20, 4)


# ---- the bottleneck


def test_a_network_of_the_bottleneck_has_the_prediction_one(monkeypatch):
    row = Measurement("bottleneck", "rung", "q", 0.3, nulls=(Null("n", (0.1,)),), side=">=")
    seen = []
    monkeypatch.setattr(
        bottleneck, "trained_network", lambda recipe, seed, images: (recipe, f"images of {seed}")
    )
    monkeypatch.setattr(
        bottleneck, "headline_in", lambda *arguments, **options: (seen.append((arguments, options)), row)[1]
    )
    (found,) = rungs(bottleneck)["CRATE on digits"].measure(generator(13))
    assert (found.value, found.predicted, found.nulls) == (0.3, 1.0, row.nulls)
    (model, samples, theory, one), options = seen[0]
    assert (model, samples, theory) == ("CRATE (released form)", "images of 13", "bottleneck")
    assert one is bottleneck.IN_NETWORKS
    assert options["name"] == "CRATE (released form)"


def test_the_validation_digits_are_not_those_of_the_training():
    """Seven in ten of the digits, the same for all seeds, and the rest."""
    train, validation = digit_parts()
    stored = digits()
    assert len(train) + len(validation) == len(stored) == 1797
    assert len(train) == pytest.approx(0.7 * 1797, abs=10)
    every = sorted(tuple(each.flatten().tolist()) for each in stored.tokens)
    parts = sorted(tuple(each.flatten().tolist()) for part in (train, validation) for each in part.tokens)
    assert parts == every


def test_a_headline_without_value_names_its_network_and_the_reason(monkeypatch):
    monkeypatch.setattr(trained_rungs, "headline_mean", lambda *_: None)
    samples = digit_parts()[1][:8]
    model = ViT.for_tokens(*samples.tokens.shape[1:], 10, dim=8, depth=1, heads=1)
    in_networks = theory("collapse").in_networks
    row = headline_in(model, samples, "induction", in_networks, name="mine", steps=3)
    assert (row.theory, row.kind, row.quantity) == ("induction", "rung", in_networks.headline)
    assert (row.model, row.data, row.value) == ("mine", samples.name, None)
    assert row.reason == "measured in no layer of mine"
