"""Training, evaluation and measurement on an accelerator. Without one all tests are skipped, as on the
machines of CI.
"""

import copy
from dataclasses import replace

import pytest
import torch

from tests.problems.image_trainings import SMALL, assert_same, interrupting, noise
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.models.image_networks import NETWORKS
from transformer_theory.probes import probe
from transformer_theory.probes.respond import responses
from transformer_theory.theories import list_theories
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.image.evaluate import load_stored_networks, measure_metrics
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.processes import Hardware

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
GPU = Hardware("cuda", "float32")
AUGMENTED = Augmentation(crop=1, flip=0.5, operations=2, cutout=2, mixup=0.8, cutmix=1.0)


def metrics():
    """New metrics of all theories that have any."""
    return [
        metric for theory in list_theories() if theory.in_networks for metric in theory.in_networks.metrics()
    ]


def values(rows) -> dict[tuple, float | None]:
    return {(row.theory, row.quantity, row.setting, row.layer, row.head): row.value for row in rows}


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_every_network_is_trained_and_measured(tmp_path, network):
    settings = replace(SMALL, network=network, augmentation=AUGMENTED, average=0.9)
    result = train((noise(), noise(12, seed=1)), settings, tmp_path / "run", metrics=metrics, hardware=GPU)
    assert result.table.select(quantity="accuracy", split="test")
    # no attention maps
    theories = (
        {"network"} if network in ("crate-exact", "tost") else {"attention_svm", "rate_reduction", "vision"}
    )
    assert {row.theory for row in result.table} >= theories


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_interrupted_training_continues(tmp_path, precision):
    data, hardware = (noise(), noise(12, seed=1)), Hardware("cuda", precision)
    train(data, SMALL, tmp_path / "whole", hardware=hardware)
    with pytest.raises(KeyboardInterrupt):
        train(data, SMALL, tmp_path / "parts", hardware=hardware, callback=interrupting(2))
    train(data, SMALL, tmp_path / "parts", hardware=hardware, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_stored_network_has_the_same_values_on_both_devices(tmp_path):
    train((noise(), noise(12, seed=1)), SMALL, tmp_path / "run", hardware=GPU)
    rows = [
        measure_metrics(
            load_stored_networks([tmp_path / "run"], noise(12, seed=1), device=device)[0],
            noise(12, seed=1),
            metrics=tuple,
        )[0]
        for device in ("cpu", "cuda")
    ]
    here, there = map(values, rows)
    assert here.keys() == there.keys()
    for key, value in here.items():
        assert there[key] == (None if value is None else pytest.approx(value, rel=2e-3, abs=1e-4)), key


@pytest.mark.parametrize("kind", [ViT, CRATE])
def test_all_metrics_and_responses_run_on_the_device(kind):
    tokens = torch.randn(24, 16, 12, generator=torch.Generator().manual_seed(0))
    model = build(
        lambda: kind.for_tokens(16, 12, 4, dim=16, depth=2, heads=2), torch.Generator().manual_seed(1)
    ).eval()
    found = {}
    for device in ("cpu", "cuda"):
        network, rows = copy.deepcopy(model).to(device), []
        with torch.no_grad(), probe(network, metrics(), draws=3) as p:
            p.labels = (torch.arange(24) % 4).to(device)
            network(tokens.to(device))
        rows += p.result().table
        for theory in list_theories():
            rows += responses(
                network,
                theory,
                tokens,
                limits={"sequences": 24, "length": 16},
                generator=torch.Generator().manual_seed(0),
            )
        found[device] = values(rows)
    assert found["cpu"].keys() == found["cuda"].keys()
    same = {key: value is None for key, value in found["cpu"].items()}
    assert same == {key: value is None for key, value in found["cuda"].items()}
