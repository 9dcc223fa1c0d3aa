"""The cost of a measurement, the memory that is counted and that is free, and the plan that fits a budget."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory.core import memory
from transformer_theory.core.metric import Metric
from transformer_theory.core.statistics import EQUAL_NORM, EQUAL_SPECTRUM, HELD_INPUTS, UNTRAINED
from transformer_theory.core.threads import _limited as limited
from transformer_theory.metrics.networks import AttentionStatistics, Geometry
from transformer_theory.probes import cost as costs
from transformer_theory.probes.cost import SPARE, Cost, Part, Work, estimate, plan
from transformer_theory.probes.memory import TensorMemory, available_memory

MIB, GIB = 2**20, 2**30


def work(fixed: float = 0.0, each: float = 0.0, *, size: float = 0.0) -> Work:
    return Work(Part(fixed, each), Part(0.0, size))


def made_up(
    *, forward=0.1, update=1.0, drawn=2.0, fixed=0.0, size=GIB, kept=0.0, weights=0, copy=0.0, tested=1.0
) -> Cost:
    """Seconds per sequence of a pass, of a measured one and of one with draws, and the share of the metrics
    that are tested; bytes per sequence.
    """
    nothing = work()
    return Cost(
        work(0.0, forward, size=0.0),
        work(fixed, update, size=size),
        nothing,
        work(fixed, drawn, size=size),
        nothing,
        (tested, 1.0),
        Part(0.0, kept),
        weights,
        copy,
    )


# --- memory


def test_the_peak_of_a_case_made_by_hand():
    x = torch.zeros(MIB)  # 4 MiB, before the block
    with TensorMemory() as counted:
        y = x + 1  # 4
        z = torch.cat([y, y])  # 4 + 8
        view = z[: MIB // 2].reshape(2, -1)  # the same storage
        del y  # 8
        s = z.sum()  # and four bytes
        del z  # the view keeps the storage
        live = counted.live
        w = view.double()  # 8 + 4
        del view, w, s
        y = x.neg()
    assert live == 8 * MIB + 4
    assert counted.peak == 12 * MIB + 4
    assert counted.live == 4 * MIB
    del y
    assert counted.live == 0


def test_tensors_from_before_are_not_counted_even_if_an_operation_returns_them():
    x = torch.zeros(MIB)
    with TensorMemory() as counted:
        x.t().add_(1)
        x.view(2, -1)[0].mul_(2)
    assert counted.peak == 0


def test_tensors_without_values_need_no_memory():
    with TensorMemory() as counted:
        torch.zeros(MIB, device="meta").add(1)
    assert counted.peak == 0


def test_storages_of_one_address_are_counted_anew():
    with TensorMemory() as counted:
        for _ in range(5):
            torch.zeros(MIB)
    assert counted.peak == 4 * MIB
    assert counted.live == 0


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files of a system that the test writes."""
    files = {name: tmp_path / name for name in ("meminfo", "max", "current")}
    monkeypatch.setattr(memory, "MEMINFO", files["meminfo"])
    monkeypatch.setattr(memory, "GROUPS", ((files["max"], files["current"]),))
    return files


def test_available_memory_is_that_of_the_machine_or_of_the_control_group(system, tmp_path):
    system["meminfo"].write_text("MemTotal:  9000 kB\nMemAvailable:    5000 kB\n")
    assert available_memory() == 5_000 * 1024
    system["max"].write_text("max\n")
    system["current"].write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 500000\n")
    assert available_memory() == 5_000 * 1024
    system["max"].write_text("4000000\n")
    assert available_memory("cpu") == 4_000_000 - 3_000_000 + 500_000


def test_available_memory_of_a_system_that_does_not_say(system, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: 10.0 * GIB)
    assert available_memory() == 5 * GIB
    monkeypatch.setattr(memory, "memory", lambda: math.inf)
    assert available_memory() == 4 * GIB


def test_available_memory_of_a_gpu(monkeypatch):
    calls = {"mem_get_info": (7 * GIB, 80 * GIB), "memory_reserved": 3 * GIB, "memory_allocated": GIB}
    for name, value in calls.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert available_memory("cuda") == 9 * GIB


