"""The metrics of networks that belong to no theory: means of the functions, mergeable, robust."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Net, built, seen_in, theory_metrics, tokens
from transformer_theory import metrics
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import over_seeds
from transformer_theory.metrics import (
    AttentionMaps,
    AttentionSelection,
    AttentionStatistics,
    FeatureRates,
    Geometry,
    NeuralCollapse,
)
from transformer_theory.metrics.networks import rank_of
from transformer_theory.metrics.responses import OTHERS, OutputChange, PositionLoss
from transformer_theory.models.attention import attention_weights
from transformer_theory.probes import probe
from transformer_theory.theories import list_theories


@each_case("shape", [(99, 99), (100, 130), (300, 150), (3, 7)])
@each_case("kind", ["normal", "centred", "heavy tails", "rank one", "orthonormal"])
def test_the_stable_rank_of_a_weight(shape, kind):
    """Rows and columns of centred matrices sum to zero: a vector of ones finds no singular vector of them."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "centred":
        matrix = matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()
    elif kind == "heavy tails":
        matrix = matrix**5
    elif kind == "rank one":
        matrix = matrix[:, :1] @ matrix[:1]
    elif kind == "orthonormal":
        matrix = torch.linalg.qr(matrix)[0]
    singular = np.linalg.svd(matrix.numpy(), compute_uv=False)
    expected = (singular**2).sum() / singular[0] ** 2
    assert rank_of(matrix) == pytest.approx(expected, rel=1e-9)
    assert rank_of(matrix.float()) == pytest.approx(expected, rel=1e-4)
    assert math.isnan(rank_of(0 * matrix))
    assert math.isnan(rank_of(matrix / 0.0))


def test_attention_statistics_are_means_of_the_metrics():
    model = built(Net).eval()
    seen = seen_in(model, tokens(6, 5, 8)).of("attention")[0]
    metric = AttentionStatistics()
    metric.update(seen)
    value = {(row.quantity, row.head): row.value for row in metric.compute()}
    for head in range(2):
        a = seen.weights[:, head]
        assert_close(value["attention entropy", head], float(metrics.entropy(a).mean()), rtol=1e-5, atol=0)
        assert_close(value["top-1 mass", head], float(metrics.top1_mass(a).mean()), rtol=1e-5, atol=0)
        assert_close(
            value["effective support", head], float(metrics.effective_support(a).mean()), rtol=1e-5, atol=0
        )
        assert_close(value["sink mass", head], float(metrics.sink_mass(a.mean(0))), rtol=1e-5, atol=0)
    assert_close(seen.weights, attention_weights(seen.query, seen.key), rtol=1e-5, atol=1e-7)


def test_rows_without_any_allowed_key_are_left_out():
    whole, cut = AttentionStatistics(), AttentionStatistics()
    a = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.3, 0.5]]).expand(1, 1, 2, 3)
    stream = torch.zeros(1, 3, 4)
    blind = torch.cat([a, torch.zeros(1, 1, 1, 3)], 2)
    whole.update(Activations("m", 0, "attention", stream, stream, weights=a))
    cut.update(Activations("m", 0, "attention", stream, stream, weights=blind))
    for one, other in zip(whole.compute(), cut.compute(), strict=True):
        assert_close(one.value, other.value, rtol=1e-6, atol=0)


@each_case(
    "make", [AttentionStatistics, AttentionSelection, Geometry, FeatureRates, NeuralCollapse, AttentionMaps]
)
def test_merging_is_the_union(make):
    model = built(Net).eval()
    x, y = tokens(7, 5, 8), torch.tensor([0, 1, 1, 2, 0, 2, 1])
    whole, first, second = make(), make(), make()
    for metric, part in ((whole, slice(7)), (first, slice(3)), (second, slice(3, 7))):
        with probe(model, [metric]) as p, torch.no_grad():
            p.labels = y[part]
            model(x[part])
    second = pickle.loads(pickle.dumps(second))  # as it comes from another process
    first.merge(second)
    for one, other in zip(whole.compute(), first.compute(), strict=True):
        assert_close(one.value, other.value, rtol=1e-5, atol=1e-7)
    if make is AttentionMaps:
        for name, maps in whole.arrays().items():
            assert_close(maps, first.arrays()[name])
    else:
        assert whole.compute()


