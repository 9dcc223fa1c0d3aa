"""The paper's small synthetic training, Syn-Small (Figure 4): two classes, each with its own query and ten
distinct tokens.

There are ten common tokens, and training starts at zero. The released log of the loss is one run with other
random numbers (drawn sequence by sequence, in single precision), so it is compared with the range of our
runs. The first loss is ln M. The loss falls by five orders of magnitude, then reaches a plateau.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import RANGE, Panel, Reading, draw_curves, figure, reading, with_range
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..dynamics import HeavyBall, Trajectory, Weights, gradient_descent, sampled
from ..problem import synthetic
from ..published import LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING_LOSS = "loss"
COMMON_ATTENTION = "attention to common tokens after training"
TOP_ATTENTION = "attention to the likeliest distinct token"
GAINING_SHARE = "share of distinct tokens that gained attention"
RECORDED_STEPS = (0, 2, 4, 6, 8, 10, 20, 50)  # steps at which attention is stored
STEPS, ATTENDED = "scan_snap/steps", "scan_snap/attended"  # stored arrays
MAPS = "Maps: attention of the first class, one run; tokens below the white line are common to both classes."
PUBLISHED = ("batch", "length", "eta_z", "momentum")  # settings of the released log


@style()
def draw(result: Result) -> "Figure":
    """Draws the loss with the released log, and attention of the first class, one map per decoder rate."""
    rates = result.settings["eta_y"]
    drawn, (left, *maps) = axes(1, 1 + len(rates), width=2.6 * (1 + len(rates)), height=3.0)
    panel = Panel("Loss, nats", TRAINING_LOSS, lines="eta_Y", legend="", axes={"yscale": "log"})
    draw_curves(left, result, panel, x="step", spread=RANGE)
    left.set_xlabel("step")
    drawn.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=1 + len(rates))
    draw_attention(maps, result, [f"Attention, $\\eta_Y$ = {rate:g}" for rate in rates])
    caption(drawn, f"Bands: range over the runs. {MAPS}")
    return drawn


@figure(
    "scan_snap.syn_small",
    source=Source("tian2023scan", "Fig. 4"),
    view=draw,
    quick={"steps": 20, "seeds": 2},
)
def syn_small(
    *,
    batch: int = setting(128, ge=1, help="sequences per step"),
    length: int = setting(128, ge=2, help="tokens per sequence, including the query"),
    steps: int = setting(100, ge=1, help="steps of training"),
    eta_y: tuple[float, ...] = setting((1.0, 10.0), ge=1e-6, le=1e6, help="learning rates of the decoder"),
    eta_z: float = setting(1.0, ge=1e-6, le=1e6, help="learning rate of attention"),
    momentum: float = setting(0.9, ge=0, lt=1, help="momentum of gradient descent"),
    seeds: int = setting(10, ge=1, help="independent runs"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading] | Arrays]:
    """The paper's Syn-Small by gradient descent with momentum, with several learning rates of the decoder:
    losses with the released log, and the final attention; means over the seeds.
    """
    sizes = {"batch": batch, "length": length, "steps": steps, "optimiser": HeavyBall(momentum)}
    path, c = train_side_by_side([(rate, eta_z) for rate in eta_y], seeds, seed, **sizes)
    losses = path.loss.unflatten(1, (len(eta_y), seeds))
    for i, rate in enumerate(eta_y):
        for step, values in enumerate(losses[:, i]):
            columns = {"unit": "nats", "n": seeds, "at": {"eta_Y": rate}, "step": step}
            if rate == 1.0 and step in LOSS:
                columns |= {"reference": (LOSS[step], "printed"), "needs": PUBLISHED}
            low, high = float(values.min()), float(values.max())
            note = f"{low:.3g} to {high:.3g} over runs; the log is one run of other random numbers"
            yield with_range(
                reading(TRAINING_LOSS, float(values.mean()), note=note, **columns), values.tolist()
            )
        yield from final_attention(c[:, i], {"eta_Y": rate})
    yield stored_attention(path, c)


def train_side_by_side(
    rates: list[tuple[float, float]], seeds: int, seed: int, *, batch: int, length: int, **options
) -> tuple[Trajectory, Float[Tensor, "recorded pairs seeds K S"]]:
    """Trains Syn-Small from zero at all pairs of rates of decoder and attention at once, with the same seeds
    for each; returns the runs and attention.
    """
    classes, generator = synthetic(2), torch.Generator().manual_seed(seed)
    runs = torch.randint(2**31, (seeds,), generator=generator).tolist() * len(rates)
    eta_y, eta_z = torch.tensor(rates, dtype=torch.float64).repeat_interleave(seeds, 0).T
    sizes = classes.tokens, classes.queries, classes.classes, classes.vocab_size
    start = Weights.zeros(*sizes, runs=(len(runs),))
    batches = sampled(classes, batch, context=length - 1, seeds=runs)
    path = gradient_descent(start, batches, eta_y=eta_y, eta_z=eta_z, keep=RECORDED_STEPS, **options)
    return path, classes.attended(path.attention).unflatten(1, (len(rates), seeds))


def final_attention(c: Float[Tensor, "recorded seeds K S"], at: dict[str, float | str]) -> Iterator[Reading]:
    """Yields the final attention to common tokens and the likeliest distinct one, and the share of distinct
    tokens that gained; means over runs.
    """
    classes, where = synthetic(2), {"at": at, "n": c.shape[1], "unit": "share"}
    common = c[..., classes.common()].sum(-1).mean(-1)
    start, value = float(common[0].mean()), float(common[-1].mean())
    note = "the threshold is attention before training; the theory does not cover this optimiser"
    yield reading(COMMON_ATTENTION, value, at_most=start, covered=False, note=note, **where)
    before, after = (c[k][:, classes.distinct()] for k in (0, -1))
    top = after.unflatten(-1, (classes.classes, -1)).amax(-1)
    yield reading(TOP_ATTENTION, float(top.mean()), **where)
    yield reading(GAINING_SHARE, float((after > before).double().mean()), **where)


def stored_attention(path: Trajectory, c: Float[Tensor, "recorded pairs seeds K S"]) -> Arrays:
    """Returns attention of the first class in one run of each pair of rates."""
    attended = c[:, :, 0, 0, synthetic(2).conditional[0] > 0]
    return Arrays({STEPS: path.steps.numpy(), ATTENDED: attended.numpy()})


def draw_attention(panels: "Iterable[Axes]", result: Result, titles: list[str]) -> None:
    """Draws the stored maps: common tokens lowest, then the distinct ones from rare to likely."""
    steps, c = result.arrays[STEPS], result.arrays[ATTENDED]  # c: [steps, panels, tokens]
    for i, (ax, title) in enumerate(zip(panels, titles)):
        last = i == len(titles) - 1
        heatmap(ax, c[:, i].T, "attention" if last else "", vmin=0, vmax=float(c.max()), bar=last)
        ax.axhline(9.5, color="white", linewidth=1.0)  # between the ten common tokens and the distinct ones
        ax.invert_yaxis()
        ax.set_xticks(range(len(steps)), [str(step) for step in steps])
        ax.set(title=title, xlabel="step", ylabel="token", yticks=[0, 5, 10, 15], aspect="auto")
