r"""Claims about joint descent on a prompt p and a head v: p goes to p_mm if all inputs are support vectors of
v, otherwise to p_relax.

The targets p_mm, p_relax and p_eq are defined in :mod:`~..dynamics.joint`.

The theorem :cite:p:`tarzanagh2023maxmargin` assumes that moving attention off a selected token costs label
margin. Let :math:`\Gamma` be the largest label margin of the selected tokens, and :math:`\Gamma(s)` the
largest label margin of the averages :math:`r_i = \sum_t s_{i,t} x_{i,t}`. The assumption is :math:`\Gamma(s)
\le \Gamma - \nu \max_i (1 - s_{i,a_i})` for some :math:`\nu > 0`, where i runs over the support vectors.
:func:`price` is the largest such :math:`\nu` to first order in :math:`1 - s_{i,a_i}`, by the envelope
theorem.

Each input has two tokens. One is zero and has the key zero; the other is a random point, on the side of the
label, with a random key. For such inputs a positive price implies the assumption for all attention weights,
not only to first order: :math:`1 / (2\Gamma(s)^2)` is the minimum of :math:`\tfrac12\|v\|^2` subject to
:math:`Y_i v^\top x_{i,a_i} \ge 1 / s_{i,a_i}`, and this minimum is convex and increasing in :math:`1 /
s_{i,a_i}`. Draws are repeated until the head has the required support vectors and the compared directions
differ enough. The third claim is about descent with steps of equal length for p and v. Where attention goes
to the other token of some input and stays there, the targets do not apply, and the claims say nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import prompt
from ..constraint_set import Constraints
from ..dynamics import JointInstance, JointState, JointTargets, joint_descent, joint_targets
from ..solvers import frobenius_max_margin, frobenius_max_margins
from .common import MAX_DRAWS, limit_distance, no_instance

SETTING = Source("tarzanagh2023maxmargin", status="own")  # states the problem of the library's own claim
SOURCE = Source("tarzanagh2023maxmargin", status="not found")
MAX_COSINE = 0.97  # largest cosine of the targets of a check and its control, so that 700 steps separate them
THRESHOLD = 3e-3
N, D = 3, 3
SELECT = torch.ones(N, dtype=torch.long)  # the position of the non-zero token in each input
SURPLUS = 2.0  # factor of the last input, which then probably has label margin to spare
MAX_NORM = 2.5  # largest norm of v_mm and p_mm, so that 700 steps suffice
BATCH = 32  # instances per draw
# smallest multiplier of an input in the head, in the case that all inputs are support vectors
MIN_DUAL = 0.05
MIN_MARGIN = 0.1  # smallest margin that the target may require
MIN_PRICE = 1e-3  # label margin per unit of attention; a lower price counts as zero
Case = Callable[[JointTargets], bool]
COMMON = (
    "each input has two tokens: the selected one, on the side of its label, and zero, with the key zero",
    "descent selects the tokens $a_i$, which the other assumptions do not guarantee",
    "moving attention off the selected token of a support vector costs label margin (checked: at least "
    "0.001 per unit of attention)",
    "the selected tokens are linearly separable by label, and their keys from the other tokens'",
    "the norms of $v_{mm}$ and $p_{mm}$ are below 2.5, so that 700 steps suffice",
    "logistic loss (the margins come from its exponential tail); normalised steps for prompt and head alike",
)


def _draw(
    generator: torch.Generator, case: Case, *, surplus: float = 1.0
) -> tuple[JointInstance, JointTargets]:
    """Draws an instance that satisfies ``case`` and needs only a few hundred steps; its last input is
    multiplied by ``surplus``.
    """
    for _ in range(MAX_DRAWS):
        labels = torch.randint(2, (BATCH, N), generator=generator).double() * 2 - 1
        selected = torch.randn(BATCH, N, D, generator=generator, dtype=torch.float64)
        selected[..., 0] = labels * (selected[..., 0].abs() + 0.5)
        selected[:, -1] *= surplus
        selected_keys = torch.randn(BATCH, N, D, generator=generator, dtype=torch.float64)
        tokens, keys = (torch.stack([torch.zeros_like(v), v], -2) for v in (selected, selected_keys))
        heads = frobenius_max_margins(
            Constraints(labels[..., None] * selected, torch.ones_like(selected[..., :1]))
        )
        prompts = frobenius_max_margins(prompt(keys, SELECT.expand(BATCH, N)))
        # A short solution has a large margin, which descent reaches in few steps.
        short = heads.solved & prompts.solved & (torch.maximum(heads.norm, prompts.norm) < MAX_NORM)
        for b in short.nonzero().squeeze(-1).tolist():
            instance = JointInstance(tokens[b], labels[b], keys=keys[b])
            targets = joint_targets(instance, SELECT)
            if case(targets):
                return instance, targets
    raise no_instance("of the required case")


def _is_tight(targets: JointTargets) -> bool:
    return targets.tight and bool(targets.head.dual.min() > MIN_DUAL)


def price(instance: JointInstance, targets: JointTargets, select: Int[Tensor, " n"]) -> float:
    r"""Returns the smallest loss of label margin per unit of attention that moves from the selected token of
    a support vector to another.

    With multipliers :math:`\lambda` of the head and :math:`\mu = \lambda / \sum_j \lambda_j`, moving
    attention from a_i to t costs
    :math:`\mu_i Y_i (x_{i,a_i} - x_{i,t})^\top v_{mm} / \|v_{mm}\|` of label margin per unit of attention, to
    first order.

    Args:
        instance: tokens and labels, a single problem.
        targets: the solutions for the selected tokens; only the head is used.
        select: positions of the selected tokens, ``[n]``.
    Returns:
        The smallest of these costs over support vectors i and other tokens t. If it is not positive, the
        theorem's assumption fails.
    """
    selected = instance.tokens[torch.arange(len(select)), select]
    margin_loss = (
        ((selected[:, None] - instance.tokens) @ targets.head.W).squeeze(-1)
        * instance.labels[:, None]
        / targets.head.norm
    )
    unselected = torch.ones_like(margin_loss, dtype=torch.bool).scatter(1, select[:, None], False)
    shares = targets.head.dual / targets.head.dual.sum()
    return float((shares[:, None] * margin_loss)[unselected & targets.support[:, None]].min())


def _distance(
    instance: JointInstance, targets: JointTargets, target: Tensor, generator: torch.Generator
) -> Measured:
    """Returns 1 - cosine of p to ``target`` ``[d, 1]`` after half and after all steps.

    Args:
        targets: the solutions for the selection ``SELECT``.
        target: direction that p should approach.
        generator: random generator of the start.
    """
    p, v = torch.randn(2, D, generator=generator, dtype=torch.float64) * 0.1
    half = joint_descent(instance, JointState(p, v), steps=350, rate=0.2)
    end = joint_descent(instance, half, steps=350, rate=0.2)
    before, after = (1 - float(cosine(s.p, target.squeeze(-1))) for s in (half, end))
    selected = bool((instance.attention(end.p).argmax(-1) == 1).all())
    cost = price(instance, targets, SELECT)
    return limit_distance(
        before,
        after,
        THRESHOLD,
        covered=selected and cost > MIN_PRICE,
        detail={"steps": end.step, "price": cost},
    )


def _differ(first: Tensor, second: Tensor) -> bool:
    return float(cosine(first, second)) < MAX_COSINE


def _one_margin_less(generator: torch.Generator) -> Measured:
    for _ in range(MAX_DRAWS):
        instance, targets = _draw(generator, _is_tight)
        margins = torch.tensor([0.0] + [1.0] * (N - 1), dtype=torch.float64)
        less = frobenius_max_margin(replace(prompt(instance.key_vectors, SELECT), rhs=margins))
        if _differ(less.W, targets.sharp.W):
            return _distance(instance, targets, less.W, generator)
    raise no_instance("whose prompt changes direction with one margin less")


@claim(
    "attention_svm/joint-tight",
    measures="1 - cosine of the prompt to p_mm",
    at_most=THRESHOLD,
    margin=NEAR,
    source=SOURCE,
    assumptions=("every input is a support vector of the head, with a multiplier above 0.05", *COMMON),
    control=but("The target requires no margin of one of the support vectors.", _one_margin_less),
)
def joint_tight(generator: torch.Generator) -> Measured:
    r"""If every input is a support vector of $v_{mm} = \arg\min \|v\|$ subject to $Y_i v^\top x_{i,a_i} \ge
    1$, joint descent on $(v, p)$ sends the prompt in direction to $p_{mm} = \arg\min \|p\|$ subject to
    $(k_{i,a_i} - k_{i,t})^\top p \ge 1$. The theorem is about the regularisation path; this is about descent.
    """
    instance, targets = _draw(generator, _is_tight)
    return _distance(instance, targets, targets.sharp.W, generator)


def _is_relaxed(targets: JointTargets) -> bool:
    # joint_targets returns p_relax itself as p_eq if the other inputs have enough label margin to spare.
    same = targets.equal_steps is targets.relaxed
    return (
        same
        and bool((targets.relaxed.margins > MIN_MARGIN).all())
        and _differ(targets.relaxed.W, targets.sharp.W)
    )


@claim(
    "attention_svm/joint-relaxed",
    measures="1 - cosine of the prompt to p_relax",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=(
        "the label margins of the other inputs are so large that `attention_svm/joint-equal-steps` "
        "predicts the same prompt",
        "the margins of $p_{relax}$ are above 0.1, and its cosine to $p_{mm}$ is below 0.97",
        *COMMON,
    ),
    control=but("The target requires the margin one of every input: $p_{mm}$.", target="sharp"),
)
def joint_relaxed(generator: torch.Generator, *, target: str = "relaxed") -> Measured:
    r"""If some inputs are not support vectors of $v_{mm}$, joint descent on $(v, p)$ sends the prompt in
    direction to $p_{relax} = \arg\min \|p\|$ subject to $(k_{i,a_i} - k_{i,t})^\top p \ge 1$ for the support
    vectors and $\ge 0$ for the others. The theorem is about the regularisation path; this is about descent.
    """
    instance, targets = _draw(generator, _is_relaxed, surplus=SURPLUS)
    return _distance(instance, targets, getattr(targets, target).W, generator)


def _is_between(targets: JointTargets) -> bool:
    margins = targets.equal_steps.margins  # one per input, which has one token that is not selected
    return bool((margins > MIN_MARGIN).all()) and _differ(targets.equal_steps.W, targets.relaxed.W)


@claim(
    "attention_svm/joint-equal-steps",
    measures="1 - cosine of the prompt to p_eq",
    at_most=THRESHOLD,
    margin=NEAR,
    source=SETTING,
    assumptions=(
        "the margins of $p_{eq}$ are above 0.1, and its cosine to $p_{relax}$ is below 0.97",
        *COMMON,
    ),
    control=but("The target requires no margin of those inputs: $p_{relax}$.", target="relaxed"),
)
def joint_equal_steps(generator: torch.Generator, *, target: str = "equal_steps") -> Measured:
    r"""Joint descent with steps of equal length for $p$ and $v$ sends the prompt in direction to $p_{eq}$,
    which requires of the inputs that are not support vectors the margin $\max(0, 1 - (Y_i v_{mm}^\top
    x_{i,a_i} - 1)\|p_{eq}\| / \|v_{mm}\|)$: less than one, and zero only if their label margin is large. The
    theorem on regularisation paths has zero ($p_{relax}$). The prediction follows from the balance of the
    inputs' gradients.
    """
    instance, targets = _draw(generator, _is_between, surplus=SURPLUS)
    return _distance(instance, targets, getattr(targets, target).W, generator)


CLAIMS = (joint_tight, joint_relaxed, joint_equal_steps)
