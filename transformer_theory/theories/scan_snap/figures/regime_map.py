"""A map of the agreement between the theorems' dynamics and the exact flow, over learning rates, vocabulary,
classes and overlap.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting, sweep
from ....core.figure import Reading, figure, reading
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..closed_form import B, scanning_time
from ..families import with_overlap
from ..flow import (
    CLOSED,
    EXACT,
    LEMMA4,
    MODIFIED,
    symmetric_exact_flow,
    symmetric_lemma4_flow,
    symmetric_modified_flow,
)
from ..growth import decades_near_half

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP = "scan_snap/map"  # array of the cells, see measure_cell
AGREES = "share of cells where the dynamics agree with the exact flow"
SCANS = "share of cells with logarithmic scanning"
DYNAMICS = (MODIFIED, LEMMA4, CLOSED)
TIMES_PER_DECADE, DECADES_BEFORE = 20, 3  # the grid of times starts this many decades before t0'
MIN_DECADES = 0.5  # smallest length of an interval of logarithmic growth that counts
MAX_RATE_RATIO = 0.1  # largest eta_Z / eta_Y for which attention counts as slow
# (bits of agreement with the exact flow: 1 modified flow, 2 Lemma 4, 4 closed form; label; colour)
PATTERNS = (
    (0, "none", "#F3F4F6"),
    (1, MODIFIED, "#B7D7EE"),
    (3, f"{MODIFIED} and {LEMMA4}", "#4A9CCF"),
    (7, "all three", "#0B5C8E"),
    (4, f"{CLOSED} alone (errors cancel)", "#F0C674"),
    (None, "others", "#C58FB0"),
)


def measure_cell(ratio: float, vocabulary: float, classes: int, overlap: float, decades: float) -> np.ndarray:
    """Measures one cell of the map, ``[6]``.

    Entries 0 to 2 are the largest relative distances of the common token's logit from the exact flow, from
    t0' on, in the modified flow, Lemma 4's flow and closed form. Entries 3 and 4 are the decades of
    logarithmic growth in the exact flow and in closed form. Entry 5 is 1 if Assumption 2 holds.
    """
    M = round(vocabulary * classes)
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    family = with_overlap(classes, vocab_size=M, weights=weights, overlap=overlap)
    t0, rates = scanning_time(classes=classes, vocab_size=M, eta_y=1.0), {"eta_y": 1.0, "eta_z": ratio}
    count = int(TIMES_PER_DECADE * (DECADES_BEFORE + decades)) + 1
    t = t0 * torch.logspace(-DECADES_BEFORE, decades, count, dtype=torch.float64)
    flows = (symmetric_exact_flow, symmetric_modified_flow, symmetric_lemma4_flow)
    exact, modified, lemma4 = (flow(family, t, **rates, tolerance=1e-8).common[:, 0] for flow in flows)
    closed = -B(t, classes=classes, vocab_size=M, overlap=overlap, **rates)
    late = t >= t0 * 0.999  # the grid contains t0 only up to rounding
    distances = [float((z / exact - 1)[late].abs().max()) for z in (modified, lemma4, closed)]
    powers = (torch.from_numpy(np.gradient((-z).log().numpy(), t.log().numpy())) for z in (exact, closed))
    scans = [decades_near_half(t, -z * power) for z, power in zip((exact, closed), powers)]
    return np.array([*distances, *scans, float(family.weak_overlap().holds)])


@style()
def draw(result: Result) -> "Figure":
    """Draws one panel per number of classes (across) and overlap (down): learning rates across, vocabulary
    upwards.

    Colours show the dynamics that agree with the exact flow. A cross marks logarithmic growth in the exact
    flow, a ring in closed form, and a square the cells where Assumption 2 holds.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    settings, cells = result.settings, result.arrays[MAP]
    K, E, V, R = cells.shape[:4]
    drawn, panels = axes(E, K, width=7.2, height=1.3 + 1.75 * E)
    colours = ListedColormap([tint for *_, tint in PATTERNS])
    numbers = pattern_numbers(cells[..., :3] <= settings["within"])
    for ax, (e, k) in zip(panels, np.ndindex(E, K)):
        ax.imshow(numbers[k, e], colours, vmin=0, vmax=len(PATTERNS) - 1, origin="lower", aspect="auto")
        ax.grid(False)
        for column, marker, size in ((3, "x", 4), (4, "o", 7), (5, "s", 12)):
            v, r = np.nonzero(cells[k, e, ..., column] >= MIN_DECADES)
            ax.plot(r, v, marker, color="black", markersize=size, fillstyle="none", markeredgewidth=0.9)
        ax.set_title(f"K = {settings['classes'][k]}, $E_0$ = {settings['overlaps'][e]:g}")
        ax.set_xticks(range(R), [f"{ratio:g}" for ratio in settings["ratios"]], fontsize=6.5)
        ax.set_yticks(range(V), [f"{size:g}" for size in settings["vocabularies"]], fontsize=6.5)
    drawn.supylabel("$M / K$", fontsize=8.5)
    patches = [
        Patch(facecolor=tint, edgecolor=COLOURS["null"], linewidth=0.5, label=label)
        for number, (_, label, tint) in enumerate(PATTERNS)
        if (numbers == number).any()
    ]
    drawn.legend(handles=patches, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.0)
    caption(
        drawn,
        "Across: $\\eta_Z / \\eta_Y$. Colour: dynamics that agree with the exact flow within "
        f"{100 * settings['within']:g} % from $t_0'$ to {10 ** settings['decades']:g} $t_0'$. Cross: "
        "attention is scanned logarithmically in the exact flow (slope by ln t within 10 % of 1/2 for half a "
        "decade); ring: in closed form. Square: Assumption 2 holds.",
    )
    return drawn


