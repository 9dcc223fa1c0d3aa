"""Which tokens of a forward pass are real, which carry contents, and the removal of padding.

A token is **real** if some query may attend to it in some self-attention, and no mask that the caller passes
marks it as padding. (A query that is padding itself may be allowed to attend to padding; the mask of the
caller then decides.) Masks of the caller are arguments ``[batch, seq]`` with the names of :data:`KEEPS`, 1 or
True for real tokens, or :data:`DROPS`, True for padding. Other arguments are not read. Tokens at the ends of
a row that see and are seen by themselves alone are padding, too.

A row of the batch holds several **packed** sequences if no attention in any block crosses a boundary between
them; each of them counts as a sequence. A row of which no token is real is left out.

A token carries **contents** if it is real, comes from the inputs (:mod:`.places`), has no special id, and is
no class token: the only token from which a network without causal masks computes its outputs
(:mod:`.readout`).

Emitted sequences begin with their real tokens; padding follows and holds zeros.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..core.format import counted
from ..core.metric import NO_IMAGES, NOT_READ, WORDS, Activations, Grid, LazyActivations
from .places import INSERTED, Codes

KEEPS = {"attention_mask", "encoder_attention_mask", "decoder_attention_mask", "pixel_attention_mask"}
KEEPS |= {"input_mask", "token_mask", "patch_valid", "valid_mask"}
DROPS = {"key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "encoder_padding_mask"}
DROPS |= {"decoder_padding_mask", "padding_mask"}
SPECIAL = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id", "mask_token_id")
UNPLACED = "the patches could not be followed from the image to the tokens"
REPEATED = "several tokens of a sequence come from the same patch, as in the frames of a video"

Frame = tuple[str, int, int]
"""Sequences of one kind: list of the blocks, number of sequences, tokens."""


@dataclass
class Recorded:
    """Activations of one module until the end of the pass.

    Attributes:
        sequences: name of the list of blocks, which tells an encoder from a decoder.
        columns: fields of the activations.
        makers: fields that are computed when they are read.
        codes_of: function that returns the places of the tokens, as they are known at the end of the pass.
        own: whether queries and keys are those of the same tokens; None if unknown.
    """

    sequences: str
    columns: dict[str, Any]
    makers: dict[str, Callable[[], Tensor | None]]
    codes_of: Callable[[], Codes | None]
    own: bool | None = True

    @cached_property
    def codes(self) -> Codes | None:
        """Places of the tokens, ``[batch, seq]``; None if they are not known."""
        codes = self.codes_of()
        return None if codes is None or codes.values.shape[1] != self.frame[2] else codes

    @property
    def frame(self) -> Frame:
        """The kind of its tokens, or of its queries."""
        query, tokens = self.columns.get("query"), self.columns["tokens"]
        n, T = tokens.shape[:2] if query is None else (query.shape[0], query.shape[2])
        return self.sequences, n, T


@dataclass(frozen=True)
class AttentionMask:
    """Which keys the queries of one attention may see.

    Attributes:
        sequences: see :class:`Recorded`.
        size: numbers of sequences, queries and keys.
        allowed: ``[n or 1, 1 or heads, 1 or q, k]``; None: all keys.
        own: see :class:`Recorded`.
        behind: whether keys that are no tokens follow those of the tokens. False: keys of earlier tokens, as
            in a cache, stand in front of them.
    """

    sequences: str
    size: tuple[int, int, int]
    allowed: Bool[Tensor, "n heads q k"] | None
    own: bool | None
    behind: bool

    def own_keys(self) -> Bool[Tensor, "#n q q"] | None:
        """Returns which keys among the queries' own tokens a query may see in any head; None if it may see
        all.
        """
        if self.allowed is None:
            return None
        _, q, k = self.size
        mask = self.allowed.expand(-1, -1, q, -1)
        mask = mask[..., :q] if self.behind else mask[..., k - q :]
        return None if bool(mask.all()) else mask.any(1)


def mask_of(
    call: Any,
    sequences: str,
    module: nn.Module,
    *,
    own: bool | None,
    some: Callable[[Tensor], Tensor],
) -> AttentionMask:
    """Returns the mask of one attention.

    Args:
        call: the attention.
        sequences, own: see :class:`Recorded`.
        module: its module.
        some: function that selects the sequences that are measured.
    """
    n, q, k = len(some(call.query)), call.query.shape[2], call.key.shape[2]
    allowed = call.allowed
    if allowed is not None and len(allowed) == len(call.query):
        allowed = some(allowed)
    # A learnt sink has the value zero.
    behind = isinstance(module, nn.MultiheadAttention) or (k > q and not bool(call.value[..., -1, :].any()))
    return AttentionMask(sequences, (n, q, k), allowed, own, behind)


@dataclass(frozen=True)
class Given:
    """Information that the caller passes about the tokens.

    Attributes:
        masks: True for real tokens, ``[batch, seq]``, by name of the argument.
        ids: ids of the tokens, ``[batch, seq]``; None if the inputs are no ids.
        special: ids of tokens without contents.
        grid: rows and columns of the patches, if the inputs are tokens that were cut from images.
        images: whether the inputs are images.
        unread: other booleans ``[batch, seq]`` that may be masks, by name of the argument.
    """

    masks: Mapping[str, Bool[Tensor, "batch seq"]] = field(default_factory=dict)
    ids: Int[Tensor, "batch seq"] | None = None
    special: frozenset[int] = frozenset()
    grid: tuple[int, int] | None = None
    images: bool = False
    unread: Mapping[str, Bool[Tensor, "batch seq"]] = field(default_factory=dict)


def given(
    model: nn.Module,
    args: tuple,
    kwargs: dict,
    *,
    some: Callable[[Tensor], Tensor],
    special_ids: Iterable[int] | None,
    grid: tuple[int, int] | None,
) -> Given:
    """Reads masks, ids and images among the arguments of a network.

    Args:
        model: the network; its ``config`` has the special ids of models of ``transformers``.
        args, kwargs: its arguments.
        some: function that selects the sequences that are measured.
        special_ids, grid: see :func:`.probe`.
    """
    named = dict(_named(model, args, kwargs))
    masks = {}
    for name, x in named.items():
        last = name.rpartition(".")[2]
        if x.ndim == 2 and last in KEEPS | DROPS:
            keep = x > 0 if last in KEEPS else (~x if x.dtype == torch.bool else x >= 0)
            masks[name] = some(keep)
    discrete = {
        name: x
        for name, x in named.items()
        if x.ndim == 2 and not x.is_floating_point() and x.dtype != torch.bool and name not in masks
    }
    first = next(iter(named.values()), None)
    ids = discrete.get("input_ids", first if any(first is x for x in discrete.values()) else None)
    images = any(x.ndim == 4 and (x.is_floating_point() or x.dtype == torch.uint8) for x in named.values())
    special = special_numbers(model, special_ids)
    unread = {
        name: some(x)
        for name, x in named.items()
        if x.ndim == 2 and x.dtype == torch.bool and name not in masks
    }
    return Given(masks, None if ids is None else some(ids), special, grid, images, unread)


def special_numbers(model: nn.Module, special_ids: Iterable[int] | None) -> frozenset[int]:
    """Returns the ids of tokens without contents: those that the caller names, or those in the ``config`` of
    the network.
    """
    special = set() if special_ids is None else set(special_ids)
    config = getattr(model, "config", None)
    for name in SPECIAL if special_ids is None else ():
        found = getattr(config, name, None)
        special |= set(found) if isinstance(found, list | tuple) else {found}
    return frozenset(number for number in special if isinstance(number, int))


def _named(model: nn.Module, args: tuple, kwargs: dict) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors among the arguments by name, also those in mappings."""
    try:
        bound = inspect.signature(type(model).forward).bind(model, *args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{str(index): x for index, x in enumerate(args)}, **kwargs}
    for name, value in bound.items():
        entries = {name: value}
        if isinstance(value, Mapping):
            entries = {f"{name}.{key}": x for key, x in value.items()}
        for key, x in entries.items():
            if isinstance(x, Tensor):
                yield key, x
            elif isinstance(x, Mapping):  # the keyword arguments of forward(**kwargs)
                yield from ((str(inner), y) for inner, y in x.items() if isinstance(y, Tensor))


