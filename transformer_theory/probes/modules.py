"""Names of the modules of a network, without wrappers, and the blocks (layers) among the modules.

Blocks are identified by name, because a block need not be a module that runs: it may be a plain list
``ModuleList([attention, mlp])`` whose members the network calls. An attention module usually lies inside
several nested lists. Its block is the member of the innermost list in which *every* member contains a module
of the same type: ``encoder.layer.3`` for ``encoder.layer.3.attention.self``, ``layers.0.blocks.1`` in a Swin,
and ``block.0`` in a T5, whose inner list ``layer`` also has an MLP without attention. Names do not tell
whether the members of a list are blocks in a row or parallel branches of one block; :mod:`.layers` learns it
from the flow of tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ..models.weights import INSIDE

SHARDED = {"FullyShardedDataParallel", "FSDPModule"}
PARALLEL = {"DistributedDataParallel"} | SHARDED
LISTS = (nn.ModuleList, nn.Sequential)


@dataclass
class _Round:
    """One run of the network through a list of blocks.

    Attributes:
        members: names of the members that should contain attention, in order.
        base: layer number of the first member.
        layers: layer numbers of the members in which attention has run, by name.
    """

    members: list[str]
    base: int
    layers: dict[str, int] = field(default_factory=dict)


class Blocks:
    """Names and layer numbers of the blocks of a network. Blocks are numbered while the network runs.

    Members of a list are numbered from its first member, including members in which no attention was
    recognised. Numbers continue with the next list, or with the next run through the same list (shared
    weights).

    Args:
        modules: names by module, without wrappers.

    Attributes:
        count: number of layers so far.
    """

    def __init__(self, modules: dict[nn.Module, str]):
        self.by_name = {name: module for module, name in modules.items()}
        self.count = 0
        self._names: dict[str, str] = {}  # attention module -> block
        self._rounds: dict[str, _Round] = {}  # list -> its current round
        self._unseen: list[tuple[int, str, str]] = []
        self._branches: set[str] = set()  # lists whose members are parallel branches of one block

    def name_of(self, name: str) -> str:
        """Returns the name of the block of the attention module ``name``; the module itself if no list
        contains it.
        """
        if name not in self._names:
            self._names[name] = self._block_of(name, type(self.by_name[name]))
        return self._names[name]

    def _block_of(self, name: str, kind: type) -> str:
        """Finds the block of an attention module of type ``kind``."""
        # One level per list that contains the module, outermost first: the member of the list that contains
        # the module, the number of members that contain a module of this type, and whether every member does.
        levels: list[tuple[str, int, bool]] = []
        parts = name.split(".") if name else []
        for i in range(1, len(parts) + 1):
            if ".".join(parts[: i - 1]) in self._branches:
                continue
            contain_kind = [
                self._contains(member, kind) for member in self._members(".".join(parts[: i - 1]))
            ]
            if contain_kind:
                levels.append((".".join(parts[:i]), sum(contain_kind), all(contain_kind)))
        if not levels:
            inside = [parent for parent in self._branches if name.startswith(f"{parent}.")]
            return min(inside, key=len, default=name)
        if complete_levels := [member for member, count, complete in levels if complete and count > 1]:
            return complete_levels[-1]
        # No list is complete: use the list with the most such members (every second member may be an MLP). If
        # no list has two, prefer the outermost list of a single member.
        member, count, _ = max(levels, key=lambda level: level[1])
        return member if count > 1 else next((level[0] for level in levels if level[2]), levels[0][0])

    def may_join(self, first: str, second: str) -> bool:
        """Whether two blocks are different members of one list, of which only the first has been numbered."""
        parent = first.rpartition(".")[0]
        current = self._rounds.get(parent)
        return (
            first != second
            and parent == second.rpartition(".")[0]
            and current is not None
            and list(current.layers) == [first]
        )

    def join(self, block: str) -> None:
        """Makes the members of the list of a block parallel branches of the block around the list, and takes
        the number of the block back.
        """
        parent = block.rpartition(".")[0]
        self._branches.add(parent)
        self.count = self._rounds.pop(parent).base
        self._names = {
            name: owner for name, owner in self._names.items() if not name.startswith(f"{parent}.")
        }

    def number(self, block: str) -> int:
        """Returns the layer number of a block whose first attention runs."""
        parent = block.rpartition(".")[0]
        current = self._rounds.get(parent)
        if current is None or block in current.layers:  # a block that runs again begins a new round
            self._close(parent)
            current = self._rounds[parent] = _Round(self._siblings(parent, block), self.count)
        last = max(current.layers.values(), default=current.base - 1)
        number = current.base + current.members.index(block) if block in current.members else last + 1
        # the order of execution may differ from the order of the list
        current.layers[block] = max(number, last + 1)
        self.count = max(self.count, current.layers[block] + 1)
        return current.layers[block]

    def unseen(self, ran: set[str]) -> list[tuple[int, str, str]]:
        """Lists the blocks in which no attention was recognised although it was in other members of the same
        list.

        Args:
            ran: names of the modules that ran.
        Returns:
            For each such block that ran: its layer number, its name, and the name of a member with attention.
        """
        for parent in list(self._rounds):
            self._close(parent)
        return [
            entry
            for entry in self._unseen
            if entry[1] in ran or any(name.startswith(f"{entry[1]}.") for name in ran)
        ]

    def _close(self, parent: str) -> None:
        """Ends the current round of a list, and stores its members without recognised attention."""
        last_round = self._rounds.pop(parent, None)
        if last_round is not None:
            base, members, layers = last_round.base, last_round.members, last_round.layers
            first = next(iter(layers))
            self._unseen += [(base + i, name, first) for i, name in enumerate(members) if name not in layers]
            self.count = max(self.count, base + len(members))

    def _siblings(self, parent: str, block: str) -> list[str]:
        """Lists the members of a list that should contain attention if ``block`` does.

        These are the members of the same type as the block, and the members that contain a module of the type
        of its attention modules.
        """
        attention_types = {
            type(self.by_name[name]) for name, owner in self._names.items() if owner == block != name
        }
        block_type = type(self.by_name[block])
        siblings = []
        for member in self._members(parent, named=True):
            same_type = type(original_of(self.by_name[member])) is block_type and block_type not in LISTS
            if (
                member == block
                or same_type
                or any(self._contains(self.by_name[member], kind) for kind in attention_types)
            ):
                siblings.append(member)
        return siblings

    def _members(self, name: str, *, named: bool = False) -> list[Any]:
        """Returns the members of the list ``name`` that have submodules, as modules or as names; none if the
        module is not a list.
        """
        container = self.by_name.get(name)
        if not isinstance(container, LISTS):
            return []
        members = [
            (key, original_of(member))
            for key, member in container.named_children()
            if len(original_of(member)._modules)
        ]
        return (
            [f"{name}.{key}" if name else key for key, _ in members]
            if named
            else [member for _, member in members]
        )

    @staticmethod
    def _contains(member: nn.Module, kind: type) -> bool:
        """Whether a module or one of its submodules has this type."""
        return any(isinstance(module, kind) for module in member.modules())

    def longest_list(self) -> list[str]:
        """Returns the names of the members of the longest list of similar modules, which are the blocks of a
        network without attention.
        """
        longest: list[str] = []
        for name in self.by_name:
            members = self._members(name, named=True)
            kinds = [type(self.by_name[member]) for member in members]
            most_frequent = max(kinds, key=kinds.count, default=None)
            similar = [member for member, kind in zip(members, kinds) if kind is most_frequent]
            if len(similar) > max(len(longest), 1):
                longest = similar
        return longest


def named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields names and modules without the wrappers of ``torch.compile`` and of parallel training, the model
    itself first.
    """
    yield "", model
    short_names, wrappers = {}, set()  # qualified name -> name without wrappers; qualified names of wrappers
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        prefix = short_names.get(parent, "")
        # The module inside a wrapper takes the wrapper's name: the last part of its own name is dropped.
        short_names[name] = (
            prefix if parent in wrappers or not name else ".".join(filter(None, (prefix, last)))
        )
        if wrapped(module) is not None:
            wrappers.add(name)
        elif module is not model:
            yield short_names[name], module