@figure(
    "scan_snap.regime_map",
    source=Source("tian2023scan", "Thm. 4"),
    view=draw,
    quick={
        "ratios": (0.01, 10.0),
        "vocabularies": (1.0, 100.0),
        "classes": (10,),
        "overlaps": (0.1,),
        "decades": 2.0,
    },
)
def regime_map(
    *,
    ratios: tuple[float, ...] = setting(
        (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0), ge=1e-6, le=1e5, help="eta_Z / eta_Y"
    ),
    vocabularies: tuple[float, ...] = setting((1.0, 2.0, 10.0, 100.0, 1e4), ge=1.0, le=1e6, help="M / K"),
    classes: tuple[int, ...] = setting((2, 10, 100), ge=2, help="numbers K of classes"),
    overlaps: tuple[float, ...] = setting((0.01, 0.1, 0.4), gt=0, lt=1, help="overlaps E_0"),
    decades: float = setting(4.0, gt=0, le=30, help="the flows end at 10 to this power times t0'"),
    within: float = setting(0.1, gt=0, le=10, help="relative distance that counts as agreement"),
) -> Iterator[Reading | Arrays]:
    """Map of the dynamics that agree with the exact flow, and of the cells in which attention grows
    logarithmically in time.

    All classes are alike, with one common token and ten distinct ones of weights 0.1 to 1. Agreement refers
    to the common token's logit, from t0' to ten thousand t0'. The theorems assume eta_Z << eta_Y and
    Assumption 2.
    """
    cells = [
        {"classes": K, "overlap": E, "vocabulary": V, "ratio": R, "decades": decades}
        for K, E, V, R in product(classes, overlaps, vocabularies, ratios)
    ]
    measured = np.stack(sweep(measure_cell, cells))
    slow = np.array([cell["ratio"] <= MAX_RATE_RATIO for cell in cells])
    agree, scans = measured[:, :3] <= within, measured[:, 3:5] >= MIN_DECADES
    everywhere, covered = np.ones_like(slow), slow & (measured[:, 5] == 1)
    for group, members in (("all cells", everywhere), ("Assumption 2 and eta_Z <= eta_Y / 10", covered)):
        for dynamics, agrees in zip(DYNAMICS, agree[members].T if members.any() else ()):
            columns = {"at": {"dynamics": dynamics, "cells": group}, "n": int(members.sum())}
            note = f"from t0' to {10**decades:g} t0', within {within:.0%}"
            yield reading(AGREES, float(agrees.mean()), unit="share", note=note, **columns)
    for dynamics, scanned in zip((EXACT, CLOSED), scans.T):
        for speed, members in (("eta_Z <= eta_Y / 10", slow), ("eta_Z > eta_Y / 10", ~slow)):
            value = float(scanned[members].mean()) if members.any() else None
            columns = {"at": {"dynamics": dynamics, "rates": speed}, "n": int(members.sum())}
            columns |= {"note": "half a decade or more with the slope by ln t within 10 % of 1/2"}
            reason = "" if value is not None else "no cell has such rates"
            yield reading(SCANS, value, unit="share", reason=reason, **columns)
    shape = len(classes), len(overlaps), len(vocabularies), len(ratios), -1
    yield Arrays({MAP: measured.reshape(shape)})


def pattern_numbers(agree: np.ndarray) -> np.ndarray:
    """Returns the number of each cell's pattern in :data:`PATTERNS`, from the agreement of the three
    dynamics, bool ``[..., 3]``.
    """
    bits = agree @ np.array([1, 2, 4])
    return np.select(
        [bits == pattern for pattern, *_ in PATTERNS[:-1]],
        range(len(PATTERNS) - 1),
        default=len(PATTERNS) - 1,
    )