def test_geometry_reads_stream_and_weights():
    model = built(Net).eval()
    metric = Geometry()
    with probe(model, [metric]), torch.no_grad():
        model(tokens(6, 5, 8))
    features = seen_in(model, tokens(6, 5, 8)).of("features")
    value = {(row.quantity, row.layer): row.value for row in metric.compute()}
    for layer, seen in enumerate(features):
        assert_close(
            value["rank-collapse residual", layer],
            float(metrics.rank_collapse_residual(seen.output).mean()),
            rtol=1e-5,
            atol=0,
        )
        rank = float(metrics.stable_rank(seen.output.flatten(0, 1).double()))
        assert_close(value["stable rank of the features", layer], rank, rtol=1e-8, atol=0)
        rank = float(metrics.effective_rank(seen.output.flatten(0, 1).double()))
        assert_close(value["effective rank of the features", layer], rank, rtol=1e-6, atol=0)


def test_a_diverged_network_gives_none_and_no_crash():
    model = built(Net).eval()
    with torch.no_grad():
        model.blocks[0].attention.q.weight.fill_(math.nan)
        model.blocks[0].attention.out.weight.fill_(math.nan)
    with probe(model, [AttentionStatistics(), Geometry()]) as p, torch.no_grad():
        model(tokens(2, 5, 8))
    values = p.result().select(quantity=("attention entropy", "rank-collapse residual")).column("value")
    assert values
    assert all(value is None for value in values)


def test_maps_are_kept_as_arrays():
    model = built(Net).eval()
    with probe(model, [AttentionMaps(keep=3)], every=1) as p, torch.no_grad():
        model(tokens(2, 5, 8))
        once = p.result().arrays
        model(tokens(7, 5, 8))
    assert {name: maps.shape for name, maps in once.items()} == {
        "attention/00": (2, 2, 5, 5),
        "attention/01": (2, 2, 5, 5),
    }
    assert set(p.result().arrays) == {"attention/00@0", "attention/01@0", "attention/00@1", "attention/01@1"}
    assert p.result().arrays["attention/00@1"].shape == (3, 2, 5, 5)
    with pytest.raises(ValueError, match="keep must be at least 1"):
        AttentionMaps(keep=0)


@pytest.mark.parametrize("spoilt", ["nothing", "a sequence", "the weights"])
def test_every_theory_measures_a_decoder_and_never_stops_its_training(spoilt):
    """Blocks with causal self-attention and cross-attention to a memory of another length; NaN in the data or
    in the network.
    """
    decoder = built(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)
    ).train()
    x, memory = tokens(6, 5, 8), tokens(6, 7, 8)
    if spoilt == "a sequence":
        x[2, 3, 1] = math.nan
    if spoilt == "the weights":
        with torch.no_grad():
            decoder.layers[1].self_attn.in_proj_weight.fill_(math.nan)
    computed = [*theory_metrics(), AttentionStatistics(), Geometry(), AttentionMaps()]
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    with probe(decoder, computed) as p:
        for _ in range(2):
            p.labels = torch.arange(6) % 2
            decoder(x, memory, tgt_mask=causal).sum().backward()
    table = p.result().table
    measuring = {
        theory.name for theory in list_theories() if theory.in_networks and theory.in_networks.metrics()
    }
    assert set(table.column("theory")) == measuring | {"network"}
    for quantity in ("sharpness", "cosine to the max-margin direction"):
        places = {(row.layer, row.head) for row in table.select(quantity=quantity)}
        assert places == {(layer, head) for layer in range(2) for head in range(4)}
    sharp = {(row.layer, row.head): row.value for row in table.select(quantity="sharpness")}
    assert all(
        (value is None) == (spoilt == "the weights" and place[0] == 1) for place, value in sharp.items()
    )
    aligned = [
        row.head < 2
        for row in table.select(quantity="cosine to the max-margin direction")
        if row.value is not None
    ]
    assert aligned
    assert all(aligned)  # the keys of cross-attention are not among the tokens