# --- the estimate


@each_case(
    ("one", "many", "n", "part"),
    [
        (5.0, 7.0, 2, Part(3.0, 2.0)),
        (5.0, 11.0, 4, Part(3.0, 2.0)),
        (5.0, 5.0, 2, Part(5.0, 0.0)),
        (5.0, 4.0, 2, Part(5.0, 0.0)),
        (5.0, 12.0, 2, Part(0.0, 6.0)),
        (5.0, 24.0, 4, Part(0.0, 6.0)),
        (5.0, 5.0, 1, Part(0.0, 5.0)),
    ],
)
def test_a_part_through_two_values(one, many, n, part):
    assert Part.through(one, many, n) == part


class Network(nn.Module):
    """A network of one block of attention."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens, attention_mask=None):
        return tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]


class Wasteful(Metric):
    """Keeps 1 MiB and 2 MiB for each sequence of a pass, uses 3 MiB more for each during it, and 16 for the
    rows; draws need 4 MiB more for each sequence of a pass.
    """

    kinds = ("attention",)

    def reset(self) -> None:
        super().reset()
        self.stored: list[torch.Tensor] = []
        self.labels: list = []

    def update(self, activations) -> None:
        n = len(activations.tokens)
        self.stored.append(torch.zeros((1 + 2 * n) * MIB, dtype=torch.uint8))
        torch.zeros((3 + 4 * bool(self.draws)) * n * MIB, dtype=torch.uint8)
        self.labels.append(activations.labels)

    def merge(self, other) -> None:
        self.stored = (self.stored + other.stored)[:5]

    def compute(self, *, draws=0, generator=None):
        torch.zeros(16 * MIB, dtype=torch.uint8)
        return ()


def test_memory_of_the_parts_of_a_measurement():
    torch.manual_seed(0)
    inputs = torch.randn(3, 4, 8)
    cost = estimate(Network(), inputs, lambda: [Wasteful()], draws=5, memory=60 * MIB)
    small = 0.01 * MIB  # activations of the network
    assert cost.kept.fixed == pytest.approx(1 * MIB, abs=small)
    assert cost.kept.each == pytest.approx(2 * MIB, abs=small)
    assert cost.update.bytes.fixed == pytest.approx(1 * MIB, abs=small)
    assert cost.update.bytes.each == pytest.approx(5 * MIB, abs=small)
    # with draws 4 MiB more for each of the two sequences, of which nine tenths count for the pass
    assert cost.update_drawn.bytes.each == pytest.approx(5.4 * MIB, abs=small)
    assert cost.update_drawn.bytes.fixed == pytest.approx(8.2 * MIB, abs=small)
    # two passes of two sequences have 5 MiB each
    assert cost.kept.most == pytest.approx(10 * MIB, abs=small)
    assert cost.compute.bytes.most == pytest.approx(26 * MIB, abs=small)
    assert cost.compute.bytes.fixed == pytest.approx(17 * MIB, abs=small)
    assert cost.compute.bytes.each == pytest.approx(2 * MIB, abs=small)
    assert cost.forward.bytes.of(1) < small
    assert cost.weights == 4 * (4 * 8 * 8 + 4 * 8)
    # four sequences in two passes: 1 + 2 * 2 kept, then a pass of two; the rows need 17 + 2 * 4
    assert cost.bytes(4, 2) == pytest.approx(1.5 * 25 * MIB, abs=0.1 * MIB)
    assert cost.bytes(4, 4, drawn=True) == pytest.approx(1.5 * 29.8 * MIB, abs=0.1 * MIB)


def test_metrics_that_keep_no_more_sequences():
    """Five passes of two sequences at most, 5 MiB each, are kept of 64 sequences."""
    cost = estimate(Network(), torch.randn(64, 4, 8), lambda: [Wasteful()], draws=0, memory=200 * MIB)
    assert cost.kept.of(2) == pytest.approx(5 * MIB, abs=0.1 * MIB)
    assert cost.kept.of(64) == pytest.approx(25 * MIB, abs=0.1 * MIB)
    assert cost.bytes(64, 2) == pytest.approx(1.5 * 41 * MIB, abs=0.1 * MIB)
    for n, available in ((64, 30 * MIB), (65, 200 * MIB)):  # too large to be tried, and too many
        cost = estimate(Network(), torch.randn(n, 4, 8), lambda: [Wasteful()], draws=0, memory=available)
        assert cost.kept.most == math.inf


def clock_of(monkeypatch) -> SimpleNamespace:
    """Replaces the clock by one that only the test moves."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(costs, "time", clock)
    return clock


