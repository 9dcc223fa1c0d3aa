"""What the theory of CRATE states, as checks that could refute it, each with a control that must be refuted; one file a subject.

Source: :cite:t:`yu2023white`.
"""

from . import causal, compression, denoising, neumann, sparse_coding, token_statistics, trained

CLAIMS = (
    *compression.CLAIMS,
    *neumann.CLAIMS,
    *denoising.CLAIMS,
    *token_statistics.CLAIMS,
    *causal.CLAIMS,
    *sparse_coding.CLAIMS,
    *trained.CLAIMS,
)

__all__ = ["CLAIMS"]
