"""Trainings of the ladder: free features, and networks on a mixture of subspaces or on the digits.

All rungs have features of dimension 64 and the same number of samples in each class. From the third rung on,
the training has not seen the samples. Networks are trained by
:func:`~transformer_theory.training.fitting.fit`.

Source: :cite:t:`yu2020learning` (the loss, and momentum, weight decay and learning-rate drops of the
published training).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import repeat

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ....core.statistics import LADDER_DRAWS, permutations
from ....data import TokenData
from ....data.corruption import relabel_uniformly
from ....maths.linalg import orthonormalise
from ....metrics.class_features import EPS
from ....metrics.coding import unit_norm
from ....models import ViT, build
from ....probes.evaluation import evaluation
from ....probes.features import features as block_features
from ....training import trained_rungs
from ....training.fitting import fit
from ....training.supervised import train_classifier
from ....training.tasks import Classification, StreamTask, inputs_of
from .. import digit_training
from ..digit_training import CLASSES, FEATURES, MOMENTUM, drops, perceptron
from ..loss import MaximalCodingRateReduction
from ..mcr2_training import RateReductionRecipe, fit_supervised
from ..optimum import optimum
from ..problem import sorted_labels
from ..redunet import guaranteed_step
from .quantities import Evaluated

HELD_OUT = 256  # samples that are evaluated, as many as in the measurement of trained networks
STEPS = 150  # of the free features and of the perceptron, which fits all training labels in them
# after 150 steps a transformer with one block fits 87 % of the training labels (seed 1)
TRANSFORMER_STEPS = 400
BATCH = 64
# learning rates: that of rate_reduction.training_dynamics, and that of the recipes of small networks
RATE, ADAMW_RATE = 0.03, 3e-3
DEPTH, HEADS = 3, 4
NOISE = 0.4  # share of the training labels that are drawn anew


class UnitNorm(nn.Module):
    """Scales features to norm 1, ``[n, d] -> [n, d]``."""

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return unit_norm(features)


class FreeFeatures(nn.Module):
    """Features that are parameters, ``[n, d]``; there is no network."""

    def __init__(self, start: Float[Tensor, "n d"]):
        super().__init__()
        self.features = nn.Parameter(start.clone())

    def forward(self) -> Float[Tensor, "n d"]:
        return unit_norm(self.features)


def digit_parts() -> tuple[TokenData, TokenData]:
    """Returns the training digits and 256 held-out digits, the same for all seeds, as in trained networks."""
    train, validation = trained_rungs.digit_parts()
    return train, validation[:HELD_OUT]


def mixture(generator: torch.Generator) -> tuple[TokenData, TokenData]:
    """Draws a random subspace for each of ten classes, and as many training and held-out samples in each as
    there are digits.

    The dimensions are those of the optimum, 6 or 7 with sum 64, so the samples span the space and the optimum
    is within reach: gradients of ΔR lie in the span of the features. The subspaces are not orthogonal.
    Samples have isotropic Gaussian coefficients and norm 1.
    """
    train, held_out = digit_parts()
    assert held_out.labels is not None
    ranks = optimum(torch.bincount(held_out.labels).tolist(), FEATURES, eps=EPS).ranks
    bases = [
        orthonormalise(torch.randn(FEATURES, rank, dtype=torch.float64, generator=generator))
        for rank in ranks
    ]
    parts = []
    for part in (train, held_out):
        assert part.labels is not None
        sizes = torch.bincount(part.labels).tolist()
        classes = [
            torch.randn(n, len(U.mT), dtype=torch.float64, generator=generator) @ U.mT
            for n, U in zip(sizes, bases)
        ]
        tokens = unit_norm(torch.cat(classes)).view(part.tokens.shape)
        parts.append(TokenData(tokens=tokens, labels=sorted_labels(sizes), name="mixture of subspaces"))
    return parts[0], parts[1]


def free_features(generator: torch.Generator) -> Evaluated:
    """Ascends ΔR of the samples of a mixture themselves, on the sphere, by gradient steps with momentum."""
    _, samples = mixture(generator)
    assert samples.labels is not None
    start, labels = samples.tokens.flatten(1), samples.labels
    model, objective = FreeFeatures(start), MaximalCodingRateReduction(eps=EPS)
    rate = guaranteed_step(len(start), FEATURES, eps=EPS)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    task = StreamTask(lambda network, _: objective(network(), labels).loss, lambda _: repeat(None))
    fit(model, task, optimiser=optimiser, steps=STEPS, generator=generator)
    note = f"{STEPS} gradient steps on the features themselves, which are evaluated"
    return Evaluated(
        model().detach(),
        labels,
        permutations(len(labels), LADDER_DRAWS, generator),
        start - start.mean(0),
        start,
        split="train",
        data=samples.name,
        model="none",
        note=note,
    )


def on_training_samples(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron on the rate reduction of the samples of a mixture that are measured."""
    _, samples = mixture(generator)
    trained = _on_reduction(samples, samples, generator)
    return replace(trained, orders=permutations(HELD_OUT, LADDER_DRAWS, generator), split="train")


