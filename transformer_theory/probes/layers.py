"""Assigns each attention of a forward pass to a block, and emits the features of the blocks in order.

The features of a block are its output and the residual stream before and after its first attention. They are
emitted when the module of the block returns the stream. If no module returns it, they are emitted when the
attention of the block after the next one runs, or at the end of the pass.

A block ends at the tensor that its module returns; if none returns the stream, at the tensor to which the
next attention is added. The last block has no next one. It ends after the operations that also followed the
attention of the block before it, up to the end of that block. A single block ends after its last sum and the
operations that also followed the sum before, such as a norm. A norm of the network before its head is
therefore no part of the last block, and a norm or an activation after each sum is.

Several attentions of one list that were computed from the same stream, and not from each other, are parallel
branches of one block.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from .emission import Call, Emitter, as_stream
from .flow import Flow, Follower, Trail
from .modules import Blocks
from .places import Codes, Places
from .projections import Projection
from .redirect import aside
from .streams import Around, Streams

POOLED = "the features of {} are one vector per sequence; there are no tokens to compare"
OTHER_SHAPE = "{} ends in a tensor of another shape than its stream; its features end after its attention"

ENDS_BEFORE = (
    "no block before {0} shows where it ends; its features end after its last sum, and {1!r}, which follows, "
    "is left out"
)


@dataclass(eq=False)
class Attention:
    """One attention of a module that is running.

    Attributes:
        call: the attention; None if it is not measured.
        projection: projections of tokens to queries and keys, or the reason why there are none; None if
            they were not sought.
        key: root of the node of the keys in :class:`.Flow`; None if unknown.
        queries, keys: numbers of queries and keys.
        own: whether queries and keys are those of the same tokens; None if unknown.
    """

    call: Call | None
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
        attentions: attentions that have run in it, excluding its submodules.
        block: the block to which these attentions belong.
        time_first: whether its input is ``[seq, batch, dim]``.
        projections: nodes of projections whose inputs are stored.
        refusal: the reason why its attention is not measured; empty for most modules.
        source: node of ``tokens`` in :class:`.Flow`; -1 if it is a parameter or there is none.
    """

    name: str
    module: nn.Module
    tokens: Tensor | None
    attentions: list[Attention] = field(default_factory=list)
    block: "Block | None" = None
    time_first: bool = False
    projections: list[int] = field(default_factory=list)
    refusal: str = ""
    source: int = -1


