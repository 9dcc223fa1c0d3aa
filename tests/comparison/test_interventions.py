"""Interventions in networks: planted effects are found and have the size that was written, untrained networks
show none, and what cannot be measured says why.
"""

import math
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import transformer_theory as tt
from transformer_theory.comparison.interventions import judged_interventions
from transformer_theory.core.intervention import Control, Intervention, NotChanged
from transformer_theory.core.sources import Source
from transformer_theory.core.statistics import student_interval
from transformer_theory.models import ViT
from transformer_theory.probes.intervene import (
    CHANGED,
    EXCHANGES,
    UNCHANGED,
    Applied,
    Drawing,
    apply_intervention,
    draw_controls,
    recovered_share,
    rows_of,
)
from transformer_theory.probes.sample import ACCURACY, AGREEMENT, LOSS, NEXT, Measure, Sample, at_chance
from transformer_theory.probes.subject import FEWEST, Subject, affordable, batch_size, halves_of

KEPT = "scan_snap/keys that hold 90 % of the weight"
HARD = "attention_svm/all weight on the largest score"
INDUCTION = "induction/induction heads removed"
SMALLEST = 1 / (1 + EXCHANGES)


class Marked(nn.Module):
    """The last token finds the one with a mark among T tokens and returns its class.

    Tokens are [class (4 dimensions), mark, query]; attention has two heads, of which the second is uniform
    and is multiplied by zero.
    """

    def __init__(self, score: float = 30.0):
        super().__init__()
        self.score = nn.Parameter(torch.tensor(score))

    def forward(self, x):
        query = torch.stack([x[..., 5:] * self.score, 0 * x[..., 5:]], 1)  # [batch, heads, tokens, 1]
        key = torch.stack([x[..., 4:5], x[..., 4:5]], 1)
        value = torch.stack([x[..., :4], 0 * x[..., :4]], 1)
        out = nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
        return 10 * out.sum(1)[:, -1]


