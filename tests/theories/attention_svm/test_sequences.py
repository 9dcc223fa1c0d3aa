"""Many queries per input with one W: the training problem against plain autograd, and where descent goes."""

import torch

from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm import builders, dynamics, sequences, solvers
from transformer_theory.theories.attention_svm.figures.sequences import COSINE, FULL, LAST, OWN
from transformer_theory.theories.attention_svm.figures.sequences import sequences as figure
from transformer_theory.theories.attention_svm.problem import Instance
from transformer_theory.theories.attention_svm.sequences import causal_problem, sequence_problem


def gaussian(*size: int, seed: int = 0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_causal_attention_is_that_of_a_masked_network():
    """Outputs and gradient of the pairs, against one masked softmax over [n, T, T]."""
    x, scores = gaussian(3, 4, 5), gaussian(3, 4, 4, seed=1)
    instance = sequences.causal_instance(x, scores)
    W = gaussian(5, 5, seed=2).requires_grad_()
    logits = torch.einsum("ntx,xz,nkz->nkt", x, W, x).masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf)
    attention = logits.softmax(-1)
    torch.nn.functional.softplus(-(attention * scores).sum(-1)).mean().backward()
    torch.testing.assert_close(instance.attention(W.detach()), attention.detach().reshape(12, 4))
    M, C = dynamics.descent_direction(instance, W.detach())
    torch.testing.assert_close(C.exp() * M, -W.grad)
    assert instance.selected(W.detach()).tolist() == attention.argmax(-1).ravel().tolist()
    assert instance.optimal()[::4].tolist() == [0, 0, 0]  # the first position has no choice


def test_sequences_without_a_mask_are_plain_inputs():
    x, z, scores, _ = sequence_problem(
        inputs=2, tokens=3, queries=2, dim=4, generator=torch.Generator().manual_seed(0)
    )
    instance, W = sequences.sequence_instance(x, z, scores), gaussian(4, 4)
    plain = Instance(x.repeat_interleave(2, 0), z.reshape(4, 4), scores.reshape(4, 3))
    torch.testing.assert_close(dynamics.descent_direction(instance, W), dynamics.descent_direction(plain, W))
    assert instance.allowed is None


def test_tokens_that_are_not_allowed_change_nothing():
    """Not their values, their scores, or how many there are."""
    x, z, scores = gaussian(3, 6, 5), gaussian(3, 5, seed=1), gaussian(3, 6, seed=2)
    allowed = torch.tensor([True, True, False, True, False, False]).expand(3, 6)
    masked, short = Instance(x, z, scores, allowed), Instance(x[:, [0, 1, 3]], z, scores[:, [0, 1, 3]])
    ends = [dynamics.normalised_descent(i, dynamics.start(i), steps=300).W for i in (masked, short)]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-9)
    copied = torch.where(allowed[..., None], x, x[:, :1])  # the hidden tokens equal a visible one
    same = Instance(copied, z, scores, allowed)
    torch.testing.assert_close(
        dynamics.normalised_descent(same, dynamics.start(same), steps=300).W, ends[1], rtol=1e-9, atol=1e-9
    )


def test_trials_do_not_affect_one_another():
    x, scores, best = causal_problem(
        inputs=2, tokens=4, dim=12, generator=torch.Generator().manual_seed(0), trials=3
    )
    assert bool((best <= torch.arange(4)).all())
    together = sequences.causal_instance(x, scores)
    end = dynamics.normalised_descent(together, dynamics.start(together), steps=1500).W
    solutions = solvers.frobenius_max_margins(builders.causal(x, best))
    assert bool(solutions.solved.all())
    assert float(cosine(end, solutions.W, dim=(-2, -1)).min()) > 0.995
    alone = sequences.causal_instance(x[1], scores[1])
    ends = [dynamics.normalised_descent(i, dynamics.start(i), steps=200).W for i in (alone, together)]
    torch.testing.assert_close(ends[0], ends[1][1])


def test_descent_goes_to_the_solution_of_all_constraints(run):
    result = run(figure(trials=3, steps=1500))
    ends = result.select(quantity=COSINE, step=1500)
    value = {(row.at["attention"], row.at["constraints"]): row.value for row in ends}
    for kind in ("causal", "sequence to sequence"):
        assert value[kind, OWN] > 0.995
        assert value[kind, LAST] < 0.75
    assert value["causal", FULL] < 0.9
    assert len(figure().plot(result).get_axes()) == 3


def test_a_figure_of_infeasible_problems():
    result = figure(inputs=6, tokens=6, dim=2, trials=2, steps=20).run()
    assert result.table[0].value is None
    assert result.table[0].reason
    assert figure().plot(result).get_axes()
