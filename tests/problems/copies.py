"""Measurements with few randomised copies of a network and few draws on data, where their number does not
matter.
"""

from transformer_theory.comparison import on_data, user_models
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.probes.cost import plan
from transformer_theory.training.image import evaluate


def few_copies(monkeypatch, copies: int = 1) -> None:
    """Lets :func:`measure` draw ``copies`` copies of equal scale and one network with initial weights."""

    def planned(cost, **sizes):
        wanted = min(copies, sizes["copies"])
        return plan(cost, **{**sizes, "copies": wanted, "other_copies": {UNTRAINED: 1} if wanted else {}})

    monkeypatch.setattr(user_models, "plan", planned)


def few_stored_copies(monkeypatch, copies: int = 9, untrained: int = 5) -> None:
    """Draws few copies of each network of ``train`` in a comparison, and few with initial weights."""
    monkeypatch.setattr(evaluate, "SMALL_COPIES", copies)
    monkeypatch.setattr(evaluate, "RANGE_DRAWS", untrained)


def few_draws(monkeypatch, draws: int = 39) -> None:
    """Lets the theories take ``draws`` draws of their nulls on the data of a comparison."""
    monkeypatch.setattr(on_data, "DATA_DRAWS", draws)
