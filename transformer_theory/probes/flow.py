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
    names     name of the operation of each node
    steps     how the entries of a node were moved;
              only for nodes computed from one product with a parameter (:mod:`.projections`)
    links     where the entries of other nodes come from (:mod:`.axes`)

Parameters, and tensors computed from parameters alone, have the number :data:`PARAMETER`. A tensor that does
not depend on the arguments of the network is a constant: also buffers, masks of pruned weights, tables.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
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
ACTIVATIONS = {"relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "selu", "softplus", "mish"}
ACTIVATIONS |= {"relu6", "hardtanh", "hardswish", "clamp", "dropout", "mul", "div"}
COPIES = {"clone", "contiguous", "detach", "alias"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
# operations whose output has other entries than an argument of the same shape
MIXES = CONVOLUTIONS | {"linear", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "sort", "cumsum"}
MIXES |= {
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "softmax_attention",
    "tied_attention",
}
JOINS = {"cat", "concat", "concatenate", "stack"}
# tensors whose entries do not depend on the arguments
FILLS = {f"{name}_like" for name in ("zeros", "ones", "full", "empty")}
FILLS |= {f"new_{name}" for name in ("zeros", "ones", "full", "empty")}
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
PLAIN |= {"itruediv": "div", "truediv": "div", "divide": "div", "isub": "sub", "subtract": "sub"}
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


Trail = tuple[tuple[str, tuple[int, ...]], ...]
"""Operations from one node to another, in order: for each its name, and which of the first node (0) and of
the results before (1, 2, ...) are its arguments.
"""


class Follower:
    """Finds the node at the end of a trail that begins at another node.

    Attributes:
        start: the node at which the trail begins.
        end: the node at its end, once it is found.
    """

    def __init__(self, trail: Trail, start: int):
        self.trail, self.start, self.index = trail, start, {start: 0}
        self.end = None if trail else start

    def step(self, flow: "Flow", node: int) -> bool:
        """Takes the next node of the flow. Returns whether it is the end."""
        if self.end is not None:
            return False
        name, arguments = self.trail[len(self.index) - 1]
        known = tuple(self.index[parent] for parent in flow.parents[node] if parent in self.index)
        if name != flow.names[node] or known != arguments:
            return False
        self.index[node] = len(self.index)
        if len(self.index) > len(self.trail):
            self.end = node
        return self.end is not None


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
        terms: nodes of the terms of a sum, each with its factor; empty for other operations.
        scales: numbers ``[out]`` by which the entries along the last axis were multiplied; None for other
            operations.
        written: index of the entries that were overwritten, and the node of their new values; None for other
            operations.
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
    terms: tuple[tuple[int, float], ...] = ()
    scales: Tensor | None = None
    written: tuple[Any, int] | None = None
    weight: Tensor | None = None
    tokens: Tensor | None = None
    shape: tuple[int, ...] = ()

    @property
    def is_origin(self) -> bool:
        """Whether the entries are new sums of products, not moved entries of the parent."""
        return bool(self.terms) or any(x is not None for x in (self.weight, self.scales, self.written))

    @property
    def parents(self) -> tuple[int, ...]:
        """Nodes whose entries the operation took."""
        written = () if self.written is None else (self.written[1],)
        return self.joined or tuple(node for node, _ in self.terms) or (self.parent, *written)


@dataclass(frozen=True, slots=True)
class Link:
    """An operation without a step that still tells where entries come from.

    Attributes:
        parent: node of a tensor of the same shape, whose entries were changed in their places.
        rows: axes of the output that run over the rows of a matrix, in a product of tokens with a constant or
            a convolution; empty for other operations.
        shape: shape of the output.
    """

    parent: int
    rows: tuple[int, ...]
    shape: tuple[int, ...]


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
        self.names: list[str] = []
        self.watcher: Callable[[int, Tensor], None] | None = None  # receives each new node of an operation
        self.steps: dict[int, Step] = {}
        self.links: dict[int, Link] = {}
        self.factors: dict[int, float] = {}  # node -> number by which its parent was multiplied
        self.widths: dict[int, int] = {}  # constant -> length of its last axis
        self._products: dict[int, dict[int, frozenset[int]]] = {}
        self._variable: set[int] = set()  # nodes that depend on the arguments of the network
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

    def set_arguments(self, tensors: Iterable[Tensor]) -> None:
        """Declares the arguments of the network; whatever does not depend on them is constant."""
        self._variable |= {self.node(tensor) for tensor in tensors} - {PARAMETER}

    def is_constant(self, node: int) -> bool:
        """Whether a node does not depend on the arguments of the network."""
        return node not in self._variable

    def projections_of(self, node: int) -> set[int]:
        """Follows the steps of a node backwards to the products from which its entries come."""
        found, visited, todo = set(), set(), [node]
        while todo:
            current = todo.pop()
            step = self.steps.get(current)
            if step is not None and current not in visited:
                visited.add(current)
                todo += step.parents
                if step.weight is not None:
                    found.add(current)
        return found

    def products_of(self, node: int, depth: int = 64) -> dict[int, frozenset[int]]:
        """Returns the projections by which the entries of a node are products of tokens, by the root of the
        tokens. Terms of a sum must be products of the same tokens, so a residual stream is no such product.
        At most ``depth`` steps are followed.
        """
        step = self.steps.get(node)
        if step is None or not depth:
            return {}
        if node not in self._products:
            parts = [self.products_of(part, depth - 1) for part in step.parents if part not in self.widths]
            shared = set(parts[0]).intersection(*parts) if parts else set()
            found = {root: frozenset().union(*(part[root] for part in parts)) for root in shared}
            if step.weight is not None:
                found[self.root[step.parent]] = frozenset({node})
            self._products[node] = found
        return self._products[node]

    def add(
        self, tensor: Tensor, parents: tuple[int, ...], root: int | None = None, *, constant: bool = False
    ) -> int:
        """Adds a node for a tensor and returns its number. After an in-place operation the new node replaces
        the old one.

        Args:
            tensor: output of the operation.
            parents: nodes of the arguments.
            root: node with the same content. None: the new node is its own root.
            constant: whether the entries do not depend on the parents.
        """
        number = len(self.parents)
        if not constant and not self._variable.isdisjoint(parents):
            self._variable.add(number)
        self.parents.append(parents)
        self.root.append(number if root is None else self.root[root])
        taint = 0
        for parent in parents:
            taint |= self.taint[parent]
        self.taint.append(taint)
        self.names.append("")
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

    def is_ancestor(self, ancestor: int, node: int) -> bool:
        """Whether a node was computed from this very node, not from another one with the same content."""
        visited, todo = set(), [node]
        while todo:
            for parent in self.parents[todo.pop()]:
                if parent == ancestor:
                    return True
                if parent > ancestor and parent not in visited:
                    visited.add(parent)
                    todo.append(parent)
        return False

    def activation_after(self, node: int) -> str:
        """Returns the name of an activation that was applied to a node alone; empty if there is none."""
        later = range(node + 1, len(self.parents))
        found = (self.names[i] for i in later if self.parents[i] == (node,) and self.names[i] in ACTIVATIONS)
        return next(found, "")

    def trail(self, start: int, end: int) -> Trail | None:
        """Returns the operations from one node to another, without copies at the end; None if the second was
        not computed from the first.
        """
        while end > start and self.names[end] in COPIES and len(self.parents[end]) == 1:
            (end,) = self.parents[end]
        between, todo = set(), [end]
        while todo:
            for parent in self.parents[todo.pop()]:
                if parent > start and parent not in between:
                    between.add(parent)
                    todo.append(parent)
        index, steps = {start: 0}, []
        for node in sorted(between | {end}):
            known = tuple(index[parent] for parent in self.parents[node] if parent in index)
            if known and node != start:
                index[node] = len(index)
                steps.append((self.names[node], known))
        return tuple(steps) if end in index else None

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
            node = self.add(tensor, parents, parents[0] if same else None, constant=op.name in FILLS)
            self.names[node] = op.name
            if factor is not None:
                self.factors[node] = factor
            if self.with_steps and args:
                shape = tuple(tensor.shape)
                step = (
                    self._step_in_place(op.name, args, kwargs, nodes, inputs, shape)
                    if in_place
                    else self._step(op.name, function, args, kwargs, nodes, inputs, shape)
                )
                if step is not None:
                    step.part, step.shape = part if several else None, shape
                    self.steps[node] = step
                elif (link := self._link(op.name, args, nodes, inputs, shape)) is not None:
                    self.links[node] = link
            if self.watcher is not None:
                self.watcher(node, tensor)

    def _link(
        self, name: str, args: tuple, nodes: list[int], inputs: list[Tensor], shape: tuple[int, ...]
    ) -> Link | None:
        """Returns the link of an operation that has no step; None if the places of its entries are not
        known.
        """
        rows = _rows(name, args, [self.is_constant(node) for node in nodes], inputs)
        for node, x in zip(nodes, inputs):
            # A product of the features of each head with a constant keeps heads and tokens in their places.
            known = tuple(x.shape) == shape and (node in self.steps or node in self.links)
            if known and (name not in MIXES or (name != "linear" and rows in ((-1,), (len(shape) - 1,)))):
                return Link(node, (), shape)
        return Link(nodes[0], rows, shape) if rows else None

    def _step_in_place(
        self,
        name: str,
        args: tuple,
        kwargs: dict,
        nodes: list[int],
        inputs: list[Tensor],
        shape: tuple[int, ...],
    ) -> Step | None:
        """Returns the step of an operation that changed its first argument; None for most of them."""
        if name == "setitem" and len(inputs) == 2 and args[2] is inputs[1]:
            self._keep_widths(nodes, inputs)
            return Step(nodes[0], written=(args[1], nodes[1]))
        return self._arithmetic(name, args, kwargs, nodes, inputs, shape)

    def _step(
        self,
        name: str,
        function: Callable,
        args: tuple,
        kwargs: dict,
        nodes: list[int],
        inputs: list[Tensor],
        shape: tuple[int, ...],
    ) -> Step | None:
        """Returns the step of an operation; None if it is no projection and no sum of projections, and does
        more than move, cast or scale entries.
        """
        if name in JOINS:
            # An empty part, such as a key cache before the first token, contributes no entries.
            parts = [node for node, x in zip(nodes, inputs) if x.numel() or name == "stack"]
            if len(parts) == 1 and name != "stack":
                return Step(parts[0])
            self._keep_widths(nodes, inputs)
            followed = [node in self.steps for node in parts]
            if not any(followed) or not all(
                has_step or self.is_constant(node) for has_step, node in zip(followed, parts)
            ):
                return None
            rest = {key: value for key, value in kwargs.items() if key != "tensors"}
            return Step(parts[0], function, args[1:], rest, joined=tuple(parts))
        if (step := self._arithmetic(name, args, kwargs, nodes, inputs, shape)) is not None:
            return step
        # A step describes the first argument. In addmm(bias, x, weight) the tokens x come second.
        if not inputs or (args[0] is not inputs[0] and name != "addmm"):
            return None
        projection = self._projection(name, inputs, nodes)
        if projection is not None:
            source, weight, tokens = projection
            return Step(source, weight=weight.detach(), tokens=tokens.detach())
        if nodes[0] < 0:
            return None
        if name in MOVES and len(inputs) == 1:
            return Step(nodes[0], function, args[1:], kwargs)
        if name in CASTS:
            return Step(nodes[0])
        return None

    def _arithmetic(
        self,
        name: str,
        args: tuple,
        kwargs: dict,
        nodes: list[int],
        inputs: list[Tensor],
        shape: tuple[int, ...],
    ) -> Step | None:
        """Returns the step of a sum, or of a product with constant factors; None for any other operation.

        A constant term is left out: the scores contain it as a term that is constant along one axis, or else
        differ from those of the projections, which is checked.
        """
        factor = -1.0 if name == "neg" else factor_of(name, args)
        if factor is not None:
            return Step(nodes[0], factor=factor) if nodes[0] in self.steps else None
        if name not in ("add", "sub", "mul", "div") or len(inputs) != 2:
            return None
        followed, others = [], []
        any_variable = not all(map(self.is_constant, nodes))
        for node, x in zip(nodes, inputs):
            is_term = node in self.steps and not (any_variable and self.is_constant(node))
            (followed if is_term else others).append((node, x))
        if not followed or any(tuple(x.shape) != shape for _, x in followed):
            return None
        if name in ("add", "sub"):
            second = (-1.0 if name == "sub" else 1.0) * float(kwargs.get("alpha", 1.0))
            if not others:
                return Step(nodes[0], terms=((nodes[0], 1.0), (nodes[1], second)))
            if not self.is_constant(others[0][0]):
                return None
            return Step(followed[0][0], factor=1.0 if followed[0][0] == nodes[0] else second)
        if not others or not self.is_constant(others[0][0]) or (name == "div" and others[0][0] == nodes[0]):
            return None
        node, scales = followed[0][0], others[0][1].detach()
        scales = 1 / scales if name == "div" else scales
        if scales.numel() == 1:
            return Step(node, factor=float(scales)) if bool(scales) else None
        return (
            Step(node, scales=scales.flatten()) if scales.numel() == shape[-1] == scales.shape[-1] else None
        )

    def _keep_widths(self, nodes: list[int], inputs: list[Tensor]) -> None:
        """Stores the lengths of the last axes of constants."""
        self.widths |= {
            node: x.shape[-1]
            for node, x in zip(nodes, inputs)
            if x.ndim and node not in self.steps and self.is_constant(node)
        }

    def _projection(
        self, name: str, inputs: list[Tensor], nodes: list[int]
    ) -> tuple[int, Tensor, Tensor] | None:
        """Returns the node of the tokens, the matrix ``[out, in]`` and the tokens of a product of tokens with
        a constant matrix, otherwise None.
        """
        place = {"linear": (0, 1), "matmul": (0, 1), "mm": (0, 1), "addmm": (1, 2)}.get(name)
        if place is None or len(inputs) <= place[1]:
            return None
        node, tokens = nodes[place[0]], inputs[place[0]]
        weight = inputs[place[1]]
        if node < 0 or weight.ndim != 2 or not self.is_constant(nodes[place[1]]):
            return None
        if name != "linear":  # as in the Conv1D of transformers: bias + x @ weight
            return node, weight.mT, tokens
        return (node, weight, tokens) if tokens.is_floating_point() else None


def _rows(name: str, args: tuple, constant: list[bool], inputs: list[Tensor]) -> tuple[int, ...]:
    """Returns the axes of the output that run over the rows of a constant matrix; empty for operations that
    are no product with one.
    """
    if len(inputs) < 2 or constant[0] == constant[1]:
        return ()
    if name in CONVOLUTIONS:
        return (1 - inputs[1].ndim,) if constant[1] else ()
    if name == "matmul" and min(inputs[0].ndim, inputs[1].ndim) > 1:
        matrix, tokens = inputs if constant[0] else inputs[::-1]
        # matrices of several heads, each of which multiplies all tokens
        heads = [axis for axis in range(-matrix.ndim, -2) if matrix.shape[axis] > 1]
        heads = [axis for axis in heads if tokens.ndim < -axis or tokens.shape[axis] == 1]
        return (*heads, -2 if constant[0] else -1)
    if name != "einsum" or not isinstance(args[0], str) or "." in args[0] or "->" not in args[0]:
        return ()
    terms, _, output = args[0].replace(" ", "").partition("->")
    names = terms.split(",")
    own, other = (names[0], names[1:]) if constant[0] else (names[-1], names[:-1])
    rows = [axis for axis, letter in enumerate(output) if letter in own and letter not in "".join(other)]
    return tuple(rows) if len(names) == 2 else ()


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
