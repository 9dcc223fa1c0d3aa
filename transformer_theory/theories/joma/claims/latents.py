"""Claims about latents: co-occurrence on a binary tree, the order of learning, and the recovery of latents
before training.
"""

import torch
from torch import Generator

from ....core.claims import BY_CHANCE, Measured, but, claim
from ....core.sources import Source
from ....models.embedding import build
from ..block import Exponential, gaussian_block
from ..dynamics import Model, gradient_descent
from ..hierarchy import random_hierarchy, recovery
from ..joint import Stack
from ..tree import Tree, masked_leaf, pair_table, sample_leaves, uniform_tree
from .sources import OWN

EQUAL_EDGES = (
    "edges below the root's children keep a value with the same probability, nodes have two children"
)


def _random_tree(generator: Generator) -> tuple[float, Tree]:
    """Draws rho in [0.5, 0.9], and a tree of five levels with three labels."""
    rho = 0.5 + 0.4 * float(torch.rand((), generator=generator, dtype=torch.float64))
    zero = tuple((0.3 + 0.4 * torch.rand(3, generator=generator, dtype=torch.float64)).tolist())
    return rho, uniform_tree(rho=rho, levels=5, zero=zero)


@claim(
    "joma/tree-co-occurrence",
    measures="largest distance of the formula from products of transition matrices",
    at_most=1e-12,
    source=Source("tian2024joma", "Theorem 5", "second-hand"),
    assumptions=(EQUAL_EDGES, "five levels, three labels"),
    control=but(r"uses $\rho^H$ instead of $\rho^{2H}$", power=1),
)
def tree_co_occurrence(generator: Generator, *, power: int = 2) -> float:
    r"""On a binary latent tree $P(y_l = 1 \mid y_m = 1) = \frac{1}{2} (1 + \rho^{2H} - 2 \rho^{L-1} \rho_0) /
    (1 - \rho^{L-1} \rho_0)$ for two leaves whose common ancestor is H levels up, below the root. The tree has
    L levels of edges, an edge keeps its value with probability $(1 + \rho)/2$, and $\rho_0 = 2 E_k[p_k] - 1$,
    where $p_k$ is the probability that a child of the root is 0 under label k. If the ancestor is the root,
    $\rho^{2(L-1)} E_k[(2p_k - 1)^2]$ takes the place of $\rho^{2H}$; this case is the library's own.
    """
    # The formula is written out here; with the right power the library's is compared too. At the root (H = L)
    # its product of signs differs.
    rho, tree = _random_tree(generator)
    mean, gaps = tree.mean_sign(), []
    at_root = rho ** (power * (tree.levels - 1)) * sum((2 * p - 1) ** 2 for p in tree.zero) / len(tree.zero)
    for up in range(1, tree.levels + 1):
        table, product = pair_table(tree, up), rho ** (power * up) if up < tree.levels else at_root
        exact, formula = float(table[1, 1] / table[1].sum()), (1 + product - 2 * mean) / (2 * (1 - mean))
        gaps += [
            abs(exact - formula),
            abs(exact - tree.cooccurrence(up)),
            abs(float(table[1].sum()) - tree.frequency()),
        ]
    return max(gaps)


@claim(
    "joma/tree-samples",
    measures="largest distance of the frequency from the probability over 31 leaves, in draws and in "
    "contexts, in standard errors",
    at_most=5.0,
    margin=BY_CHANCE,
    source=OWN,
    assumptions=(EQUAL_EDGES, "draws are independent"),
    control=but("uses the kinship of the leaf 16 places further on", shift=16),
)
def tree_samples(generator: Generator, *, shift: int = 0) -> Measured:
    r"""Leaves sampled from the root down co-occur with the probability $P(y_l = 1 \mid y_m = 1)$ of
    joma/tree-co-occurrence. The statement is the library's own.
    """
    # The second 20,000 draws are those of the task. ``shift`` rolls the H of the formula by this many leaves.
    _, tree = _random_tree(generator)
    leaves = sample_leaves(tree, 20_000, generator=generator)
    present = leaves[leaves[:, 0]].double()
    kinship = tree.kinship(0).roll(shift)
    predicted = torch.tensor([tree.cooccurrence(int(up)) for up in kinship], dtype=torch.float64)
    sd = (predicted * (1 - predicted) / len(present)).sqrt()
    distance = ((present.mean(0) - predicted) / sd)[1:][kinship[1:] > 0].abs().max()
    # In the contexts of the task count the sequences with both leaves, a binomial number; none of them is
    # among the empty ones left out.
    contexts, both = (
        masked_leaf(tree, 20_000, generator=generator).contexts,
        20_000 * tree.frequency() * predicted,
    )
    counted = contexts.counts[contexts.targets == 1].sum(0)
    task = ((counted - both[1:]) / (both[1:] * (1 - both[1:] / 20_000)).sqrt())[kinship[1:] > 0].abs().max()
    distance = torch.maximum(distance, task)
    return Measured(float(distance), {"draws": float(len(present))})


