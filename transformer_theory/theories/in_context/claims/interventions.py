"""Claims about the intervention on linear attention: what its first order computes."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ....core.claims import Measured, but, claim
from ....core.intervention import Change
from ....core.sources import Source
from ....probes.changed_pass import changed_attention, check_changed
from ..interventions import linearised, permuted

EXAMPLES, DIM, QUERIES = 20, 5, 8


class _Reader(nn.Module):
    """Softmax attention from the last tokens to the examples before them: prompts ``[batch, n, dim + 1]`` of
    inputs and targets to answers ``[batch, queries]``.
    """

    def __init__(self, step: float):
        super().__init__()
        self.step = step

    def forward(self, prompts: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch queries"]:
        x, y = prompts[..., :-1], prompts[..., -1:]
        scores = self.step * (x[:, EXAMPLES:] @ x[:, :EXAMPLES].mT)
        return (scores.softmax(-1) @ y[:, :EXAMPLES])[..., 0]


@claim(
    "in_context/linearised-softmax",
    measures="largest difference of the answers, relative to the largest answer",
    at_most=1e-9,
    source=Source("vonoswald2023transformers", status="own"),
    assumptions=(
        f"one softmax head whose scores are $\\eta x^\\top x_j$, {EXAMPLES} Gaussian examples of dimension "
        f"{DIM}, $\\eta$ between .05 and .5, float64",
    ),
    control=but("the same weights at permuted keys, the control of the intervention", change=permuted),
)
def first_order(generator: Generator, *, change: Change = linearised) -> Measured:
    r"""Attention to first order in its scores answers with $\bar y + w^\top x$, where w is one step of
    gradient descent from 0, of size $\eta$, on $\frac{1}{2n} \sum_j (w^\top (x_j - \bar x) - (y_j - \bar
    y))^2$.
    """
    step = 0.05 + 0.45 * float(torch.rand((), generator=generator))
    prompts = torch.randn(6, EXAMPLES + QUERIES, DIM + 1, generator=generator, dtype=torch.float64)
    model = _Reader(step)
    with changed_attention(model, change, seed=int(torch.randint(2**31, (), generator=generator))) as changed:
        found = model(prompts)
    check_changed(changed, "first order")
    x, y = prompts[:, :EXAMPLES, :-1], prompts[:, :EXAMPLES, -1]
    centred, errors = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    w = torch.zeros(len(prompts), DIM, dtype=torch.float64, requires_grad=True)
    loss = 0.5 * ((centred @ w[..., None])[..., 0] - errors).square().mean(1).sum()
    (gradient,) = torch.autograd.grad(loss, w)
    # the step acts on inputs as they are: the scores of centred examples differ by a number for each query
    expected = y.mean(1, keepdim=True) - step * (prompts[:, EXAMPLES:, :-1] @ gradient[..., None])[..., 0]
    with torch.no_grad():
        softmax = float((model(prompts) - expected).abs().max() / expected.abs().max())
    error = float((found - expected).abs().max() / expected.abs().max())
    return Measured(error, {"step": step, "softmax itself": softmax})


CLAIMS = (first_order,)
