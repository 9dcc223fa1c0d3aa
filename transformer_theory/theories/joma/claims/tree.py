"""The binary latent tree: how often two leaves occur together, and that near relatives are learnt first."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..dynamics import Model, train
from ..forms import Exponential
from ..problem import gaussian_block
from ..relatives import masked_leaf
from ..tree import Tree, pair_table, sample_leaves, uniform_tree

JOMA = Source("tian2024joma")
ALIKE = "edges below the root's children keep a value with the same probability, nodes have two children"


def _random_tree(generator: Generator) -> tuple[float, Tree]:
    """rho in [0.5, 0.9], five levels, three labels."""
    rho = 0.5 + 0.4 * float(torch.rand((), generator=generator, dtype=torch.float64))
    zero = tuple((0.3 + 0.4 * torch.rand(3, generator=generator, dtype=torch.float64)).tolist())
    return rho, uniform_tree(rho=rho, levels=5, zero=zero)


def _formula(generator: Generator, *, power: int) -> Evidence:
    """Largest distance of the formula with rho^(power H) from the product of transition matrices, H = 1 ... 4."""
    rho, tree = _random_tree(generator)
    mean, gaps = tree.mean_sign(), []
    for up in range(1, tree.levels):
        table = pair_table(tree, up)
        gaps.append(abs(float(table[1, 1] / table[1].sum()) - (1 + rho ** (power * up) - 2 * mean) / (2 * (1 - mean))))
    return Evidence(max(gaps), 1e-12, "<=")


def _sampled(generator: Generator, *, moved: int) -> Evidence:
    """Co-occurrence of leaf 0 with the others in 20,000 draws, less that of the leaf ``moved`` places on: largest distance, in sd."""
    _, tree = _random_tree(generator)
    leaves = sample_leaves(tree, 20_000, generator=generator)
    on = leaves[leaves[:, 0]].double()
    kinship = tree.kinship(0).roll(moved)
    wanted = torch.tensor([tree.cooccurrence(int(up)) for up in kinship], dtype=torch.float64)
    sd = (wanted * (1 - wanted) / len(on)).sqrt()
    return Evidence(float(((on.mean(0) - wanted) / sd)[1:][kinship[1:] > 0].abs().max()), 5.0, "<=", detail={"draws": float(len(on))})


def _first(generator: Generator, *, heard: float) -> Evidence:
    """The smallest step down of the mean logit from H to H + 1 after 40 steps of descent from near zero."""
    task = masked_leaf(uniform_tree(rho=0.8, levels=3, zero=(0.3, 0.7)), 2000, generator=generator, heard=heard)
    start = gaussian_block(task.contexts, units=2, scale=0.01, generator=generator)
    path = train(start, task.contexts, Model(Exponential(normaliser=4.0)), step=0.5, steps=40)
    z = task.by_kinship(path.states.logits[-1, 0] - path.states.logits[0, 0])
    names = {f"change of z at H = {up}": float(value) for up, value in enumerate(z, start=1)}
    return Evidence(float((z[:-1] - z[1:]).min()), 0.0, ">=", detail=names)


CLAIMS = (
    Claim(
        id="joma/tree-co-occurrence",
        statement=r"On a binary latent tree $P(y_l = 1 \mid y_m = 1) = \frac{1}{2} (1 + \rho^{2H} - 2 \rho^{L-1} \rho_0) / "
        r"(1 - \rho^{L-1} \rho_0)$ for two leaves whose common ancestor is H levels up. Here: the largest distance from products of "
        r"transition matrices.",
        source=JOMA,
        assumptions=(ALIKE, "the common ancestor is below the root"),
        check=lambda generator: _formula(generator, power=2),
        control=lambda generator: _formula(generator, power=1),
        control_description=r"takes $\rho^H$ in the place of $\rho^{2H}$",
    ),
    Claim(
        id="joma/tree-samples",
        statement=r"Leaves drawn from the root down occur together as often as that: here the largest distance from "
        r"$P(y_l = 1 \mid y_0 = 1)$ over 31 leaves, in standard deviations.",
        source=JOMA,
        assumptions=(ALIKE, "draws are independent"),
        check=lambda generator: _sampled(generator, moved=0),
        control=lambda generator: _sampled(generator, moved=16),
        control_description="reads the kinship of the leaf 16 places on",
    ),
    Claim(
        id="joma/near-relatives-first",
        statement=r"A block with exponential attention that learns to guess a leaf from the others first raises the logits $z_l$ of its "
        r"near relatives: their mean falls with H. Here: the smallest fall from H to $H + 1$ after 40 steps, $\rho = 0.8$, $L = 3$.",
        source=JOMA,
        assumptions=(ALIKE, "all leaves are heard equally often", "early in training, from near zero", "attention is not normalised"),
        check=lambda generator: _first(generator, heard=1.0),
        control=lambda generator: _first(generator, heard=0.2),
        control_description="leaves the sibling out of four in five of the contexts it belongs to",
    ),
)
