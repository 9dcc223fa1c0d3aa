"""CRATE as released: the classifier of the theory, reading images, with the released sizes, and read from released weights.

Source: :cite:t:`yu2023white`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..embedding import Patches, counts
from ..weights import fill, unwrap
from .classifier import Classifier
from .released import sizes_of


class CRATE(Classifier):
    """A CRATE with a class token; build it with :meth:`for_images`, :meth:`for_tokens` or :meth:`from_released`.

    Its arguments are those of :class:`~transformer_theory.models.crate.classifier.Classifier`. Source: :cite:t:`yu2023white`.
    """

    @classmethod
    def for_images(cls, *, image_size: int, patch_size: int, num_classes: int, dim: int, channels: int = 3, **sizes) -> "CRATE":
        """Reads images [batch, channels, image_size, image_size], gives logits [batch, num_classes]; patches are normalised, as released.

        Args:
            sizes: depth, heads and the other arguments of the class.
        Raises:
            ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
        """
        counts(dim=dim)
        cut = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
        embedding = nn.Sequential(cut, nn.LayerNorm(cut.dim), nn.Linear(cut.dim, dim), nn.LayerNorm(dim))
        return cls(embedding, seq=cut.seq, num_classes=num_classes, dim=dim, **sizes)

    @classmethod
    def from_released(
        cls, state_dict: Mapping[str, Any], image_size: int = 32, patch_size: int = 4, *, heads: int | None = None
    ) -> "CRATE":
        """A network with the weights of a released CRATE; sizes are read off the weights. In evaluation mode.

        Args:
            state_dict: names and shapes of the released image classifier, or a checkpoint that :func:`.unwrap` takes; of a file,
                what :func:`.load_weights` gives.
            image_size, patch_size: of its training, in pixels.
            heads: number of heads, which no weight shows: if not given, heads of width 64 (48 for width 576) as in the released networks.
        Returns:
            in the dtype of the positions, on the CPU; ``model(images [batch, c, h, w])`` gives logits. The weights are copied. Of a
            file in half precision it is a network in half precision, which runs on an accelerator; ``.float()`` makes it run on a CPU.
        Raises:
            ValueError: weights are missing, unknown, of another shape or not finite, all of which are listed, or heads cannot be told.
                Source: :cite:t:`yu2023white`, released code.
        """
        weights = unwrap(state_dict)
        with torch.device("meta"):  # no random numbers for weights that are about to be replaced
            model = cls.for_images(**sizes_of(weights, image_size=image_size, patch_size=patch_size, heads=heads))
        model = model.to(weights["pos_embedding"].dtype).to_empty(device="cpu")
        fill(model, weights)
        return model.eval()


def crate_tiny(num_classes: int = 1000) -> CRATE:
    """CRATE-T, 6.09 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=384, heads=6, depth=12)


def crate_small(num_classes: int = 1000) -> CRATE:
    """CRATE-S, 13.12 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=576, heads=12, depth=12)


def crate_base(num_classes: int = 1000) -> CRATE:
    """CRATE-B, 22.80 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=768, heads=12, depth=12)


def crate_large(num_classes: int = 1000) -> CRATE:
    """CRATE-L, 77.64 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=1024, heads=16, depth=24)


def _released(num_classes: int, **sizes) -> CRATE:
    return CRATE.for_images(image_size=224, patch_size=16, num_classes=num_classes, **sizes)
