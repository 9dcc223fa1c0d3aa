"""The random choice, its gradient and the information of a choice, by second routes; bad input."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.metrics import mutual_info_score

from tests.cases import each_case
from transformer_theory.theories import router
from transformer_theory.theories.router import choice, information, needle


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logistic_density(u: float) -> float:
    return 0.25 / math.cosh(u / 2) ** 2


@each_case("delta", [0.0, 0.005, 0.02, -0.7, 1.0, 5.0, -40.0])
def test_the_mean_of_the_relaxed_gradient_is_a_convolution(delta: float):
    expected = quad(
        lambda u: logistic_density(u) * logistic_density(u - delta),
        -60,
        60,
        points=[0, delta],
        epsabs=1e-13,
        limit=200,
    )[0]
    assert choice.relaxed_gradient_mean(delta) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_the_second_moment_is_the_limit_of_the_integral():
    delta, temperature = 0.6, 0.02
    integrand = lambda v: logistic_density(v) ** 2 * logistic_density(temperature * v - delta) / temperature  # noqa: E731
    expected = quad(integrand, -40, 40)[0]
    assert choice.relaxed_gradient_second_moment(delta, temperature) == pytest.approx(expected, rel=1e-3)


def test_the_entropy_gradient_is_that_of_automatic_differentiation():
    scores = torch.randn(5, 7, generator=generator(), dtype=torch.float64).requires_grad_()
    p = torch.softmax(scores, -1)
    (expected,) = torch.autograd.grad(-(p * p.log()).sum(), scores)
    torch.testing.assert_close(choice.entropy_gradient(scores.detach()), expected, rtol=1e-10, atol=1e-13)
    # without a batch
    torch.testing.assert_close(
        choice.entropy_gradient(scores.detach()[0]), expected[0], rtol=1e-10, atol=1e-13
    )
    float32 = choice.entropy_gradient(scores.detach().float().numpy())
    assert float32.dtype == torch.float64
    torch.testing.assert_close(float32, expected, rtol=1e-4, atol=1e-6)


def test_the_hard_choice_is_one_hot_with_the_gradient_of_the_soft_one():
    noise = choice.gumbel_noise(4, 6, generator=generator())
    scores = torch.randn(4, 6, generator=generator(1), dtype=torch.float64).requires_grad_()
    weights = torch.randn(4, 6, generator=generator(2), dtype=torch.float64)
    gradients = []
    for hard in (True, False):
        z = choice.gumbel_softmax(scores, noise, temperature=0.7, hard=hard)
        gradients.append(torch.autograd.grad((z * weights).sum(), scores)[0])
        if hard:
            assert torch.equal(z.argmax(-1), (scores + noise).argmax(-1))
            torch.testing.assert_close(z.sort(-1).values[:, :-1], torch.zeros(4, 5, dtype=torch.float64))
    torch.testing.assert_close(*gradients)


def test_numpy_arrays_and_integers_are_converted():
    z = router.gumbel_softmax(np.array([0, 3, 1]), np.zeros(3), temperature=0.5, hard=False)
    torch.testing.assert_close(z, torch.softmax(torch.tensor([0.0, 6.0, 2.0], dtype=torch.float64), 0))
    assert int(router.sample_choice([0, 900], 1, generator=generator())) == 1
    assert router.hit([1, 2, 3], np.array([1, 0, 3])) == pytest.approx(2 / 3)
    assert float(router.label_blind_bound(np.float32(0.5))) == 0.75


def test_gumbel_noise_has_the_moments_of_the_gumbel_distribution_and_leaves_the_global_generator():
    state = torch.get_rng_state()
    noise = choice.gumbel_noise(200_000, generator=generator())
    assert torch.equal(state, torch.get_rng_state())
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert torch.isfinite(choice.gumbel_noise(100_000, generator=generator(), dtype=torch.float32)).all()


def test_information_is_that_of_scikit_learn():
    chosen, labels = (
        torch.randint(5, (300,), generator=generator()),
        torch.randint(3, (300,), generator=generator(1)),
    )
    chosen = torch.where(labels == 1, labels, chosen)
    plain = router.choice_information(chosen, labels, corrected=False)
    assert plain == pytest.approx(mutual_info_score(chosen, labels), abs=1e-12)
    assert router.choice_information(chosen.numpy() + 7, labels.int()) == pytest.approx(
        plain - 4 * 2 / 600, abs=1e-12
    )


def test_conditional_information_is_the_mean_over_the_groups():
    given = torch.tensor([0, 0, 0, 0, 1, 1])
    chosen, labels = torch.tensor([0, 1, 0, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 0, 1])
    assert router.choice_information(chosen, labels, given=given, corrected=False) == pytest.approx(
        4 / 6 * math.log(2)
    )


def test_the_null_of_the_information_contains_it_on_noise():
    """The share of p-values of at most .05 among 100 sets of noise lies within three standard errors
    of .05.
    """
    found = 0
    for seed in range(100):
        chosen, labels = torch.randint(6, (2, 80), generator=generator(seed)).unbind()
        null = information.information_null(chosen, labels % 3, 39)
        found += (
            1 + sum(draw >= router.choice_information(chosen, labels % 3) for draw in null)
        ) / 40 <= 0.05
    assert found / 100 <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5


@pytest.mark.parametrize("tokens", [2, 5, 16])
def test_accuracies_at_the_uniform_start_are_those_of_samples(tokens: int):
    data = needle.draw_needles(40_000, tokens=tokens, generator=generator())
    contents, labels = data.tokens[..., -1], data.labels
    one = contents.gather(1, torch.randint(tokens, (40_000, 1), generator=generator(1)))[:, 0]
    total = contents.sum(1)
    right = torch.where(total == 0, 0.5, ((total > 0) == (labels == 1)).double()).mean()
    expected = router.uniform_accuracies(tokens)
    assert float(((one > 0) == (labels == 1)).double().mean()) == pytest.approx(expected[0], abs=0.012)
    assert float(right) == pytest.approx(expected[1], abs=0.012)


def test_listed_needles_are_all_sequences():
    data = router.enumerate_needles(4)
    assert data.tokens.shape == (64, 4, 2)
    assert len(data.tokens.flatten(1).unique(dim=0)) == 64
    assert torch.equal(data.tokens[..., 0].argmax(1), data.needle)
    assert torch.equal((data.tokens[torch.arange(64), data.needle, 1] > 0).long(), data.labels)


def trained(tokens: torch.Tensor, labels: torch.Tensor):
    return router.train_selectors(lambda _: (tokens, labels), 4, networks=2, steps=1, generator=generator())


BAD = {
    "temperature 0": (
        lambda: router.gumbel_softmax(torch.zeros(2), torch.zeros(2), temperature=0.0),
        "temperature must be positive",
    ),
    "temperature below 0": (lambda: router.Schedule(end=-1.0), "end must be positive"),
    "temperature NaN": (lambda: router.Schedule(start=math.nan), "start must be positive"),
    "negative penalty": (lambda: router.Schedule(penalty=-0.1), "penalty must be at least 0"),
    "share above 1": (lambda: router.Schedule(hard_from=1.5), "hard_from must be a share"),
    "scores NaN": (
        lambda: router.sample_choice(torch.tensor([0.0, math.nan]), 3, generator=generator()),
        "scores must be finite",
    ),
    "one token": (
        lambda: router.draw_needles(3, tokens=1, generator=generator()),
        "tokens must be at least 2",
    ),
    "too many to list": (lambda: router.enumerate_needles(17), "tokens must be at most 16"),
    "one class": (lambda: router.RouterSelector(4, classes=1), "classes must be at least 2"),
    "router sees too much": (lambda: router.RouterSelector(4, sees=5), "sees must be at most"),
    "sequences of one token": (lambda: router.RouterSelector(4)(torch.zeros(2, 1, 4)), "at least two tokens"),
    "tokens NaN": (
        lambda: router.RouterSelector(4).choose(torch.full((2, 3, 4), math.nan)),
        "tokens must be finite",
    ),
    "no draws": (
        lambda: router.sample_choice([0.0, 1.0], 0, generator=generator()),
        "draws must be at least 1",
    ),
    "lengths differ": (
        lambda: router.choice_information([0, 1], [0, 1, 1]),
        "labels must be one integer per sample",
    ),
    "no samples": (
        lambda: router.choice_information(np.zeros(0, int), np.zeros(0, int)),
        "choice must be one integer per sample",
    ),
    "continuous labels": (lambda: router.choice_information([0, 1], [0.5, 1.5]), "labels must be integers"),
    "hit of other samples": (lambda: router.hit([0, 1], [0]), "positions of the same samples"),
    "hit above 1": (lambda: router.label_blind_bound(1.2), "hit must be a share"),
    "hit NaN": (lambda: router.label_blind_bound(math.nan), "hit must be a share"),
    "noise of another shape": (lambda: router.gumbel_softmax([0, 1.0], [0, 0, 0.0]), "of equal shape"),
    "no tokens": (
        lambda: router.sample_choice(torch.zeros(3, 0), 2, generator=generator()),
        "at least one token",
    ),
    "difference NaN": (lambda: router.relaxed_gradient_mean(math.nan), "delta must be finite"),
    "observed of other samples": (
        lambda: router.best_accuracy(torch.zeros(3, 1), torch.zeros(2)),
        "observed must hold integers",
    ),
    "observed is a vector": (lambda: router.best_accuracy([0, 1], [0, 1]), "observed and labels must be"),
    "label below 0": (lambda: router.best_accuracy([[0], [1]], [-1, 1]), "observed and labels must be"),
    "negative weight": (
        lambda: router.best_accuracy([[0], [1]], [0, 1], [2.0, -1.0]),
        "weights must be probabilities",
    ),
    "tokens of another dimension": (
        lambda: router.RouterSelector(4).choose(torch.zeros(2, 3, 5)),
        "tokens must be",
    ),
    "one sequence": (lambda: router.RouterSelector(4).choose(torch.zeros(3, 4)), "tokens must be"),
    "training on other networks": (
        lambda: trained(torch.zeros(3, 8, 5, 4), torch.zeros(3, 8).long()),
        "draw must return tokens",
    ),
    "training on a fifth class": (
        lambda: trained(torch.zeros(2, 8, 5, 4), torch.full((2, 8), 4)),
        "labels must be integers from 0 to 1",
    ),
    "training on continuous labels": (
        lambda: trained(torch.zeros(2, 8, 5, 4), torch.rand(2, 8)),
        "labels must be integers from 0 to 1",
    ),
    "no networks": (
        lambda: router.train_selectors(tuple, 4, networks=0, generator=generator()),
        "networks must be at least 1",
    ),
}


@each_case("case", BAD)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_has_one_line(case: str):
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 200


def test_a_token_that_is_never_chosen_has_no_gradient():
    scores = torch.tensor([[0.0, -math.inf, 1.0], [0.0, -math.inf, -math.inf]], dtype=torch.float64)
    p = 1 / (1 + math.e)
    H = -p * math.log(p) - (1 - p) * math.log(1 - p)
    found = router.entropy_gradient(scores)
    expected = [[-p * (math.log(p) + H), 0.0, -(1 - p) * (math.log(1 - p) + H)], [0.0, 0.0, 0.0]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-15)
    zeros = torch.zeros_like(scores)
    soft = router.gumbel_softmax(scores, zeros, hard=False)
    assert torch.allclose(soft, torch.tensor([[p, 0, 1 - p], [1.0, 0, 0]], dtype=torch.float64))


@pytest.mark.parametrize("row", [[-math.inf, -math.inf], [math.nan, 0.0], [math.inf, 0.0]])
def test_rows_without_softmax_are_refused(row):
    scores = torch.tensor([[0.0, 1.0], row], dtype=torch.float64)
    for hard in (False, True):
        with pytest.raises(ValueError, match="finite largest one"):
            router.gumbel_softmax(scores, torch.zeros_like(scores), hard=hard)
    with pytest.raises(ValueError, match="finite largest one"):
        router.entropy_gradient(scores)


def test_a_temperature_near_zero_chooses_the_largest():
    scores = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    noise = torch.zeros_like(scores)
    assert router.gumbel_softmax(scores, noise, temperature=1e-320, hard=False).tolist() == [[0.0, 0.5, 0.5]]
    assert choice.exact_gradient(2000.0) == pytest.approx(0, abs=1e-300)


@pytest.mark.parametrize("weights", [[0.0, 0.0, 0.0], [1.0, 1.0, 2.0], [0.1, 0.1, 0.1]])
def test_weights_that_are_no_probabilities_are_refused(weights):
    observed, labels = torch.tensor([[0], [0], [1]]), torch.tensor([0, 1, 1])
    with pytest.raises(ValueError, match="sum to 1"):
        router.best_accuracy(observed, labels, torch.tensor(weights))
    probabilities = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    assert router.best_accuracy(observed, labels, probabilities) == 0.75
