"""Relatives on a binary latent tree: the co-occurrence of leaves, and the order in which a block attends to
them.

The reference values of the co-occurrence are recomputed from the formula; two million draws of the tree gave
.72384, .58824 and .52302 (sd .0005). Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import RANGE, Panel, Reading, bands, figure, reading, with_range
from ....core.measurement import Null
from ....core.sources import Source
from ..block import Exponential, Softmax, gaussian_block
from ..dynamics import Model, gradient_descent
from ..nonlinear import learning_ratio
from ..orbit import limits
from ..tree import masked_leaf, pair_table, sample_leaves, uniform_tree

TREE = Source("tian2024joma", "Theorem 5", "second-hand")
COOCCURRENCE = "P(leaf | leaf) by transition matrices"
SAMPLED = "P(leaf | leaf) in draws"
BLOW_UP = "v at the blow-up, linear MLP"
SPEED = "speed of the sibling over that of the relative, nonlinear MLP"
FALL = "smallest fall of z from H to H + 1"
CHANGE = "change of z"
EXPONENTIAL, RARE, SOFTMAX = "exponential", "exponential, sibling rare", "softmax"
DOTS = {COOCCURRENCE: {"label": "formula"}, SAMPLED: {"label": "draws", "linestyle": "", "marker": "o"}}
ANCESTOR = {"xlabel": "H, levels to the common ancestor"}
# share of its contexts in which the sibling remains, in the setting that violates the assumption
RARE_RATE = 0.2
RHO, ZERO, LEVELS = 0.7, (0.4, 0.82), 4  # the mean of p_k is .61
RECOMPUTED = {1: 0.72419, 2: 0.58904, 3: 0.52282}  # H -> P(y_l = 1 | y_m = 1)


@figure(
    "joma.relatives",
    source=Source("tian2024joma", "Section 5", "second-hand"),
    view=bands(
        spread=RANGE,
        panels=(
            Panel("Co-occurrence", (COOCCURRENCE, SAMPLED), lines=("quantity", DOTS), x="H", axes=ANCESTOR),
            *(
                Panel(how.capitalize(), CHANGE, {"attention": how}, "H", legend="ends")
                for how in (EXPONENTIAL, RARE, SOFTMAX)
            ),
        ),
        caption="Left: P(leaf | leaf); dashed: P(leaf). Others: change of the logits z of a block that "
        "predicts a leaf from the others; bands: all draws, lines: their mean.",
        size=(10.5, 2.9),
    ),
    quick={"levels": 3, "draws": 20_000, "samples": 1000, "steps": 40, "seeds": 2},
)
def relatives(
    *,
    rho: float = setting(RHO, ge=0.01, le=0.99, help="rho of every edge below the root's children"),
    levels: int = setting(LEVELS, ge=2, le=8, help="number L of edges from the root to a leaf"),
    draws: int = setting(200_000, ge=1000, le=10**7, help="draws of the tree, for co-occurrence"),
    samples: int = setting(4000, ge=200, le=10**6, help="sequences to learn from"),
    steps: int = setting(200, ge=10, le=10**5, help="steps of descent"),
    rate: float = setting(0.5, ge=1e-6, le=10, help="learning rate"),
    seeds: int = setting(5, ge=1, le=100, help="number of draws of sequences and start"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """A tree of L levels: co-occurrence by formula, transition matrices and draws; then a block learns to
    predict one leaf from the others.

    Two linear units learn by descent on the cross-entropy from near zero: with exponential attention, with a
    rare sibling, and with softmax attention. The theory's flows for the co-occurrences alone, which imply the
    order, are computed for comparison.
    """
    generator = torch.Generator().manual_seed(seed)
    tree = uniform_tree(rho=rho, levels=levels, zero=ZERO)
    leaves = sample_leaves(tree, draws, generator=generator)
    present, kinship = leaves[leaves[:, 0]].double(), tree.kinship(0)
    formula = [tree.cooccurrence(up) for up in range(1, levels + 1)]
    for up, value in enumerate(formula, start=1):
        table, drawn = pair_table(tree, up), float(present.mean(0)[kinship == up].mean())
        null = Null("P(leaf)", (tree.frequency(),))
        columns = {"nulls": (null,), "side": ">=", "at": {"H": up}, "source": TREE}
        published = (rho, levels) == (RHO, LEVELS) and up in RECOMPUTED
        reference = (RECOMPUTED[up], "recomputed") if published else (value, "theory")
        exact = float(table[1, 1] / table[1].sum())
        yield reading(COOCCURRENCE, exact, reference=reference, needs=("rho", "levels"), **columns)
        yield reading(SAMPLED, drawn, predicted=value, n=len(present), **columns)
    frequencies = torch.tensor(formula, dtype=torch.float64)
    flows = zip(limits(frequencies).tolist(), learning_ratio(frequencies)[0].tolist())
    for up, (end, speed) in list(enumerate(flows, start=1))[1:]:
        note = "With a constant gradient, in closed form; v of the sibling is infinite."
        yield reading(BLOW_UP, end, at={"H": up}, note=note)
        note = "In the long run, in ln(1/δ), for critical points equal to the co-occurrences."
        yield reading(SPEED, speed, at={"H": up}, note=note)
    saved = np.unique(np.linspace(0, steps, 41).astype(int)).tolist()
    exponential = Exponential(normaliser=tree.leaves / 2)
    for how, form, sibling_rate in (
        (EXPONENTIAL, exponential, 1.0),
        (RARE, exponential, RARE_RATE),
        (SOFTMAX, Softmax(), 1.0),
    ):
        runs = []
        for _ in range(seeds):
            task = masked_leaf(tree, samples, generator=generator, sibling_rate=sibling_rate)
            start = gaussian_block(task.contexts, units=2, scale=0.01, generator=generator)
            path = gradient_descent(
                start, task.contexts, Model(form), rate=rate, steps=steps, save_steps=saved
            )
            logits = path.states.logits[:, 0]
            runs.append(task.by_kinship(logits - logits[0]))
        changes = dict(zip(saved, torch.stack(runs, 1)))  # step -> [seeds, L]
        for step in (saved[len(saved) // 5], saved[-1]):
            worst = -float(changes[step].diff().max())
            columns = {"predicted": 0.0, "at": {"attention": how}, "step": step, "n": seeds}
            note = "The worst draw; below 0 a farther relative has the larger logit."
            yield reading(FALL, worst, at_least=0.0, covered=how == EXPONENTIAL, note=note, **columns)
        for step in sorted({*saved[::2], saved[-1]}):
            for up, values in enumerate(changes[step].mT, start=1):
                at = {"attention": how, "H": up}
                row = reading(CHANGE, float(values.mean()), at=at, step=step, n=seeds)
                yield with_range(row, values.tolist())