class Slow(Metric):
    """Takes 10 s for the first pass ever, then 2 s and 3 s for each sequence, with draws 5 s more for each;
    the rows take 4 s and 1 s per sequence, with draws twice that.
    """

    kinds = ("attention",)
    first = True
    passes: list

    def __init__(self, clock, passes, speed=1.0):
        self.clock, self.passes, self.speed, self.seen = clock, passes, speed, 0
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.seen = 0

    def update(self, activations) -> None:
        n = len(activations.tokens)
        self.clock.now += self.speed * (2 + 3 * n + 5 * n * bool(self.draws)) + 10 * Slow.first
        Slow.first = False
        self.seen += n
        self.passes.append((n, self.draws, activations.labels))

    def merge(self, other) -> None:
        self.seen += other.seen

    def compute(self, *, draws=0, generator=None):
        self.clock.now += self.speed * (4 + self.seen) * (2 if draws else 1)
        return ()


def test_seconds_of_the_parts_of_a_measurement_without_the_first_call(monkeypatch):
    clock, passes = clock_of(monkeypatch), []
    monkeypatch.setattr(Slow, "first", True)

    def copy():
        clock.now += 0.25

    def tested() -> list[Metric]:
        return [Slow(clock, passes, speed=0.5)]

    inputs, labels = torch.randn(5, 4, 8), torch.tensor([1, 1, 0, 0, 1])
    cost = estimate(
        Network(),
        inputs,
        lambda: [Slow(clock, passes)],
        tested=tested,
        labels=labels,
        draws=7,
        copy=copy,
        patience=60,
    )
    assert cost.update.seconds == Part(2.0, 3.0)
    assert cost.compute.seconds == Part(4.0, 1.0, 12.0)  # the states of 2 sequences, doubled twice for 5
    # draws of two sequences: 10 s more for the pass and 6 s for the rows, a tenth of which grows
    assert cost.update_drawn.seconds == Part(11.0, 3.5)
    assert cost.compute_drawn.seconds == Part(9.4, pytest.approx(1.3), 24.0)
    assert cost.forward.seconds == Part(0.0, 0.0)
    assert cost.tested == (0.5, 0.5)
    assert cost.copy == 0.25
    assert [(n, draws) for n, draws, _ in passes] == [(1, 0), (1, 0), (2, 0), (2, 7), (2, 0)]
    assert passes[2][2].tolist() == [1, 0]  # two classes
    # 5 sequences in passes of two: three passes, and the rows
    assert cost.seconds(5, 2) == 3 * 2 + 5 * 3 + 4 + 5
    assert cost.seconds(5, 2, drawn=True) == pytest.approx(3 * 11 + 5 * 3.5 + 9.4 + 5 * 1.3)
    assert cost.seconds_tested(5, 2) == (3 * 2 + 5 * 3 + 4 + 5) / 2


def test_a_dear_sequence_is_measured_once_and_counts_as_it_is(monkeypatch):
    clock, passes = clock_of(monkeypatch), []
    monkeypatch.setattr(Slow, "first", False)
    cost = estimate(Network(), torch.randn(3, 4, 8), lambda: [Slow(clock, passes)], draws=7, patience=9)
    assert [(n, draws) for n, draws, _ in passes] == [(1, 0), (1, 7)]
    assert cost.update.seconds == Part(0.0, 5.0)
    assert cost.compute.seconds == Part(0.0, 5.0)
    assert cost.update_drawn.seconds == Part(0.0, 10.0)
    assert cost.compute_drawn.seconds == Part(0.0, 10.0)


