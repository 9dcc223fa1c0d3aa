"""Measurements with few randomised copies of a network and few draws on data, where their number does not
matter.
"""

from transformer_theory.comparison import on_data, user_models
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.probes.cost import plan


def few_copies(monkeypatch, copies: int = 1) -> None:
    """Lets :func:`measure` draw ``copies`` copies of equal scale and one network with initial weights."""

    def planned(cost, **sizes):
        wanted = min(copies, sizes["copies"])
        return plan(cost, **{**sizes, "copies": wanted, "other_copies": {UNTRAINED: 1} if wanted else {}})

    monkeypatch.setattr(user_models, "plan", planned)


def few_draws(monkeypatch, draws: int = 39) -> None:
    """Lets the theories take ``draws`` draws of their nulls on the data of a comparison."""
    monkeypatch.setattr(on_data, "DATA_DRAWS", draws)
