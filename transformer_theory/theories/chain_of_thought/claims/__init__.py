"""The checkable statements of the theory of chains of thought."""

from . import chains, steps, trained

CLAIMS = (*chains.CLAIMS, *steps.CLAIMS, *trained.CLAIMS)

__all__ = ["CLAIMS"]
