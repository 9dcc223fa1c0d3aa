"""What stands around a model, and what probes look through: wrappers of ``torch.compile``, Lightning Fabric and parallel training."""

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

INSIDE = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # compile, Fabric, FSDP, checkpoints
PARALLEL = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def wrapped(module: nn.Module) -> nn.Module | None:
    """The module that a wrapper holds; None if this is no wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    return next((module._modules[name] for name in INSIDE if name in module._modules), None)


def original_of(module: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    while (inside := wrapped(module)) is not None:
        module = inside
    return module


def is_shared(module: nn.Module) -> bool:
    """Whether several processes train the model, each on its share of the data: DDP, FSDP, or Fabric around them."""
    layer: nn.Module | None = module
    while layer is not None:
        if PARALLEL & {kind.__name__ for kind in type(layer).__mro__}:
            return True
        layer = wrapped(layer)
    return False
