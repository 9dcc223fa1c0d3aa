"""Claims about the intervention on compression: the exact step on tokens of known singular values."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine, orthonormalise
from ....probes.changed_pass import changed_attention, check_changed
from ..interventions import EPS, exact

SEQUENCES, HEADS, TOKENS, P = 3, 4, 24, 6


class _TiedHeads(nn.Module):
    """Attention whose queries, keys and values are the coordinates W ``[batch, heads, n, p]``."""

    def forward(self, W: Float[Tensor, "batch heads n p"]) -> Float[Tensor, "batch heads n p"]:
        return (W @ W.mT / P**0.5).softmax(-1) @ W


@claim(
    "crate/exact-step-copies",
    measures="largest error of the cosines, and of the norms relative to those of attention",
    at_most=1e-10,
    source=Source("yu2023white", status="own"),
    assumptions=(
        f"{TOKENS} tokens with {P} coordinates in each head; singular values for which $\\beta \\sigma^2$ is "
        "between .01 and 100, drawn on a logarithmic axis; float64",
    ),
    control=but(r"the formula with $\varepsilon = 1$", eps=1.0),
)
def exact_step_copies(generator: Generator, *, eps: float = EPS) -> Measured:
    r"""The intervention replaces attention by the exact step $A_k (I + A_k)^{-1} W_k$ in the norm of
    attention. Its cosine to the tokens $W_k$ themselves is $\sum_i g_i \sigma_i^2 / \sqrt{\sum_i \sigma_i^2
    \sum_i g_i^2 \sigma_i^2}$ with the singular values $\sigma_i$ of $W_k$ and $g_i = \beta \sigma_i^2 / (1 +
    \beta \sigma_i^2)$, $\beta = p / (n \varepsilon^2)$: the larger they are, the more the step copies.
    """

    def axes(n: int) -> Float[Tensor, "batch heads n p"]:
        normal = torch.randn(SEQUENCES, HEADS, n, P, generator=generator, dtype=torch.float64)
        return orthonormalise(normal)

    powers = 4 * torch.rand(SEQUENCES, HEADS, P, generator=generator, dtype=torch.float64) - 2
    sigma = (10**powers * TOKENS * EPS**2 / P).sqrt()
    W, model = axes(TOKENS) * sigma[..., None, :] @ axes(P).mT, _TiedHeads()
    with torch.no_grad():
        attention = model(W)
    with changed_attention(model, exact) as changed:
        found = model(W)
    check_changed(changed, "the exact step")
    curvature = P / (TOKENS * eps**2) * sigma.square()
    g = curvature / (1 + curvature)
    predicted = (g * sigma.square()).sum(-1) / (sigma.square().sum(-1) * (g * sigma).square().sum(-1)).sqrt()
    step = cosine(found, W, dim=(-2, -1))
    norms = torch.linalg.matrix_norm(found) / torch.linalg.matrix_norm(attention)
    errors = {"cosine": float((step - predicted).abs().max()), "norm": float((norms - 1).abs().max())}
    detail = {
        "smallest cosine of the step": float(step.min()),
        "smallest cosine of attention": float(cosine(attention, W, dim=(-2, -1)).min()),
    }
    return Measured(max(errors.values()), errors | detail)


CLAIMS = (exact_step_copies,)
