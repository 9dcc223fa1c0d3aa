"""The one tensor of the inputs that tests on synthetic inputs change, without padding.

A test makes new sequences from those of the caller. If the network takes several tensors by name, the tests
change one of them: ``input_ids``, that of the model's ``main_input_name``, or else the only one that the
rules below do not cover. Sequences are cut to one length L without padding, their first L real tokens: the L
for which L times the number of sequences of at least L real tokens is largest. If the last real token of
every sequence is special, such as [SEP], it is the last token of the cut as well.

The other tensors are made anew for the new sequences, after the same cut:

    masks (:data:`.KEEPS`, :data:`.DROPS`)      all tokens are real
    one number everywhere, such as segments     that number
    consecutive integers, such as positions     consecutive integers from the same start

Any other tensor belongs to its sequence in a way that is not known, so that no test runs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from .passes import Inputs
from .token_masks import DROPS, KEEPS, special_numbers

IDS = "input_ids"


@dataclass(frozen=True)
class Other:
    """How a further tensor of the inputs is made for new sequences.

    Attributes:
        shape: shape for one sequence; None stands for the number of its tokens.
        start: its value, or that at the first token.
        counts: whether it counts the tokens.
    """

    shape: tuple[int | None, ...]
    start: Tensor
    counts: bool = False

    def of(self, n: int, T: int) -> Tensor:
        """Returns the tensor for n sequences of T tokens."""
        shape = (n, *(T if size is None else size for size in self.shape))
        values = self.start
        if self.counts:
            values = (self.start + torch.arange(T, device=self.start.device)).to(self.start.dtype)
        return values.expand(shape).clone()


@dataclass(frozen=True)
class MainInput:
    """The tensor that tests change.

    Attributes:
        data: its sequences without padding, ``[n, ...]``.
        name: argument of the network; empty if the network takes one tensor.
        others: how the other tensors are made.
    """

    data: Shaped[Tensor, "n *shape"]
    name: str = ""
    others: Mapping[str, Other] = field(default_factory=dict)

    def inputs(self, sequences: Shaped[Tensor, "m *shape"]) -> Inputs:
        """Returns the inputs of the network with other sequences in place of :attr:`data`."""
        if not self.name:
            return sequences
        n, T = sequences.shape[:2]
        others = {name: other.of(n, T) for name, other in self.others.items()}
        return {self.name: sequences.to(self.data.device), **others}


def main_input(
    model: nn.Module, inputs: Inputs, *, special_ids: Collection[int] | None = None
) -> MainInput | str:
    """Returns the tensor that tests change, or the reason why there is none.

    Args:
        model: the network.
        inputs: one tensor ``[n, ...]``, or several by the name of the argument.
        special_ids: see :func:`.probe`.
    """
    if isinstance(inputs, Tensor):
        return MainInput(inputs)
    found = _main(model, inputs)
    if isinstance(found, Tensor):
        name, data = next((name, x) for name, x in inputs.items() if x is found)
    else:
        return found
    rest = {key: x for key, x in inputs.items() if key != name}
    masks = {key: real for key, x in rest.items() if (real := _real(key, x, data)) is not None}
    cut = _Cut.of(data, masks.values())
    if cut is None:
        return f"no sequence has a real token; the masks are {', '.join(masks)}"
    others: dict[str, Other] = {}
    for key, x in rest.items():
        other = Other((None,), _all_real(key, x)) if key in masks else _other(cut.take(x), cut.length)
        if other is None:
            return f"the tests make other {name}, and it is not known which {key} belong to them"
        others[key] = other
    short = cut.take(data)
    if data.ndim == 2 and cut.length > 1 and not data.is_floating_point():
        last = data[cut.rows, cut.last]
        special = torch.tensor(sorted(special_numbers(model, special_ids)), device=data.device)
        if special.numel() and bool(torch.isin(last, special).all()):
            short = torch.cat([short[:, :-1], last[:, None]], 1)
    return MainInput(short, name, others)


def _main(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor | str:
    """Returns the tensor that tests change, or the reason."""
    for name in (IDS, getattr(model, "main_input_name", None)):
        if isinstance(name, str) and name in inputs:
            return inputs[name]
    tensors = {name: x for name, x in inputs.items() if x.ndim > 1 and not _is_mask(name, x)}
    unknown = {name: x for name, x in tensors.items() if _other(x, x.shape[1]) is None}
    chosen = unknown or tensors
    if len(chosen) == 1:
        return next(iter(chosen.values()))
    return f"the tests change one tensor of inputs, and the network takes several: {', '.join(inputs)}"


def _is_mask(name: str, x: Tensor) -> bool:
    return x.dtype == torch.bool or name in KEEPS | DROPS


def _real(name: str, mask: Tensor, data: Tensor) -> Bool[Tensor, "n T"] | None:
    """Returns which tokens of the main tensor are real by a mask of the caller; None if it is no such
    mask.
    """
    if name not in KEEPS | DROPS or mask.shape != data.shape[:2] or data.ndim > 3:
        return None
    if name in KEEPS:
        # Other numbers may be those of packed sequences.
        return mask > 0 if bool(((mask == 0) | (mask == 1)).all()) else None
    return ~mask if mask.dtype == torch.bool else mask >= 0


def _all_real(name: str, mask: Tensor) -> Tensor:
    """Returns the value of a mask at real tokens."""
    return torch.tensor(name in KEEPS, device=mask.device).to(mask.dtype)


def _other(x: Tensor, length: int) -> Other | None:
    """Returns how a tensor ``[n, ...]`` of sequences of this length is made; None if it is not known."""
    if not x.numel():
        return None
    shape = tuple(None if size == length else size for size in x.shape[1:])
    first = x.flatten()[0]
    if bool((x == first).all()):
        return Other(shape, first)
    if x.ndim == 2 and x.shape[1] == length and not x.is_floating_point() and x.dtype != torch.bool:
        counted = first + torch.arange(length, device=x.device)
        if bool((x == counted).all()):
            return Other((None,), first, counts=True)
    return None


@dataclass(frozen=True)
class _Cut:
    """Sequences of one length without padding.

    Attributes:
        rows: sequences that are kept.
        places: positions of their tokens; None if all are kept.
        last: position of the last real token of each of them.
        shape: numbers of sequences and tokens before the cut.
    """

    rows: Int[Tensor, " kept"]
    places: Int[Tensor, "kept length"] | None
    last: Int[Tensor, " kept"]
    shape: tuple[int, int]

    @property
    def length(self) -> int:
        """Number of tokens after the cut."""
        return self.shape[1] if self.places is None else self.places.shape[1]

    @classmethod
    def of(cls, data: Tensor, masks: Collection[Bool[Tensor, "n T"]]) -> "_Cut | None":
        """Finds the cut from the real tokens; None if there is none."""
        n, T = data.shape[:2]
        real = torch.ones(n, T, dtype=torch.bool, device=data.device)
        for mask in masks:
            real &= mask.to(data.device)
        every = torch.arange(n, device=data.device)
        last = T - 1 - real.flip(1).int().argmax(1)
        if bool(real.all()):
            return cls(every, None, last, (n, T))
        lengths = real.sum(1)
        longest_first = lengths.sort(descending=True).values
        kept = torch.arange(1, n + 1, device=data.device)
        tokens = longest_first * kept
        if n > 1 and longest_first[1]:
            tokens[0] = 0  # the tests compare sequences with each other
        if not int(tokens.max()):
            return None
        length = int(longest_first[tokens.argmax()])
        rows = every[lengths >= length]
        order = (~real[rows]).int().argsort(dim=1, stable=True)
        return cls(rows, order[:, :length], last[rows], (n, T))

    def take(self, x: Tensor) -> Tensor:
        """Cuts ``[n, T, ...]``; of a tensor of another shape the sequences are selected."""
        if self.places is None or len(x) != self.shape[0]:
            return x
        x = x[self.rows.to(x.device)]
        if x.ndim < 2 or x.shape[1] != self.shape[1]:
            return x
        return x[torch.arange(len(x), device=x.device)[:, None], self.places.to(x.device)]
