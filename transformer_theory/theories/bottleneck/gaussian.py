r"""The bottleneck of Gaussian variables in closed form, and a variational bottleneck that learns it by
gradient descent.

For jointly Gaussian x and y let :math:`\lambda_i` be the eigenvalues of :math:`\Sigma_{x|y} \Sigma_x^{-1}`.
The best noisy projection keeps the directions with :math:`\beta > \beta_i = 1 / (1 - \lambda_i)`, and with
them

.. math:: I(X;Z) = \tfrac12 \sum_i \log \frac{(\beta - 1)(1 - \lambda_i)}{\lambda_i}, \quad
    I(Z;Y) = I(X;Z) - \tfrac12 \sum_i \log \beta (1 - \lambda_i) .

**Variational bottleneck.** An encoder q(z|x) with a law r(z) that is not its own marginal has the *rate*
:math:`E\, \mathrm{KL}(q(z|x) \| r(z)) \ge I(X;Z)`, and a decoder gives :math:`I(Z;Y) \ge H(Y) - CE`. So rate
- beta (H(Y) - CE) is at least the optimum of the Lagrangian. Source: :cite:t:`chechik2005information`,
:cite:t:`alemi2017deep`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.validation import as_float64, finite, in_range, integers, positive
from ...models.embedding import build
from ...training.fitting import fit
from ...training.tasks import StreamTask


@dataclass(frozen=True)
class GaussianPair:
    """y = x A + s e with x and e standard Gaussian.

    Attributes:
        map: A, ``[dx, dy]``.
        noise: s.

    Raises:
        ValueError: A is no finite matrix, or the noise is not positive.
    """

    map: Float[Tensor, "dx dy"]
    noise: float

    def __post_init__(self):
        positive(noise=self.noise)
        object.__setattr__(self, "map", as_float64("map", self.map))
        if self.map.ndim != 2 or not self.map.numel():
            raise ValueError(f"map must be a matrix [dx, dy], got {list(self.map.shape)}; reshape it")
        finite(map=self.map)

    def eigenvalues(self) -> Float[Tensor, " dx"]:
        """Returns the eigenvalues of the covariance of x given y, ascending, ``[dx]``."""
        dx, dy = self.map.shape
        covariance = self.map.T @ self.map + self.noise**2 * torch.eye(dy, dtype=torch.float64)
        return torch.linalg.eigvalsh(
            torch.eye(dx, dtype=torch.float64) - self.map @ torch.linalg.solve(covariance, self.map.T)
        )

    def draw(self, n: int, generator: Generator) -> tuple[Float[Tensor, "n dx"], Float[Tensor, "n dy"]]:
        """Draws n pairs."""
        dx, dy = self.map.shape
        x = torch.randn(n, dx, generator=generator, dtype=torch.float64)
        return x, x @ self.map + self.noise * torch.randn(n, dy, generator=generator, dtype=torch.float64)

    def informations(self, projection: Float[Tensor, "k dx"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Returns I(X;Z) and I(Z;Y) of z = W x + e with standard Gaussian e, in nats."""
        dy = self.map.shape[1]
        covariance = self.map.T @ self.map + self.noise**2 * torch.eye(dy, dtype=torch.float64)
        given = torch.eye(len(self.map), dtype=torch.float64) - self.map @ torch.linalg.solve(
            covariance, self.map.T
        )
        eye = torch.eye(len(projection), dtype=torch.float64)
        rate = 0.5 * torch.logdet(projection @ projection.T + eye)
        return rate, rate - 0.5 * torch.logdet(projection @ given @ projection.T + eye)


@in_range
def gaussian_bottleneck(eigenvalues, beta: float) -> tuple[float, float]:
    """Returns I(X;Z) and I(Z;Y) of the best encoder of Gaussian variables at one trade-off, in nats.

    Args:
        eigenvalues: of the covariance of x given y relative to that of x, in (0, 1], ``[dx]``.
        beta: trade-off of I(X;Z) - beta I(Z;Y).
    Raises:
        ValueError: the eigenvalues are no vector, one is outside (0, 1], or beta is not positive.
    """
    values = as_float64("eigenvalues", eigenvalues)
    positive(beta=beta)
    finite(eigenvalues=values)
    if values.ndim != 1:
        raise ValueError(
            f"eigenvalues must be a vector, got {list(values.shape)}; pass those of the covariance, not the "
            "covariance"
        )
    if not len(values) or float(values.min()) <= 0 or float(values.max()) > 1 + 1e-12:
        raise ValueError(
            f"expected eigenvalues in (0, 1], got {values.tolist()[:4]}; divide by the covariance of x"
        )
    active = [value for value in values.tolist() if beta * (1 - value) > 1]
    # a sum of logarithms, since the product of a large beta and 1 / value overflows
    compression = 0.5 * sum(math.log(beta - 1) + math.log((1 - value) / value) for value in active)
    return compression, compression - 0.5 * sum(math.log(beta * (1 - value)) for value in active)