def on_mixture(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron on the rate reduction of other samples of the mixture."""
    train, held_out = mixture(generator)
    return replace(
        _on_reduction(train, held_out, generator), orders=permutations(HELD_OUT, LADDER_DRAWS, generator)
    )


def on_digits(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron on the rate reduction of the digits."""
    return _on_reduction(*digit_parts(), generator)


def normalised(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron and a linear head, which receives features of norm 1, by cross-entropy."""
    return _classify(
        lambda: nn.Sequential(UnitNorm(), nn.Linear(FEATURES, CLASSES)),
        _with_full_batches,
        generator,
        note=_full_batch(),
    )


def plain(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron and a linear head by cross-entropy, with full batches."""
    return _classify(_linear_head, _with_full_batches, generator, note=_full_batch())


def mini_batches(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron and a linear head by cross-entropy, with stochastic gradient descent on
    mini-batches.
    """
    note = f"{STEPS} steps of gradient descent with momentum on {BATCH} samples"
    return _classify(_linear_head, partial(descend, steps=STEPS, batch_size=BATCH), generator, note=note)


def adamw(generator: torch.Generator) -> Evaluated:
    """Trains the perceptron and a linear head by cross-entropy, with AdamW on mini-batches."""
    return _classify(_linear_head, partial(_with_adamw, steps=STEPS), generator, note=_adamw(STEPS))


def one_block(generator: torch.Generator) -> Evaluated:
    """Trains a transformer with one block on the patches of the digits."""
    return _transformer(1, *digit_parts(), generator)


def several_blocks(generator: torch.Generator) -> Evaluated:
    """Trains a transformer with three blocks on the patches of the digits."""
    return _transformer(DEPTH, *digit_parts(), generator)


def wrong_labels(generator: torch.Generator) -> Evaluated:
    """Trains a transformer with three blocks on digits of which 40 % have labels drawn anew; held-out labels
    are right.
    """
    train, held_out = digit_parts()
    assert train.labels is not None
    noisy = replace(
        train, labels=relabel_uniformly(train.labels, NOISE, classes=CLASSES, generator=generator)
    )
    # Features of a network that fits wrong labels are not predicted to collapse for the true classes.
    return replace(_transformer(DEPTH, noisy, held_out, generator), collapse=False)


def descend(
    model: nn.Module,
    train: TokenData,
    held_out: TokenData,
    *,
    steps: int,
    batch_size: int,
    generator: torch.Generator,
) -> None:
    """Trains a classifier in place by cross-entropy, with gradient descent and momentum.

    Args:
        model: maps tokens to logits.
        train, held_out: sequences with labels; the second are not used for training.
        steps: number of steps; the learning rate drops after 40 % and 80 % of them.
        batch_size: samples per step; a larger number than there are samples is reduced.
        generator: draws the batches.
    """
    task = Classification(train, held_out, batch_size)
    digit_training.descend(model, task, rate=RATE, steps=steps, generator=generator)


def _with_full_batches(
    model: nn.Module, train: TokenData, held_out: TokenData, *, generator: torch.Generator
) -> None:
    descend(model, train, held_out, steps=STEPS, batch_size=len(train), generator=generator)


def _with_adamw(
    model: nn.Module, train: TokenData, held_out: TokenData, *, steps: int, generator: torch.Generator
) -> None:
    train_classifier(
        model, train, held_out, steps=steps, learning_rate=ADAMW_RATE, batch_size=BATCH, generator=generator
    )


def _linear_head() -> nn.Linear:
    return nn.Linear(FEATURES, CLASSES)


def _body() -> nn.Sequential:
    """Returns the perceptron on the 64 entries of all tokens, tokens ``[n, 16, 4]`` to features
    ``[n, 64]``.
    """
    return nn.Sequential(nn.Flatten(), *perceptron())


def _on_reduction(train: TokenData, held_out: TokenData, generator: torch.Generator) -> Evaluated:
    assert train.labels is not None
    body = build(_body, generator)
    before = _outputs(body, held_out)
    recipe = RateReductionRecipe(
        "ladder",
        _body,
        lambda images: images,
        STEPS,
        RATE,
        drops(STEPS),
        "samples as they are",
        batch_size=len(train.labels),
    )
    # The recipe takes images [n, c, h, w]; tokens [n, 16, 4] are images of one channel.
    fit_supervised(recipe, body, train.tokens[:, None].float(), train.labels, generator=generator)
    return _evaluated(
        _outputs(body, held_out), before, train, held_out, model="perceptron", note=_full_batch()
    )


def _classify(
    head: Callable[[], nn.Module], train: Callable[..., object], generator: torch.Generator, *, note: str
) -> Evaluated:
    """Trains the perceptron, followed by a head, to classify the digits."""
    digits_train, held_out = digit_parts()
    model = build(lambda: nn.Sequential(OrderedDict(body=_body(), head=head())), generator)
    body = model.get_submodule("body")
    before = _outputs(body, held_out)
    train(model, digits_train, held_out, generator=generator)
    return _evaluated(
        _outputs(body, held_out), before, digits_train, held_out, model="perceptron", note=note, collapse=True
    )


def _transformer(depth: int, train: TokenData, held_out: TokenData, generator: torch.Generator) -> Evaluated:
    """Trains a transformer on the patches with AdamW; the features are the class tokens after the
    last block.
    """
    seq, dim = train.tokens.shape[1:]
    model = build(
        lambda: ViT.for_tokens(seq, dim, CLASSES, dim=FEATURES, depth=depth, heads=HEADS), generator
    )
    before = class_tokens(model, held_out)
    _with_adamw(model, train, held_out, steps=TRANSFORMER_STEPS, generator=generator)
    note = f"class token after the last of {depth} blocks, {_adamw(TRANSFORMER_STEPS)}"
    after, name = class_tokens(model, held_out), f"ViT of depth {depth}"
    return _evaluated(after, before, train, held_out, model=name, note=note, collapse=True)


def class_tokens(model: nn.Module, data: TokenData) -> Float[Tensor, "n d"]:
    """Returns the class tokens after the last block of a transformer, float64, ``[n, d]``."""
    tokens = block_features(model, data).query
    assert tokens is not None
    return tokens


def centred(held_out: TokenData, train: TokenData) -> Float[Tensor, "n inputs"]:
    """Returns the entries of all tokens of a sample, without the mean training sample, float64, ``[n, seq *
    dim]``.
    """
    return held_out.tokens.flatten(1).double() - train.tokens.flatten(1).double().mean(0)


def _evaluated(
    after: Tensor,
    before: Tensor,
    train: TokenData,
    held_out: TokenData,
    *,
    model: str,
    note: str,
    collapse: bool = False,
) -> Evaluated:
    """Returns held-out features of the seeds' common data: the seeds share the permutations as well."""
    assert held_out.labels is not None
    orders, inputs = permutations(len(after), LADDER_DRAWS), centred(held_out, train)
    return Evaluated(
        after,
        held_out.labels,
        orders,
        inputs,
        before,
        collapse=collapse,
        data=held_out.name,
        model=model,
        note=note,
    )


def _outputs(body: nn.Module, data: TokenData) -> Float[Tensor, "n d"]:
    """Returns the outputs of a network, without gradients and in evaluation mode."""
    with evaluation(body):
        return body(inputs_of(data, body, torch.arange(len(data)))[0])


def _adamw(steps: int) -> str:
    return f"{steps} steps of AdamW on {BATCH} samples"


def _full_batch() -> str:
    return f"{STEPS} full-batch steps of gradient descent with momentum"
