"""The growth of common and distinct tokens' logits in the four dynamics of one instance."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import COLOURS, axes, caption, line, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import B, scanning_time
from ..flow import CLOSED, EXACT, LEMMA4, MODIFIED, exact_flow, lemma4_flow, modified_flow
from ..gains import relative_gains
from ..plots import DYNAMICS_COLOURS, TOKEN_COLOURS
from ..problem import single_common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
COMMON_LOGIT, GAIN_ERROR = "logit of the common token", "largest relative error of r(0) chi(t)"
GAIN_RTOL = 1e-9
FLOWS = {"exact": EXACT, "modified": MODIFIED, "lemma4": LEMMA4}  # names of the arrays


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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the common token's logit at the end, and the error of Theorem 3's law, in each flow."""
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
        for key, flow in flows.items():
            value = float(flow.logits[-1, 0, 0])
            yield Measurement(
                NAME,
                "figure",
                COMMON_LOGIT,
                value,
                predicted=float(closed[-1]),
                op="<=",
                threshold=0.0,
                verdict=judge(value, "<=", 0.0, covered=overlap.holds and key == "lemma4"),
                source=Source(PAPER, "Thm. 2"),
                at={"setting": flow.dynamics},
                note=f"after {float(times[-1]):.3g} steps; predicted: the closed form -B(t) (Thm. 4)",
            )
            error = float(errors[key].max())
            verdict = judge(error, "<=", GAIN_RTOL, covered=key == "lemma4")
            columns = {
                "predicted": 0.0,
                "op": "<=",
                "threshold": GAIN_RTOL,
                "verdict": verdict,
                "at": {"setting": flow.dynamics},
            }
            yield Measurement(NAME, "figure", GAIN_ERROR, error, source=Source(PAPER, "Thm. 3"), **columns)
        yield Arrays(
            {
                f"{NAME}/times": times.numpy(),
                f"{NAME}/scanning_time": torch.tensor(t0).numpy(),
                f"{NAME}/common_closed": closed.numpy(),
            }
            | {f"{NAME}/common_{key}": flow.logits[:, 0, 0].numpy() for key, flow in flows.items()}
            | {f"{NAME}/logits_{key}": flow.logits[:, 0].numpy() for key, flow in flows.items()}
            | {f"{NAME}/gain_error_{key}": error.numpy() for key, error in errors.items()}
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the common token in the four dynamics, all tokens in Lemma 4's flow, and the error of the
        relative gain.
        """
        t = result.arrays[f"{NAME}/times"]
        figure, (left, middle, right) = axes(1, 3, width=7.4, height=3.1)
        for key, dynamics in FLOWS.items():
            line(
                left,
                t,
                result.arrays[f"{NAME}/common_{key}"],
                color=DYNAMICS_COLOURS[dynamics],
                label=dynamics,
            )
            line(right, t, result.arrays[f"{NAME}/gain_error_{key}"], color=DYNAMICS_COLOURS[dynamics])
        line(
            left,
            t,
            result.arrays[f"{NAME}/common_closed"],
            color=DYNAMICS_COLOURS[CLOSED],
            label=CLOSED,
            linestyle="--",
        )
        for token, values in enumerate(result.arrays[f"{NAME}/logits_lemma4"].T):
            line(middle, t, values, color=TOKEN_COLOURS["distinct" if token else "common"], linewidth=0.9)
        left.set(title="Common token", ylabel="attention logit z")
        middle.set(title=f"All tokens, {LEMMA4}", ylabel="attention logit z")
        right.set(title="Relative gains", ylabel="relative error of $r(0)\\,\\chi(t)$", yscale="log")
        for ax in (left, middle, right):
            ax.set(xscale="log", xlabel="step")
            ax.axvline(
                float(result.arrays[f"{NAME}/scanning_time"]),
                color=COLOURS["null"],
                linewidth=0.9,
                linestyle=(0, (4, 3)),
            )
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=4)
        caption(
            figure,
            "Dashed vertical line: $t_0'$, the end of scanning. Middle: the common token falls, distinct "
            "tokens rise, likelier ones more. Right: largest error over the pairs of tokens of a class.",
        )
        return figure
