r"""Maximal coding rate reduction as the objective of a training on images: the loss is taken of features instead of logits.

.. math::
    \mathcal L = R^c(X|\Pi) - \gamma_2 R_{\gamma_1}(X), \qquad \text{rows of } X \text{ of norm } 1

over the features X of *all* images of a step: the rates couple images, so parts of a batch have another loss than the whole. Every process
computes the whole loss from the output of ``gather``, and the average of the gradients is that of one process
(:mod:`~transformer_theory.training.objectives.protocol`). Targets of mixed images are soft memberships, for which R^c is defined as well.

Source: :cite:t:`yu2020learning`; the loss itself is :class:`~.loss.MaximalCodingRateReduction`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import nn

from ...core.experiment import check_settings, setting
from ...core.measurement import Measurement, Null
from ...metrics.coding import rate_reduction, unit_norm
from ...training.networks import Sizes
from ...training.objectives.cross_entropy import classifier
from ...training.objectives.protocol import (
    Batch,
    Gather,
    Labelled,
    Targets,
    check_labelled,
    check_targets,
    measured,
    outputs,
    spread,
)
from .evaluation import nearest_subspace
from .loss import MaximalCodingRateReduction

MAX_FITTED = 10_000  # training images whose features span the subspaces
ACCURACY, REDUCTION = "accuracy of the nearest subspace", "rate reduction"


@dataclass(frozen=True)
class RateReduction:
    """Rate reduction of features of norm 1, nats per sample. Fields and formula: :mod:`.tasks`."""

    name: ClassVar[str] = "rate-reduction"
    score: ClassVar[str] = ACCURACY

    eps: float = setting(0.5**0.5, gt=0, help="distortion, squared inside")
    gamma1: float = setting(1.0, gt=0, help="inside the determinant of R")
    gamma2: float = setting(1.0, gt=0, help="weight of R")
    features: int = setting(128, ge=2, help="dimension of the features")

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The classifier of that name with features instead of logits, ``[b, features]``."""
        return classifier(name, replace(sizes, num_classes=self.features))

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[torch.Tensor, ""]:
        """The loss of all processes' images together.

        Raises:
            ValueError: targets are no shares of classes, all images are of one class, or features are not finite.
        """
        check_targets(targets, len(images))
        logits = model(images)
        features = gather(unit_norm(logits.to(torch.promote_types(logits.dtype, torch.float32))))
        memberships = gather(targets.to(features.dtype))
        if int((memberships.sum(0) > 0).sum()) < 2:
            raise ValueError("a batch must hold images of two classes at least, which have a rate reduction, got one; take a larger batch")
        certain = bool((memberships.amax(1) == 1).all())  # labels are faster than memberships
        loss = MaximalCodingRateReduction(eps=self.eps, gamma1=self.gamma1, gamma2=self.gamma2)
        return loss(features, memberships.argmax(1) if certain else memberships).loss

    def measure(self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int) -> Sequence[Measurement]:
        """Accuracy of the nearest of the classes' principal subspaces; ΔR of the features, nats per sample, with permuted labels as null.

        With few images both ΔR and its null are larger, so compare ΔR with the null of the same images only. The subspaces are those of up
        to 10,000 training images, evenly spaced. Each has the dimension of a class at the optimum, d / k at most (12 of 128 for ten
        classes); the published evaluation takes 30 for any d.

        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        check_labelled("train", train)
        check_labelled("measured", images)
        known, classes = spread(train, MAX_FITTED)
        fitted, features = (unit_norm(outputs(model, pixels, batch_size=batch_size)) for pixels in (known, images[0]))
        labels = images[1].cpu().long()
        rank = max(1, fitted.shape[1] // len(classes.unique()))
        right = nearest_subspace(fitted, classes.cpu().long(), features, rank=rank) == labels
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        reduction, null = (float(rate_reduction(features, each, eps=self.eps)) for each in (labels, labels[order]))
        return [
            measured(self.score, float(right.double().mean()), images, unit="share"),
            measured(REDUCTION, reduction, images, unit="nats", null=Null("permuted labels", (null,)), side=">="),
        ]
