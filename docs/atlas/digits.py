"""Small networks on the handwritten digits, trained in seconds by the recipes of the demo with seed 0:
``transformer-theory measure docs/atlas/digits.py:digits_vit``. Each function returns a network, the
validation digits as tokens, and their labels.
"""

from torch import Tensor, nn

from transformer_theory.training.trained_rungs import trained_network

Trained = tuple[nn.Module, Tensor, Tensor]


def digits_vit() -> Trained:
    """Returns a ViT."""
    return _trained("ViT")


def digits_crate() -> Trained:
    """Returns a CRATE in the released form."""
    return _trained("CRATE (released form)")


def digits_crate_paper() -> Trained:
    """Returns a CRATE in the form of the paper."""
    return _trained("CRATE (paper form)")


def _trained(recipe: str) -> Trained:
    network, digits = trained_network(recipe, 0)
    assert digits.labels is not None  # digits have classes
    return network, digits.tokens, digits.labels
