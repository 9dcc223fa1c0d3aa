"""A map of the agreement between the theorems' dynamics and the exact flow, over learning rates, vocabulary,
classes and overlap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting, sweep
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, colour, style
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

NAME, SOURCE = "scan_snap", Source("tian2023scan", "Thm. 4")
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
    family = with_overlap(
        classes, vocab_size=M, weights=torch.linspace(0.1, 1, 10, dtype=torch.float64), overlap=overlap
    )
    t0 = scanning_time(classes=classes, vocab_size=M, eta_y=1.0)
    t = t0 * torch.logspace(
        -DECADES_BEFORE, decades, int(TIMES_PER_DECADE * (DECADES_BEFORE + decades)) + 1, dtype=torch.float64
    )
    rates = {"eta_y": 1.0, "eta_z": ratio}
    exact, modified = (
        flow(family, t, **rates, tolerance=1e-8).common[:, 0]
        for flow in (symmetric_exact_flow, symmetric_modified_flow)
    )
    lemma4 = symmetric_lemma4_flow(family, t, **rates, tolerance=1e-8).common[:, 0]
    closed = -B(t, classes=classes, vocab_size=M, overlap=overlap, **rates)
    late = t >= t0 * 0.999  # the grid contains t0 only up to rounding
    distances = [float((z / exact - 1)[late].abs().max()) for z in (modified, lemma4, closed)]
    powers = (torch.from_numpy(np.gradient((-z).log().numpy(), t.log().numpy())) for z in (exact, closed))
    scans = [decades_near_half(t, -z * power) for z, power in zip((exact, closed), powers)]
    return np.array([*distances, *scans, float(family.weak_overlap().holds)])


@dataclass(frozen=True)
class RegimeMap(Experiment):
    """Map of the dynamics that agree with the exact flow, and of the cells in which attention grows
    logarithmically in time.

    All classes are alike, with one common token and ten distinct ones of weights 0.1 to 1. Agreement refers
    to the common token's logit, from t0' to ten thousand t0'. The theorems assume eta_Z << eta_Y and
    Assumption 2.
    """

    ratios: tuple[float, ...] = setting(
        (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0), ge=1e-6, le=1e5, help="eta_Z / eta_Y"
    )
    vocabularies: tuple[float, ...] = setting((1.0, 2.0, 10.0, 100.0, 1e4), ge=1.0, le=1e6, help="M / K")
    classes: tuple[int, ...] = setting((2, 10, 100), ge=2, help="numbers K of classes")
    overlaps: tuple[float, ...] = setting((0.01, 0.1, 0.4), gt=0, lt=1, help="overlaps E_0")
    decades: float = setting(4.0, gt=0, le=30, help="the flows end at 10 to this power times t0'")
    within: float = setting(0.1, gt=0, le=10, help="relative distance that counts as agreement")

    name: ClassVar[str] = "scan_snap.regime_map"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "RegimeMap":
        return cls(
            ratios=(0.01, 10.0), vocabularies=(1.0, 100.0), classes=(10,), overlaps=(0.1,), decades=2.0
        )

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the share of cells where each dynamics agrees, overall and under Assumption 2, and
        the map.
        """
        names = ("classes", "overlap", "vocabulary", "ratio")
        cells = list(product(self.classes, self.overlaps, self.vocabularies, self.ratios))
        measured = np.stack(
            sweep(measure_cell, [dict(zip(names, cell)) | {"decades": self.decades} for cell in cells])
        )
        assumption_holds = measured[:, 5] == 1
        slow = np.array([ratio <= MAX_RATE_RATIO for *_, ratio in cells])
        agree = measured[:, :3] <= self.within
        groups = (
            ("all cells", np.ones_like(assumption_holds)),
            ("Assumption 2 and eta_Z <= eta_Y / 10", assumption_holds & slow),
        )
        for group, members in groups:
            for dynamics, share in zip(DYNAMICS, agree[members].mean(0) if members.any() else ()):
                where = {"at": {"dynamics": dynamics, "cells": group}, "n": int(members.sum())}
                note = f"from t0' to {10**self.decades:g} t0', within {self.within:.0%}"
                yield self.row(AGREES, float(share), unit="share", note=note, **where)
        for column, dynamics in ((3, EXACT), (4, CLOSED)):
            for speed, members in (("eta_Z <= eta_Y / 10", slow), ("eta_Z > eta_Y / 10", ~slow)):
                share = float((measured[members, column] >= MIN_DECADES).mean()) if members.any() else None
                where = {"at": {"dynamics": dynamics, "rates": speed}, "n": int(members.sum())}
                note = "half a decade or more with the slope by ln t within 10 % of 1/2"
                reason = "" if share is not None else "no cell has such rates"
                yield self.row(SCANS, share, unit="share", reason=reason, note=note, **where)
        shape = (
            len(self.classes),
            len(self.overlaps),
            len(self.vocabularies),
            len(self.ratios),
            measured.shape[1],
        )
        yield Arrays({f"{NAME}/map": measured.reshape(shape)})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one panel per number of classes (across) and overlap (down): learning rates across,
        vocabulary upwards.

        The colour shows the dynamics that agree with the exact flow. A dot marks logarithmic growth in the
        exact flow, a ring in closed form, and a frame the cells where Assumption 2 holds.
        """
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch, Rectangle

        settings, cells = result.settings, result.arrays[f"{NAME}/map"]
        K, E, V, R = cells.shape[:4]
        figure, panels = axes(E, K, width=7.2, height=1.3 + 1.75 * E)
        colours, numbers = (
            ListedColormap([tint for *_, tint in PATTERNS]),
            pattern_numbers(cells[..., :3] <= settings["within"]),
        )
        for ax, (e, k) in zip(panels, np.ndindex(E, K)):
            ax.imshow(
                numbers[k, e], cmap=colours, vmin=0, vmax=len(PATTERNS) - 1, origin="lower", aspect="auto"
            )
            ax.grid(False)
            for v, r in np.ndindex(V, R):
                cell = cells[k, e, v, r]
                if cell[3] >= MIN_DECADES:
                    ax.plot(r, v, ".", color=colour(NAME), markersize=6)
                if cell[4] >= MIN_DECADES:
                    ax.plot(
                        r,
                        v,
                        "o",
                        color=colour(NAME),
                        markerfacecolor="none",
                        markersize=7,
                        markeredgewidth=0.9,
                    )
                if cell[5]:
                    ax.add_patch(
                        Rectangle(
                            (r - 0.46, v - 0.44),
                            0.92,
                            0.88,
                            fill=False,
                            edgecolor=COLOURS["raw"],
                            linewidth=0.9,
                        )
                    )
            ax.set_title(f"K = {settings['classes'][k]}, $E_0$ = {settings['overlaps'][e]:g}")
            ax.set_xticks(range(R), [f"{ratio:g}" for ratio in settings["ratios"]], fontsize=6.5)
            ax.set_yticks(range(V), [f"{size:g}" for size in settings["vocabularies"]], fontsize=6.5)
            if e == E - 1:
                ax.set_xlabel("$\\eta_Z / \\eta_Y$")
            if k == 0:
                ax.set_ylabel("$M / K$")
        handles = [
            Patch(facecolor=tint, edgecolor=COLOURS["null"], linewidth=0.5, label=label)
            for number, (_, label, tint) in enumerate(PATTERNS)
            if (numbers == number).any()
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.0)
        caption(
            figure,
            f"Colour: dynamics that agree with the exact flow within {100 * settings['within']:g} % from "
            f"$t_0'$ to {10 ** settings['decades']:g} $t_0'$. Dot: attention is scanned logarithmically in "
            "the exact flow (slope by ln t within 10 % of 1/2 for half a decade); ring: in closed form. "
            "Frame: Assumption 2 holds.",
        )
        return figure


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