def test_the_longest_sequence_and_one_of_another_class_are_measured():
    mask = (torch.arange(5) < torch.tensor([[2], [5], [5], [3], [4]])).long()
    inputs = {"tokens": torch.randn(5, 5, 8), "attention_mask": mask}
    chosen = costs._longest(inputs, torch.tensor([0, 1, 1, 0, 1]))
    assert chosen.tolist() == [1, 3]
    assert costs._longest(inputs, None).tolist() == [1, 4]
    assert costs._longest(torch.randn(1, 4, 8), None).tolist() == [0]
    assert costs._longest(torch.randn(6, 4, 8), None).tolist() == [0, 1]


def test_fewer_sequences_are_measured_than_fit_the_memory(monkeypatch):
    clock_of(monkeypatch)
    kept = []

    class Large(Wasteful):
        def update(self, activations) -> None:
            kept.append(len(activations.tokens))
            super().update(activations)

    # one sequence needs 6 MiB in its pass and 19 for its rows
    for limit, last in ((2 * 29 * MIB, 2), (29 * MIB, 1)):
        kept.clear()
        estimate(Network(), torch.randn(6, 4, 8), lambda: [Large()], draws=0, memory=limit)
        assert kept[-1] == last


def test_one_sequence_and_a_network_without_attention():
    network = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    cost = estimate(network, torch.randn(1, 4, 8), lambda: [AttentionStatistics(), Geometry()], draws=0)
    assert cost.update.seconds.fixed == 0.0
    assert cost.update_drawn == cost.update
    assert cost.weights == 4 * 3 * (64 + 8)


def test_the_random_state_and_the_mode_are_kept():
    network = Network().train()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    estimate(network, torch.ones(2, 4, 8), lambda: [AttentionStatistics()], draws=2)
    assert torch.equal(torch.rand(4), expected)
    assert network.training


# --- the plan


def test_all_copies_fit_on_half_of_the_sequences():
    # 64 x 2 + 32 + 32 + (99 + 27 + 3) x 32 = 4,320 s, and 9 x 32 x .1 for the held inputs
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=82)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (64, 32, 99)
    assert chosen.other_copies == {HELD_INPUTS: 9, EQUAL_SPECTRUM: 9, EQUAL_NORM: 9, UNTRAINED: 3}
    assert chosen.seconds == pytest.approx(64 * 2 + 32 + 32 + 129 * 32 + 9 * 32 * 0.1)
    assert chosen.batch == 32
    assert chosen.bytes == 32 * GIB
    assert chosen.reason == ""
    assert chosen.later == pytest.approx(32 + 492)  # groups, and a tenth of the time


def test_fewer_sequences_are_tested_before_there_are_fewer_copies():
    # the budget is 60 x 31 x .9 = 1,674 s: 128 + t (1 + 129 + .9) for t tested, and 56 for the groups
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=31)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (64, 11, 99)
    assert sum(chosen.other_copies.values()) == 30
    assert chosen.seconds == pytest.approx(128 + 11 * 130.9 + 56)
    assert str(chosen) == (
        "batches of 32, 64 sequences, 99 copies on 11 of them; about 27 minutes and 32 GiB"
    )


def test_further_copies_get_what_is_left():
    # 640 s: 128 + 4 + 64 + 99 x 4 = 592; two copies with held inputs of 4.4 s, and so on until 48 s are spent
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=640 / 54)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (64, 4, 99)
    assert chosen.other_copies == {HELD_INPUTS: 9, EQUAL_SPECTRUM: 2}
    assert chosen.seconds == pytest.approx(592 + 9 * 4.4 + 2 * 4)


def test_the_network_itself_has_fewer_sequences_before_there_are_fewer_copies():
    # 520 s: 4 tested sequences need 400; 64 x 2 and 64 for groups do not fit, 32 x 2 and 32 do
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=520 / 54)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (32, 4, 99)
    assert chosen.other_copies == {HELD_INPUTS: 5}  # 24 s are left, 4.4 each
    # 306 s: 4 tested sequences do not fit, 2 do, beside 32 x 2 and 32: 96 + 200
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=306 / 54)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (32, 2, 99)
    assert chosen.other_copies == {HELD_INPUTS: 4}


