"""The claims of the theory, each with a check that could refute it and a control that must fail; one file per
subject.
"""

from . import approximations, causal, compression, gradients, interventions, objective, sparse_coding, trained

CLAIMS = (
    *compression.CLAIMS,
    *gradients.CLAIMS,
    *objective.CLAIMS,
    *approximations.CLAIMS,
    *causal.CLAIMS,
    *sparse_coding.CLAIMS,
    *trained.CLAIMS,
    *interventions.CLAIMS,
)
