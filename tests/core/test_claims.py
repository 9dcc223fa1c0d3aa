"""Claims: the verdict of one check, of several seeds and of controls; how a verification is stored."""

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from transformer_theory.core import claims
from transformer_theory.core.claims import Claim, Evidence, Measured, Verification, but, verify_claims
from transformer_theory.core.errors import NotConverged
from transformer_theory.core.measurement import Null
from transformer_theory.core.sources import Source

NAN, INF = math.nan, math.inf
GOOD, BAD = Measured(0.5), Measured(2.0)
OPEN, UNCOVERED = Measured(0.5, converged=False), Measured(2.0, covered=False)
SOURCE = Source("tian2023scan", "Thm. 3")


def claim(*measured: Measured, controls=(BAD,)) -> Claim:
    """A claim whose function returns the given values, one per seed."""

    def pick(choices):
        return lambda generator: choices[generator.initial_seed() % len(choices)]

    return Claim(
        id="theory/name",
        statement="$a \\le 1$",
        measures="a",
        op="<=",
        threshold=1.0,
        source=SOURCE,
        assumptions=("a holds",),
        function=pick(measured),
        change=but("a is broken", pick(controls)),
    )


@each_case(
    ("evidence", "verdict"),
    [
        (Evidence(1.0, 1.0, "<="), "consistent"),
        (Evidence(1.0, 1.0, ">="), "consistent"),
        (Evidence(1.0 + 1e-12, 1.0, "<="), "violated"),
        (Evidence(1.0 - 1e-12, 1.0, ">="), "violated"),
        (Evidence(NAN, 1.0, "<="), "inconclusive"),
        (Evidence(INF, 1.0, ">="), "inconclusive"),
        (Evidence(0.0, NAN, "<="), "inconclusive"),
        (Evidence(0.0, INF, "<="), "inconclusive"),
        (Evidence(0.0, 1.0, "<=", converged=False), "inconclusive"),
        (Evidence(2.0, 1.0, "<=", converged=False), "inconclusive"),
        (Evidence(2.0, 1.0, "<=", covered=False), "not covered"),
        (Evidence(NAN, 1.0, "<=", converged=False, covered=False), "not covered"),
    ],
)
def test_the_verdict_of_one_check(evidence, verdict):
    assert evidence.verdict == verdict


@given(
    value=st.floats(),
    bound=st.floats(),
    op=st.sampled_from(["<=", ">="]),
    converged=st.booleans(),
    inside=st.booleans(),
)
def test_only_finite_numbers_decide(value, bound, op, converged, inside):
    verdict = Evidence(value, bound, op, converged, inside).verdict
    decided = inside and converged and math.isfinite(value) and math.isfinite(bound)
    assert (verdict in ("consistent", "violated")) == decided
    if decided:
        mirrored = Evidence(-value, -bound, ">=" if op == "<=" else "<=").verdict
        assert verdict == mirrored


def test_evidence_takes_tensors_and_refuses_other_signs(unchecked):
    assert isinstance(Evidence(torch.tensor(0.5), 1, "<=").value, float)
    with pytest.raises(ValueError, match="op must be '<=' or '>=', got '<'"):
        Evidence(0.5, 1.0, "<")


@each_case(
    ("evidence", "verdict", "share"),
    [
        ((GOOD, GOOD), "consistent", 1.0),
        ((GOOD, BAD), "violated", 0.5),
        ((GOOD, OPEN), "consistent", 1.0),
        ((OPEN, UNCOVERED), "inconclusive", None),
        ((UNCOVERED, UNCOVERED), "not covered", None),
        ((UNCOVERED, GOOD), "consistent", 1.0),
        ((OPEN, BAD), "violated", 0.0),
    ],
)
def test_the_verdict_of_several_seeds(evidence, verdict, share):
    result = claim(*evidence).verify(range(2))
    assert result.verdict == verdict
    assert result.share == (None if share is None else pytest.approx(share))


