"""Padding changes no number, in every metric and with every kind of mask.

A case is a small network in float64 with sequences of several lengths. One probe runs all metrics of all
theories, the general ones, and a metric that ignores masks; in the networks of :data:`FEWER`, which differ
from the others only in how their mask is found, some of them. The sequences are given padded, padded with
other contents, padded further with a row of padding, one by one without padding, and with a sequence of NaN.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.problems.networks import theory_metrics
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Metric
from transformer_theory.metrics.class_features import FeatureRates
from transformer_theory.metrics.networks import AttentionMaps, AttentionSelection, Geometry
from transformer_theory.probes import probe
from transformer_theory.probes.measure import with_general
from transformer_theory.theories import rate_reduction

DIM, HEADS, VOCABULARY, PAD = 16, 2, 40, 0
LENGTHS = (12, 7, 10, 5, 12, 9, 3, 8, 6, 11, 4, 7, 10, 2, 9, 5)
SHORT, LONG = 12, 20
FILLS = (0.0, 1e6)  # what padding holds: of ids, the id 0 and another one
"""Quantities that compare sequences of one batch with each other, and why one by one they have no value, or
another one.
"""
COMPARES = {
    "within-less-between cosine, share of its largest value": "pairs of sequences of a batch",
    "within-less-between cosine": "pairs of sequences of a batch",
    "mean cosine within a sequence": "written beside the pairs of a batch",
    "mean cosine between sequences at other positions": "pairs of sequences of a batch",
    "share kept with doubled keys": "a second sequence of the batch lends its keys",
    "weight of the chosen key with doubled keys over half of it": "a second sequence lends its keys",
    "CKA with the first block": "inner products of the sequences of a batch",
}


class UserMetric(Metric):
    """Written by a user who knows nothing of padding: mean size of the tokens, of queries and of weights."""

    kinds = ("attention", "features", "outputs")

    def update(self, activations):
        sums = [float(activations.tokens.double().norm(dim=-1).sum()), activations.tokens[..., 0].numel()]
        if activations.weights is not None and activations.query is not None:
            w, q = activations.weights, activations.query
            sums += [float(w.double().square().sum()), w.sum(-1).numel(), float(q.norm(dim=-1).sum())]
        place = (activations.layer, activations.first_head, len(sums))
        if activations.kind != "outputs":
            self.add(place, torch.tensor(sums, dtype=torch.float64))

    def compute(self, *, draws=0, generator=None):
        return [
            Measurement(
                "mine",
                "network",
                f"{number}",
                float(sum_),
                layer=place[0],
                at={"sums": place[2], "first head": place[1]},
            )
            for place, sums in self.sums.items()
            for number, sum_ in enumerate(sums)
        ]


def own_metrics() -> list[Metric]:
    return [AttentionSelection(), AttentionMaps(keep=99), FeatureRates(), UserMetric()]


def every_metric() -> list[Metric]:
    return [*with_general(theory_metrics()), *own_metrics()]


def some_metrics() -> list[Metric]:
    """Some that read weights, queries and keys, features of tokens, of layers and of the last one."""
    return [Geometry(), *theory_metrics("attention_svm", "scan_snap", "crate", "length"), *own_metrics()]


@dataclass
class Case:
    """A network with masks.

    Attributes:
        model: the network, float64, in evaluation mode.
        call: runs the model on ids [n, T] or vectors [n, T, dim], with True for real tokens, [n, T].
        left: whether padding stands on the left.
        floats: whether sequences are vectors; ids otherwise.
        metrics: makes those that are run.
    """

    model: nn.Module
    call: Callable[[nn.Module, Tensor, Tensor], object]
    left: bool = False
    floats: bool = False
    lengths: Sequence[int] = LENGTHS
    metrics: Callable[[], list[Metric]] = every_metric

    def sequences(self) -> list[Tensor]:
        g = torch.Generator().manual_seed(3)
        ids = VOCABULARY - 1
        if self.floats:
            return [torch.randn(T, DIM, generator=g, dtype=torch.float64) for T in self.lengths]
        return [torch.randint(5, ids, (T,), generator=g) for T in self.lengths]

    def padded(self, sequences: Sequence[Tensor], length: int, fill: float) -> tuple[Tensor, Tensor]:
        """Pads the sequences."""
        some = self.sequences()[0]
        shape = (len(sequences), length, *some.shape[1:])
        x = torch.full(shape, fill if self.floats else int(fill != 0), dtype=some.dtype)
        real = torch.zeros(len(sequences), length, dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            T = len(sequence)
            part = slice(length - T, length) if self.left else slice(0, T)
            x[row, part], real[row, part] = sequence, True
        return x, real


PLACE = 5  # entries of the place of a row; places of draws have more
Numbers = dict[tuple, float | None]


def values_of(rows: Sequence[Measurement], *, nulls: bool) -> Numbers:
    """The numbers by place."""
    found: Numbers = {}
    for row in rows:
        key = (row.theory, row.quantity, tuple(row.at.items()), row.layer, row.head)
        assert key not in found
        found[key] = row.value
        if nulls:
            found |= {(*key, null.kind, i): x for null in row.nulls for i, x in enumerate(null.draws)}
    return found


def measured(
    case: Case,
    batches: Sequence[tuple[Tensor, Tensor]],
    labels: Tensor | None = None,
    draws: int = 0,
    **options,
) -> tuple[Numbers, dict[str, np.ndarray]]:
    """The numbers of all metrics, and the arrays; without labels if ``labels`` are empty."""
    labels = torch.arange(sum(len(x) for x, _ in batches)) % 2 if labels is None else labels
    parts = labels.split([len(x) for x, _ in batches]) if len(labels) else [None] * len(batches)
    metrics = options.pop("metrics", case.metrics)()
    with torch.no_grad(), probe(case.model, metrics, draws=draws, **options) as p, p.accumulate():
        for (x, real), part in zip(batches, parts, strict=True):
            p.labels = part
            case.call(case.model, x, real)
    names = {type(metric).__name__ for metric in metrics} | {"forward pass"}
    failed = [row.reason for row in p.rows if row.quantity in names]
    assert not failed, failed
    return values_of(p.rows, nulls=bool(draws)), p.result().arrays


def differences(a: Numbers, b: Numbers, rtol: float, skip: Sequence[str] = ()) -> list:
    """Places whose numbers differ."""
    found = []
    for key in sorted(a.keys() | b.keys(), key=str):
        if key[1] in skip:
            continue
        x, y = a.get(key, "absent"), b.get(key, "absent")
        if x == y:
            continue
        if isinstance(x, float) and isinstance(y, float) and abs(x - y) <= rtol * max(abs(x), abs(y), 0.1):
            continue
        found.append((key, x, y))
    return found


def normal(make: Callable[[], nn.Module]) -> nn.Module:
    """A network in float64 whose scores are not small."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