@dataclass(frozen=True)
class Order:
    """Real tokens of each sequence, in front of its padding.

    Attributes:
        rows: row of the batch of each sequence.
        positions: position of each token in its row, 0 for padding, ``[sequences, longest]``.
        real: True for real tokens.
    """

    rows: Int[Tensor, " sequences"]
    positions: Int[Tensor, "sequences longest"]
    real: Bool[Tensor, "sequences longest"]

    @property
    def packed(self) -> bool:
        """Whether a row of the batch holds several sequences."""
        return len(self.rows.unique()) < len(self.rows)

    def mask(self, n: int, T: int) -> Bool[Tensor, "n T"]:
        """Returns the real tokens of the rows of the batch."""
        real = torch.zeros(n, T, dtype=torch.bool, device=self.real.device)
        real[self.rows[:, None].expand_as(self.positions)[self.real], self.positions[self.real]] = True
        return real

    def take(self, x: Tensor, *, fill: Any = 0) -> Tensor:
        """Reorders ``[batch, seq, ...]``; padding is filled."""
        found = x[self.rows[:, None], self.positions]
        shape = (*self.real.shape, *[1] * (found.ndim - 2))
        return torch.where(
            self.real.view(shape), found, torch.as_tensor(fill, dtype=x.dtype, device=x.device)
        )

    def take_heads(self, x: Tensor) -> Tensor:
        """Reorders ``[batch, heads, seq, dim]``."""
        return self.take(x.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True)