@claim(
    "joma/near-relatives-first",
    measures=r"smallest fall of the mean change of the logit from H to $H + 1$ after 40 steps, $\rho = "
    r"0.8$, $L = 3$",
    at_least=0.0,
    source=Source("tian2024joma", "Section 5", "second-hand"),
    assumptions=(
        EQUAL_EDGES,
        "all leaves are equally frequent",
        "sequences in which no other leaf is present are left out",
        "early in training, from near zero",
        "attention is not normalised",
    ),
    control=but("removes the sibling from four in five of its contexts", sibling_rate=0.2),
)
def near_relatives_first(generator: Generator, *, sibling_rate: float = 1.0) -> Measured:
    """A block with exponential attention learns to predict a leaf from the others. Early in training the mean
    change of the logit $z_l$ of a leaf falls with H, the number of levels up to the common ancestor. The
    paper says so in prose, without a theorem.
    """
    task = masked_leaf(
        uniform_tree(rho=0.8, levels=3, zero=(0.3, 0.7)), 2000, generator=generator, sibling_rate=sibling_rate
    )
    start = gaussian_block(task.contexts, units=2, scale=0.01, generator=generator)
    path = gradient_descent(start, task.contexts, Model(Exponential(normaliser=4.0)), rate=0.5, steps=40)
    z = task.by_kinship(path.states.logits[-1, 0] - path.states.logits[0, 0])
    detail = {f"change of z at H = {up}": float(value) for up, value in enumerate(z, start=1)}
    return Measured(float((z[:-1] - z[1:]).min()), detail)


@claim(
    "joma/recovery-untrained",
    measures="recovery of the lowest latents by the first layer of an untrained network",
    at_least=0.85,
    margin=(
        "a correlation ends at 1; in terms of 1 - correlation the control is 2.7 times the threshold of .15"
    ),
    source=Source("tian2024joma", "Table 1", "own"),
    assumptions=(
        "C = 20 classes, 10 and 20 latents, sets of 2, M = 100, L = 30",
        "latents that are active in all classes or in none have no correlation and are left out",
        "width 256 instead of 1024",
    ),
    control=but("shuffles the classes of the latents", shuffled=True),
)
def recovery_untrained(generator: Generator, *, shuffled: bool = False) -> float:
    r"""A recovery near 1 of the lowest latents does not show learning: in the smaller setting of Table 1 an
    untrained network with 4M = 400 units per layer has $\operatorname{mean}_a \max_u \operatorname{corr}(h_u,
    a) \ge 0.85$. The statement is the library's own. The threshold is ours.
    """
    hierarchy = random_hierarchy(generator)
    model = build(lambda: Stack(vocabulary=100, classes=hierarchy.classes, dim=256), generator)
    assert isinstance(model, Stack)
    with torch.no_grad():
        _, traces = model.trace(hierarchy.sequences(30))
    order = (
        torch.randperm(hierarchy.classes, generator=generator)
        if shuffled
        else torch.arange(hierarchy.classes)
    )
    return float(recovery(traces[0].hidden.amax(1), hierarchy.activity()[1][order]))


CLAIMS = (tree_co_occurrence, tree_samples, near_relatives_first, recovery_untrained)
