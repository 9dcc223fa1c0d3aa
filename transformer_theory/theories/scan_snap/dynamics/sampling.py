r"""Fresh sequences at every step, as counts: what the paper's experiments train on.

Given its class, a sequence of T - 1 contextual tokens is a multinomial vector of counts; drawing it directly is exact and costs the same
for any length. The batch of a step is a pure function of the run's seed and of the step (a counter-based generator, Philox), so a run does
not depend on the runs beside it, and one that was interrupted goes on as if it had not been.

Source: :cite:t:`tian2023scan`, whose data these are.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..problem import SequenceClasses
from .grouped import GroupedBatch, Layout

AHEAD = 16  # steps drawn at once, if their counts are few; the random numbers of a run depend on this number
NUMBERS = 2**17  # most counts of a run drawn at once


def sampled(classes: SequenceClasses, batch: int, *, context: int, seeds: Sequence[int]) -> Callable[[int], GroupedBatch]:
    """Batches of fresh sequences, classes drawn by their shares: a function of the step, counted from 0.

    Args:
        batch: sequences a step and run.
        context: contextual tokens a sequence, :math:`T - 1` in the paper.
        seeds: one a run, at least 0; runs with the same seed see the same sequences, which are then drawn once.
    Raises:
        ValueError: batch or context below 1, no seed, or a negative one.
    """
    if batch < 1 or context < 1:
        raise ValueError(f"batch and context must be at least 1, got {batch} and {context}")
    if not len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds must name at least one run, each at least 0, got {list(seeds)}; pass e.g. seeds=range(10)")
    layout = Layout.of(classes)
    different, run = np.unique(np.asarray(seeds, dtype=np.uint64), return_inverse=True)
    ahead = max(1, min(AHEAD, NUMBERS // (batch * layout.conditional.shape[1])))
    drawn: list = [-1, None, None, 0]  # which steps are at hand, their classes, their counts, the largest class

    def draw(step: int) -> GroupedBatch:
        part, at = divmod(step, ahead)
        if drawn[0] != part:
            found = [_draw(classes, layout, (ahead, batch), context, (int(seed), part)) for seed in different]
            together = (np.ascontiguousarray(np.stack(parts, axis=1)[:, run]) for parts in zip(*found))
            target, counts = (torch.from_numpy(part) for part in together)
            largest = int((target[..., None, :] == torch.arange(classes.classes)[:, None]).sum(-1).max()) if layout.width else batch
            drawn[:] = [part, target, counts, largest]
        return GroupedBatch(layout, drawn[2][at], drawn[1][at], drawn[3])

    return draw


def _draw(classes: SequenceClasses, layout: Layout, shape: tuple[int, int], context: int, key: tuple[int, int]):
    """Sorted classes ``[steps, batch]`` and their counts ``[steps, batch, W]`` of one run."""
    generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    edges = classes.weights.cumsum(0).numpy()[:-1]
    target = np.sort(np.searchsorted(edges, generator.random(shape), side="right"), axis=1)
    P = layout.conditional.numpy()
    counts = generator.multinomial(context, P[target])
    return target, counts * (P > 0)[target].astype(float)  # rounding may leave a count over for the last, impossible, token
