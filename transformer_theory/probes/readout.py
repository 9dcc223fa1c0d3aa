r"""The tokens from which a network computes its outputs.

Let Z be the residual stream at the end of the last block, ``[batch, seq, dim]``, and y the outputs, one
vector per sequence. The operations between the two (norms, the choice of a token, a mean, attention pooling,
the head) are recorded and computed a second time with gradients, and token t of sequence b is **read** if

.. math:: \partial \langle y_b, c \rangle / \partial z_{bt} \ne 0,

with fixed weights c. Whether the head picks a token by its index, by the last id that is no padding, or
averages some of them, does not matter, nor do names of modules. Dropout, the statistics of batch
normalisation and ``detach`` are left out, and parameters that are still zero count as others. Of a network
that returns a loss, y is the last tensor with an axis of sequences before it.

There are no such tokens if the outputs belong to tokens: outputs with more axes than one vector per sequence,
of which an entry depends on other tokens than all of them. Nothing is known if an operation on the way is not
visible (compiled kernels). A network with several stacks of blocks, such as two towers, has read tokens in
each whose output no other attention among tokens has received.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .flow import Flow, tensors_in

READ_RTOL = 1e-6  # smallest gradient of a token that is read, relative to the largest
AT_EVERY_TOKEN = "the network has an output at every token"
NOT_FOLLOWED = "the operations between the last block and the outputs could not be followed"
CUTS = {"detach", "data"}  # the gradient ends there, the value does not
FLAT = {"relu", "relu6", "sigmoid", "tanh", "hardtanh", "hardsigmoid"}  # their slope may be zero
AUTOCAST = ("cpu", "cuda")


@dataclass(eq=False)
class _Operation:
    """One operation of the pass, with its arguments.

    Attributes:
        taint: attentions from which its arguments were computed, a bit mask as in :attr:`.Flow.taint`.
        nodes: nodes of the tensors among the arguments, from before it ran.
        outputs: nodes of its outputs; None for those without one.
        in_place: whether it changed its first argument.
        autocast: device types for which autocast was on, and their dtypes.
    """

    name: str
    function: Callable
    args: tuple
    kwargs: dict
    taint: int
    nodes: list[int]
    outputs: list[int | None]
    in_place: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    def arguments(self) -> Iterator[tuple[int, Tensor]]:
        """Yields the tensors among the arguments with their nodes."""
        yield from zip(self.nodes, tensors_in(self.args, self.kwargs))


@dataclass(frozen=True)
class _Way:
    """How operations are computed a second time.

    Attributes:
        copies: whether operations in place change a copy.
        through: whether gradients pass ``detach`` and saturated functions, and parameters that are zero are
            replaced.
    """

    copies: bool = False
    through: bool = False


class Readout:
    """Records the operations after the last attention among the tokens.

    Args:
        flow: flow of tensors of the pass.

    Attributes:
        operations: those that the output of one of these attentions enters, in order.
        last: the attentions from whose output no other one was computed, a bit mask.
    """

    def __init__(self, flow: Flow):
        self.flow = flow
        self.operations: list[_Operation] = []
        self.last = 0

    def attended(self, bit: int, node: int) -> None:
        """Adds an attention among the tokens; those from which it was computed are not the last any more.

        Args:
            bit: its index in :attr:`.Flow.taint`.
            node: node of its output.
        """
        self.last = (self.last & ~self.flow.taint[node]) | 1 << bit
        self.operations = [one for one in self.operations if one.taint & self.last]

    def record(
        self,
        name: str,
        function: Callable,
        args: tuple,
        kwargs: dict,
        nodes: list[int],
        inputs: list[Tensor],
        output: Any,
        *,
        in_place: bool,
    ) -> None:
        """Records one operation, if the output of a last attention enters it."""
        if not self.last:
            return
        taint, known = 0, self.flow.taint
        for node in nodes:
            taint |= known[node] if node >= 0 else 0
        if not taint & self.last:
            return
        results = inputs[:1] if name == "setitem" else list(tensors_in(output))
        in_place |= name == "setitem" or (bool(results) and bool(inputs) and results[0] is inputs[0])
        outputs = [self.flow.known(result) for result in results]
        autocast = tuple(
            (device, torch.get_autocast_dtype(device))
            for device in AUTOCAST
            if torch.is_autocast_enabled(device)
        )
        self.operations.append(
            _Operation(name, function, args, kwargs, taint, nodes, outputs, in_place, autocast)
        )

    def read(
        self,
        bit: int,
        stream: int,
        output: Any,
        hint: tuple[int, int],
        batch: tuple[int, ...],
        *,
        time_first: bool,
    ) -> tuple[Float[Tensor, "batch seq"] | None, str]:
        """Returns the size of the gradient of each token; or None and the reason.

        Args:
            bit: index of the last attention.
            stream: node of the residual stream after it, or of its output.
            output: what the network returned.
            hint: numbers of sequences and of tokens of the attention; those of the stream may differ.
            batch: possible numbers of sequences of the outputs. Those of the stream may be parts of them.
            time_first: whether the stream is ``[seq, batch, dim]``.
        """
        start = self._end_of_block(bit, stream)
        shape = hint if start is None else _shape_of(start[1], hint, time_first=time_first)
        rows = (shape[0], *(n for n in batch if n and shape[0] % n == 0))
        ends = self._ends(bit, output, shape, rows)
        if isinstance(ends, str) or start is None:
            return None, ends if isinstance(ends, str) else NOT_FOLLOWED
        operations = self._between(start[0], ends)

        def computed(way: _Way, *, entry: bool = False) -> Tensor | None:
            gradient = _gradient(operations, *start, ends, way, rows if entry else ())
            return None if gradient is None else _per_token(gradient, shape, time_first=time_first)

        way = _Way()
        if (sizes := computed(way)) is None:
            sizes = computed(way := _Way(copies=True))
        cut = any(one.name in CUTS for one in operations)
        if cut or sizes is None or not bool(sizes.any(1).all()):
            found = computed(way := _Way(copies=True, through=True))
            sizes = found if sizes is None else sizes if found is None else torch.maximum(sizes, found)
        if sizes is None or not bool(sizes.any()):
            return None, NOT_FOLLOWED
        if any(_may_be_tokens(x, shape[1], rows) for x in ends.values()):
            one = computed(way, entry=True)
            used = (
                None if one is None else one.any(1)
            )  # one entry may depend on some parts of a sequence only
            if one is None or used is None or not torch.equal(*(tokens_read(x[used]) for x in (one, sizes))):
                return None, AT_EVERY_TOKEN
        return sizes, ""

    def _end_of_block(self, bit: int, stream: int) -> tuple[int, Tensor] | None:
        """Returns the node and the tensor of the last sum ``x + f(x)`` that begins with the stream. If the
        stream is the output of the attention, the first one is its sum with anything of its shape.
        """
        found, derived, added = None, {stream}, False
        for one in self.operations:
            if not one.taint >> bit & 1:
                continue
            arguments = list(one.arguments())
            if found is None:
                found = next((pair for pair in arguments if pair[0] == stream), None)
            if found is None or not any(node in derived for node, _ in arguments):
                continue
            outputs = [node for node in one.outputs if node is not None]
            derived.update(outputs)
            if one.name != "add" or len(arguments) != 2 or len(outputs) != 1:
                continue
            (a, x), (b, y) = arguments
            if min(a, b) < 0 or x.shape != y.shape or x.ndim < 2:
                continue
            if a in derived and b in derived:
                ends = x.shape == found[1].shape and (self.flow.descends(a, b) or self.flow.descends(b, a))
            else:
                ends, added = not added, True
            if ends:
                found, derived = (outputs[0], x), {outputs[0]}
        if found is None:
            return None
        last = (pair for one in self.operations for pair in one.arguments() if pair[0] == found[0])
        return next(last, None)

    def _between(self, node: int, ends: dict[int, Tensor]) -> list[_Operation]:
        """Returns the operations that lead from a node to the outputs. Those in place are among them, because
        they may change a view.
        """
        needed, kept = set(ends), []
        for one in reversed(self.operations):
            leads = one.in_place or any(output in needed for output in one.outputs)
            if leads and node not in one.outputs:
                needed.update(one.nodes)
                kept.append(one)
        return kept[::-1]

    def _ends(
        self, bit: int, output: Any, shape: tuple[int, int], rows: tuple[int, ...]
    ) -> dict[int, Tensor] | str:
        """Returns the outputs that belong to sequences, by node, or the reason why there are none."""
        tensors = [x for x in _tensors(output) if x.is_floating_point()]
        logits = getattr(output, "logits", None)
        tensors = [logits, *tensors] if isinstance(logits, Tensor) else tensors
        known = [(node, x) for x in tensors if (node := self.flow.known(x)) is not None]
        known = [(node, x) for node, x in known if node >= 0 and self.flow.taint[node] >> bit & 1]
        vectors = {node: x for node, x in known if _is_vector(x, rows)}
        if vectors:
            return vectors
        others = [(node, x) for node, x in known if x.numel() > 1]
        if not others and known:  # the loss of a training step
            before = self._before(known[0][0], bit)
            vectors = {node: x for node, x in before.items() if _is_vector(x, rows) and len(x) in rows}
            return vectors or (AT_EVERY_TOKEN if before else NOT_FOLLOWED)
        if not others:
            return NOT_FOLLOWED
        first = others[0][1]
        if first.ndim < 3 and shape[1] not in first.shape and len(first) != shape[0] * shape[1]:
            return NOT_FOLLOWED
        dense = first.ndim != 3 or shape[1] in first.shape or not _axis(first, rows)
        return AT_EVERY_TOKEN if dense else dict(others[:1])

    def _before(self, node: int, bit: int) -> dict[int, Tensor]:
        """Returns the last tensors with at least two axes from which a number was computed, by node."""
        makers = {output: one for one in self.operations for output in one.outputs}
        found, todo, visited = {}, [node], {node}
        while todo:
            one = makers.get(todo.pop())
            for each, x in () if one is None else one.arguments():
                if each < 0 or each in visited or not self.flow.taint[each] >> bit & 1:
                    continue
                visited.add(each)
                if x.ndim > 1:
                    found[each] = x
                else:
                    todo.append(each)
        return found


def tokens_read(sizes: Float[Tensor, "batch seq"]) -> Bool[Tensor, "batch seq"]:
    """Returns which tokens are read, from the sizes of their gradients.

    A sequence that is not finite has no gradients; what all others read stands for it.
    """
    read = sizes > READ_RTOL * sizes.amax(1, keepdim=True)
    known = read.any(1)
    if not bool(known.all()) and bool(known.any()):
        others = read[known]
        read[~known] = others[0] if bool((others == others[:1]).all()) else False
    return read


def _axis(x: Tensor, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the first axis of a tensor that may be that of the sequences; empty if there is none."""
    return next(((axis,) for n in rows for axis, length in enumerate(x.shape) if length == n), ())


