"""The growth of common and distinct tokens' logits in the four dynamics of one instance."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, judge
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import B, scanning_time
from ..flow import CLOSED, LEMMA4, exact_flow, lemma4_flow, modified_flow
from ..gains import relative_gains
from ..plots import DYNAMICS_COLOURS, TOKEN_COLOURS
from ..problem import single_common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "tian2023scan"
COMMON_LOGIT, GAIN_ERROR = "logit of the common token", "largest relative error of r(0) chi(t)"
GAIN_RTOL = 1e-9
LOGIT, ERROR = "attention logit in Lemma 4's flow", "relative error of r(0) chi(t)"


@dataclass(frozen=True)
class TokenGrowth(Experiment):
    """Logits of one common token and of the distinct tokens over decades of time: exact, modified and Lemma
    4's flow, closed form.
    """

    classes: int = setting(2, ge=2, help="number K of classes")
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K")
    distinct: int = setting(10, ge=2, help="distinct tokens per class, with weights 0.1 to 1")
    common_share: float = setting(
        0.2, ge=1e-6, le=0.999, help="probability of the common token in each class"
    )
    eta_y: float = setting(1.0, ge=1e-2, le=1e3, help="learning rate of the decoder")
    eta_z: float = setting(0.01, ge=1e-6, le=1, help="learning rate of attention")
    decades: float = setting(
        4.0, gt=0, le=12, help="the flows end at 10 to this power times t0', the end of scanning"
    )

    name: ClassVar[str] = "scan_snap.token_growth"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER),)

    @classmethod
    def quick(cls) -> "TokenGrowth":
        return cls(distinct=4, decades=2.0)

    def measure(self) -> Iterator[Measurement]:
        """Yields the logits over time, and the error of Theorem 3's law, in each flow."""
        weights = torch.linspace(0.1, 1, self.distinct, dtype=torch.float64).expand(self.classes, -1)
        classes = single_common(weights, self.common_share, vocab_size=self.vocab_size)
        t0 = scanning_time(classes=self.classes, vocab_size=self.vocab_size, eta_y=self.eta_y)
        times = t0 * torch.logspace(-1, self.decades, 60, dtype=torch.float64)
        overlap = classes.weak_overlap()
        rates = {"eta_y": self.eta_y, "eta_z": self.eta_z}
        exact, modified, lemma4 = (
            flow(classes, times, **rates) for flow in (exact_flow, modified_flow, lemma4_flow)
        )
        closed = -B(
            times,
            classes=self.classes,
            vocab_size=self.vocab_size,
            overlap=float(classes.overlap()[0, 1]),
            **rates,
        )
        flows = {"exact": exact, "modified": modified, "lemma4": lemma4}
        gains = {key: relative_gains(classes, flow.logits) for key, flow in flows.items()}
        errors = {
            key: ((g.measured - g.predicted).abs() / g.measured.abs()).max(1).values
            for key, g in gains.items()
        }
        plotted = range(1, len(times), 2)  # half of the times, with the last
        for key, flow in flows.items():
            at, common = {"dynamics": flow.dynamics}, flow.logits[:, 0, 0]
            value = float(common[-1])
            yield self.row(
                COMMON_LOGIT,
                value,
                predicted=float(closed[-1]),
                op="<=",
                threshold=0.0,
                verdict=judge(value, "<=", 0.0, covered=overlap.holds and key == "lemma4"),
                source=Source(PAPER, "Thm. 2"),
                at=at | {"t": float(times[-1])},
                note=f"after {float(times[-1]):.3g} steps; predicted: the closed form -B(t) (Thm. 4)",
            )
            error = float(errors[key].max())
            verdict = judge(error, "<=", GAIN_RTOL, covered=key == "lemma4")
            judged = {"predicted": 0.0, "op": "<=", "threshold": GAIN_RTOL, "verdict": verdict}
            yield self.row(GAIN_ERROR, error, source=Source(PAPER, "Thm. 3"), at=at, **judged)
            for k in plotted:
                here = at | {"t": float(times[k])}
                if k < len(times) - 1:
                    yield self.row(COMMON_LOGIT, float(common[k]), at=here)
                yield self.row(ERROR, float(errors[key][k]), at=here)
        for k in plotted:
            yield self.row(COMMON_LOGIT, float(closed[k]), at={"dynamics": CLOSED, "t": float(times[k])})
            for token, value in enumerate(lemma4.logits[k, 0].tolist()):
                yield self.row(LOGIT, value, at={"token": token, "t": float(times[k])})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the common token in the four dynamics, all tokens in Lemma 4's flow, and the error of the
        relative gain.
        """
        figure, (left, middle, right) = axes(1, 3, width=7.4, height=3.1)
        looks = {name: {"color": tint, "marker": ""} for name, tint in DYNAMICS_COLOURS.items()}
        looks[CLOSED] |= {"linestyle": "--"}
        tokens = {
            k: {"color": TOKEN_COLOURS["distinct" if k else "common"], "linewidth": 0.9}
            for k in range(1 + self.distinct)
        }
        logit, error = (
            {"ylabel": "attention logit z"},
            {"ylabel": "relative error of $r(0)\\,\\chi(t)$", "yscale": "log"},
        )
        for ax, panel in (
            (left, Panel("Common token", COMMON_LOGIT, lines=("dynamics", looks), legend="", axes=logit)),
            (middle, Panel(f"All tokens, {LEMMA4}", LOGIT, lines=("token", tokens), legend="", axes=logit)),
            (right, Panel("Relative gains", ERROR, lines=("dynamics", looks), legend="", axes=error)),
        ):
            draw_curves(ax, result, panel, x="t")
            ax.set(xscale="log", xlabel="step")
            t0 = scanning_time(classes=self.classes, vocab_size=self.vocab_size, eta_y=self.eta_y)
            ax.axvline(t0, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=4)
        caption(
            figure,
            "Dashed vertical line: $t_0'$, the end of scanning. Middle: the common token falls, distinct "
            "tokens rise, likelier ones more. Right: largest error over the pairs of tokens of a class.",
        )
        return figure
