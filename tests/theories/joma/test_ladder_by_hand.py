"""The ladder's numbers against loops in numpy: two unequal heads, unequal frequencies and heavy tails."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from transformer_theory.core.statistics import permutations
from transformer_theory.data import digits
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.models import ViT, build
from transformer_theory.models.decoder import Decoder, PreNorm
from transformer_theory.theories.joma.block import Block, Contexts
from transformer_theory.theories.joma.dynamics import Path
from transformer_theory.theories.joma.ladder import LADDER, blocks, comparison, networks
from transformer_theory.theories.joma.ladder.blocks import Setting
from transformer_theory.theories.joma.ladder.comparison import Change
from transformer_theory.theories.joma.ladder.networks import Probe, Snapshot

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-1, keepdims=True)


def compared(p: np.ndarray, m: np.ndarray) -> tuple[float, float, float]:
    """Cosine, log ratio of the sizes and relative error, means over heads [heads, M]."""
    found = []
    for a, b in zip(centred(p), centred(m)):
        sizes = np.linalg.norm(a), np.linalg.norm(b)
        found.append(
            (a @ b / (sizes[0] * sizes[1]), np.log(sizes[0] / sizes[1]), np.linalg.norm(a - b) / sizes[1])
        )
    return tuple(np.mean(found, 0))


def orders_within_groups(frequency: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Tokens in the order of decreasing frequency, four by four; the members of a group change places."""
    rank = sorted(range(len(frequency)), key=lambda token: -frequency[token])
    found = []
    for key in keys:
        order = np.arange(len(frequency))
        for start in range(0, len(rank), 4):
            members = sorted(rank[start : start + 4])
            order[members] = sorted(members, key=lambda token: key[token])
        found.append(order)
    return found


@pytest.mark.parametrize("sized", [True, False])
def test_the_rows_of_a_change(sized: bool):
    rng = np.random.default_rng(0)
    scale = np.array([[1.0], [5.0]])  # the second head moves more
    m = rng.standard_t(3, size=(2, 11)) * scale + 2
    p = 0.6 * m + 0.8 * rng.standard_t(3, size=(2, 11)) * scale * np.array([[0.3], [2.0]])
    early = rng.standard_t(3, size=(2, 2, 11))
    others = rng.standard_t(3, size=(6, 2, 11))
    frequency = np.array([0.02, 0.3, 0.01, 0.2, 0.1, 0.025, 0.12, 0.04, 0.13, 0.03, 0.025])
    change = Change(
        torch.from_numpy(p),
        torch.from_numpy(m),
        (torch.from_numpy(early[0]), torch.from_numpy(early[1])),
        torch.from_numpy(frequency),
        ("other weights", torch.from_numpy(others)),
        sized,
        "note",
    )
    cosine, size, error, first = comparison.rows_of(change, generator=generator(5), data="d", model="n")
    keys = torch.stack(
        [torch.randperm(11, generator=generator_) for generator_ in [generator(5)] for _ in range(399)]
    )
    orders = orders_within_groups(frequency, keys.numpy())
    value = compared(p, m)
    assert [row.value for row in (cosine, size, error)] == pytest.approx(value)
    null = [compared(p[:, order], m) for order in orders]
    assert cosine.nulls[0].draws == pytest.approx([each[0] for each in null])
    assert error.null.draws == pytest.approx([each[2] for each in null])
    second = [compared(each, m) for each in others]
    assert cosine.nulls[1].draws == pytest.approx([each[0] for each in second])
    assert size.null.draws == pytest.approx([each[1] for each in second])
    assert cosine.nulls[1].kind == size.null.kind == "other weights"
    assert first.value == pytest.approx(compared(*early)[0])
    assert first.null.draws == pytest.approx([compared(early[0][:, order], early[1])[0] for order in orders])
    assert [row.predicted for row in (cosine, size, error, first)] == [
        1.0,
        *((0.0, 0.0) if sized else (None, None)),
        1.0,
    ]
    assert [row.side for row in (cosine, size, error, first)] == [">=", "==" if sized else None, "<=", ">="]
    assert {(row.n, row.data, row.model) for row in (cosine, size, error, first)} == {(11, "d", "n")}
    assert (cosine.bounds, size.unit) == ((-1.0, 1.0), "nats")


