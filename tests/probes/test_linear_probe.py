"""Linear probes: planted labels are found, held-out labels do not matter, permuted labels give chance."""

import pytest
import torch
from scipy.stats import beta
from torch import nn
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.copies import few_copies
from tests.problems.networks import Keep, tokens
from transformer_theory import models
from transformer_theory.comparison.user_models import measure
from transformer_theory.core.statistics import fixed_generator
from transformer_theory.probes.linear_probe import ACCURACY, CONSTANT, linear_probe_rows, with_linear_probe
from transformer_theory.probes.passes import Batch, measure_metrics

N, CLASSES = 240, 3


def seeded(build) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().eval()


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return BertModel(BertConfig(**sizes, vocab_size=30, initializer_range=0.5))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30, "n_positions": 12}
    return GPT2Model(GPT2Config(**sizes, initializer_range=0.5, bos_token_id=29, eos_token_id=29))


def dino() -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 8,
        "patch_size": 4,
    }
    return Dinov2Model(Dinov2Config(**sizes, initializer_range=0.5))


class Encoder(nn.Module):
    """An encoder of tokens without a class token."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, padding_mask=None):
        return self.encoder(x, src_key_padding_mask=padding_mask)


def ids(first: int | None) -> torch.Tensor:
    random = torch.randint(1, 28, (N, 7), generator=torch.Generator().manual_seed(1))
    if first is not None:
        random[:, 0] = first
    return random


LENGTHS = torch.arange(N) % 4 + 4
REAL = torch.arange(7) < LENGTHS[:, None]
CASES = {  # network, inputs, tokens that are read, as a plain function of the hidden states
    "bert": (
        bert,
        {"input_ids": ids(29).where(REAL, 0), "attention_mask": REAL.long()},
        lambda hidden: hidden[:, 0],
        "the class token",
    ),
    "dino": (dino, tokens(N, 3, 8, 8), lambda hidden: hidden[:, 0], "the class token"),
    "gpt2": (gpt2, {"input_ids": ids(29)}, lambda hidden: hidden[:, 1:].mean(1), "the mean of the tokens"),
    "encoder": (Encoder, tokens(N, 7, 12), lambda hidden: hidden.mean(1), "the mean of the tokens"),
    "padded": (
        Encoder,
        {"x": tokens(N, 7, 12), "padding_mask": ~REAL},
        lambda hidden: torch.stack([one[:length].mean(0) for one, length in zip(hidden, LENGTHS.tolist())]),
        "the mean of the tokens",
    ),
}


def hidden_of(network: nn.Module, inputs) -> torch.Tensor:
    with torch.no_grad():
        output = network(**inputs) if isinstance(inputs, dict) else network(inputs)
    return output if isinstance(output, torch.Tensor) else output.last_hidden_state


def planted(features: torch.Tensor) -> torch.Tensor:
    """Labels that are a linear function of standardised features."""
    scaled = (features - features.mean(0)) / features.std(0)
    return (
        scaled @ torch.randn(features.shape[1], CLASSES, generator=torch.Generator().manual_seed(2))
    ).argmax(1)


@each_case("name", CASES)
def test_planted_labels_are_found_by_the_tokens_that_a_head_would_read(name):
    build, inputs, read, words = CASES[name]
    network = seeded(build)
    features = read(hidden_of(network, inputs))
    labels = planted(features)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    probed = with_linear_probe(network, inputs, labels)
    assert probed.reads.startswith(words)
    assert sorted([*probed.held_out.tolist(), *probed.training.tolist()]) == list(range(N))
    assert len(probed.held_out) == N // 3
    model = probed.network
    with torch.no_grad():
        logits = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    assert_close(logits, features @ model.weight.T + model.bias, rtol=1e-3, atol=1e-3)
    truth = labels[probed.held_out]
    right = int((logits[probed.held_out].argmax(1) == truth).sum())
    assert probed.accuracy == right / 80
    assert probed.accuracy > 0.85
    low, high = beta.ppf(0.025, right, 81 - right), beta.ppf(0.975, right + 1, 80 - right)
    assert probed.interval == pytest.approx((low, high if right < 80 else 1.0))
    assert probed.chance == max(int((truth == one).sum()) for one in range(CLASSES)) / 80
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_held_out_labels_do_not_change_the_fit():
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels = planted(hidden_of(network, inputs).mean(1))
    first = with_linear_probe(network, inputs, labels)
    other = labels.clone()
    other[first.held_out] = (other[first.held_out] + 1) % CLASSES
    second = with_linear_probe(network, inputs, other)
    assert torch.equal(first.held_out, second.held_out)
    assert torch.equal(first.network.weight, second.network.weight)
    assert torch.equal(first.network.bias, second.network.bias)
    assert second.accuracy < 0.2 < 0.85 < first.accuracy
    changed = {"x": inputs.clone(), "padding_mask": ~torch.ones(N, 7, dtype=torch.bool)}
    changed["x"][first.held_out] *= 3.0  # nor do the inputs that are held out
    third = with_linear_probe(network, changed, labels)
    assert_close(first.network.weight, third.network.weight, rtol=1e-3, atol=1e-4)


def test_permuted_labels_give_chance():
    """Right predictions of 5 fits are Bin(400, 1/3) if labels say nothing: .999 of them lie in 102..166."""
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels, right = torch.arange(N) % CLASSES, 0
    for draw in range(5):
        order = torch.randperm(N, generator=torch.Generator().manual_seed(draw))
        right += round(80 * with_linear_probe(network, inputs, labels[order]).accuracy)
    assert 102 <= right <= 166


def test_inputs_without_labels_and_classes_without_training_inputs():
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels = planted(hidden_of(network, inputs).mean(1))
    labels[::4] = -1
    probed = with_linear_probe(network, inputs, labels)
    used = {*probed.held_out.tolist(), *probed.training.tolist()}
    assert used == set((labels >= 0).nonzero().squeeze(1).tolist())
    labels[labels == 1] = 5
    probed = with_linear_probe(network, inputs, labels)
    with torch.no_grad():
        logits = probed.network(inputs)
    assert logits.shape == (N, 6)
    assert set(logits.argmax(1).tolist()) <= {0, 2, 5}
    feature = hidden_of(network, inputs).mean(1)[:, 0]
    two = with_linear_probe(network, inputs, (feature > feature.median()).long())
    assert two.network.weight.shape == (2, 12)
    assert two.accuracy > 0.85


def test_the_split_depends_on_the_number_of_inputs_alone():
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels = planted(hidden_of(network, inputs).mean(1))
    order = torch.randperm(N, generator=fixed_generator())
    assert with_linear_probe(network, inputs, labels).held_out.tolist() == sorted(order[:80].tolist())
    assert with_linear_probe(network, -inputs, labels.roll(1)).held_out.tolist() == sorted(
        order[:80].tolist()
    )


def test_a_probe_sees_the_blocks_of_the_network():
    network, inputs = seeded(bert), CASES["bert"][1]
    labels = planted(hidden_of(network, inputs)[:, 0])
    probed, keep, own = with_linear_probe(network, inputs, labels), Keep(), Keep()
    few = {key: value[:4] for key, value in inputs.items()}
    measure_metrics(probed.network, [Batch(few)], [keep], name="probe", draws=0, n=4)
    measure_metrics(network, [Batch(few)], [own], name="probe", draws=0, n=4)
    assert [one.layer for one in keep.of("features")] == [0, 1]
    for one, other in zip(keep.of("attention"), own.of("attention"), strict=True):
        assert torch.equal(one.weights, other.weights)
    assert keep.of("features")[-1].read.tolist() == [[True] + [False] * 6] * 4


def test_rows():
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels = planted(hidden_of(network, inputs).mean(1))
    (row,) = linear_probe_rows(network, inputs, labels, name="mine")
    probed = with_linear_probe(network, inputs, labels)
    assert (row.kind, row.theory, row.quantity, row.model) == ("network", "network", ACCURACY, "mine")
    assert (row.split, row.n, row.unit, row.interval_kind) == (
        "held-out",
        80,
        "share",
        "over held-out inputs",
    )
    assert (row.value, row.interval) == (probed.accuracy, probed.interval)
    assert row.null.kind == CONSTANT
    assert row.null.draws == (probed.chance,)
    assert linear_probe_rows(network, inputs, None, name="mine") == ()
    (missing,) = linear_probe_rows(network, inputs[:9], torch.zeros(9, dtype=torch.long), name="mine")
    assert missing.value is None
    assert "6 training inputs of the probe must have two classes" in missing.reason
    with_head = seeded(lambda: models.ViT.for_tokens(7, 12, CLASSES))
    assert linear_probe_rows(with_head, inputs, labels, name="mine") == ()


def test_a_measurement_has_the_row_if_the_network_has_no_head(monkeypatch):
    few_copies(monkeypatch)
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels = planted(hidden_of(network, inputs).mean(1))
    options = {"theories": ["particles"], "networks": 1, "max_samples": N}
    (row,) = measure(network, inputs, labels, **options).table.select(quantity=ACCURACY)
    assert row.value == with_linear_probe(network, inputs, labels).accuracy
    assert not measure(network, inputs[:4], **options).table.select(quantity=ACCURACY)


def test_what_cannot_be_fitted():
    network, inputs = seeded(Encoder), CASES["encoder"][1]
    labels = torch.full((N,), -1)
    labels[:5] = torch.tensor([0, 1, 0, 1, 0])
    with pytest.raises(ValueError, match="at least 6 inputs with a label, got 5"):
        with_linear_probe(network, inputs, labels)
    with_head = seeded(lambda: models.ViT.for_tokens(7, 12, CLASSES))
    with pytest.raises(ValueError, match="ViT must return hidden states"):
        with_linear_probe(with_head, inputs, torch.arange(N) % CLASSES)