def wrapped(module: nn.Module) -> nn.Module | None:
    """Returns the module inside a wrapper (compile, Lightning Fabric, parallel training); None if the module
    is not a wrapper.
    """
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    return next((module._modules[name] for name in INSIDE if name in module._modules), None)


def original_of(module: nn.Module) -> nn.Module:
    """Removes all wrappers of a module."""
    while (inside := wrapped(module)) is not None:
        module = inside
    return module


def is_shared(module: nn.Module) -> bool:
    """Whether a module is wrapped in DDP or FSDP, also inside Fabric, so that each of several processes
    trains on its share of the data.
    """
    layer: nn.Module | None = module
    while layer is not None:
        if PARALLEL & {kind.__name__ for kind in type(layer).__mro__}:
            return True
        layer = wrapped(layer)
    return False


def check_stored(model: nn.Module, name: str) -> None:
    """Checks that the parameters of a model have values. A hook of ``accelerate`` may load them when they are
    needed.

    Raises:
        ValueError: a parameter is on the meta device, or lazy: it has no shape before the first pass.
    """
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        raise ValueError(
            f"{name} must have weights, got lazy parameters, which have no shape yet; run it on a batch first"
        )
    if any(parameter.is_meta for parameter in model.parameters()) and not any(
        hasattr(module, "_hf_hook") for module in model.modules()
    ):
        raise ValueError(
            f"{name} must have weights, got parameters on the meta device, which have no values; load it, "
            "or call model.to_empty(device='cpu') and load_state_dict"
        )


def check_whole(module: nn.Module, name: str) -> None:
    """Checks that no parameter of a module lies in parts on several processes.

    Raises:
        ValueError: the module, or a part of it, is wrapped in FSDP.
    """
    kinds = {kind.__name__ for each in module.modules() for kind in type(each).__mro__}
    if SHARDED & kinds:
        raise ValueError(
            f"{name} must have its weights in one piece to be changed, got FSDP; gather them into a network "
            "without it"
        )


def first_tensor(args: tuple, kwargs: dict) -> Tensor | None:
    """Returns the first tensor among the arguments, also in nested tuples, lists and mappings; None if there
    is none.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, tuple | list) and (inner := first_tensor(tuple(value), {})) is not None:
            return inner
    return None