def test_seeds_that_share_their_data_share_the_orders():
    rng = np.random.default_rng(1)
    p, m = rng.standard_t(3, size=(2, 1, 9))
    change = Change(
        torch.from_numpy(p), torch.from_numpy(m), None, torch.arange(9.0), ("", torch.ones(0, 1, 9)), True
    )
    row, *_ = comparison.rows_of(change)
    orders = orders_within_groups(np.arange(9.0), permutations(9, 399).numpy())
    assert row.null.draws == pytest.approx([compared(p[:, order], m)[0] for order in orders])


def test_the_change_between_snapshots():
    """Half the sum over units of the squares, less its sum over tokens times the first mean attention."""
    rng = np.random.default_rng(2)
    states = [
        (
            rng.standard_t(4, size=(2, 7)),
            rng.standard_t(4, size=(2, 3, 7)) * [[[1.0]], [[3.0]]],
            rng.dirichlet(np.ones(7), 2),
        )
        for _ in range(3)
    ]

    def predicted(after: np.ndarray) -> np.ndarray:
        squares = (after**2).sum(1) / 2 - (states[0][1] ** 2).sum(1) / 2
        return squares - squares.sum(-1, keepdims=True) * states[0][2]

    probe = Probe(torch.zeros(1), torch.tensor([[0, 1, 1, 2, 3, 4, 5, 6, -1]]), 0)
    change = networks.change_of(
        [Snapshot(*map(torch.from_numpy, each)) for each in states], probe, note="Said. "
    )
    assert change.predicted.numpy() == pytest.approx(predicted(states[2][1]))
    assert change.measured.numpy() == pytest.approx(states[2][0] - states[0][0])
    assert change.early[0].numpy() == pytest.approx(predicted(states[1][1]))
    assert change.early[1].numpy() == pytest.approx(states[1][0] - states[0][0])
    assert change.frequency.numpy() == pytest.approx(np.array([1, 2, 1, 1, 1, 1, 1]) / 8)
    assert not change.sized
    kind, others = change.others
    moves = (states[2][1] - states[0][1]).reshape(2, 21)
    expected = [
        predicted(states[0][1] + moves[:, order].reshape(2, 3, 7)) for order in permutations(21, 399).numpy()
    ]
    assert kind == networks.PERMUTED_WEIGHTS
    assert others.numpy() == pytest.approx(np.array(expected))
    size = np.sqrt((centred(states[2][0] - states[0][0]) ** 2).mean())
    assert change.note == f"Said. The logits move by {size:.3g} (root mean square)."
    assert (
        networks.change_of(
            [Snapshot(*map(torch.from_numpy, states[i])) for i in (0, 2)], probe, early=False
        ).early
        is None
    )


def test_tokens_are_the_frequent_ids():
    """The most frequent first; ids with less than five occurrences, or beyond the number, do not count."""
    ids = torch.tensor([[7, 7, 3, 9, 7, 2], [3, 7, 3, 9, 2, 7], [3, 3, 9, 9, 7, 7], [4, 4, 4, 4, 3, 9]])
    # occurrences: 7 seven times, 3 six, 9 five, 4 four, 2 two
    probe = Probe.of(ids, ids, query=-1)
    number = {7: 0, 3: 1, 9: 2}
    assert probe.tokens.tolist() == [[number.get(each, -1) for each in row] for row in ids.tolist()]
    assert probe.frequency.numpy() == pytest.approx(np.array([7, 6, 5]) / 18)
    assert Probe.of(ids, ids, query=0, most=2).tokens.unique().tolist() == [-1, 0, 1]


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, norm: nn.LayerNorm) -> np.ndarray:
    scaled = centred(x) / np.sqrt(x.var(-1, keepdims=True) + norm.eps)
    return scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()


