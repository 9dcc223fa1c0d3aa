"""What the theory says, as checks that could refute it, each with a control that must be refuted; one file a subject.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from . import (
    descent,
    factored,
    feasibility,
    graph,
    joint,
    mirror,
    multi_token,
    prompt,
    rank,
    rate,
    regularisation_path,
    sequences,
    solvers,
)

CLAIMS = (
    *descent.CLAIMS,
    *factored.CLAIMS,
    *rate.CLAIMS,
    *prompt.CLAIMS,
    *joint.CLAIMS,
    *regularisation_path.CLAIMS,
    *mirror.CLAIMS,
    *sequences.CLAIMS,
    *feasibility.CLAIMS,
    *multi_token.CLAIMS,
    *solvers.CLAIMS,
    *rank.CLAIMS,
    *graph.CLAIMS,
)

__all__ = ["CLAIMS"]
