"""The command ``list``: prints all names with one line each, or describes a theory, a claim or an experiment.
Names fit into 80 columns.

Formulas are printed in Unicode (:mod:`~transformer_theory.core.math_text`); the page and
``docs/claims.md`` typeset them.
"""

import argparse
from collections.abc import Iterable

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..core import experiment, format
from ..core.claims import Claim
from ..core.experiment import Experiment
from ..core.math_text import plain
from ..core.sources import Source
from ..core.theory import Theory
from .terminal import console


def list_theories(options: argparse.Namespace) -> int:
    """Prints all theories with their claims and experiments or, if a name is passed, the description of one
    of them.

    Raises:
        ValueError: the name is unknown.
    """
    from ..theories import list_theories, named

    console().print(
        catalogue(list_theories()) if options.name is None else describe(named(options.name)), highlight=False
    )
    return 0


def catalogue(theories: Iterable[Theory]) -> Group:
    """Formats the theories: name and question, and one line per claim and experiment. A text that is too long
    ends in an ellipsis.
    """
    parts = []
    for theory in theories:
        parts += [Text(theory.name, style="bold"), Padding(Text(theory.question), (0, 0, 0, 2))]
        claims = [(claim.id, claim.statement) for claim in theory.claims]
        for title, lines in (
            ("claims", claims),
            ("experiments", [(kind.name, summary(kind)) for kind in theory.experiments]),
        ):
            if lines:
                table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
                table.add_column(no_wrap=True, min_width=max(len(name) for name, _ in lines))
                table.add_column(style="dim")
                for name, text in lines:
                    table.add_row(name, Text(plain(text), no_wrap=True, overflow="ellipsis"))
                parts += [Padding(Text(title, style="dim"), (0, 0, 0, 2)), Padding(table, (0, 0, 0, 4))]
        parts.append(Text())
    return Group(*parts[:-1])


def describe(record: Theory | Claim | type[Experiment]) -> Group:
    """Formats the description of a theory, a claim or an experiment."""
    sources: tuple[Source, ...]
    if isinstance(record, Theory):
        parts = [
            _item(record.name, record.question),
            _wrapped(record.statement),
            Text("assumptions", style="dim"),
        ]
        parts += [_wrapped(f"- {text}") for text in record.assumptions]
        parts += [
            Text(),
            Text("claims", style="dim"),
            *(_item(claim.id, claim.statement) for claim in record.claims),
        ]
        if record.experiments:
            parts += [
                Text(),
                Text("experiments", style="dim"),
                *(_item(kind.name, summary(kind)) for kind in record.experiments),
            ]
        sources = record.sources
    elif isinstance(record, Claim):
        limit = format.threshold(record.op, record.threshold)
        parts = [_item(record.id, record.statement), Text("measures", style="dim")]
        parts += [_wrapped(f"{record.measures}; threshold: {limit}")]
        parts += [Text("assumptions", style="dim"), *(_wrapped(f"- {text}") for text in record.assumptions)]
        parts += [Text("control, which must fail", style="dim"), _wrapped(record.control_description)]
        if record.corrected:
            kind = "corrects" if record.corrects_published else "differs from an unpublished text"
            parts += [Text(f"{kind}: {record.corrected.label}", style="dim"), _wrapped(record.corrects)]
        sources = (record.source,)
    else:
        parts, sources = [_item(record.name, summary(record))], record.sources
    return Group(*parts, Text(f"sources: {', '.join(source.label for source in sources)}", style="dim"))


def summary(kind: type[Experiment]) -> str:
    """Returns the first paragraph of an experiment's docstring as plain text."""
    return experiment.summary(kind).replace("`", "")


def _item(name: str, text: str) -> Group:
    return Group(Text(name, style="bold"), _wrapped(text))


def _wrapped(text: str) -> Padding:
    return Padding(Text(plain(text)), (0, 0, 0, 2))
