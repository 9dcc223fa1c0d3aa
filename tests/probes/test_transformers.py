"""Models of ``transformers``, built from a configuration: both implementations of attention, features for
every theory, the Trainer.
"""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.problems.networks import Keep, all_metrics, tokens
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.metrics import AttentionStatistics
from transformer_theory.probes import probe
from transformer_theory.probes.background import is_possible
from transformer_theory.probes.callbacks import trainer_callback
from transformer_theory.probes.evaluation import forward
from transformer_theory.probes.features import features
from transformer_theory.theories import list_theories

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "initializer_range": 0.5,
}
SIZES |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def vit(how: str) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3, attn_implementation=how)
    )


def bert(how: str) -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SIZES, vocab_size=30, attn_implementation=how))


def gpt2(how: str) -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    sizes = {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 30,
        "n_positions": 12,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2Model(GPT2Config(**sizes, initializer_range=0.5, attn_implementation=how))


WORDS = {"input_ids": torch.arange(35).reshape(5, 7) * 11 % 30}
PADDED = WORDS | {"attention_mask": (torch.arange(7) < torch.tensor([7, 7, 7, 7, 5])[:, None]).long()}
MODELS = {
    "vit": (vit, {"pixel_values": tokens(5, 3, 8, 8), "labels": torch.arange(5) % 3}),
    "bert": (bert, PADDED),
    "gpt2": (gpt2, WORDS),
}


def made(name: str, how: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name][0](how)


@pytest.mark.parametrize("name", MODELS)
def test_both_implementations_show_the_same(name):
    inputs, seen = MODELS[name][1], {}
    for how in ("sdpa", "eager"):
        model, keep = made(name, how).eval(), Keep()
        with torch.no_grad():
            plain = model(**inputs)
            with probe(model, [keep]):
                probed = model(**inputs)
        assert all(
            torch.equal(plain[key], probed[key]) for key in plain if isinstance(plain[key], torch.Tensor)
        )
        assert (
            [one.layer for one in keep.of("attention")]
            == [one.layer for one in keep.of("features")]
            == [0, 1]
        )
        seen[how] = keep
    for one, other in zip(seen["sdpa"].seen, seen["eager"].seen, strict=True):
        assert (one.name, one.kind) == (other.name, other.kind)
        assert_close(one.output, other.output, rtol=1e-4, atol=1e-5)
    for one, other in zip(seen["sdpa"].of("attention"), seen["eager"].of("attention"), strict=True):
        assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-6)
        assert_close(one.bilinear, other.bilinear)
        assert (one.mask is None) == (other.mask is None) == (name == "vit")
        if one.mask is not None:
            assert torch.equal(one.mask.expand(one.weights.shape), other.mask)


def test_flex_attention_shows_what_the_written_out_one_shows():
    """Flex attention never forms the weights; the registry of ``transformers`` hands over queries
    and keys.
    """
    weights = []
    for how in ("flex_attention", "eager"):
        keep = Keep()
        with torch.no_grad(), probe(made("vit", how).eval(), [keep]) as p:
            p.model(**MODELS["vit"][1])
        weights.append([seen.weights for seen in keep.of("attention")])
    for flex, eager in zip(*weights, strict=True):
        assert_close(flex, eager, rtol=1e-4, atol=1e-6)


def test_the_registry_belongs_to_the_thread_that_observes():
    """Two observed passes and one that is not observed overlap; their kernel can be seen in the registry
    only. Each probe has the attention of its own model, and the registry is as before.
    """
    from transformers import AttentionInterface

    together = threading.Barrier(3)

    def kernel(module, query, key, value, mask, scaling=None, **options):
        with torch._C.DisableTorchFunction():
            weights = (query @ key.mT * scaling).softmax(-1)
            together.wait(20)
            return (weights @ value).transpose(1, 2), None

    @torch.no_grad()
    def run(seed, observe=True):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = MODELS["vit"][0]("opaque").eval()
        keep, x = Keep(), tokens(2 + seed, 3, 8, 8)
        with probe(model, [keep]) if observe else contextlib.nullcontext():
            model(pixel_values=x)
        model.set_attn_implementation("eager")
        return keep, model(pixel_values=x, output_attentions=True).attentions

    before = dict(vars(AttentionInterface))
    AttentionInterface.register("opaque", kernel)
    try:
        with ThreadPoolExecutor(3) as pool:
            (one, two, none) = pool.map(run, range(3), (True, True, False))
    finally:
        AttentionInterface._global_mapping.pop("opaque")
    for keep, right in (one, two):
        for seen, weights in zip(keep.of("attention"), right, strict=True):
            assert_close(seen.weights, weights, rtol=1e-4, atol=1e-6)
    assert not none[0].seen
    assert dict(vars(AttentionInterface)) == before


