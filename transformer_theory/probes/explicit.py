r"""Recognition of attention that a model writes out as softmax(s Q K^T + mask) V, from the operations of a
forward pass.

    scores  = Q K^T             a product of two tensors [..., tokens, head_dim], neither of them a parameter
    weights = softmax(scores)
        over the last axis; before it, scaling, masks, casts and views that keep the last two axes are allowed
    output  = weights V
            the left factor; before it, dropout, masks, casts and views of the same kind are allowed

All three must occur. The softmax of a classifier, the router of a mixture of experts and pooling by learned
scores lack the product Q K^T, so they are not attention. Weights that are changed otherwise before the
product with V (heads mixed, rows normalised again) are not recognised. If V itself was computed from
another softmax of scores in the same module, as in Nystrom attention, the product is a part of a low-rank
approximation and no attention.
Source: :cite:t:`vaswani2017attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from .attention_calls import BLOCKING, is_bias
from .projections import Operand, in_order

PRODUCTS = ("matmul", "bmm", "baddbmm")
# Names of operations without underscores: "radd" is Python's __radd__, and "add" includes the in-place add_
# and __iadd__.
SCALES, SHIFTS = {"mul", "rmul", "div", "truediv"}, {"add", "radd", "sub"}
KEEPS = {
    "to",
    "type",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "contiguous",
    "clone",
    "masked_fill",
    "where",
    "nan_to_num",
}
# if the last two axes are unchanged
KEEPS |= {"view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze", "expand", "dropout"}
ON_SCORES = KEEPS | SCALES | SHIFTS | {"tanh"}
ON_WEIGHTS = KEEPS | {"mul", "rmul"}
FOLLOWED = {*PRODUCTS, "einsum", "softmax", "setitem", *ON_SCORES, *ON_WEIGHTS}
NOWHERE = Operand(None), Operand(None)


@dataclass(frozen=True)
class Scores:
    """A product of queries ``[..., q, d]`` and keys ``[..., k, d]``.

    Attributes:
        operands: nodes of queries and keys in the flow of tensors.
        scale: factor of the product; None if it is not a single number.
        biased: whether a term other than a mask was added.
        blocked: True where a mask blocked a key, of the shape of the scores; None if there was no mask.
        node: node of their softmax; None if there is none yet.
    """

    query: Float[Tensor, "..."]
    key: Float[Tensor, "..."]
    operands: tuple[Operand, Operand]
    scale: float | None = 1.0
    biased: bool = False
    blocked: Bool[Tensor, "..."] | None = None
    node: int | None = None


@dataclass(frozen=True)
class ExplicitCall:
    """One written-out attention, with the fields of
    :class:`~transformer_theory.probes.attention_calls.AttentionCall`.

    The leading axes ``lead`` are chosen by the model: ``[batch * heads]``, ``[batch, heads]`` or more.

    Attributes:
        softmax: weights that the model computed.
        scale: factor of the scores; None if it is not a single number.
        biased: whether a term other than a mask was added to the scores.
        operands: nodes of queries and keys in the flow of tensors.
    """

    query: Float[Tensor, "*lead q head_dim"]
    key: Float[Tensor, "*lead k head_dim"]
    value: Float[Tensor, "*lead k value_dim"]
    softmax: Float[Tensor, "*lead q k"]
    scale: float | None
    biased: bool
    allowed: Bool[Tensor, "*lead q k"] | None
    operands: tuple[Operand, Operand]

    def weights(self) -> Float[Tensor, "*lead q k"]:
        """Returns the weights in float32 or a wider dtype; a row without an allowed key is zero."""
        weights = self.softmax
        if weights.dtype in (torch.float16, torch.bfloat16):
            # The model rounded each weight to half precision, so the sum of a row can differ from one by
            # several thousandths.
            weights = weights.float()
            total = weights.sum(-1, keepdim=True)
            weights = torch.where(total > 0, weights / total, weights)
        return (
            weights if self.allowed is None else torch.where(self.allowed.any(-1, keepdim=True), weights, 0.0)
        )

    def heads_of(self, batch: int) -> "ExplicitCall":
        """Returns the call with leading axes ``[batch, heads]``.

        A single leading axis is split, batch first; of several leading axes the last is the heads, and the
        others are merged.
        """
        lead = self.softmax.shape[:-2]
        divides = len(lead) == 1 and batch > 0 and lead[0] % batch == 0
        shape = (batch, lead[0] // batch) if divides else (-1, lead[-1] if len(lead) > 1 else 1)
        tensors = {name: getattr(self, name) for name in ("query", "key", "value", "softmax", "allowed")}
        return replace(
            self,
            **{name: x if x is None else x.reshape(*shape, *x.shape[-2:]) for name, x in tensors.items()},
        )


class Softmaxes:
    """Follows scores and weights through the operations of a forward pass. Tensors that the model frees are
    forgotten.

    Args:
        node_of: function from a tensor to its node in :class:`.Flow`; by default no tensor has a node.
        descends: whether a node was computed from another one.
        with_weights: whether weights are needed. False: attention and its masks are recognised, but no
            weights are copied.

    Attributes:
        scores: queries, keys and scale by tensor of scores.
        weights: scores, softmax and mask by tensor of weights.
        others: number of softmaxes that have not been recognised as attention.
        low_rank: whether the last product was a part of a low-rank approximation.
        since: node of the input of the module that is running; older softmaxes do not count as its parts.
    """

    def __init__(
        self,
        node_of: Callable[[Tensor], int | None] = lambda tensor: None,
        descends: Callable[[int, int], bool] = lambda node, ancestor: False,
        *,
        with_weights: bool = True,
    ):
        self.node_of, self.descends, self.with_weights = node_of, descends, with_weights
        # The keys are weak references that are compared by identity: a dictionary must neither keep tensors
        # alive nor compare their values.
        self.scores: Any = WeakIdKeyDictionary()  # tensor -> Scores
        self.weights: Any = WeakIdKeyDictionary()  # tensor -> (Scores, softmax, allowed)
        self.others = 0
        self.low_rank = False
        self.since = -1
        self._open: set[int | None] = (
            set()
        )  # nodes of softmaxes of scores that have not completed an attention

    def concerns(self, name: str, inputs: list[Tensor]) -> bool:
        """Whether an operation may be a part of an attention."""
        if name in PRODUCTS or name in ("einsum", "softmax"):
            return True
        return bool(self.scores or self.weights) and any(
            x in self.scores or x in self.weights for x in inputs
        )

    def record(self, func: Callable, args: tuple, kwargs: dict, output: Any) -> ExplicitCall | None:
        """Records one operation of the model. Returns the call if the operation completes an attention,
        otherwise None.
        """
        name = getattr(func, "__name__", "").strip("_")
        name = name[1:] if name in ("imul", "iadd", "isub", "itruediv") else name
        operands = [*args, *kwargs.values()]
        if name == "setitem" and args[0] in self.scores:
            self.scores[args[0]] = _after_operation(self.scores[args[0]], name, args[0], operands)
        if not isinstance(output, Tensor):
            return None
        if name == "einsum":
            return self._einsum(operands, output)
        if name in PRODUCTS:
            *terms, left, right = [x for x in operands if isinstance(x, Tensor)]
            factors = Operand(self.node_of(left)), Operand(self.node_of(right), flip=True)
            call = self._product(
                left,
                right,
                right.mT if right.ndim > 2 else right,
                output,
                factors,
                scale=kwargs.get("alpha", 1.0),
            )
            if terms and kwargs.get("beta", 1.0) and output in self.scores:
                # baddbmm adds its first argument: a mask, or a bias such as ALiBi.
                self.scores[output] = _after_operation(self.scores[output], "add", output, [output, *terms])
            return call
        if name == "softmax":
            self._softmax(operands[0], kwargs.get("dim", args[1] if len(args) > 1 else None), output)
        elif name in ON_SCORES:
            self._follow(name, operands, output)
        return None

    def _product(
        self,
        left: Tensor,
        right: Tensor,
        key: Tensor,
        output: Tensor,
        factors: tuple[Operand, Operand],
        *,
        scale: float = 1.0,
    ) -> ExplicitCall | None:
        """Records a product ``left @ right`` of queries and keys, or completes a call if the left factor is a
        tensor of weights.

        Args:
            left, right: factors of the product.
            key: the right factor as keys ``[..., k, d]``.
            output: the product.
            factors: nodes of queries and keys.
            scale: number by which the product was multiplied.
        """
        record = self.weights.pop(left, None)
        if record is not None:
            scores, softmax, allowed = record
            value = self.node_of(right)
            latest = [node for node in self._open if node is not None and node > self.since]
            self.low_rank = value is not None and any(self.descends(value, node) for node in latest)
            if self.low_rank:
                return None
            self._open.discard(scores.node)
            call = _call(scores, softmax, allowed, right, left.shape[:-2])
            self.others -= call is not None
            return call
        if min(left.ndim, right.ndim) > 2 and not _is_parameter(left) and not _is_parameter(right):
            self.scores[output] = Scores(left.detach(), key.detach(), factors, float(scale))
        return None

    def _einsum(self, operands: list, output: Tensor) -> ExplicitCall | None:
        """Records an einsum of two tensors that is a product of weights and values, or of queries and keys.

        Either tensor may come first. With the letter b for the leading axes:

            weights and values bqk, bkp -> bqp sum over k; the axes of values and output may have any order
            queries and keys bqp, bkp -> bqk sum over p; the axes of queries and keys may have any order
        """
        pair = operands[1] if len(operands) == 2 and isinstance(operands[1], list | tuple) else operands[1:]
        equation = operands[0].replace(" ", "") if isinstance(operands[0], str) else ""
        inputs, _, out = equation.partition("->")
        names = inputs.split(",")
        if "." in equation or len(names) != 2 or len(out) < 3 or len(pair) != 2:
            return None
        for (a, x), (b, y) in (zip(names, pair), zip(names[::-1], pair[::-1])):
            if x in self.weights:
                lead, value_axes = a[:-2], [c for c in b if c not in a]
                if a[-1] in b and a[-2] not in b and a[-1] not in out and len(value_axes) == 1:
                    return self._product(x, in_order(y, b, lead + a[-1] + value_axes[0]), y, output, NOWHERE)
        summed = [c for c in names[0] if c in names[1] and c not in out]
        for (a, x), (b, y) in (zip(names, pair), zip(names[::-1], pair[::-1])):
            if len(summed) == 1 and out[-2] in a and out[-2] not in b and out[-1] in b and out[-1] not in a:
                # Each side: its tensor, its letters, and its letters in the order of matmul, [..., tokens,
                # head_dim].
                sides = [
                    (t, (n, out[:-2] + token_axis + summed[0]))
                    for t, n, token_axis in ((x, a, out[-2]), (y, b, out[-1]))
                ]
                query, key = (in_order(t, *letters) for t, letters in sides)
                factors = tuple(Operand(self.node_of(t), letters=letters) for t, letters in sides)
                return self._product(query, key.mT, key, output, (factors[0], factors[1]))
        return None

    def _softmax(self, scores: Tensor, dim: int | None, output: Tensor) -> None:
        """Records the softmax of a tensor of scores over its last axis; counts every other softmax."""
        record = self.scores.get(scores)
        self.others += 1
        if record is None or dim not in (-1, scores.ndim - 1):
            return
        record = replace(record, node=self.node_of(output))
        self._open.add(record.node)
        # -inf or the lowest finite number of the dtype, wherever it comes from
        allowed = ~(scores.detach() <= torch.finfo(scores.dtype).min / 2)
        if record.blocked is not None:
            allowed &= ~record.blocked
        # The weights are cloned because the model may change them in place.
        weights = output.detach().clone() if self.with_weights else output.detach()
        self.weights[output] = record, weights, None if bool(allowed.all()) else allowed

    def _follow(self, name: str, operands: list, output: Tensor) -> None:
        """Records the output of an operation on scores or weights as scores or weights."""
        for x in operands:
            if not isinstance(x, Tensor) or x.shape[-2:] != output.shape[-2:]:
                continue
            if name in ON_WEIGHTS and x in self.weights:
                self.weights[output] = self.weights[x]
                return
            if x in self.scores:
                record = _after_operation(self.scores[x], name, x, operands)
                if record.blocked is not None and record.blocked.shape != output.shape:
                    same = record.blocked.numel() == output.numel()
                    shaped = record.blocked.reshape if same else record.blocked.expand
                    record = replace(record, blocked=shaped(output.shape))
                self.scores[output] = record
                return


def _after_operation(scores: Scores, name: str, x: Tensor, operands: list) -> Scores:
    """Returns the scores after an operation that scales them, masks them, adds a term or changes nothing.

    Args:
        scores: what is known of ``x``.
        name: name of the operation.
        x: tensor of scores.
        operands: arguments of the operation, with ``x`` among them.
    """
    others = [y for y in operands if y is not x]
    other = next((y for y in others if isinstance(y, Tensor | float | int)), 1.0)
    if name in SCALES:
        number = other if isinstance(other, float | int) else float(other) if other.numel() == 1 else None
        if number is None or scores.scale is None:
            return replace(scores, scale=None)
        return replace(scores, scale=scores.scale * number if "mul" in name else scores.scale / number)
    # softmax does not change if a number is added to all scores
    if name in SHIFTS and isinstance(other, Tensor):
        if not other.is_floating_point():
            return replace(scores, biased=True)
        term = -other.detach() if name == "sub" and operands[0] is x else other.detach()
        scores = replace(scores, biased=scores.biased or is_bias(term))
        return _blocking(scores, term <= BLOCKING, x)
    if name in ("masked_fill", "where", "setitem") and len(others) == 2:
        where, value = others
        if name == "setitem":
            term = torch.zeros_like(x)
            term[where] = value
            return _blocking(scores, term <= BLOCKING, x)
        if name == "where" and operands[-1] is not x:  # the scores stay where the condition holds
            where = ~where
        blocks = value <= BLOCKING
        return _blocking(scores, where & blocks, x) if isinstance(blocks, Tensor) or blocks else scores
    return replace(scores, scale=None) if name == "tanh" else scores


def _blocking(scores: Scores, blocked: Bool[Tensor, "..."], x: Tensor) -> Scores:
    """Returns the scores with further blocked keys."""
    if not bool(blocked.any()):
        return scores
    before = False if scores.blocked is None else scores.blocked
    return replace(scores, blocked=(blocked | before).expand(x.shape))


def _call(
    scores: Scores, softmax: Tensor, allowed: Tensor | None, value: Tensor, lead: torch.Size
) -> ExplicitCall | None:
    """Creates the call, with the leading axes ``lead`` in all its tensors; None if the shapes do
    not match.
    """
    common = torch.broadcast_shapes(scores.query.shape[:-2], scores.key.shape[:-2])
    if value.ndim < 3 or common.numel() != lead.numel() or softmax.shape[:-2].numel() != lead.numel():
        return None
    query, key = (
        x.expand(*common, *x.shape[-2:]).reshape(*lead, *x.shape[-2:]) for x in (scores.query, scores.key)
    )
    values = value.detach().expand(*lead, *value.shape[-2:])
    mask = None if allowed is None else allowed.reshape(*lead, *softmax.shape[-2:])
    weights = softmax.reshape(*lead, *softmax.shape[-2:])
    return ExplicitCall(query, key, values, weights, scores.scale, scores.biased, mask, scores.operands)


def _is_parameter(x: Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one."""
    return isinstance(x, nn.Parameter) or isinstance(getattr(x, "_base", None), nn.Parameter)
