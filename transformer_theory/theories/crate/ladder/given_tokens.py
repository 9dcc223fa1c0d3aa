"""Rungs without training: one step on tokens of a mixture of subspaces, on digits, and on the embedded
patches of digits.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ....core.measurement import Measurement, Null, judge
from ....core.metric import Activations
from ....core.statistics import HEADLINE_DRAWS, LADDER_DRAWS, fixed_generator
from ....core.table import Table
from ....data.synthetic import subspace_mixture
from ....data.tokens import TokenData
from ....metrics.coding import subspace_coding_rate, unit_norm
from ....models import build
from ....models.crate import PaperAttention
from ....models.crate.compression import Bases, rate_gradient
from ....probes.evaluation import evaluation
from ....training.trained_rungs import digit_parts
from ..in_networks import EPS, NONZEROS, null_subspaces
from ..networks import DIM, HEADS
from ..problem import DECREASE, PAPER, fit_subspaces, nonzeros
from ..sparse_coding import optimal_code
from ..steps import exact_step, lipschitz, paper_step
from ..unrolled import LAM, Sequences, Step, sparse_code
from .networks import LENGTH, SAMPLES, small_crate
from .quantities import LADDER, CompressionInSubspaces, compression_rows

RANK = DIM // HEADS  # dimension of each subspace
SEQUENCES, NOISE = 128, 0.1  # as in the experiment crate.unrolled
CODED = 512  # tokens
RANDOM_DICTIONARIES = "random dictionaries"
LENGTHS_KEPT = "fall of R^c, lengths kept"


def mixture(generator: torch.Generator) -> tuple[Sequences, Sequences, Bases]:
    """Draws tokens near four orthogonal subspaces, mixed in every sequence: two samples [128, 17, 64], and
    the bases [4, 64, 16].
    """
    # Sequences of one token have one subspace each; 17 successive ones form a sequence with tokens of all
    # subspaces.
    number = 2 * SEQUENCES * LENGTH
    drawn = subspace_mixture(
        number, seq=1, dim=DIM, classes=HEADS, rank=RANK, noise=NOISE, generator=generator
    )
    first, second = drawn.data.tokens.view(2, SEQUENCES, LENGTH, DIM)
    return first, second, drawn.bases


def whole_digits(generator: torch.Generator) -> tuple[Sequences, Float[Tensor, "validation n d"]]:
    """Returns sequences of digits, one token an image: 64 pixels without the mean image, training [73, 17,
    64] and validation [31, 17, 64].

    The order is random, so a sequence has digits of all classes. The mean square of the norms is one.
    """
    images = [part.images.flatten(1).double() for part in digit_parts() if part.images is not None]
    first, tokens = (_sequences(pixels - images[0].mean(0), generator) for pixels in images)
    size = _size(tokens)
    return first / size, tokens / size


def _sequences(tokens: Tensor, generator: torch.Generator) -> Sequences:
    count = len(tokens) // LENGTH
    return tokens[torch.randperm(len(tokens), generator=generator)[: count * LENGTH]].view(count, LENGTH, -1)


def embedded_digits(generator: torch.Generator) -> tuple[Sequences, Sequences]:
    """Returns the tokens that enter the first layer of an untrained network, float64 [256, 17, 64]: training
    and validation images.
    """
    model = build(small_crate, generator)
    train, validation = digit_parts()
    return _embedded(model, train[:SAMPLES]), _embedded(model, validation[:SAMPLES])


def _embedded(model: nn.Module, data: TokenData) -> Sequences:
    seen: list[Tensor] = []
    handle = model.get_submodule("transformer").register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0])
    )
    with evaluation(model):
        model(data.tokens.float())
    handle.remove()
    return seen[0].double()


def _size(tokens: Sequences) -> Tensor:
    """Returns the root mean square of the norms of the tokens."""
    return tokens.square().sum(-1).mean().sqrt()


def mixture_rows(generator: torch.Generator, *, fitted: bool) -> Iterator[Measurement]:
    """Yields the rows of an exact step on a mixture of subspaces, along the true subspaces or along those
    fitted to another sample.
    """
    first, tokens, bases = mixture(generator)
    if fitted:
        bases = fit(first, generator)
    yield from exact_rows(tokens, bases, data="subspace mixture")


def digit_rows(generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the rows of an exact step on digits, along subspaces fitted to other digits."""
    first, tokens = whole_digits(generator)
    yield from exact_rows(tokens, fit(first, generator), data="digits")


