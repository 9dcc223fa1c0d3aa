r"""How a contextual mapping is made: the codes of a few sequences layer by layer, and the codes of all grids.

Source: :cite:t:`yun2020transformers`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, judge
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..grids import collisions, column_codes, contexts, excluded_share, has_distinct_tokens
from ..mapping import ContextualMapping

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "universal"
COLLISIONS, EXCLUDED, LAYERS = (
    "tokens in context minus their codes",
    "share of grids with a repeated token",
    "attention layers",
)
CODE, DISTINCT, ALL = "code + 1", "distinct tokens", "all grids"


@dataclass(frozen=True)
class Codes(Experiment):
    """The codes of all grids with d = 1, without positions: distinct for distinct tokens, and colliding where
    a token repeats.
    """

    values: int = setting(5, ge=3, le=8, help="number k of values of an entry, 1/delta")
    tokens: int = setting(3, ge=3, le=4, help="number n of tokens")

    name = "universal.codes"
    sources = (Source("yun2020transformers", "Lemma 6", "second-hand"),)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the collisions with and without repeated tokens, the excluded share, and the codes."""
        k, n = self.values, self.tokens
        mapping = ContextualMapping(1, n, Fraction(1, k))
        grids = mapping.grids()
        distinct, number, codes = has_distinct_tokens(grids, k), contexts(grids, k), mapping.codes(grids)
        for chosen, text in ((distinct, DISTINCT), (~distinct | distinct, ALL)):
            count = collisions(number[chosen], codes[chosen])
            verdict = judge(count, "<=", 0.0, covered=text != ALL)
            columns = {"op": "<=", "threshold": 0.0, "verdict": verdict, "n": int(chosen.sum())}
            yield self.row(COLLISIONS, count, at={"grids": text}, **columns)
        share, predicted = float(1 - distinct.mean()), float(excluded_share(k, 1, n))
        yield self.row(EXCLUDED, share, unit="share", predicted=predicted)
        layers = mapping.layers()
        yield self.row(LAYERS, len(layers), predicted=float(k + 1))
        # One sequence through the selective shifts, with tokens from the smallest to the largest.
        sequence = np.linspace(0, k - 1, n).round().astype(int)
        tokens = mapping.embed(sequence[None, :, None])
        for shifts, layer in enumerate(layers):
            for position, code in enumerate(column_codes(tokens, k)[0]):
                at = {"position": position, "token": int(sequence[position]), "shifts": shifts}
                yield self.row(CODE, float(code) + 1, at=at)
            tokens = layer(tokens)
        arrays = {"own": column_codes(grids, k).ravel(), "codes": codes.ravel(), "number": number.ravel()}
        arrays |= {"distinct": np.repeat(distinct, n)}
        yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the codes of a sequence over the layers, and the codes of all tokens in context."""
        figure, (left, right) = axes(1, 2, height=3.2)
        first = result.select(quantity=CODE, at={"shifts": 0})
        looks = {row.at["position"]: {"label": f"token {row.at['token']}"} for row in first}
        sequence = ", ".join(f"{row.at['token']}" for row in first)
        axis = {"xlabel": "selective shifts", "ylabel": "code + 1", "yscale": "log"}
        panel = Panel(f"Sequence ({sequence})", CODE, lines=("position", looks), legend="ends", axes=axis)
        draw_curves(left, result, panel, x="shifts")
        _scatter(
            right, {name: result.arrays[f"{NAME}/{name}"] for name in ("own", "codes", "number", "distinct")}
        )
        right.set(title="All grids", xlabel="code of the token alone", ylabel="code in context + 1")
        (shared,) = result.select(quantity=COLLISIONS, at={"grids": ALL}).column("value")
        caption(
            figure,
            "Left: the selective shift for t = 0, 1, ... moves the tokens of code t above all others. Then "
            "a global shift, not shown, adds a multiple of the largest code to every token. Right: the "
            "results; each dot is a token in its context. In grids with distinct tokens (black) all codes "
            "differ, and lie above those of grids that repeat a token (orange). Crosses share a code. The "
            f"tokens in context are {shared:.0f} more than there are codes.",
        )
        return figure


def _scatter(ax, arrays: dict[str, np.ndarray]) -> None:
    """Draws the codes, and marks codes that belong to several tokens in context."""
    pairs = np.unique(
        np.stack([arrays["number"], arrays["own"], arrays["codes"], arrays["distinct"]], axis=1).astype(
            np.int64
        ),
        axis=0,
    )
    _, own, codes, distinct = pairs.T
    _, index, counts = np.unique(codes, return_inverse=True, return_counts=True)
    # Tokens with equal codes would hide one another, so each column of dots is spread by rank.
    places = own + np.linspace(-0.3, 0.3, len(codes))[np.argsort(np.argsort(codes))]
    for mask, tint, text in ((distinct == 1, "#3F4751", "distinct"), (distinct == 0, "#C78A1B", "repeated")):
        ax.scatter(places[mask], codes[mask] + 1, s=9, color=tint, label=text, linewidths=0, zorder=2)
    shared = counts[index] > 1
    ax.scatter(
        places[shared],
        codes[shared] + 1,
        s=16,
        color="#B3261E",
        marker="x",
        linewidths=0.9,
        label="shared code",
        zorder=3,
    )
    ax.set(yscale="log", xticks=range(int(own.max()) + 1))
    ax.legend(loc="lower right")
