"""What a training loop asks of an objective, and what objectives ask of the loop.

With W processes the loop keeps a copy of the network in each, gives each as many of the images of a step, and averages the gradients of the
copies, as ``DistributedDataParallel`` does. A loss that is a mean over images needs no more: the mean of the copies' gradients is the
gradient of the mean over all images. A loss that couples images needs all of them: ``gather`` concatenates what the copies computed, in the
order of the processes, so that each copy computes the loss of *all* images. Backward it must multiply each copy's own part by W, either by
adding up what the W equal losses say of it or at once; the average then takes the factor away, and the gradient is that of one process.
"""

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from ..networks import Sizes

Gather = Callable[[Tensor], Tensor]
"""Concatenates along the first axis over all processes, with gradients; :func:`alone` where there is one process."""

Batch = Float[Tensor, "b c h w"]
Targets = Float[Tensor, "b k"]
Labelled = tuple[UInt8[Tensor, "_ c h w"], Int[Tensor, " _"]]
"""Images as they are stored, ``[n, c, h, w]``, with the class of each, ``[n]``; n differs between training and held-out images."""


def alone(own: Tensor) -> Tensor:
    """The gather of a single process: what it has, ``[b, ...]``."""
    return own


@runtime_checkable
class Objective(Protocol):
    """What is trained, on which loss, and what is measured of it.

    Attributes:
        name: as the command line knows it.
        score: the measured quantity by which the best network is chosen; larger is better.
    """

    name: ClassVar[str]
    score: ClassVar[str]

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The network to train; images ``[b, c, h, w]`` in.

        Raises:
            ValueError: no such network, sizes do not fit, or the objective does not train it.
        """
        ...

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Loss of a batch; ``model`` is called once, as a whole, so that it may be wrapped.

        Args:
            model: of :meth:`network`, wrapped or not.
            images: this process's, ``[b, c, h, w]``, in [0, 1].
            targets: share of each class, ``[b, k]``, rows summing to one.
            gather: see :mod:`.protocol`.
        Raises:
            ValueError: targets do not fit.
        """
        ...

    def measure(self, model: nn.Module, train: Labelled, held_out: Labelled, batch_size: int) -> dict[str, float]:
        """What the network has learned, ``score`` among it; in evaluation mode, which is restored, and without gradients.

        Args:
            model: of :meth:`network`.
            train, held_out: pixels ``[n, c, h, w]``, 0 to 255, and labels ``[n]``.
            batch_size: images at a time.
        Raises:
            ValueError: there is no image, or images and labels do not fit.
        """
        ...
