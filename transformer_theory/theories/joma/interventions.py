r"""What JoMA says of a trained network: the lower layer of the MLP has learnt few components.

The lower layer W of every block is cut to its :math:`\lceil \|W\|_F^2 / \|W\|_2^2 \rceil` leading singular
directions, its stable rank; it needs no others. The control keeps as many singular directions, drawn at
random. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.intervention import BlockPass, Control, Intervention
from ...core.sources import Source
from ...metrics.networks import matrix_after
from ...probes.modules import check_whole


@dataclass(frozen=True, eq=False)
class LowerLayer:
    """The lower layer of one block.

    Attributes:
        name: name of the parameter in the block.
        left, sizes, right: singular value decomposition ``left * sizes @ right``.
        kept: numbers of the singular directions that are kept.
    """

    name: str
    left: Float[Tensor, "m r"]
    sizes: Float[Tensor, " r"]
    right: Float[Tensor, "r n"]
    kept: Int[Tensor, " k"]

    @property
    def cut(self) -> Float[Tensor, "m n"]:
        """The matrix of the directions that are kept."""
        return self.left[:, self.kept] * self.sizes[self.kept] @ self.right[self.kept]


LowerLayers = dict[int, LowerLayer]
"""Lower layers by the number of the block."""


def leading_directions(read: Callable[[Callable[[BlockPass], None]], None]) -> LowerLayers:
    """Returns the lower layers with as many leading directions as their stable rank, rounded up.

    Raises:
        ValueError: a block has no lower layer that is a parameter, or it lies in parts on several processes.
    """
    found: LowerLayers = {}

    def add(block: BlockPass) -> None:
        if block.layer in found:
            return
        check_whole(block.module, block.name)
        W = matrix_after(block, block.attention)
        parameters = () if W is None else block.module.named_parameters()
        names = [name for name, x in parameters if W is not None and x.data_ptr() == W.data_ptr()]
        if W is None or not names:
            raise ValueError(
                "the block has no weight matrix that is registered after the module of its attention"
            )
        U, S, Vh = torch.linalg.svd(W.double(), full_matrices=False)
        # a rank that is a whole number up to rounding stays
        rank = math.ceil(float(S.square().sum() / S[0].square()) - 1e-9) if S[0] > 0 else len(S)
        found[block.layer] = LowerLayer(names[0], U, S, Vh, torch.arange(rank))

    read(add)
    return found


def random_directions(chosen: LowerLayers, generator: Generator) -> LowerLayers:
    """Draws as many singular directions of each layer."""
    return {
        layer: replace(each, kept=torch.randperm(len(each.sizes), generator=generator)[: len(each.kept)])
        for layer, each in chosen.items()
    }


def cut(block: BlockPass) -> BlockPass:
    """Runs the block with the directions of its lower layer that are kept."""
    layer: LowerLayer = block.structure[block.layer]
    return block.with_output(block.again(block.tokens, {layer.name: layer.cut.to(block.output.dtype)}))


INTERVENTIONS = (
    Intervention(
        name="lower layer of the MLP cut to its stable rank",
        change=cut,
        predicts="kept",
        controls=(Control("as many singular directions at random", structure=random_directions),),
        source=Source("tian2024joma", status="own"),
        choose=leading_directions,
        site="block",
    ),
)
