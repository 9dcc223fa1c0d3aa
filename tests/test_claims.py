"""Verdicts: what a check may say, what follows from several seeds, and what a control is for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_theory.core.claims import Claim, Evidence
from transformer_theory.core.measurement import COLUMNS
from transformer_theory.core.sources import Source

NAN, INF = math.nan, math.inf
GOOD, BAD = Evidence(0.5, 1.0, "<="), Evidence(2.0, 1.0, "<=")
OPEN, OUTSIDE = Evidence(0.5, 1.0, "<=", converged=False), Evidence(2.0, 1.0, "<=", covered=False)


def claim(*evidence: Evidence, controls=(BAD,)) -> Claim:
    """A claim whose check returns the given evidence, one a seed."""

    def pick(choices):
        return lambda generator: choices[generator.initial_seed() % len(choices)]

    return Claim("room/name", "$a \\le 1$", Source("tian2023scan", "Thm. 3"), ("a holds",), pick(evidence), pick(controls), "a is broken")


@pytest.mark.parametrize(
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
        (Evidence(2.0, 1.0, "<=", covered=False), "outside assumptions"),
        (Evidence(NAN, 1.0, "<=", converged=False, covered=False), "outside assumptions"),
    ],
)
def test_the_verdict_of_one_check(evidence, verdict):
    assert evidence.verdict == verdict


@given(value=st.floats(), bound=st.floats(), op=st.sampled_from(["<=", ">="]), converged=st.booleans(), inside=st.booleans())
def test_a_verdict_never_comes_from_a_number_that_is_none(value, bound, op, converged, inside):
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


@pytest.mark.parametrize(
    ("evidence", "verdict", "share"),
    [
        ((GOOD, GOOD), "consistent", 1.0),
        ((GOOD, BAD), "violated", 0.5),
        ((GOOD, OPEN), "consistent", 1.0),
        ((OPEN, OUTSIDE), "inconclusive", NAN),
        ((OUTSIDE, OUTSIDE), "outside assumptions", NAN),
        ((OUTSIDE, GOOD), "consistent", 1.0),
        ((OPEN, BAD), "violated", 0.0),
    ],
)
def test_the_verdict_of_several_seeds(evidence, verdict, share):
    result = claim(*evidence).verify(range(2))
    assert result.verdict == verdict
    assert result.share == pytest.approx(share, nan_ok=True)


@pytest.mark.parametrize(
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

    def at_least(k, p):
        return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))

    assert low <= result.share <= high
    if good:
        assert at_least(good, low) == pytest.approx(0.025, rel=1e-6)
    if bad:
        assert 1 - at_least(good + 1, high) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(
    ("controls", "name"),
    [
        ((BAD,), "fails"),
        ((OUTSIDE,), "fails"),
        ((BAD, GOOD), "passes"),
        ((GOOD,), "passes"),
        ((OPEN, GOOD), "passes"),
        ((Evidence(0.5, 1.0, "<=", covered=False),), "passes"),
        ((OPEN,), "inconclusive"),
        ((BAD, OPEN), "inconclusive"),
        ((Evidence(NAN, 1.0, "<="),), "inconclusive"),
    ],
)
def test_a_control_must_fail_on_every_seed(controls, name):
    result = claim(GOOD, controls=controls).verify(range(4))
    assert result.control == name
    words = {"fails": "fails as it must", "passes": "PASSES: no power", "inconclusive": "inconclusive: power unknown"}
    assert str(result).endswith(f"; control {words[name]})")
    assert {row["control"] for row in result.rows()} == {name}


def test_check_and_control_see_the_same_fresh_generator():
    seen = []

    def draw(generator):
        seen.append((generator.initial_seed(), float(torch.rand(1, generator=generator))))
        return GOOD

    before = torch.get_rng_state()
    Claim("a/b", "", Source("tian2023scan"), (), draw, draw, "").verify((3, 8, 3))
    assert [seed for seed, _ in seen] == [3, 3, 8, 8, 3, 3]
    assert len({value for _, value in seen}) == 2
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_keep_the_schema_and_the_control():
    rows = claim(GOOD, BAD).verify((0, 1)).rows()
    assert len(rows) == 2
    assert all(set(row) <= set(COLUMNS) for row in rows)
    assert [row["seed"] for row in rows] == [0, 1]
    assert [row["verdict"] for row in rows] == ["consistent", "violated"]
    assert rows[0]["theory"] == "room"
    assert rows[0]["null"] == 2.0
    assert rows[0]["source"] == "tian2023scan, Thm. 3"


def test_words_are_honest():
    text = str(claim(GOOD).verify(range(3)))
    assert text == "room/name: consistent (3/3 seeds, 95 % interval [0.29, 1.00]; control fails as it must)"
    assert "prove" not in text.lower()


def test_no_seed_is_refused():
    with pytest.raises(ValueError, match="seeds must name at least one seed, got none"):
        claim(GOOD).verify(())
