"""The figure of attention shared among several tokens."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("finite part and direction", "direction alone", "one token an input")
TINTS = (COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"])
KEYS = ("prediction", "direction", "one token")


def multi_token(result: Result) -> "Figure":
    """Distance of W to three predictions against the dimension, the share of trials accepted, and distance against leftover attention."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    dims = [int(d) for d in a["dims"]]
    beside = {quantity: number for (quantity, _), number in known(result).items()}
    figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.3)
    shown = [at for at, count in enumerate(a["accepted"]) if count]
    for target, (name, tint) in enumerate(zip(NAMES, TINTS)):
        ends = [a[f"apart_{dims[at]}"][:, -1, target] for at in shown]
        error = [end.std() / max(len(end) - 1, 1) ** 0.5 for end in ends]
        left.errorbar([dims[at] for at in shown], [end.mean() for end in ends], error, color=tint, marker="o", label=name, capsize=2)
    keys = [(d, f"1 - cosine to the {key}, d={d}") for key in KEYS for d in dims]
    mark(left, [(d, *beside[key]) for d, key in keys if key in beside])
    left.set_yscale("log")
    left.set_ylim(top=left.get_ylim()[1] * 8)
    left.set_xticks(dims)
    left.set(title="1 − cosine of W to", xlabel="dimension d")
    left.legend(loc="upper right", handlelength=1.8, borderaxespad=0.1)

    places = np.arange(len(dims))
    spread = np.abs(np.stack([a["low"], a["high"]]) - a["share"])
    middle.bar(places, a["share"], yerr=spread, color=COLOURS["attention_svm"], alpha=0.55, width=0.6, capsize=2, error_kw={"linewidth": 1})
    for place, share, count in zip(places, a["high"], a["accepted"]):
        middle.annotate(str(count), (place, share), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    middle.set_xticks(places, [str(d) for d in dims])
    middle.set_xlim(-0.6, len(dims) - 0.4)
    middle.set_ylim(top=1.15 * max(float(a["high"].max()), 1e-3))
    middle.set(title="Share of trials accepted", xlabel="dimension d")

    for d, tint in zip(dims, (COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["rate_reduction"], COLOURS["crate"])):
        ends, masked, pushed = a[f"apart_{d}"][:, -1, 0], np.maximum(a[f"masked_{d}"], 1e-20), a[f"pushed_{d}"]
        if len(masked):
            right.scatter(masked[pushed], ends[pushed], s=6, color=tint, alpha=0.55, linewidths=0, label=f"d = {d}")
            right.scatter(masked[~pushed], ends[~pushed], s=7, color=tint, alpha=0.55, linewidths=0.7, marker="x")
    right.scatter([], [], s=9, color="black", linewidths=0.7, marker="x", label="flat head")
    right.set_xscale("log")
    right.set_yscale("log")
    if shown:
        right.set_ylim(top=right.get_ylim()[1] * 12)
    right.set(title="1 − cosine to prediction", xlabel="attention left elsewhere")
    right.legend(loc="upper left", ncols=2, handletextpad=0.1, borderaxespad=0.1, columnspacing=1)
    caption(
        figure,
        "Left: means over the accepted trials, bars: standard error. Middle: number accepted on top, bars: 95 % interval "
        "(Clopper-Pearson). Right: one mark a trial, against the most attention left on a masked token; flat head: at some masked "
        "token the head has no slope, so descent does not push it away.",
    )
    return figure