class VariationalBottleneck(nn.Module):
    """A linear encoder with Gaussian noise of learnt size, a standard Gaussian r(z) and a linear Gaussian
    decoder.

    Args:
        dx, dy: dimensions of x and y.
        dim: dimension of z.
        generator: draws the initial weights.
    """

    def __init__(self, dx: int, dy: int, dim: int, generator: Generator):
        super().__init__()
        integers(dx=dx, dy=dy, dim=dim)
        mean, decoder = (
            build(lambda sizes=sizes: nn.Linear(*sizes), generator) for sizes in ((dx, dim), (dim, dy))
        )
        assert isinstance(mean, nn.Linear)
        assert isinstance(decoder, nn.Linear)
        self.mean, self.decoder = mean, decoder
        self.log_noise = nn.Parameter(torch.full((dim,), -1.0))
        self.log_error = nn.Parameter(torch.zeros(dy))
        self.double()

    def terms(
        self, x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], noise: Float[Tensor, "n dim"]
    ) -> tuple[Tensor, Tensor]:
        """Returns the rate and the cross-entropy of y, means over the samples in nats."""
        mean = self.mean(x)
        rate = 0.5 * (mean.square() + (2 * self.log_noise).exp() - 1 - 2 * self.log_noise).sum(1).mean()
        error = y - self.decoder(mean + self.log_noise.exp() * noise)
        entropy = (
            0.5 * math.log(2 * math.pi) + self.log_error + 0.5 * error.square() * (-2 * self.log_error).exp()
        )
        return rate, entropy.sum(1).mean()


def train_variational(
    pair: GaussianPair, beta: float, dim: int, *, steps: int, generator: Generator, batch: int = 512
) -> VariationalBottleneck:
    """Trains a variational bottleneck on new samples of the pair at each step, with Adam and a rate that
    falls by a cosine.
    """
    positive(beta=beta)
    integers(steps=steps, dim=dim, batch=batch)
    dx, dy = pair.map.shape
    model = VariationalBottleneck(dx, dy, dim, generator)

    def draw(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        return (
            *pair.draw(batch, generator),
            torch.randn(batch, dim, generator=generator, dtype=torch.float64),
        )

    def loss(_: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        rate, entropy = model.terms(*batch)
        return rate + beta * entropy

    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = lambda state: 0.5 + 0.5 * math.cos(math.pi * state.done)  # noqa: E731
    fit(
        model,
        StreamTask(loss, lambda generator: iter(lambda: draw(generator), None)),
        optimiser=optimiser,
        steps=steps,
        schedule=schedule,
        generator=generator,
    )
    return model


def variational_bound(
    model: VariationalBottleneck, pair: GaussianPair, n: int, generator: Generator, *, noise: float = 1.0
) -> tuple[float, float]:
    """Returns the rate, a bound on I(X;Z) from above, and H(Y) - CE, a bound on I(Z;Y) from below, on n new
    pairs, in nats.

    ``noise`` scales the noise that the decoder sees; the second bound holds at 1 only.

    Raises:
        ValueError: there are no pairs, or the pairs have other dimensions than the model.
    """
    integers(n=n)
    sizes = model.mean.in_features, model.decoder.out_features
    if tuple(pair.map.shape) != sizes:
        raise ValueError(
            f"pair must have the dimensions {sizes} of the model, got {tuple(pair.map.shape)}; train on "
            "this pair"
        )
    x, y = pair.draw(n, generator)
    with torch.no_grad():
        rate, entropy = model.terms(
            x, y, noise * torch.randn(n, len(model.log_noise), generator=generator, dtype=torch.float64)
        )
    dy = pair.map.shape[1]
    covariance = pair.map.T @ pair.map + pair.noise**2 * torch.eye(dy, dtype=torch.float64)
    exact = 0.5 * (dy * (1 + math.log(2 * math.pi)) + float(torch.logdet(covariance)))
    return float(rate), exact - float(entropy)
