r"""Maximal coding rate reduction as a training objective for images: the loss is a function of features
instead of logits.

.. math::
    \mathcal L = R^c(X|\Pi) - \gamma_2 R_{\gamma_1}(X), \qquad \text{rows of } X \text{ of norm } 1

over the features X of *all* images of a step. The rates couple images, so the losses of parts of a batch do
not determine the loss of the batch. Every process computes the loss of the whole batch from the output of
``gather``, and the average of the gradients over the processes equals the gradient on a single process
(:mod:`~transformer_theory.training.objectives.protocol`). Mixed images have soft memberships as targets; R^c
is also defined for these.

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
from ...models.image_networks import Sizes
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

MAX_FITTED = 10_000  # largest number of training images to which the subspaces are fitted
ACCURACY, REDUCTION = "accuracy of the nearest subspace", "rate reduction"


@dataclass(frozen=True)
class RateReduction:
    """Rate reduction of features of norm 1, in nats per sample; :mod:`.tasks` has the formula."""

    name: ClassVar[str] = "rate-reduction"
    score: ClassVar[str] = ACCURACY

    eps: float = setting(0.5**0.5, gt=0, help="distortion, squared inside")
    gamma1: float = setting(1.0, gt=0, help="factor inside the determinant of R")
    gamma2: float = setting(1.0, gt=0, help="weight of R")
    features: int = setting(128, ge=2, help="dimension of the features")

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """Builds the classifier ``name``, with features ``[b, features]`` as outputs instead of logits."""
        return classifier(name, replace(sizes, num_classes=self.features))

    def loss(
        self, model: nn.Module, images: Batch, targets: Targets, gather: Gather
    ) -> Float[torch.Tensor, ""]:
        """Returns the loss of the images of all processes together.

        Raises:
            ValueError: targets are not shares of classes, all images are of one class, or features are not
                finite.
        """
        check_targets(targets, len(images))
        raw = model(images)
        # Half precision is raised to float32 before the features are normalised.
        features = gather(unit_norm(raw.to(torch.promote_types(raw.dtype, torch.float32))))
        memberships = gather(targets.to(features.dtype))
        if int((memberships.sum(0) > 0).sum()) < 2:
            raise ValueError(
                "a batch must hold images of at least two classes (one has no rate reduction), got one; "
                "take a larger batch"
            )
        # every image has one class: the loss is faster with labels
        certain = bool((memberships.amax(1) == 1).all())
        loss = MaximalCodingRateReduction(eps=self.eps, gamma1=self.gamma1, gamma2=self.gamma2)
        return loss(features, memberships.argmax(1) if certain else memberships).loss

    def measure(
        self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int
    ) -> Sequence[Measurement]:
        """Measures accuracy by the nearest class subspace, and ΔR of the features (nats per sample) with
        permuted labels as the null.

        ΔR and its null both increase as the number of images decreases, so compare ΔR only with the null of
        the same images. The subspaces are principal subspaces of the classes, fitted to up to 10,000 evenly
        spaced training images. Their dimension is d / k rounded down, the largest that k orthogonal classes
        can all have (12 of 128 for ten classes); the published evaluation takes 30 for any d.

        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        check_labelled("train", train)
        check_labelled("measured", images)
        train_images, classes = spread(train, MAX_FITTED)
        train_features, features = (
            unit_norm(outputs(model, pixels, batch_size=batch_size)) for pixels in (train_images, images[0])
        )
        labels = images[1].cpu().long()
        # of one class: half of the space
        rank = max(1, train_features.shape[1] // max(2, len(classes.unique())))
        correct = nearest_subspace(train_features, classes.cpu().long(), features, rank=rank) == labels
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        reduction, null = (
            float(rate_reduction(features, groups, eps=self.eps)) for groups in (labels, labels[order])
        )
        return [
            measured(self.score, float(correct.double().mean()), images, unit="share"),
            measured(
                REDUCTION,
                reduction,
                images,
                unit="nats",
                nulls=(Null("permuted labels", (null,)),),
                side=">=",
            ),
        ]
