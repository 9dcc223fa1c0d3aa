"""What the theory says, as checks that could refute it, each with a control that must be refuted; one file a subject.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from . import descent, factored, feasibility, joint, prompt, regularisation_path, sequences

CLAIMS = (
    *descent.CLAIMS,
    *factored.CLAIMS,
    *prompt.CLAIMS,
    *joint.CLAIMS,
    *regularisation_path.CLAIMS,
    *sequences.CLAIMS,
    *feasibility.CLAIMS,
)

__all__ = ["CLAIMS"]
