"""Small networks of ``transformers``, measured by the library in one padded batch and by hand, each sequence
by itself: ``python -m benchmarks.real_network`` without downloads.
"""

import ast
import inspect

import pytest
import torch

from benchmarks import _by_hand
from benchmarks._by_hand import quantities, run_alone
from benchmarks.real_network import Batch, compared, measured, values_of

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "initializer_range": 0.4,
    "attn_implementation": "sdpa",
}
CLS, SEP, PAD = 1, 2, 0


def made(kind: type, config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config).eval()


def text() -> tuple[torch.nn.Module, Batch]:
    """A BERT, and sentences of 5 to 11 tokens between [CLS] and [SEP], padded on the right."""
    from transformers import BertConfig, BertModel

    generator = torch.Generator().manual_seed(0)
    lengths = torch.arange(12) % 4 * 2 + 5
    words = [torch.randint(3, 9, (int(length) - 2,), generator=generator) for length in lengths]
    ids = [torch.cat([torch.tensor([CLS]), each, torch.tensor([SEP])]) for each in words]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    together = {"input_ids": padded, "attention_mask": (padded != PAD).long()}
    batch = Batch(
        together,
        [{"input_ids": each[None]} for each in ids],
        torch.arange(12) % 3,
        [each + 9 * torch.arange(len(each)) for each in ids],
        [(each != CLS) & (each != SEP) for each in ids],
        [CLS, SEP, PAD],
        None,
    )
    config = BertConfig(**SIZES, intermediate_size=32, vocab_size=9, max_position_embeddings=16)
    return made(BertModel, config), batch


def images() -> tuple[torch.nn.Module, Batch]:
    """A DINOv2 on images of 4 x 4 patches."""
    from transformers import Dinov2Config, Dinov2Model

    x = torch.randn(51, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    ids = [torch.arange(17) + 17 * number for number in range(51)]
    for each in ids:
        each[0] = 0
    batch = Batch(
        {"pixel_values": x},
        [{"pixel_values": each[None]} for each in x],
        torch.arange(51) % 3,
        ids,
        [torch.arange(17) > 0] * 51,
        None,
        (4, 4),
    )
    config = Dinov2Config(**SIZES, image_size=28, patch_size=7, mlp_ratio=2)
    return made(Dinov2Model, config), batch


@pytest.mark.parametrize(("make", "count"), [(text, 44), (images, 46)])
def test_the_library_agrees_with_plain_torch(make, count):
    model, batch = make()
    found = values_of(measured(model, batch))
    model.set_attn_implementation("eager")
    shape = {"ids": batch.ids, "content": batch.content, "grid": batch.grid}
    lines = compared(found, quantities(run_alone(model, batch.alone, batch.labels, **shape)))
    assert len(lines) == count
    assert not [line for line in lines if not line.equal]
    assert all(line.places >= 2 for line in lines)


def test_a_quantity_that_differs_or_is_missing_is_not_equal():
    right = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[1.0]]), "c": torch.tensor([torch.nan, 3.0])}
    found = {"a": {(0, 0): 1.0, (1, 0): 2.001}, "c": {(1, 0): 3.0}}
    assert [line.equal for line in compared(found, right)] == [False, False, True]
    assert not compared({"c": {(0, 0): 0.0, (1, 0): 3.0}}, right)[2].equal


def test_what_is_computed_by_hand_uses_nothing_of_the_package():
    imports = [
        name
        for node in ast.walk(ast.parse(inspect.getsource(_by_hand)))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    ]
    assert {name.split(".")[0] for name in imports} == {"math", "collections", "dataclasses", "torch"}
