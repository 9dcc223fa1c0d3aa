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
  and Z+ = Z + attn.
* Value residuals add V to attn V before the residual addition. The stream x is an ancestor of V, so V + attn
  V is recorded first and replaced when an addition with an older term follows, until the MLP is added to Z+
  or the next attention runs. A long skip connection at the end of the network comes after that and changes
  nothing.
* DeepNorm adds the attention to :math:`\alpha x`; the stream is x. A stream in a wider dtype (float64 around
  a float32 block) differs from the input of the block by a cast only and counts as the same tensor.
* The sum of scores and a mask could look like a residual addition if the mask is an ancestor of the scores;
  the caller skips such sums.
"""

from dataclasses import dataclass

from torch import Tensor

from .flow import Flow


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
    """

    number: int
    before: Tensor | None = None
    after: Tensor | None = None
    before_node: int = -1
    after_node: int = -1
    parallel: bool = False
    settled: bool = False


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
        # for each sum Z+ + f(Z+): root of Z+, node of the sum, copy of the sum
        self._later: list[tuple[int, int, Tensor]] = []

    def attended(self, output: int) -> Around:
        """Records a new attention with this output node. Open attentions from which it was computed are
        settled if their Z+ is known.
        """
        for other in self._open:
            other.settled |= other.after_node >= 0 and bool(self.flow.taint[output] >> other.number & 1)
        around = Around(len(self.all))
        self.all.append(around)
        self._open = [other for other in self._open if not other.settled] + [around]
        self._branches.clear()
        self._later.clear()  # the previous layer has ended
        self.flow.taint[output] |= 1 << around.number
        return around

    def settle(self, around: Around) -> None:
        """Ends the search for the residual addition of an attention, and frees the copies of its stream."""
        around.settled = True
        around.before = around.after = None
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
            before = self._unscaled(b, skip)
            after = out.detach().clone() if branch is None else before + branch
            for around in pending:
                # After a value residual, an older Z replaces the recorded Z if the recorded one was computed
                # from it.
                if around.after_node < 0 or (b < around.before_node and flow.descends(around.before_node, b)):
                    self._set(around, before, after, b, node, parallel=branch is not None)
            return True
        for term in self._sums.get(b, ()):  # (x + mlp(x)) + attn(x)
            x = flow.tensor(term) if term >= 0 else None
            if x is not None and x.shape == out.shape and flow.descends(a, term):
                before = x.detach().clone()
                for around in pending:
                    if around.after_node < 0:
                        self._set(around, before, before + part.detach(), term, node, parallel=True)
                return True
        if not flow.descends(b, a):  # attn + mlp, a sum that is added to x later
            branch = self._branch_of(a)
            self._branches[node] = part.detach().clone() if branch is None else branch
        return False

    @staticmethod
    def _set(
        around: Around, before: Tensor, after: Tensor, before_node: int, after_node: int, *, parallel: bool
    ) -> None:
        around.before, around.after, around.before_node, around.after_node = (
            before,
            after,
            before_node,
            after_node,
        )
        around.parallel = parallel

    def _branch_of(self, node: int) -> Tensor | None:
        """Returns attn of a sum attn + mlp, also if views, casts or dropout follow the sum; None for any
        other node.
        """
        while (
            node not in self._branches and len(self.flow.parents[node]) == 1 and self.flow.root[node] != node
        ):
            node = self.flow.parents[node][0]
        return self._branches.get(node)

    def _unscaled(self, node: int, skip: Tensor) -> Tensor:
        """Returns a copy of the stream x if the skip is alpha x (skip / alpha if x is gone), otherwise a copy
        of the skip.
        """
        flow, alpha = self.flow, 1.0
        while node != flow.root[node] and flow.parents[node]:
            alpha, node = alpha * flow.factors.get(node, 1.0), flow.parents[node][0]
        if alpha == 1.0:
            return skip.detach().clone()
        x = flow.tensor(node)
        return skip.detach() / alpha if x is None or x.shape != skip.shape else x.detach().clone()

    def _other_added(self, node: int, out: Tensor, nodes: list[int]) -> None:
        """Stores ``Z+ + f(Z+)``, and further additions to it: the output of a layer if no module
        returns it.
        """
        roots = {self.flow.root[around.after_node] for around in self._open[-2:] if around.after_node >= 0}
        roots |= {self.flow.root[node] for _, node, _ in self._later[-2:]}
        for skip, other in (nodes, nodes[::-1]):
            if self.flow.root[skip] in roots and self.flow.descends(other, skip):
                self._later.append((self.flow.root[skip], node, out.detach().clone()))
                return

    def end_of(self, around: Around) -> Tensor | None:
        """Returns the last sum of the chain Z+ -> Z+ + f(Z+) -> ...; None if nothing was added to Z+."""
        node, end = around.after_node, None
        for skip, result, out in self._later:
            if skip == self.flow.root[node]:
                node, end = result, out
        return end
