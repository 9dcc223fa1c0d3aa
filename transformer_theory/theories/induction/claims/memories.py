"""Claims about associative memories: recall, capacity, and the order in which a network stores its memories."""

from collections.abc import Callable, Iterator

import torch
from torch import Generator, nn

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..memory import MEMORIES, capacity, first_steps, memory, predicted_recall, recall, train_memories, unit_vectors

SOURCE, OWN = Source("bietti2023birth", status="second-hand"), Source("bietti2023birth", status="own")
WIDTH, STEPS, EVERY = 128, 110, 2
SGD_RATE, ADAM_RATE = 20.0, 1e-2


def measured_recall(N: int, d: int, generator: Generator) -> float:
    """Returns the recall of N pairs of random unit vectors in d dimensions."""
    inputs, outputs = unit_vectors(N, d, generator), unit_vectors(N, d, generator)
    return recall(memory(inputs, outputs), inputs, outputs, torch.arange(N))


def _recall(generator: Generator, predict: Callable[[int, int], float]) -> Evidence:
    """Measures the largest difference of measured and predicted recall over three numbers of pairs."""
    pairs = {}
    for N in (512, 1024, 2048):
        draws = [measured_recall(N, WIDTH, generator) for _ in range(4)]
        pairs[N] = sum(draws) / len(draws), predict(N, WIDTH)
    detail = {f"recall of {N}": value for N, (value, _) in pairs.items()} | {f"predicted for {N}": value for N, (_, value) in pairs.items()}
    return Evidence(max(abs(a - b) for a, b in pairs.values()), 0.06, "<=", detail=detail)


def _one_to_one(N: int, d: int) -> float:
    """The recall if d dimensions stored d pairs, as orthonormal embeddings do, and all others at random."""
    return min(1.0, d / N)


def _capacity(generator: Generator, factor: float) -> Evidence:
    """Measures the largest distance of the recall at ``factor`` times the capacity from 1/2, over three widths."""
    values = {d: measured_recall(round(factor * capacity(d)), d, generator) for d in (48, 96, 192)}
    return Evidence(
        max(abs(value - 0.5) for value in values.values()), 0.2, "<=", detail={f"recall at d = {d}": v for d, v in values.items()}
    )


def _top_down(generator: Generator, optimiser: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]) -> Evidence:
    """Measures the smallest ratio of the steps at which successive memories, from the top, hold half of the mass."""
    _, masses = train_memories(optimiser, steps=STEPS, measured=tuple(range(0, STEPS + 1, EVERY)), generator=generator)
    steps = first_steps(masses)
    # A memory that is not stored by the end counts as stored at the end. The ratio is then too small, never too large.
    times = [min(steps[name], float(STEPS)) for name in MEMORIES]
    detail = {f"step of {name}": time for name, time in zip(MEMORIES, times)}
    return Evidence(min(times[1] / times[0], times[2] / times[1]), 1.25, ">=", detail=detail)


MEMORY = (
    Claim(
        id="induction/recall",
        statement=r"A sum of N outer products of random unit vectors recalls the share "
        r"$E_z \Phi((1 + \sqrt N z/d) / \sqrt{N/d^2 + 2/d})^{N-1}$ of them, with N far above d.",
        measures="largest difference of measured and predicted recall at N = 512, 1024, 2048, mean over four draws",
        source=OWN,
        assumptions=("random unit vectors, d = 128", "the formula takes scores for Gaussian and independent"),
        check=lambda generator: _recall(generator, predicted_recall),
        control=lambda generator: _recall(generator, _one_to_one),
        control_description="as many pairs as dimensions: d of N are recalled",
    ),
    Claim(
        id="induction/capacity",
        statement=r"About half of $N = d^2/(2 \ln N)$ pairs are recalled: the capacity of d x d numbers grows as $d^2$, not as d.",
        measures="largest distance of the recall from 1/2, over d = 48, 96, 192",
        source=OWN,
        assumptions=("random unit vectors",),
        check=lambda generator: _capacity(generator, 1.0),
        control=lambda generator: _capacity(generator, 3.0),
        control_description="three times as many pairs",
    ),
    Claim(
        id="induction/top-down",
        statement=r"Gradient descent from zero stores the three memories of the induction head from the top: the output "
        r"$W_{O2}$, then the keys "
        r"$W_{K2}$, then the keys $W_{K1}$ of the previous-token head.",
        measures="smallest ratio of the steps at which successive memories hold half of the softmax mass",
        source=SOURCE,
        assumptions=(
            "frozen random embeddings; only the three matrices are trained, from zero",
            "16 ids, 32 tokens, 3 triggers, d = 64, SGD with rate 20, 110 batches of 64",
            "a memory that is not stored by the last step counts as stored there",
        ),
        check=lambda generator: _top_down(generator, lambda parameters: torch.optim.SGD(parameters, lr=SGD_RATE)),
        control=lambda generator: _top_down(generator, lambda parameters: torch.optim.Adam(parameters, lr=ADAM_RATE)),
        control_description="Adam, whose steps do not depend on the size of the gradient",
    ),
)