def _is_vector(x: Tensor, rows: tuple[int, ...]) -> bool:
    """Whether a tensor has one number or vector per sequence. The axis of a single sequence may be gone."""
    return (x.ndim in (1, 2) and bool(_axis(x, rows))) or (x.ndim == 1 and 1 in rows)


def _may_be_tokens(x: Tensor, T: int, rows: tuple[int, ...]) -> bool:
    """Whether the entries of an output may belong to T tokens."""
    axes = list(x.shape)
    for axis in _axis(x, rows) if x.ndim > 1 else ():
        del axes[axis]
    return x.ndim > 2 or (T in axes and (x.ndim == 2 or 1 in rows))


def _by_sequence(x: Tensor, rows: tuple[int, ...]) -> Float[Tensor, "batch _"]:
    """Returns an output with one row per sequence."""
    axis = _axis(x, rows)
    return x.movedim(axis[0], 0).flatten(1) if axis and x.ndim > 1 else x.reshape(len(x) if axis else 1, -1)


def _shape_of(stream: Tensor, hint: tuple[int, int], *, time_first: bool) -> tuple[int, int]:
    """Returns the numbers of sequences and tokens of a stream ``[batch, seq, dim]``, ``[seq, batch, dim]``,
    ``[seq, dim]``, ``[batch, height, width, dim]``, ``[batch, dim, height, width]``, or of the output of an
    attention, ``[batch, heads, seq, dim]``.
    """
    axes = stream.shape
    if len(axes) == 2:
        return 1, axes[0]
    if len(axes) == 3:
        swapped = time_first or (axes[:2] == hint[::-1] and axes[:2] != hint)
        return (axes[1], axes[0]) if swapped else (axes[0], axes[1])
    if len(axes) == 4 and hint[1] in (axes[2], axes[2] * axes[3]) and hint[1] != axes[1] * axes[2]:
        return axes[0], hint[1]
    return axes[0], axes[1:-1].numel()