def marked(n: int = 120, T: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(4, (n, T), generator=generator)
    place = torch.randint(T - 1, (n,), generator=generator)
    x = torch.zeros(n, T, 6)
    x[..., :4] = nn.functional.one_hot(classes, 4)
    x[torch.arange(n), place, 4] = 1.0
    x[:, -1, 5] = 1.0
    return x, classes[torch.arange(n), place]


def effect(result, measure):
    return next(row for row in result.table if row.at.get("measure") == measure and "attention" not in row.at)


def value(result, measure, which):
    return result.select(at={"measure": measure, "attention": which}).one().value


def test_the_key_that_is_needed_is_found():
    x, y = marked()
    result = tt.intervene(Marked(), x, KEPT, labels=y)
    row = effect(result, ACCURACY)
    assert (row.theory, row.kind, row.quantity) == ("scan_snap", "intervention", KEPT.partition("/")[2])
    assert row.value == 0.0
    assert row.n == 120
    assert row.bounds == (-1.0, 0.0)  # all answers are right without the change
    # of 120 sequences none changed: up to 1 - 0.025^(1/120) may, and none can become better
    assert row.interval == pytest.approx((-(1 - 0.025 ** (1 / 120)), 0.0))
    first, second = row.nulls
    assert (first.kind, len(first.draws)) == ("as many random keys", EXCHANGES)
    assert second.kind == "as much weight moved at random keys"
    assert row.side == ">="
    assert first.p(row.value, row.side) == SMALLEST
    # one of eight keys stays: the class is right by chance in the other draws, 1/8 + 7/8 / 4
    assert first.median == pytest.approx(1 / 8 + 7 / 8 / 4 - 1, abs=0.06)
    assert value(result, ACCURACY, UNCHANGED) == value(result, ACCURACY, CHANGED) == 1.0
    loss = effect(result, LOSS)
    assert loss.side == "<="
    assert loss.unit == "nats"
    assert loss.bounds is None
    assert loss.nulls[0].p(loss.value, "<=") == SMALLEST
    assert result.name == "intervene"
    assert result.settings["interventions"] == [KEPT]


def test_the_recovered_share_by_hand():
    """A baseline loses .5 on average, the change .2: 60 % of the loss is avoided."""
    differences, without = torch.tensor([-0.4, 0.0] * 20), torch.tensor([-1.0, 0.0] * 20)
    better = Measure(ACCURACY, lambda *_: without)
    assert recovered_share(differences, without, better) == pytest.approx(0.6)
    assert recovered_share(-differences, -without, Measure(LOSS, lambda *_: without, -1)) == pytest.approx(
        0.6
    )
    # a change that loses more than the baseline recovers less than nothing
    assert recovered_share(2 * without, without, better) == pytest.approx(-1.0)
    # nothing is recovered where the baseline loses nothing, or gains
    assert recovered_share(differences, 0 * without, better) is None
    assert recovered_share(differences, -without, better) is None
    # nor where the interval of its loss reaches 0: one of two sequences
    assert recovered_share(differences[:2], without[:2], better) is None


def test_a_small_score_is_broken_by_hard_selection_of_another_key():
    """Scores of the wrong sign: the class is read by what is missing, and the largest score is useless."""
    x, y = marked()
    result = tt.intervene(Marked(30.0), x, HARD, labels=y)
    assert effect(result, ACCURACY).value == 0.0
    assert effect(result, ACCURACY).nulls[0].p(0.0, ">=") == SMALLEST


def test_an_untrained_network_shows_nothing():
    x, y = marked()
    torch.manual_seed(0)
    model = ViT.for_tokens(8, 6, 4, dim=16, depth=2, heads=2)
    result = tt.intervene(model, x, labels=y)
    rows = [row for row in result.table if "attention" not in row.at]
    reasons = {row.theory: row.reason for row in rows if row.value is None}
    assert set(reasons) == {"induction", "chain_of_thought", "crate", "bottleneck"}
    assert "as in CRATE" in reasons["crate"]
    assert "at least 128 sequences" in reasons["bottleneck"]
    tested = [row for row in rows if row.value is not None]
    assert len({row.theory for row in tested}) >= 10
    for row in tested:
        assert row.side is None
        assert not row.nulls
        assert "not tested: the" in row.note


class Heads(nn.Module):
    """A layer of causal heads: some are written, all others read random keys and write a constant."""

    def __init__(self, heads: int, length: int, active: tuple[int, ...], seed: int):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.noise, self.active = nn.Parameter(torch.randn(heads, length, length, generator=random)), active

    def forward(self, keys, queries, values, constant):
        T = keys.shape[1]

        def only_there(x, elsewhere: torch.Tensor | float = 0.0):
            every = torch.zeros(len(x), len(self.noise), *x.shape[1:]) + elsewhere
            every[:, list(self.active)] = x[:, None]
            return every

        scores = only_there(queries) @ only_there(keys).mT + self.noise[:, :T, :T]
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
        return (scores.softmax(-1) @ only_there(values, constant)).sum(1)


class Repeating(nn.Module):
    """Twenty heads in each of two layers. Head 0 of the first one writes the previous token; some heads of
    the second one, here head 3, are induction heads, and their mean counts. All other heads write a constant:
    in the first layer one that all scores share, in the second one ``idle``, which the network subtracts.
    """

    def __init__(
        self,
        vocabulary: int = 40,
        length: int = 40,
        heads: int = 20,
        score: float = 40.0,
        induction: tuple[int, ...] = (3,),
        idle: torch.Tensor | None = None,
    ):
        super().__init__()
        self.V, self.score = vocabulary, score
        self.idle = torch.full((vocabulary,), 0.5) if idle is None else idle
        self.layers = nn.ModuleList(
            Heads(heads, length, active, seed) for seed, active in enumerate([(0,), induction])
        )

    def forward(self, ids):
        T, number = ids.shape[1], len(self.layers[1].active)
        tokens = nn.functional.one_hot(ids, self.V).float()
        places = torch.eye(T).expand(len(ids), T, T)
        previous = self.layers[0](places.roll(1, -1), self.score * places, tokens, 0.5)
        # the first token, which has no previous one, reads itself
        previous = previous * (torch.arange(T) > 0)[:, None]
        found = self.layers[1](previous, self.score * tokens, tokens, self.idle)
        return 10 * (found - (len(self.layers[1].noise) - number) * self.idle) / number


def test_a_written_induction_head_loses_exactly_its_bigram():
    model = Repeating()
    ids = torch.randint(40, (8, 40), generator=torch.Generator().manual_seed(1))
    result = tt.intervene(model, ids, INDUCTION)
    row = effect(result, NEXT)
    # with the head, logit 10 for the next id; without it, all logits are equal
    with_head = math.log(1 + 39 * math.exp(-10))
    assert value(result, NEXT, UNCHANGED) == pytest.approx(with_head, abs=1e-4)
    assert value(result, NEXT, CHANGED) == pytest.approx(math.log(40), abs=1e-4)
    assert row.value == pytest.approx(math.log(40) - with_head, abs=1e-4)
    directions, heads = row.nulls
    assert heads.kind == "as much of as many other heads, of the same layers if possible"
    assert (row.side, len(heads.draws), heads.p(row.value, ">=")) == (">=", 19, 0.05)
    # the other heads of the layer add a constant to all logits
    assert heads.draws == pytest.approx([0.0] * 19, abs=1e-4)
    assert directions.kind == "the same heads changed as much in random directions"
    assert (len(directions.draws), directions.p(row.value, ">=")) == (EXCHANGES, SMALLEST)
    assert directions.median > 0
    assert directions.median == pytest.approx(directions.mean, abs=0.1)
    assert row.n == 32  # the other half of the 64 blocks chose the heads


def test_next_ids_are_scored_without_labels():
    model = Repeating()
    ids = torch.randint(40, (6, 20), generator=torch.Generator().manual_seed(1))
    ids[:, 10:] = ids[:, :10]
    result = tt.intervene(model, ids, KEPT, draws=3)
    losses = nn.functional.cross_entropy(
        model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    expected = losses.view(6, 19).mean(1)
    assert value(result, NEXT, UNCHANGED) == pytest.approx(float(expected.mean().detach()), rel=1e-5)
    assert "3 draws" in effect(result, NEXT).note or not effect(result, NEXT).nulls


def test_words_are_counted_before_next_ids():
    """A language model without labels has common words; a network without either has the reason."""
    ids = torch.randint(8, (16, 20), generator=torch.Generator().manual_seed(1))
    name = "scan_snap/common tokens removed from the first keys"
    row = effect(tt.intervene(Repeating(8), ids, name, draws=3, max_samples=16), NEXT)
    assert row.value is not None
    assert row.n == 8  # the other half chose the words
    (missing,) = tt.intervene(Marked(), marked()[0], name, draws=3).table
    assert missing.value is None
    assert "a class of each sequence or next ids, got neither" in missing.reason


def test_outputs_are_compared_with_those_of_the_unchanged_network():
    x, _ = marked()
    result = tt.intervene(Marked(), x, KEPT, draws=19)
    row = effect(result, AGREEMENT)
    assert row.value == 0.0
    assert value(result, AGREEMENT, UNCHANGED) == 1.0
    assert row.nulls[0].p(row.value, row.side) == SMALLEST
    assert row.note == ""
    few = effect(tt.intervene(Marked(), x, KEPT, draws=2), AGREEMENT)
    assert "as many random keys: 2 draws" in few.note
    assert few.nulls[0].p(few.value, few.side) == SMALLEST


def test_the_interval_is_that_of_paired_differences():
    x, y = marked()
    result = tt.intervene(Marked(3.0), x, "in_context", labels=y, draws=2)
    row = effect(result, LOSS)
    model = Marked(3.0)
    before = nn.functional.cross_entropy(model(x), y, reduction="none")
    # first order: the key with the mark has the score 3, the seven others 0
    weight = (1 + (x[..., 4] * 3 - 3 / 8)) / 8
    after = nn.functional.cross_entropy(
        10 * torch.einsum("bt,btc->bc", weight, x[..., :4]), y, reduction="none"
    )
    differences = (after - before).double().detach()
    assert row.value == pytest.approx(float(differences.mean()), rel=1e-4)
    assert row.interval == pytest.approx(student_interval(differences.tolist()), rel=1e-3)


def of(change, *, name: str = "test", draw=None, is_common: bool = False) -> Intervention:
    control = Control("the same", draw or change, is_common=is_common)
    return Intervention(name, change, "kept", (control,), Source("tian2023scan", status="own"))


def applied(intervention: Intervention, x: torch.Tensor, y: torch.Tensor) -> Applied:
    return apply_intervention(
        Subject(Marked(3.0), Sample(x, y, 20)), None, "scan_snap", intervention, limits={}
    )


def test_what_changes_nothing_is_an_error_and_never_a_result():
    x, y = marked(20)
    theory = tt.theory("scan_snap")
    idle = of(lambda attended: attended, name="idle")
    with pytest.raises(NotChanged, match="idle changed no weight and no value in 1 attentions of Marked"):
        applied(idle, x, y)
    one = replace(theory, interventions=(idle, *theory.interventions))
    result = tt.intervene(Marked(), x, one, labels=y, draws=1)
    missing = result.select(quantity="idle").one()
    assert missing.value is None
    assert "so that it was not applied" in missing.reason
    with pytest.raises(NotChanged):
        tt.intervene(Marked(), x, replace(theory, interventions=(idle,)), labels=y)


def test_a_network_without_the_place_has_a_row_with_the_reason():
    x, y = marked(20)
    result = tt.intervene(nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), x, labels=y)
    assert all(row.value is None for row in result.table)
    assert {row.quantity for row in result.table} == {
        one.name for theory in tt.list_theories() for one in theory.interventions
    }
    assert "no attention was found in Sequential" in result.table[0].reason
    induction = tt.intervene(Marked(), x, INDUCTION, labels=y).table[0]
    assert induction.reason.startswith("the intervention needs a causal language model")


def test_controls_are_drawn_on_fewer_sequences_if_time_is_short():
    x, y = marked(400)
    result = tt.intervene(Marked(), x, KEPT, labels=y, minutes=0.01)
    row = effect(result, ACCURACY)
    assert row.nulls[0].value is not None or len(row.nulls[0].draws) < 99
    again = tt.intervene(Marked(), x, KEPT, labels=y, minutes=0.01)
    assert effect(again, ACCURACY).value == row.value


def hidden(attended):
    """Hides one key of every row, drawn at random."""
    drawn = torch.rand(attended.weights.shape, generator=attended.generator).argmax(-1, keepdim=True)
    return attended.with_weights(attended.weights.scatter(-1, drawn, 0.0))


def emptied(attended):
    """Sets all weights to zero."""
    return attended.with_weights(torch.zeros_like(attended.weights))


def test_two_processes_draw_what_one_draws():
    x, y = marked(40)
    one = applied(of(emptied, draw=hidden), x, y)
    alone, beside = (draw_controls([one], draws=12, processes=number)[0][0] for number in (1, 2))
    assert [each[LOSS].tolist() for each in alone.drawn] == [each[LOSS].tolist() for each in beside.drawn]
    assert len(alone.drawn) == 9
    assert len({float(each[LOSS].sum()) for each in alone.drawn}) == 9
    assert alone.null(LOSS) == beside.null(LOSS)


def test_draws_stop_once_no_test_can_succeed():
    x, y = marked(40)
    # the control is the change itself: all draws are ties, on both sides
    (tied,) = draw_controls([applied(of(emptied, is_common=True), x, y)], draws=99)[0]
    assert len(tied.drawn) == 19
    assert tied.is_hopeless
    (row, *_) = rows_of(tied.applied, [tied], "Marked")
    assert "the same: 19 draws, no test can succeed any more" in row.note
    assert row.nulls[0].stopped
    assert row.nulls[0].p(row.value, row.side) == 1.0
    # nine draws of 99 on each side leave p = .1 on neither
    own = tied.differences
    nine = [{name: own[name] + sign for name in own} for sign in [1.0] * 9 + [-1.0] * 40]
    drawing = Drawing(tied.applied, tied.control, [None] * 99, 0, 40, nine)
    assert drawing.is_hopeless
    drawing.drawn = nine[1:]
    assert not drawing.is_hopeless
    # all draws on one side: the test may succeed
    (open_,) = draw_controls([applied(of(emptied, draw=hidden, is_common=True), x, y)], draws=99)[0]
    assert len(open_.drawn) == 99


def test_a_control_that_changes_nothing_is_an_error():
    x, y = marked(40)
    idle = of(emptied, draw=lambda attended: attended)
    (drawing,) = draw_controls([applied(idle, x, y)], draws=3)[0]
    with pytest.raises(NotChanged, match="the same changed nothing"):
        rows_of(drawing.applied, [drawing], "Marked")


def test_an_error_of_a_control_is_the_reason_of_the_row():
    x, y = marked(40)

    def impossible(attended):
        raise ValueError("this control needs windows, got none")

    one = replace(tt.theory("scan_snap"), interventions=(of(emptied, draw=impossible),))
    for minutes in (None, 0.01):
        row = tt.intervene(Marked(), x, one, labels=y, draws=3, minutes=minutes).table[0]
        assert row.value is None
        assert row.reason == "this control needs windows, got none"


def test_errors_of_other_kinds_are_reasons_too():
    x, y = marked(40)

    def failing(attended):
        raise torch.linalg.LinAlgError("linalg.qr: the factorization could not be completed")

    for one in (of(failing), of(emptied, draw=failing)):
        row = tt.intervene(
            Marked(), x, replace(tt.theory("scan_snap"), interventions=(one,)), labels=y, draws=3
        ).table[0]
        assert row.value is None
        assert "LinAlgError: linalg.qr" in row.reason


def test_halves_are_random_and_divide_every_class():
    x, _ = marked(120)
    for labels in (torch.arange(120) % 2, torch.arange(120) % 4, torch.arange(120) // 30):
        first, second = halves_of(Marked(), Sample(x, labels, 20))
        for half in (first, second):
            assert half.sample.targets.bincount().tolist() == [60 // len(labels.unique())] * len(
                labels.unique()
            )
        both = torch.cat([first.sample.inputs, second.sample.inputs])
        assert torch.equal(both.flatten(1).unique(dim=0), x.flatten(1).unique(dim=0))
    assert halves_of(Marked(), Sample(x[:1], None, 1)) is None


def test_fewer_sequences_are_among_more_and_have_the_same_numbers():
    x, y = marked(120)
    whole = Subject(Marked(), Sample(x, y, 20))
    few, more = whole.on_some(10), whole.on_some(30)
    assert len(few.sample) == 10
    rows = {tuple(row.tolist()) for row in more.sample.inputs.flatten(1)}
    assert {tuple(row.tolist()) for row in few.sample.inputs.flatten(1)} <= rows
    alone = Subject(Marked(), few.sample)
    for name, numbers in few.unchanged.items():
        assert torch.allclose(numbers, alone.unchanged[name], atol=1e-6)


def test_a_control_without_another_structure_has_no_draws():
    x, y = marked(40)
    control = Control("another of one", structure=lambda chosen, generator: None)
    one = Intervention(
        "test", emptied, "kept", (control,), Source("tian2023scan", status="own"), choose=lambda read: 1
    )
    for minutes, processes in ((None, 1), (0.05, 2)):
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        subject = Subject(Marked(3.0), Sample(x, y, 20))
        found = apply_intervention(subject, (subject, subject), "scan_snap", one, limits={})
        (drawings,) = draw_controls([found], draws=9, deadline=deadline, processes=processes)
        (row, *_) = rows_of(found, drawings, "Marked")
        assert row.nulls[0].draws == ()
        assert "another of one: 0 draws, there is no other structure of this size" in row.note


def test_a_process_that_is_ended_is_said(monkeypatch):
    x, y = marked(40)

    def killed(attended):
        os.kill(os.getpid(), signal.SIGKILL)

    (drawing,) = draw_controls([applied(of(emptied, draw=killed), x, y)], draws=3, processes=2)[0]
    assert drawing.drawn == []
    assert "a process was ended from outside" in rows_of(drawing.applied, [drawing], "Marked")[0].note
    # what follows has no draws, and on fewer sequences no effect beside them
    after = draw_controls(
        [applied(of(emptied, draw=killed), x, y), applied(of(emptied, draw=hidden), x, y)],
        draws=3,
        fewer=10,
        processes=2,
    )
    for group in after:
        (row, *_) = rows_of(group[0].applied, group, "Marked")
        assert row.value is not None
        assert row.nulls[0].draws == ()


def test_effects_are_measured_on_fewer_sequences_if_time_is_short():
    class Slow(Marked):
        def forward(self, x):
            time.sleep(0.001 * len(x))
            return super().forward(x)

    x, y = marked(400)
    sample = Sample(x, y, 20)
    assert affordable(Slow(), sample, 10, 1000.0) is sample
    # 10 passes at 1.6 ms take .016 s a sequence: .4 of 4 s suffice for 100 at most
    some = affordable(Slow(), sample, 10, 4.0)
    assert 2 * FEWEST <= len(some) <= 100
    assert len(affordable(Slow(), sample, 10, 0.01)) == 2 * FEWEST
    row = effect(tt.intervene(Slow(), x, KEPT, labels=y, minutes=0.01), ACCURACY)
    assert 2 * FEWEST <= row.n < 400


def test_the_same_seed_gives_the_same_draws():
    x, y = marked(40)
    first, second, third = (
        tt.intervene(Marked(), x, KEPT, labels=y, draws=5, seed=seed).table for seed in (0, 0, 1)
    )
    assert first == second
    assert first != third


def test_sequences_without_a_label_are_left_out():
    x, y = marked(40)
    y[::2] = -100
    row = effect(tt.intervene(Marked(), x, KEPT, labels=y, draws=1), ACCURACY)
    assert row.n == 20


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("scan_snap/keys", "unknown intervention 'scan_snap/keys'; there are: scan_snap/keys that"),
        ("scan_snip", "unknown theory"),
        ("graph_tokens", "graph_tokens has no interventions; theories with interventions: attention_svm"),
    ],
)
def test_unknown_names(names, message):
    x, y = marked(4)
    with pytest.raises(ValueError, match=message):
        tt.intervene(Marked(), x, names, labels=y)