@pytest.mark.parametrize("causal", [True, False])
def test_the_quantities_of_two_layers_of_two_heads(causal: bool):
    """A decoder, whose query is the last token, and a vision transformer, whose query is the first one."""
    d, p, T = 6, 3, 7
    if causal:
        model = build(
            lambda: Decoder(
                vocabulary=4,
                dim=d,
                hidden=5,
                heads=2,
                depth=2,
                dropout=0.0,
                block=PreNorm,
                positions=nn.Identity,
            ),
            generator(),
        )
        ids = torch.tensor([[0, 1, 2, 0, 1, 1, 3], [2, 0, 0, 1, 2, 0, 3], [1, 0, 0, 2, 0, 1, 3]])
        inputs, columns = ids, ids
    else:
        model = build(lambda: ViT.for_tokens(T - 1, 4, 3, dim=d, depth=2, heads=2), generator())
        ids = torch.tensor([[0, 1, 2, 0, 1, 1], [2, 0, 0, 1, 2, 0], [1, 0, 0, 2, 0, 1]])
        inputs = nn.functional.one_hot(ids, 4).double()
        columns = torch.cat([torch.full((3, 1), 3), ids], 1)
    with torch.no_grad():  # heads and channels of unequal size
        for block in model.blocks:
            for number, part in enumerate(block.parameters()):
                part.mul_(1 + 0.5 * number).add_(0.1 * torch.randn(part.shape, generator=generator(number)))
    model = model.double()
    query = -1 if causal else 0
    tokens = torch.where(columns == 2, -1, torch.where(columns == 3, 2, columns))  # id 2 is not counted
    found = Probe(inputs, tokens, query).measure(model)
    x = (
        model.embedding.weight.detach().numpy()[ids.numpy()] * math.sqrt(d)
        if causal
        else np.concatenate(
            [
                np.broadcast_to(model.cls_token.detach().numpy(), (3, 1, d)),
                inputs.numpy() @ model.embed.weight.detach().numpy().T + model.embed.bias.detach().numpy(),
            ],
            1,
        )
        + model.pos_embedding.detach().numpy()
    )
    row = 0
    for block in model.blocks:
        stream = layer_norm(x, block.attention_norm)
        qkv = block.attention.qkv.weight.detach().numpy()
        out, out_bias = (
            part.detach().numpy() for part in (block.attention.out.weight, block.attention.out.bias)
        )
        attended = np.zeros_like(x)
        expected = []
        means = np.array([stream[tokens.numpy() == word].mean(0) for word in range(3)])
        for head in (0, 1):
            Q, K, V = (qkv[i * d + head * p : i * d + (head + 1) * p] for i in range(3))
            into = out[:, head * p : (head + 1) * p]
            scores = np.einsum("nqd,nkd->nqk", stream @ Q.T, stream @ K.T) / math.sqrt(p)
            if causal:
                scores = np.where(np.tri(T), scores, -np.inf)
            weights = softmax(scores)
            attended += np.einsum("nqk,nkd->nqd", weights, stream @ V.T @ into.T)
            z = means @ K.T @ (Q @ stream[:, query].mean(0)) / math.sqrt(p)
            mean = [
                sum(weights[n, query][tokens[n].numpy() == word].sum() for n in range(3)) / 3
                for word in range(3)
            ]
            expected.append((z, means @ V.T @ into.T, np.array(mean)))
        total = x + attended + out_bias
        sigma = total[:, query].std(-1).mean()
        first, gamma = block.mlp[0], block.mlp_norm.weight.detach().numpy()
        for z, added, mean in expected:
            v = first.weight.detach().numpy() @ (centred(added) * gamma / sigma).T
            assert found.logits[row].numpy() == pytest.approx(z, rel=1e-6)
            assert found.mean[row].numpy() == pytest.approx(mean, rel=1e-6)
            assert found.lower[row].numpy() == pytest.approx(v, rel=1e-6)
            row += 1
        with torch.no_grad():
            x = total + block.mlp(torch.from_numpy(layer_norm(total, block.mlp_norm))).numpy()
    assert row == len(found.logits) == 4


# ---- the rungs


