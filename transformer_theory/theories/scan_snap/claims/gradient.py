"""The gradient in count form, against automatic differentiation."""

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....data.bridges import one_hot
from ..dynamics import Batch, Weights, forward

PAPER = "tian2023scan"


def _gradient_error(generator: Generator, *, projection: bool) -> Evidence:
    """Largest difference of the closed-form gradients and autograd of the explicit model, as a share of the largest gradient entry."""
    S, Q, K, M, context, batch = 6, 2, 3, 11, 9, 5
    ids = torch.randint(S, (batch, context), generator=generator)
    query, target = torch.randint(Q, (batch,), generator=generator), torch.randint(K, (batch,), generator=generator)
    Y = torch.randn(S, M, generator=generator, dtype=torch.float64)
    Y[:, K:] = Y[:, K : K + 1]
    Z = torch.randn(Q, S, generator=generator, dtype=torch.float64)
    X = one_hot(ids, S)
    Y_leaf, Z_leaf = Y.clone().requires_grad_(), Z.clone().requires_grad_()
    attention = torch.softmax(torch.einsum("btl,bl->bt", X, Z_leaf[query]), dim=1)
    attended = torch.einsum("bt,btl->bl", attention, X)
    normalised = attended / attended.norm(dim=1, keepdim=True)
    loss = torch.nn.functional.cross_entropy(normalised @ Y_leaf, target)
    dY, dZ = torch.autograd.grad(loss, (Y_leaf, Z_leaf))
    counts = X.sum(1)
    closed = forward(Weights(Y[:, : K + 1], Z, M - K), Batch(counts, query, target))
    found = closed.attention
    if not projection:
        f = normalised.detach()
        g = (torch.nn.functional.one_hot(target, M) - torch.softmax(f @ Y, dim=1)) @ Y.T
        found = one_hot(query, Q).T @ (f * g) / batch
    errors = {"decoder": _relative(closed.decoder, -dY[:, : K + 1]), "attention": _relative(found, -dZ)}
    return Evidence(max(errors.values()), 1e-12, "<=", detail=errors)


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


CLAIMS = (
    Claim(
        id="scan_snap/gradient",
        statement=r"The descent direction of the attention logits is $\dot z = f \circ (g - f (f^\top g))$, $g = Y (e_n - \alpha)$, a "
        r"function of the tokens' counts alone. Here: the largest relative difference to automatic differentiation of the explicit model.",
        source=Source(PAPER, "Lemma 1"),
        assumptions=("no positions", "the query is no key", "attended tokens have Euclidean norm one"),
        check=lambda generator: _gradient_error(generator, projection=True),
        control=lambda generator: _gradient_error(generator, projection=False),
        control_description="leaves out the projection that the normalisation of the attended tokens brings",
    ),
)
