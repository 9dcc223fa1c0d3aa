r"""Places of tokens in the inputs of a network, followed through the operations that make and move tokens.

The codes of a tensor say for each of its entries from which place of the input it comes:

    pixels    index of the entry of the image, before patches are cut
    patches   row * columns + column of the grid, after the patch embedding
    others    index of the token among those that were joined
    INSERTED  a token that does not come from the inputs: a class token, a register, a prompt
    CONTENT   a token of the inputs without a known place

A convolution or pooling of an image yields a grid of the size of its output; an image is an input of floats
with four axes, or what was made of floats without products of tokens with tokens. A product of cut-out pixels
or patches with a matrix yields a grid if the first rows and columns of all tokens form one, whichever of the
axes of the image they are. Operations that move entries (views, permutations, selections by index,
concatenations) are applied to the codes as well, so that dropped and permuted patches keep their places.
Operations that keep the shape keep the codes; products that mix tokens lose them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .flow import JOINS, MOVES, Flow

INSERTED, CONTENT = -1, -2
POOLS = {"avg_pool2d", "max_pool2d", "max_pool2d_with_indices", "adaptive_avg_pool2d", "adaptive_max_pool2d"}
SPATIAL = {"conv2d", "interpolate", "grid_sample", *POOLS}
PICKS = {"gather", "index_select", "take_along_dim", "flip", "repeat", "tile", "unfold", "im2col", "rot90"}
PICKS |= {"masked_select", "pixel_unshuffle", "pixel_shuffle", "fliplr", "flipud"}
SAME = {"contiguous", "clone"}
PRODUCTS = {"linear", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum"}
Size = tuple[int, int, int]


@dataclass(frozen=True)
class Codes:
    """Places of the entries of a tensor.

    Attributes:
        values: codes, int32, of the shape of the tensor; expanded along axes on which they do not depend.
        grid: rows and columns, if the codes are those of patches.
        image: the last three axes of the image, if the codes are those of pixels.
    """

    values: Int[Tensor, "*shape"]
    grid: tuple[int, int] | None = None
    image: Size | None = None

    @property
    def varies(self) -> bool:
        """Whether the codes of a token depend on the last axis."""
        values = self.values
        return bool(values.stride(-1)) and not bool((values == values[..., :1]).all())

    def of_tokens(self) -> "Codes | None":
        """Returns one code per token, for tokens with entries from several places; None if the tokens do not
        form a grid.
        """
        size = self.image if self.grid is None else (1, *self.grid)
        if size is None or self.values.ndim < 3:
            return None
        values = self.values
        if not bool((values == values[:1]).all()):
            return None
        # All images are cut alike. The first entries of each token tell its row and its column.
        first = values[0].flatten(0, -2)
        valid = first >= 0
        axes = first // (size[1] * size[2]), first // size[2] % size[1], first % size[2]
        least = [torch.where(valid, axis, max(size)).amin(-1) for axis in axes]
        varying = [number for number, axis in enumerate(least) if bool((axis != axis[0]).any())]
        channels_last = varying == [0, 1] and size[2] < min(size[:2])
        if not (channels_last or not set(varying) - {1, 2}) or not bool(valid.any(-1).all()):
            return None
        pair = least[:2] if channels_last else least[1:]
        (rows, row), (columns, column) = (each.unique(return_inverse=True) for each in pair)
        places = row * len(columns) + column
        if len(places) != len(rows) * len(columns) or len(places.unique()) != len(places):
            return None
        shape = (1, *values.shape[1:-1], 1)
        found = places.to(torch.int32).view(shape).expand(*values.shape[:-1], 1)
        return Codes(found, (len(rows), len(columns)))


class Places:
    """Codes by node of one forward pass.

    Args:
        flow: flow of tensors of the pass.
        declared: rows and columns of the patches, if the inputs are tokens that were cut from images.
    """

    def __init__(self, flow: Flow, declared: tuple[int, int] | None = None):
        self.flow, self.declared = flow, declared
        self.codes: dict[int, Codes] = {}
        self._no_images: set[int] = set()  # ids, and products of tokens with tokens

    def given(self, tensor: Tensor) -> None:
        """Records an input of the network; an image, ``[batch, channels, height, width]`` or ``[batch,
        height, width, channels]``, has codes, and so have tokens of a declared grid.
        """
        node = self.flow.node(tensor)
        if tensor.ndim == 4 and (tensor.is_floating_point() or tensor.dtype == torch.uint8):
            self.codes[node] = _counted(tensor)
        elif not tensor.is_floating_point():
            self._no_images.add(node)
        elif tensor.ndim == 3 and self.declared is not None:
            count = self.declared[0] * self.declared[1]
            axis = next((axis for axis in (1, 0) if tensor.shape[axis] == count), None)
            if axis is not None:
                index = torch.arange(count, dtype=torch.int32, device=tensor.device)
                shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
                self.codes[node] = Codes(index.view(shape).expand(tensor.shape), self.declared)

    def record(
        self,
        name: str,
        function: Callable,
        args: tuple,
        kwargs: dict,
        nodes: Sequence[int],
        inputs: Sequence[Tensor],
        output: Any,
    ) -> None:
        """Records one operation; ``nodes`` are those of ``inputs``, from before it ran."""
        codes = self.codes
        outputs = (
            inputs[:1] if name == "setitem" else output if isinstance(output, tuple | list) else [output]
        )
        if name in JOINS:
            found = self._joined(name, args, kwargs, nodes, inputs, output)
        elif name in SPATIAL and self._is_picture(nodes[0], inputs[0]):
            found = _picture(codes.get(nodes[0]), output, cuts=name == "conv2d")
        elif name in PRODUCTS:
            found = self._product(name, nodes, output)
        elif not any(node in codes for node in nodes):
            return
        elif name == "setitem":
            found = self._written(args, nodes, inputs)
        elif nodes[0] not in codes or name in SAME:
            found = self._kept(nodes, output)
        elif name == "pad":
            found = _padded(codes[nodes[0]], args, kwargs, output)
        elif name in MOVES or name in PICKS:
            found = _moved(codes[nodes[0]], function, args[1:], kwargs)
        else:
            found = self._kept(nodes, output)
        if found is None:
            return
        for tensor, each in zip(outputs, found if isinstance(found, list) else [found]):
            node = self.flow.known(tensor) if isinstance(tensor, Tensor) else None
            if node is not None and each.values.shape == tensor.shape:
                codes[node] = each

    def _is_picture(self, node: int, x: Tensor) -> bool:
        """Whether a tensor with four axes is an image, or a map of patches."""
        if x.ndim != 4 or self.flow.is_constant(node):
            return False
        if node in self.codes:
            # of scores between tokens, the codes are those of the queries
            values = self.codes[node].values
            return x.shape[-1] == 1 or bool(values[0, 0, 0, 0] != values[0, 0, 0, -1])
        todo, visited = [node], {node}
        while todo:
            current = todo.pop()
            if current in self._no_images:
                return False
            parents = [each for each in self.flow.parents[current] if each not in visited]
            visited.update(parents)
            todo += parents
        return True

    def _product(self, name: str, nodes: Sequence[int], output: Any) -> Codes | None:
        """Returns the codes of a product of tokens with a matrix, ``[..., dim]``."""
        if isinstance(output, Tensor) and sum(not self.flow.is_constant(node) for node in nodes) > 1:
            node = self.flow.known(output)
            self._no_images.update([] if node is None else [node])
        operand = nodes[1] if name == "addmm" else nodes[0]
        codes = self.codes.get(operand)
        if codes is None or not isinstance(output, Tensor) or codes.values.shape[:-1] != output.shape[:-1]:
            return None
        if codes.varies or codes.image is not None:
            codes = codes.of_tokens()
        return None if codes is None else Codes(codes.values[..., :1].expand(output.shape), codes.grid)

    def _kept(self, nodes: Sequence[int], output: Any) -> Codes | None:
        """Returns the codes of an argument with the shape of the output."""
        if not isinstance(output, Tensor):
            return None
        known = (self.codes.get(node) for node in nodes)
        return next((each for each in known if each is not None and each.values.shape == output.shape), None)

    def _written(self, args: tuple, nodes: Sequence[int], inputs: Sequence[Tensor]) -> Codes | None:
        """Returns the codes of a tensor of which a part was set, ``x[index] = part``."""
        base, part = self.codes.get(nodes[0]), self.codes.get(nodes[-1])
        if part is None or not isinstance(args[-1], Tensor) or inputs[-1] is not args[-1]:
            return base  # tokens that are masked keep their places
        if base is None:
            code = INSERTED if self.flow.is_constant(nodes[0]) else CONTENT
            values = torch.full(inputs[0].shape, code, dtype=torch.int32, device=inputs[0].device)
        else:
            values = base.values.clone(memory_format=torch.contiguous_format)
        values[args[1]] = part.values
        return Codes(values, part.grid, part.image)

    def _joined(
        self,
        name: str,
        args: tuple,
        kwargs: dict,
        nodes: Sequence[int],
        inputs: Sequence[Tensor],
        output: Any,
    ) -> Codes | None:
        """Returns the codes of joined tensors, such as sequences ``[batch, seq, dim]`` or ``[seq, batch,
        dim]``.
        """
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if not isinstance(output, Tensor) or not isinstance(dim, int):
            return None
        dim %= output.ndim
        known = [self.codes.get(node) for node in nodes]
        given = [not self.flow.is_constant(node) for node in nodes]
        last = dim == output.ndim - 1
        if not any(known) and (output.ndim != 3 or last or all(given) or not any(given)):
            return None
        # The codes of a single part without codes are its indices.
        lone = not any(known) and sum(given) == 1 and name != "stack"
        if output.ndim == 3 and not last and name != "stack":
            known = _cut(known, dim)
        parts = []
        for x, codes, is_given in zip(inputs, known, given):
            if codes is not None:
                values = codes.values
            elif lone and is_given:
                shape = [1, 1, 1]
                shape[dim] = x.shape[dim]
                count = torch.arange(x.shape[dim], dtype=torch.int32, device=x.device)
                values = count.view(shape).expand(x.shape)
            elif last:
                continue  # features of the same tokens
            else:
                code = CONTENT if is_given else INSERTED
                values = torch.tensor(code, dtype=torch.int32, device=x.device).expand(x.shape)
            parts.append(values.unsqueeze(dim) if name == "stack" else values)
        found = [codes for codes in known if codes is not None]
        places = {(codes.grid, codes.image) for codes in found}
        grid, image = places.pop() if len(places) == 1 else (None, None)
        if last and len(parts) < len(inputs) and image is not None:
            return None
        # All entries of a token have one code, so that the last axis need not be stored.
        thin = image is None and not any(codes.varies for codes in found)
        joined = Codes(torch.cat([part[..., :1] if thin else part for part in parts], dim), grid, image)
        if last and thin:
            if name == "stack" or (joined.varies and (merged := joined.of_tokens()) is None):
                return None
            joined = merged if joined.varies else joined
        return Codes(joined.values[..., :1].expand(output.shape), joined.grid) if thin else joined

    def of(self, node: int, *, time_first: bool) -> Codes | None:
        """Returns the codes of the tokens at a node, ``[batch, seq]``; None if they are not known.

        Args:
            node: node of a stream.
            time_first: whether it is ``[seq, batch, dim]``.
        """
        codes = self.codes.get(node)
        if codes is None or codes.values.ndim < 3:
            return None
        if (codes.varies or codes.image is not None) and (codes := codes.of_tokens()) is None:
            return None
        first = codes.values[..., 0]
        first = first.T if time_first and first.ndim == 2 else first.flatten(1)
        return Codes(first, codes.grid)


def _cut(known: list[Codes | None], dim: int) -> list[Codes | None]:
    """Returns the codes of joined parts, of which those with codes of pixels are parts of one grid."""
    pixels = [codes for codes in known if codes is not None and codes.image is not None]
    if not pixels:
        return known
    whole = None
    if len({(codes.image, codes.values.shape[-1]) for codes in pixels}) == 1:
        whole = Codes(torch.cat([codes.values for codes in pixels], dim), image=pixels[0].image).of_tokens()
    lengths = [codes.values.shape[dim] for codes in pixels]
    parts = iter([None] * len(pixels) if whole is None else whole.values.split(lengths, dim))
    found = []
    for codes in known:
        if codes is not None and codes.image is not None:
            part = next(parts)
            codes = (
                None if whole is None or part is None else Codes(part.expand(codes.values.shape), whole.grid)
            )
        found.append(codes)
    return found


def _counted(x: Tensor) -> Codes:
    """Returns the codes of the pixels of an image ``[..., a, b, c]``."""
    size = (x.shape[-3], x.shape[-2], x.shape[-1])
    count = torch.arange(size[0] * size[1] * size[2], dtype=torch.int32, device=x.device)
    return Codes(count.view(size).expand(x.shape), image=size)


def _picture(codes: Codes | None, output: Any, *, cuts: bool) -> Codes | None:
    """Returns the codes of a picture ``[batch, channels, rows, columns]``: of patches, or of pixels if an
    image was only resized.
    """
    if not isinstance(output, Tensor) or output.ndim != 4:
        return None
    if codes is not None and codes.image is not None and not cuts:
        return _counted(output)
    rows, columns = output.shape[-2:]
    count = torch.arange(rows * columns, dtype=torch.int32, device=output.device)
    return Codes(count.view(rows, columns).expand(output.shape), (rows, columns))


def _padded(codes: Codes, args: tuple, kwargs: dict, output: Any) -> Codes | None:
    """Returns the codes of a padded image, whose pixels are counted again, or of padded tokens."""
    if codes.image is not None:
        return _counted(output) if isinstance(output, Tensor) and output.ndim == 4 else None
    pad = kwargs["pad"] if "pad" in kwargs else args[1]
    return Codes(torch.nn.functional.pad(codes.values, pad, value=INSERTED), codes.grid)


def _moved(codes: Codes, function: Callable, args: tuple, kwargs: dict) -> Codes | list[Codes] | None:
    """Applies an operation that moves entries to codes."""
    values = codes.values
    attempts = (
        lambda: function(values, *args, **kwargs),
        # A view of expanded codes may need a copy.
        lambda: function(values.contiguous(), *args, **kwargs),
        # The unfolding of images needs floats, and its padding is zero.
        lambda: function((values + 1).double().contiguous(), *args, **kwargs) - 1,
    )
    for attempt in attempts:
        try:
            moved = attempt()
        except (RuntimeError, TypeError, ValueError):
            continue
        parts = [moved] if isinstance(moved, Tensor) else list(moved)
        if not values.stride(-1):
            # A selection of tokens has stored the last axis, on which the codes do not depend.
            parts = [_thin(part) if part.ndim > 2 and part.stride(-1) else part for part in parts]
        found = [Codes(part.to(torch.int32), codes.grid, codes.image) for part in parts]
        return found[0] if isinstance(moved, Tensor) else found
    return None


def _thin(values: Tensor) -> Tensor:
    """Returns codes without a stored last axis, if they do not depend on it."""
    first = values[..., :1]
    return first.clone().expand(values.shape) if bool((values == first).all()) else values
