r"""Maximal coding rate reduction: features that spread all classes and draw each together, instead of logits.

.. math::
    \mathcal L = R^c(X|\Pi) - \gamma_2 R_{\gamma_1}(X), \qquad \text{rows of } X \text{ of norm } 1

over the features X of *all* images of a step: the rates couple images, so parts of a batch have another loss than the whole. Every process
computes the whole loss from what ``gather`` gives it, and the average of the gradients is that of one process (:mod:`.protocol`). Targets
of mixed images are soft memberships, for which R^c is defined as it stands.
Source: :cite:t:`yu2020learning`; the loss itself is :class:`~...theories.rate_reduction.MaximalCodingRateReduction`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.experiment import check_settings, setting
from ...metrics.coding import rate_reduction, unit_norm
from ...training.networks import Sizes
from ...training.objectives.cross_entropy import classifier
from ...training.objectives.protocol import Batch, Gather, Labelled, Targets
from ...training.objectives.reading import check_labelled, check_targets, outputs, spread
from . import MaximalCodingRateReduction, nearest_subspace

FITTED = 10_000  # training images whose features make the subspaces


@dataclass(frozen=True)
class RateReduction:
    """Rate reduction of features of norm 1, nats a sample. Fields and formula: :mod:`.rate_reduction`."""

    name: ClassVar[str] = "rate-reduction"
    score: ClassVar[str] = "held-out accuracy of nearest subspaces"

    eps: float = setting(0.5**0.5, gt=0, help="distortion, squared inside")
    gamma1: float = setting(1.0, gt=0, help="inside the determinant of R")
    gamma2: float = setting(1.0, gt=0, help="weight of R")
    features: int = setting(128, ge=2, help="dimension of the features")

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The classifier of that name with features in place of logits, ``[b, features]``."""
        return classifier(name, replace(sizes, num_classes=self.features))

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """The loss of all processes' images together.

        Raises:
            ValueError: targets are no shares of classes, all images are of one class, or features are not finite.
        """
        check_targets(targets, len(images))
        own = model(images)
        features = gather(unit_norm(own.to(torch.promote_types(own.dtype, torch.float32))))
        everyone = gather(targets.to(features.dtype))
        if int((everyone.sum(0) > 0).sum()) < 2:
            raise ValueError("a batch must hold images of two classes at least, which have a rate reduction, got one; take a larger batch")
        classes = everyone.argmax(1) if bool((everyone.amax(1) == 1).all()) else everyone  # labels are faster than memberships
        return MaximalCodingRateReduction(eps=self.eps, gamma1=self.gamma1, gamma2=self.gamma2)(features, classes).loss

    def measure(self, model: nn.Module, train: Labelled, held_out: Labelled, batch_size: int) -> dict[str, float]:
        """Accuracy of the nearest of the classes' principal subspaces, and Delta R of the held-out features, nats a sample, with the labels
        and, as null, with the same labels shuffled.

        The null is larger for few images, and so is Delta R where the classes lie close together. Hold it beside its null, and not that of
        held-out images beside that of more test images.

        The subspaces are those of up to 10,000 training images, evenly spread. Each has the dimensions that a class fills at the optimum,
        d / k at most (12 of 128 for ten classes; the published evaluation takes 30 whatever d is, which of 32 would tell nothing).

        Raises:
            ValueError: there is no image, or images and labels do not fit.
        """
        check_labelled("train", train)
        check_labelled("held_out", held_out)
        known, classes = spread(train, FITTED)
        pixels, labels = held_out
        fitted, unseen = (unit_norm(outputs(model, part, batch_size=batch_size)) for part in (known, pixels))
        rank = max(1, fitted.shape[1] // len(classes.unique()))
        right = nearest_subspace(fitted, classes.cpu().long(), unseen, rank=rank) == labels.cpu()
        return {self.score: float(right.double().mean()), **self._reductions(unseen, labels.cpu().long())}

    def _reductions(self, features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> dict[str, float]:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        read = {"held-out rate reduction": labels, "held-out rate reduction, labels shuffled": labels[order]}
        return {name: float(rate_reduction(features, own, eps=self.eps)) for name, own in read.items()}
