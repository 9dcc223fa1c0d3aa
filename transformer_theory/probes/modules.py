"""Modules of a network: their names without wrappers, and the blocks (layers) among them.

A block is found by name, so it need not run: a layer may be a plain list ``ModuleList([attention, mlp])`` whose members the network calls.
Of the lists on the dotted name of an attention module, its block is the member of the innermost list *all* of whose members hold a module
of that attention's type: ``encoder.layer.3`` for ``encoder.layer.3.attention.self``, ``layers.0.blocks.1`` of a Swin, ``block.0`` of a T5
(its inner list ``layer`` also holds an MLP without attention).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

INSIDE = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # compile, Fabric, FSDP, checkpoints
PARALLEL = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
LISTS = (nn.ModuleList, nn.Sequential)


@dataclass
class _Row:
    """A list of blocks while the network runs through it.

    Attributes:
        members: names of the members that should attend, in order.
        base: layer number of the first member.
        seen: layer numbers of the members in which attention was seen, by name.
    """

    members: list[str]
    base: int
    seen: dict[str, int] = field(default_factory=dict)


class Blocks:
    """Blocks of a network by the names of its modules, numbered as the network runs through them.

    The number of a block counts its list from the first member on, also the members in which no attention was seen; a second list, or a
    second run through the same one (shared weights), counts on.

    Args:
        modules: names by module, without wrappers.
    """

    def __init__(self, modules: dict[nn.Module, str]):
        self.by_name = {name: module for module, name in modules.items()}
        self.count = 0  # of layers so far
        self._names: dict[str, str] = {}  # attention module -> block
        self._rows: dict[str, _Row] = {}
        self._unseen: list[tuple[int, str, str]] = []

    def name_of(self, name: str) -> str:
        """The name of the block in which the module ``name`` attends; the module itself if no list holds it."""
        if name not in self._names:
            self._names[name] = self._chosen(name, type(self.by_name[name]))
        return self._names[name]

    def _chosen(self, name: str, kind: type) -> str:
        levels: list[tuple[str, int, bool]] = []  # member, how many members of its list hold this kind, whether all do
        parts = name.split(".") if name else []
        for i in range(1, len(parts) + 1):
            holders = [self._holds(member, kind) for member in self._members(".".join(parts[: i - 1]))]
            if holders:
                levels.append((".".join(parts[:i]), sum(holders), all(holders)))
        if not levels:
            return name
        if whole := [member for member, count, complete in levels if complete and count > 1]:
            return whole[-1]
        # Lists in which only some members attend (every second one, say), then lists of one member.
        member, count, _ = max(levels, key=lambda level: level[1])
        return member if count > 1 else next((level[0] for level in levels if level[2]), levels[0][0])

    def number(self, block: str) -> int:
        """The number of a block that begins to run."""
        parent = block.rpartition(".")[0]
        row = self._rows.get(parent)
        if row is None or block in row.seen:
            self._close(parent)
            row = self._rows[parent] = _Row(self._siblings(parent, block), self.count)
        last = max(row.seen.values(), default=row.base - 1)
        number = row.base + row.members.index(block) if block in row.members else last + 1
        row.seen[block] = max(number, last + 1)  # members may run in another order than they are listed
        self.count = max(self.count, row.seen[block] + 1)
        return row.seen[block]

    def unseen(self, ran: set[str]) -> list[tuple[int, str, str]]:
        """Blocks in which no attention was seen though others of their list attend: number, name, and the name of one that attends.

        Args:
            ran: names of the modules that ran.
        """
        for parent in list(self._rows):
            self._close(parent)
        return [entry for entry in self._unseen if entry[1] in ran or any(name.startswith(f"{entry[1]}.") for name in ran)]

    def _close(self, parent: str) -> None:
        row = self._rows.pop(parent, None)
        if row is not None:
            first = next(iter(row.seen))
            self._unseen += [(row.base + i, name, first) for i, name in enumerate(row.members) if name not in row.seen]
            self.count = max(self.count, row.base + len(row.members))

    def _siblings(self, parent: str, block: str) -> list[str]:
        """The members of a list that should attend if ``block`` does: those of its type, and those that hold what attends in it."""
        kinds = {type(self.by_name[name]) for name, chosen in self._names.items() if chosen == block != name}
        own = type(self.by_name[block])
        alike = []
        for member in self._members(parent, named=True):
            same = type(original_of(self.by_name[member])) is own and own not in LISTS
            if member == block or same or any(self._holds(self.by_name[member], kind) for kind in kinds):
                alike.append(member)
        return alike

    def _members(self, name: str, *, named: bool = False) -> list[Any]:
        """Members of a list that have submodules, as modules or by name; none if the module is no list."""
        box = self.by_name.get(name)
        if not isinstance(box, LISTS):
            return []
        members = [(key, original_of(member)) for key, member in box.named_children() if len(original_of(member)._modules)]
        return [f"{name}.{key}" if name else key for key, _ in members] if named else [member for _, member in members]

    @staticmethod
    def _holds(member: nn.Module, kind: type) -> bool:
        return any(isinstance(inside, kind) for inside in member.modules())

    def longest_list(self) -> list[str]:
        """Names of the members of the longest list of similar modules: the blocks of a network without attention."""
        best: list[str] = []
        for name in self.by_name:
            members = self._members(name, named=True)
            kinds = [type(self.by_name[member]) for member in members]
            most = max(kinds, key=kinds.count, default=None)
            alike = [member for member, kind in zip(members, kinds) if kind is most]
            if len(alike) > max(len(best), 1):
                best = alike
        return best


def named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules without the wrappers of ``torch.compile`` and of parallel training; the model itself comes first."""
    yield "", model
    shown, wrappers = {}, set()  # qualified name -> name without wrappers
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        shown[name] = shown.get(parent, "") if parent in wrappers or not name else ".".join(filter(None, (shown.get(parent, ""), last)))
        if wrapped(module) is not None:
            wrappers.add(name)
        elif module is not model:
            yield shown[name], module


def wrapped(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper (compile, Lightning Fabric, parallel training); None if this is no wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    return next((module._modules[name] for name in INSIDE if name in module._modules), None)


def original_of(module: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    while (inside := wrapped(module)) is not None:
        module = inside
    return module


def is_shared(module: nn.Module) -> bool:
    """Whether several processes train the model, each on its share of the data: with DDP, FSDP, or Fabric around them."""
    layer: nn.Module | None = module
    while layer is not None:
        if PARALLEL & {kind.__name__ for kind in type(layer).__mro__}:
            return True
        layer = wrapped(layer)
    return False


def first_tensor(args: tuple, kwargs: dict) -> Tensor | None:
    """The first tensor among the arguments, tuples, lists and mappings included; None if there is none. Any shape ``[...]``."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, tuple | list) and (inner := first_tensor(tuple(value), {})) is not None:
            return inner
    return None