@pytest.mark.parametrize("name", MODELS)
def test_the_bilinear_form_gives_the_observed_scores(name):
    """Differences of log weights between two queries and two keys: there the biases of the projections drop
    out.
    """
    keep = Keep()
    with probe(made(name, "sdpa").eval(), [keep]) as p, torch.no_grad():
        p.model(**MODELS[name][1])
    for seen in keep.of("attention"):
        scores = torch.einsum("bjd,hde,bie->bhij", seen.tokens, seen.bilinear, seen.tokens)[:4, :, 3:, :4]
        observed = seen.weights[:4, :, 3:, :4].log()  # the last queries see the first keys, whatever the mask
        scores, observed = (s - s[..., :1] - s[..., :1, :] + s[..., :1, :1] for s in (scores, observed))
        assert_close(scores, observed, rtol=1e-3, atol=1e-3)
        assert float(scores.std()) > 0.5


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_training_is_bit_identical(how):
    results = []
    for probed in (False, True):
        model = made("vit", how).train()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            with probe(
                model, all_metrics() if probed else [AttentionStatistics()], every=1 if probed else 99
            ) as p:
                for _ in range(2):
                    model(**MODELS["vit"][1]).loss.backward()
        results.append([parameter.grad for parameter in model.parameters()])
        if probed:
            measured = {
                theory.name
                for theory in list_theories()
                if theory.in_networks and theory.in_networks.metrics()
            }
            assert {row.theory for row in p.result().table} == measured | {"network"}
            # the labels are the model's
            assert {row.layer for row in p.result().select(theory="rate_reduction")} == {0, 1}
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_every_theory_runs_on_the_features_of_a_block():
    images = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    data = TokenData(images.flatten(2).mT[:, :16], labels=torch.arange(24) % 3, images=images)
    model = made("vit", "sdpa").train()
    read = features(model, data, layer=-1, inputs="images", batch_size=10)
    assert model.training
    with torch.no_grad():
        hidden = model.eval()(images.float(), output_hidden_states=True).hidden_states
    assert_close(read.tokens, hidden[2].double(), rtol=1e-4, atol=1e-5)
    assert torch.equal(read.query, read.tokens[:, 0])
    unsupported = set()
    theories = [theory for theory in list_theories() if theory.on_data and theory.on_data.reads is None]
    for theory in theories:
        problem = theory.on_data.read(read)
        if isinstance(problem, Unsupported):
            unsupported.add(theory.name)
            assert "needs" in problem.reason
        else:
            rows, _ = collect(theory.on_data.measure(problem, torch.Generator().manual_seed(0), draws=9))
            assert rows
    assert "scan_snap" in unsupported  # a class token is no word
    assert len(unsupported) < len(theories)


def test_words_are_passed_by_keyword():
    ids = WORDS["input_ids"]
    data = TokenData(tokens(5, 7, 2).double(), ids=ids, vocab_size=30)
    for name in ("gpt2", "bert"):
        model = made(name, "sdpa").eval()
        read = features(model, data, layer=0, inputs="ids")
        with torch.no_grad():
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
        assert_close(read.tokens, hidden[1].double(), rtol=1e-4, atol=1e-5)
        assert torch.equal(read.ids, ids)  # a word keeps its place


class Wrapper(nn.Module):
    """Shows the attribute of its model, but names its argument otherwise, as TransformerLens' bridge does."""

    main_input_name = "input_ids"

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.model(input).last_hidden_state


def test_a_wrapper_receives_the_ids_alone():
    model, ids = made("gpt2", "eager").eval(), WORDS["input_ids"]
    with torch.no_grad():
        assert torch.equal(forward(Wrapper(model), ids), forward(model, ids).last_hidden_state)


@pytest.mark.parametrize(
    "background",
    [False, pytest.param(True, marks=pytest.mark.skipif(not is_possible(), reason="needs Linux"))],
)
def test_the_trainer_is_measured(tmp_path, background):
    """Two batches per step, five steps; every second step is measured, once, and the model
    stays unchanged.
    """
    from transformers import Trainer, TrainingArguments

    callback = trainer_callback(all_metrics(), every=2, layers="*layers.1*", background=background)
    model = made("vit", "eager")
    options = {
        "max_steps": 5,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "use_cpu": True,
    }
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    data = [{"pixel_values": x, "labels": i % 3} for i, x in enumerate(tokens(24, 3, 8, 8))]
    arguments = TrainingArguments(output_dir=str(tmp_path), **options, **quiet)
    with torch.random.fork_rng():
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train()
    table = callback.result.table
    assert {row.step for row in table} == {0, 2, 4}
    assert {row.layer for row in table if row.value is not None} == {1}
    # The contexts of a token are known from the embeddings before block 0 only.
    measured = {
        theory.name for theory in list_theories() if theory.in_networks and theory.in_networks.metrics()
    } - {
        "universal",
        "bottleneck",
    }
    assert {row.theory for row in table if row.value is not None} == measured | {"network"}
    logged = [
        entry for entry in trainer.state.log_history if "network/attention entropy/layer 1/head 3" in entry
    ]
    assert [entry["step"] for entry in logged] == [0, 2, 4]
    assert (
        logged[1]["network/attention entropy/layer 1/head 3"]
        == table.select(quantity="attention entropy", step=2, head=3).one().value
    )
    assert "forward" not in model.__dict__
    assert not list(tmp_path.iterdir())
