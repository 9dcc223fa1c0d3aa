"""Layer-wise curves of networks, drawn from the stored arrays alone."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = "nats, $\\varepsilon^2$ = .01"
TITLES = {  # and what is on the axis
    "R^c of what attention reads, input side": ("$R^c$, input side", RATE),
    "R^c of Z, before attention": ("$R^c(Z^\\ell)$, before", RATE),
    "R^c of Z^{l+1/2}, after attention": ("$R^c(Z^{\\ell+1/2})$, after", RATE),
    "share of non-zeros": ("Share of non-zeros", "of all entries"),
    "rate reduction by class": ("$\\Delta R$ by class", "nats, $\\varepsilon^2$ = .5"),
}


def draw(arrays: Mapping[str, np.ndarray], quantities: Sequence[str]) -> "Figure":
    """A panel a quantity, a curve a network: mean over seeds with the range as a band, random weights dashed.

    Args:
        arrays: ``crate/layers/<network>/<quantity>``, [seeds, 2, layers]: trained and untrained.
        quantities: in the order of the panels.
    """
    networks = list(dict.fromkeys(key.split("/")[2] for key in arrays if key.startswith("crate/layers/")))
    figure, panels = axes(1, len(quantities), width=2.2 * len(quantities), height=2.7)
    for ax, quantity in zip(panels, quantities):
        for network in networks:
            values, null = arrays[f"crate/layers/{network}/{quantity}"].swapaxes(0, 1)
            layers = range(1, values.shape[1] + 1)
            tint = COLOURS[network]
            line(ax, layers, values.mean(0), name=network, label=network)
            ax.fill_between(layers, values.min(0), values.max(0), color=tint, alpha=0.18, linewidth=0)
            line(ax, layers, null.mean(0), name=network, linestyle=(0, (3, 2)), linewidth=1.0)
        title, unit = TITLES[quantity]
        ax.set_title(title)
        ax.set_ylabel(unit)
        ax.set_xlabel("layer")
        ax.locator_params(axis="x", integer=True)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(networks))
    caption(
        figure,
        "Solid: trained, mean and range of the seeds. Dashed: random weights. Rates: tokens of every head scaled to norm one. Lines that "
        "coincide hide one another: with random weights both forms of CRATE have the same U in layer 1, and a ViT has no zeros at all.",
    )
    return figure
