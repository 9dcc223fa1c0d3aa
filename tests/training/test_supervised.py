"""Training of classifiers on tokens: what they learn, determinism, and errors."""

import math

import pytest
import torch
from torch import nn

from transformer_theory import models
from transformer_theory.core.errors import NotConverged
from transformer_theory.data.tokens import TokenData
from transformer_theory.training.supervised import _rate, accuracy, train_classifier

CLASSES = 3


def separable(n=96, seed=0):
    """The class is the direction that one token of each sequence points in."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    tokens = 0.1 * torch.randn(n, 5, 4, generator=generator, dtype=torch.float64)
    tokens[torch.arange(n), torch.randint(5, (n,), generator=generator), labels] += 2.0
    return TokenData(tokens=tokens, labels=labels)


def small(seed=0, kind=models.ViT):
    return models.build(
        lambda: kind.for_tokens(5, 4, CLASSES, dim=16, depth=1, heads=2), torch.Generator().manual_seed(seed)
    )


def run(model=None, *, seed=0, **settings):
    settings = {
        "steps": 60,
        "learning_rate": 5e-3,
        "generator": torch.Generator().manual_seed(seed),
    } | settings
    return train_classifier(small() if model is None else model, separable(), separable(seed=1), **settings)


@pytest.mark.parametrize("kind", [models.ViT, models.CRATE])
def test_a_separable_set_is_learnt(kind):
    trained = run(small(kind=kind), steps=120, checkpoints=(0,))
    assert trained.checkpoints == (0, 120)
    assert trained.accuracy[0] < 0.7
    assert trained.accuracy[-1] == accuracy(trained.model, separable(seed=1)) > 0.97
    assert trained.steps == 120
    assert trained.losses[-20:].mean() < 0.2 * trained.losses[:5].mean()
    assert trained.losses[0] == pytest.approx(math.log(CLASSES), rel=0.5)


def test_labels_without_relation_to_the_tokens_are_not_learnt():
    data = separable()
    shuffled = TokenData(
        tokens=data.tokens, labels=data.labels[torch.randperm(96, generator=torch.Generator().manual_seed(0))]
    )
    trained = train_classifier(
        small(),
        shuffled,
        separable(seed=1),
        steps=60,
        learning_rate=5e-3,
        generator=torch.Generator().manual_seed(0),
    )
    assert trained.accuracy[-1] < 0.7


def test_the_generator_determines_the_training_and_the_global_one_is_restored():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = run(), run(), run(seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.losses, again.losses)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters()))
    assert not torch.equal(first.losses, other.losses)


class Noisy(nn.Module):
    """A linear classifier behind dropout."""

    def __init__(self):
        super().__init__()
        self.drop, self.linear = nn.Dropout(0.5), nn.Linear(20, CLASSES)

    def forward(self, tokens):
        return self.linear(self.drop(tokens.flatten(1)))


def test_the_generator_determines_dropout():
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        losses.append(run(models.build(Noisy, torch.Generator().manual_seed(0))).losses)
    assert torch.equal(*losses)


def test_callbacks_change_nothing_and_run_in_evaluation_mode():
    seen = []

    def callback(step, model):
        # a callback may draw from the global generator of its fork, but not from that of the batches
        torch.rand(3)
        seen.append((step, model.training, torch.is_grad_enabled()))

    watched = run(checkpoints=(0, 7, 60), callback=callback)
    assert seen == [(0, False, False), (7, False, False), (60, False, False)]
    assert watched.checkpoints == (0, 7, 60)
    assert torch.equal(watched.losses, run().losses)
    assert not watched.model.training


def test_callbacks_run_at_checkpoints_only_but_the_end_is_always_measured():
    seen = []
    trained = run(checkpoints=(10,), callback=lambda step, model: seen.append(step))
    assert seen == [10]
    assert trained.checkpoints == (10, 60)
    assert len(trained.accuracy) == 2


def test_the_schedule_rises_linearly_and_falls_as_a_cosine():
    rates = [_rate(step, 4, 20) for step in range(20)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4] == 1.0
    assert rates[12] == pytest.approx(0.5)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.02


def test_fewer_sequences_than_a_batch():
    data = separable(6)
    trained = train_classifier(
        small(), data, data, steps=3, learning_rate=1e-3, generator=torch.Generator().manual_seed(0)
    )
    assert torch.isfinite(trained.losses).all()


def test_a_loss_that_is_not_finite_names_the_step():
    class Broken(Noisy):
        calls = 0

        def forward(self, tokens):
            self.calls += 1
            return super().forward(tokens) * (math.nan if self.calls == 4 else 1.0)

    with pytest.raises(NotConverged, match=r"step 4: .* nan") as failed:
        run(Broken())
    assert isinstance(failed.value.state, Broken)


def test_bad_settings_are_named(unchecked):
    unlabelled = TokenData(tokens=separable().tokens)
    with pytest.raises(ValueError, match=r"train data .* labels"):
        train_classifier(
            small(), unlabelled, separable(), steps=1, learning_rate=1e-3, generator=torch.Generator()
        )
    with pytest.raises(ValueError, match=r"validation data .* labels"):
        train_classifier(
            small(), separable(), unlabelled, steps=1, learning_rate=1e-3, generator=torch.Generator()
        )
    with pytest.raises(ValueError, match="accuracy needs labels"):
        accuracy(small(), unlabelled)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        run(steps=0)
    with pytest.raises(ValueError, match=r"learning_rate .* nan"):
        run(learning_rate=math.nan)
    with pytest.raises(ValueError, match=r"\[0, 60\].* got 61"):
        run(checkpoints=(0, 61))
    wrong = TokenData(tokens=separable().tokens, labels=torch.full((96,), 5))
    with pytest.raises(ValueError, match="labels must lie below the number of logits, 3, got 5"):
        train_classifier(
            small(), wrong, separable(), steps=1, learning_rate=1e-3, generator=torch.Generator()
        )
