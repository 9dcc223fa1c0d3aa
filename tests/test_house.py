import jaxtyping
import pytest
import torch


def test_shape_checks_are_on_in_tests():
    from transformer_theory.data import TokenData

    with pytest.raises(jaxtyping.TypeCheckError):
        TokenData(tokens=torch.zeros(2, 3))


def test_unchecked_shows_our_own_messages(unchecked):
    from transformer_theory.data import TokenData

    with pytest.raises(ValueError, match=r"tokens must have shape \[n, seq, dim\], got \[2, 3\]"):
        TokenData(tokens=torch.zeros(2, 3))
    jaxtyping.config.update("jaxtyping_disable", False)
    with pytest.raises(jaxtyping.TypeCheckError):  # the fixture, not the message, made the difference
        TokenData(tokens=torch.zeros(2, 3))
