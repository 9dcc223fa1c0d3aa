"""Assigns each attention of a forward pass to a block, and emits the features of the blocks in order.

The features of a block are its output and the residual stream before and after its first attention. They are
emitted when the module of the block returns the stream. If no module returns it, they are emitted when the
attention of the block after the next one runs, or at the end of the pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from .emission import Call, Emitter, as_stream
from .flow import Flow
from .modules import Blocks
from .places import Codes, Places
from .projections import Projection
from .redirect import aside
from .streams import Around, Streams


@dataclass(eq=False)
class Attention:
    """One attention of a module that is running.

    Attributes:
        call: the attention.
        projection: projections of tokens to queries and keys, or the reason why there are none; None if
            they were not sought.
        key: root of the node of the keys in :class:`.Flow`; None if unknown.
        queries, keys: numbers of queries and keys.
        own: whether queries and keys are those of the same tokens; None if unknown.
    """

    call: Call
    projection: Projection | str | None
    key: int | None
    queries: int
    keys: int
    own: bool | None = None


@dataclass(eq=False)
class Frame:
    """A module that is running.

    Attributes:
        tokens: first tensor among its arguments.
        node: its node in :class:`.Flow`; -1 if unknown.
        attentions: attentions that have run in it, excluding its submodules.
        block: the block to which these attentions belong.
        time_first: whether its input is ``[seq, batch, dim]``.
        projections: nodes of projections whose inputs are stored.
    """

    name: str
    module: nn.Module
    tokens: Tensor | None
    node: int = -1
    attentions: list[Attention] = field(default_factory=list)
    block: "Block | None" = None
    time_first: bool = False
    projections: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Block:
    """A block in which attention has run.

    Attributes:
        layer: number of the block.
        frame: frame of its module; None if the block is a list that does not run itself, because the network
            calls its members.
        heads: number of heads of its attentions so far.
        time_first: whether the stream is ``[seq, batch, dim]``.
        attending: frames of its modules that compute attention, by name.
        streams: residual stream around each of its attentions.
        tokens: input of its module.
        output: node and copy of the tensor that its module returned.
        child: node and copy of the tensor that the last member of the list returned, if the block is a list.
        emitted: whether its features have been emitted.
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
        flow, streams: flow of tensors and residual streams of the pass.
        places: places of the tokens in the inputs.
        blocks: names and numbers of the blocks.
        emitter: emitter of the features.
        matching: function that tells whether the name of a block matches the glob.
        features: whether a metric needs features.
        attention: whether a metric needs attention. False: in a network without attention, similar modules
            are its blocks.

    Attributes:
        pending: blocks whose features have not been emitted, in order.
        last: the block of the last attention.
        without_stream: number and name of each block whose residual stream was not found.
        similar: names of the similar modules; empty once attention has run.
        unattended: input and output of each similar module; empty once attention has run.
    """

    def __init__(
        self,
        flow: Flow,
        streams: Streams,
        places: Places,
        blocks: Blocks,
        emitter: Emitter,
        matching: Callable[[str], bool],
        *,
        features: bool,
        attention: bool,
    ):
        self.flow, self.streams, self.blocks, self.emitter = flow, streams, blocks, emitter
        self.places = places
        self.matching, self.features = matching, features
        self.pending: list[Block] = []
        self.last: Block | None = None
        self.without_stream: list[tuple[int, str]] = []
        self.similar = set(blocks.longest_list()) if features and not attention else set()
        self.unattended: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def count(self) -> int:
        """Number of layers so far."""
        return self.blocks.count or len(self.unattended)

    def attended(self, frame: Frame, stack: list[Frame]) -> Block:
        """Returns the block of a module that computes attention: the last block, or a new one.

        Args:
            frame: the module.
            stack: all running modules, outermost first.
        """
        self.unattended, self.similar = {}, set()
        name = self.blocks.name_of(frame.name)
        running = next((one for one in stack if one.name == name), None)
        last = self.last
        # If the block runs as a module, one run is one block. If it is a list that does not run itself, a
        # module that runs a second time begins a new block: the network runs through the list again (shared
        # weights).
        is_last = last is not None and last.name == name and last.frame is running
        if (
            last is not None
            and is_last
            and (running is not None or last.attending.get(frame.name, frame) is frame)
        ):
            last.attending[frame.name] = frame
            return last
        block = Block(name, self.blocks.number(name), running, attending={frame.name: frame})
        block.tokens = None if running is None else running.tokens
        self.last = block
        self.pending.append(block)
        return block

    def add(self, block: Block, around: Around) -> None:
        """Adds an attention to a block."""
        block.streams.append(around)
        # The output of a block may be known only when the attention of the next block has been added to the
        # stream, so two blocks wait.
        while len(self.pending) > 2 and self.features:
            self._emit_first()

    def left(self, frame: Frame, first: Tensor) -> None:
        """Stores the output of a module that has ended, and emits the features of a block whose module
        returned the stream.
        """
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
        """Emits the features of all pending blocks, or of the similar modules of a network
        without attention.
        """
        while self.pending and self.features:
            self._emit_first()
        for number, (name, (before, after)) in enumerate(self.unattended.items()):
            tokens, output = as_stream(before), as_stream(after)
            if self.matching(name) and tokens is not None and output is not None:
                place = {"name": name, "layer": number, "module": self.blocks.by_name[name]}
                self.emitter.features(tokens, None, output, sequences=name.rpartition(".")[0], **place)

    def _emit_first(self) -> None:
        """Emits the features of the first pending block."""
        block, *others = self.pending
        next_block = others[0] if others else None
        self.pending, block.emitted = others, True
        streams = [around for around in block.streams if around.before is not None]
        tokens = streams[0].before if streams else block.tokens
        after = streams[0].after if streams else None
        output = (
            self._output_of(block, streams[-1], next_block)
            if streams
            else None
            if block.output is None
            else block.output[1]
        )
        for around in block.streams:
            self.streams.settle(around)
        if not self.matching(block.name):
            return
        if not streams:
            self.without_stream.append((block.layer, block.name))
        before, output, after = (as_stream(x, time_first=block.time_first) for x in (tokens, output, after))
        if before is not None and output is not None:
            self.emitter.features(
                before,
                after,
                output,
                codes_of=partial(self.codes, block),
                sequences=block.name.rpartition(".")[0],
                name=block.name,
                layer=block.layer,
                module=self.blocks.by_name[block.name],
            )

    def codes(self, block: Block) -> Codes | None:
        """Returns the places of the tokens of a block; None if they are not known."""
        nodes = [around.before_node for around in block.streams if around.before_node >= 0]
        nodes += [] if block.frame is None else [block.frame.node]
        found = (self.places.of(node, time_first=block.time_first) for node in nodes)
        return next((codes for codes in found if codes is not None), None)

    def _output_of(self, block: Block, last: Around, next_block: Block | None) -> Tensor | None:
        """Returns the output of a block: the first candidate that was computed from Z+ and has its shape.

        Args:
            block: the block.
            last: residual stream around the last attention of the block; Z+ is the stream after it.
            next_block: the block that runs next; None for the last block.
        """
        assert last.before is not None
        # Candidates: the tensor that the module returned, then the stream before the first attention of the
        # next block.
        next_stream = next_block.streams[0] if next_block is not None else None
        before_next = (
            None
            if next_stream is None or next_stream.before is None
            else (next_stream.before_node, next_stream.before)
        )
        for candidate in (block.output, before_next):
            if (
                candidate is not None
                and candidate[1].shape == last.before.shape
                and self.flow.descends(candidate[0], last.after_node)
            ):
                return candidate[1]
        if (end := self.streams.end_of(last)) is not None:  # Z+ + f(Z+)
            return end
        child = block.child  # an MLP without a skip connection, as in the last layer of a CRATE
        if (
            child is not None
            and child[1].shape == last.before.shape
            and self.flow.descends(child[0], last.after_node)
        ):
            return child[1]
        return last.after  # a layer without an MLP