@dataclass(eq=False)
class End:
    """The search for the end of a block by a trail that another part of the network has taken.

    Attributes:
        follower: the node reached so far.
        found: node and copy of the end, once it is reached.
    """

    follower: Follower
    found: tuple[int, Tensor] | None = None

    def step(self, flow: Flow, node: int, tensor: Tensor) -> None:
        """Takes the next node of the flow."""
        if self.follower.step(flow, node):
            with aside():
                self.found = node, tensor.detach().clone()


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
        ends: searches for its end by the trails of the blocks before it, the last one first, and the node of
            Z+ at which they begin.
        last_sum: search for its end by the trail between its last two sums.
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
    ends: tuple[int, list[End]] = (-1, [])
    last_sum: End | None = None
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
        notes: number of each block whose features are not its whole stream, and what they are.
        similar: names of the similar modules; empty once attention has run.
        unattended: input and output of each similar module; empty once attention has run.
        on_fault: function that receives an error, and the number and name of the block that it concerns.
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
        self.notes: list[tuple[int, str]] = []
        self.similar = set(blocks.longest_list()) if features and not attention else set()
        self.unattended: dict[str, tuple[Tensor, Tensor]] = {}
        self.on_fault: Callable[..., None] = _raised
        self._trails: dict[int, Trail] = {}  # layer -> operations from its Z+ to its end
        if features:
            flow.watcher = self._follow

    @property
    def count(self) -> int:
        """Number of layers so far."""
        return self.blocks.count or len(self.unattended)

    def attended(self, frame: Frame, stack: list[Frame], node: int | None) -> Block:
        """Returns the block of a module that computes attention: the last block, or a new one.

        Args:
            frame: the module.
            stack: all running modules, outermost first.
            node: node of the output of the attention; None if it is unknown.
        """
        self.unattended, self.similar = {}, set()
        name = self.blocks.name_of(frame.name)
        if self._is_parallel(name, frame, stack, node):
            return self._join(frame, stack)
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

    def _is_parallel(self, name: str, frame: Frame, stack: list[Frame], node: int | None) -> bool:
        """Whether an attention of the block ``name`` is a parallel branch beside the last attention: a member
        of the same list that reads the same stream, and was not computed from that attention.
        """
        last, parent = self.last, name.rpartition(".")[0]
        if last is None or node is None or last.emitted or not self.blocks.may_join(last.name, name):
            return False
        if any(self.flow.taint[node] >> around.number & 1 for around in last.streams):
            return False
        reader = next((one for one in stack if one.name.rpartition(".")[0] == parent), frame)
        earlier = last.frame or next(reversed(last.attending.values()))
        return reader.source >= 0 and self._origin(reader.source) == self._origin(earlier.source)

    def _origin(self, node: int) -> int:
        """Follows a node backwards as long as it was computed from one tensor alone, such as by a norm."""
        while node >= 0 and len(self.flow.parents[node]) == 1:
            node = self.flow.parents[node][0]
        return node

    def _join(self, frame: Frame, stack: list[Frame]) -> Block:
        """Adds a parallel branch to the last block, which becomes the block around the list of branches."""
        block = self.last
        assert block is not None
        self.blocks.join(block.name)
        block.name = self.blocks.name_of(frame.name)
        block.layer = self.blocks.number(block.name)
        block.frame = next((one for one in stack if one.name == block.name), None)
        block.tokens = None if block.frame is None else block.frame.tokens
        block.output = block.child = None
        block.attending[frame.name] = frame
        return block

    def _follow(self, node: int, tensor: Tensor) -> None:
        """Continues the searches for the end of the block that is running, with a new node."""
        block = self.pending[-1] if self.pending else None
        if block is None or not block.streams or (block.frame is not None and block.output is None):
            return  # its module may still return the stream
        last = block.streams[-1]
        if last.after_node < 0:
            return
        start, ends = block.ends
        if start != last.after_node:
            ends = self._begin_search(block, last.after_node, node)
        for end in ends:
            end.step(self.flow, node, tensor)
        last_sum, trail = last.sums[-1][0], last.trail
        if trail is not None:
            if block.last_sum is None or block.last_sum.follower.start != last_sum:
                block.last_sum = End(Follower(trail, last_sum))
            block.last_sum.step(self.flow, node, tensor)

    def _begin_search(self, block: Block, start: int, node: int) -> list[End]:
        """Begins the searches for the end of a block at the node of its Z+, and takes the nodes up to now."""
        before, first = (self.pending[-2] if len(self.pending) > 1 else None), block.streams[0]
        if before is not None and before.streams and before.streams[-1].after_node >= 0 <= first.before_node:
            trail = self.flow.trail(before.streams[-1].after_node, first.before_node)
            if trail is not None:
                self._trails.pop(before.layer, None)
                self._trails[before.layer] = trail
        trails = dict.fromkeys(reversed(self._trails.values()))
        block.ends = start, [End(Follower(trail, start)) for trail in trails]
        for end in block.ends[1]:
            for earlier in range(start + 1, node):
                end.follower.step(self.flow, earlier)
        return block.ends[1]

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
            tokens, output = self._sequences(before), self._sequences(after)
            if before.ndim == 2 and self.matching(name):
                self.notes.append((number, POOLED.format(name)))
            if self.matching(name) and tokens is not None and output is not None:
                place = {"name": name, "layer": number, "module": self.blocks.by_name[name]}
                self.emitter.features(tokens, None, output, sequences=name.rpartition(".")[0], **place)

    def _emit_first(self) -> None:
        """Emits the features of the first pending block. An error costs this block alone."""
        block, *others = self.pending
        self.pending, block.emitted = others, True
        try:
            self._emit(block, others[0] if others else None)
        except Exception as error:
            self.on_fault(error, block.layer, block.name)

    def _emit(self, block: Block, next_block: Block | None) -> None:
        """Emits the features of a block."""
        streams = [around for around in block.streams if around.before is not None]
        if streams and block.time_first:
            block.time_first = any(
                frame.time_first and not _transposed(frame.tokens, streams[0].before)
                for frame in block.attending.values()
            )
        tokens = streams[0].before if streams else block.tokens
        after = streams[0].after if streams else None
        output = (
            self._output_of(block, streams[-1], next_block)
            if streams
            else None
            if block.output is None
            else block.output[1]
        )
        block.tokens = None
        for around in block.streams:
            self.streams.settle(around)
        if not self.matching(block.name):
            return
        if not streams:
            self.without_stream.append((block.layer, block.name))
        if output is not None and output.ndim == 2 and self._is_pooled(block, len(output)):
            self.notes.append((block.layer, POOLED.format(block.name)))
            before, output, after = (self._sequences(x) for x in (tokens, output, after))
        else:
            before, output, after = (
                as_stream(x, time_first=block.time_first) for x in (tokens, output, after)
            )
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
        nodes += [] if block.frame is None else [block.frame.source]
        found = (self.places.of(node, time_first=block.time_first) for node in nodes)
        return next((codes for codes in found if codes is not None), None)

    @staticmethod
    def _is_pooled(block: Block, n: int) -> bool:
        """Whether ``[n, dim]`` holds one vector of each sequence: no attention of the block has n queries."""
        queries = {one.queries for frame in block.attending.values() for one in frame.attentions}
        return not queries & {0, n}  # 0: unknown

    @staticmethod
    def _sequences(x: Tensor | None) -> Tensor | None:
        """Reshapes a tensor to [batch, seq, dim]; one vector of each sequence is a sequence of length 1."""
        return as_stream(x if x is None or x.ndim != 2 else x.unsqueeze(1))

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
        known = (block.output, before_next, *(self._found(end, last) for end in block.ends[1]))
        if (end := self._first(known, last)) is not None:
            return end[1]
        # The end is not known from elsewhere: the last sum and what followed the sum before, or the output of
        # the last member of the list, such as a norm, or an MLP without a skip connection as in a CRATE.
        found = (
            last.sums[-1] if len(last.sums) > 1 else None,
            block.last_sum.found if block.last_sum is not None else None,
            block.child,
        )
        latest = sorted((one for one in found if one is not None), key=lambda one: -one[0])
        end = self._first(latest, last) or last.sums[0]
        later = (block.output, *latest)
        if end is last.sums[0] and any(one and self.flow.descends(one[0], last.after_node) for one in later):
            self.notes.append((block.layer, OTHER_SHAPE.format(block.name)))
        elif follows := self.flow.activation_after(end[0]):
            self.notes.append((block.layer, ENDS_BEFORE.format(block.name, follows)))
        return end[1]

    def _first(
        self, candidates: Iterable[tuple[int, Tensor] | None], last: Around
    ) -> tuple[int, Tensor] | None:
        """Returns the first candidate that was computed from Z+ and has its shape."""
        for candidate in candidates:
            if (
                candidate is not None
                and last.before is not None
                and candidate[1].shape == last.before.shape
                and self.flow.descends(candidate[0], last.after_node)
            ):
                return candidate
        return None

    @staticmethod
    def _found(end: End, last: Around) -> tuple[int, Tensor] | None:
        """Returns node and copy of the end of a block; a block may end at Z+ itself."""
        return last.sums[0] if end.follower.end == last.sums[0][0] else end.found


def _raised(error: Exception, layer: int, name: str) -> None:
    raise error


def _transposed(tokens: Tensor | None, stream: Tensor | None) -> bool:
    """Whether a stream is [batch, seq, dim] although a module receives [seq, batch, dim]."""
    if tokens is None or stream is None or tokens.ndim != 3 or stream.ndim != 3:
        return False
    if tokens.shape[0] != tokens.shape[1]:
        return stream.shape[:2] == (tokens.shape[1], tokens.shape[0])
    # As many sequences as tokens: a transposed view has its axes in another order in memory.
    return tokens.stride(0) < tokens.stride(1) and not stream.stride(0) < stream.stride(1)
