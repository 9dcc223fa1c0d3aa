"""Moved to :mod:`.attention`."""

from .attention import tied_attention as tied_attention
