"""Masked autoencoding: patches are hidden and completed from the others; the encoder is what one keeps.

The loss is the mean squared error of the hidden patches, in pixels normalised as the network reads them, so that grey images have an error
of about 1. Masks are drawn from torch's global generator within the forward pass: for the images of all processes together, of which each
takes its own, so that the masks, and with them the mean of the losses, are those of one process.
Source: :cite:t:`he2022masked` (the task), :cite:t:`pai2024masked` (the network, :class:`~...models.CRATEMAE`).
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.experiment import check_settings, setting
from ...models import CRATEMAE, build, random_mask
from ..networks import Pixels, Sizes
from .protocol import Batch, Gather, Labelled, Targets
from .reading import check_labelled, outputs, spread

FITTED = 10_000  # training images whose features the probe learns from


class Completion(nn.Module):
    """A CRATE-MAE: images in, mean squared error of each image's hidden patches out, ``[b, c, h, w] -> [b]``.

    Args:
        sizes: of the network, without a stem; ``depth`` layers each for encoder and decoder.
        masked: share of the patches that are hidden, in (0, 1).
    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`pai2024masked`.
    """

    def __init__(self, sizes: Sizes, masked: float):
        super().__init__()
        self.sizes, self.masked = sizes, masked
        own = {key: getattr(sizes, key) for key in ("image_size", "patch_size", "channels", "dim", "depth", "heads")}
        self.autoencoder = CRATEMAE(**own)
        self.autoencoder.decoder_embed.requires_grad_(False)  # never used: several processes would wait for its gradient

    def forward(self, images: Batch) -> Float[Tensor, " b"]:
        masked = self._mask(len(images)).to(images.device)
        errors = (self.autoencoder(images, masked) - self.autoencoder.patches(images)).square().mean(-1)
        return (errors * masked).sum(1) / masked.sum(1)

    def _mask(self, batch: int) -> Tensor:
        """In training the part of this process, else of this process alone."""
        several = self.training and torch.distributed.is_available() and torch.distributed.is_initialized()
        rank, processes = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if several else (0, 1)
        seq = self.autoencoder.patches.seq
        every = random_mask(batch * processes, seq, generator=torch.default_generator, share=self.masked)
        return every[rank * batch : (rank + 1) * batch]


class Features(nn.Module):
    """Images in, mean token of the encoder out, nothing hidden: ``[b, c, h, w] -> [b, dim]``; the class token is left out."""

    def __init__(self, autoencoder: CRATEMAE):
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, images: Batch) -> Float[Tensor, "b dim"]:
        return self.autoencoder.encode(images)[:, 1:].mean(1)


@dataclass(frozen=True)
class MaskedAutoencoding:
    """Completion of masked images by a CRATE-MAE. Fields and loss: :mod:`.masked_autoencoding`."""

    name: ClassVar[str] = "masked-autoencoding"
    score: ClassVar[str] = "held-out accuracy of a linear probe"

    masked: float = setting(0.75, gt=0, lt=1, help="share of the patches that are hidden")

    def __post_init__(self):
        check_settings(self)

    def network(self, name: str, sizes: Sizes) -> Completion:
        """A CRATE-MAE of these sizes.

        Raises:
            ValueError: another network or stem than CRATE's on patches, sizes do not fit, or the image is a single patch.
        """
        if (name, sizes.stem) != ("crate", "patches"):
            raise ValueError(f"masked autoencoding trains network 'crate' on stem 'patches' alone, got {name!r} on {sizes.stem!r}")
        completion = Completion(sizes, self.masked)
        seq = completion.autoencoder.patches.seq
        if (hidden := int(random_mask(1, seq, generator=torch.Generator(), share=self.masked).sum())) == seq:
            raise ValueError(f"masked must leave a patch to complete from, got {hidden} hidden of {seq}; lower it, or take smaller patches")
        return completion

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Mean over this process's images; targets are not looked at."""
        return model(images).mean()

    def measure(self, model: nn.Module, train: Labelled, held_out: Labelled, batch_size: int) -> dict[str, float]:
        """Held-out loss, and accuracy of logistic regression on the encoder's mean token (learned from up to 10,000 training images).

        Beside them the nulls: the loss of the same images with their pixels shuffled, in which nothing tells a hidden patch, and both
        readings of the network with other first weights, untrained.

        Raises:
            ValueError: there is no image, images and labels do not fit, or the training images are of one class.
        """
        check_labelled("train", train)
        check_labelled("held_out", held_out)
        if len(train[1].unique()) < 2:
            raise ValueError("train labels must be of two classes at least, for a probe to tell them, got one")
        known, fresh = spread(train, FITTED), _untrained(model)
        pixels, _ = held_out
        return {
            "held-out loss": _error(model, pixels, batch_size),
            "held-out loss, pixels shuffled": _error(model, _shuffled(pixels), batch_size),
            "held-out loss, untrained": _error(fresh, pixels, batch_size),
            self.score: _probed(model, known, held_out, batch_size),
            f"{self.score}, untrained": _probed(fresh, known, held_out, batch_size),
        }


def _error(model: nn.Module, pixels: Tensor, batch_size: int) -> float:
    """Mean error, always with the same masks; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return float(outputs(model, pixels, batch_size=batch_size).mean())


def _shuffled(pixels: Tensor) -> Tensor:
    """The pixels of each image in an order of its own, the channels of a pixel together."""
    n, c, h, w = pixels.shape
    order = torch.rand(n, h * w, generator=torch.Generator().manual_seed(0)).argsort(1).to(pixels.device)
    return pixels.flatten(2).gather(2, order[:, None].expand(-1, c, -1)).view(n, c, h, w)


def _completion(model: nn.Module) -> Completion:
    return next(module for module in model.modules() if isinstance(module, Completion))


def _untrained(model: nn.Module) -> nn.Module:
    """A copy of the model with first weights of its own."""
    twin = copy.deepcopy(model)
    own = _completion(twin)
    fresh = build(lambda: Completion(own.sizes, own.masked), torch.Generator().manual_seed(0))
    own.load_state_dict(fresh.state_dict())
    return twin


def _probed(model: nn.Module, train: Labelled, held_out: Labelled, batch_size: int) -> float:
    """Accuracy of logistic regression on standardised features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    reader: nn.Module = Features(_completion(model).autoencoder)
    for module in model.modules():
        if isinstance(module, Pixels):
            reader = Pixels(reader, module.mean.flatten(), module.std.flatten()).to(module.mean.device)
    (x, y), (unseen, truth) = (
        (outputs(reader, pixels, batch_size=batch_size).numpy(), labels.cpu().numpy()) for pixels, labels in (train, held_out)
    )
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)).fit(x, y)
    return float(probe.score(unseen, truth))
