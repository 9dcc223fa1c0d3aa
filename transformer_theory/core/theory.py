"""What a theory contributes: claims, a ladder, experiments, and, where it has them, what it does on data and measures in networks.

A theory that lacks a capability is absent from that part of the report.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .claims import Claim
from .experiment import Experiment
from .ladder import Ladder
from .measurement import Arrays, Measurement, Side
from .metric import Metric
from .result import Result
from .sources import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Unsupported:
    """A theory's answer to data that it cannot use: ``reason`` says what it needs."""

    reason: str


@dataclass(frozen=True)
class OnData:
    """What the theory's own minimal model does on a data set.

    Attributes:
        read: turns a data set (:class:`~transformer_theory.data.TokenData`) into the theory's own problem, or :class:`Unsupported`.
        measure: ``(problem, generator) -> measurements and arrays``, of kind "on data" or "assumption". Array names start with the
            theory's name and a slash.
        headline: the quantity that stands for the theory in the summary.
        plot: a figure, a pure function of the stored result.
        permutes: the field of the data that is permuted, before ``read``, to draw the null: "labels" or "next_id"; empty if none.
    """

    read: Callable[[Any], Any]
    measure: Callable[[Any, torch.Generator], Iterable[Measurement | Arrays]]
    headline: str
    plot: "Callable[[Result], Figure]"
    permutes: str = ""


@dataclass(frozen=True)
class Response:
    """Inputs made for the purpose, on which a trained network is run (see ``tt.respond``).

    Attributes:
        name: of the test, e.g. "permuted tokens".
        inputs: ``(data, limits, generator) -> {"value": inputs, "null": inputs}`` with the same targets.
        metrics: ``() -> metrics`` that measure the run.
    """

    name: str
    inputs: Callable[[Any, Mapping[str, int], torch.Generator], Mapping[str, Any]]
    metrics: Callable[[], tuple[Metric, ...]]


@dataclass(frozen=True)
class InNetworks:
    """Which of the theory's quantities can be measured in any trained network.

    Attributes:
        metrics: ``() -> metrics``, fresh ones.
        headline: the quantity that stands for the theory on the common timeline.
        side: of the null that the theory expects of a trained network.
        responses: tests on inputs made for the purpose.
    """

    metrics: Callable[[], tuple[Metric, ...]]
    headline: str
    side: Side = ">="
    responses: tuple[Response, ...] = ()


@dataclass(frozen=True)
class Theory:
    r"""A theory of transformers.

    Attributes:
        name: of its folder, e.g. ``"attention_svm"``.
        title: as a heading, e.g. ``"Attention as a support vector machine"``.
        question: what it answers, e.g. ``"Where does gradient descent send the attention weights?"``
        statement: its core in one paragraph, text with LaTeX between dollars.
        sources: its papers.
        assumptions: of its theorems, each a short sentence.
        claims: checkable statements, each with a control.
        ladder: how far it extends; None until it is written.
        experiments: classes, the papers' figures redone.
        on_data: what its minimal model does on a data set; None if it has none.
        in_networks: what it measures in trained networks; None if it has no such quantity.
        objectives: classes of training objectives of its own (:class:`~transformer_theory.training.objectives.Objective`).

    Raises:
        ValueError: a claim or an experiment is not named after the theory.
    """

    name: str
    title: str
    question: str
    statement: str
    sources: tuple[Source, ...]
    assumptions: tuple[str, ...]
    claims: tuple[Claim, ...]
    ladder: Ladder | None = None
    experiments: tuple[type[Experiment], ...] = ()
    on_data: OnData | None = field(default=None, repr=False)
    in_networks: InNetworks | None = field(default=None, repr=False)
    objectives: tuple[type, ...] = ()

    def __post_init__(self):
        for claim in self.claims:
            if claim.theory != self.name:
                raise ValueError(f"claims of {self.name} must have an id {self.name}/..., got {claim.id}")
        for kind in self.experiments:
            if kind.theory() != self.name:
                raise ValueError(f"experiments of {self.name} must have a name {self.name}...., got {kind.name}")
