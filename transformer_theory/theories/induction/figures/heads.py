"""Every head of a trained network: its scores on blocks that occur twice, beside unrelated blocks.

Source: :cite:t:`olsson2022incontext`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement, Null
from ....core.plotting import axes, caption, heatmap, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..circuits import copying_score
from ..in_networks import COPYING
from ..learning import LENGTH, VOCABULARY, train_induction
from ..network import Layer
from ..scores import PREFIX, SCORES, UNRELATED, draw_blocks, sequence_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "induction", Source("olsson2022incontext", status="own")
NULLS = 19


@dataclass(frozen=True)
class HeadScores(RandomExperiment):
    """Previous-token, prefix-matching, duplicate-token and copying score of each head of a network trained on repeated patterns."""

    layers: int = setting(4, ge=1, le=12, help="layers of the network, which has LayerNorm and two heads per layer")
    steps: int = setting(300, ge=1, le=10**5, help="batches of 32 patterns")
    blocks: int = setting(64, ge=1, le=4096, help="blocks per draw")

    name: ClassVar[str] = "induction.heads"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "HeadScores":
        """Two layers, 60 steps."""
        return cls(layers=2, steps=60, blocks=16)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields a row per score, layer and head, and the maps of all scores."""
        generator, half = self.generator(), LENGTH // 2
        network = train_induction(self.layers, steps=self.steps, generator=generator, norm=True)
        ids, _ = draw_blocks(self.blocks, length=half, vocabulary=VOCABULARY, generator=generator)
        _, others = draw_blocks(NULLS * self.blocks, length=half, vocabulary=VOCABULARY, generator=generator)
        value = sequence_scores(network, ids).mean(1)
        draws = sequence_scores(network, others).unflatten(1, (NULLS, self.blocks)).mean(2)
        heads = value.shape[-1] // self.layers
        for number, quantity in enumerate(SCORES):
            for place in range(value.shape[-1]):
                null = Null(UNRELATED, tuple(draws[number, :, place].tolist()))
                columns = {"layer": place // heads, "head": place % heads, "null": null, "side": ">=", "source": SOURCE, "n": self.blocks}
                yield Measurement(NAME, "figure", quantity, float(value[number, place]), unit="share", **columns)
        W_E, W_U, copies = network.embedding.weight.detach().double(), network.head.weight.detach().double().mT, []
        for number, layer in enumerate(network.layers):
            assert isinstance(layer, Layer)
            W_V, W_O = layer.factors()
            copies.append(copying_score(W_V, W_O, W_E, W_U))
            for head, score in enumerate(copies[-1].tolist()):
                yield Measurement(NAME, "figure", COPYING, score, layer=number, head=head, side=">=", source=SOURCE)
        maps = value.unflatten(-1, (self.layers, heads)).numpy()
        null_maps = draws[SCORES.index(PREFIX)].amax(0).unflatten(-1, (self.layers, heads)).numpy()
        yield Arrays({f"{NAME}/scores": maps, f"{NAME}/null": null_maps, f"{NAME}/copying": np.stack([one.numpy() for one in copies])})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws one map of layers by heads per score."""
        if f"{NAME}/copying" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        maps, null, copying = (result.arrays[f"{NAME}/{name}"] for name in ("scores", "null", "copying"))
        figure, panels = axes(1, 5, width=7.0, height=2.6)
        titles = ("previous\ntoken", "prefix\nmatching", "prefix, null\n(largest draw)", "duplicate\ntoken", "copying")
        for ax, values, title in zip(panels, (maps[0], maps[1], null, maps[2], copying), titles):
            signed = title == "copying"
            heatmap(ax, values, bar=False, vmin=-1 if signed else 0, vmax=1, cmap="RdBu_r" if signed else "viridis")
            ax.set_title(title)
            ax.set(xticks=range(values.shape[1]), yticks=range(values.shape[0]), xlabel="head")
            for (row, column), value in np.ndenumerate(values):
                dark = abs(value) > 0.7 if signed else value < 0.6
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
        panels[0].set_ylabel("layer")
        caption(
            figure,
            "Blocks of 16 ids that occur twice. Null: the first block is replaced by other ids; the largest of 19 draws. "
            "Copying: sum of the "
            "eigenvalues of the OV circuit over the sum of their absolute values, from weights alone, without norms.",
        )
        return figure
