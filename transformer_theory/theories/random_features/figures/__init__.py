"""Figures of random-feature attention."""

from .errors import Errors

EXPERIMENTS = (Errors,)
