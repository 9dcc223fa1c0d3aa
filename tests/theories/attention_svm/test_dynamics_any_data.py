"""Any finite data: every kind of descent returns finite weights or raises one of three errors; nothing is
ever NaN.
"""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_theory.theories.attention_svm import dynamics
from transformer_theory.theories.attention_svm.problem import Instance

REASONS = (
    "inputs must have at least two tokens, got one",
    "every trial must have a non-zero query",
    "must be between 1e-60 and 1e+60 in size",
)
LOSSES = (dynamics.LOGISTIC, dynamics.EXPONENTIAL, dynamics.LINEAR)


@st.composite
def problems(draw):
    """Small sizes, few different numbers so that tokens, scores and logits tie, at any scale."""
    n, T, d = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    coarse = draw(st.booleans())

    def numbers(*shape):
        low = draw(st.integers(-150, 150)) if draw(st.booleans()) else 0
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (drawn.round() if coarse else drawn) * 10.0**low

    return (
        numbers(n, T, d),
        numbers(n, d),
        numbers(n, T),
        draw(st.sampled_from(LOSSES)),
        numbers(d, d),
        numbers(d, d),
    )


def answer(call):
    """The value of the call; None if it raises one of the known errors."""
    try:
        return call()
    except ValueError as error:
        if any(reason in str(error) for reason in REASONS):
            return None
        raise


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_descent_returns_or_raises(problem):
    tokens, query, scores, loss, *start = problem
    instance = Instance(tokens, query, scores)
    W, Q = (V / V.abs().amax().clamp(min=1.0) for V in start)
    runs = {
        "normalised": partial(dynamics.normalised_descent, instance, dynamics.State(W), steps=6, loss=loss),
        "eps": partial(
            dynamics.normalised_descent, instance, dynamics.State(W), steps=6, loss=loss, eps=2e-16
        ),
        "penalty": partial(
            dynamics.normalised_descent, instance, dynamics.State(W), steps=6, loss=loss, penalty=2e-16
        ),
        "factors": partial(
            dynamics.normalised_descent, instance, dynamics.Factors(W, Q), steps=6, loss=loss, penalty=2e-16
        ),
        "polyak": partial(dynamics.polyak_descent, instance, dynamics.State(W), steps=6, loss=loss),
        "mirror": partial(
            dynamics.mirror_descent, instance, dynamics.State(W), power=3.0, steps=6, loss=loss
        ),
    }
    lengths = {"polyak": 60.0, "mirror": float("inf")}
    ends = {name: answer(run) for name, run in runs.items()}
    assert len({end is None for end in ends.values()}) == 1  # all accept the same data
    for name, end in ends.items():
        if end is not None:
            for before, after in zip(
                (W, Q), (end.K, end.Q) if isinstance(end, dynamics.Factors) else (end.W,)
            ):
                assert torch.isfinite(after).all()
                assert float((after - before).norm()) <= lengths.get(name, 0.6) * (1 + 1e-9)
    if ends["normalised"] is not None:
        M, C = dynamics.descent_direction(instance, W, loss=loss)
        assert torch.isfinite(M).all()
        assert torch.isfinite(C)
        assert not torch.isnan(dynamics.log_excess_loss(instance, W, loss=loss))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(problems())
def test_joint_descent_returns_or_raises(problem):
    tokens, query, _, loss, *_ = problem
    labels = torch.where(query[:, 0] > 0, 1.0, -1.0).double()
    instance = dynamics.JointInstance(tokens, labels)
    state = dynamics.JointState(torch.zeros(tokens.shape[-1]).double(), torch.ones(tokens.shape[-1]).double())
    end = answer(partial(dynamics.joint_descent, instance, state, steps=6, loss=loss))
    if end is not None:
        assert torch.isfinite(end.p).all()
        assert float(end.p.norm()) <= 0.6 * (1 + 1e-9)
        assert float((end.v - state.v).norm()) <= 0.6 * (1 + 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problems(), st.integers(-100, 100))
def test_paths_return_or_raise(problem, power):
    tokens, query, scores, loss, *_ = problem
    instance = Instance(tokens, query, scores)
    for follow in (dynamics.regularisation_path, dynamics.factored_path):
        generator = torch.Generator().manual_seed(0)
        path = answer(
            partial(follow, instance, (10.0**power,), generator=generator, starts=1, steps=3, loss=loss)
        )
        if path is not None:
            assert torch.isfinite(path.W).all()
            assert float(path.W[0].norm()) <= 10.0**power * (1 + 1e-9)
            assert not torch.isnan(path.log_excess).any()
            assert 0 <= float(path.residual[0]) <= 2


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_divergences_do_not_depend_on_the_size_of_the_matrices(scale, generator):
    A, B = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    for power in (1.1, 2.0, 5.0):
        far = dynamics.bregman_divergence(scale * A, B / scale, power=power)
        torch.testing.assert_close(far, dynamics.bregman_divergence(A, B, power=power), rtol=0, atol=1e-14)
