"""The figures: networks that differ in one point, quantities of known value, and panels."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.figure import figure, readings
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.plotting import COLOURS, axes
from transformer_theory.core.result import Result
from transformer_theory.core.table import Arrays, Table
from transformer_theory.data.two_objects import two_objects
from transformer_theory.models import crate as blocks
from transformer_theory.theories import crate
from transformer_theory.theories.crate import networks
from transformer_theory.theories.crate.figures import departures, emergence, layers, variants
from transformer_theory.theories.crate.layer_curves import compression_layers
from transformer_theory.theories.crate.on_data import rate_panel
from transformer_theory.theories.crate.sparse_coding import optimal_code, signed_dictionary


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    return networks.digit_parts(seed=0)


def test_the_parts_are_disjoint_and_have_the_same_classes(data):
    parts = (data.train, data.validation, data.test)
    assert [len(part) for part in parts] == [1257, 180, 360]
    rows = torch.cat([part.tokens.flatten(1) for part in parts])
    assert len(rows.unique(dim=0)) == len(rows)
    for part in parts:
        assert_close(torch.bincount(part.labels) / len(part), torch.full((10,), 0.1), atol=0.02, rtol=0)


def test_soft_thresholding_is_the_optimal_code():
    bases = crate.random_subspaces(3, 12, 4, generator=generator())
    tokens = gaussian(20, 12)
    code = optimal_code(tokens, bases, lam=0.3)
    assert_close(code, crate.fista(tokens, signed_dictionary(bases), lam=0.3).code, atol=1e-8, rtol=0)
    assert 0.05 < float((code != 0).double().mean()) < 0.5


def test_the_tied_residual_is_the_released_step_with_u_as_output():
    torch.manual_seed(0)
    module = departures.TiedAttention(12, heads=3, head_dim=4).double()
    tokens, bases = gaussian(2, 5, 12), module.subspaces()
    assert_close(tokens + module(tokens), crate.released_step(tokens, bases, bases.mT))


def test_unscaled_scores_are_a_softmax_of_the_gram_matrix():
    torch.manual_seed(0)
    module = departures.UnscaledAttention(12, heads=1, head_dim=4).double()
    tokens = gaussian(1, 5, 12)
    W = tokens[0] @ module.subspaces()[0]
    assert_close(module(tokens)[0], module.to_out((W @ W.T).softmax(-1) @ W))


def test_each_network_undoes_one_departure(data):
    models = {name: make(data.train, seed=0, dim=16, depth=2) for name, make in departures.NETWORKS.items()}
    assert {
        name for departure in departures.DEPARTURES.values() for name in departure.networks
    } == models.keys() - {"released"}
    inputs = data.test.tokens[:3].float()
    outputs = {name: model(inputs).detach() for name, model in models.items()}
    for name, output in outputs.items():
        assert torch.isfinite(output).all()
        assert name == "released" or not torch.allclose(output, outputs["released"]), (
            f"{name} changes nothing"
        )
    assert not any("norm" in name for name, _ in models["no layer norms"].transformer.named_parameters())
    assert (
        departures.mean_incoherence(models["U orthonormal"])
        < 1e-5
        < 0.3
        < departures.mean_incoherence(models["released"])
    )


@pytest.mark.parametrize("attention", [blocks.ReleasedAttention, blocks.ReleasedTokenStatisticsAttention])
def test_alignment_of_the_output_matrix_is_one_where_it_is_tied(data, attention):
    model = networks.crate(data.train, seed=0, attention=attention, dim=16, depth=2)
    assert abs(departures.output_alignment(model)) < 0.3
    with torch.no_grad():
        for _, _, block in compression_layers(model):
            block.to_out[0].weight.copy_(3 * block.qkv.weight.T)
    assert departures.output_alignment(model) == pytest.approx(1)


def test_only_the_causal_form_hides_later_tokens():
    assert departures.leak(blocks.CausalReleasedAttention, 16) == 0
    assert departures.leak(blocks.ReleasedAttention, 16) > 0.01


def test_variants_have_the_stated_numbers_of_parameters(data):
    d, depth = 16, 2
    counts = {
        (a, s): networks.parameter_count(variants._network(data, a, s, seed=0, dim=d, depth=depth))
        for a in variants.ATTENTION
        for s in variants.SPARSIFY
    }
    for (attention, _), count in counts.items():
        more = {"exact": 0, "paper": 0, "released": depth * (d * d + d), "token statistics": depth * 4}[
            attention
        ]
        assert count == counts["exact", "one ISTA step"] + more


def line_positions(ax, colour):
    return [
        float(line.get_xdata()[0])
        for line in ax.get_lines()
        if line.get_color() == colour and line.get_linestyle() != "None"
    ]


def test_the_chance_level_is_shown_only_near_the_networks():
    for accuracy, shown in ((0.12, True), (0.96, False)):
        rows = [
            Measurement("crate", "figure", f"{of}{quantity}", accuracy + 0.001 * number, model=network)
            for number, network in enumerate(departures.NETWORKS)
            for quantity in departures.TITLES
            for of in ("", "smallest of ", "largest of ")
        ]
        ax = departures.draw(Result("crate.departures", table=Table(rows))).axes[0]
        assert departures.CHANCE in line_positions(ax, COLOURS["null"])
        assert (ax.get_xlim()[0] <= departures.CHANCE) == shown


def test_a_curve_that_is_cut_off_is_labelled():
    for last, labels in ((1e-9, 1), (1e-2, 0)):
        _, (ax,) = axes()
        rate_panel(ax, {"crate/rate/exact": np.array([1.0, last])})
        assert len([text for text in ax.texts if "smaller values" in text.get_text()]) == labels


def emergence_result():
    rng = np.random.default_rng(0)

    def overlaps():
        return {
            (kind, rule, state): SimpleNamespace(per_object=rng.random(), foreground=rng.random())
            for kind, rules in emergence.MAPS.items()
            for rule in rules
            for state in emergence.STATES
        }

    @figure("crate.emergence", source=emergence.SOURCE, view=emergence.draw)
    def made_up():
        for name in emergence.NETWORKS:
            yield emergence.overlap_readings(name, [overlaps() for _ in range(3)])
            pictures = {"images": (3, 3, 8, 8), "attention": (3, 4, 4, 4), "components": (3, 3, 4, 4)}
            yield Arrays(
                {f"crate/emergence/{name}/{of}": rng.random(shape) for of, shape in pictures.items()}
            )

    return made_up().run()


def test_no_marker_of_emergence_lies_on_the_edge():
    result = emergence_result()
    drawn = emergence.draw(result)
    panels = [ax for ax in drawn.axes if ax.get_title(loc="left").startswith("IoU")]
    seeds = [result.arrays[f"crate/emergence/{n}/{m}"] for n in emergence.NETWORKS for m in emergence.MAPS]
    assert len(panels) == 2
    assert all(ax.get_ylim()[1] > 1.05 * max(values.max() for values in seeds) for ax in panels)


def test_every_rule_of_emergence_selects_its_share_and_has_both_chance_levels():
    data = two_objects(12, generator=generator())
    model = networks.crate(data.data, seed=0, dim=16, depth=1)
    selections = emergence._selections(model, data)
    assert {kind: tuple(rules) for kind, rules in selections.items()} == emergence.MAPS
    maps = crate.class_attention(model, data.data.tokens)
    for rule in emergence.RULES:
        cut = rule[1]
        chosen = selections["attention of the class token"][rule]
        held = (maps * chosen).sum(-1) / maps.sum(-1)
        assert bool((held >= cut).all())
        # never more than as many average patches
        assert bool((chosen.sum(-1) <= (maps.shape[-1] * cut) + 1).all())
    assert selections["attention of the class token"][emergence.EXCESS].shape[1] == 2 * maps.shape[1]


def accuracy_row(model, value, p):
    return Measurement("crate", "figure", layers.ACCURACY, value, model=model, p=p, side=">=")


def test_a_network_at_chance_is_named_in_the_caption_and_has_no_verdict(data):
    assert networks.guessing_p([0.1], data.test) > 0.4
    assert networks.guessing_p([0.16], data.test) < 1e-3  # 58 of 360 where 36 are expected
    assert (
        networks.guessing_p([0.12], data.test)
        > networks.GUESSING
        > networks.guessing_p([0.12] * 10, data.test)
    )
    table = Table([accuracy_row("ViT", 0.95, 1e-99), accuracy_row("CRATE (paper form)", 0.1, 0.6)])
    note = networks.chance_note(Result("crate.layers", table=table), layers.ACCURACY)
    assert "CRATE (paper form) (0.10)" in note
    assert "ViT" not in note
    assert not networks.chance_note(Result("crate.layers", table=table[:1]), layers.ACCURACY)
    many = Table([accuracy_row(name, 0.1, 0.5) for name in "abcd"])
    assert networks.chance_note(Result("crate.variants", table=many), layers.ACCURACY).endswith(
        ": 4 of 4 networks."
    )


def test_the_curves_on_the_training_part_are_those_of_its_sequences(data):
    _, arrays = layers.train_network("CRATE (released form)", seed=0, rate=8e-3, steps=3, dim=16, depth=2)
    model = networks.crate(data.train, seed=0, dim=16, depth=2)
    networks.fit(model, data, steps=3, learning_rate=8e-3, seed=0)
    for quantity in (layers.AFTER, layers.NONZEROS):
        for row, part in ((0, data.test), (2, data.train[: len(data.test)])):
            expected = layers.curves(model, part.tokens).select(quantity=quantity).column("value")
            assert arrays[quantity][row] == pytest.approx(expected, rel=1e-6)
    assert not np.allclose(arrays[layers.AFTER][0], arrays[layers.AFTER][2])


def test_layers_judge_only_networks_that_learnt():
    curves = {
        quantity: np.full((1, 3, 2), 0.5)
        for quantity in (layers.INPUT, layers.BEFORE, layers.AFTER, layers.NONZEROS)
    }
    for learnt in (True, False):
        found = readings(layers.curve_readings("CRATE (released form)", curves, learnt=learnt), "")
        judged = [one.columns for one in found if "threshold" in one.columns]
        assert len(judged) == 7
        assert all((columns["verdict"] is not None) == learnt for columns in judged)
        assert all((columns["note"] == "") == learnt for columns in judged)


def test_the_growth_in_attention_is_the_plain_ratio_of_rates(data):
    from transformer_theory.metrics.coding import subspace_coding_rate

    model = networks.crate(data.train, seed=0, dim=16, depth=1)
    inputs, layer = data.test.tokens[:20], model.transformer.layers[0]
    with torch.no_grad():
        embedded = model.to_patch_embedding(inputs.float())
        before = torch.cat([model.cls_token.expand(20, -1, -1), embedded], 1) + model.pos_embedding
        after = before + layer[0](before)
    bases = torch.linalg.qr(layer[0].fn.subspaces().detach().double())[0]
    first, second = (
        subspace_coding_rate(stream.double(), bases, eps=departures.EPS).mean() for stream in (before, after)
    )
    assert departures.change_lengths_kept(model, inputs) == pytest.approx(float(second / first), rel=1e-6)
