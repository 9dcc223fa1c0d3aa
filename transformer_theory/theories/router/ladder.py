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
from dataclasses import replace
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.ladder import Ladder, Rung
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import HEADLINE_DRAWS
from .needle import KEY_DIM, Needles, draw_needles, marked_keys
from .selector import BATCH, NETWORKS, measure_selectors, train_selectors

NAME, SOURCE = "router", Source("lei2016rationalizing", status="own")
HIT, ACCURACY = "hit of the choice", "accuracy"
SUCCESS = "share of selectors with a hit above .9"
INFORMATION = "information of the choice about the label, given the needle"
GOOD, TESTED, STORED, STEPS = 0.9, 1000, 1024, 300
WITH_BLOCKS = 2  # selectors with transformer blocks, which take longer to train
NULL_KIND = "choices of other sequences"
LADDER = Ladder(quantity=HIT, unit="share", side=">=", null_kind=NULL_KIND)

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


def measured(
    sampler: Sampler,
    generator: Generator,
    *,
    dim: int,
    sees: int | None = KEY_DIM,
    stored: int = 0,
    decay: float = 0.0,
    blocks: int = 0,
) -> Iterator[Measurement]:
    """Trains selectors with the annealed schedule and measures them on 1,000 new sequences each.

    Args:
        sampler: draws sequences.
        generator: draws weights, sequences and noise.
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
    columns = {"n": networks, "source": SOURCE, "unit": "share"}
    row = LADDER.row(
        NAME,
        float(found.hit.mean()),
        predicted=1.0,
        nulls=(Null(NULL_KIND, null),),
        n=TESTED * networks,
        source=SOURCE,
    )
    yield replace(row, note="hits of the selectors: " + ", ".join(f"{hit:.2f}" for hit in found.hit.tolist()))
    yield Measurement(
        NAME, "rung", SUCCESS, float((found.hit > GOOD).double().mean()), predicted=1.0, **columns
    )
    yield Measurement(NAME, "rung", ACCURACY, float(found.accuracy.mean()), predicted=1.0, **columns)
    yield Measurement(
        NAME, "rung", INFORMATION, float(found.information.mean()), **{**columns, "unit": "nats"}
    )


_DIGITS = partial(measured, draw_digits, dim=KEY_DIM + 4)
_ALL = partial(_DIGITS, sees=None)
_STORED = partial(_ALL, stored=STORED, decay=0.01)
LADDER = replace(
    LADDER,
    rungs=(
        Rung(
            "router sees keys only",
            "",
            partial(measured, draw_needles, dim=KEY_DIM + 1),
            column="own setting",
            covered=True,
        ),
        Rung("digits as contents", "independent contents", _DIGITS, column="real tokens"),
        Rung("router sees contents", "a router that sees keys only", _ALL, column="everything trained"),
        Rung(
            "AdamW, 1,024 sequences",
            "new sequences in each step, no decay",
            _STORED,
            column="AdamW and mini-batches",
        ),
        Rung(
            "one transformer block",
            "tokens that are not mixed",
            partial(_STORED, blocks=1),
            column="full block",
        ),
        Rung("two transformer blocks", "one block", partial(_STORED, blocks=2), column="depth"),
    ),
)
