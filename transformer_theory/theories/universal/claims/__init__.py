"""The claims of universal approximation, each with a control that must fail; one file per subject."""

from . import approximation, codes, networks

CLAIMS = (*codes.CLAIMS, *networks.CLAIMS, *approximation.CLAIMS)

__all__ = ["CLAIMS"]
