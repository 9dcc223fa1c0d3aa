r"""Fresh sequences at every step, as counts: what the paper's experiments train on.

Given its class, a sequence of T - 1 contextual tokens is a multinomial vector of counts, drawn directly (:mod:`.multinomial`). The batch of
a step is a pure function of the run's seed and of the step (a counter-based generator, Philox), so a run does not depend on the runs beside
it, and one that was interrupted goes on as if it had not been.

Source: :cite:t:`tian2023scan`, whose data these are.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..problem import SequenceClasses, check_sizes
from .grouped import GroupedBatch, Layout
from .multinomial import Multinomial

AHEAD = 16  # steps drawn at once, if their counts are few; the random numbers of a run depend on this number
NUMBERS = 2**17  # most counts of a run drawn at once


def sampled(classes: SequenceClasses, batch: int, *, context: int, seeds: Sequence[int]) -> Callable[[int], GroupedBatch]:
    """Batches of fresh sequences, classes drawn by their shares: a function of the step, counted from 0.

    Args:
        batch: sequences a step and run.
        context: contextual tokens a sequence, :math:`T - 1` in the paper.
        seeds: one a run, at least 0; runs with the same seed see the same sequences, which are then drawn once.
    Raises:
        ValueError: batch or context below 1, a context above 2**53, no seed, or a negative one.
    """
    check_sizes(batch, context)
    if not len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds must name at least one run, each at least 0, got {list(seeds)}; pass e.g. seeds=range(10)")
    drawn_in, layout = Layout.by_class(classes), Layout.of(classes)
    source = Multinomial(drawn_in.conditional.numpy(), context)
    edges = classes.weights.cumsum(0).numpy()[:-1]
    different, run = np.unique(np.asarray(seeds, dtype=np.uint64), return_inverse=True)
    ahead = max(1, min(AHEAD, NUMBERS // (batch * layout.conditional.shape[1])))

    def ahead_of(part: int) -> tuple[Tensor, Tensor, int]:
        """Sorted classes ``[steps, runs, batch]``, counts ``[steps, runs, batch, W]``, and the most sequences of a class."""
        found = [_draw(source, edges, (ahead, batch), (int(seed), part)) for seed in different]
        target, counts = (torch.from_numpy(np.stack(parts, axis=1)) for parts in zip(*found))
        if drawn_in.width != layout.width:
            counts = GroupedBatch(drawn_in, counts.flatten(0, 1), target.flatten(0, 1), batch).dense().unflatten(0, target.shape[:2])
        if not np.array_equal(run, np.arange(len(different))):  # seeds that repeat or do not rise
            target, counts = target[:, run], counts[:, run]
        largest = int((target[..., None, :] == torch.arange(classes.classes)[:, None]).sum(-1).max()) if layout.width else batch
        return target, counts, largest

    at_hand: dict[int, tuple[Tensor, Tensor, int]] = {}

    def draw(step: int) -> GroupedBatch:
        part, at = divmod(step, ahead)
        if part not in at_hand:
            at_hand.clear()
            at_hand[part] = ahead_of(part)
        target, counts, largest = at_hand[part]
        return GroupedBatch(layout, counts[at], target[at], largest)

    return draw


def _draw(source: Multinomial, edges: np.ndarray, shape: tuple[int, int], key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted classes ``[steps, batch]`` and their counts ``[steps, batch, W]`` of one run."""
    generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    target = np.sort(np.searchsorted(edges, generator.random(shape), side="right"), axis=1)
    return target, source.draw(target.ravel(), generator).reshape(*shape, -1).astype(float)