def written_out(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, how: str) -> Tensor:
    """Attention of products of tensors, with a mask as models write it."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    value = {"1e4": -1e4, "1e9": -1e9}[how[-3:]]
    if how.startswith("fill"):
        scores = scores.masked_fill(~allowed, value)
    elif how.startswith("where"):
        scores = torch.where(allowed, scores, value)
    elif how.startswith("factor"):  # the first GPT-2
        scores = scores * allowed + (1 - allowed.to(scores)) * value
    else:
        scores = scores + torch.zeros_like(scores).masked_fill(~allowed, value)
    return scores.softmax(-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, how: str) -> Tensor:
    """The attention kernel of torch, with a mask of booleans or of numbers."""
    mask = allowed if how == "bool" else torch.zeros(allowed.shape).to(q).masked_fill(~allowed, -1e4)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return torch.where(allowed.any(-1, keepdim=True), out, 0.0)


class SelfAttention(nn.Module):
    def __init__(self, kernel: Callable):
        super().__init__()
        self.qkv, self.out, self.kernel = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), kernel
        nn.init.normal_(self.qkv.weight, std=0.5)

    def forward(self, x, allowed, real):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        v = v.masked_fill(~real[:, None, :, None], 0.0)
        return self.out(self.kernel(q, k, v, allowed).transpose(1, 2).flatten(2))


class TimeFirst(nn.Module):
    """nn.MultiheadAttention on [seq, batch, dim]."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(DIM, HEADS)

    def forward(self, x, allowed, real):
        x = x.transpose(0, 1)
        return self.inner(x, x, x, key_padding_mask=~real, need_weights=False)[0].transpose(0, 1)


