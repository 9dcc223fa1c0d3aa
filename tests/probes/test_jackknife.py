"""Intervals over inputs: states of groups of sequences are merged, and the jackknife is that of the book."""

import math
import weakref

import pytest
import torch
from scipy.stats import t

from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Metric
from transformer_theory.core.statistics import place_of
from transformer_theory.models import ViT, build
from transformer_theory.probes.jackknife import OVER_INPUTS, groups_of, with_intervals, without_each_group
from transformer_theory.probes.measure import metrics_of, with_general
from transformer_theory.probes.passes import batches, measure_metrics
from transformer_theory.theories import choose

ENTROPY = "attention entropy"


def network():
    sizes = {"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2}
    return build(lambda: ViT.for_images(**sizes), torch.Generator().manual_seed(0)).eval()


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def test_groups_hold_every_sequence_once():
    for n in (1, 2, 7, 8, 9, 40):
        groups = groups_of(n)
        assert sorted(torch.cat(groups).tolist()) == list(range(n))
        assert len(groups) == min(n, 8)
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize("rounds", [1, 4, 99])
def test_merged_states_are_those_of_all_sequences(rounds):
    """Every metric of every theory, without each of three groups, against a measurement of the rest alone; a
    metric that permutes sequences within a batch depends on the batches.
    """
    model, (x, y) = network(), images(9)

    def metrics():
        return with_general(metrics_of(choose(None)))

    options = {"batch_size": 3, "groups": 3, "name": "net"}
    whole, without = without_each_group(model, x, y, metrics, rounds=rounds, **options)
    for number, rows in enumerate([whole, *without]):
        kept = torch.tensor([i for i in range(9) if number == 0 or i % 3 != number - 1])
        alone, _ = measure_metrics(
            model, batches(x[kept], y[kept], 3), metrics(), name="net", draws=0, n=len(kept)
        )
        expected = {place_of(row): row.value for row in alone if row.value is not None}
        found = {
            place_of(row): row.value
            for row in rows
            if row.value is not None and row.theory not in ("particles", "vision")
        }
        assert len(found) > 50
        differing = {
            place: (value, expected[place])
            for place, value in found.items()
            if place in expected and not math.isclose(value, expected[place], rel_tol=1e-4, abs_tol=1e-6)
        }
        # the queries of the margin and the pairs of doubled keys are drawn from what was stored
        assert {place[0] for place in differing} <= {"attention_svm", "length"}, differing


def test_the_interval_is_that_of_the_delete_a_group_jackknife():
    def row(value: float, **columns) -> Measurement:
        return Measurement("network", "network", "q", value, layer=0, head=1, **columns)

    without = [[row(1.0)], [row(2.0)], [row(6.0)]]
    (found,) = with_intervals([row(5.0)], [row(4.0)], without)
    # the mean is 3, and the squares add up to 14; two thirds of that are the squared standard error
    half = float(t.ppf(0.975, 2)) * math.sqrt(2 / 3 * 14)
    assert found.interval == pytest.approx((4 - half, 4 + half))
    assert (found.value, found.interval_kind) == (5.0, OVER_INPUTS)
    (bounded,) = with_intervals([row(5.0, bounds=(0.0, 7.0))], [row(4.0)], without)
    assert bounded.interval == (0.0, 7.0)
    own = row(5.0, interval=(4.0, 6.0), interval_kind="over samples")
    assert with_intervals([own], [row(4.0)], without) == [own]
    (unknown,) = with_intervals([row(5.0)], [row(4.0)], [[row(1.0)], [], [row(6.0)]])
    assert unknown.interval is None


def test_one_sequence_has_no_interval():
    model, (x, y) = network(), images(1)
    assert without_each_group(model, x, y, lambda: with_general([]), batch_size=1) == ([], [])


def test_rounds_hold_the_states_of_a_part_of_the_metrics():
    model, (x, y) = network(), images(9)
    alive, most = weakref.WeakSet(), []

    class Kept(Metric):
        kinds = ("features",)

        def update(self, activations) -> None:
            self.sums[0,] = torch.zeros(1)
            alive.add(self)
            most.append(sum(bool(metric.sums) for metric in alive))

        def compute(self, *, draws=0, generator=None):
            return [Measurement("network", "network", str(id(self)), 1.0)]

    for rounds, expected in ((1, 12), (2, 6), (4, 3), (9, 3)):
        most.clear()
        without_each_group(
            model, x, y, lambda: [Kept() for _ in range(4)], batch_size=9, groups=3, rounds=rounds
        )
        assert max(most) == expected
