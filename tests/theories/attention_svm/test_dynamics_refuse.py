"""Arguments that no kind of descent accepts: one line each, before a step is taken."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.attention_svm import dynamics
from transformer_theory.theories.attention_svm.problem import cross_attention

NAN, INF = float("nan"), float("inf")
DRAWN = cross_attention(inputs=2, tokens=3, dim=4, generator=torch.Generator().manual_seed(0))
JOINT = dynamics.JointInstance(DRAWN.tokens, torch.ones(2, dtype=torch.float64))
ZEROS = torch.zeros(4, dtype=torch.float64)
RUNS = {
    "normalised": lambda steps=1, instance=DRAWN, state=None, **s: dynamics.normalised_descent(
        instance, state or begin(), steps=steps, **s
    ),
    "plain": lambda steps=1, instance=DRAWN, state=None, **s: dynamics.plain_descent(
        instance, state or begin(), steps=steps, **s
    ),
    "trajectory": lambda steps=1, instance=DRAWN, state=None, **s: list(
        dynamics.trajectory(instance, state or begin(), steps=(steps,), **s)
    ),
    "polyak": lambda steps=1, instance=DRAWN, state=None, **s: dynamics.polyak_descent(
        instance, state or begin(), steps=steps, **s
    ),
    "mirror": lambda steps=1, instance=DRAWN, state=None, **s: dynamics.mirror_descent(
        instance, state or begin(), steps=steps, **{"power": 3.0} | s
    ),
    "joint": lambda steps=1, instance=JOINT, state=None, **s: dynamics.joint_descent(
        instance, state or dynamics.JointState(ZEROS, ZEROS + 1), steps=steps, **s
    ),
    "ball": lambda steps=1, instance=DRAWN, radii=(1.0,), **s: dynamics.regularisation_path(
        instance, radii, generator=torch.Generator(), steps=steps, **s
    ),
    "factored ball": lambda steps=1, instance=DRAWN, radii=(1.0,), **s: dynamics.factored_path(
        instance, radii, generator=torch.Generator(), steps=steps, **s
    ),
}
STEPPED, WITH_STATE = (
    [n for n in RUNS if "ball" not in n],
    ["normalised", "plain", "trajectory", "polyak", "mirror"],
)


def begin():
    return dynamics.start(DRAWN)


@pytest.fixture(autouse=True)
def _(unchecked):
    """The library's own checks are tested, not those of the shapes in the signatures."""


@each_case("name", RUNS)
def test_steps_are_integers_from_zero_on(name):
    with pytest.raises(ValueError, match=r"steps .*got -1"):
        RUNS[name](steps=-1)
    for steps in (1.5, 2.0, NAN, INF, "ten"):
        with pytest.raises(TypeError, match="steps"):
            RUNS[name](steps=steps)
    RUNS[name](steps=np.int64(1))
    RUNS[name](steps=0)


@each_case("name", STEPPED)
def test_rates_are_positive_and_finite(name):
    for rate in (0, 0.0, -0.1, NAN, INF, -INF):
        with pytest.raises(ValueError, match=f"rate .*got {rate}"):
            RUNS[name](rate=rate)
    with pytest.raises(TypeError, match=r"rate .*got Tensor"):
        RUNS[name](rate=torch.tensor(0.1))
    RUNS[name](rate=np.float64(0.1))


@each_case("name", RUNS)
def test_losses_and_instances_are_named(name):
    with pytest.raises(TypeError, match=r"loss must be a Loss.*got str"):
        RUNS[name](loss="logistic")
    with pytest.raises(TypeError, match=r"instance must be .*Instance.*, got torch.float64 \[2, 3, 4\]"):
        RUNS[name](instance=DRAWN.tokens)


@each_case("name", [*WITH_STATE, "joint"])
def test_bare_weights_are_refused(name):
    for state in (torch.ones(1, dtype=torch.float64), [1.0], {"W": ZEROS}):
        with pytest.raises(TypeError, match=r"state must be .*State.*, got (torch.float64|list|dict)"):
            RUNS[name](state=state)
    with pytest.raises(TypeError, match=r"^(W|p) must be a tensor.*, got list"):
        RUNS[name](
            state=dynamics.JointState([0.0] * 4, ZEROS)
            if name == "joint"
            else dynamics.State([[0.0] * 4] * 4)
        )
    if name != "joint":
        for W, words in (
            (torch.zeros(4, 4), "W must be float64"),
            (torch.zeros(3, 4).double(), r"W must have shape \[4, 4\]"),
        ):
            with pytest.raises(ValueError, match=words):
                RUNS[name](state=dynamics.State(W))


