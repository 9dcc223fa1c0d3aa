"""Where the dynamics of the theorems are those of training: a map over learning rates, vocabulary, classes and overlap."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import B, scanning_time
from ..families import with_overlap
from ..figures import regime_map
from ..flow import CLOSED, LEMMA4, MODIFIED, symmetric_exact_flow, symmetric_lemma4_flow, symmetric_modified_flow
from ..growth import decades_near_half

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
SOURCE = Source(PAPER, "Thm. 4")
DYNAMICS = (MODIFIED, LEMMA4, CLOSED)
PER_DECADE, BEFORE = 20, 3  # times a decade, decades before t0'
SCANS = 0.5  # decades of logarithmic growth from which on it counts


def place(ratio: float, vocabulary: float, classes: int, overlap: float, decades: float) -> np.ndarray:
    """One place of the map: how far the common token's logit is from the exact flow's in the three other dynamics, the largest relative
    distance from t0' on; then the decades of logarithmic growth in the exact flow and in closed form; then whether Assumption 2 holds."""
    M = round(vocabulary * classes)
    family = with_overlap(classes, vocab_size=M, weights=torch.linspace(0.1, 1, 10, dtype=torch.float64), overlap=overlap)
    t0 = scanning_time(classes=classes, vocab_size=M, eta_y=1.0)
    t = t0 * torch.logspace(-BEFORE, decades, int(PER_DECADE * (BEFORE + decades)) + 1, dtype=torch.float64)
    rates = {"eta_y": 1.0, "eta_z": ratio}
    exact, modified = (flow(family, t, **rates, tolerance=1e-8).common[:, 0] for flow in (symmetric_exact_flow, symmetric_modified_flow))
    lemma4 = symmetric_lemma4_flow(family, t, **rates, tolerance=1e-8).common[:, 0]
    closed = -B(t, classes=classes, vocab_size=M, overlap=overlap, **rates)
    late = t >= t0 * 0.999
    distances = [float((z / exact - 1)[late].abs().max()) for z in (modified, lemma4, closed)]
    powers = (torch.from_numpy(np.gradient((-z).log().numpy(), t.log().numpy())) for z in (exact, closed))
    scans = [decades_near_half(t, -z * power) for z, power in zip((exact, closed), powers)]
    return np.array([*distances, *scans, float(family.weak_overlap().holds)])


@dataclass(frozen=True)
class RegimeMap(Experiment):
    """For each place: which of the dynamics agree with the exact flow, and whether attention is scanned logarithmically in time at all.

    All classes are alike, with one common token and ten distinct ones of weights 0.1 to 1. Agreement is about the common token's logit,
    from t0' to ten thousand t0'. The theorems assume eta_Z << eta_Y and Assumption 2.
    """

    ratios: tuple[float, ...] = setting((1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0), ge=1e-6, le=1e5, help="eta_Z / eta_Y")
    vocabularies: tuple[float, ...] = setting((1.0, 2.0, 10.0, 100.0, 1e4), ge=1.0, le=1e6, help="M / K")
    classes: tuple[int, ...] = setting((2, 10, 100), ge=2, help="numbers K of classes")
    overlaps: tuple[float, ...] = setting((0.01, 0.1, 0.4), gt=0, lt=1, help="overlaps E_0")
    decades: float = setting(4.0, gt=0, le=30, help="the flows end at 10 to this power times t0'")
    within: float = setting(0.1, gt=0, le=10, help="relative distance that counts as agreement")

    name: ClassVar[str] = "scan_snap.regime_map"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "RegimeMap":
        return cls(ratios=(0.01, 10.0), vocabularies=(1.0, 100.0), classes=(2, 10), overlaps=(0.1,), decades=2.0)

    def measure(self) -> Iterator[Row | Arrays]:
        """Share of the map where each dynamics agrees, inside and outside Assumption 2; and the map."""
        names = ("classes", "overlap", "vocabulary", "ratio")
        places = list(product(self.classes, self.overlaps, self.vocabularies, self.ratios))
        found = np.stack(sweep(place, [dict(zip(names, at)) | {"decades": self.decades} for at in places]))
        assumed = found[:, 5] == 1
        slow = np.array([ratio <= 0.1 for *_, ratio in places])
        agree = found[:, :3] <= self.within
        groups = (("all places", assumed | True), ("places with Assumption 2 and eta_Z <= eta_Y / 10", assumed & slow))
        for words, group in groups:
            for name, good in zip(DYNAMICS, agree[group].mean(0) if group.any() else ()):
                note = f"{int(group.sum())} {words}; from t0' to {10**self.decades:g} t0', within {self.within:.0%}"
                quantity = f"share where {name} agrees with the exact flow, {words}"
                yield Row(theory=NAME, quantity=quantity, value=float(good), source=str(SOURCE), note=note)
        for column, words in ((3, "exact flow"), (4, "closed form")):
            for speed, group in (("eta_Z <= eta_Y / 10", slow), ("eta_Z > eta_Y / 10", ~slow)):
                note = f"half a decade and more with the slope by ln t within 10 % of 1/2; {int(group.sum())} places"
                share = float((found[group, column] >= SCANS).mean()) if group.any() else None
                quantity = f"share with logarithmic scanning, {words}, {speed}"
                yield Row(theory=NAME, quantity=quantity, value=share, source=str(SOURCE), note=note)
        shape = (len(self.classes), len(self.overlaps), len(self.vocabularies), len(self.ratios), found.shape[1])
        yield Arrays({f"{NAME}/map": found.reshape(shape)})

    def draw(self, result: Result) -> "Figure":
        return regime_map(result)
