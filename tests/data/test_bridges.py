"""Bridges from images to tokens, from tokens to words, from words to vectors; and the digits."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data import codebook, one_hot, patches


def test_patches_are_cut_row_by_row_by_hand():
    image = torch.arange(2 * 4 * 6, dtype=torch.float64).reshape(1, 2, 4, 6)
    tokens = patches(image, 2)
    assert tokens.shape == (1, 6, 8)
    for row in range(2):
        for column in range(3):
            cut = image[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(tokens[0, 3 * row + column], cut.permute(1, 2, 0).flatten())


def test_patches_equal_the_textbook_unfold():
    images = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    assert torch.equal(patches(images, 4), nn.functional.unfold(images, 4, stride=4).transpose(1, 2))


@each_case("size", [3, 0, -2, 16])
def test_patches_refuse_a_size_that_does_not_divide(size):
    with pytest.raises(
        ValueError, match=f"size must divide height and width, got size {size} for 8 x 8 images"
    ):
        patches(torch.zeros(1, 1, 8, 8).double(), size)


def test_bridges_accept_numpy_arrays(generator, unchecked):
    images = np.arange(16.0, dtype=np.float32).reshape(1, 1, 4, 4)
    tokens = patches(images, 2)
    assert tokens.dtype == torch.float32
    assert torch.equal(tokens, patches(torch.from_numpy(images), 2))
    ids, _ = codebook(tokens.numpy(), 4, generator=generator)
    assert torch.equal(one_hot(ids.numpy().astype(np.int16), 4), one_hot(ids, 4))


def test_patches_refuse_a_wrong_rank(unchecked):
    with pytest.raises(
        ValueError, match=r"images must have shape \[n, channels, height, width\], got \[5, 8, 8\]"
    ):
        patches(torch.zeros(5, 8, 8).double(), 2)


def test_codebook_finds_well_separated_words(generator):
    truth = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 5.0], [9.0, 9.0]], dtype=torch.float64)
    words = torch.randint(4, (20, 7), generator=generator)
    tokens = truth[words] + 0.01 * torch.randn(20, 7, 2, generator=generator, dtype=torch.float64)
    ids, centres = codebook(tokens, 4, generator=generator)
    assert torch.equal(ids, words)  # the centres are sorted by norm, as `truth` is
    torch.testing.assert_close(centres, truth, atol=0.02, rtol=0)


def test_codebook_assigns_the_nearest_centre_and_centres_are_means(generator):
    tokens = torch.randn(100, 5, 3, generator=generator, dtype=torch.float64)
    ids, centres = codebook(tokens, 6, generator=generator)
    distances = (tokens[..., None, :] - centres).square().sum(-1)
    assert torch.equal(ids, distances.argmin(-1))
    assert (centres.norm(dim=-1).diff() >= 0).all()
    assert all((tokens[ids == k].mean(0) - centres[k]).norm() < 0.05 for k in range(6))


def test_codebook_follows_its_generator_alone():
    tokens = torch.randn(60, 5, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def words(seed):
        return codebook(tokens, 8, generator=torch.Generator().manual_seed(seed))[0]

    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert torch.equal(words(0), words(0))
    assert not torch.equal(words(0), words(1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_codebook_refuses_more_words_than_different_tokens(generator, k):
    tokens = torch.eye(3).double()[:, None].repeat(4, 1, 1)
    with pytest.raises(
        ValueError, match=f"k must lie between 1 and the number of different tokens, 3, got {k}"
    ):
        codebook(tokens, k, generator=generator)
    ids, centres = codebook(tokens, 3, generator=generator)
    torch.testing.assert_close(centres[ids], tokens)


def test_one_hot_rows_are_orthonormal_words():
    ids = torch.tensor([[0, 2], [1, 2]])
    vectors = one_hot(ids, 4)
    assert vectors.shape == (2, 2, 4)
    assert vectors.dtype == torch.float64
    assert torch.equal(vectors, torch.eye(4).double()[ids])
    for wrong, size in ((torch.tensor([4]), 4), (torch.tensor([-1]), 4)):
        with pytest.raises(ValueError, match=rf"ids must lie in \[0, 4\), got {int(wrong)}"):
            one_hot(wrong, size)


def test_digits_are_the_stored_ones():
    from sklearn.datasets import load_digits

    digits, stored = data.load("digits"), load_digits()
    assert torch.equal(digits.images[:, 0] * 16, torch.from_numpy(stored.images))
    assert digits.images.max() == 1
    assert digits.images.min() == 0
    assert digits.labels.tolist() == stored.target.tolist()
    assert torch.equal(digits.tokens, patches(digits.images, 2))
    assert digits.tokens.shape == (1797, 16, 4)
    assert torch.equal(digits.query, digits.tokens[:, -1])
    assert digits.ids.unique().tolist() == list(range(32))
    assert torch.equal(digits.next_id, 32 + digits.labels)
    assert digits.vocab_size == 42
    assert digits.sources[0].key == "alpaydin1998optical"


def test_the_visual_words_keep_the_pictures():
    digits = data.load("digits")
    points, words = digits.tokens.reshape(-1, 4), digits.ids.flatten()
    centres = torch.stack([points[words == k].mean(0) for k in range(32)])
    left = (points - centres[words]).square().sum() / (points - points.mean(0)).square().sum()
    assert left < 0.07  # 94 % of the variance are explained
    empty = (digits.tokens == 0).all(-1)
    assert (digits.ids[empty] == 0).all()  # word 0 is the empty patch


def test_the_words_do_not_depend_on_the_number_of_threads(monkeypatch):
    """k-means gives way in the last bits where its sums are shared out, so it takes one thread whatever else
    has.
    """
    import sklearn.cluster
    from threadpoolctl import threadpool_info, threadpool_limits

    threads = []

    class Recording(sklearn.cluster.KMeans):
        def fit(self, *arguments, **given):
            threads.extend(pool["num_threads"] for pool in threadpool_info())
            return super().fit(*arguments, **given)

    one = data.load("digits").ids
    monkeypatch.setattr(sklearn.cluster, "KMeans", Recording)
    torch.set_num_threads(2)
    try:
        with threadpool_limits(limits=2):
            two = data.load("digits").ids
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}
    assert torch.equal(one, two)