def test_fewer_copies_rather_than_fewer_than_four_sequences():
    # 54 s: four sequences 8, groups of three 3 and the tested one 1, hence 42 copies; 39 would do
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=1)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (4, 1, 42)
    assert chosen.seconds == pytest.approx(54)
    # 51 s suffice for 39, 50 s do not
    assert plan(made_up(), sequences=64, memory=40 * GIB, minutes=51 / 54).copies == 39
    assert plan(made_up(), sequences=64, memory=40 * GIB, minutes=50 / 54).sequences == 1


def test_fewer_copies_but_at_least_nineteen():
    # 50 s: of one sequence 2 + 48 copies
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=50 / 54)
    assert (chosen.sequences, chosen.tested, chosen.copies) == (1, 1, 48)
    assert chosen.other_copies == {}
    assert chosen.seconds == pytest.approx(50)


def test_too_few_minutes_for_a_test():
    # 18 s: one sequence and 16 copies; 19 copies need 21 s, in 1 minute of which 54 s are planned
    chosen = plan(made_up(), sequences=64, memory=40 * GIB, minutes=1 / 3)
    assert (chosen.copies, chosen.tested, chosen.other_copies) == (0, 0, {})
    assert chosen.reason == "too few minutes for a test: 1 minute would do"
    assert chosen.sequences == 4  # 8 s, and 4 for groups, of the 18
    assert plan(made_up(), sequences=64, memory=40 * GIB, minutes=1).copies >= 19
    assert str(chosen) == (
        "batches of 4, 4 sequences, too few minutes for a test: 1 minute would do; about 12 s and 4 GiB"
    )


@pytest.mark.parametrize("seconds", [3.0, 11.0, 47.0])
def test_the_minutes_that_would_do_do(seconds):
    cost = made_up(update=seconds, drawn=2 * seconds, copy=1.0)
    short = plan(cost, sequences=2, memory=40 * GIB, minutes=2 * seconds / 54)
    assert short.copies == 0
    minutes = int(short.reason.split(": ")[1].split()[0])
    assert plan(cost, sequences=2, memory=40 * GIB, minutes=minutes).copies >= 19
    assert plan(cost, sequences=2, memory=40 * GIB, minutes=minutes - 1).copies == 0


def test_one_sequence_is_tested_itself():
    chosen = plan(made_up(), sequences=1, memory=40 * GIB)
    assert (chosen.batch, chosen.sequences, chosen.tested, chosen.copies) == (1, 1, 1, 99)
    assert chosen.seconds == pytest.approx(2 + 129 + 9 * 0.1)  # no second measurement of the network
    assert str(chosen).startswith("batches of 1, 1 sequence, 99 copies; about 2 minutes")


def test_two_sequences_one_is_tested():
    chosen = plan(made_up(), sequences=2, memory=40 * GIB)
    assert (chosen.sequences, chosen.tested) == (2, 1)


def test_the_batch_fits_the_memory():
    chosen = plan(made_up(weights=GIB), sequences=64, memory=6 * GIB, minutes=80)
    assert chosen.batch == 4
    assert chosen.bytes == 5 * GIB  # 4 sequences, and the weights of the copy
    assert plan(made_up(weights=GIB), sequences=64, copies=0, memory=4 * GIB, minutes=80).batch == 4


def test_the_number_of_sequences_fits_the_memory_of_their_states():
    # states of 1 GiB per sequence: 15 earlier ones and one in the pass fit, 32 do not
    chosen = plan(made_up(kept=GIB), sequences=64, memory=16 * GIB, minutes=80)
    assert chosen.sequences == 16
    assert chosen.bytes <= 16 * GIB


def test_a_fixed_part_of_a_pass_is_paid_for_each_pass():
    cost = made_up(update=0.0, drawn=0.0, fixed=1.0, forward=0.0)
    chosen = plan(cost, sequences=64, copies=19, memory=8 * GIB, minutes=10, other_copies={})
    assert (chosen.batch, chosen.tested) == (8, 32)
    assert chosen.seconds == pytest.approx(8 + 4 + 8 + 19 * 4)


