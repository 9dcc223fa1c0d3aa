"""Images with their classes, stored as bytes. Networks train on the images; theories receive the tokens cut
from them.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from ..core.sources import Source
from ..core.validation import integers
from .bridges import codebook, number_of_words, patches
from .tokens import TokenData, stratified

MAX_SAMPLES = 2000  # largest number of images from which tokens for the theories are cut
WORDS = 64  # number of visual words, the size of the codebook of patches


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """n square images, each with a class.

    Attributes:
        pixels: values from 0 to 255, uint8, ``[n, channels, size, size]``.
        labels: class of each image, an index into ``names``, int64, ``[n]``.
        names: names of the classes; a subset of the images keeps all of them.
        name: name of the data set for headings; it states if the files are not official.
        sources: references for the data.

    Raises:
        ValueError: a field has the wrong type or shape, there are no images, they are not square, or a label
            has no name.
    """

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, " n"]
    names: tuple[str, ...]
    name: str = "images"
    sources: tuple[Source, ...] = ()

    def __post_init__(self):
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8:
            description = f"{self.pixels.dtype} {list(self.pixels.shape)}"
            raise ValueError(
                f"pixels must be uint8 [n, channels, height, width] from 0 to 255, got {description}; "
                "convert them"
            )
        n, _, height, width = self.pixels.shape
        if not self.pixels.numel() or height != width:
            raise ValueError(
                f"pixels must be at least one square image, got {list(self.pixels.shape)}; crop them"
            )
        if self.labels.shape != (n,) or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels must be int64 [{n}], one per image, got {self.labels.dtype} "
                f"{list(self.labels.shape)}"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.names):
            raise ValueError(
                f"labels must lie in [0, {len(self.names)}), one name per class, got "
                f"{low if low < 0 else high}; add names"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        """Returns a text such as ``Images('digits', 1257 of 1 x 8 x 8, 10 classes)``."""
        shape = " x ".join(str(length) for length in self.pixels.shape[1:])
        return f"Images({self.name!r}, {len(self)} of {shape}, {self.classes} classes)"

    def __getitem__(self, index) -> "Images":
        """Returns the images at ``index``: a slice, an integer or a tensor of positions. All class names are
        kept.
        """
        if isinstance(index, int | np.integer):
            index = slice(int(index), int(index) + 1 or None)  # the slice -1:0 would be empty, -1:None is not
        return replace(self, pixels=self.pixels[index], labels=self.labels[index])

    def mixed(self, generator: torch.Generator) -> "Images":
        """Returns the images in random order, so that the first images are a random sample even if all were
        sorted by class.
        """
        return self[torch.randperm(len(self), generator=generator)]

    @property
    def classes(self) -> int:
        """Number of classes, one per name."""
        return len(self.names)

    @property
    def channels(self) -> int:
        """Number of channels: 1 for grey images, 3 for colour images."""
        return self.pixels.shape[1]

    @property
    def size(self) -> int:
        """Height and width, in pixels."""
        return self.pixels.shape[-1]

    def split(self, share: float, generator: torch.Generator) -> tuple["Images", "Images"]:
        """Splits the images at random in two parts, the first with ``share`` of them; stratified by class;
        every class has an image in the first part. Both parts keep the order.

        Raises:
            ValueError: one part would be empty.
        """
        first, second = stratified(len(self), self.labels, share, generator, what="images")
        return self[first], self[second]

    def _sample(self, share: float, generator: torch.Generator) -> "Images":
        """Draws a share of the images; classes that are too rare for it have none."""
        drawn, _ = stratified(len(self), self.labels, share, generator, what="images", every_class=False)
        return self[drawn]

    def tokens(
        self,
        patch_size: int,
        *,
        max_samples: int = MAX_SAMPLES,
        words: int = WORDS,
        generator: torch.Generator,
    ) -> TokenData:
        """Cuts the images, or a stratified sample if there are more than ``max_samples``, into tokens. The
        fields of the result:

        * images [n, channels, size, size] in [0, 1], float64, and labels;
        * tokens [n, (size / patch_size)^2, patch_size^2 channels]: the patches, row by row; the query is the
          last patch;
        * ids: for each patch its visual word, the nearest centre of a k-means codebook. There are ``words``
          words, or fewer if there are fewer distinct patches; word 0 has the centre of smallest norm;
        * next_id = words + label: the class is the token that follows the image. The vocabulary has words +
          classes entries.

        Args:
            patch_size: side of a patch in pixels, a divisor of ``size``.
            max_samples: largest number of images.
            words: size of the codebook.
            generator: source of the random sample and of the seed of the codebook.
        Raises:
            ValueError: patch_size does not divide the size, or max_samples or words is less than 1.
        """
        integers(max_samples=max_samples, words=words)
        sample = self if len(self) <= max_samples else self._sample(max_samples / len(self), generator)
        scaled = sample.pixels.double() / 255
        tokens = patches(scaled, patch_size)
        # k-means cannot find more clusters than there are distinct patches. Half precision is enough to count
        # them: it represents integers up to 255 exactly and needs a quarter of the memory of float64.
        words = number_of_words(patches(sample.pixels.half(), patch_size), words)
        ids, _ = codebook(tokens, words, generator=generator)
        return TokenData(
            tokens=tokens,
            labels=sample.labels,
            ids=ids,
            next_id=words + sample.labels,
            images=scaled,
            vocab_size=words + self.classes,
            name=self.name,
            sources=self.sources,
        )
