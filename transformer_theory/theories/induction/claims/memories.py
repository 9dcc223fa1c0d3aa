"""Claims about associative memories: recall, capacity, and the order in which a network stores
its memories.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Generator, nn

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..memory import MEMORIES, capacity, first_steps, measured_recall, predicted_recall, train_memories

SOURCE, OWN = Source("bietti2023birth", status="second-hand"), Source("bietti2023birth", status="own")
WIDTH, STEPS, EVERY = 128, 110, 2
OPTIMISERS = {"SGD": partial(torch.optim.SGD, lr=20.0), "Adam": partial(torch.optim.Adam, lr=1e-2)}
ALLOWED = (
    "threshold .03: the formula is up to .015 too small at this width, and the mean of four draws has a "
    "standard error of .005"
)


def _one_to_one(N: int, d: int) -> float:
    """The recall if d dimensions stored d pairs, as orthonormal embeddings do, and all others at random."""
    return min(1.0, d / N)


@claim(
    "induction/recall",
    measures="largest difference of measured and predicted recall at N = 512, 1024, 2048, mean over "
    "four draws",
    at_most=0.03,
    margin=NEAR,
    source=OWN,
    assumptions=(
        "random unit vectors, d = 128",
        "the formula takes cross terms for Gaussian and scores for independent",
        ALLOWED,
    ),
    control=but("as many pairs as dimensions: d of N are recalled", predict=_one_to_one),
)
def recall(generator: Generator, *, predict: Callable[[int, int], float] = predicted_recall) -> Measured:
    r"""A sum of N outer products of random unit vectors recalls the share $E\, P(\|w\| s + s' < r)^{N-1}$ of
    them, with $r = 1 + \sqrt N z/d$, $\|w\|^2 = r^2 + (N/d^2) \chi^2_{d-1}$ and coordinates s, s' of random
    unit vectors; N is far above d.
    """
    pairs = {}
    for N in (512, 1024, 2048):
        draws = [measured_recall(N, WIDTH, generator) for _ in range(4)]
        pairs[N] = sum(draws) / len(draws), predict(N, WIDTH)
    detail = {f"recall of {N}": value for N, (value, _) in pairs.items()} | {
        f"predicted for {N}": value for N, (_, value) in pairs.items()
    }
    return Measured(max(abs(a - b) for a, b in pairs.values()), detail)


@claim(
    "induction/capacity",
    measures="largest distance of the recall from 1/2, over d = 48, 96, 192",
    at_most=0.2,
    margin=NEAR,
    source=OWN,
    assumptions=("random unit vectors",),
    control=but("three times as many pairs", factor=3.0),
)
def half_at_capacity(generator: Generator, *, factor: float = 1.0) -> Measured:
    r"""Of $N = d^2/(2 \ln N)$ pairs about half, between .3 and .7, are recalled: the capacity of d x d
    numbers grows as $d^2$, not as d.
    """
    values = {d: measured_recall(round(factor * capacity(d)), d, generator) for d in (48, 96, 192)}
    return Measured(
        max(abs(value - 0.5) for value in values.values()),
        {f"recall at d = {d}": v for d, v in values.items()},
    )


@claim(
    "induction/top-down",
    measures="smallest ratio of the steps at which successive memories hold half of the softmax mass",
    at_least=1.25,
    margin=(
        "the ratio is 1 for memories that are stored at the same time; it is counted in batches, "
        "which are whole numbers"
    ),
    source=SOURCE,
    assumptions=(
        "frozen random embeddings; only the three matrices are trained, from zero",
        "16 ids, 32 tokens, 3 triggers, d = 64, SGD with rate 20, 110 batches of 64",
    ),
    control=but("Adam, whose steps do not depend on the size of the gradient", optimiser=OPTIMISERS["Adam"]),
)
def top_down(
    generator: Generator,
    *,
    optimiser: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = OPTIMISERS["SGD"],
) -> Measured:
    """Gradient descent from zero stores the three memories of the induction head from the top: the output
    $W_{O2}$, then the keys $W_{K2}$, then the keys $W_{K1}$ of the previous-token head.
    """
    _, masses = train_memories(
        optimiser, steps=STEPS, measured=range(0, STEPS + 1, EVERY), generator=generator
    )
    steps = first_steps(masses)
    # a later time would only increase the ratio
    times = [min(steps[name], float(STEPS)) for name in MEMORIES]
    detail = {f"step of {name}": time for name, time in zip(MEMORIES, times)}
    return Measured(min(times[1] / times[0], times[2] / times[1]), detail)


CLAIMS = (recall, half_at_capacity, top_down)