def test_a_tiny_network_gets_everything():
    cost = made_up(forward=1e-4, update=1e-3, drawn=2e-3, size=MIB)
    chosen = plan(cost, sequences=128, memory=GIB)
    assert (chosen.batch, chosen.sequences, chosen.tested, chosen.copies) == (32, 128, 64, 99)
    assert str(chosen) == "batches of 32, 128 sequences, 99 copies on 64 of them; about 9 s and 0.0312 GiB"


def test_states_of_groups_that_do_not_fit_are_measured_in_rounds():
    """64 sequences in 8 groups: 8 GiB for the states of all, and 8 for those of the union."""
    cost = made_up(kept=GIB / 8, size=0.0)
    for available, rounds in ((16, 1), (15.9, 2), (8, 2), (7, 3), (5, 4)):
        chosen = plan(cost, sequences=64, copies=0, memory=available * GIB, minutes=10**4)
        assert (chosen.sequences, chosen.batch, chosen.rounds) == (64, 32, rounds)
        # each further round costs a forward pass of all sequences
        assert chosen.seconds == pytest.approx(128 + 64 + (rounds - 1) * 64 * 0.1)
    # 1.5 GiB of the memory are needed for a pass of three sequences
    cost = made_up(kept=GIB / 8, size=GIB / 2)
    chosen = plan(cost, sequences=24, copies=0, memory=7.5 * GIB, minutes=10**4)
    assert (chosen.batch, chosen.rounds) == (8, 1)


def test_copies_that_nobody_wants():
    chosen = plan(made_up(), sequences=64, copies=0, memory=40 * GIB)
    assert (chosen.sequences, chosen.tested, chosen.copies, chosen.other_copies) == (64, 0, 0, {})
    assert chosen.seconds == 128 + 64
    assert str(chosen) == "batches of 32, 64 sequences, no copies; about 3 minutes and 32 GiB"


def test_after_the_first_copies_only_what_is_tested_is_measured():
    # 40 s, 10 for the tested ones and 16 for groups; 19 copies of 10 s, 80 and 27 of 2.5, 3 of 10
    chosen = plan(made_up(tested=0.25), sequences=20, memory=40 * GIB, minutes=60)
    assert (chosen.tested, chosen.copies, sum(chosen.other_copies.values())) == (10, 99, 30)
    assert chosen.seconds == pytest.approx(66 + 190 + 107 * 2.5 + 30 + 9 * 10 * 0.1)
    # 36 s: of one sequence 2, 19 copies of 1 s, and 60 of .25
    fewer = plan(made_up(tested=0.25), sequences=2, memory=40 * GIB, minutes=36 / 54)
    assert (fewer.sequences, fewer.tested, fewer.copies) == (1, 1, 79)


def test_fewer_copies_that_the_user_wants_are_enough():
    chosen = plan(made_up(), sequences=1, copies=3, memory=40 * GIB, minutes=6 / 54, other_copies={})
    assert (chosen.copies, chosen.reason) == (3, "")


def test_copies_take_time_to_make():
    slow = plan(made_up(copy=10.0), sequences=2, memory=40 * GIB, minutes=60, other_copies={})
    assert slow.seconds == pytest.approx(4 + 1 + 99 * 11)


def test_synthetic_sequences_take_at_most_their_share():
    # 200 passes of .1 s for each sequence; 15 % of 600 s permit 4
    chosen = plan(made_up(update=0.0, drawn=0.0), sequences=4, memory=40 * GIB, synthetic=200)
    assert chosen.response_sequences == 3
    assert chosen.later == pytest.approx(3 * 20 + 60)
    assert chosen.seconds == pytest.approx(3 * 20 + 9 * 2 * 0.1)
    assert plan(made_up(forward=1e-3), sequences=4, memory=40 * GIB, synthetic=200).response_sequences == 60
    assert plan(made_up(forward=1.0), sequences=4, memory=40 * GIB, synthetic=200).response_sequences == 0
    assert plan(made_up(), sequences=4, memory=40 * GIB).response_sequences == 0