class Tokens:
    """What is known about the sequences of one kind.

    Attributes:
        order: real tokens; None if all tokens are real, and each row is one sequence.
        causal: whether no query of a self-attention sees later keys.
        codes: places of the tokens ``[batch, seq]``; None if unknown.
    """

    order: Order | None
    causal: bool
    codes: Codes | None


class TokenMasks:
    """The masks of all sequences of one forward pass.

    Args:
        attentions: masks of all attentions of the pass.
        recorded: activations of the pass.
        given: information that the caller passes.
    """

    def __init__(self, attentions: Sequence[AttentionMask], recorded: Iterable[Recorded], given: Given):
        self.given = given
        # Other attentions do not attend to the tokens of their queries.
        self.crossed = any(one.own is False for one in attentions)
        frames: dict[Frame, list[AttentionMask]] = {}
        codes: dict[Frame, Codes] = {}
        for one in attentions:
            n, q, k = one.size
            found = frames.setdefault((one.sequences, n, q), [])
            found += [one] if one.own is not False and k >= q else []
        for record in recorded:
            frames.setdefault(record.frame, [])
            if record.frame not in codes and record.codes is not None:
                codes[record.frame] = record.codes
        self.tokens = {frame: self._tokens(frame, masks, codes.get(frame)) for frame, masks in frames.items()}
        # which tokens the outputs are computed from, ``[batch, seq]``, and the words for them, by kind;
        # by list of blocks the reasons why it is not known
        self.read: dict[Frame, Bool[Tensor, "batch seq"]] = {}
        self.words: dict[Frame, str] = {}
        self.reasons: dict[str, str] = {}
        self.notes = list(self._notes())

    def _notes(self) -> Iterator[str]:
        """Yields what a reader should know about the sequences of this pass."""
        packed = {
            frame[0]: len(tokens.order.rows)
            for frame, tokens in self.tokens.items()
            if tokens.order is not None and tokens.order.packed
        }
        for sequences, count in packed.items():
            yield (
                f"rows of {sequences or 'the network'} hold {count} sequences, found from the masks, which "
                "are measured one by one; labels of rows are not used"
            )
        for name, mask in self.given.unread.items():
            for (_, n, T), tokens in self.tokens.items():
                if mask.shape != (n, T) or bool(mask.all()) or not bool(mask.any()):
                    continue
                real = torch.ones_like(mask)
                if tokens.order is not None:
                    real = tokens.order.mask(n, T).to(mask.device)
                if not torch.equal(real, mask) and not torch.equal(real, ~mask):
                    yield (
                        f"the argument {name} may be a mask of padding, and is not read; call it "
                        "attention_mask (True for real tokens) or padding_mask (True for padding)"
                    )
                    break

    def _tokens(self, frame: Frame, own: Sequence[AttentionMask], codes: Codes | None) -> Tokens:
        """Finds the real tokens, the sequences and their direction from the masks of all attentions."""
        sequences, n, T = frame
        masks = [one.own_keys() for one in own]
        given = self.given.masks.items()
        known = [mask for mask in masks if mask is not None]
        device = known[0].device if known else next((x.device for _, x in given), None)
        if not n or (not known and not any(len(mask) == n for _, mask in given)):
            return Tokens(None, causal=False, codes=codes)
        real = torch.full((n, T), len(known) < len(masks) or not masks, dtype=torch.bool, device=device)
        for mask in known:
            real = real | mask.any(1)
        for name, mask in given:
            if self._of_other_tokens(codes, mask):
                continue
            if ("decoder" in name) == ("decoder" in sequences) or "coder" not in sequences:
                real = real & _fitted(mask.to(real.device), real, codes)
        all_known = bool(masks) and len(known) == len(masks)
        if all_known and T > 1 and bool(real.all()):
            real = real & ~_isolated(known, real)
        causal = all_known and T > 1 and all(_is_causal(mask, real) for mask in known)
        starts = _starts(known, real) if all_known else None
        if starts is None and bool(real.all()):
            return Tokens(None, causal, codes)
        return Tokens(_order(real, starts), causal, codes)

    def _of_other_tokens(self, codes: Codes | None, mask: Tensor) -> bool:
        """Whether tokens are patches, and a mask is that of words beside them."""
        ids = self.given.ids
        return codes is not None and codes.grid is not None and ids is not None and mask.shape == ids.shape

    def set_read(self, frame: Frame, read: Bool[Tensor, "batch seq"]) -> None:
        """Sets the tokens from which the outputs are computed; of padding they are not."""
        tokens = self.tokens[frame]
        if tokens.order is not None:
            if tokens.order.packed:
                self.set_unread(
                    frame[0], "rows hold several sequences, and the network has outputs for each row"
                )
                return
            real = tokens.order.mask(*read.shape).to(read.device)
            lost = read.any(1) & real.any(1) & ~(read & real).any(1)
            if bool(lost.any()):
                self.notes.append(
                    f"the outputs of {counted(int(lost.sum()), 'sequence')} are computed from padding alone"
                )
            read = read & real
        self.words[frame] = _words(read, tokens)
        self.read[frame] = read

    def set_unread(self, sequences: str, reason: str) -> None:
        """Sets the reason why it is not known which tokens of a list of blocks are read."""
        self.reasons[sequences] = reason

    def reading(self, frame: Frame) -> tuple[Bool[Tensor, "batch seq"] | None, str]:
        """Returns which tokens of a kind the outputs are computed from, and the words for them. Lists of
        blocks with the same tokens, one after the other, have the read tokens of the last one.
        """
        if frame not in self.read and not self.crossed:
            same = [other for other in self.read if other[1:] == frame[1:]]
            frame = same[-1] if len(same) == 1 and frame[0] not in self.reasons else frame
        if frame in self.read:
            return self.read[frame], self.words[frame]
        last = next(reversed(self.reasons.values()), NOT_READ)
        return None, self.reasons.get(frame[0], last)

    def activations(self, record: Recorded) -> Activations | None:
        """Returns the activations of a module; None if no sequence has a real token."""
        columns, tokens = dict(record.columns), self.tokens[record.frame]
        order, makers = tokens.order, dict(record.makers)
        n, T = record.frame[1:]
        fits = columns["tokens"].shape[:2] == (n, T)
        if fits:
            own = tokens if record.codes is None else replace(tokens, codes=record.codes)
            columns |= self._masks(record.frame, own)
        else:
            columns["grid"] = self._unplaced()
        if (mask := columns.get("mask")) is not None:
            whole = mask.expand(*mask.shape[:2], columns["query"].shape[2], columns["key"].shape[2])
            columns["mask"] = None if bool(mask.all()) else whole
        if "query" in columns:
            keys = order if _is_self(record) and _keys(record) == T else _order_of_keys(record, order)
            if order is None and keys is None:
                pass
            elif not self._reordered(columns, makers, order, keys):
                return None
        if order is not None:
            if not len(order.rows):
                return None
            for name in ("tokens", "output", "after_attention") if fits else ():
                if (x := columns.get(name)) is not None and x.shape[:2] == (n, T):
                    columns[name] = order.take(x)
            if (labels := columns.get("labels")) is not None and len(labels) == n:
                columns["labels"] = None if order.packed else labels[order.rows.to(labels.device)]
        if not makers:
            return Activations(**columns)
        activations = LazyActivations(**columns)
        activations.postpone(**makers)
        return activations

    def _reordered(self, columns: dict, makers: dict, order: Order | None, keys: Order | None) -> bool:
        """Removes the padding of queries and keys. Returns whether any sequence is left."""
        query, key = columns["query"], columns["key"]
        order = _all_tokens(len(query), query.shape[2], query.device) if order is None else order
        keys = _all_tokens(len(key), key.shape[2], key.device) if keys is None else keys
        if not len(order.rows) or len(order.rows) != len(keys.rows):
            return False
        columns |= {
            "query": order.take_heads(query),
            "key": keys.take_heads(key),
            "value": keys.take_heads(columns["value"]),
            "real_keys": None if bool(keys.real.all()) else keys.real,
        }

        of_pairs = partial(_of_pairs, order, keys, (len(query), query.shape[2], key.shape[2]))
        weights, mask = makers["weights"], columns["mask"]
        makers["weights"] = partial(_made_of_pairs, of_pairs, weights)
        pairs = order.real[:, None, :, None] & keys.real[:, None, None]
        columns["mask"] = pairs if mask is None else of_pairs(mask)
        return True

    def _masks(self, frame: Frame, tokens: Tokens) -> dict[str, Any]:
        """Returns the masks and the grid of the tokens of a kind."""
        _, n, T = frame
        codes, order, (read, reading) = tokens.codes, tokens.order, self.reading(frame)
        ids, given = self.given.ids, self.given
        content = None
        if codes is not None:
            content = codes.values != INSERTED
        if ids is not None and len(ids) == n and given.special and not self._of_other_tokens(codes, ids):
            words = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
            for number in given.special:
                words &= ids != number
            if ids.shape[1] == T:
                content = words if content is None else content & words.to(content.device)
            elif codes is not None and ids.shape[1] > int(codes.values.max()):
                places = codes.values.clamp(min=0).long()
                content = (codes.values != INSERTED) & words.to(places.device).gather(1, places)
        if read is not None and not tokens.causal and T > 1 and bool((read.sum(1) <= 1).all()):
            content = ~read if content is None else content & ~read
        content = None if content is None or bool(content.all()) else content.expand(n, T)
        grid = self._grid(tokens, content, n, T)
        found = {"content": content, "read": read, "reading": reading}
        if order is not None:
            found = {k: order.take(x) if isinstance(x, Tensor) else x for k, x in found.items()}
            if isinstance(grid, Grid):
                grid = replace(grid, places=order.take(grid.places, fill=-1))
            found["real"] = None if bool(order.real.all()) else order.real
        return {**found, "grid": grid}

    def _grid(self, tokens: Tokens, content: Tensor | None, n: int, T: int) -> Grid | str:
        """Returns the grid of the patches, or the reason why there is none."""
        codes, declared = tokens.codes, self.given.grid
        if codes is not None and codes.grid is not None:
            # one batch entry, if the places do not depend on it
            values = codes.values if codes.values.stride(0) else codes.values[:1]
            ordered = values.sort(1).values
            if bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any()):
                return REPEATED
            return Grid(*codes.grid, codes.values.clamp(min=-1).long().expand(n, T))
        if declared is not None:
            some = torch.ones(n, T, dtype=torch.bool) if content is None else content
            if bool((some.sum(1) == declared[0] * declared[1]).all()):
                return Grid(*declared, torch.where(some, some.long().cumsum(1) - 1, -1))
            return f"grid is {declared[0]} x {declared[1]}, and sequences have {int(some[0].sum())} tokens"
        return self._unplaced()

    def _unplaced(self) -> str:
        """Returns the reason why there is no grid."""
        return WORDS if self.given.ids is not None else UNPLACED if self.given.images else NO_IMAGES