@each_case(
    ("good", "bad", "interval"),
    [
        # k of n: exact values, (alpha/2)^(1/n) at the ends, published tables in between
        (5, 0, (0.025 ** (1 / 5), 1.0)),
        (0, 5, (0.0, 1 - 0.025 ** (1 / 5))),
        (1, 0, (0.025, 1.0)),
        (5, 5, (0.1871, 0.8129)),
        (3, 2, (0.1466, 0.9473)),
        (81, 182, (0.2527, 0.3676)),  # Newcombe 1998, table I
    ],
)
def test_the_interval_is_clopper_and_pearsons(good, bad, interval):
    result = claim(*[GOOD] * good, *[BAD] * bad).verify(range(good + bad))
    assert result.interval == pytest.approx(interval, abs=5e-5)


@given(good=st.integers(0, 12), bad=st.integers(0, 12), undecided=st.integers(0, 3))
def test_the_interval_inverts_the_binomial_tails(good, bad, undecided):
    if good + bad + undecided == 0:
        return
    result = claim(*[GOOD] * good, *[BAD] * bad, *[OPEN] * undecided).verify(range(good + bad + undecided))
    low, high = result.interval
    n = good + bad
    if n == 0:
        assert (low, high) == (0.0, 1.0)
        return

    def upper_tail(k, p):
        return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))

    assert low <= result.share <= high
    if good:
        assert upper_tail(good, low) == pytest.approx(0.025, rel=1e-6)
    if bad:
        assert 1 - upper_tail(good + 1, high) == pytest.approx(0.025, rel=1e-6)


@each_case(
    ("controls", "name"),
    [
        ((BAD,), "fails"),
        ((UNCOVERED,), "fails"),
        ((BAD, GOOD), "passes"),
        ((GOOD,), "passes"),
        ((OPEN, GOOD), "passes"),
        ((Measured(0.5, covered=False),), "passes"),
        ((OPEN,), "inconclusive"),
        ((BAD, OPEN), "inconclusive"),
        ((Measured(NAN),), "inconclusive"),
    ],
)
def test_a_control_must_fail_on_every_seed(controls, name):
    result = claim(GOOD, controls=controls).verify(range(4))
    assert result.control == name
    assert result.passed == (name == "fails")
    assert (result.outcome == "consistent") == (name == "fails")


def test_check_and_control_see_the_same_fresh_generator():
    drawn = []

    def draw(generator):
        drawn.append((generator.initial_seed(), float(torch.rand(1, generator=generator))))
        return GOOD

    before = torch.get_rng_state()
    replace(claim(GOOD), function=draw, change=but("nothing", draw)).verify((3, 8, 3))
    assert [seed for seed, _ in drawn] == [3, 3, 8, 8, 3, 3]
    assert len({value for _, value in drawn}) == 2
    assert torch.equal(torch.get_rng_state(), before)


def test_each_seed_gives_a_measurement():
    rows = claim(GOOD, BAD).verify((0, 1)).measurements()
    assert [row.seed for row in rows] == [0, 1]
    assert [row.verdict for row in rows] == ["consistent", "violated"]
    assert {(row.theory, row.kind, row.quantity, row.threshold, row.op) for row in rows} == {
        ("theory", "claim", "theory/name", 1.0, "<=")
    }
    assert rows[0].null == Null("control", (2.0,))
    assert rows[0].source == Source("tian2023scan", "Thm. 3")


def test_a_verification_survives_json_whole():
    detailed = replace(GOOD, detail={"slope": 0.25, "undefined": NAN}, note="a note")
    result = claim(detailed, BAD, OPEN, Measured(NAN), controls=(BAD, Measured(NAN))).verify(range(4))
    stored = json.loads(json.dumps(result.to_json()))
    read = Verification.from_json(stored)
    assert read.to_json() == result.to_json()
    assert read.evidence[0].detail == {"slope": 0.25, "undefined": pytest.approx(NAN, nan_ok=True)}
    assert (read.verdict, read.control, read.consistent, read.decided) == ("violated", "inconclusive", 1, 2)
    assert stored["measures"] == "a"
    for name in ("id", "seeds", "source"):
        with pytest.raises(ValueError, match=name):
            Verification.from_json({key: value for key, value in stored.items() if key != name})


