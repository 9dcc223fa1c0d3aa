"""The claims of JoMA, each with a control that must fail; one file per subject."""

from . import invariants, latents, linear, networks, nonlinear

CLAIMS = (*invariants.CLAIMS, *linear.CLAIMS, *nonlinear.CLAIMS, *latents.CLAIMS, *networks.CLAIMS)

__all__ = ["CLAIMS"]
