"""Checkable statements of scan-and-snap, each with a control that must fail, and each about one named dynamics; one file a subject.

Source: :cite:t:`tian2023scan`.
"""

from . import counts, decoder, fates, gradient, growth, relative_gain

CLAIMS = (*relative_gain.CLAIMS, *fates.CLAIMS, *growth.CLAIMS, *decoder.CLAIMS, *gradient.CLAIMS, *counts.CLAIMS)

__all__ = ["CLAIMS"]
