"""The claims of JoMA, each with a control that must fail; one file per subject."""

from . import flows, invariants, latents

CLAIMS = (*invariants.CLAIMS, *flows.CLAIMS, *latents.CLAIMS)

__all__ = ["CLAIMS"]