def test_half_precision_is_read_in_float32():
    model = built(Net).to(torch.bfloat16).eval()
    (seen, *_) = seen_in(model, tokens(2, 5, 8).bfloat16()).of("attention")
    assert seen.weights.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (seen, *_) = seen_in(built(Net).eval(), tokens(2, 5, 8)).of("attention")
    assert_close(seen.weights.sum(-1), torch.ones(2, 2, 5))


def test_selection_is_the_mean_of_the_metrics():
    """Under a causal mask the first query has one key and no gap; uniform attention is the null of the weight
    on the token itself.
    """
    for options in ({}, {"is_causal": True}):
        (seen, *_) = seen_in(built(lambda options=options: Net(**options)).eval(), tokens(6, 5, 8)).of(
            "attention"
        )
        metric = AttentionSelection()
        metric.update(seen)
        assert {row.null for row in metric.compute()} == {None}
        rows = {(row.quantity, row.head): row for row in metric.compute(draws=1)}
        allowed = torch.ones(5, 5, dtype=torch.bool) if seen.mask is None else seen.mask[0, 0]
        uniform = allowed.double() / allowed.sum(-1, keepdim=True)
        for head in range(2):
            a = seen.weights[:, head]
            gaps = metrics.hard_max_gap(a.log(), allowed=allowed)
            assert_close(
                rows["gap of the scores", head].value,
                float(gaps[torch.isfinite(gaps)].mean()),
                rtol=1e-5,
                atol=0,
            )
            own = rows["weight on the token itself", head]
            assert_close(own.value, float(metrics.diagonal_mass(a).mean()), rtol=1e-5, atol=0)
            assert_close(own.null.mean, float(metrics.diagonal_mass(uniform)), rtol=1e-9, atol=0)


@pytest.mark.parametrize("classes", ["apart", "shuffled"])
def test_class_features_are_the_metrics_of_all_samples(classes):
    """Features with class means far apart stand off their null, in the right direction; with shuffled labels
    they do not.
    """
    y = torch.arange(60) % 3
    generator = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(3, 1, 8, generator=generator)
    x = torch.randn(60, 5, 8, generator=generator) + means[y]
    y = y if classes == "apart" else y[torch.randperm(60, generator=generator)]
    model = built(Net).eval()
    with probe(model, [FeatureRates(), NeuralCollapse()], draws=99) as p, torch.no_grad(), p.accumulate(0):
        for part in (slice(25), slice(25, 60)):
            p.labels = y[part]
            model(x[part])
    (_, seen) = seen_in(model, x).of("features")
    features = seen.output.mean(1, dtype=torch.float64)
    unit = metrics.unit_norm(features)
    found = metrics.neural_collapse(features, y)
    rows = {row.quantity: row for row in p.result().select(layer=1)}
    expected = {
        "coding rate": metrics.coding_rate(unit, eps=0.5**0.5),
        "class coding rate": metrics.class_coding_rate(unit, y, eps=0.5**0.5),
        "rate reduction": metrics.rate_reduction(unit, y, eps=0.5**0.5),
        "variability within classes (NC1)": found.nc1,
        "spread of the class means' norms (NC2)": found.nc2_norms,
        "class means' angles (NC2)": found.nc2_angles,
    }
    for quantity, value in expected.items():
        assert rows[quantity].value == pytest.approx(float(value), rel=1e-5), quantity
    rate, collapse = rows["rate reduction"], rows["variability within classes (NC1)"]
    if classes == "apart":
        assert rate.value > 1.5 * rate.null.mean
        assert collapse.value < 0.2 * collapse.null.mean
        assert over_seeds([rate]).p == over_seeds([collapse]).p == 0.01
    else:
        assert collapse.value > 0.2 * collapse.null.mean
        assert min(over_seeds([rate]).p, over_seeds([collapse]).p) > 0.01


