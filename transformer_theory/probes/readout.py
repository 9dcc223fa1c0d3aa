r"""The tokens from which a network computes its outputs.

Let Z+ be the residual stream after the last attention among the tokens, ``[batch, seq, dim]``, and y the
outputs, one vector per sequence. The operations between the two (the last MLP, norms, the choice of a token,
a mean, attention pooling, the head) are recorded and computed a second time with gradients, and token t of
sequence b is **read** if

.. math:: \partial \langle y_b, c \rangle / \partial z^+_{bt} \ne 0,

with fixed weights c. Whether the head picks a token by its index, by the last id that is no padding, or
averages some of them, does not matter, nor do names of modules. Dropout is left out. Nothing is known if an
operation on the way is not visible (compiled kernels), or if there is no residual stream; networks with an
output at every token have no such tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from .evaluation import logits_of
from .flow import Flow, tensors_in

READ_RTOL = 1e-6  # smallest gradient of a token that is read, relative to the largest
AT_EVERY_TOKEN = "the network has an output at every token"
NOT_FOLLOWED = "the operations between the last block and the outputs could not be followed"
DROPOUTS = {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"}


@dataclass(eq=False)
class _Operation:
    """One operation of the pass, with its arguments."""

    name: str
    function: Callable
    args: tuple
    kwargs: dict
    nodes: list[int]
    outputs: list[int]
    in_place: bool

    def argument(self, node: int) -> Tensor | None:
        """Returns the argument with this node; None if there is none."""
        if node not in self.nodes:
            return None
        return list(tensors_in(self.args, self.kwargs))[self.nodes.index(node)]


class Readout:
    """Records the operations after the last attention among the tokens.

    Args:
        flow: flow of tensors of the pass.

    Attributes:
        operations: those that the output of this attention enters, in order.
        bit: index of this attention in :attr:`.Flow.taint`; None before the first one.
    """

    def __init__(self, flow: Flow):
        self.flow = flow
        self.operations: list[_Operation] = []
        self.bit: int | None = None

    def attended(self, bit: int) -> None:
        """Starts again after an attention among the tokens."""
        self.operations.clear()
        self.bit = bit

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
        """Records one operation, if the output of the last attention enters it."""
        if self.bit is None or not any(node >= 0 and self.flow.taint[node] >> self.bit & 1 for node in nodes):
            return
        results = inputs[:1] if name == "setitem" else list(tensors_in(output))
        known = [self.flow.known(result) for result in results]
        outputs = [-1 if node is None else node for node in known]
        self.operations.append(_Operation(name, function, args, kwargs, list(nodes), outputs, in_place))

    def read(self, stream: int, output: Any) -> tuple[Tensor | None, str]:
        """Returns the size of the gradient of each token, of the shape of the stream without its last axis;
        or None and the reason.

        Args:
            stream: node of Z+, or of the output of the last attention.
            output: what the network returned.
        """
        start = next((x for one in self.operations if (x := one.argument(stream)) is not None), None)
        found = self._output(output, () if start is None else start.shape)
        if isinstance(found, str) or start is None:
            return None, found if isinstance(found, str) else NOT_FOLLOWED
        with torch.inference_mode(False), torch.enable_grad():
            start = start.detach().clone().requires_grad_()
            values: dict[int, Tensor] = {stream: start}
            for operation in self.operations:
                if any(node in values for node in operation.nodes):
                    _repeat(operation, values)
            result = values.get(found)
            if result is None or not result.requires_grad:
                return None, NOT_FOLLOWED
            weights = torch.cos(torch.arange(result.numel(), device=result.device)).view(result.shape)
            (gradient,) = torch.autograd.grad((result.float() * weights).sum(), start, allow_unused=True)
        return (None, NOT_FOLLOWED) if gradient is None else (gradient.float().norm(dim=-1), "")

    def _output(self, output: Any, shape: tuple[int, ...]) -> int | str:
        """Returns the node of the outputs, one vector per sequence, or the reason why there is none."""
        logits = logits_of(output)
        candidates = [] if logits is None else [logits]
        candidates += list(_tensors(output))
        for tensor in candidates:
            node = self.flow.known(tensor)
            # a vector for each sequence, or the loss of a training step
            fits = not tensor.ndim or (tensor.ndim == 2 and (not shape or len(tensor) in shape[:2]))
            if fits and tensor.is_floating_point() and node is not None and self._tainted(node):
                return node
        return AT_EVERY_TOKEN if any(tensor.ndim > 2 for tensor in candidates) else NOT_FOLLOWED

    def _tainted(self, node: int) -> bool:
        return self.bit is not None and node >= 0 and bool(self.flow.taint[node] >> self.bit & 1)


def tokens_read(sizes: Tensor) -> Bool[Tensor, "batch seq"]:
    """Returns which tokens are read, from the sizes of their gradients ``[batch, seq]``.

    The gradients of a sequence that is not finite say nothing; what all others read stands for it.
    """
    read, finite = sizes > READ_RTOL * sizes.amax(1, keepdim=True), sizes.isfinite().all(1)
    if not bool(finite.all()) and bool(finite.any()):
        others = read[finite]
        read[~finite] = others[0] if bool((others == others[:1]).all()) else read[~finite]
    return read


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yields the tensors in an output, also those of a dataclass."""
    if isinstance(output, Tensor | tuple | list | dict):
        yield from tensors_in(output)
    elif hasattr(output, "__dict__"):
        yield from tensors_in(*vars(output).values())


def _repeat(operation: _Operation, values: dict[int, Tensor]) -> None:
    """Computes an operation with the tensors in ``values`` in place of those with the same nodes, and stores
    its outputs.
    """
    nodes = iter(operation.nodes)
    args = _replaced(operation.args, nodes, values)
    kwargs = _replaced(operation.kwargs, nodes, values)
    if operation.name in DROPOUTS:
        output = args[0] if args else kwargs["input"]
    else:
        if (operation.in_place or operation.name == "setitem") and args:
            # A leaf cannot be changed in place, nor a tensor that the gradient needs.
            args = (args[0].clone(), *args[1:])
        if "inplace" in kwargs:
            kwargs = {**kwargs, "inplace": False}
        output = operation.function(*args, **kwargs)
    results = [args[0]] if operation.name == "setitem" else list(tensors_in(output))
    values.update((node, x) for node, x in zip(operation.outputs, results) if node >= 0)


def _replaced(value: Any, nodes: Iterator[int], values: dict[int, Tensor]) -> Any:
    """Returns arguments with the tensors in ``values``; ``nodes`` are those of all tensors, in order."""
    if isinstance(value, Tensor):
        found = values.get(next(nodes))
        if found is not None:
            return found
        return value.clone() if value.is_inference() else value
    if isinstance(value, tuple | list):
        return type(value)(_replaced(each, nodes, values) for each in value)
    if isinstance(value, dict):
        return {key: _replaced(each, nodes, values) for key, each in value.items()}
    return value
