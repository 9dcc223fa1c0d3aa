"""Selectors, the metric of heaviest keys and the selectors on data."""

from dataclasses import replace

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Activations
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.theories import router
from transformer_theory.theories.router import on_data
from transformer_theory.theories.router.in_networks import HEAVIEST
from transformer_theory.theories.router.ladder import draw_digits
from transformer_theory.theories.router.selector import Stack, selector_loss


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_stack_computes_what_its_networks_compute():
    networks = [router.RouterSelector(5, sees=3, classes=4) for _ in range(3)]
    tokens = torch.randn(3, 6, 7, 5, generator=generator())
    stack = Stack(networks)
    logits, scores = stack(tokens)
    for number, network in enumerate(networks):
        for one in (network, stack.network(number)):
            torch.testing.assert_close(one(tokens[number])[0], logits[number], rtol=1e-5, atol=1e-6)
            assert torch.equal(one.choose(tokens[number]), scores[number].argmax(-1))


def test_without_noise_the_head_reads_the_token_of_the_largest_score_alone():
    network = router.RouterSelector(5, sees=2)
    tokens = torch.randn(6, 7, 5, generator=generator())
    chosen = tokens[torch.arange(6), network.choose(tokens)]
    torch.testing.assert_close(network(tokens)[0], network.head(chosen))


def test_a_router_that_sees_keys_does_not_change_with_the_contents():
    network = router.RouterSelector(5, sees=2)
    tokens = torch.randn(6, 7, 5, generator=generator())
    other = torch.cat([tokens[..., :2], torch.randn(6, 7, 3, generator=generator(1))], -1)
    assert torch.equal(network.scores(tokens)[0], network.scores(other)[0])


def test_the_loss_is_cross_entropy_and_entropy():
    stack = Stack([router.RouterSelector(3) for _ in range(2)])
    tokens, labels = (
        torch.randn(2, 8, 4, 3, generator=generator()),
        torch.randint(2, (2, 8), generator=generator()),
    )
    noise = torch.zeros(2, 8, 4)
    logits, scores = stack(tokens, noise, 1.0, False)
    p = torch.softmax(scores.detach(), -1).double()
    expected = (
        -torch.log_softmax(logits, -1).gather(-1, labels[..., None]).mean((1, 2)).sum()
        + 0.3 * -(p * p.log()).sum(-1).mean(1).sum()
    )
    assert float(selector_loss(stack, (tokens, labels, noise, (1.0, False, 0.3))).detach()) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_the_schedule_is_soft_and_free_first_then_hard_with_penalty():
    assert router.ANNEALED.at(0.0) == (3.0, False, 0.0)
    temperature, hard, penalty = router.ANNEALED.at(0.25)
    assert (hard, penalty) == (False, 0.0)
    assert temperature == pytest.approx((3 * 0.5) ** 0.5)
    assert router.ANNEALED.at(0.5) == pytest.approx((0.5, True, 0.05))
    assert router.straight_through(0.5).at(0.0) == (1.0, True, 0.5)


def test_selectors_learn_the_needle_and_training_repeats():
    def draw(draws: torch.Generator):
        data = router.draw_needles(2, 32, tokens=4, generator=draws)
        return data.tokens, data.labels

    runs = [
        router.train_selectors(draw, 9, networks=2, steps=200, generator=generator(1), sees=8)
        for _ in range(2)
    ]
    data = router.draw_needles(2, 300, tokens=4, generator=generator(2))
    first, second = (router.measure_selectors(run, data) for run in runs)
    assert torch.equal(first.choices, second.choices)
    assert float(first.hit.max()) > 0.9
    assert bool((first.accuracy <= router.label_blind_bound(first.hit) + 0.09).all())


def test_the_information_of_each_selector_stands_beside_its_accuracy():
    data = router.draw_needles(2, 400, tokens=4, generator=generator())
    stack = Stack([router.RouterSelector(9, sees=8) for _ in range(2)])
    found = router.measure_selectors(stack, data)
    for number in range(2):
        expected = router.choice_information(
            found.choices[number], data.labels[number], given=data.needle[number]
        )
        assert float(found.information[number]) == pytest.approx(expected)


def test_large_labels_are_told_apart():
    metric = router.HeaviestKey()
    metric.update(attention(pointing(torch.arange(60) % 2, 2), torch.arange(60) % 2 * 2**40))
    (row,) = metric.compute()
    assert row.value > 0.5
    assert "of bias were subtracted" in row.note


def test_digits_as_contents_are_balanced_and_their_keys_are_marked():
    data = draw_digits(2, 500, generator=generator())
    assert data.tokens.shape == (2, 500, 16, 12)
    assert float(data.labels.double().mean()) == pytest.approx(0.5, abs=0.06)
    assert float((data.tokens[..., 0].argmax(-1) == data.needle).double().mean()) > 0.95


def attention(weights: torch.Tensor, labels: torch.Tensor | None) -> Activations:
    n, _, seq, _ = weights.shape
    tokens = torch.randn(n, seq, 3, generator=generator(9))
    return Activations("attention", 0, "attention", tokens, tokens, weights=weights, labels=labels)


def pointing(choice: torch.Tensor, keys: int) -> torch.Tensor:
    """Attention of one head whose queries all point to one key per sequence."""
    return torch.nn.functional.one_hot(choice, keys).float()[:, None, None].expand(-1, 1, keys, keys)


