r"""Cross-entropy with label smoothing, for labels or for the label shares of mixed images.

.. math::
    \mathcal L = -\frac1b\sum_i\sum_c \Big((1 - s)\,y_{ic} + \frac sk\Big)\log\mathrm{softmax}(f(x_i))_c

Here y are the shares, s is the smoothing and k is the number of classes. The loss is a mean over images, so
with several processes the averaged gradient is that of the whole batch, and nothing needs to be gathered.
Source: :cite:t:`dosovitskiy2021image` (the recipe).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ...core.experiment import check_settings, setting
from ...core.measurement import Measurement
from ...models.image_networks import Sizes, builder
from .protocol import (
    ACCURACY,
    LOSS,
    Batch,
    Gather,
    Labelled,
    Targets,
    check_labelled,
    check_targets,
    measured,
    outputs,
)


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of a classifier's logits, nats per image. The formula is in :mod:`.cross_entropy`."""

    name: ClassVar[str] = "cross-entropy"
    score: ClassVar[str] = ACCURACY

    label_smoothing: float = setting(
        0.1, ge=0, lt=1, help="s, the share of a label that is spread evenly over all classes"
    )

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """Builds the classifier with this name."""
        return classifier(name, sizes)

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Returns the mean loss over this process's images.

        Raises:
            ValueError: targets are not shares over the network's classes.
        """
        logits = model(images)
        check_targets(targets, len(images), classes=logits.shape[1])
        return functional.cross_entropy(
            logits, targets.to(logits.dtype), label_smoothing=self.label_smoothing
        )

    def measure(
        self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int
    ) -> Sequence[Measurement]:
        """Measures the loss, without smoothing and in nats per image, and the accuracy.

        Raises:
            ValueError: there is no image, images and labels differ in number, or a label is not one of the
                network's classes.
        """
        return classified(model, images, batch_size)


def classifier(name: str, sizes: Sizes) -> nn.Module:
    """Builds the network with this name, see :func:`~...models.image_networks.builder`.

    Raises:
        ValueError: no network has this name, or the sizes are invalid.
    """
    return builder(name)(sizes)


def classified(model: nn.Module, images: Labelled, batch_size: int) -> list[Measurement]:
    """Measures the loss in nats per image, and the share of images that are classified correctly.

    Raises:
        ValueError: there is no image, images and labels differ in number, or a label is not one of the
            network's classes.
    """
    check_labelled("measured", images)
    pixels, labels = images
    logits = outputs(model, pixels, batch_size=batch_size)
    if int(labels.max()) >= logits.shape[1]:
        raise ValueError(
            f"labels must lie in [0, {logits.shape[1]}), the classes of the network, got {int(labels.max())}"
        )
    loss, accuracy = (
        functional.cross_entropy(logits, labels.long()),
        (logits.argmax(1) == labels).double().mean(),
    )
    return [
        measured(LOSS, float(loss), images, unit="nats"),
        measured(ACCURACY, float(accuracy), images, unit="share"),
    ]