@pytest.mark.parametrize("softmax_attention", [True, False])
def test_the_first_run_learns_the_targets_and_the_first_query_is_measured(softmax_attention: bool):
    """A given path of twenty runs; the targets of the others are permutations of those of the first."""
    rng, seen, S = np.random.default_rng(3), {}, 21
    parts = [rng.standard_t(4, size=(S, 20, *shape)) for shape in ((1, 20), (1, 20), (1, 1))]

    def train(start, contexts, model, g):
        seen.update(start=start, contexts=contexts)
        return Path(torch.arange(float(S)), Block(*map(torch.from_numpy, parts)), torch.zeros(S, 20))

    setting = Setting(train, softmax=softmax_attention)
    row, size, error, early, *rest = blocks.measure_block(generator(3), setting=setting)
    contexts: Contexts = seen["contexts"]
    assert not rest
    assert contexts.counts.shape == (300, 20)
    assert contexts.targets.shape == (20, 300)
    assert not torch.equal(contexts.targets[0], contexts.targets[1])
    for each in contexts.targets:
        assert int(each.sum()) == int(contexts.targets[0].sum())
    logits, lower, _ = parts
    counts = contexts.counts.numpy()
    frequency = counts.mean(0)

    def predicted(run: int, index: int) -> np.ndarray:
        squares = (lower[index, run, 0] ** 2 - lower[0, run, 0] ** 2) / 2
        if not softmax_attention:
            return squares
        weights = np.exp(logits[0, run, 0]) * counts
        mean = (weights / weights.sum(1, keepdims=True)).mean(0)
        total = lower[index, run, 0] ** 2 / 2, lower[0, run, 0] ** 2 / 2
        return squares - (total[0].sum() - total[1].sum()) * mean

    measured = logits[-1, 0, 0] - logits[0, 0, 0]
    value = compared(predicted(0, -1)[None], measured[None])
    assert [each.value for each in (row, size, error)] == pytest.approx(value)
    second = [compared(predicted(run, -1)[None], measured[None])[0] for run in range(1, 20)]
    assert row.nulls[1].draws == pytest.approx(second)
    assert early.value == pytest.approx(
        compared(predicted(0, 2)[None], (logits[2, 0, 0] - logits[0, 0, 0])[None])[0]
    )
    # the permutations come behind the contexts, the shuffled targets and the start in the stream of the seed
    null = np.array(row.nulls[0].draws)
    groups = orders_within_groups(frequency, permutations(20, 4000).numpy())
    law = [compared(predicted(0, -1)[None, order], measured[None])[0] for order in groups]
    assert null.mean() == pytest.approx(np.mean(law), abs=5 * np.std(law) / math.sqrt(399))
    assert null.std() == pytest.approx(np.std(law), rel=0.25)
    assert size.predicted == 0.0


def test_each_unit_has_a_logistic_loss():
    """The sum over units of ln(1 + exp(-s h)), and minus its derivatives, with s = -1 for the target 0."""
    h = np.random.default_rng(5).standard_t(3, size=(4, 3))
    targets = np.array([0, 1, 1, 0])
    s = 2 * targets[:, None] - 1
    loss, pull = blocks.logistic(torch.from_numpy(h), torch.from_numpy(targets))
    assert loss.numpy() == pytest.approx(np.log1p(np.exp(-s * h)).sum(1))
    assert pull.numpy() == pytest.approx(s / (1 + np.exp(s * h)))


def test_a_frequency_is_that_of_the_sequences_with_the_query():
    """Sequences with other queries train the block and do not count."""
    seen, S = {}, 11

    def train(start, contexts, model, g):
        seen.update(contexts=contexts)
        M, Q, K = contexts.counts.shape[1], int(contexts.query.max()) + 1, 10
        parts = [
            torch.randn(S, 20, *shape, generator=g, dtype=torch.float64) for shape in ((Q, M), (K, M), (K, Q))
        ]
        seen.update(logits=parts[0].numpy())
        return Path(torch.arange(float(S)), Block(*parts), torch.zeros(S, 20))

    setting = Setting(train, real=True, softmax=True, units=10, classes=10, queries=True)
    changes = []
    rows_of = blocks.rows_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            blocks, "rows_of", lambda change, **o: (changes.append(change), rows_of(change, **o))[1]
        )
        list(blocks.measure_block(generator(3), setting=setting))
    contexts = seen["contexts"]
    counts, query = contexts.counts.numpy(), contexts.query.numpy()
    assert len(set(query.tolist())) > 1
    assert changes[0].frequency.numpy() == pytest.approx(counts[query == 0].mean(0))
    assert np.abs(counts[query == 0].mean(0) - counts.mean(0)).max() > 0.01
    logits = seen["logits"]
    assert changes[0].measured.numpy() == pytest.approx(logits[-1, 0, 0] - logits[0, 0, 0])


