"""The claims of the theory of collapse."""

from . import pure_attention, random_weights

CLAIMS = (*pure_attention.CLAIMS, *random_weights.CLAIMS)