@pytest.mark.parametrize("name", ["polyak", "mirror"])
def test_factors_are_refused_where_only_weights_are_moved(name):
    factors = dynamics.random_factors(DRAWN, generator=torch.Generator().manual_seed(0))
    with pytest.raises(TypeError, match="state must be State, got Factors"):
        RUNS[name](state=factors)


@pytest.mark.parametrize("name", ["polyak", "ball", "factored ball"])
def test_the_infimum_of_the_loss_is_unknown_for_other_heads(name):
    head = dynamics.relu_head(torch.eye(4, dtype=torch.float64))
    instance = dynamics.HeadInstance(DRAWN.tokens, DRAWN.query, torch.ones(2, dtype=torch.float64), head)
    with pytest.raises(TypeError, match="instance must be Instance, got HeadInstance"):
        RUNS[name](instance=instance)


@each_case(
    ("name", "settings", "message"),
    [
        ("normalised", {"eps": INF}, "eps .*got inf"),
        ("trajectory", {"eps": NAN}, "eps .*got nan"),
        ("plain", {"penalty": INF}, "penalty .*got inf"),
        ("joint", {"eps": (0.0, -1.0)}, "eps .*got -1.0"),
        ("joint", {"state": dynamics.JointState(ZEROS[:2], ZEROS)}, r"p must have shape \[4\]"),
        ("joint", {"state": dynamics.JointState(ZEROS, ZEROS * NAN)}, "v must be finite"),
        ("mirror", {"power": INF}, "power .*got inf"),
        ("mirror", {"power": 1.0}, "power"),
        ("polyak", {"longest": INF}, "longest .*got inf"),
        ("polyak", {"longest": 0.0}, "longest .*got 0"),
        ("ball", {"radii": (1.0, INF)}, "radii .*got inf"),
        ("ball", {"radii": ()}, "radii"),
        ("ball", {"radii": (2.0, 1.0)}, "radii"),
        ("factored ball", {"starts": 0}, "starts .*got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        RUNS[name](**settings)


@each_case("name", STEPPED)
def test_overflowing_weights_raise(name):
    """Steps of 1e308 that all go one way; the penalty pushes where the gradient is gone."""
    settings = {"polyak": {"longest": 1e308}, "mirror": {"power": 1.01}, "plain": {"penalty": 1.0}}.get(
        name, {}
    )
    with pytest.raises(
        ValueError, match=r"must keep (W|p) finite, got an overflow by step 40; pass a smaller rate"
    ):
        RUNS[name](steps=40, rate=1e308, **settings)


@pytest.mark.parametrize(
    "call",
    [
        dynamics.start,
        lambda i: dynamics.random_start(i, generator=torch.Generator()),
        dynamics.log_excess_loss,
    ],
)
def test_starts_and_losses_check_the_instance(call):
    with pytest.raises(TypeError, match=r"instance must be Instance.*got torch.float64 \[2, 3, 4\]"):
        call(DRAWN.tokens, *([torch.zeros(4, 4).double()] if call is dynamics.log_excess_loss else []))
    one = replace(DRAWN, tokens=DRAWN.tokens[:, :1], scores=DRAWN.scores[:, :1])
    with pytest.raises(ValueError, match="tokens"):
        call(one, *([torch.zeros(4, 4).double()] if call is dynamics.log_excess_loss else []))


def test_steps_of_a_trajectory_must_increase():
    with pytest.raises(ValueError, match=r"steps .*from 3, got 2"):
        list(dynamics.trajectory(DRAWN, begin(), steps=(3, 2)))


def test_a_path_needs_a_single_instance():
    batch = cross_attention(inputs=2, tokens=3, dim=4, generator=torch.Generator().manual_seed(0), trials=2)
    with pytest.raises(ValueError, match="batch"):
        dynamics.regularisation_path(batch, (1.0,), generator=torch.Generator())


def test_directions_and_divergences_check_their_arguments():
    with pytest.raises(TypeError, match="loss must be a Loss"):
        dynamics.descent_direction(DRAWN, begin().W, loss="logistic")
    with pytest.raises(TypeError, match="loss must be a Loss"):
        dynamics.log_excess_loss(DRAWN, begin().W, loss="logistic")
    with pytest.raises(ValueError, match=r"W must have shape \[4, 4\]"):
        dynamics.descent_direction(DRAWN, begin().W[:2])
    with pytest.raises(ValueError, match="power"):
        dynamics.bregman_divergence(begin().W, begin().W, power=0.5)
    assert dynamics.bregman_divergence(begin().W, begin().W + 1, power=3.0) == 1
