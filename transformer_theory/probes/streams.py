r"""The residual stream before and after each attention, determined from the flow of tensors.

The residual addition of an attention is an operation

    out = a + b      a was computed from the output of the attention and from b;
                     b was not computed from the output of the attention.

Then Z = b is the stream before the attention, and Z+ = out the stream after it. The definition does not refer
to modules, so it does not matter which module adds the tensors, or whether a module returns the stream. Norms
before or after the addition do not matter either.

Special cases:

* Parallel blocks compute x + (attn + mlp) or (x + mlp) + attn. In the first form attn is added to mlp, from
  which it was not computed; in the second to x + mlp, of which only x is an ancestor of attn. In both, Z = x
  and Z+ = Z + attn. Several attentions of the same x may be added in both ways, also in a loop: then
  :math:`Z^+ = Z + \sum_i attn_i`.
* Value residuals add V to attn V before the residual addition. The stream x is an ancestor of V, so V + attn
  V is recorded first and replaced when an addition with an older term follows, until the MLP is added to Z+
  or the next attention runs. A long skip connection at the end of the network comes after that and changes
  nothing.
* DeepNorm adds the attention of x to :math:`\alpha x`; the stream is x. If the attention was computed from
  :math:`\alpha x` itself, the stream is :math:`\alpha x`. A stream in a wider dtype (float64 around
  a float32 block) differs from the input of the block by a cast only and counts as the same tensor.
* The sum of scores and a mask could look like a residual addition if the mask is an ancestor of the scores;
  the caller skips such sums.
"""

from dataclasses import dataclass, field

from torch import Tensor

from .flow import Flow, Trail

# A stream that has passed one of these is no longer a sum with a norm or an activation after it.
PRODUCTS = {"linear", "matmul", "bmm", "baddbmm", "addmm", "einsum", "softmax", "embedding"}
PRODUCTS |= {"conv1d", "conv2d", "conv3d", "scaled_dot_product_attention", "multi_head_attention_forward"}


@dataclass(eq=False)
class Around:
    """The residual stream around one attention.

    Attributes:
        number: index of the attention in this pass, and of its bit in :attr:`.Flow.taint`.
        before, after: copies of Z and Z+; None until the residual addition is found.
        before_node, after_node: nodes of Z and Z+, -1 until the addition is found. In a parallel block
            ``after_node`` is the output of the block, because Z+ itself is never computed.
        parallel: whether the block is parallel.
        settled: whether later additions are ignored.
        sums: node and copy of each sum of the chain Z+ -> Z+ + f(Z+) -> ..., Z+ itself first (in a parallel
            block, the output of the block).
        trail: operations between the last two sums of the chain, such as a norm; None if it has only one.
    """

    number: int
    before: Tensor | None = None
    after: Tensor | None = None
    before_node: int = -1
    after_node: int = -1
    parallel: bool = False
    settled: bool = False
    sums: list[tuple[int, Tensor]] = field(default_factory=list)
    trail: Trail | None = None


