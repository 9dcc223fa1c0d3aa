"""Probes change nothing, observe compiled models too, and measure forward passes."""

import copy
import gc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import WIDE, Keep, Net, all_metrics, built, seen_in, theory_metrics, tokens
from transformer_theory.metrics import AttentionMaps, AttentionStatistics, FeatureRates, Geometry
from transformer_theory.models import CRATE, ViT
from transformer_theory.probes import probe
from transformer_theory.probes.attention_calls import AttentionCall
from transformer_theory.probes.explicit import ExplicitCall

# nothing is changed


@pytest.mark.parametrize(
    "make", [lambda: ViT.for_tokens(9, 4, 3, **WIDE), lambda: CRATE.for_tokens(9, 4, 3, **WIDE), Net]
)
def test_training_is_bit_identical(make):
    """Outputs, gradients and random state, in training mode with dropout, with every theory's metrics."""
    results = []
    for probed in (False, True):
        model = built(make).train()
        x, y = tokens(6, 9, 8 if isinstance(model, Net) else 4), torch.arange(6) % 3
        with torch.random.fork_rng():
            torch.manual_seed(5)
            with probe(model, all_metrics() if probed else [], every=1 if probed else 99) as p:
                outputs = []
                for _ in range(3):
                    p.labels = y
                    outputs.append(model(x))
                    functional.cross_entropy(outputs[-1], y).backward()
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter -= 0.1 * parameter.grad
            results.append([*outputs, *model.parameters(), torch.get_rng_state()])
    assert len(results[0]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_nothing_is_left_behind():
    model = built(Net)
    before = {
        name: (len(m._forward_hooks), len(m._forward_pre_hooks), set(m.__dict__))
        for name, m in model.named_modules()
    }
    fused = torch.backends.mha.get_fastpath_enabled()

    with pytest.raises(RuntimeError), probe(model, [Keep()]):  # the model fails: a wrong width
        model(tokens(2, 5, 7))
    with pytest.raises(KeyError), probe(model, [Keep()]):
        {}[model(tokens(2, 5, 8))]
    after = {
        name: (len(m._forward_hooks), len(m._forward_pre_hooks), set(m.__dict__))
        for name, m in model.named_modules()
    }
    assert before == after
    assert torch.backends.mha.get_fastpath_enabled() == fused


def test_a_probe_works_again_after_a_failed_pass():
    model = built(Net)
    keep = Keep()
    with probe(model, [keep]) as p:
        with pytest.raises(RuntimeError):
            model(tokens(2, 5, 7))
        model(tokens(2, 5, 8))
    assert len(keep.of("attention")) == 2
    assert p.result().table[0].step == 1


def test_a_copy_made_inside_is_a_model_of_its_own():
    model = built(Net).eval()
    x = tokens(2, 5, 8)
    with probe(model, [Keep()]) as p, torch.no_grad():
        twin = copy.deepcopy(model)
        for parameter in twin.parameters():
            parameter.zero_()
        assert not bool(twin(x).any())
        assert bool(model(x).any())
    assert [row.step for row in p.result().table] == [0]
    assert not bool(twin(x).any())


def test_no_tensor_is_kept_alive():
    def maps() -> list[torch.Tensor]:
        return [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape[-2:] == (37, 37)]

    model, before = built(Net), maps()
    with probe(model, [AttentionStatistics(), Geometry()]) as p, torch.no_grad():
        for _ in range(2):
            model(tokens(3, 37, 8))
    assert len(maps()) <= len(before)
    assert len(p.result().table) == 2 * (2 * 2 * 4 + 2 * 3)


def test_two_probes_see_the_same():
    model = built(Net).eval()
    outer, inner = Keep(), Keep()
    with probe(model, [outer]), torch.no_grad():
        with probe(model, [inner]):
            model(tokens(2, 5, 8))
        assert [s.name for s in outer.seen] == [s.name for s in inner.seen]
        model(tokens(2, 5, 8))
    assert (outer.resets, inner.resets) == (2, 1)
    assert "forward" not in model.__dict__


# compiled models


@each_case("backend", ["eager", "aot_eager"])
@each_case("how", ["wrapped", "in place", "blocks"])
def test_compiled_models_are_seen(backend, how):
    torch._dynamo.reset()
    model = built(Net).eval()
    x = tokens(2, 5, 8)
    reference = seen_in(model, x)
    with torch.no_grad():
        plain = model(x)
    if how == "wrapped":
        model = torch.compile(model, backend=backend)
    elif how == "in place":
        model.compile(backend=backend)
    else:
        for block in model.blocks:
            block.compile(backend=backend)
    with torch.no_grad():
        assert_close(model(x), plain)  # compiled before the probe opens
        keep = Keep()
        with probe(model, [keep], every=2) as p:
            for _ in range(4):
                assert_close(model(x), plain)
        assert_close(model(x), plain)
    assert [row.step for row in p.result().table] == [0, 2]
    assert p.result().table[0].model == "Net"
    assert [s.name for s in keep.seen] == [s.name for s in reference.seen]
    for seen, expected in zip(keep.of("attention"), reference.of("attention")):
        assert_close(seen.weights, expected.weights)


def test_passes_that_are_not_observed_stay_compiled():
    torch._dynamo.reset()
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph(*args)

        return run

    model = torch.compile(built(Net).eval(), backend=backend)
    x = tokens(2, 5, 8)
    with torch.no_grad():
        model(x)
        graphs = len(runs)
        with probe(model, [Keep()], every=3):
            for _ in range(6):
                model(x)
    assert graphs >= 1
    assert len(runs) == graphs * 5  # one before, and four of six


# measurements


def test_every_and_step_and_accumulate():
    model = built(Net).eval()
    keep = Keep()
    with probe(model, [keep], every=3, name="mine") as p, torch.no_grad():
        for index in range(7):
            if index == 3:
                p.step = 300
            model(tokens(2, 5, 8))
        with p.accumulate(step=1000):
            model(tokens(2, 5, 8))
            model(tokens(4, 5, 8))
    rows = p.result().table
    assert [(row.step, row.value, row.model) for row in rows] == [
        (0, 4.0, "mine"),
        (300, 4.0, "mine"),
        (6, 4.0, "mine"),
        (1000, 8.0, "mine"),
    ]
    assert keep.resets == 4


def test_together_equals_one_large_pass():
    model = built(lambda: ViT.for_tokens(9, 4, 3, **WIDE)).eval()
    x = tokens(10, 9, 4)
    with probe(model, [AttentionStatistics(), Geometry()]) as whole, torch.no_grad():
        model(x)
    with probe(model, [AttentionStatistics(), Geometry()]) as parts, torch.no_grad(), parts.accumulate(0):
        for chunk in x.split(4):
            model(chunk)
    for one, other in zip(whole.result().table, parts.result().table, strict=True):
        assert replace(one, value=0.0) == replace(other, value=0.0)
        assert_close(one.value, other.value, rtol=1e-5, atol=1e-7)


def test_labels_belong_to_the_next_pass():
    model = built(Net).eval()
    keep = Keep()
    with probe(model, [keep]) as p, torch.no_grad(), p.accumulate():
        p.labels = torch.tensor([0, 1])
        model(tokens(2, 5, 8))
        model(tokens(2, 5, 8))
    assert [labels is None for labels in keep.labels] == [False] * 4 + [True] * 4


def test_max_samples_are_evenly_spaced():
    """Metrics get the activations of those sequences alone, with their labels."""
    model, x, y = built(Net).eval(), tokens(9, 5, 8), torch.arange(9)
    keep = Keep()
    with probe(model, [keep], max_samples=3) as p, torch.no_grad():
        p.labels = y
        whole = model(x)
    alone = seen_in(model, x[[0, 4, 8]])
    assert torch.equal(whole, model(x))
    assert [labels.tolist() for labels in keep.labels] == [[0, 4, 8]] * 4
    for seen, expected in zip(keep.seen, alone.seen, strict=True):
        for name in ("tokens", "output", "query", "value", "weights", "after_attention"):
            assert_close(getattr(seen, name), getattr(expected, name))
    assert [len(seen.tokens) for seen in seen_in(model, x, max_samples=100).seen] == [9] * 4
    assert p.result().settings["max_samples"] == 3


def test_labels_of_the_model_are_used():
    """As in models of transformers; not labels of words, and labels that were set take precedence."""

    class Labelled(Net):
        def forward(self, x, labels=None):
            return super().forward(x)

    model, x = built(Labelled).eval(), tokens(2, 5, 8)
    keep = Keep()
    with probe(model, [keep]) as p, torch.no_grad():
        for given, labels in (
            (torch.tensor([1, 0]), None),
            (torch.zeros(2, 5).long(), None),
            (torch.tensor([1, 0]), torch.tensor([2, 2])),
        ):
            p.labels = labels
            model(x, labels=given)
            read = keep.labels[0]
            expected = given if labels is None else labels
            assert read is None if given.ndim == 2 else torch.equal(read, expected)


def test_layers_choose_by_name():
    model = built(Net).eval()
    assert [s.name for s in seen_in(model, tokens(2, 5, 8), layers="blocks.1*").seen] == [
        "blocks.1.attention",
        "blocks.1",
    ]
    assert [s.layer for s in seen_in(model, tokens(2, 5, 8), layers="blocks.1").seen] == [1, 1]
    assert [s.name for s in seen_in(model, tokens(2, 5, 8), layers="*.0.attention").seen] == [
        "blocks.0.attention"
    ]


@pytest.mark.usefixtures("unchecked")
def test_errors_say_what_to_do():
    model = built(Net)
    with (
        pytest.raises(
            ValueError, match=r"no attention was observed in Linear: .*scaled_dot_product_attention"
        ),
        probe(nn.Linear(2, 2), []) as p,
    ):
        p.model(tokens(3, 2))
    with pytest.raises(
        ValueError, match=r"got 'blocks\.7'; there are: blocks\.0\.attention, blocks\.1\.attention"
    ):
        seen_in(model, tokens(2, 5, 8), layers="blocks.7")
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        probe(model, [], every=0)
    with pytest.raises(ValueError, match="max_samples must be at least 1 sequence, got 0"):
        probe(model, [], max_samples=0)
    with pytest.raises(ValueError, match="no forward pass of Net was observed"), probe(model, []) as p:
        p.result()
    with probe(model, []) as p:
        p.labels = torch.zeros(3).long()
        with pytest.raises(ValueError, match="labels must have one entry per sequence, 2, got 3"):
            model(tokens(2, 5, 8))
    with (
        pytest.raises(ValueError, match=r"accumulate\(\) must contain at least one forward pass"),
        probe(model, []) as p,
        p.accumulate(),
    ):
        pass


def test_a_metric_that_measures_nothing_states_the_reason():
    """The fused kernel does not reveal W: a theory that needs it must not be silent."""
    # a bias: its scores are not bilinear in the tokens
    model = built(lambda: Net(attn_mask=torch.arange(25.0).reshape(5, 5) / 9))
    metrics = [*theory_metrics("attention_svm", "rate_reduction"), AttentionStatistics(), AttentionMaps()]
    alignment, rate = (type(metric).__name__ for metric in metrics[:2])

    def silent(labels):
        with probe(model, metrics) as p, torch.no_grad():
            for _ in range(2):
                p.labels = labels
                model(tokens(6, 5, 8))
        return {row.quantity: row for row in p.result().table if row.value is None and not row.head}

    rows = silent(None)
    assert set(rows) == {alignment, rate}
    for name, row in rows.items():
        assert (row.theory, row.model, row.step) == ("network", "Net", 1)
        # the other one needs no attention
        assert ("bilinear(), returning W [heads, dim, dim]" in row.reason) == (name == alignment)
        assert "labels were not set" in row.reason
    (row,) = silent(torch.arange(6) % 3).values()
    assert row.quantity == alignment
    assert "bilinear()" in row.reason
    assert "labels" not in row.reason

    for block in model.blocks:
        query, key = block.attention.q.weight, block.attention.kv.weight[:8]
        W = key.unflatten(0, (2, 4)).mT @ query.unflatten(0, (2, 4)) / 4**0.5
        block.attention.bilinear = lambda W=W: W
    assert silent(torch.arange(6) % 3) == {}


class Logits(Keep):
    """Keeps the outputs of the network."""

    kinds = ("outputs",)


def test_outputs_come_last_and_only_if_a_metric_needs_them():
    model, x, y = built(Net).eval(), tokens(7, 5, 8), torch.arange(7)
    keep, logits = Keep(), Logits()
    with probe(model, [keep, logits], max_samples=3) as p, torch.no_grad():
        p.labels = y
        outputs = model(x)
    (last,) = logits.seen
    assert (last.kind, last.layer, last.name) == ("outputs", 2, "")
    assert torch.equal(last.outputs, outputs[[0, 3, 6]])
    assert last.labels.tolist() == [0, 3, 6]
    assert {activations.kind for activations in keep.seen} == {"attention", "features"}


@pytest.mark.parametrize("kind", ["fused", "torch's own", "written out"])
def test_attention_that_nobody_reads_is_not_recomputed(kind, monkeypatch):
    """What is read of features is the same to the last bit, and layers are still found by their attention."""
    if kind == "torch's own":
        model = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ).eval()
    else:
        model = built(Net).eval()
    if kind == "written out":
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", written_out)
    x, y = tokens(6, 5, 8), torch.arange(6) % 3

    def read(metrics, **options):
        with probe(model, metrics, **options) as p, torch.no_grad():
            p.labels = y
            model(x)
        return [row for row in p.rows if row.quantity in ("rate reduction", "rank-collapse residual")]

    beside = read([FeatureRates(), Geometry(), AttentionStatistics()])
    assert {row.layer for row in beside} == {0, 1}
    for call in (AttentionCall, ExplicitCall):
        monkeypatch.setattr(call, "weights", lambda self: pytest.fail("the weights were recomputed"))
    monkeypatch.setattr(
        "transformer_theory.probes.forward_pass.declared_bilinear", lambda module: pytest.fail("W was made")
    )
    assert read([FeatureRates(), Geometry()]) == beside
    assert {
        row.layer for row in read([Geometry()], layers="*layers.1*" if kind == "torch's own" else "blocks.1*")
    } == {1}
    with pytest.raises(ValueError, match="layers must match the name of a module with attention"):
        read([Geometry()], layers="none")


def written_out(query, key, value, dropout_p=0.0, **options):
    weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
    return weights @ value


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("given", "came"),
    [
        (Net, "type"),
        ([Net()], "Net"),
        (AttentionStatistics(), "AttentionStatistics"),
        ([AttentionStatistics], "type"),
        ("crate", "str"),
    ],
)
def test_anything_but_a_list_of_metrics_is_refused(given, came):
    with pytest.raises(ValueError, match=rf"^metrics must be a list of metrics, got {came}; "):
        probe(built(Net), given)
