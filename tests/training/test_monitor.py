"""Monitors: attention of a few images, features with classes of many, encoders on whole images, nulls of
untrained networks.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.problems.image_trainings import noise
from tests.problems.networks import theory_metrics
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.statistics import EQUAL_SCALE, UNTRAINED
from transformer_theory.core.theory import InNetworks
from transformer_theory.metrics import neural_collapse, unit_norm
from transformer_theory.metrics import rate_reduction as delta
from transformer_theory.models import build
from transformer_theory.models.image_networks import Pixels, Sizes
from transformer_theory.probes.measure import headline_mean, mean_over_heads, with_nulls
from transformer_theory.training import monitor
from transformer_theory.training.monitor import Monitor, measured_network
from transformer_theory.training.objectives import CrossEntropy, MaskedAutoencoding, Objective
from transformer_theory.training.objectives.protocol import scaled

SIZES = Sizes(image_size=8, channels=1, num_classes=3, patch_size=4, dim=8, depth=1, heads=2)
IMAGES = noise(40)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch) -> None:
    limits = {
        "SAMPLES": 20,
        "SAMPLES_BY_CLASS": 30,
        "PER_PASS": 18,
        "PER_PASS_BY_CLASS": 25,
        "UNTRAINED_NETWORKS": 2,
    }
    for name, value in limits.items():
        monkeypatch.setattr(monitor, name, value)


def network(seed: int = 0, objective: Objective | None = None) -> Pixels:
    made = build(
        lambda: (objective or CrossEntropy()).network("crate", SIZES), torch.Generator().manual_seed(seed)
    )
    return Pixels.centring(made, IMAGES.pixels)


def test_classes_are_measured_on_more_images_than_attention():
    model, tokens = network(), []
    watched = Monitor(
        IMAGES,
        lambda: theory_metrics("rate_reduction"),
        name="crate",
        untrained=lambda number: network(1 + number),
    )
    rows = {(row.quantity, row.head): row for row in watched.measure(model, 0)}
    model.network.transformer.layers[0].register_forward_hook(
        lambda module, inputs, out: tokens.append(out[:, 0].detach().double())
    )
    model.eval()(scaled(IMAGES.pixels[:30], model.mean))
    rate, collapse = rows["rate reduction", None], rows["variability within classes (NC1)", None]
    assert_close(
        rate.value, float(delta(unit_norm(tokens[0]), IMAGES.labels[:30], eps=0.5**0.5)), rtol=1e-5, atol=0
    )
    assert_close(collapse.value, neural_collapse(tokens[0], IMAGES.labels[:30]).nc1, rtol=1e-4, atol=0)
    assert rate.n == collapse.n == 30
    assert {row.split for row in rows.values()} == {"validation"}

    entropy = rows["attention entropy", 1]
    assert entropy.n == 20
    others = [
        row.value
        for n in (1, 2)
        for row in watched.measure(network(n), 5)
        if (row.quantity, row.head) == ("attention entropy", 1)
    ]
    assert entropy.null == Null("untrained networks", tuple(others))
    assert rate.null.kind == "permuted labels"


def test_a_masked_autoencoder_is_measured_in_its_encoder_on_whole_images():
    """No mask is drawn, the decoder is not measured, and the network stays in training mode."""
    model, made = (
        network(0, MaskedAutoencoding()).train(),
        [network(1 + number, MaskedAutoencoding()) for number in range(2)],
    )
    before = torch.get_rng_state()
    rows = Monitor(IMAGES, tuple, name="crate", untrained=made.__getitem__).measure(model, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert {row.layer for row in rows} == {0}
    encoders = Monitor(IMAGES, tuple, name="crate", untrained=lambda number: measured_network(made[number]))
    assert rows == encoders.measure(measured_network(model), 3)


def test_memories_of_other_metrics_are_rejected():
    watched = Monitor(IMAGES, tuple, name="crate", untrained=network)
    with pytest.raises(ValueError, match="the state of 5 metrics was expected, got one of 4"):
        watched.load_persistent_state([{}] * 4)


def test_means_over_heads_average_values_and_draws():
    rows = [
        Measurement(
            "crate", "in network", "q", float(head), layer=0, head=head, nulls=(Null("n", (head, 10.0)),)
        )
        for head in range(3)
    ]
    rows.append(replace(rows[0], layer=1, nulls=(), value=5.0))
    first, second = mean_over_heads([*rows, replace(rows[0], value=None, reason="none")])
    assert (first.value, first.head, first.null) == (1.0, None, Null("n", (1.0, 10.0)))
    assert (second.value, second.layer, second.null) == (5.0, 1, None)


def test_a_headline_of_a_network_has_all_its_nulls():
    """Two heads in two layers; a test on other inputs has a null of its own, with the value on
    these inputs.
    """
    in_networks = InNetworks(metrics=lambda: (), headline="q", side="<=")

    def rows(*values: float, kind: str = "", **columns) -> list[Measurement]:
        return [
            Measurement(
                "joma",
                "in network",
                "q",
                value,
                layer=layer,
                head=0,
                nulls=(Null(kind, (value - 1, value + 1)),) if kind else (),
                **columns,
            )
            for layer, value in enumerate(values)
        ]

    untrained = [rows(1.0, 2.0, step=0), rows(3.0, 4.0, step=0)]
    measured = [*rows(9.0, 9.0, step=0), *rows(5.0, 7.0, step=3, kind="flips")]
    networks = {UNTRAINED: untrained}
    mean = headline_mean("joma", in_networks, measured, networks=networks)
    assert (mean.value, mean.layer, mean.head, mean.step, mean.side) == (6.0, None, None, None, "<=")
    assert mean.nulls == (Null("flips", (5.0, 7.0)), Null(UNTRAINED, (1.5, 3.5)))
    assert mean.note == "mean over layers and heads after 3 steps"
    assert headline_mean("joma", in_networks, measured).nulls == (Null("flips", (5.0, 7.0)),)

    # copies of the network are the first null; they were measured on fewer inputs, and so was the network
    networks = {UNTRAINED: untrained, EQUAL_SCALE: [rows(0.0, 1.0), rows(2.0, 3.0), rows(4.0, 5.0)]}
    mean = headline_mean("joma", in_networks, measured, networks=networks, beside=rows(8.0, 9.0))
    assert mean.value == 6.0
    assert mean.nulls[0] == Null(EQUAL_SCALE, (0.5, 2.5, 4.5), 8.5)
    assert mean.nulls[1:] == (Null("flips", (5.0, 7.0)), Null(UNTRAINED, (1.5, 3.5)))
    row = with_nulls(measured[2:], networks, rows(8.0, 9.0))[1]
    assert row.nulls == (Null(EQUAL_SCALE, (1.0, 3.0, 5.0), 9.0), Null("flips", (6.0, 8.0)))
    bare = with_nulls(rows(5.0, 7.0), networks)[0]
    assert bare.nulls == (Null(EQUAL_SCALE, (0.0, 2.0, 4.0)), Null(UNTRAINED, (1.0, 3.0)))

    networks = {UNTRAINED: untrained}
    answers = rows(4.0, 5.0, kind="other inputs", at={"test": "exchanged"})
    tested = headline_mean("joma", in_networks, measured, networks=networks, answers=answers)
    assert (tested.value, tested.nulls[0]) == (6.0, Null("other inputs", (3.5, 5.5), 4.5))
    # a head without draws: the null is known, and has none
    lacking = [measured[2], replace(measured[3], nulls=())]
    assert headline_mean("joma", in_networks, lacking, networks=networks).nulls[0] == Null("flips", ())
    assert headline_mean("joma", in_networks, [], networks=networks) is None
