"""Prompts whose chain is that of another question, or filler symbols."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.theories.test_changes_by_hand import generator
from transformer_theory.core.intervention import InputPass, Inputs, NotChanged
from transformer_theory.core.measurement import Measurement
from transformer_theory.probes.intervene import apply_intervention, draw_controls, rows_of
from transformer_theory.probes.sample import Sample
from transformer_theory.probes.subject import Subject
from transformer_theory.theories.chain_of_thought import interventions as chain
from transformer_theory.theories.chain_of_thought.in_networks import TASK
from transformer_theory.theories.chain_of_thought.tasks import accepts, vocabulary

LIMITS = {"vocabulary": 60, "length": 200}
OTHER, FILLED = chain.INTERVENTIONS[1:]
WAYS = pytest.mark.parametrize("which", [OTHER, FILLED])


def made(which) -> Inputs:
    return which.inputs(LIMITS, generator())


def received(inputs: Inputs, seed: int = 0) -> InputPass:
    return InputPass(inputs.ids, torch.arange(60), generator(seed), inputs.structure)


def places(inputs: Inputs) -> list[int]:
    return sorted(inputs.structure.chain.places)


def test_the_other_prompt_is_one_of_the_same_task_in_the_same_ids():
    """A prompt is read by hand: examples "question = chain : answer .", then "question = chain :"."""
    inputs = made(OTHER)
    n = inputs.ids.shape[1]
    assert places(inputs) == [n - 6, n - 5, n - 4, n - 3, n - 2]
    for row, other, target in zip(inputs.ids.tolist(), inputs.structure.ids.tolist(), inputs.targets[:, -1]):
        assert row[-2] == target  # the chain "b * c = r" ends in the answer
        assert other[-2] != target
        assert row[-1] == other[-1]
        for sign in (-1, -7):  # ":" and "=" are at the same places of both
            assert [x == row[sign] for x in row] == [x == row[sign] for x in other]


def test_the_other_chain_is_right_for_the_other_question():
    symbols = vocabulary(TASK)
    inputs = chain.given_chains({"vocabulary": len(symbols), "length": 200}, generator(), instead="other")
    ids = []  # those that were drawn for each question
    original = chain.symbol_ids

    def kept(*args):
        ids.append(original(*args))
        return ids[-1]

    chain.symbol_ids = kept
    try:
        again = chain.given_chains({"vocabulary": len(symbols), "length": 200}, generator(), instead="other")
    finally:
        chain.symbol_ids = original
    assert torch.equal(again.ids, inputs.ids)
    for rows in (inputs.ids, inputs.structure.ids):
        for known, row in zip(ids, rows.tolist()):
            names = {number: symbol for symbol, number in known.items()}
            text = [names[number] for number in row]
            last = "".join(text).split(".")[-1]
            question, _, steps = last.partition("=")
            assert accepts(TASK, tuple(question), tuple(steps[:-1]))


@WAYS
def test_the_chain_alone_is_exchanged_and_the_control_spares_it(which):
    inputs = made(which)
    own, other = inputs.ids, inputs.structure.ids
    new = which.change(received(inputs)).inputs
    rest = [place for place in range(own.shape[1]) if place not in places(inputs)]
    assert torch.equal(new[:, rest], own[:, rest])
    assert torch.equal(new[:, places(inputs)], other[:, places(inputs)])
    count = (new != own).sum(1)
    assert bool((count > 0).all())
    if which is FILLED:
        assert len(other.unique(dim=1).T) == 1
        assert not (own == other[:, :1]).any()  # the filler is new to the prompt
        assert set(count.tolist()) == {5}
    drawn = [which.controls[0].change(received(inputs, seed)).inputs for seed in (0, 1)]
    for each in drawn:
        assert torch.equal((each != own).sum(1), count)
        assert torch.equal(each[:, places(inputs)], own[:, places(inputs)])
        assert torch.equal(each[:, -1], own[:, -1])
        assert bool(((each == own) | (each == other)).all())
    assert not torch.equal(*drawn)


def test_a_part_of_the_prompts_has_its_own_exchanges():
    inputs = made(OTHER)
    which = torch.tensor([5, 40, 7])
    passed = InputPass(inputs.ids[which], which, generator(), inputs.structure)
    assert torch.equal(chain.exchanged(passed).inputs, chain.exchanged(received(inputs)).inputs[which])


class LastOfTheChain(nn.Module):
    """The last token attends to the one before it, and says that it is next: logit 10, of 60."""

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        here = torch.eye(T).expand(len(ids), T, T)
        tokens = nn.functional.one_hot(ids, 60).float()
        return 10 * nn.functional.scaled_dot_product_attention(100 * here, here.roll(1, 2), tokens, scale=1.0)


class Solver(nn.Module):
    """Knows the answer of each question by heart, and looks at no chain."""

    def __init__(self, inputs: Inputs):
        super().__init__()
        known = inputs.ids[:, : places(inputs)[0]].tolist()
        self.answers = dict(zip(map(tuple, known), inputs.targets[:, -1].tolist()))
        self.length = len(known[0])

    def forward(self, ids: Tensor) -> Tensor:
        found = [self.answers.get(tuple(row)) for row in ids[:, : self.length].tolist()]
        logits = 0 * LastOfTheChain()(ids)
        for row, answer in enumerate(found):
            if answer is not None:
                logits[row, -1, answer] = 10.0
        return logits


def effect(model: nn.Module, which) -> tuple[Measurement, Measurement]:
    """The effect of an intervention and the loss of the unchanged network; the batch has 16 of 60 prompts."""
    sample = Sample(torch.zeros(1, 1, dtype=torch.int64), None, 16)
    applied = apply_intervention(Subject(model, sample), None, "chain_of_thought", which, limits=LIMITS)
    rows = rows_of(applied, draw_controls([applied], draws=19)[0], "written")
    return rows[0], rows[1]


@WAYS
def test_a_network_that_reads_its_chain_believes_any_other(which):
    row, before = effect(LastOfTheChain(), which)
    by_hand = math.log(1 + 59 * math.exp(-10))
    assert before.value == pytest.approx(by_hand, abs=1e-5)
    # the logit 10 is that of a wrong id
    assert row.value == pytest.approx(10.0, abs=1e-4)
    (null,) = row.nulls
    assert null.median == 0.0
    assert (row.side, null.p(row.value, ">=")) == (">=", 1 / 500)


@WAYS
def test_a_network_that_solves_the_question_loses_nothing(which):
    row, before = effect(Solver(made(which)), which)
    assert before.value == pytest.approx(math.log(1 + 59 * math.exp(-10)), abs=1e-5)
    assert row.value == 0.0
    (null,) = row.nulls
    # any other token is missed, since the question is known as a whole: all logits are equal
    assert null.median == pytest.approx(math.log(60) - before.value, abs=1e-4)
    assert null.p(row.value, ">=") == 1.0


@WAYS
def test_a_network_at_chance_is_not_tested(which):
    class Nothing(LastOfTheChain):
        def forward(self, ids):
            return 0 * super().forward(ids)

    row, before = effect(Nothing(), which)
    assert before.value == pytest.approx(math.log(60), abs=1e-5)
    assert (row.side, row.nulls) == (None, ())
    assert "not better than that of a constant output" in row.note


def test_the_same_prompt_instead_changes_nothing():
    def same(limits, generator):
        inputs = chain.given_chains(limits, generator)
        return Inputs(inputs.ids, inputs.targets, chain.Exchange(inputs.structure, inputs.ids))

    with pytest.raises(NotChanged, match="changed no input in 4 forward passes"):
        effect(LastOfTheChain(), replace(OTHER, inputs=same))


def test_a_short_context_is_refused():
    for instead in ("other", "filler"):
        with pytest.raises(ValueError, match="the context must hold"):
            partial(chain.given_chains, instead=instead)({"vocabulary": 60, "length": 20}, generator())
