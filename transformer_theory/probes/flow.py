"""The flow of tensors through one forward pass: which tensor was computed from which, and how.

Every operation of the model becomes a node, a number, with the nodes of its arguments as parents; a ``TorchFunctionMode`` passes the
operations in (:mod:`.forward_pass`). No tensor is kept alive: a node is found by the identity of its tensor, checked by a weak reference.

    parents   of each node, by number; an older node has a smaller number
    root      the oldest node with the same content, up to views, casts, dropout and factors (:data:`SAME_STREAM`)
    taint     bit c is set if the node was computed from the output of attention c
    steps     how the entries of a node were moved, for those computed from one product with a parameter (:mod:`.projections`)

Parameters, and whatever is computed from parameters alone, have the number :data:`PARAMETER`.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

PARAMETER = -1
MOVES = {"view", "reshape", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "mT", "T", "unbind", "chunk"}
MOVES |= {"split", "getitem", "split_with_sizes", "tensor_split", "unsqueeze", "squeeze", "expand", "expand_as", "repeat_interleave"}
MOVES |= {"contiguous", "flatten", "unflatten", "clone", "narrow", "select", "view_as", "reshape_as", "roll"}
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "detach", "alias", "dropout"}  # same entries in the same places
JOINS = {"cat", "concat", "concatenate", "stack"}
SAME_STREAM = CASTS | {"contiguous", "clone", "view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "view_as"}
PLAIN = {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "multiply": "mul"}
PLAIN |= {"itruediv": "div", "truediv": "div", "divide": "div"}
IN_PLACE = {"__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__"}


@dataclass(frozen=True)
class Operation:
    """A function of torch: its name without underscores (``add`` for ``__iadd__``), and whether it changes its first argument."""

    name: str
    in_place: bool


@lru_cache(maxsize=4096)
def operation(function: Callable) -> Operation:
    """Name and kind of a function of torch; the getters of attributes such as ``x.mT`` have the attribute's name."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return Operation(getattr(getattr(function, "__self__", None), "__name__", ""), False)
    plain = name.strip("_")
    return Operation(PLAIN.get(plain, plain), name in IN_PLACE or (name.endswith("_") and not name.startswith("__")))


@dataclass(slots=True)
class Step:
    """How a node came from its parent.

    Attributes:
        parent: node of the tensor that was moved, cast or multiplied by a number; of a projection, of its input.
        function, args, kwargs: the operation that moved the entries, without its tensor; no function if every entry kept its place.
        part: which of several outputs of the function.
        factor: number by which the entries were multiplied.
        joined: nodes of the parts, of a concatenation.
        weight: matrix ``[out, in]`` if this is a projection, a product of tokens with a parameter.
        tokens: input of the projection, while the module that called it runs.
        shape: of the node.
    """

    parent: int
    function: Callable | None = None
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    part: int | None = None
    factor: float = 1.0
    joined: tuple[int, ...] = ()
    weight: Tensor | None = None
    tokens: Tensor | None = None
    shape: tuple[int, ...] = ()


