"""The claims of the theory. Each has a check that could refute it and a control that must fail; one file per
subject.
"""

from . import (
    definitions,
    descent,
    factors,
    graph,
    interventions,
    joint,
    multi_token,
    paths,
    prompt,
    sequences,
    solutions,
    steps,
)

CLAIMS = (
    *definitions.CLAIMS,
    *descent.CLAIMS,
    *steps.CLAIMS,
    *prompt.CLAIMS,
    *joint.CLAIMS,
    *factors.CLAIMS,
    *paths.CLAIMS,
    *sequences.CLAIMS,
    *multi_token.CLAIMS,
    *solutions.CLAIMS,
    *graph.CLAIMS,
    *interventions.CLAIMS,
)
