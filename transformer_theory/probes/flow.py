"""The graph of the tensors of one forward pass: from which tensors, and by which operation, each tensor was
computed.

Every output of an operation becomes a node with a number; its parents are the nodes of the arguments.
:mod:`.forward_pass` reports the operations, which it receives as a ``TorchFunctionMode``. The graph keeps no
tensor alive: it finds the node of a tensor by ``id``, and a weak reference confirms that the tensor is the
same.

    parents   numbers of the parents of each node; an older node has a smaller number
    root      the oldest node with the same content, up to views, casts,
              dropout and factors (:data:`SAME_STREAM`)
    taint     a bit mask: bit c is set if the node was computed from the output of attention c
    steps     how the entries of a node were moved;
              only for nodes computed from one product with a parameter (:mod:`.projections`)

Parameters, and tensors computed from parameters alone, have the number :data:`PARAMETER`.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

PARAMETER = -1
MOVES = {
    "view",
    "reshape",
    "permute",
    "transpose",
    "swapaxes",
    "swapdims",
    "movedim",
    "moveaxis",
    "t",
    "mT",
    "T",
    "unbind",
    "chunk",
}
MOVES |= {
    "split",
    "getitem",
    "split_with_sizes",
    "tensor_split",
    "unsqueeze",
    "squeeze",
    "expand",
    "expand_as",
    "repeat_interleave",
}
MOVES |= {"contiguous", "flatten", "unflatten", "clone", "narrow", "select", "view_as", "reshape_as", "roll"}
# same entries in the same places
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "detach", "alias", "dropout"}
JOINS = {"cat", "concat", "concatenate", "stack"}
SAME_STREAM = CASTS | {
    "contiguous",
    "clone",
    "view",
    "reshape",
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "view_as",
}
PLAIN = {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "multiply": "mul"}
PLAIN |= {"itruediv": "div", "truediv": "div", "divide": "div"}
IN_PLACE = {"__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__"}


@dataclass(frozen=True)
class Operation:
    """A function of torch.

    Attributes:
        name: name without underscores, the same for all forms of an operation (``add`` for ``__iadd__``).
        in_place: whether the function changes its first argument.
    """

    name: str
    in_place: bool


@lru_cache(maxsize=4096)
def operation(function: Callable) -> Operation:
    """Returns the name and kind of a function of torch. The getter of an attribute, such as ``x.mT``, has the
    name of the attribute.
    """
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return Operation(getattr(getattr(function, "__self__", None), "__name__", ""), False)
    plain = name.strip("_")
    # By torch's convention, a single trailing underscore marks a function that works in place (add_).
    return Operation(
        PLAIN.get(plain, plain), name in IN_PLACE or (name.endswith("_") and not name.startswith("__"))
    )


@dataclass(slots=True)
class Step:
    """One operation on the way from a projection (a product of tokens with a parameter) to queries or keys.

    Attributes:
        parent: node of the tensor that was moved, cast or multiplied by a number; for a projection, the node
            of its input.
        function, args, kwargs: the operation that moved the entries, without its first argument. None if it
            changed no position.
        part: index of the output, if the function returns several tensors.
        factor: number by which the entries were multiplied.
        joined: nodes of the parts of a concatenation; empty for other operations.
        weight: matrix ``[out, in]`` of a projection; None for other operations.
        tokens: input of the projection, kept while the module that called it runs.
        shape: shape of the output.
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
        with_steps: whether to record steps, which only the bilinear form and the order of heads require.
    """

    def __init__(self, *, with_steps: bool):
        self.with_steps = with_steps
        self.parents: list[tuple[int, ...]] = []
        self.root: list[int] = []
        self.taint: list[int] = []
        self._given: list[bool] = []
        self.steps: dict[int, Step] = {}
        self.factors: dict[int, float] = {}  # node -> number by which its parent was multiplied
        self._references: list[weakref.ref] = []
        self._nodes: dict[int, tuple[weakref.ref, int]] = {}

    def known(self, tensor: Tensor) -> int | None:
        """Returns the node of a tensor; None if no operation has created or used the tensor."""
        entry = self._nodes.get(id(tensor))
        # Python reuses the id of a deleted object: the weak reference tells whether the entry belongs to this
        # tensor.
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def node(self, tensor: Tensor) -> int:
        """Returns the node of a tensor. An unknown tensor gets a new node without parents, a parameter gets
        :data:`PARAMETER`.
        """
        number = self.known(tensor)
        if number is not None:
            return number
        if isinstance(tensor, nn.Parameter):
            return self._register(tensor, PARAMETER)
        return self.add(tensor, ())

    def is_given(self, node: int) -> bool:
        """Whether a node was computed from an input of the network."""
        return node >= 0 and self._given[node]

    def add(
        self, tensor: Tensor, parents: tuple[int, ...], root: int | None = None, *, given: bool = False
    ) -> int:
        """Adds a node for a tensor and returns its number. After an in-place operation the new node replaces
        the old one.

        Args:
            tensor: output of the operation.
            parents: nodes of the arguments.
            root: node with the same content. None: the new node is its own root.
            given: whether the tensor is an input of the network.
        """
        number = len(self.parents)
        self._given.append(given or any(self._given[parent] for parent in parents))
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
        """Returns the tensor of a node; None if the tensor was deleted or has been changed in place since."""
        tensor = self._references[node]() if node >= 0 else None
        return tensor if tensor is not None and self.known(tensor) == node else None

    def descends(self, node: int, ancestor: int) -> bool:
        """Whether a node was computed from another node, or has the same content.

        The search follows parents backwards. Numbers increase with time, so it skips nodes older than the
        root of the ancestor.
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
            op, function, args, kwargs: the operation and its arguments.
            nodes: nodes of the tensors among the arguments, from before the operation ran.
            inputs: the tensors among the arguments.
            output: output of the operation.
            in_place: whether the operation changed its first argument.
        """
        several = not isinstance(output, Tensor)
        outputs = (
            inputs[:1]
            if op.name == "setitem"
            else [x for x in output if isinstance(x, Tensor)]
            if several
            else [output]
        )
        parents = tuple(dict.fromkeys(node for node in nodes if node >= 0))
        if inputs and not parents:
            for tensor in outputs:
                self._register(tensor, PARAMETER)
            return
        factor = factor_of(op.name, args)
        same = len(parents) == 1 and (factor is not None or op.name in SAME_STREAM)
        for part, tensor in enumerate(outputs):
            if not in_place and any(tensor is x for x in inputs):
                continue  # contiguous() and to() return their argument if nothing has to change
            node = self.add(tensor, parents, parents[0] if same else None)
            if factor is not None:
                self.factors[node] = factor
            if self.with_steps and not in_place and args:
                step = self._step(op.name, function, args, kwargs, nodes, inputs)
                if step is not None:
                    step.part, step.shape = part if several else None, tuple(tensor.shape)
                    self.steps[node] = step

    def _step(
        self, name: str, function: Callable, args: tuple, kwargs: dict, nodes: list[int], inputs: list[Tensor]
    ) -> Step | None:
        """Returns the step of an operation; None if it is not a projection and does more than move, cast or
        scale entries.
        """
        if name in JOINS:
            # An empty part, such as a key cache before the first token, contributes no entries.
            parts = [node for node, x in zip(nodes, inputs) if x.numel() or name == "stack"]
            if len(parts) == 1 and name != "stack":
                return Step(parts[0])
            if not parts or not all(node in self.steps for node in parts):
                return None
            rest = {key: value for key, value in kwargs.items() if key != "tensors"}
            return Step(parts[0], function, args[1:], rest, joined=tuple(parts))
        # A step describes the first argument. In addmm(bias, x, weight) the tokens x come second.
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
    """Returns the node of the tokens, the matrix ``[out, in]`` and the tokens of a product of tokens with a
    parameter, otherwise None.
    """
    if name == "linear" and nodes[1] == PARAMETER and inputs[0].is_floating_point():
        return nodes[0], inputs[1], inputs[0]
    # bias + x @ weight, as in the Conv1D of transformers
    if name == "addmm" and len(inputs) == 3 and nodes[2] == PARAMETER:
        return nodes[1], inputs[2].mT, inputs[1]
    if name == "matmul" and len(inputs) == 2 and nodes[1] == PARAMETER and inputs[1].ndim == 2:
        return nodes[0], inputs[1].mT, inputs[0]
    return None


def factor_of(name: str, args: tuple) -> float | None:
    """Returns the number by which an operation multiplies a tensor; None for any other operation."""
    if name not in ("mul", "div") or len(args) != 2:
        return None
    number = next((x for x in args if isinstance(x, float | int)), None)
    if number is None or (name == "div" and args[0] is number) or not number:
        return None
    return float(number) if name == "mul" else 1 / float(number)


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yields all tensors among the values, including those in nested tuples, lists and mappings."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())
