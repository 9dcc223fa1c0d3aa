"""The statements of the theory as checks that could refute it, each with a control that must be refuted; one file per subject."""

from . import descent, graph, joint, multi_token, paths, prompt, sequences, solutions, steps

CLAIMS = (
    *descent.CLAIMS,
    *steps.CLAIMS,
    *prompt.CLAIMS,
    *joint.CLAIMS,
    *paths.CLAIMS,
    *sequences.CLAIMS,
    *multi_token.CLAIMS,
    *solutions.CLAIMS,
    *graph.CLAIMS,
)
