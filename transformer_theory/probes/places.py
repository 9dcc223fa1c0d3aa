r"""Places of tokens in the inputs of a network, followed through the operations that make and move tokens.

The codes of a tensor say for each of its entries from which place of the input it comes:

    pixels    row * width + column of the image, before patches are cut
    patches   row * columns + column of the grid, after the patch embedding
    others    index of the token among those that were joined
    INSERTED  a token that does not come from the inputs: a class token, a register, a prompt
    CONTENT   a token of the inputs without a known place

A convolution or pooling of an image yields a grid of the size of its output. A product of cut-out pixels with
a matrix yields a grid if the first rows and columns of the pixels of all tokens form one. Operations that
move entries (views, permutations, selections by index, concatenations) are applied to the codes as well, so
that dropped and permuted patches keep their places. Operations that keep the shape keep the codes. Once an
attention has run, products with matrices lose them: the codes of the stream are those of its skip
connections.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .flow import JOINS, MOVES, Flow

INSERTED, CONTENT = -1, -2
RESIZES = {
    "avg_pool2d",
    "max_pool2d",
    "max_pool2d_with_indices",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
}
RESIZES |= {"interpolate", "pad", "grid_sample"}
SPATIAL = {"conv2d", *RESIZES}
PICKS = {"gather", "index_select", "take_along_dim", "flip", "repeat", "tile", "unfold", "im2col"}
PRODUCTS = {"linear", "matmul", "addmm"}


@dataclass(frozen=True)
class Codes:
    """Places of the entries of a tensor.

    Attributes:
        values: codes, int32, of the shape of the tensor; expanded along axes on which they do not depend.
        grid: rows and columns, if the codes are those of patches.
        width: width of the image in pixels, if the codes are those of pixels; otherwise 0.
    """

    values: Int[Tensor, "*shape"]
    grid: tuple[int, int] | None = None
    width: int = 0


class Places:
    """Codes by node of one forward pass.

    Args:
        flow: flow of tensors of the pass.

    Attributes:
        attended: whether an attention has run.
    """

    def __init__(self, flow: Flow):
        self.flow, self.attended = flow, False
        self.codes: dict[int, Codes] = {}

    def given(self, tensor: Tensor) -> None:
        """Records an input of the network; an image ``[batch, channels, height, width]`` has codes."""
        node = self.flow.node(tensor)
        if tensor.ndim == 4 and tensor.is_floating_point():
            height, width = tensor.shape[-2:]
            self.codes[node] = Codes(_counted((height, width), tensor), width=width)

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
        if name in JOINS:
            found = self._joined(args, kwargs, nodes, inputs, output)
        elif name in SPATIAL and not self.flow.is_constant(nodes[0]):
            found = _picture(codes.get(nodes[0]), output, cuts=name == "conv2d")
        elif not any(node in codes for node in nodes):
            return
        elif nodes[0] in codes and (name in MOVES or name in PICKS):
            found = _moved(codes[nodes[0]], function, args[1:], kwargs)
        elif name in PRODUCTS and nodes[0] in codes:
            found = None if self.attended else _projected(codes[nodes[0]], output)
        else:
            found = next((c for node in nodes if (c := _kept(codes.get(node), output)) is not None), None)
        outputs = output if isinstance(output, tuple | list) else [output]
        for tensor, each in zip(outputs, found if isinstance(found, list) else [found]):
            node = self.flow.known(tensor) if isinstance(tensor, Tensor) else None
            if each is not None and node is not None and each.values.shape == tensor.shape:
                codes[node] = each

    def _joined(
        self, args: tuple, kwargs: dict, nodes: Sequence[int], inputs: Sequence[Tensor], output: Any
    ) -> Codes | None:
        """Returns the codes of joined sequences ``[batch, seq, dim]`` or ``[seq, batch, dim]``."""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if not isinstance(output, Tensor) or not isinstance(dim, int):
            return None
        if dim % output.ndim == output.ndim - 1 and len(nodes) > 1:
            first = self.codes.get(nodes[0])
            return None if first is None or first.width else _merged(first, output)
        if output.ndim != 3:
            return None
        known = [self.codes.get(node) for node in nodes]
        given = [not self.flow.is_constant(node) for node in nodes]
        if not any(known) and (all(given) or not any(given)):
            return None
        # The codes of a single part without codes are its indices.
        lone = not any(known) and sum(given) == 1
        parts = []
        for x, codes, is_given in zip(inputs, known, given):
            if codes is not None and not codes.width:
                parts.append(codes.values)
            elif lone and is_given:
                shape = [1, 1, 1]
                shape[dim % 3] = x.shape[dim]
                count = torch.arange(x.shape[dim], dtype=torch.int32, device=x.device)
                parts.append(count.view(shape).expand(x.shape))
            else:
                code = CONTENT if is_given else INSERTED
                parts.append(torch.tensor(code, dtype=torch.int32, device=x.device).expand(x.shape))
        grids = {codes.grid for codes in known if codes is not None}
        grid = grids.pop() if len(grids) == 1 else None
        # All entries of a token have one code, so that the last axis need not be stored.
        return Codes(torch.cat([part[..., :1] for part in parts], dim % 3).expand(output.shape), grid)

    def of(self, node: int, *, time_first: bool) -> Codes | None:
        """Returns the codes of the tokens at a node, ``[batch, seq]``; None if they are not known.

        Args:
            node: node of a stream.
            time_first: whether it is ``[seq, batch, dim]``.
        """
        codes = self.codes.get(node)
        if codes is None or codes.width or codes.values.ndim < 3:
            return None
        values = codes.values
        first = values[..., 0]
        if values.stride(-1) and not bool((values == first[..., None]).all()):
            return None
        first = first.T if time_first and first.ndim == 2 else first.flatten(1)
        return Codes(first, codes.grid)


def _counted(size: tuple[int, int], like: Tensor) -> Int[Tensor, "batch channels h w"]:
    """Returns the index of each place of a grid, expanded to the shape of a tensor ``[..., h, w]``."""
    count = torch.arange(size[0] * size[1], dtype=torch.int32, device=like.device)
    return count.view(size).expand(like.shape)


def _picture(codes: Codes | None, output: Any, *, cuts: bool) -> Codes | None:
    """Returns the codes of a picture ``[batch, channels, rows, columns]``: of patches, or of pixels if an
    image was only resized.
    """
    if not isinstance(output, Tensor) or output.ndim != 4:
        return None
    rows, columns = output.shape[-2:]
    pixels = codes is not None and codes.width > 0 and not cuts
    return Codes(
        _counted((rows, columns), output), None if pixels else (rows, columns), columns if pixels else 0
    )


def _moved(codes: Codes, function: Callable, args: tuple, kwargs: dict) -> Codes | list[Codes] | None:
    """Applies an operation that moves entries to codes."""
    for values in (codes.values, codes.values.contiguous(), codes.values.float().contiguous()):
        # A view of expanded codes may need a copy, and the unfolding of images needs floats.
        try:
            moved = function(values, *args, **kwargs)
        except (RuntimeError, TypeError):
            continue
        if isinstance(moved, Tensor):
            return Codes(moved.to(torch.int32), codes.grid, codes.width)
        return [Codes(part.to(torch.int32), codes.grid, codes.width) for part in moved]
    return None


def _kept(codes: Codes | None, output: Any) -> Codes | None:
    """Returns the codes of an output with the shape of the input; None if it has another shape."""
    if codes is None or not isinstance(output, Tensor) or output.shape != codes.values.shape:
        return None
    return codes


def _projected(codes: Codes, output: Any) -> Codes | None:
    """Returns the codes of tokens after a product with a matrix; pixels of a token become its patch."""
    values = codes.values
    if not isinstance(output, Tensor) or output.shape[:-1] != values.shape[:-1] or values.ndim < 3:
        return None
    if not codes.width:
        return Codes(values[..., :1].expand(output.shape), codes.grid)
    if not bool((values == values[:1]).all()):
        return None
    # All images are cut alike. The first pixel of each patch tells its row and its column.
    first = values[0].flatten(0, -2)
    return _regridded((first // codes.width).amin(-1), (first % codes.width).amin(-1), output)


def _merged(codes: Codes, output: Tensor) -> Codes | None:
    """Returns the codes of tokens that were joined with their neighbours along the last axis; ``codes`` are
    those of the first of them.
    """
    if codes.grid is None or output.ndim < 3 or not bool((codes.values == codes.values[:1]).all()):
        return None
    first = codes.values[0, ..., 0].flatten()
    return _regridded(first // codes.grid[1], first % codes.grid[1], output)


def _regridded(row: Int[Tensor, " tokens"], column: Int[Tensor, " tokens"], output: Tensor) -> Codes | None:
    """Returns the codes of tokens whose rows and columns form a grid; None if they do not."""
    rows, columns = (each.unique(return_inverse=True) for each in (row, column))
    size = len(rows[0]), len(columns[0])
    places = rows[1] * size[1] + columns[1]
    if len(places) != size[0] * size[1] or len(places.unique()) != len(places):
        return None
    shape = (1, *output.shape[1:-1], 1)
    return Codes(places.to(torch.int32).view(shape).expand(output.shape), size)
