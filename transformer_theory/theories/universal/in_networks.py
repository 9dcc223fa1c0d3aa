r"""Contextual embeddings in a trained network: how much a token's vector depends on its context, block by
block.

Tokens are *the same input* if the same vector enters the first block: the same word, or patch, at the same
position. (Vectors are compared up to :data:`ROUNDING` of their size.) Let g be the groups of the same input
with at least two members, and x the output of a block. The *contextual share* is the share of the variance of
these tokens that lies within groups,

.. math:: \frac{E \operatorname{Var}(x \mid g)}{\operatorname{Var}(x)} = 1 - \frac{\operatorname{Var}(E[x \mid
    g])}{\operatorname{Var}(x)} .

Patches of photographs hardly repeat; then the class token, which is the same input in every image, may be the
only group. Its variance is then compared with that of all tokens, and the row says so.
It is 0 before the first block by construction, stays 0 without attention, and is about 1 if the own token
leaves no trace: the squares in a group of m tokens are multiplied by m/(m-1), since its mean is estimated
from the same tokens. A contextual mapping needs more: different contexts must give the same input different
vectors. The *smallest distance of contexts* is that of two members of a group whose sequences differ, in
units of the standard deviation of x. In a causal network only the tokens before count as context, which shows
in the data: equal prefixes then give equal vectors.

Any network with attention has a contextual share above 0, so trained networks are compared with untrained
ones. Source: :cite:t:`yun2020transformers`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.measurement import Measurement
from ...core.metric import SHARED, ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import fixed_generator
from ...core.theory import InNetworks
from ...maths.linalg import binary_scale

SHARE = "contextual share of the embeddings"
DISTANCE = "smallest distance of two contexts of one token"
SOURCE = Source("yun2020transformers", status="own")
MAX_TOKENS = 2048  # tokens that are stored per block
MAX_MEMBERS = 256  # members of a group whose pairs are compared
EXPANDED = 1e-12  # error of an expanded square of a distance, relative to the squares, with room to spare
ROUNDING = 1e-4  # inputs are equal if they differ by less, relative to the largest entry
NO_GROUPS = "no input of the first block occurs twice in different contexts"
ONE_GROUP = "Only one input occurs twice, such as the class token."
NOT_FINITE = "no token is finite"
OTHER_TOKENS = "the block has other tokens than the first block"


def fingerprints(tokens: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq 2"]:
    """Returns a number for each sequence, and one for the sequence up to and including each token; equal
    contexts have equal numbers.
    """
    batch, seq, dim = tokens.shape
    # Fixed weights without simple relations make coincidences of different sequences unlikely.
    direction = torch.sin(torch.arange(1, dim + 1, dtype=torch.float64) * 1.7)
    place = torch.cos(torch.arange(1, seq + 1, dtype=torch.float64) * 2.3) + 1.5
    prefix = ((tokens.double().cpu() @ direction) * place).cumsum(1)
    return torch.stack([prefix[:, -1:].expand(batch, seq), prefix], dim=-1)


def same_inputs(inputs: Float[Tensor, "tokens dim"]) -> Int[Tensor, " tokens"]:
    """Numbers the tokens by input: equal vectors, up to :data:`ROUNDING` of the largest entry, have equal
    numbers.
    """
    scale = float(inputs.abs().amax()) or 1.0 if len(inputs) else 1.0
    cells = (inputs / (scale * ROUNDING)).round().to(torch.int64)
    # Sums with random weights modulo 2^64 tell the rows apart, and are sorted faster than the rows.
    weights = torch.randint(-(2**62), 2**62, cells.shape[1:], generator=fixed_generator()) * 2 + 1
    codes, group = torch.unique((cells * weights).sum(1), return_inverse=True)
    places = torch.arange(len(group))
    first = places.new_full((len(codes),), len(group)).scatter_reduce(0, group, places, "amin")
    return first.argsort().argsort()[group]  # in the order in which the inputs come


def contextual_share(
    outputs: Float[Tensor, "tokens dim"], group: Int[Tensor, " tokens"]
) -> tuple[float | None, int]:
    """Computes the share of the variance of repeated tokens that lies within groups of equal tokens.

    If only one group repeats, its variance is divided by that of all tokens instead.

    Args:
        outputs: vectors, ``[tokens, dim]``.
        group: number of the group of each token, from 0.
    Returns:
        The share, None if no group has two tokens or nothing varies, and the number of tokens in groups of at
        least two.
    """
    counts = torch.bincount(group)
    repeated = (counts > 1)[group]
    if not (used := int(repeated.sum())):
        return None, 0
    several = int((counts > 1).sum()) > 1
    x = (outputs[repeated] if several else outputs).double()
    x = x / binary_scale(x, (0, 1))
    members = x if several else x[repeated]
    _, own, sizes = torch.unique(group[repeated], return_inverse=True, return_counts=True)
    means = x.new_zeros(len(sizes), x.shape[1]).index_add(0, own, members) / sizes[:, None]
    unbiased = sizes / (sizes - 1)
    within = float(((members - means[own]).square().sum(1) * unbiased[own]).mean())
    total = float((x - x.mean(0)).square().sum(1).mean())
    return (within / total if 0 < total < float("inf") else None), used


def smallest_distance(
    outputs: Float[Tensor, "tokens dim"], group: Int[Tensor, " tokens"], context: Float[Tensor, " tokens"]
) -> tuple[float | None, int]:
    """Computes the smallest distance of two members of a group with different contexts, in units of the
    standard deviation.

    Args:
        outputs: vectors, ``[tokens, dim]``.
        group: number of the group of each token.
        context: fingerprint of the context of each token.
    Returns:
        The distance, None if no two contexts of one group differ or a number is not finite, and the number of
        pairs.
    """
    x = outputs.double()
    if x.numel() and not math.isfinite(float(x.abs().amax() + context.abs().amax())):
        return None, 0
    x = x / binary_scale(x, (0, 1))
    spread, least, pairs = float((x - x.mean(0)).square().sum(1).mean().sqrt()), float("inf"), 0
    counts = torch.bincount(group)
    for number in (counts > 1).nonzero().squeeze(1).tolist():
        rows = (group == number).nonzero().squeeze(1)[:MAX_MEMBERS]
        near = 1e-9 * float(context[rows].abs().amax())
        different = (context[rows][:, None] - context[rows]).abs() > near
        if count := int(different.sum()):
            least = min(least, _smallest_distance(x[rows], different))
            pairs += count // 2
    return (least / spread if pairs and spread > 0 else None), pairs


def _smallest_distance(x: Float[Tensor, "m dim"], pairs: Bool[Tensor, "m m"]) -> float:
    """Returns the smallest distance of these pairs of rows."""
    # The expansion of the square is fast, and small distances drown in its rounding: it finds the pairs whose
    # differences are computed.
    squares = x.square().sum(1)
    expanded = (squares[:, None] + squares - 2 * x @ x.mT).masked_fill(~pairs, math.inf)
    i, j = (expanded <= expanded.amin() + EXPANDED * squares.amax()).triu().nonzero().T
    if len(i) > len(x):
        exact = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")[pairs]
    else:
        exact = torch.linalg.vector_norm(x[i] - x[j], dim=1)
    return float(exact.amin())


class Contexts(PerModule):
    """Contextual share and smallest distance of contexts, after every block, over the first
    :data:`MAX_TOKENS` tokens.

    Attributes:
        sums: outputs of the blocks ``[tokens, dim]`` by layer and 0; at place -1 the inputs of the first
            block with two fingerprints, ``[tokens, dim + 2]``.
        finite: True for the stored tokens of sequences whose inputs are finite, ``[tokens]``.
        group, context: number of the input and fingerprint of the context of each of these; of the last call
            of :meth:`compute`.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    null_source: ClassVar = "networks"
    keeps = MAX_TOKENS
    theory, quantity, side, source = "universal", SHARE, ">=", SOURCE

    def statistics(self, activations: Activations) -> Float[Tensor, "tokens dim"] | None:
        """Returns the output of a block, and stores the input of the first block."""
        if activations.layer == 0:
            tokens = activations.tokens
            inputs = torch.cat([tokens.double().cpu(), fingerprints(tokens)], dim=-1)
            self.add(SHARED, inputs.flatten(0, 1))
        if activations.output.ndim != 3:
            return None
        # A copy: a slice would keep the whole batch in memory.
        return activations.output.flatten(0, 1)[:MAX_TOKENS].float().cpu().clone()

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns both quantities per block. The null comes from untrained networks."""
        if (inputs := self.sums.get(SHARED)) is None:
            return []
        # The first fingerprint is not finite in all tokens of a sequence with an input that is not.
        self.finite = inputs.abs().amax(1).isfinite()  # faster than a test of every entry
        inputs = inputs[self.finite]
        self.group = same_inputs(inputs[:, :-2])
        self.context = inputs[:, -1] if self._causal(inputs) else inputs[:, -2]
        return super().compute(draws=draws, generator=generator)

    def rows(
        self,
        place: Place,
        sums: Float[Tensor, "tokens dim"],
        *,
        draws: int,
        generator: torch.Generator | None,
    ) -> Iterator[Measurement]:
        """Yields both quantities of a block."""
        found: dict[str, tuple[float | None, int]] = {SHARE: (None, 0), DISTANCE: (None, 0)}
        reason, group = OTHER_TOKENS, self.group
        if len(sums) == len(self.finite):
            sums, context = sums[self.finite], self.context
            finite = sums.abs().amax(1).isfinite()
            if not bool(finite.all()):
                sums, group, context = sums[finite], group[finite], context[finite]
            found[SHARE] = contextual_share(sums, group)
            found[DISTANCE] = smallest_distance(sums, group, context)
            reason = NO_GROUPS if len(sums) else NOT_FINITE
        note = ONE_GROUP if int((torch.bincount(group) > 1).sum()) == 1 else ""
        for quantity, (value, n) in found.items():
            yield self.other_row(quantity, value, side=">=", n=n, reason=reason, note=note)

    def _causal(self, inputs: Float[Tensor, "tokens dim_and_two"]) -> bool:
        """Returns whether tokens with equal prefixes in different sequences leave the first block with equal
        vectors.
        """
        outputs = self.sums.get((0, 0))
        if outputs is None or len(outputs) != len(self.finite) or not len(inputs):
            return False
        outputs = outputs[self.finite]
        if not bool(outputs.abs().amax().isfinite()):
            return False
        if float(inputs[:, -2].max() - inputs[:, -2].min()) <= 1e-9 * float(inputs[:, -2].abs().amax()):
            return False  # all sequences are equal
        prefix = inputs[:, -1:]
        same_prefix = torch.unique(
            (prefix / (1e-9 * float(prefix.abs().amax()) or 1.0)).round(), return_inverse=True
        )[1].squeeze(1)
        joint = self.group * (int(same_prefix.max()) + 1) + same_prefix
        share, used = contextual_share(outputs, torch.unique(joint, return_inverse=True)[1])
        return used > 0 and share is not None and share < ROUNDING**2


IN_NETWORKS = InNetworks(
    metrics=lambda: (Contexts(),),
    headline=SHARE,
    side=">=",
    meaning="share of the tokens' variance that is due to the context and not to the input token; 0: the "
    "context leaves no trace",
)
