r"""Predictions for long sequences from the scores of short ones.

* **Resampling.** If the scores of all keys come from one source, draw n scores from those of short sequences
  and take the largest weight of their softmax (:func:`resampled_top_weight`). This predicts the *largest
  weight*. The weight on the key that is right is smaller where the head does not rank that key first.
* **Logarithmic scaling.** Scores are multiplied by :math:`\log n / \log n_0` at inference. If the winner's
  gap does not depend on n (one marked key among equal ones), the ratio :math:`\gamma = g / \log(n - 1)` keeps
  its value up to :math:`O(1/n)`, and the weight is about :math:`1 / (1 + n^{1 - \gamma})`: it rises to 1
  above the critical value 1 and falls to 0 below it, more slowly than without the factor.
* **A continuum of rivals.** If the score is :math:`s x` with keys x uniform on [0, 1] (the largest of n
  numbers), the n-th spacing of the keys is of the order 1/n. The largest weight depends on :math:`s/n` alone
  for large n: :math:`a = E[1 / \sum_k e^{-(s/n) \Gamma_k}]` with the points :math:`\Gamma_0 = 0, \Gamma_1,
  \Gamma_2, \dots` of a Poisson process (:func:`continuum_weight`). So the scores must grow like n, and
  :math:`\log n` is not enough. With :math:`1/S = \int_0^\infty e^{-tS} dt` and the Laplace functional of the
  process, :math:`a = \int_0^\infty \exp(-t - (n/s) \mathrm{Ein}(t)) \, dt` with
  :math:`\mathrm{Ein}(t) = \int_0^t (1 - e^{-u}) / u \, du`.

Sources: :cite:t:`chiang2022overcoming` (logarithmic scaling), :cite:t:`velickovic2025softmax` (retrieval of
the largest key). Resampling and the limit of the continuum are our own derivations.
"""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.validation import converted, integers, positive
from .dispersion import check_scores

CHUNK = 2**22  # numbers that are drawn at once
EULER = 0.5772156649015329  # Euler's constant


@converted(float64=("pool",))
def resampled_top_weight(
    pool: Float[Tensor, "*scores"], n: int, *, generator: Generator, samples: int = 400, factor: float = 1.0
) -> float:
    """Predicts the mean largest weight among n keys from a pool of scores of short sequences.

    Args:
        pool: scores of one query, or of queries that are alike, ``[*scores]``.
        n: number of keys.
        generator: random generator.
        samples: number of sequences of n scores, drawn with replacement.
        factor: factor of the scores.
    Raises:
        ValueError: the pool is empty or not finite, or the factor is not positive.
    """
    integers(n=n, samples=samples)
    positive(factor=factor)
    if not pool.numel() or not bool(pool.isfinite().all()):
        raise ValueError(
            f"pool must hold finite scores, got {pool.numel()} scores of which not all are finite; measure "
            "short sequences first"
        )
    total, rows = 0.0, max(1, CHUNK // n)
    for start in range(0, samples, rows):
        count = min(rows, samples - start)
        scores = factor * pool.flatten()[torch.randint(pool.numel(), (count, n), generator=generator)]
        total += float(top_weight(scores).sum())
    return total / samples


@converted(floats=("scores",))
def top_weight(scores: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Returns the largest weight of a softmax, :math:`1 / \sum_j e^{s_j - s_{\max}}`, ``[*batch]``.

    Raises:
        ValueError: there is no key, a score is NaN or +inf, or all scores of a row are -inf.
    """
    check_scores(scores, keys=1, weight=True)
    return 1 / (scores - scores.amax(-1, keepdim=True)).exp().sum(-1)


def gaussian_top_weight(
    spread: Float[Tensor, "*batch 1"], n: int, *, generator: Generator
) -> Float[Tensor, "*batch"]:
    """Draws the largest weight among n Gaussian scores with the given standard deviations, ``[*batch]``; what
    variance alone gives.
    """
    z = torch.randn(*spread.shape[:-1], n, generator=generator, dtype=torch.float64)
    return top_weight(spread * standardised(z))


def standardised(z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Shifts and scales rows to mean 0 and standard deviation 1, so that a row of the null has exactly the
    measured variance.
    """
    z = z - z.mean(-1, keepdim=True)
    return z / z.square().mean(-1, keepdim=True).sqrt()


def log_factor(n: int, trained: int) -> float:
    """Returns log n / log n_0, the factor of the scores for n keys after a training with n_0."""
    integers(n=n, trained=trained, minimum=2)
    return math.log(n) / math.log(trained)


def continuum_weight(ratio: float) -> float:
    r"""Computes the limit of the mean largest weight for scores s x, x uniform on [0, 1], at s/n = ``ratio``,
    by quadrature.

    Args:
        ratio: s/n.
    Raises:
        ValueError: the ratio is not positive and finite.
    """
    from scipy.integrate import quad
    from scipy.special import exp1

    positive(ratio=ratio)

    def integrand(t: float) -> float:
        # Ein(t) = E_1(t) + log t + gamma loses its digits near 0, where the series takes over.
        ein = t - t * t / 4 + t**3 / 18 if t < 1e-3 else exp1(t) + math.log(t) + EULER
        return math.exp(-t - ein / ratio)

    # The integrand falls on the scale of the ratio if that is small, and of 1 otherwise.
    scale = min(1.0, ratio)
    return scale * quad(lambda t: integrand(scale * t), 0, math.inf, limit=200, epsabs=1e-12)[0]
