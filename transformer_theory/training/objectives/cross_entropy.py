r"""Cross-entropy of labels, or of shares of labels as mixed images have them, with smoothing.

.. math::
    \mathcal L = -\frac1b\sum_i\sum_c \Big((1 - s)\,y_{ic} + \frac sk\Big)\log\mathrm{softmax}(f(x_i))_c

A mean over images: with several processes the mean of the gradients is that of the whole batch, and nothing need be gathered.
Source: :cite:t:`dosovitskiy2021image` (the recipe).
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ...core.experiment import check_settings, setting
from ..networks import NETWORKS, Sizes
from .protocol import Batch, Gather, Labelled, Targets
from .reading import check_labelled, check_targets, outputs


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of a classifier's logits, nats an image. Fields and formula: :mod:`.cross_entropy`."""

    name: ClassVar[str] = "cross-entropy"
    score: ClassVar[str] = "held-out accuracy"

    label_smoothing: float = setting(0.1, ge=0, lt=1, help="s, the share of a label that all classes have alike")

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The classifier of that name."""
        return classifier(name, sizes)

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Mean over this process's images.

        Raises:
            ValueError: targets are no shares of the classes that the network tells.
        """
        logits = model(images)
        check_targets(targets, len(images), classes=logits.shape[1])
        return functional.cross_entropy(logits, targets.to(logits.dtype), label_smoothing=self.label_smoothing)

    def measure(self, model: nn.Module, train: Labelled, held_out: Labelled, batch_size: int) -> dict[str, float]:
        """Held-out loss (without smoothing, nats an image) and accuracy.

        Raises:
            ValueError: there is no image, or images and labels do not fit.
        """
        return classified(model, held_out, batch_size)


def classifier(name: str, sizes: Sizes) -> nn.Module:
    """The network of :data:`~..networks.NETWORKS` of that name.

    Raises:
        ValueError: there is none, or the sizes do not fit.
    """
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}")
    return NETWORKS[name](sizes)


def classified(model: nn.Module, held_out: Labelled, batch_size: int) -> dict[str, float]:
    """Loss in nats an image, and the share of images in the right class.

    Raises:
        ValueError: there is no image, images and labels do not fit, or a label is none of the network's classes.
    """
    check_labelled("held_out", held_out)
    pixels, labels = held_out
    logits = outputs(model, pixels, batch_size=batch_size)
    if int(labels.max()) >= logits.shape[1]:
        raise ValueError(f"labels must lie in [0, {logits.shape[1]}), as many as the network has classes, got {int(labels.max())}")
    loss = functional.cross_entropy(logits, labels.long())
    return {"held-out loss": float(loss), "held-out accuracy": float((logits.argmax(1) == labels).double().mean())}