def test_the_settings_relax_one_assumption_after_another():
    expected = {
        "own flow": (blocks.flow, False, False, 0.0, 1, 2, False),
        "finite batch": (blocks.descent, False, False, 0.0, 1, 2, False),
        "visual words": (blocks.descent, True, False, 0.0, 1, 2, False),
        "joint softmax": (blocks.descent, True, True, 0.0, 1, 2, False),
        "weight decay": (blocks.descent, True, True, 5e-4, 1, 2, False),
        "ten units": (blocks.descent, True, True, 5e-4, 10, 2, False),
        "ten classes": (blocks.descent, True, True, 5e-4, 10, 10, False),
        "AdamW": (blocks.adamw, True, True, 0.0, 10, 10, False),
        "several queries": (blocks.adamw, True, True, 0.0, 10, 10, True),
    }
    for name, (train, real, soft, decay, units, classes, queries) in expected.items():
        setting = RUNGS[name].measure.keywords["setting"]
        assert setting == Setting(train, real, soft, decay, units, classes, queries), name


def captured(monkeypatch, rung: str, *arguments):
    seen = {}

    def trained(network, task, probe, steps, g, **columns):
        seen.update(network=network, task=task, probe=probe, steps=steps, **columns)
        return iter(())

    monkeypatch.setattr(networks, "_trained", trained)
    list(RUNGS[rung].measure(generator(4), *arguments))
    return seen


def test_the_decoder_of_a_text_is_measured_where_the_most_frequent_word_ends_a_window(monkeypatch):
    """Word 5 is the most frequent one but for the unknown word; windows have 35 words."""
    rng = np.random.default_rng(4)
    ids = rng.integers(1, 5, size=2000)
    ids[rng.random(2000) < 0.5] = 0  # the unknown word
    ids[rng.random(2000) < 0.3] = 5
    ids[1999] = 5
    text = Text(torch.from_numpy(ids), Vocabulary(("<unk>", *"abcde")), "a text")
    seen = captured(monkeypatch, "decoder on WikiText", text)
    windows = np.array([ids[end - 34 : end + 1] for end in range(34, 2000) if ids[end] == 5])
    probe = seen["probe"]
    assert len(windows) > 300
    assert len(probe.inputs) == 300
    known = {tuple(row) for row in windows.tolist()}
    assert all(tuple(row) in known for row in probe.inputs.tolist())
    assert len({tuple(row) for row in probe.inputs.tolist()}) == 300
    assert probe.query == -1
    assert (probe.inputs[:, -1] == 5).all()
    blocks_ = seen["network"].blocks
    assert (len(blocks_), blocks_[0].attention.heads) == (2, 2)
    assert tuple(blocks_[0].mlp[0].weight.shape) == (128, 64)
    assert (seen["data"], seen["steps"], seen["clip"]) == ("a text", 400, 0.5)
    assert seen["task"].text is text


@pytest.mark.parametrize(("rung", "depth"), [("MLP with LayerNorm", 1), ("two layers", 2)])
def test_the_decoder_of_digits_is_measured_where_the_commonest_word_is_the_query(monkeypatch, rung, depth):
    seen = captured(monkeypatch, rung)
    ids = digits().ids.numpy()
    last, number = np.unique(ids[:, -1], return_counts=True)
    query = last[number.argmax()]
    probe = seen["probe"]
    assert probe.query == -1
    assert len(probe.inputs) == 300
    assert (probe.inputs[:, -1] == query).all()
    known = {tuple(row) for row in ids[ids[:, -1] == query].tolist()}
    assert all(tuple(row) in known for row in probe.inputs.tolist())
    assert (len(seen["network"].blocks), seen["steps"], seen["data"]) == (depth, 400, "digits")