def test_bad_input():
    x, y = marked(4)
    with pytest.raises(ValueError, match=r"must be a torch\.nn\.Module"):
        tt.intervene("network", x)
    with pytest.raises(ValueError, match="must have inputs"):
        tt.intervene(Marked())
    with pytest.raises(ValueError, match="finite weights"):
        tt.intervene(Marked(math.nan), x, labels=y)
    with pytest.raises(ValueError, match="draws"):
        tt.intervene(Marked(), x, draws=0)
    with pytest.raises(ValueError, match="minutes"):
        tt.intervene(Marked(), x, minutes=-1.0)


def test_chance_is_that_of_a_constant_output():
    accuracy, loss, _ = (
        *Sample(torch.zeros(4), torch.tensor([0, 0, 0, 1]), 4).measures(),
        None,
    )
    assert accuracy.chance == 0.75
    assert loss.chance == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    right = torch.ones(100).double()
    assert not at_chance(accuracy, right)
    right[:25] = 0.0
    assert at_chance(accuracy, right)
    assert at_chance(loss, torch.full((3,), 2.0).double())
    assert not at_chance(loss, torch.tensor([0.1, 0.2, 0.1]).double())
    assert not at_chance(Measure(AGREEMENT, lambda *_: right), right)


def test_batches_of_long_sequences_are_small():
    class Long(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x).mean(1)

    assert batch_size(Long(), torch.randn(3, 8, 4)) == 64
    assert batch_size(Long(), torch.randn(2, 2048, 4)) == 2


def test_the_mode_of_each_module_is_restored():
    x, y = marked(20)
    model = ViT.for_tokens(8, 6, 4, dim=16, depth=2, heads=2).train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    tt.intervene(model, x, KEPT, labels=y, draws=1)
    assert [module.training for module in model.modules()] == modes


def test_the_rows_are_judged_like_all_others():
    x, y = marked()
    y[0] = -1
    found = judged_interventions(tt.intervene(Marked(), x, [KEPT, HARD, INDUCTION], labels=y))
    assert [each.row.theory for each in found] == ["scan_snap", "attention_svm", "induction"]
    assert [each.outcome for each in found] == ["as predicted", "as predicted", "not measured"]
    # the weight is on one key, so that nothing is moved: draws of the second control equal the effect
    assert found[0].cannot_test == ("as much weight moved at random keys",)
    assert [each.q for each in found[:2]] == [SMALLEST, SMALLEST]
    torch.manual_seed(0)
    model = ViT.for_tokens(8, 6, 4, dim=16, depth=2, heads=2)
    (untrained,) = judged_interventions(tt.intervene(model, x, HARD, labels=y))
    assert untrained.outcome == "not tested"
    assert "is not better than that of a constant output" in untrained.reason
