"""The memory that a training needs, estimated before anything is allocated.

    step        weights, gradients,
                two moments of Adam (4 arrays of the size of the weights)  +  what the backward pass of one
                batch keeps
    checkpoint  weights and moments three times: those of the training, their copies, and the file,
                which is written into memory first

With a frozen body only the last norm and the head have gradients and moments, and the body keeps nothing for
the backward pass. On an accelerator the copies lie in the memory of the machine and are not counted.

Weights and kept arrays are linear in the number of layers, so networks of one and two layers determine them.
Both networks consist of tensors with shapes and without values: the first of torch's ``meta`` device, the
second of fake tensors, which choose the same kernels as real ones.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...core.errors import first_line
from ...core.memory import gib
from ...core.memory import memory as machine_memory
from ...models.image_networks import Sizes
from ..optimisers import freeze_body

# arrays of the size of the trained weights beside them during a step: gradients, and the two moments of Adam
TRAINED = 3
# copies of weights and moments while a checkpoint is written: those of the training, of its state, and in the
# file
STORED = 3
# upper limit on the numbers that a layer keeps per token and dimension; measured: 8 (crate) to 20 (tost, with
# convolutions)
FLOATS = 64
Build = Callable[[Sizes], nn.Module]


class Uncountable(ValueError):
    """Raised if a network cannot be built without the values of its tensors, or has more of them than torch
    can count.
    """


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Builds the network on torch's ``meta`` device, where tensors have shapes but no values and need no
    memory.

    Args:
        build: builds the network; torch's random state is restored afterwards.
    Raises:
        Uncountable: the constructor needs the values of a tensor, or a tensor has too many.
        ValueError: ``build`` rejects the sizes.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return build()
    except (RuntimeError, OverflowError, TypeError) as error:  # a size above 2**63 is a TypeError in torch
        raise Uncountable(
            f"a network of these sizes cannot be built ({first_line(error)}); choose a smaller dim or depth"
        ) from error


def shapes_of(build: Callable[[], nn.Module], *, own: bool) -> nn.Module:
    """Builds a network whose parameter names and shapes are to be compared, without memory for its weights if
    possible.

    Args:
        build: builds the network; torch's random state is restored afterwards.
        own: whether the caller supplied the network. Its constructor may need values of tensors; it is then
            built in memory.
    Raises:
        Uncountable: see :func:`on_meta`.
    """
    try:
        return on_meta(build)
    except Uncountable:
        if not own:
            raise
    with torch.random.fork_rng(devices=[]):
        return build()


def check_memory(
    build: Build,
    sizes: Sizes,
    *,
    batch_size: int,
    own: bool = False,
    device: str = "cpu",
    frozen: bool = False,
) -> None:
    """Checks that the training of a network fits into memory; nothing is allocated.

    Args:
        build: builds the network for given sizes.
        sizes: sizes of the network.
        batch_size: images per step.
        own: whether the caller supplied the network. What its backward pass keeps is then not estimated, and
            neither are its weights if its constructor needs the values of a tensor.
        device: "cpu", "cuda" or "mps"; on an accelerator the memory of the device counts.
        frozen: whether only the parameters after the layers are trained, see :func:`.freeze_body`.
    Raises:
        ValueError: the sizes do not fit, or the training needs more than the memory; the message has the
            estimate and the memory.
    """
    memory = _device_memory() if device == "cuda" else machine_memory()
    network = partial(_with_frozen_body, build) if frozen else build
    try:
        trained = (
            _count(on_meta(lambda: network(sizes if own else replace(sizes, depth=1))), trained=True)
            if frozen
            else None
        )
        count = _count(on_meta(lambda: build(sizes))) if own else parameter_count(build, sizes)
    except Uncountable:
        if own:
            return
        raise
    trained = count if trained is None else trained
    step, activations = 4 * (count + TRAINED * trained), 0
    if not own:
        # The estimate takes tenths of a second, so it is left out where a rough upper limit is far below the
        # memory.
        tokens = batch_size * ((sizes.image_size // sizes.patch_size) ** 2 + 1)
        pairs = tokens * ((sizes.image_size // sizes.patch_size) ** 2 + 1) * sizes.heads
        limit = 4 * sizes.depth * (FLOATS * tokens * sizes.dim + 4 * pairs)
        activations = 0 if 4 * (limit + step) < memory else kept_bytes(network, sizes, batch_size=batch_size)
    if step + activations > memory:
        batch = f" and {gib(activations)} for a batch of {batch_size:,} images" if activations else ""
        smaller = (
            "a smaller dim or depth"
            if step > memory
            else "a smaller batch size, larger patches or smaller images"
        )
        raise ValueError(
            f"a network of {count:,} parameters needs {gib(step)} for weights, gradients and the "
            f"optimiser{batch}, got {gib(memory)} of memory; choose {smaller}"
        )
    stored = 4 * STORED * (count + 2 * trained)
    if device != "cuda" and stored > memory:
        raise ValueError(
            f"a network of {count:,} parameters needs {gib(stored)} for weights and optimiser with their "
            f"copies while a checkpoint is written, got {gib(memory)} of memory; choose a smaller dim or "
            "depth"
        )


def _with_frozen_body(build: Build, sizes: Sizes) -> nn.Module:
    network = build(sizes)
    freeze_body(network)
    return network


def parameter_count(build: Build, sizes: Sizes) -> int:
    """Returns the number of parameters of a network of this library, also where torch could not count them.

    The number is linear in the number of layers and a quadratic polynomial in the width. Beyond torch's
    numbers, narrow networks with one head determine it, without the temperatures of ``tost``, one per head.
    """
    shallow = [replace(sizes, depth=depth) for depth in (1, 2)]
    try:
        one, two = (_count(on_meta(partial(build, size))) for size in shallow)
    except Uncountable:
        if sizes.dim < 2**20:  # not the width is too large
            raise
        step = _multiple(sizes)
        narrow = [[replace(size, dim=width * step, heads=1) for width in (1, 2, 3)] for size in shallow]
        counts = [[_count(on_meta(partial(build, size))) for size in row] for row in narrow]
        one, two = (_quadratic(row, sizes.dim, step) for row in counts)
    return one + (sizes.depth - 1) * (two - one)


def kept_bytes(build: Build, sizes: Sizes, *, batch_size: int) -> int:
    """Returns the bytes that autograd keeps for the backward pass of a batch in float32, without the
    parameters.

    Returns 0 if the forward pass depends on the values of tensors, as in ``crate-exact``, or has more of them
    than torch can count.
    """
    try:
        one, two = (_kept(partial(build, replace(sizes, depth=depth)), sizes, batch_size) for depth in (1, 2))
    except (RuntimeError, OverflowError, TypeError, NotImplementedError):
        return 0
    return one + (sizes.depth - 1) * (two - one)


def _kept(build: Callable[[], nn.Module], sizes: Sizes, batch_size: int) -> int:
    """Returns the bytes of the storages that autograd keeps, each counted once."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.random.fork_rng(devices=[]), FakeTensorMode():
        network = build()
        parameters = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
        kept: dict[int, tuple[int, Tensor]] = {}

        def pack(saved: Tensor) -> Tensor:
            key = saved.untyped_storage()._cdata
            # the tensor stays alive, so its storage is not used again
            kept[key] = (saved.untyped_storage().nbytes(), saved)
            return saved

        images = torch.empty(batch_size, sizes.channels, sizes.image_size, sizes.image_size)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            outputs = network(images)  # noqa: F841 while the outputs exist, their graph does
        return sum(size for key, (size, _) in kept.items() if key not in parameters)


def _count(network: nn.Module, *, trained: bool = False) -> int:
    return sum(
        parameter.numel() for parameter in network.parameters() if parameter.requires_grad or not trained
    )


def _quadratic(values: list[int], width: int, step: int) -> int:
    """Returns the quadratic polynomial through the values at step, 2 step and 3 step, at ``width``; exact for
    integers.
    """
    first, second, third = values
    # Newton's form in x = width / step - 1: first + x d1 + x (x - 1) / 2 d2, multiplied by 2 step^2 to stay
    # in the integers.
    d1, d2, x = second - first, third - 2 * second + first, width - step
    return (2 * step**2 * first + 2 * step * x * d1 + x * (x - step) * d2) // (2 * step**2)


def _multiple(sizes: Sizes) -> int:
    """Returns the number that must divide the width: convolutions double it at each stage."""
    return 2 ** max(sizes.patch_size.bit_length() - 2, 0) if sizes.stem == "convolutions" else 1


def _device_memory() -> float:
    """Returns the memory of the accelerator in bytes."""
    return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
