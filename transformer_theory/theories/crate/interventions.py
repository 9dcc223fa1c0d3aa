r"""Predictions of CRATE for a trained network: attention compresses, and thresholds make the tokens sparse.

Attention stands for the exact step of compression along its subspaces. With the coordinates :math:`W_k` of
the tokens in the subspace of head k, the exact gradient step adds :math:`-\kappa\beta (I + A_k)^{-1} W_k`
with :math:`A_k = \beta W_k W_k^\top`, and attention stands for

.. math:: W_k - (I + A_k)^{-1} W_k = A_k (I + A_k)^{-1} W_k .

This replaces the output of each head, in the norm that the attention of all its tokens has: for tokens of
layer norm the eigenvalues of A are in the hundreds, so that the step is about :math:`W_k` itself, much longer
than an average of tokens (:func:`.gradient_error`). The control is the same step in subspaces that a random
rotation of all coordinates mixes among the heads; each attention has one rotation in all batches. The
distortion is that of the papers, :math:`\varepsilon = 1/2`.

The second half of a layer takes steps of ISTA, :math:`Z \leftarrow S(Z + \eta (Y - Z D^\top) D)`, whose
proximal map :math:`S(x) = \mathrm{relu}(x - \eta\lambda)` alone makes the tokens sparse. With :math:`S(x) =
x` in its place the steps descend on the error of reconstruction, and nothing is sparse. If the layer is
there for the sake of sparsity, this breaks more than the control, which moves each token as far in a random
direction. Source: :cite:t:`yu2023white`, :cite:t:`yang2024scaling` (two steps with an overcomplete
dictionary).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.intervention import Attended, BlockPass, Control, Intervention, moved_at_random, own_generator
from ...core.sources import Source
from ...models.crate import Ista, OvercompleteIsta

EPS = 0.5


def exact(attended: Attended) -> Attended:
    """Replaces attention by the exact step."""
    return _of_own_norm(attended, _step(_coordinates(attended)))


def rotated(attended: Attended) -> Attended:
    """Replaces attention by the exact step in rotated subspaces, the same in all batches of a draw."""
    W = _coordinates(attended)
    heads, p = W.shape[1], W.shape[-1]
    generator = own_generator(attended)
    normal = torch.randn(heads * p, heads * p, generator=generator, device=W.device, dtype=W.dtype)
    rotation = torch.linalg.qr(normal).Q
    mixed = W.transpose(1, 2).flatten(2) @ rotation
    step = _step(mixed.unflatten(2, (heads, p)).transpose(1, 2))
    back = step.transpose(1, 2).flatten(2) @ rotation.mT
    return _of_own_norm(attended, back.unflatten(2, (heads, p)).transpose(1, 2))


def _of_own_norm(attended: Attended, output: Float[Tensor, "windows heads n p"]) -> Attended:
    """Gives the output of each head the Frobenius norm of its attention."""
    own = torch.linalg.matrix_norm(attended.output, keepdim=True)
    return attended.with_output(
        output * own / torch.linalg.matrix_norm(output, keepdim=True).clamp_min(1e-30)
    )


def _coordinates(attended: Attended) -> Float[Tensor, "windows heads n p"]:
    """Returns the coordinates of the tokens.

    Raises:
        ValueError: queries, keys and values are not the same, or a key is blocked.
    """
    value = attended.value
    same = value.shape == attended.query.shape and all(
        bool((x == value).all()) for x in (attended.query, attended.key)
    )
    if not same:
        raise ValueError(
            "the exact step needs equal queries, keys and values, as in CRATE, got different ones"
        )
    if not bool(attended.mask.all()):
        raise ValueError("the exact step needs attention to all tokens, got a mask or padding")
    return value.to(attended.weights.dtype)


def _step(W: Float[Tensor, "windows heads n p"]) -> Float[Tensor, "windows heads n p"]:
    r"""Returns :math:`A (I + A)^{-1} W = W (I + B)^{-1} B` with :math:`B = \beta W^\top W`."""
    n, p = W.shape[-2:]
    B = p / (n * EPS**2) * W.mT @ W
    eye = torch.eye(p, dtype=W.dtype, device=W.device)
    return W @ torch.linalg.solve(eye + B, B)


def without_thresholds(block: BlockPass) -> BlockPass:
    """Runs the block with steps of ISTA that have neither rectifier nor threshold.

    Raises:
        ValueError: the block has no module with steps of ISTA, or several.
    """
    steps = [each for each in block.module.modules() if isinstance(each, Ista | OvercompleteIsta)]
    if len(steps) != 1:
        raise ValueError(
            "the thresholds are those of one module with steps of ISTA in each block, as in CRATE, got "
            f"{len(steps)}"
        )
    ista = steps[0]
    hook = ista.register_forward_hook(lambda module, args, output: descended(ista, *args))
    try:
        return block.with_output(block.again(block.tokens))
    finally:
        hook.remove()


def random_directions(block: BlockPass) -> BlockPass:
    """Moves each token as far as :func:`without_thresholds`, in a random direction."""
    change = without_thresholds(block).output - block.output
    return block.with_output(moved_at_random(block.output, change, block.generator))


def descended(
    ista: Ista | OvercompleteIsta, tokens: Float[Tensor, "batch n dim"]
) -> Float[Tensor, "batch n dim"]:
    """Returns the output of a module with steps of ISTA whose proximal map is left out."""
    D = ista.weight
    if isinstance(ista, OvercompleteIsta):
        code, count = tokens.new_zeros(*tokens.shape[:-1], D.shape[1]), 2
    else:
        code, count = tokens, ista.steps
    for _ in range(count):
        code = code + ista.eta * (tokens - code @ D.mT) @ D
    return code @ ista.decoder.mT if isinstance(ista, OvercompleteIsta) else code


INTERVENTIONS = (
    Intervention(
        name="attention replaced by the exact step",
        change=exact,
        predicts="kept",
        controls=(Control("exact steps in rotated subspaces", rotated, is_common=True),),
        source=Source("yu2023white", status="own"),
    ),
    Intervention(
        name="rectifiers and thresholds of ISTA removed",
        change=without_thresholds,
        predicts="broken",
        controls=(Control("tokens moved as far in random directions", random_directions),),
        source=Source("yu2023white", status="own"),
        site="block",
    ),
)
