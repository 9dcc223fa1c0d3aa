"""Conversions: images to tokens, tokens to words of a finite vocabulary, and words to unit vectors.

Words from k-means clusters of patches are the "visual words" of :cite:t:`sivic2003video`.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.threads import pools
from ..core.validation import converted


@converted(floats=("images",))
def patches(images: Float[Tensor, "n c h w"], size: int) -> Float[Tensor, "n seq dim"]:
    """Cuts images into square patches, row by row: token ``i * (w / size) + j`` is the patch in row i and
    column j.

    Inside a patch the order is row, column, channel, so ``dim = size * size * c`` and ``seq = (h / size) * (w
    / size)``.

    >>> from transformer_theory import data
    >>> images = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> data.patches(images, 2)[0, 1]  # the upper right patch
    tensor([2., 3., 6., 7.])

    Raises:
        ValueError: height or width is not a multiple of ``size``, or the images do not have four dimensions.
    """
    if images.ndim != 4:
        raise ValueError(
            f"images must have shape [n, channels, height, width], got {list(images.shape)}; add a channel: "
            "images[:, None]"
        )
    height, width = images.shape[-2:]
    if size < 1 or height % size or width % size:
        raise ValueError(
            f"size must divide height and width, got size {size} for {height} x {width} images; crop, or "
            "choose another size"
        )
    return rearrange(images, "n c (h p) (w q) -> n (h w) (p q c)", p=size, q=size)


def number_of_words(tokens: Float[Tensor, "*batch dim"], most: int) -> int:
    """Returns the number of different tokens, but at most ``most``: k-means cannot find more clusters."""
    points = tokens.reshape(-1, tokens.shape[-1])
    # In most data, a few tokens are different enough. To sort all of them takes longer than k-means.
    few = len(points[: 4 * most].unique(dim=0))
    return min(most, few if few >= most else len(points.unique(dim=0)))


@converted(floats=("tokens",))
def codebook(
    tokens: Float[Tensor, "*batch dim"], k: int, *, generator: torch.Generator
) -> tuple[Int[Tensor, "*batch"], Float[Tensor, "k dim"]]:
    """Assigns each token to the nearest of ``k`` k-means centres, which are the words of a vocabulary of size
    ``k``.

    Centres are sorted by norm, so word 0 has the smallest norm. The generator seeds k-means, which runs on
    one thread, so the same generator state gives the same words.

    Args:
        tokens: vectors, ``[*batch, dim]``.
        k: number of words.
        generator: source of the seed, advanced by one draw.
    Returns:
        Ids ``[*batch]`` in [0, k), and centres ``[k, dim]`` in the dtype of the tokens.
    Raises:
        ValueError: k is not between 1 and the number of different tokens.
    """
    from sklearn.cluster import KMeans

    points = tokens.reshape(-1, tokens.shape[-1])  # [number of tokens, dim]
    if k < 1 or number_of_words(points, k) < k:
        distinct = len(points.unique(dim=0))
        raise ValueError(
            f"k must lie between 1 and the number of different tokens, {distinct}, got {k}; choose a "
            "smaller codebook"
        )
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    with pools("sklearn.cluster").limit(limits=1):
        kmeans = KMeans(k, n_init=1, random_state=seed).fit(points.double().cpu().numpy())  # pyright: ignore[reportArgumentType]
    centres = torch.from_numpy(kmeans.cluster_centers_).to(points)
    centres = centres[torch.linalg.vector_norm(centres, dim=-1).argsort(stable=True)]
    return nearest_centre(points, centres).reshape(tokens.shape[:-1]), centres


def nearest_centre(points: Float[Tensor, "n dim"], centres: Float[Tensor, "k dim"]) -> Int[Tensor, " n"]:
    """Returns the number of the nearest centre of each point, ``[n]``."""
    # Compute distances from differences: |x|^2 - 2 x.c + |c|^2 cancels if a token is near its centre. Chunks
    # limit the memory of the distance matrix, which has one row per token.
    return torch.cat(
        [
            torch.cdist(chunk, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=-1)
            for chunk in points.split(65_536)
        ]
    )


@converted(int64=("ids",))
def one_hot(ids: Int[Tensor, "*batch"], vocab_size: int) -> Float[Tensor, "*batch vocab"]:
    """Converts discrete tokens to unit vectors, ``[*batch, vocab]``, float64.

    Raises:
        ValueError: an id lies outside ``[0, vocab_size)``.
    """
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        invalid = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise ValueError(
            f"ids must lie in [0, {vocab_size}), got {invalid}; pass a larger vocab_size or recode"
        )
    return nn.functional.one_hot(ids, vocab_size).double()
