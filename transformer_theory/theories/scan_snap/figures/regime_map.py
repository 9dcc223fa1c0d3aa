"""The map of regimes."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from ..flow import CLOSED, LEMMA4, MODIFIED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
KINDS = (  # agreement of the modified flow, Lemma 4 and the closed form with the exact flow: three bits
    (0, "none", "#F3F4F6"),
    (1, MODIFIED, "#B7D7EE"),
    (3, f"{MODIFIED} and {LEMMA4}", "#4A9CCF"),
    (7, "all three", "#0B5C8E"),
    (4, f"{CLOSED} alone (errors cancel)", "#F0C674"),
    (None, "others", "#C58FB0"),
)
SCANS = 0.5


def kinds(agree: np.ndarray) -> np.ndarray:
    """Number of the kind of each place from the agreement of the three dynamics, bool ``[..., 3]``."""
    pattern = agree @ np.array([1, 2, 4])
    return np.select([pattern == bits for bits, *_ in KINDS[:-1]], range(len(KINDS) - 1), default=len(KINDS) - 1)


def regime_map(result: Result) -> "Figure":
    """One panel for each number of classes and overlap; rates across, vocabulary upwards; colour: which dynamics agree with the exact
    flow (only what occurs is named); dot: that flow scans logarithmically, ring: the closed form does; frame: Assumption 2 holds."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch, Rectangle

    given, found = result.params, result.arrays[f"{NAME}/map"]
    K, E, V, R = found.shape[:4]
    figure, panels = axes(E, K, width=7.2, height=1.3 + 1.75 * E)
    colours, places = ListedColormap([tint for *_, tint in KINDS]), kinds(found[..., :3] <= given["within"])
    for ax, (e, k) in zip(panels, np.ndindex(E, K)):
        here = found[k, e]
        ax.imshow(places[k, e], cmap=colours, vmin=0, vmax=len(KINDS) - 1, origin="lower", aspect="auto")
        ax.grid(False)
        for v, r in np.ndindex(V, R):
            if here[v, r, 3] >= SCANS:
                ax.plot(r, v, ".", color=COLOURS[NAME], markersize=6)
            if here[v, r, 4] >= SCANS:
                ax.plot(r, v, "o", color=COLOURS[NAME], markerfacecolor="none", markersize=7, markeredgewidth=0.9)
            if here[v, r, 5]:
                ax.add_patch(Rectangle((r - 0.46, v - 0.44), 0.92, 0.88, fill=False, edgecolor=COLOURS["raw"], linewidth=0.9))
        ax.set_title(f"K = {given['classes'][k]}, $E_0$ = {given['overlaps'][e]:g}")
        ax.set_xticks(range(R), [f"{ratio:g}" for ratio in given["ratios"]], fontsize=6.5)
        ax.set_yticks(range(V), [f"{size:g}" for size in given["vocabularies"]], fontsize=6.5)
        if e == E - 1:
            ax.set_xlabel("$\\eta_Z / \\eta_Y$")
        if k == 0:
            ax.set_ylabel("$M / K$")
    handles = [
        Patch(facecolor=tint, edgecolor=COLOURS["null"], linewidth=0.5, label=words)
        for kind, (_, words, tint) in enumerate(KINDS)
        if (places == kind).any()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.0)
    caption(
        figure,
        f"Colour: which dynamics agree with the exact flow within {100 * given['within']:g} % from $t_0'$ to {10 ** given['decades']:g} "
        "$t_0'$. Dot: attention is scanned logarithmically in the exact flow (slope by ln t within 10 % of 1/2 for half a decade); ring: "
        "in closed form. Frame: Assumption 2 holds.",
    )
    return figure
