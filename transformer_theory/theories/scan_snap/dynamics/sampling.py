r"""Fresh sequences at every step, as counts: the training data of the experiments of :cite:t:`tian2023scan`.

Given its class, a sequence of T - 1 contextual tokens is a multinomial vector of counts, drawn directly
(:mod:`..multinomial`). The batch of a step is a pure function of the run's seed and of the step, by the
counter-based generator Philox. So a run depends neither on the runs trained with it nor on interruptions.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..multinomial import Multinomial
from ..problem import SequenceClasses, check_sizes
from .grouped import GroupedBatch, Layout

# steps drawn in one chunk if their counts are few; the random numbers of a run depend on this constant
MAX_STEPS_AHEAD = 16
MAX_COUNTS_AHEAD = 2**17  # counts of a run drawn in one chunk


def sampled(
    classes: SequenceClasses, batch: int, *, context: int, seeds: Sequence[int]
) -> Callable[[int], GroupedBatch]:
    """Returns a function that maps the step, counted from 0, to a batch of fresh sequences; classes are drawn
    by their shares.

    Args:
        batch: sequences per step and run.
        context: contextual tokens per sequence, :math:`T - 1` in the paper.
        seeds: one seed per run, at least 0. Runs with the same seed get the same sequences, which are drawn
            once.
    Raises:
        ValueError: ``batch`` or ``context`` is below 1, ``context`` is above 2**53, there is no seed, or a
            seed is negative.
    """
    check_sizes(batch, context)
    if not len(seeds) or min(seeds) < 0:
        raise ValueError(
            f"seeds must hold at least one seed, each at least 0, got {list(seeds)}; pass e.g. "
            "seeds=range(10)"
        )
    # Counts are drawn in the layout by class, whose rows are short, and rearranged if the products are
    # cheaper in another one.
    by_class, layout = Layout.by_class(classes), Layout.of(classes)
    source = Multinomial(by_class.conditional.numpy(), context)
    edges = classes.weights.cumsum(0).numpy()[:-1]
    distinct_seeds, run = np.unique(np.asarray(seeds, dtype=np.uint64), return_inverse=True)
    # Draw several steps at once: each node of the tree of halvings costs one call, whatever the number of
    # steps.
    chunk_steps = max(1, min(MAX_STEPS_AHEAD, MAX_COUNTS_AHEAD // (batch * layout.conditional.shape[1])))

    def draw_chunk(chunk: int) -> tuple[Tensor, Tensor, int]:
        """Returns sorted classes ``[steps, runs, batch]``, counts ``[..., W]``, and the largest number of
        sequences of a class.
        """
        runs = [_draw(source, edges, (chunk_steps, batch), (int(seed), chunk)) for seed in distinct_seeds]
        target, counts = (torch.from_numpy(np.stack(parts, axis=1)) for parts in zip(*runs))
        if by_class.width != layout.width:
            counts = (
                GroupedBatch(by_class, counts.flatten(0, 1), target.flatten(0, 1), batch)
                .dense()
                .unflatten(0, target.shape[:2])
            )
        # unique sorted the seeds: restore their order and repetitions
        if not np.array_equal(run, np.arange(len(distinct_seeds))):
            target, counts = target[:, run], counts[:, run]
        largest = (
            int((target[..., None, :] == torch.arange(classes.classes)[:, None]).sum(-1).max())
            if layout.width
            else batch
        )
        return target, counts, largest

    current: dict[int, tuple[Tensor, Tensor, int]] = {}  # holds the latest chunk only

    def draw(step: int) -> GroupedBatch:
        chunk, index = divmod(step, chunk_steps)
        if chunk not in current:
            current.clear()
            current[chunk] = draw_chunk(chunk)
        target, counts, largest = current[chunk]
        return GroupedBatch(layout, counts[index], target[index], largest)

    return draw


def _draw(
    source: Multinomial, edges: np.ndarray, shape: tuple[int, int], key: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Draws sorted classes ``[steps, batch]`` and their counts ``[steps, batch, W]`` for one run."""
    # The key is (seed, chunk), so every chunk has its own stream and can be drawn without those before it.
    generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    target = np.sort(np.searchsorted(edges, generator.random(shape), side="right"), axis=1)
    return target, source.draw(target.ravel(), generator).reshape(*shape, -1).astype(float)
