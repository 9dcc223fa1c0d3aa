"""Masked autoencoding: a network predicts hidden patches from the visible ones; its encoder is the useful
part.

The loss is the mean squared error of the hidden patches in normalised pixels, so that a constant grey
prediction has an error of about 1. Each forward pass draws the masks for the images of all processes from
torch's global generator, and each process uses its part. Masks and mean loss are therefore the same as in a
single process.
Source: :cite:t:`he2022masked` (the task), :cite:t:`pai2024masked` (the network,
:class:`~...models.CRATEMAE`).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.experiment import check_settings, setting
from ...core.measurement import Measurement, Null
from ...models import CRATEMAE, build, random_mask
from ...models.image_networks import Pixels, Sizes
from .protocol import (
    LOSS,
    UNTRAINED,
    Batch,
    Gather,
    Labelled,
    Targets,
    check_labelled,
    measured,
    outputs,
    spread,
)

FITTED = 10_000  # largest number of training images for the linear probe


class Completion(nn.Module):
    """A CRATE-MAE with its loss: the mean squared error of each image's hidden patches, ``[b, c, h, w] ->
    [b]``.

    Args:
        sizes: sizes of the network; encoder and decoder have ``depth`` layers each, and ``stem`` is ignored.
        masked: share of the patches that are hidden, in (0, 1).
    Raises:
        ValueError: the sizes are invalid.
    """

    def __init__(self, sizes: Sizes, masked: float):
        super().__init__()
        self.sizes, self.masked = sizes, masked
        shape = {
            key: getattr(sizes, key)
            for key in ("image_size", "patch_size", "channels", "dim", "depth", "heads")
        }
        self.autoencoder = CRATEMAE(**shape)
        # unused here; several processes would wait for its gradient
        self.autoencoder.decoder_embed.requires_grad_(False)

    def forward(self, images: Batch) -> Float[Tensor, " b"]:
        masked = self._mask(len(images)).to(images.device)
        errors = (self.autoencoder(images, masked) - self.autoencoder.patches(images)).square().mean(-1)
        return (errors * masked).sum(1) / masked.sum(1)

    def _mask(self, batch: int) -> Tensor:
        """Draws masks ``[batch, seq]``: in training this process's part of the common masks, otherwise masks
        of this process only.
        """
        several = self.training and torch.distributed.is_available() and torch.distributed.is_initialized()
        rank, processes = (
            (torch.distributed.get_rank(), torch.distributed.get_world_size()) if several else (0, 1)
        )
        seq = self.autoencoder.patches.seq
        masks = random_mask(batch * processes, seq, generator=torch.default_generator, share=self.masked)
        return masks[rank * batch : (rank + 1) * batch]


class Features(nn.Module):
    """The mean token of the encoder on whole images, without the class token: ``[b, c, h, w] ->
    [b, dim]``.
    """

    def __init__(self, autoencoder: CRATEMAE):
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, images: Batch) -> Float[Tensor, "b dim"]:
        return self.autoencoder.encode(images)[:, 1:].mean(1)


@dataclass(frozen=True)
class MaskedAutoencoding:
    """Prediction of hidden patches by a CRATE-MAE. The loss is described in :mod:`.masked_autoencoding`."""

    name: ClassVar[str] = "masked-autoencoding"
    score: ClassVar[str] = "accuracy of a linear probe"

    masked: float = setting(0.75, gt=0, lt=1, help="share of the patches that are hidden")

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> Completion:
        """Builds a CRATE-MAE of these sizes.

        Raises:
            ValueError: the network is not "crate" with stem "patches", the sizes are invalid, or no patch
                would remain visible.
        """
        if (name, sizes.stem) != ("crate", "patches"):
            raise ValueError(
                f"masked autoencoding trains only network 'crate' with stem 'patches', got {name!r} on "
                f"{sizes.stem!r}"
            )
        completion = Completion(sizes, self.masked)
        seq = completion.autoencoder.patches.seq
        with torch.device("cpu"):  # the network may be built on "meta", where a mask has no numbers
            hidden = int(random_mask(1, seq, generator=torch.Generator(), share=self.masked).sum())
        if hidden == seq:
            raise ValueError(
                f"masked must leave a visible patch, got {hidden} hidden of {seq}; lower it, or choose "
                "smaller patches"
            )
        return completion

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Returns the mean loss over this process's images; targets are ignored."""
        return model(images).mean()

    def measure(
        self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int
    ) -> Sequence[Measurement]:
        """Measures the loss, and the accuracy of a logistic regression on the encoder's mean token.

        The regression is fitted to at most 10,000 training images. The null of the loss is the loss on the
        same images with shuffled pixels, in which visible patches say nothing about hidden ones. The second
        null of the loss, and the null of the accuracy, come from an untrained network.

        Raises:
            ValueError: there is no image, images and labels differ in number, or all training images belong
                to one class.
        """
        check_labelled("train", train)
        check_labelled("measured", images)
        if len(train[1].unique()) < 2:
            raise ValueError("train labels must contain two classes for the linear probe, got one")
        probe_train, initial = spread(train, FITTED), _untrained_copy(model)
        pixels, _ = images
        shuffled = Null("shuffled pixels", (_mean_error(model, _shuffle_pixels(pixels), batch_size),))
        loss = Null(UNTRAINED, (_mean_error(initial, pixels, batch_size),))
        accuracy = Null(UNTRAINED, (_probe_accuracy(initial, probe_train, images, batch_size),))
        return [
            measured(LOSS, _mean_error(model, pixels, batch_size), images, nulls=(shuffled, loss), side="<="),
            measured(
                self.score,
                _probe_accuracy(model, probe_train, images, batch_size),
                images,
                unit="share",
                nulls=(accuracy,),
                side=">=",
            ),
        ]


def _mean_error(model: nn.Module, pixels: Tensor, batch_size: int) -> float:
    """Returns the mean error, with the same masks in every call; the global random state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return float(outputs(model, pixels, batch_size=batch_size).mean())


def _shuffle_pixels(pixels: Tensor) -> Tensor:
    """Permutes the pixels of each image by a separate permutation; the channels of a pixel stay together."""
    n, c, h, w = pixels.shape
    order = torch.rand(n, h * w, generator=torch.Generator().manual_seed(0)).argsort(1).to(pixels.device)
    return pixels.flatten(2).gather(2, order[:, None].expand(-1, c, -1)).view(n, c, h, w)


def _completion(model: nn.Module) -> Completion:
    """Returns the :class:`Completion` within a model."""
    return next(module for module in model.modules() if isinstance(module, Completion))


def _untrained_copy(model: nn.Module) -> nn.Module:
    """Returns a copy of the model with new initial weights."""
    duplicate = copy.deepcopy(model)
    completion = _completion(duplicate)
    initial = build(lambda: Completion(completion.sizes, completion.masked), torch.Generator().manual_seed(0))
    completion.load_state_dict(initial.state_dict())
    return duplicate


def _probe_accuracy(model: nn.Module, train: Labelled, images: Labelled, batch_size: int) -> float:
    """Returns the accuracy of a logistic regression on standardised features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    encoder: nn.Module = Features(_completion(model).autoencoder)
    for module in model.modules():
        if isinstance(module, Pixels):
            encoder = Pixels(encoder, module.mean.flatten(), module.std.flatten()).to(module.mean.device)
    (x, y), (test_x, test_y) = (
        (outputs(encoder, pixels, batch_size=batch_size).numpy(), labels.cpu().numpy())
        for pixels, labels in (train, images)
    )
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)).fit(x, y)
    return float(probe.score(test_x, test_y))
