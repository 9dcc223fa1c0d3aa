"""The handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, without a download.

A pixel is the number of ink points in a 4 x 4 cell, from 0 to 16. Source: :cite:t:`alpaydin1998optical` (the
test part of the UCI set).
"""

import torch

from ..core.sources import Source
from .bridges import codebook, patches
from .image_data import Images
from .tokens import TokenData

PATCH = 2  # side of a patch in pixels
WORDS = 32  # number of visual words; this many centres explain 94 % of the variance of the patches
TRAIN_SHARE = 0.7  # scikit-learn's copy has no training and test split
SOURCES = (Source("alpaydin1998optical"),)


def digits(*, words: int = WORDS, seed: int = 0) -> TokenData:
    """Loads the digits as tokens.

    * images [1797, 1, 8, 8] in [0, 1], float64; labels 0..9;
    * tokens [1797, 16, 4]: patches of 2 x 2 pixels, row by row; query: the last patch;
    * ids [1797, 16]: visual words in [0, words), from a k-means codebook of the patches; word 0 has the
      smallest norm;
    * next_id = words + label, in a vocabulary of words + 10: the token that follows an image is its digit.

    Args:
        words: size of the codebook.
        seed: seed of the codebook.
    """
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).double().reshape(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(classes).long()
    tokens = patches(images, PATCH)
    ids, _ = codebook(tokens, words, generator=torch.Generator().manual_seed(seed))
    return TokenData(
        tokens=tokens,
        labels=labels,
        ids=ids,
        next_id=words + labels,
        images=images,
        vocab_size=words + 10,
        name="digits",
        sources=SOURCES,
    )


def digits_split() -> tuple[Images, Images]:
    """Returns 1,257 training and 540 test images by a fixed stratified split. Pixels are scaled from 0..16 to
    0..255 and rounded.
    """
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    grey = (torch.from_numpy(pixels) * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    images = Images(grey, torch.from_numpy(classes).long(), tuple("0123456789"), "digits", SOURCES)
    return images.split(TRAIN_SHARE, torch.Generator().manual_seed(0))