def test_not_even_one_sequence_fits():
    with pytest.raises(
        ValueError, match="one sequence needs 3 GiB of memory beside the network, got 2 GiB; "
    ):
        plan(made_up(size=2 * GIB, weights=GIB), sequences=64, memory=2 * GIB)
    with pytest.raises(ValueError, match="about 22 minutes, got 10 minutes; give more --minutes"):
        plan(made_up(drawn=1_200.0), sequences=64, memory=40 * GIB)


def test_plans_stay_within_the_budget():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        draw = torch.rand(8, generator=generator).tolist()
        update = 10 ** (4 * draw[0] - 3)
        cost = made_up(
            forward=update / 3,
            update=update,
            drawn=update * (1 + 3 * draw[1]),
            fixed=draw[2],
            size=10 ** (7 + 3 * draw[3]),
            kept=10 ** (6 + 2 * draw[4]),
            weights=int(1e9 * draw[5]),
            copy=draw[6],
        )
        n, minutes = 1 + int(100 * draw[7]), 1 + 20 * draw[0]
        budget = {"memory": 4 * GIB, "minutes": minutes}
        too_large = cost.bytes(1, 1, drawn=True) + cost.weights > 4 * GIB
        if too_large or cost.seconds(1, 1, drawn=True) > 60 * minutes * (1 - SPARE):
            with pytest.raises(ValueError, match="one sequence needs"):
                plan(cost, sequences=n, **budget)
            continue
        chosen = plan(cost, sequences=n, **budget)
        assert chosen.seconds <= 60 * minutes * (1 - SPARE) + 1e-6
        assert chosen.bytes <= 4 * GIB
        assert chosen.tested <= max(1, chosen.sequences // 2)
        assert chosen.copies == 0 or chosen.copies >= 19
        assert bool(chosen.reason) == (chosen.copies == 0)
        assert chosen == plan(cost, sequences=n, **budget)


# --- several processes


def test_copies_are_measured_in_as_many_processes_as_fit_the_memory():
    slow = made_up(update=1.0, weights=GIB)
    # copies on half of 8 sequences, one a pass: 1 GiB of weights and 1.5 a process, 1 GiB of weights here
    chosen = [plan(slow, sequences=8, memory=size * GIB, minutes=60, processes=4) for size in (3, 6, 12)]
    assert [each.processes for each in chosen[:1]] == [1]
    for each, size in zip(chosen, (3, 6, 12)):
        batch = min(each.batch, each.tested)
        used = each.processes * (GIB + slow.overhead * batch * GIB) + GIB * (each.processes > 1)
        assert used <= size * GIB
        assert each.bytes >= used or each.processes == 1
    assert chosen[-1].processes > 1
    assert f"in {chosen[-1].processes} processes" in str(chosen[-1])


def test_a_process_has_one_thread_and_copies_take_as_long_as_that_says():
    cost = replace(made_up(update=1.0), alone=1.5)
    one, two = (plan(cost, sequences=8, memory=40 * GIB, minutes=600, processes=p) for p in (1, 2))
    assert (one.processes, two.processes) == (1, 2)
    copies = sum((99, *one.other_copies.values()))
    assert one.tested == two.tested == 4
    # four seconds a copy: six on one thread, two of which run at once and slow each other by a quarter
    beside = 1.25 * 1.5 / 2
    assert one.seconds - two.seconds == pytest.approx(copies * 4.0 * (1 - beside) + 9 * 0.4 * (1 - beside))


def test_fast_copies_stay_in_this_process():
    assert plan(made_up(update=0.01, drawn=0.02), sequences=8, memory=40 * GIB, processes=8).processes == 1


def test_the_first_pass_runs_on_one_thread_and_says_how_much_slower_that_is(monkeypatch):
    clock, threads = clock_of(monkeypatch), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    class Threaded(Slow):
        def update(self, activations) -> None:
            threads.append(limited.get())
            clock.now += 3.0 if limited.get() else 1.0

        def compute(self, *, draws=0, generator=None):
            return ()

    cost = estimate(Network(), torch.randn(3, 4, 8), lambda: [Threaded(clock, [])], draws=0)
    assert threads == [True, False, False]
    assert cost.alone == 3.0
