r"""The residual stream around each attention, found by the flow of tensors: no module needs to hold or return it.

    out = a + b,      a was computed from the output of the attention, b was not, and a was computed from b

is the residual addition: Z = b is the stream before the attention, Z+ = out the stream after it. Which modules compute it, and whether they
return it, does not matter; neither do norms before or after it.

* Parallel blocks, x + (attn + mlp) or x + mlp + attn: attn is added to something that is no ancestor, or the skip is itself a sum with x.
  Then Z+ = Z + attn.
* Value residuals, attn V + V, come first, but the stream is older: an addition with an older ancestor replaces an earlier one, until the
  MLP adds its part or the next attention runs. Long skips at the end of the network come too late to change anything.
* DeepNorm adds to :math:`\alpha x`; the stream is x. Wider types of the stream (float64 around a float32 block) are casts.
* Scores plus a mask are a sum as well, and the mask may be an ancestor; sums of scores are skipped.
"""

from dataclasses import dataclass

from torch import Tensor

from .flow import Flow


@dataclass(eq=False)
class Around:
    """The residual stream around one attention.

    Attributes:
        number: of the attention in this pass: its bit in :attr:`.Flow.taint`.
        before, after: Z and Z+, copies; None until the addition is found.
        before_node, after_node: their nodes, -1 until found. ``after_node`` is the addition that leaves the block in a parallel block.
        parallel: whether the MLP is added in the same step.
        settled: later additions belong to something else.
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
        flow: of the pass.
    """

    def __init__(self, flow: Flow):
        self.flow = flow
        self.all: list[Around] = []
        self._open: list[Around] = []  # not settled yet
        self._sums: dict[int, tuple[int, int]] = {}  # sum -> its two terms
        self._branches: dict[int, Tensor] = {}  # sum of an attention and something that is no ancestor of it -> the attention's part
        self._later: list[tuple[int, int, Tensor]] = []  # Z+ + f(Z+) -> (root of Z+, node of the sum, the sum)

    def attended(self, output: int) -> Around:
        """A new attention with this output node. Attentions that it was computed from are settled."""
        for other in self._open:
            other.settled |= other.after_node >= 0 and bool(self.flow.taint[output] >> other.number & 1)
        around = Around(len(self.all))
        self.all.append(around)
        self._open = [other for other in self._open if not other.settled] + [around]
        self._branches.clear()
        self._later.clear()  # the layer before ends where the next one begins
        self.flow.taint[output] |= 1 << around.number
        return around

    def settle(self, around: Around) -> None:
        """Ends the search for an attention, and frees its copies."""
        around.settled = True
        around.before = around.after = None
        self._open = [other for other in self._open if not other.settled]

    def overwrites_stream(self, nodes: list[int]) -> bool:
        """Whether ``x += f`` with these nodes may be a residual addition, so that x must be copied before it runs."""
        return any(node >= 0 and self.flow.taint[node] for node in nodes[1:])

    def added(self, out: Tensor, terms: list[Tensor], nodes: list[int], kept: Tensor | None) -> None:
        """A sum of two tensors.

        Args:
            out: the sum, which has its node already.
            terms, nodes: the two terms, and their nodes before the sum.
            kept: copy of the first term if the sum was written over it.
        """
        if len(terms) != 2 or min(nodes) < 0 or not self.all or out.ndim < 2 or not (terms[0].shape == terms[1].shape == out.shape):
            return  # a bias, a position: neither term is a stream
        node = self.flow.known(out)
        assert node is not None
        self._sums[node] = nodes[0], nodes[1]
        first = terms[0] if kept is None else kept
        sides = ((nodes[1], terms[1], nodes[0], first), (nodes[0], first, nodes[1], terms[1]))
        if not any(self._attention_added(node, out, *side) for side in sides):
            self._something_added(node, out, nodes)
        self._open = [around for around in self._open if not around.settled]

    def _attention_added(self, node: int, out: Tensor, a: int, part: Tensor, b: int, skip: Tensor) -> bool:
        """Whether ``out = a + b`` adds the output of an attention, inside ``a``, to its own ancestor ``b``."""
        flow, pending = self.flow, []
        for around in self._open:
            if flow.taint[a] >> around.number & 1:
                if not flow.taint[b] >> around.number & 1:
                    pending.append(around)
                elif around.after_node >= 0:
                    around.settled = True  # both terms come from this attention: the MLP is added to Z+
        if not pending:
            return False
        if flow.descends(a, b):
            branch = self._branch_of(a)
            before = self._unscaled(b, skip)
            after = out.detach().clone() if branch is None else before + branch
            for around in pending:
                # An older Z replaces a younger one (value residuals), if that was computed from it.
                if around.after_node < 0 or (b < around.before_node and flow.descends(around.before_node, b)):
                    self._found(around, before, after, b, node, parallel=branch is not None)
            return True
        for term in self._sums.get(b, ()):  # (x + mlp(x)) + attn(x)
            x = flow.tensor(term) if term >= 0 else None
            if x is not None and x.shape == out.shape and flow.descends(a, term):
                before = x.detach().clone()
                for around in pending:
                    if around.after_node < 0:
                        self._found(around, before, before + part.detach(), term, node, parallel=True)
                return True
        if not flow.descends(b, a):  # attn + mlp, whose sum is added to x later
            branch = self._branch_of(a)
            self._branches[node] = part.detach().clone() if branch is None else branch
        return False

    @staticmethod
    def _found(around: Around, before: Tensor, after: Tensor, before_node: int, after_node: int, *, parallel: bool) -> None:
        around.before, around.after, around.before_node, around.after_node = before, after, before_node, after_node
        around.parallel = parallel

    def _branch_of(self, node: int) -> Tensor | None:
        """The attention's part of a sum attn + mlp, also after views, casts and dropout."""
        while node not in self._branches and len(self.flow.parents[node]) == 1 and self.flow.root[node] != node:
            node = self.flow.parents[node][0]
        return self._branches.get(node)

    def _unscaled(self, node: int, skip: Tensor) -> Tensor:
        """The stream x of a skip alpha x; the skip itself, copied, if it was not multiplied by a number."""
        flow, alpha = self.flow, 1.0
        while node != flow.root[node] and flow.parents[node]:
            alpha, node = alpha * flow.factors.get(node, 1.0), flow.parents[node][0]
        if alpha == 1.0:
            return skip.detach().clone()
        x = flow.tensor(node)
        return skip.detach() / alpha if x is None or x.shape != skip.shape else x.detach().clone()

    def _something_added(self, node: int, out: Tensor, nodes: list[int]) -> None:
        """Keeps ``Z+ + f(Z+)`` and what follows: the output of a layer that no module returns."""
        roots = {self.flow.root[around.after_node] for around in self._open[-2:] if around.after_node >= 0}
        roots |= {self.flow.root[node] for _, node, _ in self._later[-2:]}
        for skip, other in (nodes, nodes[::-1]):
            if self.flow.root[skip] in roots and self.flow.descends(other, skip):
                self._later.append((self.flow.root[skip], node, out.detach().clone()))
                return

    def end_of(self, around: Around) -> Tensor | None:
        """The end of the chain Z+ -> Z+ + f(Z+) -> ...; None if nothing was added to Z+."""
        node, end = around.after_node, None
        for skip, result, out in self._later:
            if skip == self.flow.root[node]:
                node, end = result, out
        return end