def paper_rows(generator: torch.Generator, *, embedded: bool) -> Iterator[Measurement]:
    """Yields the rows of a step in the paper's form, with the distortion and the step size of an exact step.

    Args:
        generator: as in the rows above.
        embedded: whether the tokens are embedded patches, scaled to a mean square norm of one, or the tokens
            of :func:`digit_rows`.
    """
    first, tokens = (embedded_digits if embedded else whole_digits)(generator)
    bases = fit(first, generator)
    kappa = 1 / lipschitz(bases, n=LENGTH, eps=EPS)
    yield from step_rows(
        tokens / _size(tokens), bases, partial(paper_step, bases=bases, kappa=kappa, eps=EPS), data="digits"
    )


def network_scale_rows(generator: torch.Generator) -> Iterator[Measurement]:
    """Yields the rows of a step in the paper's form on embedded patches; lengths of the tokens, kappa and eps
    are those of a network.
    """
    first, tokens = embedded_digits(generator)
    block = PaperAttention(DIM, heads=HEADS, head_dim=RANK)
    bases = fit(first, generator)
    yield from step_rows(
        tokens, bases, partial(paper_step, bases=bases, kappa=block.kappa, eps=block.eps), data="digits"
    )


def fit(tokens: Sequences, generator: torch.Generator) -> Bases:
    """Returns subspaces fitted to the tokens, [4, 64, 16]."""
    return fit_subspaces(tokens.flatten(0, 1), K=HEADS, p=RANK, generator=generator, rounds=15)[0]


def exact_rows(tokens: Sequences, bases: Bases, *, data: str) -> Iterator[Measurement]:
    """Yields the rows of :func:`step_rows` for an exact step of size 1/L, then the fall of R^c with lengths
    kept.

    This fall is a share of R^c; its threshold is the guarantee, :math:`\\|\\nabla R^c\\|^2 / (2 L)`.
    """
    L = lipschitz(bases, n=tokens.shape[-2], eps=EPS)
    step = partial(exact_step, bases=bases, kappa=1 / L, eps=EPS)
    yield from step_rows(tokens, bases, step, data=data)
    before, after = (float(subspace_coding_rate(Z, bases, eps=EPS).mean()) for Z in (tokens, step(tokens)))
    guaranteed = float(rate_gradient(tokens, bases, eps=EPS).square().sum((-2, -1)).mean()) / (2 * L * before)
    fall = 1 - after / before
    # the descent lemma needs no assumption on the tokens or the subspaces
    verdict = judge(fall, ">=", guaranteed)
    columns: dict[str, Any] = {
        "op": ">=",
        "threshold": guaranteed,
        "verdict": verdict,
        "side": ">=",
        "source": DECREASE,
    }
    yield LADDER.other_row(LENGTHS_KEPT, fall, data=data, n=len(tokens), **columns)


def step_rows(tokens: Sequences, bases: Bases, step: Step, *, data: str) -> Iterator[Measurement]:
    """Yields the rows of compression and the share of non-zeros for one step on given tokens.

    The code is that of the tokens after the step, scaled to norm one, in the dictionary [U, -U]. A token of
    one subspace needs at most a share 1 / (2K) of its atoms.

    Args:
        tokens: Z, [m, n, d].
        bases: orthonormal U_k, [K, d, p].
        step: function that returns Z+.
        data: name of the data set.
    """
    after = step(tokens)
    yield from compression_rows(compression(tokens, after, bases, draws=LADDER_DRAWS), data=data)
    flat = unit_norm(after.flatten(0, 1))
    flat = flat[torch.randperm(len(flat), generator=fixed_generator())[:CODED]]
    share, bound = float(nonzeros(sparse_code(flat, bases)[0])), 0.5 / len(bases)
    # The columns of random subspaces are orthonormal, so their codes have a closed form.
    frames = (null_subspaces(*bases.shape, seed=seed) for seed in range(HEADLINE_DRAWS))
    null = Null(
        RANDOM_DICTIONARIES, tuple(float(nonzeros(optimal_code(flat, frame, lam=LAM))) for frame in frames)
    )
    columns: dict[str, Any] = {
        "op": "<=",
        "threshold": bound,
        "nulls": (null,),
        "side": "<=",
        "source": PAPER,
    }
    yield LADDER.other_row(NONZEROS, share, unit="share", n=len(flat), data=data, **columns)


def compression(before: Sequences, after: Sequences, bases: Bases, *, draws: int) -> Table:
    """Returns the rows of :class:`~.quantities.CompressionInSubspaces` for tokens before and after a step
    along the bases.
    """
    return Table(measured(before, after, bases, draws=draws).compute(draws=draws))


def measured(before: Sequences, after: Sequences, bases: Bases, *, draws: int) -> CompressionInSubspaces:
    """Returns the metric of :func:`compression` after its update."""
    metric = CompressionInSubspaces()
    metric.draws = draws
    metric.reset()
    metric.bases[0] = bases, "the step"
    metric.update(Activations("step", 0, "features", before, after, after_attention=after))
    return metric
