r"""Predictions of contextual mappings for a network: the context that attention adds to a token matters.

In every attention, weights and values become those of the next sequence of the batch: each token receives the
context of another input, while its own vector stays in the stream. The control adds to the output of each
query and head a vector of the same length in a random direction. Another context is a possible one, so a
network that reads contexts must be misled by it more than by an uninformative direction. Source:
:cite:t:`yun2020transformers`.
"""

from dataclasses import replace

from ...core.intervention import Attended, Control, Intervention, moved_at_random
from ...core.sources import Source


def other_context(attended: Attended) -> Attended:
    """Exchanges weights and values for those of the next sequence."""
    return replace(
        attended, weights=attended.of_next(attended.weights), value=attended.of_next(attended.value)
    )


def random_direction(attended: Attended) -> Attended:
    """Moves the output of each query as far as :func:`other_context` does, in a random direction."""
    own = attended.output
    return attended.with_output(moved_at_random(own, attended.of_next(own) - own, attended.generator))


INTERVENTIONS = (
    Intervention(
        name="context of another sequence",
        change=other_context,
        predicts="broken",
        controls=(Control("as long changes in random directions", random_direction),),
        source=Source("yun2020transformers", status="own"),
    ),
)
