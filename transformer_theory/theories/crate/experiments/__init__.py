"""Runs of the room: layers unrolled on tokens of known subspaces, and networks that are trained; one file a run."""

from .unrolled import Unrolled

EXPERIMENTS = (Unrolled,)

__all__ = ["EXPERIMENTS", "Unrolled"]
