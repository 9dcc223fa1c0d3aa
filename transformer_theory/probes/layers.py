"""The layers of a forward pass: which block an attention belongs to, and the features of each block, emitted in order.

The features of a block are the residual stream before and after its first attention, and its output. They are emitted when its module
returns the stream; if no module does, when the next attention has been added to the stream, or at the end of the pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from .emission import Call, Emitter, as_stream
from .flow import Flow
from .modules import Blocks
from .projections import Projection
from .redirect import aside
from .streams import Around, Streams


@dataclass(eq=False)
class Attention:
    """One attention while its module runs."""

    call: Call | None
    projection: Projection | None
    key: int | None  # root of the node of the keys
    queries: int
    keys: int


@dataclass(eq=False)
class Frame:
    """A module while it runs."""

    name: str
    module: nn.Module
    tokens: Tensor | None
    attentions: list[Attention] = field(default_factory=list)
    block: "Block | None" = None  # the block in which it attends
    time_first: bool = False  # streams are [seq, batch, dim]
    projections: list[int] = field(default_factory=list)  # nodes of projections whose inputs are kept


@dataclass(eq=False)
class Block:
    """A block in which attention ran.

    Attributes:
        frame: of its module; None if the network calls the members of a list that itself never runs.
        attending: frames in which it attended, by name.
        streams: around each of its attentions.
        output, child: what its module returned, and what the member of its list that ran last returned: node and copy.
    """

    name: str
    layer: int
    frame: Frame | None
    heads: int = 0
    time_first: bool = False
    attending: dict[str, Frame] = field(default_factory=dict)
    streams: list[Around] = field(default_factory=list)
    tokens: Tensor | None = None
    output: tuple[int, Tensor] | None = None
    child: tuple[int, Tensor] | None = None
    emitted: bool = False


class Layers:
    """The blocks of one forward pass.

    Args:
        flow, streams: of the pass.
        blocks: names and numbers.
        emitter: passes the features on.
        matching: whether a name is one of those asked for.
        features: whether a metric needs features.
        attention: whether a metric needs attention; if none does, similar modules stand for the blocks of a network without attention.
    """

    def __init__(
        self,
        flow: Flow,
        streams: Streams,
        blocks: Blocks,
        emitter: Emitter,
        matching: Callable[[str], bool],
        *,
        features: bool,
        attention: bool,
    ):
        self.flow, self.streams, self.blocks, self.emitter = flow, streams, blocks, emitter
        self.matching, self.features = matching, features
        self.pending: list[Block] = []  # in order, without those whose features were emitted
        self.last: Block | None = None
        self.without_stream: list[tuple[int, str]] = []  # blocks whose residual stream was not found
        self.similar = set(blocks.longest_list()) if features and not attention else set()
        self.unattended: dict[str, tuple[Tensor, Tensor]] = {}  # input and output of similar modules, until an attention is met

    @property
    def count(self) -> int:
        """Number of layers so far."""
        return self.blocks.count or len(self.unattended)

    def attended(self, frame: Frame, stack: list[Frame]) -> Block:
        """The block in which a module attends: the current one, or a new one that begins."""
        self.unattended, self.similar = {}, set()
        name = self.blocks.name_of(frame.name)
        running = next((one for one in stack if one.name == name), None)
        last = self.last
        # In a list that does not run itself, a module that runs a second time begins the next round (shared weights).
        same = last is not None and last.name == name and last.frame is running
        if last is not None and same and (running is not None or last.attending.get(frame.name, frame) is frame):
            last.attending[frame.name] = frame
            return last
        block = Block(name, self.blocks.number(name), running, attending={frame.name: frame})
        block.tokens = None if running is None else running.tokens
        self.last = block
        self.pending.append(block)
        return block

    def add(self, block: Block, around: Around) -> None:
        """An attention of a block."""
        block.streams.append(around)
        while len(self.pending) > 2 and self.features:  # the last but one ends where the last attention was added to the stream
            self._emit_first()

    def left(self, frame: Frame, first: Tensor) -> None:
        """Keeps what a module of a block returned, and emits the features of a block that returned the stream."""
        node = self.flow.known(first)
        assert node is not None
        parent = frame.name.rpartition(".")[0]
        for block in self.pending[-2:]:
            if block.frame is frame:
                around = next((one for one in reversed(block.streams) if one.before is not None), None)
                returned = (
                    around is not None
                    and around.before is not None
                    and first.shape == around.before.shape
                    and self.flow.descends(node, around.after_node)
                )
                with aside():
                    block.output = node, first.detach().clone()
                    if returned:
                        while not block.emitted:
                            self._emit_first()
            elif block.frame is None and parent == block.name:
                with aside():
                    block.child = node, first.detach().clone()
        if frame.name in self.similar and frame.tokens is not None:
            with aside():
                self.unattended[frame.name] = frame.tokens, first.detach().clone()

    def end(self) -> None:
        """Emits what waited for the end of the pass."""
        while self.pending and self.features:
            self._emit_first()
        for number, (name, (before, after)) in enumerate(self.unattended.items()):
            tokens, output = as_stream(before), as_stream(after)
            if self.matching(name) and tokens is not None and output is not None:
                self.emitter.features(tokens, None, output, name=name, layer=number, module=self.blocks.by_name[name])

    def _emit_first(self) -> None:
        """Emits the features of the first block that waits."""
        block, *others = self.pending
        following = others[0] if others else None
        self.pending, block.emitted = others, True
        found = [around for around in block.streams if around.before is not None]
        tokens = found[0].before if found else block.tokens
        after = found[0].after if found else None
        output = self._output_of(block, found[-1], following) if found else None if block.output is None else block.output[1]
        for around in block.streams:
            self.streams.settle(around)
        if not self.matching(block.name):
            return
        if not found:
            self.without_stream.append((block.layer, block.name))
        before, output, after = (as_stream(x, time_first=block.time_first) for x in (tokens, output, after))
        if before is not None and output is not None:
            module = self.blocks.by_name[block.name]
            self.emitter.features(before, after, output, name=block.name, layer=block.layer, module=module)

    def _output_of(self, block: Block, last: Around, following: Block | None) -> Tensor | None:
        """The output of a block: the first of these that was computed from Z+ and has its shape."""
        assert last.before is not None
        begins = following.streams[0] if following is not None else None
        choices = (block.output, None if begins is None or begins.before is None else (begins.before_node, begins.before))
        for choice in choices:
            if choice is not None and choice[1].shape == last.before.shape and self.flow.descends(choice[0], last.after_node):
                return choice[1]
        if (end := self.streams.end_of(last)) is not None:  # Z+ + f(Z+)
            return end
        child = block.child  # an MLP without a skip, as in the last layer of a CRATE
        if child is not None and child[1].shape == last.before.shape and self.flow.descends(child[0], last.after_node):
            return child[1]
        return last.after  # layers of attention alone
