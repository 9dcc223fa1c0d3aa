"""The checkable statements of the theory of chains of thought."""

from .chains import CHAINS
from .steps import STEPS
from .trained import TRAINED

CLAIMS = CHAINS + STEPS + TRAINED

__all__ = ["CLAIMS"]
