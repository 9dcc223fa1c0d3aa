r"""Predictions of rate reduction for a network: few directions of each class suffice to classify.

At the optimum k classes lie in orthogonal subspaces of dimension d/k. On one half of the sequences, the
leading :math:`\max(1, \lfloor d / 2k \rfloor)` directions of the tokens of each class are found, in the last
block, from their second moments. On the other half every token is projected onto the span of all classes:
about half of the dimensions. No label of that half is used. Two controls: a random subspace of equal
dimension, and the span of classes with permuted labels. Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.intervention import BlockPass, Control, Intervention, of_last_block
from ...core.sources import Source


@dataclass(frozen=True, eq=False)
class ClassSubspaces:
    """The span of the leading directions of each class.

    Attributes:
        layer: number of the last block.
        basis: orthonormal columns, ``[dim, r]``.
        moments: second moments of the tokens of each sequence, ``[n, dim, dim]``.
        labels: class of each sequence, ``[n]``.
    """

    layer: int
    basis: Float[Tensor, "dim r"]
    moments: Float[Tensor, "n dim dim"]
    labels: Int[Tensor, " n"]


def span_of_classes(moments: Float[Tensor, "n dim dim"], labels: Int[Tensor, " n"]) -> Float[Tensor, "dim r"]:
    """Returns an orthonormal basis of the span of the leading directions of all classes."""
    classes = labels.unique()
    each = max(1, moments.shape[-1] // (2 * len(classes)))
    leading = [torch.linalg.eigh(moments[labels == y].mean(0)).eigenvectors[:, -each:] for y in classes]
    return torch.linalg.qr(torch.cat(leading, 1)).Q


def _moments(block: BlockPass) -> Float[Tensor, "batch dim dim"]:
    """Returns the second moments of the tokens of each sequence, without padding."""
    x = block.output.double()
    real = torch.ones_like(x[..., :1]) if block.real is None else block.real[..., None].to(x)
    return (x * real).mT @ x / real.sum(1, keepdim=True).clamp_min(1)


def choose_subspaces(read: Callable[[Callable[[BlockPass], None]], None]) -> ClassSubspaces:
    """Finds the class subspaces of the last block.

    Raises:
        ValueError: the sequences have no labels, or all have the same one.
    """
    passes = of_last_block(read)
    labels = [block.labels.cpu() for block in passes if block.labels is not None]
    if not labels:
        raise ValueError("subspaces of classes need a class of each sequence, got no labels")
    moments = torch.cat([_moments(block).cpu() for block in passes])
    classes = torch.cat(labels)
    if len(classes.unique()) < 2:
        raise ValueError("subspaces of classes need two classes, got one")
    return ClassSubspaces(passes[0].layer, span_of_classes(moments, classes), moments, classes)


def projected(block: BlockPass) -> BlockPass:
    """Projects the tokens of the last block onto the subspace."""
    chosen: ClassSubspaces = block.structure
    if block.layer != chosen.layer:
        return block
    basis = chosen.basis.to(block.output)
    return block.with_output(block.output @ basis @ basis.mT)


def random_subspace(chosen: ClassSubspaces, generator: Generator) -> ClassSubspaces:
    """Draws a subspace of the same dimension."""
    normal = torch.randn(chosen.basis.shape, generator=generator, dtype=chosen.basis.dtype)
    return replace(chosen, basis=torch.linalg.qr(normal).Q)


def permuted_labels(chosen: ClassSubspaces, generator: Generator) -> ClassSubspaces:
    """Finds the subspaces with permuted labels."""
    labels = chosen.labels[torch.randperm(len(chosen.labels), generator=generator)]
    return replace(chosen, basis=span_of_classes(chosen.moments, labels))


INTERVENTIONS = (
    Intervention(
        name="last tokens projected onto class subspaces",
        change=projected,
        predicts="kept",
        controls=(
            Control("random subspaces of equal dimension", structure=random_subspace),
            Control("subspaces of permuted labels", structure=permuted_labels),
        ),
        source=Source("yu2020learning", status="own"),
        choose=choose_subspaces,
        site="block",
    ),
)
