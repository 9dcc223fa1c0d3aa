r"""A function, its approximation and their difference on a slice of the input space.

Source: :cite:t:`yun2020transformers`.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Reading, figure, reading
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERROR = "mean error on the slice"
TARGET, WITH, WITHOUT = "target", "with attention", "without attention"
NETWORKS: dict[str, AttentionLayers] = {WITH: "all", WITHOUT: "none"}


@style()
def draw(result: Result) -> "Figure":
    """Draws target, approximation, difference, and the network without attention layers."""
    target, found, blind = (result.arrays[f"universal/{name}"] for name in (TARGET, WITH, WITHOUT))
    pictures = {
        "Target": target,
        "Network": found,
        "Difference": found - target,
        "Without attention": blind,
    }
    drawn, panels = axes(1, 4, height=2.35)
    limit = float(np.abs(target).max())
    for ax, (title, picture) in zip(panels, pictures.items()):
        image = heatmap(ax, picture.T[::-1], title, vmin=-limit, vmax=limit, cmap="RdBu_r", bar=False)
        image.set_extent((0, 1, 0, 1))
        ax.set(xlabel="first token", xticks=[0, 1], yticks=[0, 1])
    panels[0].set_ylabel("second token")
    drawn.colorbar(image, ax=list(panels), fraction=0.02, pad=0.01).outline.set_visible(False)
    texts = [f"{row.value:.3f} {row.setting}" for row in result.select(quantity=ERROR)]
    third, k = (result.settings[name] for name in ("third", "values"))
    caption(
        drawn,
        f"The output at the first token, third token {third:g}, with cubes of width 1/{k}. Without attention "
        "layers it cannot depend on the second token. Mean errors on the slice: "
        f"{', '.join(texts)}.",
    )
    return drawn


@figure(
    "universal.slice",
    source=Source("yun2020transformers", "Theorem 3", "second-hand"),
    view=draw,
    quick={"values": 4, "pixels": 32},
)
def on_a_slice(
    *,
    values: int = setting(8, ge=2, le=32, help="number k of values of an entry, 1/delta"),
    third: float = setting(0.3, ge=0, lt=1, help="the third token"),
    pixels: int = setting(128, ge=16, le=512, help="points per axis"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """The first output of a random smooth function of three tokens over the first two tokens, the third being
    fixed: the mean error with and without attention layers, and the pictures.
    """
    f = random_function(torch.Generator().manual_seed(seed), n=3)
    line = (torch.arange(pixels, dtype=torch.float64) + 0.5) / pixels
    grid = [*torch.meshgrid(line, line, indexing="ij"), torch.full((pixels, pixels), third)]
    points = torch.stack(grid, dim=-1).flatten(0, 1)[..., None]

    def picture(network) -> np.ndarray:
        return network(points)[:, 0, 0].reshape(pixels, pixels).numpy()

    pictures = {TARGET: picture(f)}
    for name, attention in NETWORKS.items():
        network = UniversalApproximator(f, 3, 1, Fraction(1, values), attention=attention).fit()
        pictures[name] = picture(network)
        error = float(np.abs(pictures[name] - pictures[TARGET]).mean())
        yield reading(ERROR, error, at={"network": name}, n=pixels**2)
    yield Arrays({f"universal/{name}": found for name, found in pictures.items()})
