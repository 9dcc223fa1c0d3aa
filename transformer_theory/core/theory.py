"""The record of a theory: its claims, and optionally a ladder, experiments, measurements on data and
measurements in networks.

Each section of the report omits the theories that lack the corresponding part.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from .claims import Claim
from .experiment import Experiment
from .format import counted
from .intervention import Intervention
from .ladder import Ladder
from .measurement import Measurement, Side
from .metric import Metric
from .plotting import set_colour
from .presentation import presenting
from .result import Result
from .sources import Source
from .statistics import RANGE_DRAWS
from .table import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SMALLEST_EFFECT = 0.05
"""Smallest effect in a network that is worth a sentence: a twentieth of the way from the copies to the
prediction or the bound, or of the median of the copies."""


@dataclass(frozen=True)
class Unsupported:
    """Returned for data that a theory cannot use.

    Attributes:
        reason: what the theory needs.
    """

    reason: str


@dataclass(frozen=True)
class OnData:
    """Measurements of the theory's minimal model on a data set.

    Attributes:
        read: function that converts a data set (:class:`~transformer_theory.data.TokenData`, or what
            ``reads`` names) to the theory's problem, or returns :class:`Unsupported`.
        measure: ``(problem, generator, *, draws) -> measurements and arrays``. Rows are of kind "on data" or
            "assumption"; names of arrays start with the theory's name and a slash. The generator draws
            initial weights and batches. Splits, subsets and null draws come from
            :func:`~.statistics.fixed_generator` and :func:`~.statistics.permutations`, so that all seeds
            share them. ``draws`` is the number of null draws of the headline; other quantities, and nulls
            that need a new training, take at most :data:`~.statistics.RANGE_DRAWS`. With 0 no null is drawn.
        headline: the quantity that represents the theory in the summary.
        plot: function that draws a figure from the stored result alone.
        reads: type of the data sets that the theory reads, e.g. :class:`~transformer_theory.data.Graphs`;
            None: tokens.
        not_features: reason why the features of networks are not measured, e.g. because they are not at
            chance on noise; empty: they are.
    """

    read: Callable[[Any], Any]
    measure: Callable[..., Iterable[Measurement | Arrays]]
    headline: str
    plot: "Callable[[Result], Figure]"
    reads: type | None = None
    not_features: str = ""


@dataclass(frozen=True)
class Response:
    """A test of a trained network on synthetic inputs.

    Attributes:
        name: name of the test, e.g. "permuted tokens".
        inputs: ``(data, limits, generator) -> mapping``: makes the synthetic inputs from inputs that the
            network accepts, ``[n, ...]``. Keys: "value", the inputs of the test; "null" (optional), inputs,
            or a sequence of inputs, with the same targets, on which the chance level is measured; "targets"
            (optional), or instead "reference": the targets are then the outputs of the network for these
            inputs. ``limits`` maps names of sizes, such as "length", the longest sequence, to their largest
            values.
        metrics: ``() -> metrics``: new metrics for the forward pass on these inputs.
        null_kind: name of the null inputs, e.g. "unrelated blocks".
        reads: "ids" if the test is made from ids and left out of networks of float tokens or images; "any"
            otherwise.
        draws: number of draws of a null that the metrics make themselves from the value inputs.
    """

    name: str
    inputs: Callable[[Any, Mapping[str, int], torch.Generator], Mapping[str, Any]]
    metrics: Callable[[], tuple[Metric, ...]]
    null_kind: str = "other inputs"
    reads: Literal["any", "ids"] = "any"
    draws: int = RANGE_DRAWS


@dataclass(frozen=True)
class InNetworks:
    """The quantities of a theory that can be measured in any trained network.

    Attributes:
        metrics: ``() -> metrics``: new metrics at each call.
        headline: the quantity that represents the theory on the common timeline.
        side: whether the theory expects a trained network above (">=") or below ("<=") the null; None if it
            predicts neither, and then the headline is shown beside its null without a test.
        responses: tests on synthetic inputs.
        meaning: what the headline is, and which value means what, in a clause without a full stop.
        below_zero: what a negative value says, in words behind the value; empty if no value is negative.
        smallest_effect: smallest effect (:attr:`.Judged.effect`) that is worth a sentence. It was fixed on
            the networks of the digits, not on those that are reported, see docs/statistics.md.
        of_labels: whether the headline is a quantity of the labels. Networks trained on permuted labels leave
            their copies in it as well, so that a single network, without such networks beside it, permits no
            sentence about it.
    """

    metrics: Callable[[], tuple[Metric, ...]]
    headline: str
    side: Side | None = ">="
    responses: tuple[Response, ...] = ()
    meaning: str = ""
    below_zero: str = ""
    smallest_effect: float = SMALLEST_EFFECT
    of_labels: bool = False


@dataclass(frozen=True)
class Theory:
    r"""A theory of transformers.

    Attributes:
        name: name of its folder, e.g. ``"attention_svm"``.
        title: heading in reports, e.g. ``"Attention as a support vector machine"``.
        question: the question that it answers, e.g. ``"Where does gradient descent send the attention
            weights?"``
        statement: a summary in one paragraph, with LaTeX between dollars.
        sources: its papers.
        assumptions: the assumptions of its theorems, each a short sentence.
        claims: statements that a computation can check, each with a control that must fail.
        ladder: rungs of relaxed assumptions, which measure how far the theory extends; None if it has no
            ladder.
        experiments: subclasses of :class:`~.experiment.Experiment` that reproduce the figures of its papers.
        on_data: measurements on a data set; None if not supported.
        in_networks: measurements in trained networks; None if not supported.
        interventions: changes of the attention of trained networks, each with a prediction and controls.
        objectives: training objectives derived from it, as classes
            (:class:`~transformer_theory.training.objectives.Objective`).
        colour: its colour in figures, ``"#RRGGBB"``; empty for one of the spare colours.

    Raises:
        ValueError: the name of a claim or an experiment does not start with the theory's name, two
            interventions have the same name, or the colour has another form.
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
    on_data: OnData | None = None
    in_networks: InNetworks | None = None
    interventions: tuple[Intervention, ...] = ()
    objectives: tuple[type, ...] = ()
    colour: str = ""

    def __repr__(self) -> str:
        return f"Theory({', '.join([repr(self.name), *self.parts])})"

    def _repr_html_(self) -> str:
        return presenting().to_html(self)

    @property
    def short_title(self) -> str:
        """The title up to its colon."""
        return self.title.partition(":")[0]

    @property
    def parts(self) -> list[str]:
        """What the theory contributes: ``["15 claims", "8 experiments", "on data", "in networks"]``."""
        counts = (
            ("claim", len(self.claims)),
            ("rung", len(self.ladder.rungs) if self.ladder else 0),
            ("experiment", len(self.experiments)),
        )
        parts = [counted(count, noun) for noun, count in counts if count]
        parts += ["on data"] if self.on_data is not None else []
        parts += ["in networks"] if self.in_networks is not None else []
        return parts + ([counted(len(self.interventions), "intervention")] if self.interventions else [])

    def __post_init__(self):
        if self.colour:
            set_colour(self.name, self.colour)
        for claim in self.claims:
            if claim.theory != self.name:
                raise ValueError(
                    f"claims of {self.name} must have an id that starts with {self.name}/, got {claim.id}"
                )
        for kind in self.experiments:
            if kind.theory() != self.name:
                raise ValueError(
                    f"experiments of {self.name} must have a name that starts with {self.name}., got "
                    f"{kind.name}"
                )
        names = [one.name for one in self.interventions]
        if len(set(names)) < len(names):
            raise ValueError(f"interventions of {self.name} must have different names, got {names}")
