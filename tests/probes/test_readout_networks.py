"""The tokens that whole networks read: towers, class attention, inserted tokens, families of transformers."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.probes.test_readout import Linear, Network
from tests.problems.networks import Block, Keep, built, seen_in, tokens
from transformer_theory.core.metric import Grid
from transformer_theory.metrics.token_layout import mean_feature, where
from transformer_theory.probes import probe
from transformer_theory.probes.readout import AT_EVERY_TOKEN

DIM, SEQ, BATCH = 8, 7, 5


class Towers(nn.Module):
    """Two encoders, compared with each other, as in CLIP."""

    def __init__(self):
        super().__init__()
        self.image = nn.ModuleList(Block(DIM) for _ in range(2))
        self.text = nn.ModuleList(Block(DIM, is_causal=True) for _ in range(2))

    def forward(self, image, text, last):
        for block in self.image:
            image = block(image.clone())
        for block in self.text:
            text = block(text.clone())
        image, text = image[:, 0], text[torch.arange(len(text)), last]
        return {"similarity": image @ text.T, "image": image, "text": text}


@pytest.mark.parametrize("texts", [SEQ, 4])
def test_two_towers(texts):
    last = torch.tensor([2, 4, 3, 2, 1, 3, 4])[:texts]
    model = built(Towers).eval()
    keep = seen_in(model, tokens(BATCH, SEQ, DIM), tokens(texts, 5, DIM), last)
    for seen in keep.seen:
        if seen.name.startswith("image"):
            assert torch.equal(seen.read, (torch.arange(SEQ) == 0).expand(BATCH, -1))
            assert seen.reading == "the class token"
        else:
            assert torch.equal(seen.read, torch.arange(5) == last[:, None])
            assert seen.reading == "the token that the head reads"


class ClassAttention(nn.Module):
    """A class token that enters after the blocks, and attends to the patches, as in CaiT."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(DIM) for _ in range(2))
        self.token = nn.Parameter(tokens(1, 1, DIM))
        self.late = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.head = nn.Linear(DIM, 3)

    def forward(self, x):
        x = x.clone()
        for block in self.blocks:
            x = block(x)
        token = self.token.expand(len(x), -1, -1)
        both = torch.cat([token, x], 1)
        token = token + self.late(token, both, both)[0]
        return self.head(token[:, 0])


def test_a_class_token_that_enters_late_reads_all_patches():
    keep = seen_in(built(ClassAttention).eval(), tokens(BATCH, SEQ, DIM))
    for seen in keep.of("features")[:2]:
        assert bool(seen.read.all())
        assert seen.content is None


class Joined(nn.Module):
    """Tokens of the network beside those of the inputs."""

    def __init__(self, order: str, read):
        super().__init__()
        self.extra = nn.Parameter(tokens(3, DIM))
        self.network, self.order = Network(Linear(read)), order

    def forward(self, x):
        extra = iter(self.extra.expand(len(x), -1, -1).split(1, 1))
        patches = iter(x.split(2, 1))
        return self.network(torch.cat([next(patches if c == "p" else extra) for c in self.order], 1))


@each_case("order", ["eepp", "peep", "ppee", "epep", "peepe"])
def test_inserted_tokens_have_no_contents(order):
    extra = torch.cat([torch.tensor([True] if c == "e" else [False, False]) for c in order])
    model = built(lambda: Joined(order, lambda x: x[:, extra.nonzero()[0, 0]]))
    for seen in seen_in(model, tokens(BATCH, 4, DIM)).of("features"):
        assert torch.equal(seen.content, ~extra.expand(BATCH, -1))
        assert seen.reading == "the class token"
        assert_close(mean_feature(seen), seen.output[:, extra][:, 0].double())
    model = built(lambda: Joined(order, lambda x: x[:, ~extra].mean(1)))
    for seen in seen_in(model, tokens(BATCH, 4, DIM)).of("features"):
        assert torch.equal(seen.read, seen.content)
        assert where(seen) == "the mean of the tokens that the head reads"
        assert_close(mean_feature(seen), seen.output[:, ~extra].double().mean(1))