def test_a_training_is_measured_at_its_start_its_tenth_and_its_end(monkeypatch):
    """A network without a gradient moves by weight decay alone, by the factor 1 - .003 * .05 a step."""
    monkeypatch.setattr(networks, "ADAMW", {"lr": 0.1, "weight_decay": 0.5})
    network = nn.Linear(1, 1)
    with torch.no_grad():
        network.weight.fill_(1.0)
    seen = []

    class Measures:
        frequency = torch.full((5,), 0.2)

        def measure(self, one: nn.Module) -> Snapshot:
            w = float(one.weight)
            seen.append(w)
            shape = torch.arange(5.0, dtype=torch.float64)
            return Snapshot(w * shape[None], (w * shape**2)[None, None], torch.full((1, 5), 0.2).double())

    class Task:
        lower_is_better = True

        def __init__(self):
            self.task = networks.StreamTask(
                lambda model, batch: 0 * model.weight.sum() + 2.0,
                lambda draws: iter(lambda: torch.zeros(1), None),
            )

        def __getattr__(self, name):
            return getattr(self.task, name)

    rows = list(networks._trained(network, Task().task, Measures(), 30, generator(), data="d"))
    assert seen == pytest.approx([1.0, 0.95**3, 0.95**30])
    assert "2 → 2 nats" in rows[0].note
    assert (rows[0].model, rows[0].data) == ("decoder", "d")
    last = 0.95**30
    shape = np.arange(5.0)
    p = (last**2 - 1) / 2 * (shape**4 - (shape**4).sum() / 5)
    assert rows[0].value == pytest.approx(compared(p[None], ((last - 1) * shape)[None])[0])


def test_the_vision_transformer_reads_images_with_its_class_token(monkeypatch):
    """The network before training has the initial weights of the seed; word ids follow the class token."""
    from transformer_theory.training.recipes import RECIPES

    train, validation = networks.digit_parts()
    trained = build(lambda: RECIPES["ViT"].build(train), generator(11))
    asked, probes = [], []
    monkeypatch.setattr(
        networks,
        "trained_network",
        lambda recipe, seed: (asked.append((recipe, seed)), (trained, validation))[1],
    )
    measure = Probe.measure

    def measured(self, network):
        probes.append((self, network))
        return measure(self, network)

    monkeypatch.setattr(Probe, "measure", measured)
    rows = list(RUNGS["ViT on digits"].measure(generator(7)))
    assert asked == [("ViT", 7)]
    (first, untrained), (second, last) = probes
    assert first is second
    assert last is trained
    expected = build(lambda: RECIPES["ViT"].build(train), generator(7))
    for one, other in zip(untrained.parameters(), expected.parameters()):
        assert torch.equal(one, other)
    assert first.query == 0
    assert torch.equal(first.inputs.double(), validation.tokens.double())
    # the class token is one token, in all images, and the commonest but for the blank word
    class_token = first.tokens[:, 0]
    assert len(class_token.unique()) == 1
    assert int((first.tokens == class_token[0]).sum()) == len(validation)
    known = first.tokens[:, 1:] >= 0
    pairs = {(int(a), int(b)) for a, b in zip(first.tokens[:, 1:][known], validation.ids[known])}
    assert len({a for a, _ in pairs}) == len(pairs) == len({b for _, b in pairs})
    assert rows[0].model == "ViT"


@pytest.mark.parametrize("places", [(33, 34, 60), (34, 60), (35, 36, 70, 99)])
def test_windows_of_a_text_begin_with_its_first_word(monkeypatch, places: tuple[int, ...]):
    """A word at place 34 ends the first window of 35 words; one at place 33 ends none."""
    ids = np.random.default_rng(5).permutation(100) + 2
    ids[[0, 1, 2, *places]] = 1  # the most frequent word
    words = ("<unk>", *(f"w{i}" for i in range(1, 102)))
    text = Text(torch.from_numpy(ids), Vocabulary(words), "a text")
    seen = captured(monkeypatch, "decoder on WikiText", text)
    ends = [place for place in places if place >= 34]
    assert seen["probe"].inputs.tolist() == [ids[end - 34 : end + 1].tolist() for end in ends]


@pytest.mark.parametrize(("places", "measured"), [((34, 50), True), ((33, 50), False), ((50,), False)])
def test_two_windows_are_needed(monkeypatch, places: tuple[int, ...], measured: bool):
    ids = np.arange(60) + 2
    ids[list(places)] = 1
    ids[:3] = 1
    words = ("<unk>", *(f"w{i}" for i in range(1, 62)))
    monkeypatch.setattr(networks, "_trained", lambda *_, **__: iter(["trained"]))
    text = Text(torch.from_numpy(ids), Vocabulary(words), "a text")
    (row,) = RUNGS["decoder on WikiText"].measure(generator(4), text)
    assert (row == "trained") == measured
    if not measured:
        assert "no word ends two windows of 35 words" in row.reason