class Block(nn.Module):
    def __init__(self, attention: nn.Module):
        super().__init__()
        self.norm, self.second, self.attention = nn.LayerNorm(DIM), nn.LayerNorm(DIM), attention
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x, allowed, real):
        x = x + self.attention(self.norm(x), allowed, real)
        return x + self.mlp(self.second(x))


class Net(nn.Module):
    """Blocks, and a head on the mean of the real tokens.

    Args:
        attention: makes the attention of a block.
        allowed: returns which keys a query may see, from the mask of real tokens.
    """

    def __init__(self, attention: Callable[[], nn.Module], allowed: Callable[[Tensor], Tensor]):
        super().__init__()
        self.blocks = nn.ModuleList(Block(attention()) for _ in range(2))
        self.head, self.allowed = nn.Linear(DIM, 3), allowed

    def forward(self, x, padding_mask):
        real = ~padding_mask
        for block in self.blocks:
            x = block(x, self.allowed(real), real)
        mean = torch.where(real[..., None], x, 0.0).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return self.head(mean)


class Patches(nn.Module):
    """A vision transformer of images of several sizes: a dictionary with patches and which of them exist."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList(Block(SelfAttention(functools.partial(fused, how="bool"))) for _ in "12")
        self.head = nn.Linear(DIM, 3)

    def forward(self, inputs):
        real = inputs["patch_valid"]
        x = self.embed(inputs["patches"])
        for block in self.blocks:
            x = block(x, real[:, None, None], real)
        x = x.masked_fill(~real[..., None], 0.0)
        return self.head(x.sum(1) / real.sum(1, keepdim=True).clamp(min=1))


def keys(real: Tensor) -> Tensor:
    return real[:, None, None]


def causal_keys(real: Tensor) -> Tensor:
    """Queries that are padding on the left see no key."""
    T = real.shape[1]
    return real[:, None, None] & torch.ones(T, T, dtype=torch.bool).tril()


def everything(real: Tensor) -> Tensor:
    """Queries that are padding see everything, as some kernels need at least one key."""
    return real[:, None, None] | ~real[:, None, :, None]


def own(attention: Callable[[], nn.Module], allowed: Callable = keys, **options) -> Case:
    model = normal(lambda: Net(attention, allowed))
    return Case(model, lambda model, x, real: model(x, padding_mask=~real), floats=True, **options)


def explicit(how: str, allowed: Callable = keys, **options) -> Case:
    return own(lambda: SelfAttention(functools.partial(written_out, how=how)), allowed, **options)


def kernel(how: str, allowed: Callable = keys, **options) -> Case:
    return own(lambda: SelfAttention(functools.partial(fused, how=how)), allowed, **options)


def encoder(mask: str) -> Case:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2)

    def call(model: nn.Module, x: Tensor, real: Tensor):
        padding = ~real if mask == "bool" else torch.zeros(real.shape).to(x).masked_fill(~real, -torch.inf)
        return model(x, src_key_padding_mask=padding)

    return Case(normal(make), call, floats=True)


def hugging_face(name: str, config: str, *, left: bool = False, both: str = "", **options) -> Case:
    """A network of transformers from a configuration.

    Args:
        name, config: names of its classes.
        left: whether padding stands on the left.
        both: "equal" or "shorter" for an encoder and a decoder: lengths of the decoder's sequences.
        options: of the configuration.
    """
    import transformers

    def make() -> nn.Module:
        return getattr(transformers, name)(getattr(transformers, config)(**options))

    def call(model: nn.Module, x: Tensor, real: Tensor):
        inputs = {"input_ids": x, "attention_mask": real.long()}
        if left:
            inputs["position_ids"] = (real.long().cumsum(1) - 1).clamp(min=0)
        if both:
            T = x.shape[1] if both == "equal" else 6
            inputs |= {"decoder_input_ids": x[:, :T], "decoder_attention_mask": real[:, :T].long()}
        return model(**inputs)

    return Case(normal(make), call, left=left)


COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.5, "pad_token_id": PAD}
BERT = COMMON | {
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 32,
}
GPT2 = COMMON | {
    "n_embd": DIM,
    "n_layer": 2,
    "n_head": HEADS,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = BERT | {"num_key_value_heads": 1, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
BART = COMMON | {"d_model": DIM, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS}
BART |= {"decoder_attention_heads": HEADS, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "init_std": 0.5}
BART |= {"max_position_embeddings": 40}
T5 = COMMON | {
    "d_model": DIM,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": HEADS,
    "initializer_factor": 1.0,
}

CASES: dict[str, Callable[[], Case]] = {
    "BERT": lambda: hugging_face("BertForSequenceClassification", "BertConfig", **BERT),
    "BERT eager": lambda: hugging_face("BertModel", "BertConfig", attn_implementation="eager", **BERT),
    "GPT-2": lambda: hugging_face("GPT2LMHeadModel", "GPT2Config", **GPT2),
    "GPT-2 left": lambda: hugging_face("GPT2LMHeadModel", "GPT2Config", left=True, **GPT2),
    "GPT-2 left eager": lambda: hugging_face(
        "GPT2Model", "GPT2Config", left=True, attn_implementation="eager", **GPT2
    ),
    "Llama": lambda: hugging_face("LlamaForCausalLM", "LlamaConfig", **LLAMA),
    "Llama left": lambda: hugging_face("LlamaModel", "LlamaConfig", left=True, **LLAMA),
    "Mistral left": lambda: hugging_face(
        "MistralModel", "MistralConfig", left=True, sliding_window=4, **LLAMA
    ),
    "BART": lambda: hugging_face("BartModel", "BartConfig", both="equal", **BART),
    "BART shorter": lambda: hugging_face("BartModel", "BartConfig", both="shorter", **BART),
    "T5": lambda: hugging_face("T5Model", "T5Config", both="equal", **T5),
    "T5 shorter": lambda: hugging_face("T5Model", "T5Config", both="shorter", **T5),
    "encoder, booleans": lambda: encoder("bool"),
    "encoder, -inf": lambda: encoder("float"),
    "time first": lambda: own(TimeFirst),
    "patches": lambda: Case(
        normal(Patches), lambda model, x, real: model({"patches": x, "patch_valid": real}), floats=True
    ),
    "written, -1e9": lambda: explicit("add 1e9"),
    "written, -1e4": lambda: explicit("add 1e4"),
    "filled, -1e4": lambda: explicit("fill 1e4"),
    "where, -1e4": lambda: explicit("where 1e4"),
    "factor, -1e4": lambda: explicit("factor 1e4"),
    "written left, -1e4": lambda: explicit("add 1e4", causal_keys, left=True),
    "kernel, -1e4": lambda: kernel("1e4"),
    "kernel left": lambda: kernel("bool", causal_keys, left=True),
    "padding sees everything": lambda: kernel("bool", everything),
}


WHOLE = (
    "BERT",
    "GPT-2 left",
    "Mistral left",
    "BART shorter",
    "T5",
    "encoder, booleans",
    "time first",
    "patches",
    "written, -1e9",
    "padding sees everything",
)
FEWER = CASES.keys() - set(WHOLE)


@functools.cache
def case(name: str) -> Case:
    made = CASES[name]()
    return dataclasses.replace(made, metrics=some_metrics) if name in FEWER else made


@functools.cache
def reference(name: str):
    """The numbers of the padded sequences with two draws, and the arrays; here shapes are checked."""
    made = case(name)
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", False)
    try:
        return measured(made, [made.padded(made.sequences(), SHORT, FILLS[0])], draws=2)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


# one process runs all tests of a case and measures its reference once
every_case = pytest.mark.parametrize("name", CASES, scope="module")
some_cases = pytest.mark.parametrize("name", WHOLE[:8], scope="module")
pytestmark = pytest.mark.usefixtures("unchecked")


@every_case
def test_what_padding_holds_changes_no_number(name):
    made = case(name)
    expected, maps = reference(name)
    assert len(expected) > 30
    found, others = measured(made, [made.padded(made.sequences(), SHORT, FILLS[1])], draws=2)
    assert not differences(expected, found, 0.0)
    for key, each in maps.items():
        np.testing.assert_array_equal(each, others[key])


@every_case
def test_more_padding_and_a_row_of_padding_change_no_number(name):
    made = case(name)
    x, real = made.padded(made.sequences(), LONG, FILLS[0])
    x, real = (torch.cat([y[:3], torch.zeros_like(y[:1]), y[3:]]) for y in (x, real))
    labels = torch.arange(len(x) - 1) % 2
    found, _ = measured(made, [(x, real)], torch.cat([labels[:3], labels[:1], labels[3:]]), draws=2)
    assert not differences(reference(name)[0], found, 1e-6)


@every_case
def test_sequences_one_by_one_give_the_numbers_of_the_batch(name):
    made = case(name)
    alone = [made.padded([x], len(x), FILLS[0]) for x in made.sequences()]
    expected = {key: x for key, x in reference(name)[0].items() if len(key) == PLACE}
    found, _ = measured(made, alone)
    assert not differences(expected, found, 1e-6, tuple(COMPARES))


@every_case
def test_a_sequence_of_nan_leaves_the_numbers_of_the_others(name):
    made = case(name)
    model = made.model
    if not made.floats:
        model = copy.deepcopy(model)
        model.get_input_embeddings().weight.data[-1] = torch.nan  # an id that no sequence has
    sequences, labels = made.sequences(), torch.arange(16) % 2
    others, kept = [*sequences[:3], *sequences[4:]], torch.arange(16) != 3
    expected, _ = measured(made, [made.padded(others, SHORT, FILLS[0])], labels[kept])
    bad = torch.full_like(sequences[3], torch.nan if made.floats else VOCABULARY - 1)
    batch = made.padded([*sequences[:3], bad, *sequences[4:]], SHORT, FILLS[0])
    found, _ = measured(dataclasses.replace(made, model=model), [batch], labels)
    assert not differences(expected, found, 1e-6, ("0", "1", "2", "3", "4"))


@pytest.mark.parametrize("name", ["filled, -1e4", "where, -1e4", "encoder, booleans"])
def test_padding_may_hold_nan_where_the_network_does_not_read_it(name):
    made = case(name)
    found, maps = measured(made, [made.padded(made.sequences(), SHORT, torch.nan)], draws=2)
    expected, others = reference(name)
    assert not differences(expected, found, 0.0)
    for key, each in maps.items():
        np.testing.assert_array_equal(each, others[key])


@some_cases
def test_some_sequences_are_measured_like_a_batch_of_them(name):
    made, some = case(name), torch.linspace(0, 15, 5).round().long()
    x, real = made.padded(made.sequences(), SHORT, FILLS[1])
    labels = torch.arange(16) % 2
    found, _ = measured(made, [(x, real)], labels, max_samples=5)
    expected, _ = measured(made, [(x[some], real[some])], labels[some])
    assert not differences(expected, found, 1e-6)


def features_alone() -> list[Metric]:
    """Metrics that need no attention, so that no weights are computed."""
    return [FeatureRates(), Geometry(), *rate_reduction.THEORY.in_networks.metrics()]


@some_cases
def test_features_alone_are_those_of_the_real_tokens(name):
    made = case(name)
    batch = made.padded(made.sequences(), SHORT, FILLS[1])
    found, _ = measured(made, [batch], draws=2, metrics=features_alone)
    expected = {key: x for key, x in reference(name)[0].items() if key in found}
    assert len(found) > 10
    assert not differences(expected, found, 0.0)


@some_cases
def test_one_layer_alone_has_the_numbers_that_it_has_among_others(name):
    made = case(name)
    found, _ = measured(made, [made.padded(made.sequences(), SHORT, FILLS[1])], layers="*[rshk].1*")
    expected = {key: x for key, x in reference(name)[0].items() if key in found}
    assert len({key[:2] for key in found}) > 30
    assert not differences(expected, found, 1e-12, ("CKA with the first block",))


def packed_net(*, causal: bool) -> nn.Module:
    """A network whose mask of real tokens holds numbers of sequences, 0 for padding."""

    class Packed(Net):
        def forward(self, x, numbers):
            T = x.shape[1]
            allowed = (numbers[:, None, :, None] == numbers[:, None, None]) & (numbers[:, None, None] > 0)
            allowed = allowed & torch.ones(T, T, dtype=torch.bool).tril() if causal else allowed
            for block in self.blocks:
                x = block(x, allowed, numbers > 0)
            return self.head(x.masked_fill((numbers == 0)[..., None], 0.0).sum(1))

    return normal(lambda: Packed(lambda: SelfAttention(functools.partial(fused, how="bool")), keys))


def packed_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return normal(lambda: LlamaModel(LlamaConfig(**LLAMA)))


def call_packed_llama(model: nn.Module, x: Tensor, numbers: Tensor):
    T = x.shape[1]
    allowed = (numbers[:, None, :, None] == numbers[:, None, None]) & torch.ones(T, T).tril().bool()
    allowed = allowed & (numbers[:, None, None] > 0) | torch.eye(T).bool()
    mask = torch.zeros(allowed.shape).double().masked_fill(~allowed, torch.finfo(torch.float64).min)
    starts = torch.arange(T) * (numbers != functional.pad(numbers, (1, -1)))
    return model(x, attention_mask=mask, position_ids=torch.arange(T) - starts.cummax(1).values)


PACKED = {
    "causal": lambda: Case(packed_net(causal=True), lambda model, x, numbers: model(x, numbers), floats=True),
    "both ways": lambda: Case(packed_net(causal=False), lambda model, x, real: model(x, real), floats=True),
    "Llama": lambda: Case(packed_llama(), call_packed_llama),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_have_the_numbers_of_each_alone(name):
    """Rows of two, three or one sequences, with padding behind them."""
    made = PACKED[name]()
    x, groups = made.sequences(), [(0, 1), (2, 3, 6), (4,), (5, 7), (8, 9), (10, 11, 12), (13, 14), (15,)]
    rows = [torch.cat([x[each] for each in group]) for group in groups]
    batch, real = made.padded(rows, 24, FILLS[1] if made.floats else FILLS[0])
    numbers = torch.zeros(real.shape, dtype=torch.long)
    for row, group in zip(numbers, groups):
        ends = [torch.full((len(x[each]),), number) for number, each in enumerate(group, 1)]
        row[: sum(map(len, ends))] = torch.cat(ends)
    no_labels = torch.zeros(0)
    found, _ = measured(made, [(batch, numbers)], no_labels)
    alone = [(each[None], torch.ones(1, len(each), dtype=torch.long)) for each in x]
    expected, _ = measured(made, alone, no_labels)
    assert len(found) > 30
    # the row that says how many sequences were found
    assert found.pop(("network", "tokens", (), None, None)) is None
    assert not differences(expected, found, 1e-6, tuple(COMPARES))
