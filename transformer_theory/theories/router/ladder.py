r"""The ladder: the hit of router-selectors, from needles with synthetic contents to tokens that transformer
blocks have mixed.

The quantity is the share of new sequences whose choice is the needle, the mean over six selectors (two with
blocks); the theory predicts 1 for the annealed schedule. The null gives each sequence the choice of another
one. Beside it stand the accuracy, the information of the choice about the label given the needle's position,
and the share of selectors that succeed, with a hit above .9.

Real contents are patches of the digits, and the label is whether the marked patch holds more ink than the
median patch. Patches of one image resemble each other, so a label-blind choice may exceed the bound of
:mod:`.information` there. Source: :cite:t:`lei2016rationalizing` has the setting.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import HEADLINE_DRAWS
from .needle import KEY_DIM, Needles, draw_needles, marked_keys
from .selector import BATCH, NETWORKS, measure_selectors, train_selectors

NAME = "router"
HIT, ACCURACY = "hit of the choice", "accuracy"
SUCCESS = "share of selectors with a hit above .9"
INFORMATION = "information of the choice about the label, given the needle"
GOOD, TESTED, STORED, STEPS = 0.9, 1000, 1024, 300
WITH_BLOCKS = 2  # selectors with transformer blocks, which take longer to train
NULL_KIND = "choices of other sequences"
LADDER = Ladder(
    theory=NAME,
    quantity=HIT,
    unit="share",
    side=">=",
    null=NULL_KIND,
    source=Source("lei2016rationalizing", status="own"),
)
# arguments of the rungs with a fixed training set
STORED_SEQUENCES: dict[str, Any] = {"sees": None, "stored": STORED, "decay": 0.01}
Sampler = Callable[..., Needles]


@cache
def digit_patches() -> tuple[Float[Tensor, "n T d"], float]:
    """Returns the patches of 2 x 2 pixels of the digits, standardised, ``[1797, 16, 4]`` float32, and the
    median of their mean ink.
    """
    from sklearn.datasets import load_digits

    from ...data.bridges import patches

    found = patches(torch.from_numpy(load_digits(return_X_y=True)[0]).float().reshape(-1, 1, 8, 8), 2).float()
    # all pixels alike, so that the mean of a patch still is its ink
    found = (found - found.mean()) / found.std()
    return found, float(found.mean(-1).median())


def draw_digits(*shape: int, generator: Generator) -> Needles:
    """Draws needles whose contents are the patches of a digit; the label is whether the marked patch exceeds
    the median ink.
    """
    stored, median = digit_patches()
    contents = stored[torch.randint(len(stored), shape, generator=generator)]
    needle = torch.randint(contents.shape[-2], shape, generator=generator)
    keys = marked_keys(needle, tokens=contents.shape[-2], generator=generator)
    ink = contents.mean(-1).gather(-1, needle[..., None])[..., 0]
    return Needles(torch.cat([keys, contents], -1), (ink > median).long(), needle)


@LADDER.rung(
    "router sees keys only", column="own setting", covered=True, sampler=draw_needles, dim=KEY_DIM + 1
)
@LADDER.rung("digits as contents", relaxes="independent contents", column="real tokens")
@LADDER.rung(
    "router sees contents",
    relaxes="a router that sees keys only",
    column="everything trained",
    sees=None,
)
@LADDER.rung(
    "AdamW, 1,024 sequences",
    relaxes="new sequences in each step, no decay",
    column="AdamW and mini-batches",
    **STORED_SEQUENCES,
)
@LADDER.rung(
    "one transformer block",
    relaxes="tokens that are not mixed",
    column="full block",
    **STORED_SEQUENCES,
    blocks=1,
)
@LADDER.rung(
    "two transformer blocks",
    relaxes="two blocks instead of one",
    column="depth",
    **STORED_SEQUENCES,
    blocks=2,
)
def measured(
    generator: Generator,
    *,
    sampler: Sampler = draw_digits,
    dim: int = KEY_DIM + 4,
    sees: int | None = KEY_DIM,
    stored: int = 0,
    decay: float = 0.0,
    blocks: int = 0,
) -> Iterator[Measurement]:
    """Trains selectors with the annealed schedule and measures them on 1,000 new sequences each.

    Args:
        generator: draws weights, sequences and noise.
        sampler: draws sequences.
        dim, sees, decay, blocks: see :func:`.train_selectors`.
        stored: number of sequences of a fixed training set; 0: new sequences in each step.
    """
    networks = WITH_BLOCKS if blocks else NETWORKS
    fixed = sampler(networks, stored, generator=generator) if stored else None

    def draw(draws: Generator) -> tuple[Tensor, Tensor]:
        if fixed is None:
            data = sampler(networks, BATCH, generator=draws)
            return data.tokens, data.labels
        chosen = torch.randint(stored, (BATCH,), generator=draws)
        return fixed.tokens[:, chosen], fixed.labels[:, chosen]

    model = train_selectors(
        draw, dim, networks=networks, steps=STEPS, generator=generator, decay=decay, sees=sees, blocks=blocks
    )
    data = sampler(networks, TESTED, generator=generator)
    found = measure_selectors(model, data)
    orders = [torch.randperm(TESTED, generator=generator) for _ in range(HEADLINE_DRAWS)]
    null = tuple(float((found.choices[:, order] == data.needle).double().mean()) for order in orders)
    yield LADDER.row(
        float(found.hit.mean()),
        predicted=1.0,
        nulls=(Null(NULL_KIND, null),),
        n=TESTED * networks,
        note="hits of the selectors: " + ", ".join(f"{hit:.2f}" for hit in found.hit.tolist()),
    )
    columns = {"predicted": 1.0, "n": networks, "unit": "share"}
    yield LADDER.other_row(SUCCESS, float((found.hit > GOOD).double().mean()), **columns)
    yield LADDER.other_row(ACCURACY, float(found.accuracy.mean()), **columns)
    yield LADDER.other_row(INFORMATION, float(found.information.mean()), unit="nats", n=networks)