def test_special_ids_have_no_contents():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.network = nn.Embedding(20, DIM), Network(Linear(lambda x: x[:, 0]))

        def forward(self, ids):
            return self.network(self.embedding(ids))

    ids = torch.tensor([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 4, 3, 2]])
    expected = (ids != 2) & (torch.arange(7) > 0)
    for seen in seen_in(built(Words), ids, special_ids=[2]).of("features"):
        assert torch.equal(seen.content, expected)
        assert isinstance(seen.grid, str)
    for seen in seen_in(built(Words), ids).of("features"):
        assert torch.equal(seen.content, (torch.arange(7) > 0).expand(2, -1))


def of_transformers():
    """Tiny networks of transformers with their inputs, and the tokens that the head reads."""
    t = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    images = {"image_size": 16, "patch_size": 4, "num_channels": 3}
    words = {**small, "vocab_size": 50, "pad_token_id": 0}
    ids = torch.tensor([[3, 7, 9, 4, 2, 0, 0], [3, 8, 11, 6, 5, 4, 2], [3, 2, 0, 0, 0, 0, 0]])
    mask = (ids > 0).long()
    end = (ids == 2).int().argmax(1)
    pixels = {"pixel_values": tokens(3, 3, 16, 16)}
    first = torch.arange(7) == 0
    last = torch.arange(7) == end[:, None]
    patches = torch.arange(17) > 0
    bert = t.BertConfig(**words)
    llama = t.LlamaConfig(**words, num_key_value_heads=2)
    clip = t.CLIPTextConfig(**words, eos_token_id=49, max_position_embeddings=20)
    topmost = torch.where(ids == 2, 49, ids)
    bart = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 2}
    bart |= {"decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50}
    ends = torch.tensor([[3, 7, 2, 1, 1], [3, 7, 9, 4, 2]])
    siglip = {**small, **images}
    return {
        "BertForSequenceClassification": (
            bert,
            {"input_ids": ids, "attention_mask": mask},
            first.expand(3, -1),
        ),
        "BertModel": (bert, {"input_ids": ids, "attention_mask": mask}, first.expand(3, -1)),
        "BertForQuestionAnswering": (bert, {"input_ids": ids}, None),
        "BertForMaskedLM": (bert, {"input_ids": ids, "labels": ids}, None),
        "BertForTokenClassification": (bert, {"input_ids": ids}, None),
        "LlamaForSequenceClassification": (llama, {"input_ids": ids, "attention_mask": mask}, last),
        "LlamaForSequenceClassification, no mask": (llama, {"input_ids": ids}, last),
        "LlamaForCausalLM": (llama, {"input_ids": ids, "labels": ids}, None),
        "GPT2ForSequenceClassification": (
            t.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, pad_token_id=0),
            {"input_ids": ids, "attention_mask": mask},
            last,
        ),
        "CLIPTextModel": (clip, {"input_ids": topmost}, last),
        "BartForSequenceClassification": (
            t.BartConfig(**bart, eos_token_id=2, pad_token_id=1),
            {"input_ids": ends, "attention_mask": (ends != 1).long()},
            torch.arange(5) == torch.tensor([[2], [4]]),
        ),
        "ViTForImageClassification": (t.ViTConfig(**small, **images), pixels, ~patches.expand(3, -1)),
        "ViTForImageClassification, loss": (
            t.ViTConfig(**small, **images),
            {**pixels, "labels": torch.tensor([0, 1, 0])},
            ~patches.expand(3, -1),
        ),
        "DeiTForImageClassificationWithTeacher": (
            t.DeiTConfig(**small, **images),
            pixels,
            (torch.arange(18) < 2).expand(3, -1),
        ),
        "Dinov2WithRegistersForImageClassification": (
            t.Dinov2WithRegistersConfig(**{**small, **images}, num_register_tokens=2),
            pixels,
            ((torch.arange(19) == 0) | (torch.arange(19) > 2)).expand(3, -1),
        ),
        "SiglipVisionModel": (t.SiglipVisionConfig(**siglip), pixels, torch.ones(3, 16, dtype=torch.bool)),
    }


NAMES = (
    "BertForSequenceClassification",
    "BertModel",
    "BertForQuestionAnswering",
    "BertForMaskedLM",
    "BertForTokenClassification",
    "LlamaForSequenceClassification",
    "LlamaForSequenceClassification, no mask",
    "LlamaForCausalLM",
    "GPT2ForSequenceClassification",
    "CLIPTextModel",
    "BartForSequenceClassification",
    "ViTForImageClassification",
    "ViTForImageClassification, loss",
    "DeiTForImageClassificationWithTeacher",
    "Dinov2WithRegistersForImageClassification",
    "SiglipVisionModel",
)