def _keys(record: Recorded) -> int:
    return record.columns["key"].shape[2]


def _is_self(record: Recorded) -> bool:
    """Whether a module may attend to its own tokens, as far as is known."""
    return record.own is not False and len(record.columns["key"]) == len(record.columns["query"])


def _isolated(masks: Sequence[Bool[Tensor, "#n q q"]], real: Bool[Tensor, "n T"]) -> Bool[Tensor, "n T"]:
    """Returns the tokens at both ends of a row that no other token sees and that see no other token: padding
    that may attend to itself, so that no query is without keys. None in a row without other tokens.
    """
    alone = torch.ones_like(real)
    for mask in masks:
        ends = mask[:, [0, -1]].sum(2) + mask[:, :, [0, -1]].sum(1) - 2 * mask[:, [0, -1], [0, -1]].int()
        if bool((ends > 0).all()):  # other tokens see both ends of every row, or are seen by them
            return torch.zeros_like(real)
        own = mask.diagonal(dim1=1, dim2=2).int()
        alone = alone & (mask.sum(1) == own).to(real.device) & (mask.sum(2) == own).to(real.device)
    outer = alone.long().cumprod(1) | alone.long().flip(1).cumprod(1).flip(1)
    return outer.bool() & ~alone.all(1, keepdim=True)


