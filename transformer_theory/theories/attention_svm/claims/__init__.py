"""What the theory says, as checks that could refute it, each with a control that must be refuted; one file a subject.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from . import descent

CLAIMS = (*descent.CLAIMS,)

__all__ = ["CLAIMS"]
