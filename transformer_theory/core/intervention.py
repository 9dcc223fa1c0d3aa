r"""Interventions: a theory names a structure, and says what removing it does to the outputs.

    A [batch, heads, queries, keys] weights,  V [batch, heads, keys, dim] values,
    output = A V    becomes    output = A' V',    (A', V') = change(A, V, queries, keys, scores)

in every attention of a network. With the matrices W_h that lead from the heads to the stream, the sum over
heads of A_h V_h W_h^T may be replaced as a whole (:class:`Projected`). In every block, Z^{l+1} = block(Z^l)
becomes change(Z^l, Z^{l+1}); or the inputs X of the network become change(X). Beside the change that the
theory names stand matched changes, which are drawn at random (:class:`Control`): as many keys, as much
weight, as many heads. If the theory is right, the named change alters the task's measure less ("kept") or
more ("broken") than matched ones do.

The functions of this module are what most changes are made of: sets of keys in every row of the weights,
random orders of the keys, weight that keys give in a random order or receive from others, and random
generators whose draws are the same in every batch. Rows are sorted by numpy where it can, which takes a
twentieth of the time of torch's argsort: a control sorts every row of every attention.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Generator, Tensor
from torch.nn import functional

from .sources import Source

ROUNDING = 1e-5  # share of the removed weight that a key may give by rounding alone
GOLDEN = (5**0.5 - 1) / 2
CONTROL_DRAWS = 99
"""Draws of a control: p reaches 1/100."""
OF_SEQUENCES = 9
"""Draws of a control that draws for every sequence anew: they are exchanged within each sequence."""


class NotChanged(ValueError):
    """An intervention changed nothing, bit for bit, and has no result: no weight and no value of any
    attention, no output of any attention or block, or no input, according to its site.
    """


@dataclass(frozen=True)
class Attended:
    """What one attention of a network computes in one forward pass.

    Attributes:
        layer: number of the block in the order of execution, from 0.
        first_head: number of heads in earlier attentions of the same block.
        sequences: number of sequences of the batch. A module that cuts sequences into windows has several
            rows ``windows`` for each of them.
        query, key: ``[windows, heads, tokens, head_dim]``; keys that several heads share are repeated.
        value: ``[windows, heads, keys, value_dim]``.
        weights: ``[windows, heads, queries, keys]``, in float32 or a wider dtype. Rows sum to one; a row
            without an allowed key is zero.
        scale: factor of the product of queries and keys in the scores; None if it is unknown, or if scores
            are another function of it.
        mask: True for the keys that a query may attend to, of the shape of the weights. Padding is not
            allowed.
        generator: random generator of the draw, on the device of the weights. It goes on from batch to batch;
            what must be the same in all batches is drawn from :func:`own_generator`.
        structure: what :attr:`Intervention.choose` chose, or :attr:`Inputs.structure`, or what a control drew
            in its place; None otherwise.
        labels: class of each sequence, ``[sequences]``, while a structure is chosen; None otherwise, and
            where there are none.
        numbers: number of each sequence among all that are scored, ``[sequences]``; None: its place in the
            batch.
        next_ids: next id of each token, ``[sequences, seq]``, negative where none is scored, while a
            structure is chosen in a causal language model; None otherwise.
    """

    layer: int
    first_head: int
    sequences: int
    query: Float[Tensor, "windows heads q head_dim"]
    key: Float[Tensor, "windows heads k head_dim"]
    value: Float[Tensor, "windows heads n value_dim"]
    weights: Float[Tensor, "windows heads q n"]
    scale: float | None
    mask: Bool[Tensor, "windows heads q k"]
    generator: Generator
    structure: Any = None
    labels: Int[Tensor, " sequences"] | None = None
    numbers: Int[Tensor, " sequences"] | None = None
    next_ids: Int[Tensor, "sequences seq"] | None = None

    @property
    def scores(self) -> Float[Tensor, "windows heads q n"]:
        """Logarithms of the weights: the scores, up to a number for each row, whatever their scale and bias.
        A weight that underflows counts as the smallest normal number; blocked keys have -inf.
        """
        smallest = torch.finfo(self.weights.dtype).tiny
        return self.weights.clamp_min(smallest).log().masked_fill(~self.mask, -torch.inf)

    @property
    def output(self) -> Float[Tensor, "windows heads q value_dim"]:
        """The product of weights and values."""
        return self.weights @ self.value.to(self.weights.dtype)

    def with_weights(self, weights: Float[Tensor, "windows heads q n"]) -> "Attended":
        """Returns the attention with other weights."""
        return replace(self, weights=weights)

    def with_output(self, output: Float[Tensor, "windows heads q value_dim"]) -> "Attended":
        """Returns the attention with this product of weights and values: identity and output."""
        q = output.shape[-2]
        eye = torch.eye(q, dtype=self.weights.dtype, device=output.device)
        return replace(self, weights=eye.expand(*output.shape[:2], q, q), value=output)

    def of_next(self, x: Shaped[Tensor, "windows *rest"]) -> Shaped[Tensor, "windows *rest"]:
        """Returns x of the next sequence of the batch, at the same place.

        Raises:
            ValueError: the batch has one sequence.
        """
        if self.sequences < 2:
            raise ValueError("values of another sequence need a batch of at least two, got one")
        return x.roll(len(x) // self.sequences, 0)


@dataclass(frozen=True, kw_only=True)
class Projected(Attended):
    r"""An attention with the matrices that lead from its heads to the stream,

    .. math:: \text{added} = \sum_h A_h V_h W_h^\top + b .

    A change may replace weights and values, or what is added.

    Attributes:
        tokens: what goes into the module with the attention, ``[windows, keys, width]``; None if it is not as
            many tokens as there are keys, or other tokens go in as well.
        matrix: :math:`W_h`, ``[heads, dim, value_dim]``.
        added: what the attention adds to the stream, with the bias b, ``[windows, queries, dim]``.
        name, module, attention: as for :class:`BlockPass`.
    """

    tokens: Float[Tensor, "windows n width"] | None
    matrix: Float[Tensor, "heads dim value_dim"]
    added: Float[Tensor, "windows q dim"]
    name: str
    module: Any
    attention: str

    def with_added(self, added: Float[Tensor, "windows q dim"]) -> "Projected":
        """Returns the attention that adds something else to the stream."""
        return replace(self, added=added)


@dataclass(frozen=True)
class BlockPass:
    """What one block of a network computes in one forward pass.

    Attributes:
        layer: number of the block in the order of execution, from 0.
        tokens: residual stream before the block, ``[batch, seq, dim]``, padding included.
        output: residual stream at its end, of the same shape.
        again: ``(tokens, weights) -> output``: runs the unchanged block on tokens of this shape, with
            ``weights`` in place of its parameters of these names.
        name, module: qualified name of the block, and the block.
        attention: qualified name of its first module with attention.
        generator: as for :class:`Attended`, on the device of the tokens.
        structure, labels: as for :class:`Attended`.
        real: False for padding: tokens to which no query of the block may attend, or which a mask among the
            arguments of the network marks (:mod:`~..probes.token_masks`). None: there is no padding.
    """

    layer: int
    tokens: Float[Tensor, "batch seq dim"]
    output: Float[Tensor, "batch seq dim"]
    again: Callable[..., Float[Tensor, "batch seq dim"]]
    name: str
    module: Any
    attention: str
    generator: Generator
    structure: Any = None
    labels: Int[Tensor, " batch"] | None = None
    real: Bool[Tensor, "batch seq"] | None = None

    def with_output(self, output: Float[Tensor, "batch seq dim"]) -> "BlockPass":
        """Returns the block with another output."""
        return replace(self, output=output)


@dataclass(frozen=True)
class InputPass:
    """What a network receives in one forward pass.

    Attributes:
        inputs: first tensor among the arguments of the network.
        numbers: number of each sequence among all that are scored.
        generator: random generator of the draw, on the device of the inputs.
        structure: as for :class:`Attended`.
    """

    inputs: Shaped[Tensor, "batch *rest"]
    numbers: Int[Tensor, " batch"]
    generator: Generator
    structure: Any = None

    def with_inputs(self, inputs: Shaped[Tensor, "batch *rest"]) -> "InputPass":
        """Returns the pass with other inputs."""
        return replace(self, inputs=inputs)


Change = Callable[[Any], Any]
"""Function from what an attention (:class:`Attended`, :class:`Projected`) or a block (:class:`BlockPass`)
computes, or a network receives (:class:`InputPass`), to the same with other weights, values, outputs or
inputs."""

Site = Literal["attention", "output", "block", "inputs"]
"""What an intervention changes: every attention (:class:`Attended`), every attention with its output matrix
(:class:`Projected`), every block (:class:`BlockPass`), or the inputs of the network (:class:`InputPass`)."""


@dataclass(frozen=True)
class Control:
    """Changes that match the one of an intervention, drawn at random.

    Attributes:
        kind: what is drawn, in words, e.g. "as many random keys".
        change: the change, which draws from :attr:`Attended.generator`. None: that of the intervention, with
            another structure.
        structure: ``(chosen, generator) -> structure``: draws a structure of equal size in place of the
            chosen one. Draws are repeated until they differ from each other; if there are few such
            structures, the control has few draws.
        is_common: whether a draw is one for all sequences, as a random matrix of the network is. A drawn
            structure always is; without one a change that draws from :func:`own_generator` is, and one that
            draws from :attr:`Attended.generator` draws for every sequence anew.
        draws: number of draws. None: :data:`CONTROL_DRAWS`, and :data:`OF_SEQUENCES` for every sequence.
    """

    kind: str
    change: Change | None = None
    structure: Callable[[Any, Generator], Any] | None = None
    is_common: bool = False
    draws: int | None = None

    @property
    def is_of_sequences(self) -> bool:
        """Whether every sequence has draws of its own, independent of those of the others."""
        return self.structure is None and not self.is_common

    @property
    def planned(self) -> int:
        """The number of draws."""
        return self.draws or (OF_SEQUENCES if self.is_of_sequences else CONTROL_DRAWS)


@dataclass(frozen=True)
class Inputs:
    """Inputs that an intervention makes itself.

    Attributes:
        ids: sequences, ``[n, seq]``.
        targets: the id that follows each of them, ``[n, seq]``; negative where none is scored.
        structure: what is changed in them, such as places, if there is nothing to choose.
    """

    ids: Int[Tensor, "n seq"]
    targets: Int[Tensor, "n seq"]
    structure: Any = None


@dataclass(frozen=True)
class Intervention:
    """A change of the forward pass of a network, and what a theory predicts of it.

    Attributes:
        name: name without comma and slash, e.g. "keys that hold 90 % of the weight".
        change: the change.
        site: what is changed (:data:`Site`).
        predicts: "kept" if the theory says that the task's measure loses less than by a control, "broken" if
            it loses more.
        controls: matched random changes; the first one is tested, further ones may match it.
        source: passage of the literature that names the structure.
        choose: ``read -> structure``, where ``read(function)`` runs the network on one half of the inputs and
            calls the function with what the change receives. The structure, such as a set of heads, is
            removed and scored on the other half. None: there is nothing to choose, and a structure is that of
            :attr:`Inputs.structure`, if any.
        inputs: ``(limits, generator) -> inputs``, for causal language models; ``limits`` has "vocabulary" and
            "length", the longest sequence. None: the inputs of the caller.
        on_own: whether the structure that is chosen on such inputs is scored on those of the caller.
        baseline: kind and change of what the network is left with without the structure, such as uniform
            weights. A note says which share of its loss the named change avoids. None: there is none.
    Raises:
        ValueError: the name has a comma or a slash, there is no control, or a control has neither a change
            nor a structure.
    """

    name: str
    change: Change
    predicts: Literal["kept", "broken"]
    controls: tuple[Control, ...]
    source: Source
    choose: Callable[[Callable[[Callable[[Any], None]], None]], Any] | None = None
    inputs: Callable[[dict[str, int], Generator], Inputs] | None = None
    on_own: bool = False
    site: Site = "attention"
    baseline: tuple[str, Change] | None = None

    def __post_init__(self):
        if set(self.name) & set(",/"):
            raise ValueError(
                f"the name of an intervention must have no comma and no slash, got {self.name!r}"
            )
        if not self.controls:
            raise ValueError(f"{self.name} must have a control, got none")
        for control in self.controls:
            nothing = control.structure is None or (self.choose is None and self.inputs is None)
            if control.change is None and nothing:
                raise ValueError(
                    f"the control {control.kind!r} of {self.name} must have a change, or a structure in "
                    "place of a chosen one, got neither"
                )


def of_last_block(read: Callable[[Callable[[BlockPass], None]], None]) -> list[BlockPass]:
    """Returns what the last block of a network computes of each batch, for :attr:`Intervention.choose`."""
    found: list[BlockPass] = []

    def add(block: BlockPass) -> None:
        if found and block.layer < found[-1].layer:
            return
        if found and block.layer > found[-1].layer:
            found.clear()
        found.append(block)

    read(add)
    return found


def own_generator(passed: Attended | BlockPass) -> Generator:
    """Returns a generator of one attention or block, which starts anew in every batch.

    Its draws depend on the seed of the draw, the number of the block and the first head alone. A random
    matrix from it is one matrix in all batches; one from :attr:`Attended.generator` would be another one in
    each, and a draw of a control would be a mean over several matrices, with too narrow a distribution.
    """
    first_head = passed.first_head if isinstance(passed, Attended) else 0
    # Sums of the three numbers would give some attentions of different draws the same seed.
    entropy = (passed.generator.initial_seed(), passed.layer, first_head)
    seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
    return Generator(passed.generator.device).manual_seed(seed)


def moved_at_random(
    x: Float[Tensor, "*rows dim"], steps: Float[Tensor, "*rows dim"], generator: Generator
) -> Float[Tensor, "*rows dim"]:
    """Moves vectors as far as the steps would, in random directions."""
    noise = torch.randn(steps.shape, generator=generator, device=steps.device, dtype=steps.dtype)
    lengths = torch.linalg.vector_norm(steps, dim=-1, keepdim=True)
    return x + lengths * functional.normalize(noise, dim=-1)


# rows of weights


def normalised(weights: Float[Tensor, "*rows k"]) -> Float[Tensor, "*rows k"]:
    """Returns non-negative weights whose rows sum to one; a row of zeros stays."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def without(attended: Attended, removed: Bool[Tensor, "*#rows k"]) -> Attended:
    """Removes keys, and divides the other weights of each row by their sum; a row that loses no key stays."""
    # a sum that is one up to rounding would change the last bits of all rows
    new = normalised(attended.weights * ~removed)
    return attended.with_weights(torch.where(removed.any(-1, keepdim=True), new, attended.weights))


