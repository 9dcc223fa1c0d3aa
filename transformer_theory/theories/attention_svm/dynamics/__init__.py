"""Gradient descent on attention weights: state in, state out.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from .descent import State, descent_direction, normalised_descent, plain_descent, random_start, start, trajectory

__all__ = ["State", "descent_direction", "normalised_descent", "plain_descent", "random_start", "start", "trajectory"]
