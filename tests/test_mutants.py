"""The mutants: each of them can be applied, and the stored score belongs to this list."""

import inspect
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.mutants import THEORIES, Mutant, judge, mutants, perturbed, resolve
from tests.cases import each_case
from tests.stand_in import THEORY
from transformer_theory.maths.linalg import cosine
from transformer_theory.metrics import attention
from transformer_theory.theories import list_theories

STORED = Path(__file__).parents[1] / "docs" / "mutants.json"
HALF = Mutant(
    "metrics.attention.effective_support", ".exp()", ".exp() / 2", "wrong factor", "half of the support"
)


@each_case("theory", THEORIES)
def test_every_mutant_can_be_applied(theory):
    for mutant in mutants(theory):
        function = resolve(mutant.function)
        code = perturbed(function, mutant.old, mutant.new)
        assert code.co_freevars == function.__code__.co_freevars
        changed = (code.co_code, code.co_consts, code.co_names) != (
            function.__code__.co_code,
            function.__code__.co_consts,
            function.__code__.co_names,
        )
        assert changed, f"{mutant.description} changes nothing"


def test_the_list_is_long_enough_and_without_repetition():
    assert len(THEORIES) == len(list_theories()), "a theory has no mutants: add benchmarks/mutants/<name>.py"
    every = [(theory, mutant) for theory in THEORIES for mutant in mutants(theory)]
    assert len(every) >= 60
    for fields in (
        [(one.function, one.old, one.new) for _, one in every],
        [(theory, one.description) for theory, one in every],
    ):
        assert [field for field, count in Counter(fields).items() if count > 1] == []


def test_the_stored_score_is_of_this_list_and_at_least_nine_tenths():
    records = json.loads(STORED.read_text(encoding="utf-8"))["mutants"]
    assert [(one["theory"], one["function"], one["description"]) for one in records] == [
        (theory, one.function, one.description) for theory in THEORIES for one in mutants(theory)
    ], "the list of mutants was changed: run `make mutants`"
    for theory in THEORIES:
        counts = Counter(one["outcome"] for one in records if one["theory"] == theory)
        assert counts["detected"] >= 0.9 * (counts.total() - counts["equivalent"]), theory


def test_a_mutant_reaches_every_reference(monkeypatch):
    weights = torch.tensor([[0.5, 0.5, 0.0]])
    function, before = resolve(HALF.function), attention.effective_support(weights)
    monkeypatch.setattr(function, "__code__", function.__code__)  # restored at the end
    HALF.apply()
    assert torch.equal(attention.effective_support(weights), before / 2)


def test_methods_properties_and_decorated_functions_are_found():
    assert resolve("maths.linalg.cosine") is inspect.unwrap(cosine)
    assert resolve("core.claims.Evidence.verdict").__name__ == "verdict"
    assert resolve("core.claims.Evidence.from_json").__name__ == "from_json"
    code = perturbed(resolve("metrics.class_features.ClassFeatures.merge"), "or other", "and other")
    assert code.co_freevars == ("__class__",)


@pytest.mark.parametrize(
    "path", ["maths.linalg.nothing", "nothing.at.all", "maths.linalg.LARGEST_GRAM_CONDITION"]
)
def test_a_mutant_needs_a_function(path):
    with pytest.raises(ValueError, match=path):
        resolve(path)


@pytest.mark.parametrize(("old", "new"), [("weights", "rows"), ("not there", "x")])
def test_the_text_must_occur_once(old, new):
    with pytest.raises(ValueError, match="must occur once"):
        perturbed(resolve(HALF.function), old, new)


@pytest.mark.parametrize("equivalent", ["", "a reason"])
def test_outcomes(monkeypatch, equivalent):
    from dataclasses import replace

    from transformer_theory.core.claims import Measured, but

    monkeypatch.setattr(Mutant, "apply", lambda self: None)
    mutant = replace(HALF, equivalent=equivalent)
    first = replace(
        THEORY.claims[0],
        function=lambda generator: 0.5,
        change=but("v is replaced", lambda generator: 2.0),
    )
    wrong = replace(first, id="stand_in/wrong", function=lambda generator: 2.0)
    weak = replace(first, id="stand_in/weak", change=but("v is kept", lambda generator: 0.5))

    def fail(generator):
        raise ZeroDivisionError

    broken = replace(first, id="stand_in/broken", function=fail)
    assert judge(mutant, [first]) == (("equivalent", "a reason") if equivalent else ("undetected", ""))
    assert judge(mutant, [first, wrong, broken]) == ("detected", "stand_in/wrong")
    assert judge(mutant, [first, broken]) == ("detected", "stand_in/broken raises ZeroDivisionError")
    uncovered = replace(first, change=but("v is replaced", lambda generator: Measured(2.0, covered=False)))
    # a control that drops an assumption is not covered
    assert judge(mutant, [uncovered]) == judge(mutant, [first])
    if not equivalent:
        assert judge(mutant, [first, weak]) == ("undecided", "stand_in/weak")