@pytest.mark.parametrize("name", NAMES)
def test_networks_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    config, inputs, expected = of_transformers()[name]
    torch.manual_seed(0)
    model = getattr(transformers, name.partition(",")[0])(config).eval()
    keep = Keep()
    with probe(model, [keep]), torch.no_grad():
        model(**inputs)
    last = [each for each in keep.of("features") if "head" not in each.name][-1]
    if expected is None:
        assert last.read is None
        assert last.reading == AT_EVERY_TOKEN
        return
    real = torch.ones_like(expected) if last.real is None else last.real
    assert torch.equal(last.read & real, expected[:, : real.shape[1]])


class Reduced(Block):
    """Keys of joined neighbours, as in a pyramid."""

    def __init__(self):
        super().__init__(DIM)
        self.reduce = nn.Conv1d(DIM, DIM, 2, 2)

    def forward(self, x):
        y = self.norm(x)
        few = self.reduce(y.mT).mT
        query, (key, value) = self.attention.q(y), self.attention.kv(few).chunk(2, -1)
        heads = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (query, key, value))
        x = x + self.attention.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


def test_keys_of_joined_neighbours():
    model = built(lambda: Network(Linear(lambda x: x[:, 2:4].mean(1))))
    model.blocks = nn.ModuleList(built(Reduced, seed) for seed in range(2))
    for seen in seen_in(model.eval(), tokens(BATCH, SEQ, DIM)).of("features"):
        assert torch.equal(
            seen.read, torch.tensor([[False] * 2 + [True] * 2 + [False] * 3]).expand(BATCH, -1)
        )


@pytest.mark.parametrize("together", [False, True])
def test_channels_that_are_sequences_of_their_own(together):
    """A class or a forecast of two series; the blocks see each series alone."""

    def head(x):
        x = functional.linear(x[:, 1:3].flatten(1), torch.ones(3, 2 * DIM)).unflatten(0, (-1, 2))
        return x.flatten(1) if together else x.mT

    model = built(lambda: Network(head))
    stack = model.stream
    model.stream = lambda x: stack(x.flatten(0, 1))
    expected = (torch.arange(SEQ) == 1) | (torch.arange(SEQ) == 2)
    for seen in seen_in(model, tokens(4, 2, SEQ, DIM)).of("features"):
        assert torch.equal(seen.read, expected.expand(8, -1))


class Pairs(nn.Module):
    """Images beside words with as many tokens, and a mask of the words."""

    def __init__(self):
        super().__init__()
        self.patches, self.embedding = nn.Conv2d(3, DIM, 4, 4), nn.Embedding(20, DIM)
        self.image, self.text = (nn.ModuleList(Block(DIM) for _ in range(2)) for _ in range(2))

    def forward(self, pixel_values, input_ids, attention_mask):
        image, text = self.patches(pixel_values).flatten(2).mT, self.embedding(input_ids)
        for block in self.image:
            image = block(image.clone())
        for block in self.text:
            text = block(text.clone())
        mask = attention_mask[..., None].to(text)
        return image.mean(1), (text * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize("count", [12, 16])
def test_masks_and_ids_of_words_are_not_those_of_patches(count):
    mask = (torch.arange(count) < torch.tensor([[5], [count], [7]])).long()
    ids = torch.where(mask > 0, torch.arange(count) % 9 + 1, 0)
    keep = seen_in(built(Pairs).eval(), tokens(3, 3, 12, 16), ids, mask, special_ids=[0, 1])
    for seen in keep.of("features"):
        if seen.name.startswith("image"):
            assert seen.real is None
            assert seen.content is None
            assert isinstance(seen.grid, Grid)
            assert torch.equal(seen.grid.places, torch.arange(12).expand(3, -1))
            assert seen.tokens.shape[1] == 12
        else:
            assert torch.equal(seen.real, mask > 0)
            assert torch.equal(seen.content, (ids != 1) & (mask > 0))
            assert isinstance(seen.grid, str)