def _is_causal(mask: Bool[Tensor, "#n q q"], real: Bool[Tensor, "n q"]) -> bool:
    """Whether no real query sees later keys."""
    return not bool((mask.triu(1).any(2) & real).any())


def _fitted(
    mask: Bool[Tensor, "n given"], real: Bool[Tensor, "n T"], codes: Codes | None
) -> Bool[Tensor, "n T"]:
    """Returns the caller's mask for all tokens; those that the network inserted are real."""
    if mask.shape == real.shape:
        return mask
    if codes is None or len(mask) != len(real) or mask.shape[1] <= int(codes.values.max()):
        return torch.ones_like(real)
    places = codes.values.to(mask.device).expand_as(real)
    return mask.gather(1, places.clamp(min=0).long()) | (places < 0)


def _starts(masks: Sequence[Bool[Tensor, "#n q q"]], real: Bool[Tensor, "n T"]) -> Bool[Tensor, "n T"] | None:
    """Returns where packed sequences begin; None if every row is one sequence."""
    n, T = real.shape
    if T < 2:
        return None
    crossed = torch.zeros(n, T + 1, dtype=torch.int32, device=real.device)
    place = torch.arange(T, device=real.device)
    first, last = real.int().argmax(1), T - 1 - real.flip(1).int().argmax(1)
    row = torch.arange(n, device=real.device)
    for mask in masks:
        mask = mask.to(real.device).expand(n, -1, -1)
        # In most networks the last token sees the first one, or the first one the last.
        if bool((mask[row, last, first] | mask[row, first, last] | ~real.any(1)).all()):
            return None
        allowed = mask & real[:, None] & real[..., None]
        sees = allowed.any(2)
        least = torch.minimum(torch.where(sees, allowed.int().argmax(2), place), place)
        most = torch.where(sees, T - 1 - allowed.flip(2).int().argmax(2), place)
        most = torch.maximum(most, place)
        # A query crosses all boundaries between its first and its last key.
        ones = torch.ones_like(least, dtype=torch.int32)
        crossed.scatter_add_(1, least + 1, ones).scatter_add_(1, most + 1, -ones)
    starts = (crossed[:, :T].cumsum(1) == 0) & real
    starts[row, first] = real.any(1)
    # Tokens that attend to nothing but themselves do not make sequences.
    return starts if bool((starts.sum(1) > 1).any()) and bool((~starts & real).any()) else None