def _per_token(
    gradient: Tensor, shape: tuple[int, int], *, time_first: bool
) -> Float[Tensor, "batch seq"] | None:
    """Returns the norm of a gradient at each token of a stream, see :func:`_shape_of`; None for another
    shape.
    """
    n, T = shape
    if gradient.ndim == 4 and gradient.shape[1:3].numel() != T:
        gradient = gradient.flatten(2).mT if gradient.shape[2:].numel() == T else gradient.transpose(1, 2)
    elif gradient.ndim == 3 and gradient.shape[:2] == (T, n) and (time_first or n != T):
        gradient = gradient.transpose(0, 1)
    if gradient.numel() % (n * T):
        return None
    return gradient.reshape(n, T, -1).norm(dim=-1).nan_to_num()  # of large numbers the norm is infinite


def _gradient(
    operations: Sequence[_Operation],
    node: int,
    stream: Tensor,
    ends: dict[int, Tensor],
    way: _Way,
    rows: tuple[int, ...],
) -> Tensor | None:
    """Returns the gradient of the outputs, of the shape of the stream; None if they cannot be computed again.

    Args:
        operations: those between the stream and the outputs.
        node, stream: the stream.
        ends: outputs by node.
        way: how operations are computed.
        rows: possible numbers of sequences, if the largest output of each is taken instead of all.
    """
    device = stream.device
    with torch.inference_mode(False), torch.enable_grad(), _same_random_state(device):
        leaf = stream.detach().clone().requires_grad_()
        # a leaf cannot be changed in place
        values = {node: leaf * 1 if any(one.in_place for one in operations) else leaf}
        try:
            for operation in operations:
                if any(each in values for each in operation.nodes):
                    _repeat(operation, values, way)
            total, found = torch.zeros((), device=device), False
            for y in (values[end] for end in ends if end in values and values[end].requires_grad):
                found, y = True, y.float()
                if rows:
                    y = _by_sequence(y, rows)
                    y = y.gather(1, y.detach().abs().argmax(1, keepdim=True))
                weights = torch.cos(torch.arange(y.numel(), device=y.device)).view(y.shape)
                total = total + (y * weights).sum()
            (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True) if found else (None,)
        except RuntimeError:  # such as an operation in place that changes what the gradient needs
            return None
    return None if gradient is None else gradient.float().nan_to_num()


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yields the tensors in an output, also those of a dataclass."""
    if isinstance(output, Tensor | tuple | list | dict):
        yield from tensors_in(output)
    elif hasattr(output, "__dict__"):
        yield from tensors_in(*vars(output).values())


@contextlib.contextmanager
def _same_random_state(device: torch.device) -> Iterator[None]:
    """Restores the random states of the processor and of a device."""
    module = getattr(torch, device.type, None)
    which = () if device.type == "mps" else (device,)
    state = torch.get_rng_state()
    own = module.get_rng_state(*which) if module is not None and device.type != "cpu" else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if own is not None and module is not None:
            module.set_rng_state(own, *which)


def _repeat(operation: _Operation, values: dict[int, Tensor], way: _Way) -> None:
    """Computes an operation with the tensors in ``values`` in place of those with the same nodes, and stores
    its outputs.
    """
    nodes = iter(operation.nodes)
    args = _replaced(operation.args, nodes, values, way)
    kwargs = _replaced(operation.kwargs, nodes, values, way)
    name, given = operation.name, args[0] if args else kwargs.get("input")
    if "dropout" in name or name == "batch_norm" or (way.through and name in CUTS | FLAT):
        output = given if operation.in_place else given * 1
    elif way.through and name == "softmax":
        output = given.log_softmax(kwargs.get("dim", args[1] if len(args) > 1 else -1))
    else:
        # A tensor that the network still holds is not changed, nor are its random numbers.
        own = operation.nodes[:1] and operation.nodes[0] in values
        if operation.in_place and isinstance(given, Tensor) and (way.copies or not own) and args:
            args = (given.clone(), *args[1:])
        if name == "instance_norm":
            args, kwargs = args[:1], {}
        kwargs.pop("out", None)
        with contextlib.ExitStack() as stack:
            for device, dtype in operation.autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
            output = operation.function(*args, **kwargs)
    results = [args[0]] if name == "setitem" else list(tensors_in(output))
    values.update((node, x) for node, x in zip(operation.outputs, results) if node is not None)


def _replaced(value: Any, nodes: Iterator[int], values: dict[int, Tensor], way: _Way) -> Any:
    """Returns arguments with the tensors in ``values``; ``nodes`` are those of all tensors, in order."""
    if isinstance(value, Tensor):
        found = values.get(next(nodes))
        if found is not None:
            return found
        if way.through and isinstance(value, nn.Parameter) and not bool(value.any()):
            return torch.cos(torch.arange(value.numel()).to(value)).view(value.shape)
        return value.clone() if value.is_inference() else value
    if isinstance(value, tuple | list):
        parts = [_replaced(each, nodes, values, way) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: _replaced(each, nodes, values, way) for key, each in value.items()}
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    return value