def test_the_worst_seed_is_the_one_nearest_its_threshold():
    result = claim(GOOD, Measured(0.9), OPEN, controls=(Measured(3.0), Measured(1.5))).verify(range(3))
    assert result.worst.value == 0.9
    assert result.worst_control.value == 1.5
    assert result.median == 0.5
    assert claim(GOOD, BAD).verify(range(2)).worst.value == 2.0
    assert claim(Measured(NAN)).verify(range(2)).median is None


def test_an_undecided_seed_may_be_the_worst():
    """Otherwise "the worst of n seeds" would be false."""
    unfinished = Measured(3.0, converged=False)
    result = claim(GOOD, unfinished, Measured(0.9), Measured(NAN)).verify(range(4))
    assert result.verdict == "consistent"
    assert (result.decided, len(result.seeds), result.worst.value) == (2, 4, 3.0)
    assert result.margins[0] == claim(Measured(0.9)).verify(range(1)).margins[0]  # of what was decided


def test_a_solver_that_gives_up_makes_its_seed_inconclusive():
    def gives_up(generator):
        raise NotConverged("residual 1e-3 after 10 steps")

    result = replace(claim(GOOD), function=gives_up).verify(range(2))
    assert result.verdict == "inconclusive"
    assert "1e-3" in result.evidence[0].note
    assert all(row.value is None and "1e-3" in row.reason for row in result.measurements())


def test_several_claims_come_in_order():
    claims = [replace(claim(GOOD), id="theory/first"), replace(claim(BAD), id="theory/second")]
    assert [(one.id, one.verdict) for one in verify_claims(claims, range(2))] == [
        ("theory/first", "consistent"),
        ("theory/second", "violated"),
    ]
    with pytest.raises(ValueError, match="0 claims"):
        verify_claims([], range(2))


def test_the_text_claims_no_proof():
    text = str(claim(GOOD).verify(range(3)))
    assert text == "theory/name: consistent (3/3 seeds, 95 % interval [0.29, 1.00]; control fails as it must)"
    assert "prove" not in text.lower()


def test_no_seed_is_refused():
    with pytest.raises(ValueError, match="seeds"):
        claim(GOOD).verify(())


@each_case(
    ("changes", "word"),
    [
        ({"id": "name"}, "'name'"),
        ({"id": "/name"}, "'/name'"),
        ({"measures": ""}, "measures"),
        ({"threshold": NAN}, "finite, got nan"),
        ({"corrects": "a sign"}, "both corrects and corrected"),
        ({"corrected": SOURCE}, "both corrects and corrected"),
    ],
)
def test_a_claim_names_its_theory_and_its_number(changes, word):
    with pytest.raises(ValueError, match=word):
        replace(claim(GOOD), **changes)


@pytest.mark.parametrize(("key", "published"), [("tian2024joma", True), ("wong2023understanding", False)])
def test_a_correction_names_its_text_and_counts_only_if_that_was_published(key: str, published: bool):
    text = Source(key, "Eq. (3)", "second-hand")
    corrected = replace(claim(GOOD), corrects="a sign", corrected=text)
    verification = corrected.verify(range(2))
    stored = verification.to_json()
    assert stored["corrected"] == {"key": key, "locator": "Eq. (3)", "status": "second-hand"}
    for one in (corrected, verification, Verification.from_json(stored)):
        assert one.corrects_published == published
        assert one.sources == (SOURCE, text)
    plain = claim(GOOD).verify(range(2))
    assert "corrected" not in plain.to_json()
    assert not plain.corrects_published
    assert Verification.from_json(plain.to_json()).sources == (SOURCE,)


def described(**options):
    """The decorator with everything but a threshold."""
    texts = {"measures": "largest number", "source": SOURCE, "assumptions": ("ten numbers",)}
    return claims.claim("theory/numbers", control=but("larger numbers", scale=3.0), **texts, **options)


@described(at_most=2.0)
def numbers(generator: torch.Generator, *, scale: float = 1.0) -> Measured:
    r"""Ten numbers are at
    most   $1$, and $\max_i x_i \le 2$.
    """
    largest = float(scale * (1 + torch.rand(10, generator=generator)).max())
    return Measured(largest, {"scale": scale}, note="drawn")


