"""Moved to :mod:`.attention`."""

from .attention import softmax_attention as softmax_attention