def _order(real: Bool[Tensor, "n T"], starts: Bool[Tensor, "n T"] | None) -> Order:
    """Returns the real tokens of each sequence."""
    n, T = real.shape
    number = torch.zeros(n, T, dtype=torch.long, device=real.device)
    if starts is not None:
        number = starts.long().cumsum(1).clamp(min=1) - 1
    counts = number.amax(1) + 1
    sequence = (counts.cumsum(0) - counts)[:, None] + number
    row, position = real.nonzero().unbind(1)
    index = sequence[real]
    used, index = index.unique(return_inverse=True)
    lengths = torch.bincount(index, minlength=len(used))
    within = torch.arange(len(index), device=real.device) - (lengths.cumsum(0) - lengths)[index]
    longest = int(lengths.max()) if len(used) else 0
    rows = torch.zeros(len(used), dtype=torch.long, device=real.device)
    positions = torch.zeros(len(used), longest, dtype=torch.long, device=real.device)
    rows[index], positions[index, within] = row, position
    return Order(rows, positions, torch.arange(longest, device=real.device) < lengths[:, None])


def _all_tokens(n: int, T: int, device: torch.device) -> Order:
    """Returns the order of sequences without padding."""
    return _order(torch.ones(n, T, dtype=torch.bool, device=device), None)


