"""The theories' minimal models on one view of the data: the raw tokens, or the features of a network."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from ..core import listeners
from ..core.measurement import Measurement
from ..core.statistics import DATA_DRAWS
from ..core.table import Arrays
from ..core.theory import Theory, Unsupported
from ..data import Graphs, TokenData
from ..data.synthetic import noise_like

Stream = Iterator[Measurement | Arrays]
View = list[Measurement | Arrays]


def on_raw_data(data: TokenData | Graphs, theories: tuple[Theory, ...], *, seed: int, first: bool) -> View:
    """Measures the theories on the raw data and on noise; ``first`` adds arrays, see :func:`on_view`."""
    return on_view(theories, data, "", seed=seed, arrays=first, noise=True)


def on_view(
    theories: Iterable[Theory],
    data: TokenData | Graphs,
    model: str,
    *,
    seed: int,
    arrays: bool,
    noise: bool,
) -> View:
    """Measures the theories on one view of the data.

    Args:
        theories: theories. Those that read no data, or data of another type, are left out.
        data: raw tokens, features of a network, or graphs.
        model: name of the network; empty for raw tokens.
        seed: seed of the theories' models.
        arrays: whether to return the arrays as well.
        noise: whether to repeat the measurements on noise of the same shape, for the column ``on_noise``.
    """
    theories = [theory for theory in theories if reads(theory, data)]
    rows: View = [*_on_data(theories, data, model, seed, draws=DATA_DRAWS)]
    if not arrays:
        rows = [item for item in rows if isinstance(item, Measurement)]
    if not noise:
        return rows
    generator = torch.Generator().manual_seed(seed)
    random = data.noise_like(generator) if isinstance(data, Graphs) else noise_like(data, generator)
    control = [
        item for item in _on_data(theories, random, model, seed, draws=0) if isinstance(item, Measurement)
    ]
    return with_noise(rows, control)


def reads(theory: Theory, data: TokenData | Graphs) -> bool:
    """Returns whether a theory has a part on data of this type."""
    return theory.on_data is not None and isinstance(data, theory.on_data.reads or TokenData)


def with_noise(rows: Sequence[Measurement | Arrays], control: Iterable[Measurement]) -> View:
    """Returns the rows with the values of the control, rows of the same quantities on noise, in the column
    ``on_noise``.
    """
    values = {_place(row): row.value for row in control if row.value is not None}
    return [
        item if isinstance(item, Arrays) else replace(item, on_noise=values.get(_place(item)))
        for item in rows
    ]


def _place(row: Measurement) -> tuple:
    return row.theory, row.kind, row.quantity, row.at, row.split, row.model


def _on_data(
    theories: Iterable[Theory], data: TokenData | Graphs, model: str, seed: int, *, draws: int
) -> Stream:
    """Yields the measurements of each theory; unsupported data give one row with the reason."""
    for theory in theories:
        assert theory.on_data is not None
        view = f"features of {model}" if model else "raw tokens"
        listeners.progress(
            f"{view}, seed {seed}: {theory.title}"
            if draws
            else f"noise of the shape of the {view}: {theory.title}"
        )
        refused = theory.on_data.not_features if model else ""
        problem = Unsupported(refused) if refused else theory.on_data.read(data)
        if isinstance(problem, Unsupported):
            yield Measurement(
                theory.name,
                "on data",
                theory.on_data.headline,
                None,
                reason=problem.reason,
                model=model,
                seed=seed,
            )
            continue
        for item in theory.on_data.measure(problem, torch.Generator().manual_seed(seed), draws=draws):
            if isinstance(item, Arrays):
                yield (
                    item if not model else Arrays({f"{model}::{name}": array for name, array in item.items()})
                )
            else:
                yield replace(item, model=model, seed=seed)
