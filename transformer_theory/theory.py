"""The record of a theory: its question, its sources, its claims, and how it reads data and trained networks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from .citations import Source
from .claims import Claim
from .data.tokens import TokenData
from .experiment import Experiment, Result
from .rows import Arrays, Row, not_applicable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .probes import Reducer


@dataclass(frozen=True)
class Theory:
    r"""A theory of transformers.

    Attributes:
        name: of the room, e.g. ``"attention_svm"``.
        title: as a heading, e.g. ``"Attention as a support vector machine"``.
        question: what it answers, e.g. ``"Where does gradient descent send the attention weights?"``
        statement: its core in one paragraph, text with LaTeX between dollars.
        sources: its papers.
        assumptions: of its theorems, each a short sentence.
        claims: checkable statements.
        experiments: classes of runs.
        needs: fields of :class:`TokenData` that it cannot do without.
        predict_and_measure: ``(data, generator) -> rows and arrays``: what the theory's own minimal model does on the data,
            beside the prediction. Array names start with the theory's name and a slash.
        reducers: ``() -> reducers``: its order parameters in any trained network (see :mod:`transformer_theory.probes`).
        draw: a figure of ``predict_and_measure``, a pure function of the stored result.
        order_parameter: the quantity (of its reducers' rows) that stands for it on the common timeline.
        answer: the quantity (of its own rows) that stands for it in the summary table.
        order_relation: which side of its null the theory expects the order parameter of a trained network on.
    """

    name: str
    title: str
    question: str
    statement: str
    sources: tuple[Source, ...]
    assumptions: tuple[str, ...]
    claims: tuple[Claim, ...]
    experiments: tuple[type[Experiment], ...]
    needs: tuple[str, ...]
    predict_and_measure: Callable[[TokenData, torch.Generator], Iterator[Row | Arrays]] = field(repr=False)
    reducers: Callable[[], tuple["Reducer", ...]] = field(repr=False)
    draw: Callable[[Result], "Figure"] = field(repr=False)
    order_parameter: str
    answer: str
    order_relation: Literal["<=", ">="] = ">="

    def measure(self, data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
        """:attr:`predict_and_measure`, or one row "not applicable: needs ..." if the data lack a field."""
        missing = [name for name in self.needs if getattr(data, name) is None]
        if missing:
            yield not_applicable(self.name, f"needs {', '.join(missing)}")
        else:
            yield from self.predict_and_measure(data, generator)