def test_the_metric_finds_a_choice_that_tells_the_label_and_none_in_noise():
    labels = torch.randint(3, (240,), generator=generator())
    for choice, told in ((labels + 1, True), (torch.randint(5, (240,), generator=generator(1)), False)):
        whole, halves = router.HeaviestKey(), [router.HeaviestKey() for _ in range(2)]
        weights = pointing(choice, 5)
        whole.update(attention(weights, labels))
        for metric, rows in zip(halves, (slice(0, 100), slice(100, 240))):
            metric.update(attention(weights[rows], labels[rows]))
        halves[0].merge(halves[1])
        (row,), (merged,) = (metric.compute(draws=19) for metric in (whole, halves[0]))
        assert row == merged
        assert row.quantity == HEAVIEST
        assert row.null is not None
        assert row.value is not None
        assert (row.value > row.null.high) == told
        if told:
            assert row.value == pytest.approx(router.choice_information(choice, labels))
            assert row.value > 1.0


@each_case(
    ("labels", "reason"),
    [
        (None, "no label per sequence"),
        (torch.full((6,), -1), "no label per sequence"),
        (torch.zeros(6, dtype=torch.long), "all sequences have one label"),
        (torch.arange(6), "the bias would be"),
        (torch.zeros(6, 4, dtype=torch.long), "no label per sequence"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_the_metric_gives_one_row_with_the_reason(labels: torch.Tensor | None, reason: str):
    metric = router.HeaviestKey()
    metric.update(attention(pointing(torch.arange(6) % 4, 4), labels))
    (row,) = metric.compute(draws=3)
    assert row.value is None
    assert reason in row.reason


def test_the_choice_is_that_of_the_token_that_is_read():
    """The first token points at the label; the mean over all tokens points elsewhere."""
    labels = torch.arange(60) % 2
    weights = pointing(labels.flip(0), 3).clone()
    weights[:, 0, 0] = torch.nn.functional.one_hot(labels, 3).float()
    x = torch.randn(60, 3, 2, generator=generator())
    seen = Activations("attention", 0, "attention", x, x, weights=weights, labels=labels)
    first = (torch.arange(3) == 0).expand(60, 3)
    for read, expected in ((first, labels), (None, labels.flip(0))):
        metric = router.HeaviestKey()
        metric.update(replace(seen, read=read))
        assert metric.sums[0, 0][:, 1].tolist() == expected.tolist()
        restored = router.HeaviestKey()
        restored.load_state_dict(metric.state_dict())
        assert restored.compute(draws=3) == metric.compute(draws=3)


def test_weights_that_are_not_finite_are_left_out():
    metric, weights = router.HeaviestKey(), pointing(torch.arange(8) % 2, 2).clone()
    weights[3] = torch.nan
    metric.update(attention(weights, torch.arange(8) % 2))
    assert len(metric.sums[0, 0]) == 7


def test_attention_in_windows_gives_one_row_with_the_reason():
    metric = router.HeaviestKey()
    tokens, labels = torch.zeros(3, 4, 2), torch.arange(3)
    weights = pointing(torch.arange(6) % 4, 4)
    metric.update(Activations("attention", 0, "attention", tokens, tokens, weights=weights, labels=labels))
    (row,) = metric.compute()
    assert "windows" in row.reason


def marked(n: int = 600, *, told: bool = True) -> TokenData:
    """Tokens of noise; in class k the token at position k is large."""
    labels = torch.arange(n) % 3
    tokens = torch.randn(n, 4, 2, generator=generator(), dtype=torch.float64)
    if told:
        tokens[torch.arange(n), labels] += 6
    return TokenData(tokens=tokens, labels=labels, name="marked")


def rows_on(data: TokenData, seed: int = 0, draws: int = 39) -> dict[str, Measurement]:
    table, _ = collect(on_data.measure(on_data.read(data), generator(seed), draws=draws))
    return {row.quantity: row for row in table}


def test_on_data_the_choice_tells_the_label_where_it_can():
    rows = rows_on(marked())
    information = rows[on_data.INFORMATION]
    assert information.value > 0.4 > 10 * information.null.high
    assert rows[on_data.ACCURACY].value > rows[on_data.BLIND].value + 0.1


def test_on_noise_the_information_is_inside_its_null():
    values = [rows_on(marked(240, told=False), seed)[on_data.INFORMATION] for seed in range(2)]
    assert sum((1 + sum(draw >= row.value for draw in row.null.draws)) / 40 <= 0.05 for row in values) <= 1


@each_case(
    ("data", "reason"),
    [
        (replace(marked(), labels=None), "needs labels"),
        (replace(marked(), labels=torch.zeros(600, dtype=torch.long)), "needs at least two classes"),
        (
            TokenData(tokens=torch.randn(9, 1, 2, generator=generator()), labels=torch.arange(9) % 2),
            "needs sequences of 2 to 64 tokens",
        ),
        (replace(marked(), labels=torch.arange(600)), "needs at least 1800 sequences"),
    ],
)
def test_data_that_do_not_fit_have_a_reason(data: TokenData, reason: str):
    found = on_data.read(data)
    assert isinstance(found, Unsupported)
    assert reason in found.reason
