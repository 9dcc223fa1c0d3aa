r"""The data of the published figures, drawn in single precision in the published order and then converted to
float64.

The two-dimensional examples and the random problems come from the notebooks released with
:cite:t:`tarzanagh2023transformers`, the examples with one prompt from :cite:t:`tarzanagh2023maxmargin`.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from .dynamics import HeadInstance, JointInstance, Loss, relu_head
from .problem import Instance, published_instance, token_scores

PICTURES = (1, 2)
PROMPT_KEYS = ((-0.1, 1.0), (1.0, 0.0), (0.0, 0.0))  # keys in the example with one input
# global: equal distractors; local: token 1 is locally optimal
PROMPT_SCORES = {"global": (1.0, 0.9, 0.9), "local": (1.0, 0.9, 0.0)}
PROMPT_STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)  # one coordinate of p; the other one is 0
# values of C in the example with two inputs
PAIR_SCORES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 100.0)
JOINT_CASES = {"tight": 1.0, "not tight": 1.5}  # the second coordinate of the last input's token


def published_picture(number: int) -> Instance:
    """Returns one of the two examples in the plane: two inputs of three (``number`` 1) or five (2) tokens, d
    = 2, all labels 1.

    Raises:
        ValueError: ``number`` is neither 1 nor 2.
    """
    if number not in PICTURES:
        raise ValueError(f"number must be 1 or 2, got {number!r}; there are two pictures")
    generator = torch.Generator().manual_seed(1 if number == 1 else 3)
    head = torch.nn.functional.normalize(torch.randn(2, generator=generator), dim=0)
    left = torch.tensor([-1.0, 0.0])
    if number == 1:
        tokens = 0.3 * torch.randn(2, 3, 2, generator=generator) + torch.stack([left, -left])[:, None]
    else:
        tokens = 0.5 * torch.randn(2, 5, 2, generator=generator) + left
        tokens[:, 0] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
    query = torch.nn.functional.normalize(torch.randn(2, 2, generator=generator), dim=-1)
    x, label = tokens.double(), torch.ones(2, dtype=torch.float64)
    return Instance(x, query.double(), token_scores(x, head.double(), label))


def published_instances(seeds: Iterable[int], *, inputs: int, tokens: int, dim: int) -> Instance:
    """Returns :func:`~.problem.published_instance` of several seeds as one batch ``[trials]``.

    Args:
        seeds: one seed per trial.
        inputs, tokens, dim: n, T and d.
    Raises:
        ValueError: there is no seed, or a size is below one.
    """
    problems = [published_instance(seed, inputs=inputs, tokens=tokens, dim=dim) for seed in seeds]
    if not problems:
        raise ValueError("seeds must hold at least one seed, got an empty sequence; pass e.g. range(100)")
    return Instance(
        *(
            torch.stack([getattr(problem, name) for problem in problems])
            for name in ("tokens", "query", "scores")
        )
    )


def published_prompt(case: str) -> Instance:
    """Returns the example of a prompt for one input of three tokens, one trial per start; ``case`` is
    ``"global"`` or ``"local"``.
    """
    keys, scores = (
        torch.tensor([PROMPT_KEYS], dtype=torch.float64),
        torch.tensor([PROMPT_SCORES[case]], dtype=torch.float64),
    )
    trials = len(PROMPT_STARTS)
    return Instance(keys.expand(trials, 1, 3, 2), keys.new_ones(trials, 1, 1), scores.expand(trials, 1, 3))


def published_prompts() -> tuple[Instance, Float[Tensor, "3 7 3"]]:
    """Returns the example of one prompt for three inputs, and its keys with the score as a third coordinate.

    Token 0 of each input scores 1, the others 1/2.
    """
    tokens = 0.2 * torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(0))
    centres = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-0.5, -0.5]])
    tokens[..., :2] += centres[[0, 1, 1, 1, 2, 2, 2]]
    tokens[..., 2] = torch.tensor([1.0] + [0.5] * 6)
    scored = tokens.double()
    keys, scores = scored[..., :2].clone(), scored[..., 2].clone()
    return Instance(keys, keys.new_ones(3, 1), scores), scored


def published_pair(scores: tuple[float, ...] = PAIR_SCORES) -> Instance:
    """Returns the example of two inputs in which the loss determines the finite part of the prompt, one trial
    per score C.

    Input 1 has the tokens (0, 0) with score 0 and (1, 1) with score C. Input 2 has (0, 0) with score 0 and
    (1, -1) with score 1.
    """
    trials, keys = (
        len(scores),
        torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]]], dtype=torch.float64),
    )
    gamma = torch.zeros(trials, 2, 2, dtype=torch.float64)
    gamma[:, 0, 1], gamma[:, 1, 1] = torch.tensor(scores, dtype=torch.float64), 1.0
    return Instance(keys.expand(trials, 2, 2, 2), keys.new_ones(trials, 2, 1), gamma)


def prompt_limit(scores: Float[Tensor, " k"], *, loss: Loss) -> Float[Tensor, " k"]:
    r"""Returns the limit :math:`\tfrac12 \ln(C \ell'(C) / \ell'(1))` of the second coordinate of p on
    :func:`published_pair`, per score C.

    The direction of p is (1, 0) for every loss. The second coordinate stops where the gradients of the two
    inputs balance. With :math:`1 - s_1 \to e^{-p_1 - p_2}` and :math:`1 - s_2 \to e^{-p_1 + p_2}`, the
    balance is :math:`C|\ell'(C)| e^{-p_2} = |\ell'(1)| e^{p_2}`.
    """
    return 0.5 * (scores * loss.slope(scores) / loss.slope(torch.ones_like(scores))).log()


def published_joint(case: str) -> JointInstance:
    """Returns the published example: three inputs of two tokens, of which the first is zero; ``case`` is
    ``"tight"`` or ``"not tight"``.
    """
    selected = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, JOINT_CASES[case]]], dtype=torch.float64)
    return JointInstance(
        torch.stack([torch.zeros_like(selected), selected], 1),
        torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64),
    )


def published_heads(seeds: range, *, inputs: int, tokens: int, dim: int) -> HeadInstance:
    """Draws the published data of these seeds: hidden weights, tokens, labels and queries, in this order and
    in single precision.

    As in the published run, seeds with positive labels only are dropped: the head is never negative, so every
    selection fits such labels.
    """
    problems = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        V = torch.randn(dim, dim, generator=generator)
        x = torch.nn.functional.normalize(torch.randn(inputs, tokens, dim, generator=generator), dim=-1)
        Y = 2.0 * (torch.randn(inputs, generator=generator) > 0) - 1
        z = torch.nn.functional.normalize(torch.randn(inputs, dim, generator=generator), dim=-1)
        if bool((Y < 0).any()):
            problems.append((V / V.norm(), x, Y, z))
    V, x, Y, z = (torch.stack(part).double() for part in zip(*problems))
    return HeadInstance(x, z, Y, relu_head(V))