class Flow:
    """Nodes, roots, taint and steps of one forward pass.

    Args:
        with_steps: whether steps are recorded; they are needed for the bilinear form and the order of heads only.
    """

    def __init__(self, *, with_steps: bool):
        self.with_steps = with_steps
        self.parents: list[tuple[int, ...]] = []
        self.root: list[int] = []
        self.taint: list[int] = []
        self.steps: dict[int, Step] = {}
        self.factors: dict[int, float] = {}  # of nodes that are a number times their parent
        self._references: list[weakref.ref] = []
        self._nodes: dict[int, tuple[weakref.ref, int]] = {}

    def known(self, tensor: Tensor) -> int | None:
        """The node of a tensor, None if no operation made it or used it so far."""
        entry = self._nodes.get(id(tensor))
        # Python reuses the identity of a dead tensor, so the reference must still lead to this one.
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def node(self, tensor: Tensor) -> int:
        """The node of a tensor, a new one without parents if it is unknown."""
        number = self.known(tensor)
        if number is not None:
            return number
        if isinstance(tensor, nn.Parameter):
            return self._register(tensor, PARAMETER)
        return self.add(tensor, ())

    def add(self, tensor: Tensor, parents: tuple[int, ...], root: int | None = None) -> int:
        """A new node for a tensor, also if it had one before an operation in place."""
        number = len(self.parents)
        self.parents.append(parents)
        self.root.append(number if root is None else self.root[root])
        taint = 0
        for parent in parents:
            taint |= self.taint[parent]
        self.taint.append(taint)
        self._register(tensor, number)
        self._references.append(self._nodes[id(tensor)][0])
        return number

    def _register(self, tensor: Tensor, number: int) -> int:
        self._nodes[id(tensor)] = weakref.ref(tensor), number
        return number

    def tensor(self, node: int) -> Tensor | None:
        """The tensor of a node, None if it is gone or was changed in place since."""
        tensor = self._references[node]() if node >= 0 else None
        return tensor if tensor is not None and self.known(tensor) == node else None

    def descends(self, node: int, ancestor: int) -> bool:
        """Whether a node was computed from another one, or has the same content.

        The search goes backwards and never below the root of the ancestor, so it visits only what was computed in between.
        """
        target, visited, todo = self.root[ancestor], set(), [node]
        while todo:
            current = todo.pop()
            if self.root[current] == target:
                return True
            for parent in self.parents[current]:
                if parent >= target and parent not in visited:
                    visited.add(parent)
                    todo.append(parent)
        return False

    def record(
        self,
        op: Operation,
        function: Callable,
        args: tuple,
        kwargs: dict,
        nodes: list[int],
        inputs: list[Tensor],
        output: Any,
        *,
        in_place: bool,
    ) -> None:
        """Adds the outputs of one operation.

        Args:
            op, function, args, kwargs: the operation.
            nodes: of the tensors among the arguments, before the operation ran.
            inputs: these tensors.
            output: of the operation.
            in_place: whether it changed its first argument.
        """
        several = not isinstance(output, Tensor)
        outputs = inputs[:1] if op.name == "setitem" else [x for x in output if isinstance(x, Tensor)] if several else [output]
        parents = tuple(dict.fromkeys(node for node in nodes if node >= 0))
        if inputs and not parents:
            for tensor in outputs:
                self._register(tensor, PARAMETER)
            return
        factor = factor_of(op.name, args)
        same = len(parents) == 1 and (factor is not None or op.name in SAME_STREAM)
        for part, tensor in enumerate(outputs):
            if not in_place and any(tensor is x for x in inputs):
                continue  # contiguous() and to() may return their argument
            node = self.add(tensor, parents, parents[0] if same else None)
            if factor is not None:
                self.factors[node] = factor
            if self.with_steps and not in_place and args:
                step = self._step(op.name, function, args, kwargs, nodes, inputs)
                if step is not None:
                    step.part, step.shape = part if several else None, tuple(tensor.shape)
                    self.steps[node] = step

    def _step(self, name: str, function: Callable, args: tuple, kwargs: dict, nodes: list[int], inputs: list[Tensor]) -> Step | None:
        """How the output of an operation came from its first argument; None if its entries were not just moved, cast or scaled."""
        if name in JOINS:
            # An empty part, such as a cache at its start, adds nothing.
            parts = [node for node, x in zip(nodes, inputs) if x.numel() or name == "stack"]
            if len(parts) == 1 and name != "stack":
                return Step(parts[0])
            if not parts or not all(node in self.steps for node in parts):
                return None
            rest = {key: value for key, value in kwargs.items() if key != "tensors"}
            return Step(parts[0], function, args[1:], rest, joined=tuple(parts))
        if not inputs or (args[0] is not inputs[0] and name != "addmm"):
            return None
        projection = _projection(name, inputs, nodes)
        if projection is not None:
            source, weight, tokens = projection
            return Step(source, weight=weight.detach(), tokens=tokens.detach())
        if nodes[0] < 0:
            return None
        if name in MOVES and len(inputs) == 1:
            return Step(nodes[0], function, args[1:], kwargs)
        if name in CASTS:
            return Step(nodes[0])
        factor = factor_of(name, args)
        return None if factor is None else Step(nodes[0], factor=factor)


def _projection(name: str, inputs: list[Tensor], nodes: list[int]) -> tuple[int, Tensor, Tensor] | None:
    """Of a product of tokens with a parameter: the node of the tokens, the matrix ``[out, in]``, the tokens."""
    if name == "linear" and nodes[1] == PARAMETER and inputs[0].is_floating_point():
        return nodes[0], inputs[1], inputs[0]
    if name == "addmm" and len(inputs) == 3 and nodes[2] == PARAMETER:  # bias + x @ weight, as in the Conv1D of transformers
        return nodes[1], inputs[2].mT, inputs[1]
    if name == "matmul" and len(inputs) == 2 and nodes[1] == PARAMETER and inputs[1].ndim == 2:
        return nodes[0], inputs[1].mT, inputs[0]
    return None


def factor_of(name: str, args: tuple) -> float | None:
    """The number by which an operation multiplies a tensor, None if it does something else."""
    if name not in ("mul", "div") or len(args) != 2:
        return None
    number = next((x for x in args if isinstance(x, float | int)), None)
    if number is None or (name == "div" and args[0] is number) or not number:
        return None
    return float(number) if name == "mul" else 1 / float(number)


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """All tensors in arguments, also inside tuples, lists and mappings."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())