@described(at_least=0.5)
def number(generator: torch.Generator, *, scale: float = 1.0) -> float:
    """The number is $1$."""
    return scale


def test_a_decorated_function_is_a_claim_with_a_control():
    assert (numbers.id, numbers.theory, numbers.cost, numbers.corrects) == (
        "theory/numbers",
        "theory",
        "quick",
        "",
    )
    assert numbers.statement == r"Ten numbers are at most $1$, and $\max_i x_i \le 2$."
    assert (numbers.op, numbers.threshold) == ("<=", 2.0)
    assert (number.op, number.threshold) == (">=", 0.5)
    assert repr(number).endswith("measures='largest number', ≥ 0.500)")
    assert numbers.control_description == "larger numbers"
    check, control = numbers.run(3)
    assert control.value == pytest.approx(3 * check.value)
    assert (check.detail, control.detail, check.note) == ({"scale": 1.0}, {"scale": 3.0}, "drawn")
    assert numbers.check(torch.Generator().manual_seed(3), scale=3.0) == control
    assert (numbers.verify(range(3)).outcome, number.verify(range(3)).control) == ("consistent", "passes")


def test_the_control_may_be_another_function():
    other = replace(numbers, change=but("another function", number.function, scale=7.0))
    assert [evidence.value for evidence in other.verify(range(2)).controls] == [7.0, 7.0]
    with pytest.raises(ValueError, match="'nothing'"):
        but("nothing")


def test_a_claim_needs_one_threshold_and_a_statement():
    for limits in ({}, {"at_most": 1.0, "at_least": 1.0}):
        with pytest.raises(ValueError, match="theory/numbers needs one threshold"):
            described(**limits)
    with pytest.raises(ValueError, match="theory/numbers has no statement"):
        described(at_most=1.0)(lambda generator, scale=1.0: scale)


def test_without_docstrings_the_import_fails_with_one_clear_line():
    code = "import transformer_theory.theories.length.claims"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "RuntimeError: the statements of claims are docstrings: run Python without -OO"
    )


def test_other_processes_get_the_name_of_a_claim_and_a_changed_claim_as_a_whole():
    assert pickle.loads(pickle.dumps(numbers)) is numbers
    rebuild, (module, name) = numbers.__reduce__()
    assert (rebuild(module, name), module, name) == (numbers, __name__, "numbers")
    assert replace(numbers, id="theory/changed").__reduce__()[0] is not rebuild


@each_case(
    ("op", "threshold", "value", "control", "margins"),
    [
        ("<=", 1.0, 0.5, 5.0, (2.0, 5.0)),
        ("<=", 1.0, -3.0, 4.0, (INF, 4.0)),  # the number has the other sign
        (">=", 2.0, 3.0, 0.5, (1.5, 4.0)),
        (">=", 2.0, 3.0, -0.5, (1.5, INF)),
        (">=", 2.0, 3.0, 0.0, (1.5, INF)),
        ("<=", -1.0, -1.5, -0.25, (1.5, 4.0)),
        ("<=", -1.0, -1.5, 0.25, (1.5, INF)),
        (">=", -0.5, -0.1, -2.0, (5.0, 4.0)),
        (">=", -0.5, 0.1, -2.0, (INF, 4.0)),
        ("<=", 0.0, 0.0, 0.1, (INF, INF)),  # no tolerance
        (">=", 1.0, 1.0, 0.9, (INF, INF)),
    ],
)
def test_the_margins_are_factors_of_the_threshold(op, threshold, value, control, margins):
    one = replace(claim(Measured(value), controls=(Measured(control),)), op=op, threshold=threshold)
    assert one.verify([0]).margins == pytest.approx(margins)


def test_the_margins_are_those_of_the_worst_seed_and_of_the_nearest_control():
    one = claim(Measured(0.1), Measured(0.4), Measured(0.2), controls=tuple(map(Measured, (9.0, 3.0, 6.0))))
    assert one.verify(range(3)).margins == pytest.approx((2.5, 3.0))
    assert claim(Measured(1.0), Measured(0.5), controls=(BAD,)).verify(range(2)).margins == (1.0, 2.0)
