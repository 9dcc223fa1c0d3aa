"""What the theory of CRATE states, as checks that could refute it, each with a control that must be refuted; one file a subject.

Source: :cite:t:`yu2023white`.
"""

from . import compression, sparse_coding

CLAIMS = (*compression.CLAIMS, *sparse_coding.CLAIMS)

__all__ = ["CLAIMS"]
