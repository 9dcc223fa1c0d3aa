"""What the experiments of the room rest on: networks that differ in one thing, readings with known answers, pictures."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.plotting import COLOURS, axes
from transformer_theory.theories import crate
from transformer_theory.theories.crate import trained
from transformer_theory.theories.crate.experiments import departures, emergence, reading, unrolled, variants
from transformer_theory.theories.crate.figures.departures import CHANCE
from transformer_theory.theories.crate.figures.departures import draw as draw_departures
from transformer_theory.theories.crate.figures.emergence import draw as draw_emergence
from transformer_theory.theories.crate.figures.unrolled import gap_panel
from transformer_theory.theories.crate.layer_curves import compressions


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    return trained.digit_split(seed=0)


def test_the_split_shares_nothing_and_keeps_the_classes(data):
    parts = (data.train, data.validation, data.test)
    assert [len(part) for part in parts] == [1257, 180, 360]
    rows = torch.cat([part.tokens.flatten(1) for part in parts])
    assert len(rows.unique(dim=0)) == len(rows)
    for part in parts:
        assert_close(torch.bincount(part.labels) / len(part), torch.full((10,), 0.1), atol=0.02, rtol=0)


def test_soft_thresholding_is_the_optimal_code():
    bases = crate.random_subspaces(3, 12, 4, generator=generator())
    tokens, whole = gaussian(20, 12), bases.transpose(0, 1).flatten(1)
    code = unrolled.optimal_code(tokens, bases, lam=0.3)
    assert_close(code, crate.fista(tokens, torch.cat([whole, -whole], 1), lam=0.3).code, atol=1e-8, rtol=0)
    assert 0.05 < float((code != 0).double().mean()) < 0.5


def test_unrolled_coding_falls_to_the_optimum():
    result = crate.Unrolled.quick().run()
    for name in ("ISTA", "FISTA"):
        gap = result.arrays[f"crate/gap/{name}"]
        assert gap[-1] < 1e-3 * gap[0]
    assert (np.diff(result.arrays["crate/gap/ISTA"]) <= 1e-12).all()


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
    networks = {name: make(data.train, seed=0, dim=16, depth=2) for name, make in departures.NETWORKS.items()}
    assert {name for undone in departures.DEPARTURES.values() for name in undone} == networks.keys() - {"released"}
    inputs = data.test.tokens[:3].float()
    outputs = {name: model(inputs).detach() for name, model in networks.items()}
    for name, output in outputs.items():
        assert torch.isfinite(output).all()
        assert name == "released" or not torch.allclose(output, outputs["released"]), f"{name} changes nothing"
    assert not any("norm" in name for name, _ in networks["no layer norms"].transformer.named_parameters())
    assert reading.trained_incoherence(networks["U orthonormal"]) < 1e-5 < 0.3 < reading.trained_incoherence(networks["released"])


@pytest.mark.parametrize("attention", [crate.ReleasedAttention, crate.ReleasedTokenStatisticsAttention])
def test_alignment_of_the_output_matrix_is_one_where_it_is_tied(data, attention):
    model = trained.crate(data.train, seed=0, attention=attention, dim=16, depth=2)
    assert abs(reading.output_alignment(model)) < 0.3
    with torch.no_grad():
        for _, _, block in compressions(model):
            block.to_out[0].weight.copy_(3 * block.qkv.weight.T)
    assert reading.output_alignment(model) == pytest.approx(1)


def test_only_the_causal_form_keeps_the_future_out():
    assert departures._leak(crate.CausalReleasedAttention, 16) == 0
    assert departures._leak(crate.ReleasedAttention, 16) > 0.01


def test_variants_have_the_parameters_that_are_stated(data):
    d, depth = 16, 2
    counts = {
        (a, s): trained.parameters(variants._network(data, a, s, seed=0, dim=d, depth=depth))
        for a in variants.ATTENTION
        for s in variants.SPARSIFY
    }
    for (attention, _), count in counts.items():
        more = {"exact": 0, "paper": 0, "released": depth * (d * d + d), "token statistics": depth * 4}[attention]
        assert count == counts["exact", "one ISTA step"] + more


def values_at(ax, colour):
    return [float(line.get_xdata()[0]) for line in ax.get_lines() if line.get_color() == colour and line.get_linestyle() != "None"]


def test_chance_is_drawn_where_networks_are_near_it_and_takes_no_room_where_they_are_not():
    near, far = np.full((2, 3, 2), 0.12), np.full((2, 3, 2), 0.96)
    far[1] = 0.98
    for table, seen in ((near, True), (far, False)):
        ax = draw_departures(table, ["released", "other"]).axes[0]
        assert CHANCE in values_at(ax, COLOURS["null"])
        assert (ax.get_xlim()[0] <= CHANCE) == seen


def test_a_curve_that_is_cut_off_says_where():
    arrays = {"crate/gap/ISTA": np.array([1.0, 1e-3]), "crate/gap/FISTA": np.array([1.0, 1e-15])}
    for gaps, said in ((arrays, ["rounding: less is drawn here"]), (arrays | {"crate/gap/FISTA": np.array([1.0, 1e-5])}, [])):
        _, (ax,) = axes()
        gap_panel(ax, gaps)
        assert [text.get_text() for text in ax.texts if "drawn here" in text.get_text()] == said


def test_no_mark_of_emergence_lies_on_the_edge():
    rng = np.random.default_rng(0)
    arrays = {f"crate/emergence/{way}": rng.random((2, 3, 3)) for way in emergence.WAYS}
    for name in emergence.NETWORKS:
        arrays |= {
            f"crate/emergence/{name}/images": rng.random((3, 3, 8, 8)),
            f"crate/emergence/{name}/attention": rng.random((3, 4, 4, 4)),
        }
        arrays[f"crate/emergence/{name}/components"] = rng.random((3, 3, 4, 4))
    figure = draw_emergence(arrays, list(emergence.NETWORKS), emergence.WAYS)
    panels = [ax for ax in figure.axes if ax.get_title(loc="left").startswith("IoU")]
    largest = max(arrays[f"crate/emergence/{way}"].max() for way in emergence.WAYS)
    assert len(panels) == 2
    assert all(ax.get_xlim()[1] > 1.05 * largest for ax in panels)
