r"""The ladder: how far the answers of a model are those of one preconditioned step, from written weights to a
decoder trained on text.

The quantity is the cosine of the model's answers :math:`\hat y` and the best single step :math:`x^\top G b`
over 2,000 new prompts, with G in closed form for the rung's inputs and noise (:mod:`.preconditioned`). The
theory predicts 1.

**The nulls.** The first null computes the step from the examples of another prompt, with the same query. The
second one asks whether the answers are those of *one step* or of another algorithm: its draws are the cosines
with the step of the answers of 19 other algorithms, ridge with ten strengths from .025 to .8 and 2 to 10
steps of plain descent with :math:`\eta = .3`. A model is beyond it if its answers are nearer to the step than
those of all of them.

The order is that of the columns of the reach map, so the block comes before depth. A rung with blocks changes
more than its name says: a causal mask, the query as a key of itself, linear maps into 32 channels and out of
them, random initial weights, and the rate of Adam. All trainings have 600 steps. In the last rung blocks with
64 channels are trained on a text and frozen, and only linear maps before and after them learn to answer
prompts, as in :cite:t:`lu2022frozen`.
Source: :cite:t:`vonoswald2023transformers`, :cite:t:`zhang2024trained`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.ladder import Ladder
from ...core.measurement import CORRELATION, Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, RANGE_DRAWS, permutations
from ...data import digits
from ...data.text import Text
from ...maths.linalg import cosine
from ...models import Decoder, build
from ...models.decoder import PreNorm
from ...probes import respond
from ...training.fitting import fit
from ...training.tasks import NextWord
from .descent import LinearAttentionGD
from .in_networks import SCORE, InContextScore, own_context
from .inputs import TokenInputs
from .learning import train_attention, train_decoder
from .preconditioned import fourth_moment, optimal_step, preconditioner
from .prompts import Prompts, gaussian_inputs, linear_prompts
from .references import NAME, OTHERS, Answers, answers_of, many_steps, one_step, ridge

ALGORITHMS = "other algorithms"
STRENGTHS, ETA, DESCENTS = np.geomspace(0.025, 0.8, 10), 0.3, range(2, 11)
LADDER = Ladder(
    theory=NAME,
    quantity="cosine of the answers and one preconditioned step",
    side=">=",
    bounds=CORRELATION,
    null=OTHERS,
    source=Source("zhang2024trained", "Theorem 4.1", "second-hand"),
)
ERROR = "error of the answers as a share of that of the answer zero"
N, TESTED, BATCH, NOISE = 20, 2000, 128, 0.5
STEPS, TEXT_STEPS, TEXT_DIM, TEXT_DEPTH = 600, 300, 64, 2
ISOTROPIC, SPECTRUM = (
    torch.ones(5, dtype=torch.float64),
    torch.tensor([2.0, 1.0, 0.5, 0.25, 0.1], dtype=torch.float64),
)
Model = Callable[[Prompts], Answers]


@dataclass(frozen=True, eq=False)
class Setting:
    """Inputs and noise of a rung.

    Attributes:
        inputs: ``(shape, generator) -> x [*shape, d]``.
        covariance, fourth: moments of the inputs, ``[d, d]``; ``fourth`` is None for Gaussian inputs.
        noise: variance of the noise of the examples.
    """

    inputs: Callable[[tuple[int, ...], Generator], Tensor]
    covariance: Float[Tensor, "d d"]
    noise: float = 0.0
    fourth: Float[Tensor, "d d"] | None = None

    def draw(self, generator: Generator, n: int = BATCH) -> Prompts:
        """Draws n prompts."""
        return linear_prompts(n, N, self.inputs, noise=self.noise, generator=generator)


def gaussian(spectrum: Float[Tensor, " d"], noise: float) -> Setting:
    """Returns the setting of Gaussian inputs with the eigenvalues ``[d]``."""
    return Setting(gaussian_inputs(spectrum), torch.diag(spectrum), noise)


@lru_cache(maxsize=1)
def digit_setting() -> Setting:
    """Returns the setting of patches of digits as inputs."""
    inputs = TokenInputs.of(digits().tokens, components=5)
    assert inputs is not None
    return Setting(inputs.draw(), inputs.covariance, NOISE, fourth_moment(inputs.points))


def compared(answers: Model, setting: Setting, generator: Generator, note: str = "") -> Iterator[Measurement]:
    """Compares a model's answers to 2,000 new prompts with the step; yields the cosine with both nulls, and
    the errors.
    """
    prompts = setting.draw(generator, TESTED)
    G = preconditioner(setting.covariance, N, noise=setting.noise, fourth=setting.fourth)
    found, step = answers(prompts), one_step(prompts, G)
    best = ridge(prompts, max(setting.noise, 1e-9) / N)
    other = [
        one_step(prompts.with_contexts(order), G) for order in permutations(TESTED, LADDER_DRAWS, generator)
    ]
    algorithms = [ridge(prompts, float(strength)) for strength in STRENGTHS] + [
        many_steps(prompts, ETA, steps) for steps in DESCENTS
    ]
    nulls = (
        Null(OTHERS, tuple(float(cosine(found, each)) for each in other)),
        Null(ALGORITHMS, tuple(float(cosine(each, step)) for each in algorithms)),
    )
    yield LADDER.row(float(cosine(found, step)), predicted=1.0, nulls=nulls, n=TESTED, note=note)
    zero = prompts.target.square().mean()
    for name, each in (("model", found), ("one step", step), ("ridge", best)):
        error = float((each - prompts.target).square().mean() / zero)
        yield LADDER.other_row(ERROR, error, unit="share", at={"answers of": name}, n=TESTED)


@LADDER.rung("written layer", column="own setting", covered=True)
def constructed(generator: Generator) -> Iterator[Measurement]:
    """Measures the written layer with the best step, for isotropic inputs."""
    setting = gaussian(ISOTROPIC, 0.0)
    yield from compared(LinearAttentionGD(optimal_step(setting.covariance, N)), setting, generator)


@LADDER.rung(
    "trained layer",
    relaxes="written weights",
    column="own setting",
    covered=True,
    setting=partial(gaussian, ISOTROPIC, 0.0),
)
@LADDER.rung(
    "noise",
    relaxes="labels without noise",
    column="own setting",
    setting=partial(gaussian, ISOTROPIC, NOISE),
)
@LADDER.rung(
    "anisotropic inputs",
    relaxes="isotropic inputs",
    column="own setting",
    setting=partial(gaussian, SPECTRUM, NOISE),
)
@LADDER.rung("patches of digits", relaxes="Gaussian inputs", column="real tokens", setting=digit_setting)
@LADDER.rung(
    "softmax",
    relaxes="softmax instead of linear attention",
    column="everything trained",
    setting=digit_setting,
    softmax=True,
)
def attention(
    generator: Generator, *, setting: Callable[[], Setting], softmax: bool = False
) -> Iterator[Measurement]:
    """Trains one layer of attention and measures it."""
    chosen = setting()
    model = train_attention(
        chosen.draw, len(chosen.covariance), softmax=softmax, steps=STEPS, generator=generator
    )
    yield from compared(partial(answers_of, model), chosen, generator)


@LADDER.rung(
    "GPT block",
    relaxes="one bare head: causal block with embedding, LayerNorm, two heads, MLP",
    column="full block",
    depth=1,
)
@LADDER.rung("two GPT blocks", relaxes="two blocks instead of one", column="depth", depth=2)
def blocks(generator: Generator, note: str = "", **shape: Any) -> Iterator[Measurement]:
    """Trains causal pre-norm blocks of this shape on prompts of digits' patches, see
    :class:`.RegressionDecoder`, and measures them.
    """
    chosen = digit_setting()
    model = train_decoder(chosen.draw, len(chosen.covariance), steps=STEPS, generator=generator, **shape)
    yield from compared(partial(answers_of, model), chosen, generator, note)


@LADDER.rung(
    "blocks trained on text",
    relaxes="blocks trained on prompts: only linear maps learn",
    column="trained network",
    needs="text",
)
def text_decoder(generator: Generator, text: Text) -> Iterator[Measurement]:
    """Trains a decoder on a text, measures its in-context score, then its frozen blocks on prompts, beside
    blocks with random weights.
    """
    train, rest = text.split(0.9)

    def build_untrained() -> nn.Module:
        words, hidden = len(text.vocabulary), 4 * TEXT_DIM
        return Decoder(
            vocabulary=words,
            dim=TEXT_DIM,
            hidden=hidden,
            heads=2,
            depth=TEXT_DEPTH,
            dropout=0.0,
            block=PreNorm,
        )

    untrained, network = build(build_untrained, generator), build(build_untrained, generator)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    run = fit(
        network,
        NextWord(train, batch=32, length=64),
        optimiser=optimiser,
        steps=TEXT_STEPS,
        clip=1.0,
        generator=generator,
    )
    windows = rest.windows(64, length=63)
    inputs = own_context(windows, {"length": 64}, generator, draws=RANGE_DRAWS)
    targets = inputs.pop("targets")
    (score,) = respond(
        network, inputs, [InContextScore()], targets=targets, null_kind="contexts of other sequences"
    ).select(quantity=SCORE)
    yield replace(score, theory=NAME, kind="rung", scope=None, model="decoder", data=text.name)
    assert isinstance(network, Decoder)
    assert isinstance(untrained, Decoder)
    note = f"Loss {float(run.losses[:10].mean()):.3g} → {float(run.losses[-10:].mean()):.3g} nats."
    for parameter in (*network.blocks.parameters(), *untrained.blocks.parameters()):
        parameter.requires_grad_(False)
    rows = blocks(generator, note, dim=TEXT_DIM, blocks=network.blocks)
    yield from (replace(row, data=text.name, model="decoder") for row in rows)
    (random, *_) = blocks(generator, dim=TEXT_DIM, blocks=untrained.blocks)
    yield replace(
        random,
        quantity=f"{LADDER.quantity}, blocks with random weights",
        nulls=(),
        predicted=None,
        side=None,
    )
