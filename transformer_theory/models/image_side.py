"""Images of another side than the configuration of a network names.

Many networks of ``transformers`` interpolate their position embedding if the argument
``interpolate_pos_encoding`` of their forward pass asks for it.
"""

import inspect
from types import SimpleNamespace
from typing import Any

from torch import nn

from .stored import Pretrained

ARGUMENT = "interpolate_pos_encoding"


class _Interpolation:
    """A hook before the forward pass that asks for interpolated positions."""

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {ARGUMENT: True, **kwargs}


def interpolate_positions(network: nn.Module) -> bool:
    """Lets a network interpolate its position embedding in every forward pass, and also its copies that
    ``copy.deepcopy`` makes; returns whether its forward pass has this argument.
    """
    try:
        takes = ARGUMENT in inspect.signature(network.forward).parameters
    except (TypeError, ValueError):  # some functions have no signature
        takes = False
    if takes and not interpolates(network):
        network.register_forward_pre_hook(_Interpolation(), with_kwargs=True)
    return takes


def interpolates(network: nn.Module) -> bool:
    """Returns whether :func:`interpolate_positions` was called for the network, or for the original of
    a copy.
    """
    return any(isinstance(hook, _Interpolation) for hook in network._forward_pre_hooks.values())


def side_of(network: nn.Module) -> int | None:
    """Returns the side of the images in the configuration of a network; None if it names none."""
    return number_of(network, "image_size", "img_size")


def number_of(network: nn.Module, *names: str) -> int | None:
    """Returns a size from the configuration of a network, which may be a number or a pair; None if it has
    none. The configuration of a training of this library are its stored sizes.
    """
    is_stored = isinstance(network, Pretrained)
    config = SimpleNamespace(**network.settings["sizes"]) if is_stored else getattr(network, "config", None)
    for name in names:
        value: Any = getattr(config, name, None)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int) and value > 0:
            return value
    return None
