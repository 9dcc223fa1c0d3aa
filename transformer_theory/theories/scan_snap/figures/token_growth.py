"""The growth of common and distinct tokens' logits in the four dynamics of one instance."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import B, scanning_time
from ..flow import CLOSED, LEMMA4, exact_flow, lemma4_flow, modified_flow
from ..gains import relative_gains
from ..plots import DYNAMICS
from ..problem import single_common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "tian2023scan"
COMMON_LOGIT, GAIN_ERROR = "logit of the common token", "largest relative error of r(0) chi(t)"
GAIN_RTOL = 1e-9
LOGIT, ERROR = "attention logit in Lemma 4's flow", "relative error of r(0) chi(t)"
Z = {"ylabel": "attention logit z"}
GAIN = {"ylabel": "relative error of $r(0)\\,\\chi(t)$", "yscale": "log"}
VIEW = curves(
    "t",
    panels=(
        Panel("Common token", COMMON_LOGIT, lines=DYNAMICS, legend="", axes=Z),
        Panel(f"All tokens, {LEMMA4}", LOGIT, lines="token", legend="", axes=Z),
        Panel("Relative gains", ERROR, lines=DYNAMICS, legend="", axes=GAIN),
    ),
    xlabel="step",
    log="x",
    caption="Dashed vertical line: $t_0'$, the end of scanning. Middle: the common token (darkest) falls, "
    "distinct tokens rise, likelier ones more. Right: largest error over the pairs of tokens of a class.",
    size=(7.4, 3.1),
)


@style()
def draw(result: Result) -> "Figure":
    """Draws the curves, the end of scanning, and one legend."""
    drawn, settings = VIEW(result), result.settings
    t0 = scanning_time(**{name: settings[name] for name in ("classes", "vocab_size", "eta_y")})
    for ax in drawn.axes:
        ax.axvline(t0, color=COLOURS["null"], linewidth=0.9, linestyle=DASHED)
    drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return drawn


@figure("scan_snap.token_growth", source=Source(PAPER), view=draw, quick={"distinct": 4, "decades": 2.0})
def token_growth(
    *,
    classes: int = setting(2, ge=2, help="number K of classes"),
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K"),
    distinct: int = setting(10, ge=2, help="distinct tokens per class, with weights 0.1 to 1"),
    common_share: float = setting(
        0.2, ge=1e-6, le=0.999, help="probability of the common token in each class"
    ),
    eta_y: float = setting(1.0, ge=1e-2, le=1e3, help="learning rate of the decoder"),
    eta_z: float = setting(0.01, ge=1e-6, le=1, help="learning rate of attention"),
    decades: float = setting(
        4.0, gt=0, le=12, help="the flows end at 10 to this power times t0', the end of scanning"
    ),
) -> Iterator[Reading]:
    """Logits of one common token and of the distinct tokens over decades of time: exact, modified and Lemma
    4's flow, closed form.
    """
    weights = torch.linspace(0.1, 1, distinct, dtype=torch.float64).expand(classes, -1)
    instance = single_common(weights, common_share, vocab_size=vocab_size)
    sizes: dict[str, Any] = {"classes": classes, "vocab_size": vocab_size}
    rates = {"eta_y": eta_y, "eta_z": eta_z}
    t0 = scanning_time(**sizes, eta_y=eta_y)
    times = t0 * torch.logspace(-1, decades, 60, dtype=torch.float64)
    closed = -B(times, overlap=float(instance.overlap()[0, 1]), **sizes, eta_y=eta_y, eta_z=eta_z)
    weak = instance.weak_overlap().holds
    plotted = range(1, len(times), 2)  # half of the times, with the last
    for flow in (flow(instance, times, **rates) for flow in (exact_flow, modified_flow, lemma4_flow)):
        common, described = flow.logits[:, 0, 0], flow.dynamics == LEMMA4
        gains, at = relative_gains(instance, flow.logits), {"dynamics": flow.dynamics}
        errors = ((gains.measured - gains.predicted).abs() / gains.measured.abs()).max(1).values
        value, end = float(common[-1]), float(times[-1])
        columns = {"predicted": float(closed[-1]), "at": at | {"t": end}, "source": Source(PAPER, "Thm. 2")}
        columns |= {"note": f"after {end:.3g} steps; predicted: the closed form -B(t) (Thm. 4)"}
        yield reading(COMMON_LOGIT, value, at_most=0.0, covered=weak and described, **columns)
        columns = {"predicted": 0.0, "at": at, "source": Source(PAPER, "Thm. 3")}
        yield reading(GAIN_ERROR, gains.error, at_most=GAIN_RTOL, covered=described, **columns)
        for k in plotted:
            here = at | {"t": float(times[k])}
            if k < len(times) - 1:
                yield reading(COMMON_LOGIT, float(common[k]), at=here)
            yield reading(ERROR, float(errors[k]), at=here)
    # The last flow is Lemma 4's.
    for k in plotted:
        t = float(times[k])
        yield reading(COMMON_LOGIT, float(closed[k]), at={"dynamics": CLOSED, "t": t})
        for token, value in enumerate(flow.logits[k, 0].tolist()):
            yield reading(LOGIT, value, at={"token": token, "t": t})
