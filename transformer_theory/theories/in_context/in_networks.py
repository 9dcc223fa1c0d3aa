r"""Learning in context in trained networks: how affine their attention is, and how much a language model
gains from its context.

* *Dual share*, for each head of any network: the squared cosine of the heads' outputs, without the mean of
  the values, with :func:`.dual_part`, the first order in the scores, over all queries. It is 1 where
  attention is the update of a linear layer. The null exchanges the scores of the queries, and keeps what all
  queries share: where a bias of the keys dominates, it nearly equals the value. Biases that are added to the
  products of queries and keys, as in ALiBi, are not counted as scores.
* *In-context score*, for models of ids: the loss (nats) of the same tokens late in a sequence minus early. A
  sequence is cut into a context C and a block B, the last quarter; the model reads C B and B C. For the null,
  C is the context of another sequence: what remains is the effect of position and of any context.
  :cite:t:`olsson2022incontext` compare token 500 with token 50 of different text; here the tokens are the
  same. In a test of a network (:func:`paired_contexts`) each block is read behind the contexts of up to eight
  sequences, its own among them. If the contexts have nothing to do with the blocks, all ways to give each
  block one of these contexts are equally probable: the scores with permuted contexts are the null, an exact
  permutation test whose draws cost no forward pass.

Models that answer prompts of regression are measured by :func:`.slope_on_step`.
Source: :cite:t:`dai2023why`, :cite:t:`olsson2022incontext`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from ...core.measurement import Measurement
from ...core.metric import ALL, ActivationKind, Activations, PerHead, PerModule, Place
from ...core.sources import Source
from ...core.statistics import DATA_DRAWS, RANGE_DRAWS, fixed_generator, permutations
from ...core.theory import InNetworks, Response
from ...core.validation import integers
from .dual import dual_part
from .references import NAME

DUAL, SCORE = "dual share of attention outputs", "in-context score"
NULL_KIND, OTHER_CONTEXTS = "scores of other queries", "contexts of other sequences"
# tokens of a sequence; sequences of a response, and of a group that exchanges its contexts; draws of a null
# with inputs of its own; label without loss
SHORTEST, SEQUENCES, GROUP, DRAWS, IGNORED = 8, 16, 8, 4, -100
DECIMALS = 9  # of a score in nats, to which it is rounded


class DualShare(PerHead):
    """The dual share of each head. Keys without finite scores, sequences whose outputs are not finite, and
    heads whose outputs do not vary, are left out.
    """

    theory, quantity, unit, side = NAME, DUAL, "share", ">="
    source, null_kind = Source("dai2023why", status="own"), NULL_KIND

    def statistics(self, activations: Activations) -> Float[Tensor, "heads k"] | None:
        """Returns the squared size of the outputs, then for the value and for each draw the inner product
        with the dual part and the squared size of the dual part. Modules with unknown queries, keys or
        values, or fewer heads of keys (grouped queries), are skipped.
        """
        query, key, value, weights = (
            activations.query,
            activations.key,
            activations.value,
            activations.weights,
        )
        if query is None or key is None or value is None or weights is None or query.shape[1] != key.shape[1]:
            return None
        if value.shape[:3] != key.shape[:3] or weights.shape != (*query.shape[:3], key.shape[2]):
            return None
        precision = torch.promote_types(query.dtype, torch.float32)
        q, k, v = (each.to(precision) for each in (query, key, value))
        centred = v - v.mean(2, keepdim=True)
        # The weights of a query sum to 1, so the mean of the values drops out.
        output = weights.to(precision) @ centred
        k = k - k.mean(2, keepdim=True)
        # (Q K^T) V = Q (K^T V): the scores themselves are needed under a mask alone
        product = q @ k.mT if activations.mask is not None else q @ (k.mT @ centred)
        numbers = torch.stack([product.sum(), output.sum(), v.sum(), weights.sum().to(precision)])
        if bool(numbers.isfinite().all()):
            orders = self._orders(torch.arange(q.shape[2], device=q.device))
            if activations.mask is not None:
                return _masked(output, product, centred, activations.mask, orders).cpu()
            return _exchanged(output, product.div_(key.shape[2]), orders).cpu()
        scores, v = (query.to(precision) @ key.to(precision).mT).double(), value.double()
        mask = (
            torch.ones_like(scores, dtype=torch.bool)
            if activations.mask is None
            else activations.mask.expand_as(scores)
        )
        mask = mask & scores.isfinite()
        mean = mask.double() / mask.sum(-1, keepdim=True).clamp(min=1) @ v
        output = torch.where(mask.any(-1, keepdim=True), weights.double() @ v - mean, 0.0)
        # of weights that are not finite, the scores are not, and no key is left
        finite = (output + v.sum(2, keepdim=True)).isfinite().flatten(1).all(1) & weights.sum(
            (1, 2, 3)
        ).isfinite()
        if not bool(finite.any()):
            return None
        if not bool(finite.all()):
            output, v, mask, scores = output[finite], v[finite], mask[finite], scores[finite]
        queries, scores = (
            torch.arange(scores.shape[2], device=scores.device),
            scores.nan_to_num(0.0, 0.0, 0.0),
        )
        orders = self._orders(queries)
        if bool((mask == mask[:, :, :1]).all()):
            return _exchanged(output, dual_part(scores, v, mask), orders).cpu()
        parts = [output.square().sum((0, 2, 3))]
        for rows in orders:
            dual = dual_part(scores[:, :, rows], v, mask)
            parts += [(output * dual).sum((0, 2, 3)), dual.square().sum((0, 2, 3))]
        return torch.stack(parts, dim=1).cpu()

    def _orders(self, queries: Int[Tensor, " q"]) -> tuple[Int[Tensor, " q"], ...]:
        """Returns the order of the queries of the value, and those of the draws."""
        drawn = permutations(len(queries), min(self.draws, RANGE_DRAWS))
        return queries, *drawn.to(queries.device)

    def rows_of_head(self, sums: Float[Tensor, " k"], *, draws: int) -> Iterator[Measurement]:
        """Yields the share of one head, without the draws in which it is not defined."""
        size, *others = sums.tolist()
        products = zip(others[::2], others[1::2])
        value, *chance = [inner**2 / (size * dual) if size * dual > 0 else None for inner, dual in products]
        if value is None:
            yield self.row(None, reason="the outputs of the head do not depend on its scores")
        else:
            yield self.row(value, draws=[each for each in chance[:draws] if each is not None])


def _exchanged(
    output: Float[Tensor, "n h q v"], dual: Float[Tensor, "n h q v"], orders: Sequence[Int[Tensor, " q"]]
) -> Float[Tensor, "h k"]:
    """Returns what :meth:`DualShare.statistics` does. A query's dual part depends on its own scores and keys
    alone. If all queries have the same keys, exchanged scores have exchanged parts.
    """
    size = dual.square().sum((0, 2, 3), dtype=torch.float64)
    parts = [output.square().sum((0, 2, 3), dtype=torch.float64)]
    if len(orders) == 1:
        parts += [(output * dual).sum((0, 2, 3), dtype=torch.float64), size]
    else:
        products = torch.einsum("nhqv,nhpv->hqp", output, dual).double()
        for rows in orders:
            parts += [products[:, orders[0], rows].sum(-1), size]
    return torch.stack(parts, dim=1)


def _masked(
    output: Float[Tensor, "n h q v"],
    scores: Float[Tensor, "n h q k"],
    value: Float[Tensor, "n h k v"],
    mask: Bool[Tensor, "#n #h #q k"],
    orders: Sequence[Int[Tensor, " q"]],
) -> Float[Tensor, "h sums"]:
    """Returns what :meth:`DualShare.statistics` does, of finite numbers. The dual part of a query is that of
    :func:`.dual_part`, of its scores and allowed keys; constants that are added to all its scores or to all
    values change nothing.
    """
    allowed = mask.to(scores.dtype)
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    mean = (allowed / count) @ value
    output = (output - mean).mul_(mask.any(-1, keepdim=True))
    # one product gives the sums of the scores, too
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)

    if mask.shape[2] == 1:
        return _exchanged(output, _centred_product(scores * allowed, value, mean).div_(count), orders)
    parts, kept = [output.square().sum((0, 2, 3), dtype=torch.float64)], torch.empty_like(scores)
    for rows in orders:
        torch.index_select(scores, 2, rows, out=kept).mul_(allowed)
        found = _centred_product(kept, value, mean).div_(count)
        inner = (output * found).sum((0, 2, 3), dtype=torch.float64)
        parts += [inner, found.square_().sum((0, 2, 3), dtype=torch.float64)]
    return torch.stack(parts, dim=1)


def _centred_product(
    scores: Float[Tensor, "n h q k"], value: Float[Tensor, "n h k columns"], mean: Float[Tensor, "n h #q v"]
) -> Float[Tensor, "n h q v"]:
    """Returns the sum of the scores times the values less their mean. The last column of ``value`` is 1."""
    sums = scores @ value
    return sums[..., :-1] - sums[..., -1:] * mean


class InContextScore(PerModule):
    """Loss of the targets in the second half of the positions minus that in the first half, in nats; targets
    below 0 are ignored.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)
    theory, quantity, unit, side = NAME, SCORE, "nats", "<="
    source = Source("olsson2022incontext", status="own")

    def statistics(self, activations: Activations) -> Float[Tensor, "4"] | None:
        """Returns the sum and the number of the losses in the second half, and in the first; None without
        targets.

        Raises:
            ValueError: the outputs are not logits ``[n, seq, vocabulary]`` of the targets' shape, or have too
                few ids.
        """
        outputs, targets = activations.outputs, activations.targets
        return None if outputs is None or targets is None else _losses(outputs, targets).sum(0)

    def rows(
        self, place: Place, sums: Float[Tensor, "4"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row."""
        late, late_count, early, early_count = sums.tolist()
        if late_count > 0 and early_count > 0:
            yield self.row(late / late_count - early / early_count)
        else:
            yield self.row(None, reason="no targets in one half of the positions")


class PermutedContexts(PerModule):
    """The in-context score with the own contexts, and with permuted ones as its null, from the inputs of
    :func:`paired_contexts`.

    Attributes:
        sums: for each sequence the numbers of its block and of the sequence of its context, and the sum and
            the number of the losses in the second half of the positions and in the first, ``[rows, 6]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)
    keeps: ClassVar[int] = ALL
    theory, quantity, unit, side = NAME, SCORE, "nats", "<="
    source, null_kind = InContextScore.source, OTHER_CONTEXTS

    def statistics(self, activations: Activations) -> Float[Tensor, "rows 6"] | None:
        """Returns the statistics of one forward pass; None without targets.

        Raises:
            ValueError: see :meth:`InContextScore.statistics`.
        """
        outputs, targets = activations.outputs, activations.targets
        if outputs is None or targets is None:
            return None
        return torch.cat([targets[:, :2].double().cpu(), _losses(outputs, targets[:, 2:])], dim=1)

    def rows(
        self, place: Place, sums: Float[Tensor, "rows 6"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row. Every block has as many targets, so that the score is a mean over blocks."""
        block, context = sums[:, :2].long().T
        late, late_count, early, early_count = sums[:, 2:].T
        n, last = 1 + int(block.max()), late_count > 0
        # losses of block i behind context j, of pairs in one group
        behind = torch.zeros(n, n, dtype=torch.float64)
        behind[block[last], context[last]] = late[last] / late_count[last]
        generator = fixed_generator() if generator is None else generator
        found = torch.zeros(1 + draws, dtype=torch.float64)
        for group in _groups(n):
            keys = torch.rand(draws, len(group), generator=generator, dtype=torch.float64)
            orders = torch.cat([group[None], group[keys.argsort(1)]])  # the own contexts first
            found += behind[group, orders].sum(1) / n
        # sums of the same losses in another order are equal
        value, *permuted = (found - early.sum() / early_count.sum()).round(decimals=DECIMALS).tolist()
        if sums.isfinite().all():
            yield self.row(value, n=n, draws=permuted)
        else:
            yield self.row(None, reason="losses are infinite or NaN", n=n)


def _losses(
    outputs: Float[Tensor, "n seq vocabulary"], targets: Int[Tensor, "n seq"]
) -> Float[Tensor, "n 4"]:
    """Returns for each sequence the sum and the number of the losses in the second half, and in the first.

    Raises:
        ValueError: see :meth:`InContextScore.statistics`.
    """
    if outputs.ndim != 3 or outputs.shape[:2] != targets.shape:
        shapes = f"{list(outputs.shape)} for targets {list(targets.shape)}"
        raise ValueError(
            f"the in-context score needs logits [n, seq, vocabulary], got {shapes}; pass a language "
            "model of ids"
        )
    if int(targets.max()) >= outputs.shape[-1]:
        raise ValueError(
            f"targets must lie below the vocabulary, {outputs.shape[-1]} ids, got {int(targets.max())}; "
            "recode the ids"
        )
    valid = targets >= 0
    losses = torch.zeros(targets.shape, dtype=torch.float64, device=outputs.device)
    losses[valid] = cross_entropy(outputs[valid].double(), targets[valid].long(), reduction="none")
    late = torch.arange(targets.shape[1], device=targets.device) >= targets.shape[1] // 2
    parts = [part[:, chosen].sum(1).double() for chosen in (late, ~late) for part in (losses, valid)]
    return torch.stack(parts, dim=1).cpu()


def _groups(n: int) -> tuple[Int[Tensor, " group"], ...]:
    """Divides n sequences into groups of equal size, up to one, of at most :data:`GROUP`."""
    return torch.arange(n).tensor_split(-(-n // GROUP))


def paired_contexts(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the inputs of :class:`PermutedContexts` from those of :func:`own_context` or
    :func:`repeated_context`: the sequences B C, and C B for every block B and context C of a group.

    Targets are ``[rows, 2 + seq]``: the number of the block, that of the context, and the next ids.
    """
    value, targets = inputs["value"], inputs["targets"]
    n = len(value) // 2
    size = int((targets[n:] >= 0).sum(1)[0]) + 1
    pairs = torch.cat([torch.cartesian_prod(group, group) for group in _groups(n)])
    block, context = pairs.T
    rows = torch.cat([value[context, :-size], value[block, -size:]], dim=1)
    own = torch.arange(n)
    numbers = torch.stack([torch.cat([block, own]), torch.cat([context, own])], dim=1)
    return {
        "value": torch.cat([rows, value[n:]]),
        "targets": torch.cat([numbers, torch.cat([targets[block], targets[n:]])], dim=1),
    }


def _inputs(context: Tensor, block: Tensor, generator: Generator, draws: int) -> dict[str, Any]:
    """Returns the sequences C B and B C with the targets of the block, and the same with contexts of other
    sequences.
    """
    integers(minimum=0, draws=draws)
    n, size, seq = len(block), block.shape[1], context.shape[1] + block.shape[1]
    targets = torch.full((2 * n, seq), IGNORED)
    # the first token of the block has no context in B C
    targets[:n, seq - size : seq - 1] = targets[n:, : size - 1] = block[:, 1:]
    shifts = 1 + torch.randperm(n - 1, generator=generator)[:draws]
    contexts = (context, *(context.roll(int(shift), 0) for shift in shifts))
    value, *null = (
        torch.cat([torch.cat([each, block], dim=1), torch.cat([block, each], dim=1)]) for each in contexts
    )
    return {"value": value, "null": null, "targets": targets}


def _fitting(
    data: Int[Tensor, "n seq"], limits: Mapping[str, int], sequences: int
) -> Int[Tensor, "kept length"]:
    """Returns as many sequences and tokens as the limits allow, ``[kept, length]``.

    Raises:
        ValueError: the data are no ids, or there are too few sequences or tokens.
    """
    if data.is_floating_point() or data.dtype == torch.bool or data.ndim != 2:
        raise ValueError(
            f"the in-context score needs ids [n, seq], got {data.dtype} {list(data.shape)}; pass ids of a "
            "language model"
        )
    length = min(data.shape[1], limits.get("length", data.shape[1]))
    data = data[: min(sequences, limits.get("sequences", len(data))), :length]
    if len(data) < 2 or length < SHORTEST:
        raise ValueError(
            f"the in-context score needs 2 sequences of {SHORTEST} ids, got {len(data)} of {length}; pass "
            "more or longer ones"
        )
    if int(data.min()) < 0:
        raise ValueError(f"ids must be at least 0, got {int(data.min())}; recode the ids")
    if (vocabulary := limits.get("vocabulary")) is not None and int(data.max()) >= vocabulary:
        raise ValueError(
            f"ids must lie below the vocabulary, {vocabulary}, got {int(data.max())}; recode the ids"
        )
    return data


def own_context(
    data: Int[Tensor, "n seq"],
    limits: Mapping[str, int],
    generator: Generator,
    *,
    draws: int = DRAWS,
    sequences: int | None = None,
) -> dict[str, Any]:
    """Makes the inputs of the in-context score of sequences ``[n, seq]``.

    Args:
        data: ids of the user, at least two sequences of 8 tokens.
        limits: "length", "sequences" and "vocabulary" of the model.
        generator: draws the contexts of the null.
        draws: largest number of draws of the null; n sequences give at most n - 1.
        sequences: number of sequences; None: all.
    Raises:
        ValueError: the data are no ids, or there are too few sequences or tokens, or the number of draws is
            negative.
    """
    data = _fitting(data, limits, len(data) if sequences is None else sequences)
    size = data.shape[1] // 4
    return _inputs(data[:, : data.shape[1] - size], data[:, data.shape[1] - size :], generator, draws)


def repeated_context(
    data: Int[Tensor, "n seq"], limits: Mapping[str, int], generator: Generator, *, draws: int = DRAWS
) -> dict[str, Any]:
    """Makes the inputs of the in-context score of a block of different random ids that its context holds
    once; see :func:`own_context`.

    Raises:
        ValueError: the vocabulary is smaller than a block needs, or the data do not fit.
    """
    data = _fitting(data, limits, SEQUENCES)
    n, size = len(data), data.shape[1] // 4
    vocabulary = limits.get("vocabulary", 1 + int(data.max()))
    if vocabulary < size:
        raise ValueError(
            f"the vocabulary must hold {size} different ids for a block, got {vocabulary}; pass shorter "
            "sequences"
        )
    blocks = torch.rand(n, vocabulary, generator=generator).argsort(1)[:, :size]
    filler = torch.randint(vocabulary, (n, data.shape[1] - 2 * size), generator=generator)
    return _inputs(torch.cat([filler, blocks], dim=1).to(data.dtype), blocks.to(data.dtype), generator, draws)


def permuted() -> tuple[PermutedContexts, ...]:
    """Returns the metric of the responses."""
    return (PermutedContexts(),)


def own_pairs(data: Int[Tensor, "n seq"], limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns the inputs of the response with the own contexts."""
    return paired_contexts(own_context(data, limits, generator, draws=0, sequences=SEQUENCES))


def repeated_pairs(
    data: Int[Tensor, "n seq"], limits: Mapping[str, int], generator: Generator
) -> dict[str, Any]:
    """Returns the inputs of the response with repeated blocks."""
    return paired_contexts(repeated_context(data, limits, generator, draws=0))


IN_NETWORKS = InNetworks(
    metrics=lambda: (DualShare(),),
    headline=DUAL,
    side=None,
    responses=(
        Response("own context", own_pairs, permuted, reads="ids", draws=DATA_DRAWS),
        Response("repeated block", repeated_pairs, permuted, reads="ids", draws=DATA_DRAWS),
    ),
    meaning="squared cosine of a head's outputs to their first order in the scores; 1: attention acts like "
    "the update of a linear layer",
)