def sorted_rows(x: Shaped[Tensor, "*rows k"]) -> Shaped[Tensor, "*rows k"]:
    """Sorts numbers along the last axis, the smallest first."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.sort(x.numpy(), axis=-1))
    return x.sort(-1).values


def _with_key(ranks: Int[Tensor, "*rows k"], largest: int) -> Int[Tensor, "*rows k"]:
    """Joins ranks up to ``largest`` and the number of each key to one integer, whose last bits are the key.
    Sorted, these integers are an order of the keys.
    """
    bits = _bits(ranks.shape[-1])
    dtype = torch.int32 if largest << bits < 2**31 - 2**bits else torch.int64
    return (ranks.to(dtype) << bits) | torch.arange(ranks.shape[-1], dtype=dtype, device=ranks.device)


def _bits(keys: int) -> int:
    return max(1, (keys - 1).bit_length())


def _keys(sorted_: Int[Tensor, "*rows k"]) -> Int[Tensor, "*rows k"]:
    """Returns the keys of sorted integers of :func:`_with_key`."""
    return (sorted_ & (2 ** _bits(sorted_.shape[-1]) - 1)).long()


def _drawn(attended: Attended) -> Int[Tensor, "windows heads q k"]:
    """Draws an integer for every key of every row; those of blocked keys are the largest."""
    mask = attended.mask
    # As many random bits as leave room for the key in 32 bits, but 18 at least: a few equal ranks in a row
    # are no harm.
    largest = 2 ** min(24, max(18, 30 - _bits(mask.shape[-1])))
    numbers = torch.rand(mask.shape, generator=attended.generator, device=mask.device)
    ranks = (numbers * largest).to(torch.int32).masked_fill(~mask, largest)
    return _with_key(ranks, largest)


def random_order(attended: Attended) -> Int[Tensor, "windows heads q k"]:
    """Draws an order of the keys of every row, the allowed ones first: entry i is the i-th key."""
    return _keys(sorted_rows(_drawn(attended)))


def at_random(
    attended: Attended, counts: Int[Tensor, "windows heads q"]
) -> Bool[Tensor, "windows heads q k"]:
    """Draws as many allowed keys of every row as ``counts`` says; True for the keys that are drawn."""
    numbers = _drawn(attended)
    last = (counts[..., None] - 1).clamp(0, numbers.shape[-1] - 1)
    return (numbers <= sorted_rows(numbers).gather(-1, last)) & attended.mask & (counts[..., None] > 0)


def in_every_row(
    attended: Attended, weights: Float[Tensor, "windows heads q k"]
) -> Float[Tensor, "windows heads q k"]:
    """Permutes the weights of every row among its allowed keys at random, which keeps their entropy."""
    order = random_order(attended)
    if bool(attended.mask.all()):
        return weights.gather(-1, order)
    allowed_first = _keys(sorted_rows(_with_key((~attended.mask).int(), 1)))
    return torch.zeros_like(weights).scatter(-1, order, weights.gather(-1, allowed_first))


def tenths(attended: Attended) -> Int[Tensor, "windows 1 1"]:
    """Returns how many tenths of its places each sequence loses, 1 to 9, for a deletion curve in one pass.

    Nine sequences in a row lose nine different shares, so that the mean effect over many sequences is that
    over the shares: the area under the curve.
    """
    numbers = torch.arange(attended.sequences) if attended.numbers is None else attended.numbers
    # Each further nine start with another share. Otherwise each ninth sequence would lose the same share. The
    # fractional parts of b^2 times an irrational number are uniform in every arithmetic progression of b, so
    # that evenly spaced sequences have all shares as well. The product with a number of Python would be one
    # in single precision, whose fractional part has few digits left when b^2 is large.
    turn = ((numbers.cpu() // 9).double() ** 2 * GOLDEN % 1 * 9).long()
    found = ((numbers.cpu() + turn) % 9 + 1).to(attended.weights.device)
    return found.repeat_interleave(len(attended.weights) // attended.sequences)[:, None, None]


def taken_at_random(
    attended: Attended, amount: Float[Tensor, "windows heads q 1"]
) -> Float[Tensor, "windows heads q k"]:
    """Takes weight from the allowed keys of every row in a random order. Each key gives what it has until the
    amount is taken; if all of them have less, they give all.

    Returns:
        The weight that each key gives.
    """
    order = random_order(attended)
    in_order = (attended.weights * attended.mask).gather(-1, order)
    before = in_order.cumsum(-1) - in_order
    taken = torch.minimum(in_order, (amount - before).clamp_min(0.0))
    return torch.zeros_like(attended.weights).scatter(-1, order, taken)


def given_to_others(
    attended: Attended, taken: Float[Tensor, "windows heads q k"]
) -> Float[Tensor, "windows heads q k"]:
    """Returns the weights after a part of them is taken from keys and given to the others, in proportion to
    their weights. If every key gives some, all receive in proportion to what they have left; otherwise the
    total variation of a row from the original one is the weight that is taken from it.
    """
    removed, left = taken.sum(-1, keepdim=True), attended.weights - taken
    others = left * (taken <= ROUNDING * removed)
    others = torch.where(others.sum(-1, keepdim=True) > 0, others, left)
    return left + removed * normalised(others)


def largest(weights: Float[Tensor, "*rows k"], counts: Int[Tensor, "*rows"]) -> Bool[Tensor, "*rows k"]:
    """Returns True for as many of the largest weights of every row as ``counts`` says; of equal ones for the
    first.
    """
    k, counts = weights.shape[-1], counts[..., None]
    last = sorted_rows(weights).gather(-1, (k - counts).clamp(0, k - 1))
    above, equal = weights > last, weights == last
    missing = counts - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= missing))) & (counts > 0)


def largest_mass(weights: Float[Tensor, "*rows k"], share: float) -> Bool[Tensor, "*rows k"]:
    """Returns the fewest keys of every row that together hold the share of its weight."""
    values = sorted_rows(weights).flip(-1)
    before = values.cumsum(-1) - values
    counts = ((before < share * weights.sum(-1, keepdim=True)) & (values > 0)).sum(-1)
    return largest(weights, counts)
