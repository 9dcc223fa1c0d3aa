"""The binary latent tree against enumeration of all its values, and what a block learns on it."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.theories.joma.block import Contexts, Exponential, zero_block
from transformer_theory.theories.joma.dynamics import Model, gradient_flow, signed
from transformer_theory.theories.joma.figures import relatives
from transformer_theory.theories.joma.orbit import blow_up_time, limits
from transformer_theory.theories.joma.tree import Tree, masked_leaf, pair_table, sample_leaves, uniform_tree

UNEVEN = Tree((0.3, 0.9, 0.55), (0.8, -0.4))


def enumerated(tree: Tree) -> dict[tuple[int, ...], float]:
    """P of each set of leaves, by summing over the label and the values of all nodes."""
    chances: dict[tuple[int, ...], float] = {}
    for zero in tree.zero:
        states: dict[tuple[int, ...], float] = {}
        for value in itertools.product((0, 1), repeat=2):
            states[value] = math.prod(zero if v == 0 else 1 - zero for v in value) / len(tree.zero)
        for rho in tree.rho:
            below: dict[tuple[int, ...], float] = {}
            for parents, chance in states.items():
                for children in itertools.product((0, 1), repeat=2 * len(parents)):
                    kept = [child == parents[place // 2] for place, child in enumerate(children)]
                    edges = math.prod((1 + rho) / 2 if same else (1 - rho) / 2 for same in kept)
                    below[children] = below.get(children, 0) + chance * edges
            states = below
        for leaves, chance in states.items():
            chances[leaves] = chances.get(leaves, 0) + chance
    return chances


@pytest.mark.parametrize(
    "tree", [UNEVEN, uniform_tree(rho=0.7, levels=3, zero=(0.4, 0.82))], ids=["uneven", "uniform"]
)
def test_co_occurrence_is_that_of_all_values_of_the_tree(tree: Tree):
    chances = enumerated(tree)
    assert sum(chances.values()) == pytest.approx(1, abs=1e-14)
    for other in range(1, tree.leaves):
        up = int(tree.kinship(0)[other])
        table = torch.zeros(2, 2, dtype=torch.float64)
        for leaves, chance in chances.items():
            table[leaves[0], leaves[other]] += chance
        assert_close(pair_table(tree, up), table, atol=1e-14, rtol=0)
        assert tree.cooccurrence(up) == pytest.approx(float(table[1, 1] / table[1].sum()), abs=1e-14)
        assert tree.frequency() == pytest.approx(float(table[1].sum()), abs=1e-14)


def test_kinship_is_the_number_of_levels_to_the_common_ancestor():
    assert UNEVEN.kinship(0).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert UNEVEN.kinship(5).tolist() == [3, 3, 3, 3, 1, 0, 2, 2]


def test_the_published_setting():
    tree = uniform_tree(rho=relatives.RHO, levels=relatives.LEVELS, zero=relatives.ZERO)
    chances = {up: round(tree.cooccurrence(up), 5) for up in relatives.RECOMPUTED}
    assert chances == relatives.RECOMPUTED


def test_draws_have_the_joint_distribution_of_the_enumeration(generator):
    n, chances = 200_000, enumerated(UNEVEN)
    powers = 2 ** torch.arange(UNEVEN.leaves)
    counts = torch.bincount(
        (sample_leaves(UNEVEN, n, generator=generator) * powers).sum(1), minlength=2**UNEVEN.leaves
    )
    wanted = torch.zeros(2**UNEVEN.leaves, dtype=torch.float64)
    for leaves, chance in chances.items():
        wanted[int((torch.tensor(leaves) * powers).sum())] = chance * n
    chi2 = float(((counts - wanted).square() / wanted).sum())
    freedom = 2**UNEVEN.leaves - 1
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_with_a_constant_gradient_the_sibling_blows_up_and_the_others_stop(unchecked):
    """The joint flow on the mean context of a masked leaf ends where the closed form says, in the order of
    kinship.
    """
    tree = uniform_tree(rho=0.8, levels=3, zero=(0.3, 0.7))
    delta = torch.tensor([tree.cooccurrence(int(up)) for up in tree.kinship(0)[1:]], dtype=torch.float64)
    contexts = Contexts(delta[None], torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.long))
    state, left = zero_block(contexts, units=1), blow_up_time(delta)
    for _ in range(12):
        state = gradient_flow(
            state, contexts, Model(Exponential(), loss=signed), step=left / 50, steps=25
        ).state(-1)
        left /= 2
    assert_close(state.lower[0, 1:], limits(delta)[1:], atol=1e-3, rtol=0)
    assert float(state.lower[0, 0]) > float(state.lower[0, 1:].max()) > float(state.lower[0, -1])


def test_the_context_of_a_masked_leaf_is_the_other_leaves(generator):
    tree = uniform_tree(rho=0.6, levels=3, zero=(0.5, 0.5))
    task = masked_leaf(tree, 20_000, generator=generator)
    assert task.kinship.tolist() == [1, 2, 2, 3, 3, 3, 3]
    on = task.contexts.counts[task.contexts.targets == 1].mean(0)
    wanted = torch.tensor([tree.cooccurrence(int(up)) for up in task.kinship], dtype=torch.float64)
    assert_close(on, wanted, atol=0.03, rtol=0)  # 0.015 from empty contexts left out, the rest is noise
    assert task.by_kinship(torch.tensor([1.0, 2, 4, 5, 6, 7, 8])).tolist() == [1, 3, 6.5]
    rare = masked_leaf(tree, 20_000, generator=generator, sibling_rate=0.25).contexts.counts.mean(0)
    assert_close(rare[0] / rare[1], torch.tensor(0.25, dtype=torch.float64), atol=0.02, rtol=0)


def test_bad_trees_and_tasks_are_refused(unchecked, generator):
    with pytest.raises(ValueError, match=r"zero .*1\.2"):
        Tree((1.2,), (0.5,))
    with pytest.raises(ValueError, match=r"rho .*\(\)"):
        Tree((0.5,), ())
    with pytest.raises(ValueError, match=r"up must lie in \[0, 3\]"):
        UNEVEN.sign_product(4)
    with pytest.raises(ValueError, match=r"up must lie in \[1, 3\]"):
        pair_table(UNEVEN, 0)
    with pytest.raises(ValueError, match="leaf"):
        Tree((1.0,), (1.0,)).cooccurrence(1)
    with pytest.raises(ValueError, match=r"sibling_rate .* 2"):
        masked_leaf(UNEVEN, 10, generator=generator, sibling_rate=2.0)