def test_one_class_has_no_collapse():
    with probe(built(Net).eval(), [NeuralCollapse()]) as p, torch.no_grad():
        p.labels = torch.zeros(4, dtype=torch.int64)
        p.model(tokens(4, 5, 8))
    assert {row.value for row in p.result().table} == {None}


def test_class_metrics_have_as_many_permutations_as_are_asked_for():
    """Of two metrics that saw the same labels, draw i belongs to the same permutation."""
    x, y, generator = tokens(30, 5, 8), torch.arange(30) % 3, torch.Generator().manual_seed(4)
    for make in (FeatureRates, NeuralCollapse):
        metric, twin = make(), make(seed=5)
        for each in (metric, twin):
            each.update(Activations("block", 0, "features", x, x, labels=y))
        assert {row.null for row in metric.compute()} == {None}
        few, many = (metric.compute(draws=draws) for draws in (3, 9))
        assert [row.value for row in few] == [row.value for row in many]
        assert {row.scope for row in many if row.null} == {"these data"}
        for row, longer, other, drawn in zip(
            few, many, twin.compute(draws=3), metric.compute(draws=3, generator=generator), strict=True
        ):
            if row.null:
                assert row.null.draws == pytest.approx(longer.null.draws[:3])
                assert row.null.draws == other.null.draws != drawn.null.draws
                assert len(longer.null.draws) == 9


def test_the_targets_of_other_sequences_are_one_draw():
    outputs, ids = tokens(4, 3, 8), torch.arange(12).view(4, 3) % 8
    for metric, targets in ((OutputChange(), outputs + 0.1), (PositionLoss(), ids)):
        metric.update(Activations("model", 0, "outputs", outputs, outputs, outputs=outputs, targets=targets))
        assert {row.null for row in metric.compute()} == {None}
        assert {(row.null.kind, len(row.null.draws), row.scope) for row in metric.compute(draws=9)} == {
            (OTHERS, 1, "training")
        }


def test_statistics_are_compared_with_untrained_networks():
    assert {make.null_source for make in (AttentionStatistics, Geometry)} == {"networks"}
    assert {make.null_source for make in (FeatureRates, NeuralCollapse)} == {"own"}


def test_every_metric_of_every_theory_can_be_pickled():
    """A metric with a state gives the same rows after pickling."""
    model, y = built(Net).eval(), torch.arange(6) % 3
    W = torch.eye(8).expand(2, 8, 8).clone()
    for block in model.blocks:
        block.attention.bilinear = Bilinear(W)
    computed = theory_metrics()
    with probe(model, computed) as p, torch.no_grad():
        p.labels = y
        model(tokens(6, 5, 8))
    for metric in computed:
        rows = list(metric.compute())
        assert rows, type(metric).__name__
        assert list(pickle.loads(pickle.dumps(metric)).compute()) == rows


class Bilinear:
    """A bilinear form that can be pickled with its module."""

    def __init__(self, W):
        self.W = W

    def __call__(self):
        return self.W


@each_case(
    ("dtype", "scale"),
    [(torch.float32, 1e-36), (torch.float32, 1e-23), (torch.float32, 1e19), (torch.float64, 1e-200)],
)
def test_tokens_of_any_scale_have_a_residual(dtype, scale):
    features = seen_in(built(Net).eval(), tokens(6, 5, 8)).of("features")[0]
    x = features.output.double()
    expected = (x - x.mean(1, keepdim=True)).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    metric = Geometry()
    metric.update(dataclasses.replace(features, output=(scale * x).to(dtype)))
    values = [row.value for row in metric.compute() if row.quantity == "rank-collapse residual"]
    assert values == [pytest.approx(float(expected.mean()), rel=1e-5)]
