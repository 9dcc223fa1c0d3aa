"""Pictures of the room, drawn from the stored arrays alone."""

from .unrolled import draw, rate_panel

__all__ = ["draw", "rate_panel"]