def _order_of_keys(record: Recorded, order: Order | None) -> Order | None:
    """Returns the real keys of a module that attends to other tokens, or to more than its own."""
    mask, n = record.columns["mask"], len(record.columns["key"])
    if mask is None and (order is None or len(order.rows) == n):
        return None
    real = torch.ones(n, _keys(record), dtype=torch.bool, device=record.columns["key"].device)
    if mask is not None:
        real = real & mask.any(2).any(1)
    if order is None:
        return None if bool(real.all()) else _order(real, None) if bool(real.any(1).all()) else None
    # Rows without a real query are left out; a row of several sequences has the keys of each.
    kept = _order(real | ~real.any(1, keepdim=True), None)
    return Order(kept.rows[order.rows], kept.positions[order.rows], kept.real[order.rows])


def _words(read: Bool[Tensor, "n T"], tokens: Tokens) -> str:
    """Describes the tokens from which the outputs are computed; rows without a real token do not count."""
    inserted = None if tokens.codes is None else (tokens.codes.values == INSERTED).expand_as(read)
    if tokens.order is not None:
        rows = tokens.order.rows
        read, inserted = read[rows], None if inserted is None else inserted[rows]
    counts = read.sum(1)
    if not bool((counts == 1).all()):
        real = read.shape[1] if tokens.order is None else tokens.order.real.sum(1).to(counts)
        return "the tokens" if bool((counts == real).all()) else "the tokens that the head reads"
    position = read.int().argmax(1)
    if inserted is not None and bool(inserted[read].all()):
        return "the class token"
    last = read.shape[1] - 1 if tokens.order is None else tokens.order.positions.amax(1).to(position)
    if tokens.causal:
        return "the last token" if bool((position == last).all()) else "the token that the head reads"
    return "the class token" if bool((position == position[0]).all()) else "the token that the head reads"


def _of_pairs(order: Order, keys: Order, shape: tuple[int, int, int], x: Tensor) -> Tensor:
    """Removes the padding of ``[n, heads, q, k]``, whose sizes without the heads are ``shape``."""
    n, q, k = shape
    x = x.expand(n, -1, q, k)
    found = order.take(x.transpose(1, 2)).transpose(1, 2)
    index = keys.positions[:, None, None].expand(*found.shape[:3], -1)
    found = found.gather(3, index) if len(found) else found.new_zeros(index.shape)
    return torch.where(keys.real[:, None, None], found, torch.zeros((), dtype=x.dtype, device=x.device))


def _made_of_pairs(of_pairs: Callable[[Tensor], Tensor], make: Callable[[], Tensor]) -> Tensor:
    return of_pairs(make())
