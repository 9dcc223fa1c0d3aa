"""Training of language models against an explicit loop; reproducibility; errors."""

import math
from itertools import islice

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import NotConverged
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.models.decoder import Decoder
from transformer_theory.models.embedding import build
from transformer_theory.theories.scan_snap.language_training import adam, sgd, train_decoder
from transformer_theory.training.tasks import next_word_loss

WORDS = [f"w{i * i % 23:02d}" for i in range(400)]
TEXT = Text(Vocabulary.of(WORDS).numbers(WORDS), Vocabulary.of(WORDS))
SHORT = {"batch": 4, "length": 8}
PLAIN = sgd(1.0)


def model(seed=0, **settings):
    sizes = {"vocabulary": len(TEXT.vocabulary), "dim": 8, "depth": 2, "hidden": 12} | settings
    return build(lambda: Decoder(**sizes), torch.Generator().manual_seed(seed))


def fit(network, optimiser=PLAIN, **settings):
    return train_decoder(
        network,
        TEXT,
        optimiser=optimiser,
        generator=torch.Generator().manual_seed(0),
        **{"steps": 20} | SHORT | settings,
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_training_equals_an_explicit_loop(kind):
    by_hand, ours = model(dropout=0.0), model(dropout=0.0)
    fast = {id(p) for p in by_hand.blocks[0].mlp.parameters()}
    state = {p: [torch.zeros_like(p), torch.zeros_like(p)] for p in by_hand.parameters()}
    losses = []
    for step, batch in enumerate(islice(TEXT.batches(**SHORT), 20), start=1):
        value = functional.cross_entropy(by_hand(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        gradients = torch.autograd.grad(value, list(by_hand.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), gradients):
                g = g * min(1.0, 0.5 / (norm + 1e-6))
                if kind == "sgd":
                    p -= g * (2.0 if id(p) in fast else 1.0)
                    continue
                first, second = state[p]
                first.mul_(0.9).add_(0.1 * g)
                second.mul_(0.999).add_(0.001 * g * g)
                p -= 0.01 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        losses.append(value.item())
    run = fit(ours, {"sgd": sgd(1.0), "adam": adam(0.01)}[kind])
    assert_close(run.losses, torch.tensor(losses), rtol=1e-4, atol=1e-4)
    for a, b in zip(ours.parameters(), by_hand.parameters()):
        assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not run.model.training


def test_the_seed_decides_and_the_global_generator_stays():
    state = torch.get_rng_state()
    first, again, other = fit(model()), fit(model()), fit(model(1))
    assert torch.equal(first.losses, again.losses)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters()))
    assert not torch.equal(first.losses, other.losses)
    assert torch.equal(state, torch.get_rng_state())


def test_callbacks_do_not_change_the_training():
    values = []

    def callback(step, network):
        assert not network.training
        assert not torch.is_grad_enabled()
        values.append((step, float(next_word_loss(network, TEXT.windows(3, length=8)))))

    called, plain = fit(model(), callback_steps=(0, 5, 20), callback=callback), fit(model())
    assert [step for step, _ in values] == [0, 5, 20]
    assert values[-1][1] < values[0][1]
    assert torch.equal(called.losses, plain.losses)


def test_loss_is_the_mean_over_all_words_but_the_first():
    network, batch = model().eval(), TEXT.windows(3, length=8)
    by_hand = [
        -network(row[None, : t + 1])[0, -1].log_softmax(-1)[row[t + 1]].item()
        for row in batch
        for t in range(8)
    ]
    assert_close(next_word_loss(network, batch).item(), sum(by_hand) / len(by_hand), rtol=1e-5, atol=1e-5)


@each_case(
    ("call", "words"),
    [
        (lambda: sgd(0.0), "rate .*0.0"),
        (lambda: adam(math.nan), "rate .*nan"),
        (lambda: fit(model(), callback_steps=(21,)), "got 21"),
        (lambda: fit(model(vocabulary=5)), "13 words of text, got 5"),
        (lambda: fit(model(), clip=0.0), "clip"),
        (lambda: fit(model(), steps=0), "steps"),
    ],
)
def test_bad_settings_are_named(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_loss_that_is_not_finite_carries_the_model():
    with pytest.raises(NotConverged, match="step 2: the loss is nan") as error:
        fit(model(), sgd(1e38))
    assert isinstance(error.value.state, Decoder)