class Streams:
    """Finds Z and Z+ of every attention of a pass.

    Args:
        flow: flow of tensors of the pass.

    Attributes:
        all: the streams around all attentions so far.
    """

    def __init__(self, flow: Flow):
        self.flow = flow
        self.all: list[Around] = []
        self._open: list[Around] = []  # attentions that are not settled
        self._sums: dict[int, tuple[int, int]] = {}  # node of a sum -> nodes of its two terms
        self._branches: dict[int, Tensor] = {}  # node of a sum attn + mlp of a parallel block -> attn

    def attended(self, output: int) -> Around:
        """Records a new attention with this output node. Open attentions from which it was computed are
        settled if their Z+ is known.
        """
        for other in self._open:
            if self.flow.taint[output] >> other.number & 1:  # not a parallel branch
                other.settled |= other.after_node >= 0
                self._branches.clear()
        around = Around(len(self.all))
        self.all.append(around)
        self._open = [other for other in self._open if not other.settled] + [around]
        self.flow.taint[output] |= 1 << around.number
        return around

    def settle(self, around: Around) -> None:
        """Ends the search for the residual addition of an attention, and frees the copies of its stream."""
        around.settled = True
        around.before = around.after = None
        around.sums = []
        self._open = [other for other in self._open if not other.settled]

    def overwrites_stream(self, nodes: list[int]) -> bool:
        """Whether ``x += f`` may be a residual addition, so that x must be copied before it; ``nodes`` are
        those of x and f.
        """
        return any(node >= 0 and self.flow.taint[node] for node in nodes[1:])

    def added(self, out: Tensor, terms: list[Tensor], nodes: list[int], old_stream: Tensor | None) -> None:
        """Records a sum of two tensors.

        Args:
            out: the sum; it has a node.
            terms, nodes: the two terms, and their nodes from before the addition.
            old_stream: copy of the first term, if the addition was in place.
        """
        if (
            len(terms) != 2
            or min(nodes) < 0
            or not self.all
            or out.ndim < 2
            or not (terms[0].shape == terms[1].shape == out.shape)
        ):
            return  # a bias or a positional embedding was added: the shapes differ, or a term is a parameter
        node = self.flow.known(out)
        assert node is not None
        self._sums[node] = nodes[0], nodes[1]
        first = terms[0] if old_stream is None else old_stream
        sides = ((nodes[1], terms[1], nodes[0], first), (nodes[0], first, nodes[1], terms[1]))
        if not any(self._attention_added(node, out, *side) for side in sides):
            self._branches_added(node, sides)
            self._other_added(node, out, nodes)
        self._open = [around for around in self._open if not around.settled]

    def _attention_added(self, node: int, out: Tensor, a: int, part: Tensor, b: int, skip: Tensor) -> bool:
        """Records ``out = a + b`` if a contains the output of an attention and b does not. Returns whether it
        is a residual addition.

        Args:
            node, out: the sum.
            a, part: the term that may contain the output of an attention.
            b, skip: the other term.
        """
        flow, pending = self.flow, []
        for around in self._open:
            if flow.taint[a] >> around.number & 1:
                if not flow.taint[b] >> around.number & 1:
                    pending.append(around)
                elif around.after_node >= 0:
                    # both terms were computed from this attention: the MLP is added to Z+
                    around.settled = True
        if not pending:
            return False
        if flow.descends(a, b):
            branch = self._branch_of(a)
            before_node, before = self._unscaled(b, skip, a)
            after = out.detach().clone() if branch is None else before + branch
            for around in pending:
                # After a value residual, an older Z replaces the recorded Z if the recorded one was computed
                # from it.
                if around.after_node < 0 or (b < around.before_node and flow.descends(around.before_node, b)):
                    self._set(around, (before_node, before), (node, after), None if branch is None else out)
            return True
        stream = self._stream_in(b, a)  # (x + mlp(x)) + attn(x)
        x = flow.tensor(stream) if stream >= 0 else None
        if x is None or x.shape != out.shape:
            return False
        # attentions of the same x that are a part of b, in the order in which they were added
        others = [
            other
            for other in self._open
            if other not in pending
            and other.after is not None
            and flow.taint[b] >> other.number & 1
            and flow.root[other.before_node] == flow.root[stream]
        ]
        before, pending = x.detach().clone(), [around for around in pending if around.after_node < 0]
        attended = max(others, key=lambda other: other.after_node).after if others else before
        assert attended is not None
        after = attended + part.detach()
        for around in pending + (others if pending else []):
            self._set(around, (stream, before), (node, after), out)
        return True

    def _stream_in(self, node: int, branch: int) -> int:
        """Returns the newest term of a sum of several terms from which the branch was computed; -1 if there
        is none.
        """
        todo, newest = list(self._sums.get(node, ())), -1
        while todo:
            term = todo.pop()
            if term > newest and self.flow.descends(branch, term):
                newest = term
            elif term > newest:
                todo += self._sums.get(term, ())
        return newest

    @staticmethod
    def _set(
        around: Around, before: tuple[int, Tensor], after: tuple[int, Tensor], output: Tensor | None
    ) -> None:
        """Sets Z and Z+, each with its node; ``output`` is that of a parallel block, otherwise None."""
        around.before_node, around.before = before
        around.after_node, around.after = after
        around.parallel, around.trail = output is not None, None
        around.sums = [(after[0], after[1] if output is None else output.detach().clone())]

    def _branches_added(self, node: int, sides: tuple[tuple[int, Tensor, int, Tensor], ...]) -> None:
        """Stores the part of attentions in attn + mlp, a sum that is added to x later.

        A sum of attentions alone is like a single attention, so nothing is stored.
        """
        parts, pure = [], True
        for a, part, b, _ in sides:
            mine = [
                around
                for around in self._open
                if around.after_node < 0 and (self.flow.taint[a] & ~self.flow.taint[b]) >> around.number & 1
            ]
            branch = self._branch_of(a) if mine else None
            pure &= bool(mine) and branch is None
            if mine:
                parts.append(part.detach().clone() if branch is None else branch)
        if parts and not pure:
            self._branches[node] = parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def _branch_of(self, node: int) -> Tensor | None:
        """Returns attn of a sum attn + mlp, also if views, casts, dropout or a factor follow the sum; None
        for any other node.
        """
        factor = 1.0
        while (
            node not in self._branches and len(self.flow.parents[node]) == 1 and self.flow.root[node] != node
        ):
            factor *= self.flow.factors.get(node, 1.0)
            node = self.flow.parents[node][0]
        branch = self._branches.get(node)
        return branch if branch is None or factor == 1.0 else branch * factor

    def _unscaled(self, node: int, skip: Tensor, branch: int) -> tuple[int, Tensor]:
        """Returns the stream x and its node if the skip is alpha x (skip / alpha if x is gone), otherwise the
        skip; the stream is a copy. If the branch was computed from alpha x, that is the stream.
        """
        flow, alpha = self.flow, 1.0
        while node != flow.root[node] and flow.parents[node] and not flow.is_ancestor(node, branch):
            alpha, node = alpha * flow.factors.get(node, 1.0), flow.parents[node][0]
        if alpha == 1.0:
            return node, skip.detach().clone()
        x = flow.tensor(node)
        return node, skip.detach() / alpha if x is None or x.shape != skip.shape else x.detach().clone()

    def _other_added(self, node: int, out: Tensor, nodes: list[int]) -> None:
        """Continues the chain Z+ -> Z+ + f(Z+) -> ... of one of the last two attentions. A norm or an
        activation may follow each sum; in a parallel block, f is computed from Z.
        """
        for around in self.all[:-3:-1]:
            for i in reversed(range(len(around.sums))):
                last = around.sums[i][0]
                for skip, other in (nodes, nodes[::-1]):
                    trail = self._after_sum(last, skip, other)
                    parallel = self.flow.root[other] != self.flow.root[around.before_node]
                    if trail is not None and (
                        self.flow.descends(other, skip)
                        or (parallel and self.flow.descends(other, around.before_node))
                    ):
                        # A sum inside f comes before Z+ + f(Z+), which replaces it.
                        around.sums[i + 1 :] = [(node, out.detach().clone())]
                        around.trail = trail
                        return

    def _after_sum(self, last: int, skip: int, branch: int) -> Trail | None:
        """Returns the operations between two sums, without a factor of the skip from which the branch was not
        computed; None if the second sum does not continue the first.
        """
        flow, same = self.flow, self.flow.root[skip] == self.flow.root[last]
        if skip < last and not same:
            return None
        while skip > last and skip in flow.factors and not flow.is_ancestor(skip, branch):
            skip = flow.parents[skip][0]
        trail = flow.trail(last, skip) if skip > last else None
        if same:
            return trail or ()
        return None if trail is None or any(name in PRODUCTS for name, _ in trail) else trail
