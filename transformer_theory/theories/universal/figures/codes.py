r"""How a contextual mapping is made: the codes of a few sequences layer by layer, and the codes of all grids.

Source: :cite:t:`yun2020transformers`.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import setting
from ....core.figure import Panel, Reading, draw_curves, figure, reading
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..grids import collisions, column_codes, contexts, excluded_share, has_distinct_tokens
from ..mapping import ContextualMapping

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLLISIONS = "tokens in context minus their codes"
EXCLUDED, LAYERS = "share of grids with a repeated token", "attention layers"
CODE, DISTINCT, ALL = "code + 1", "distinct tokens", "all grids"
CONTEXTS = "universal/contexts"  # array: code, number, own code of each token in context; 1 in distinct grids


@style()
def draw(result: Result) -> "Figure":
    """Draws the codes of a sequence over the layers, and the codes of all tokens in context."""
    drawn, (left, right) = axes(1, 2, height=3.2)
    look = {"xlabel": "selective shifts", "ylabel": CODE, "yscale": "log"}
    draw_curves(
        left, result, Panel("One sequence", CODE, lines="token", legend="ends", axes=look), x="shifts"
    )
    code, _, own, distinct = np.unique(result.arrays[CONTEXTS], axis=0).T
    places = own + np.linspace(-0.3, 0.3, len(code))  # codes ascend, so equal ones lie side by side
    shared = np.isin(code, code[1:][code[1:] == code[:-1]])
    for mask, label, marker in (
        (distinct == 1, "distinct", "."),
        (distinct == 0, "repeated", "."),
        (shared, "shared code", "x"),
    ):
        right.plot(places[mask], code[mask] + 1, marker, label=label)
    right.set(title="All grids", xlabel="code of the token alone", ylabel="code in context + 1", yscale="log")
    right.legend(loc="lower right")
    count = result.select(quantity=COLLISIONS, at={"grids": ALL})[0].value
    caption(
        drawn,
        "Left: the selective shift for t = 0, 1, ... moves the tokens of code t above all others. Then a "
        "global shift, not shown, adds a multiple of the largest code to every token. Right: the results; "
        "each dot is a token in its context. In grids with distinct tokens all codes differ, and lie above "
        "those of grids that repeat a token. Crosses share a code. The tokens in context are "
        f"{count:.0f} more than there are codes.",
    )
    return drawn


@figure("universal.codes", source=Source("yun2020transformers", "Lemma 6", "second-hand"), view=draw)
def codes(
    *,
    values: int = setting(5, ge=3, le=8, help="number k of values of an entry, 1/delta"),
    tokens: int = setting(3, ge=3, le=4, help="number n of tokens"),
) -> Iterator[Reading | Arrays]:
    """The codes of all grids with d = 1, without positions: distinct for distinct tokens, and colliding where
    a token repeats.
    """
    mapping = ContextualMapping(1, tokens, Fraction(1, values))
    grids = mapping.grids()
    distinct, number = has_distinct_tokens(grids, values), contexts(grids, values)
    found = mapping.codes(grids)
    for chosen, text in ((distinct, DISTINCT), (~distinct | distinct, ALL)):
        count = collisions(number[chosen], found[chosen])
        columns = {"at": {"grids": text}, "n": int(chosen.sum())}
        yield reading(COLLISIONS, count, at_most=0.0, covered=text != ALL, **columns)
    predicted = float(excluded_share(values, 1, tokens))
    yield reading(EXCLUDED, float(1 - distinct.mean()), unit="share", predicted=predicted)
    layers = mapping.layers()
    yield reading(LAYERS, len(layers), predicted=float(values + 1))
    # One sequence through the selective shifts, with tokens from the smallest to the largest.
    sequence = np.linspace(0, values - 1, tokens).round().astype(int)
    embedded = mapping.embed(sequence[None, :, None])
    for shifts, layer in enumerate(layers):
        for position, code in enumerate(column_codes(embedded, values)[0]):
            at = {"position": position, "token": int(sequence[position]), "shifts": shifts}
            yield reading(CODE, float(code) + 1, at=at)
        embedded = layer(embedded)
    own = column_codes(grids, values)
    in_context = (found, number, own, np.broadcast_to(distinct[:, None], own.shape))
    yield Arrays({CONTEXTS: np.stack([one.ravel().astype(np.int64) for one in in_context], axis=1)})
