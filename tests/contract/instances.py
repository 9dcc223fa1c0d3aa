"""Small data sets of every shape that a theory may be given. Each entry is a function, so that a test builds
only what it uses.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from unittest import mock

import torch
from torch import Tensor

from transformer_theory.data import TokenData

N, SEQ, DIM, CLASSES, WORDS = 24, 5, 4, 3, 6
# Numbers of steps of the models that theories train on data, by module.
FEWER = {
    "in_context.on_data": {"STEPS": 20},
    "router.on_data": {"STEPS": 20},
    "scan_snap.minimal_model": {"MAX_STEPS": 60, "MAX_SCANNING_STEPS": 60},
}


@contextmanager
def few_steps() -> Iterator[None]:
    """Trains the theories' models on data for few steps: rows, reasons and figures do not depend on how well
    a model is trained.
    """
    with ExitStack() as stack:
        for name, constants in FEWER.items():
            stack.enter_context(
                mock.patch.multiple(import_module(f"transformer_theory.theories.{name}"), **constants)
            )
        yield


def sequences(
    *, n: int = N, seq: int = SEQ, dim: int = DIM, classes: int = CLASSES, words: int = WORDS, seed: int = 0
) -> TokenData:
    """n sequences with every field: Gaussian tokens around one centre per class, random ids, and the label as
    the next id.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = 2 * torch.randn(classes, 1, dim, generator=generator, dtype=torch.float64)
    tokens = centres[labels] + torch.randn(n, seq, dim, generator=generator, dtype=torch.float64)
    return TokenData(
        tokens=tokens,
        labels=labels,
        ids=torch.randint(words, (n, seq), generator=generator),
        next_id=words + labels,
        images=torch.rand(n, 1, 4, 4, generator=generator, dtype=torch.float64),
        vocab_size=words + classes,
        name="contract",
    )


def _with_query() -> TokenData:
    return replace(
        sequences(),
        query=torch.randn(N, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    )


def _scaled(factor: float) -> TokenData:
    data = sequences()
    assert data.query is not None
    return replace(data, tokens=factor * data.tokens, query=factor * data.query)


def _duplicates() -> TokenData:
    one = sequences()[:1]
    return one[torch.zeros(8, dtype=torch.long)]


def _one_label() -> TokenData:
    data = sequences()
    return replace(data, labels=torch.zeros(N, dtype=torch.long), next_id=torch.full((N,), WORDS))


def _equal_tokens() -> TokenData:
    data = sequences()
    return replace(
        data,
        tokens=data.tokens[:, :1].expand(-1, SEQ, -1).clone(),
        ids=torch.zeros(N, SEQ, dtype=torch.long),
        query=None,
    )


def _gaps() -> TokenData:
    data = sequences(classes=2)
    assert data.labels is not None
    return replace(data, labels=7 * data.labels, next_id=40 + data.labels, vocab_size=1000)


DATA: dict[str, Callable[[], TokenData]] = {
    "complete": sequences,
    "tokens only": lambda: TokenData(tokens=sequences().tokens),
    "labels only": lambda: TokenData(tokens=sequences().tokens, labels=sequences().labels),
    "ids without labels": lambda: replace(sequences(), labels=None),
    "own query": _with_query,
    "one token a sequence": lambda: sequences(seq=1),
    "two tokens a sequence": lambda: sequences(seq=2),
    "one sequence": lambda: sequences()[:1],
    "two sequences": lambda: sequences()[:2],
    "two sequences of one class": lambda: sequences()[torch.tensor([0, CLASSES])],
    "duplicates": _duplicates,
    "equal tokens": _equal_tokens,
    "one class": _one_label,
    "every sequence its own class": lambda: sequences(n=6, classes=6),
    "labels and ids with gaps": _gaps,
    "one dimension": lambda: sequences(dim=1),
    "more dimensions than tokens": lambda: sequences(n=6, dim=64),
    "all zero": lambda: _scaled(0.0),
    "tiny": lambda: _scaled(1e-8),
    "huge": lambda: _scaled(1e8),
    "features of a network": lambda: sequences(n=96, seq=17, dim=48, classes=10, words=16),
}


def fields_of(data: TokenData) -> Iterable[Tensor]:
    """The tensors of the data."""
    return [value for value in vars(data).values() if isinstance(value, Tensor)]
