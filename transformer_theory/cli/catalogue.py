"""The command ``list``: prints all names with one line each, or describes a theory, a claim or an experiment.
Names fit into 80 columns.

The texts are stored in :data:`STORED`, so that the command need not import torch and all theories, which
takes seconds. ``python -m transformer_theory.cli.catalogue`` writes the file; a test compares it with the
records. Formulas are printed in Unicode (:mod:`~transformer_theory.core.math_text`); the page and
``docs/claims.md`` typeset them.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..core.errors import named
from ..core.math_text import plain
from .terminal import console

if TYPE_CHECKING:
    from ..core.claims import Claim
    from ..core.experiment import Experiment
    from ..core.theory import Theory

STORED = Path(__file__).with_suffix(".json")
Texts = dict[str, Any]
"""The texts of one theory, claim or experiment by title. A theory also has those of its ``claims`` and
``experiments``.
"""


def list_theories(options: argparse.Namespace) -> int:
    """Prints all theories with their claims and experiments or, if a name is passed, the description of one
    of them.

    Raises:
        ValueError: the name is unknown.
    """
    theories = stored()
    if options.name is None:
        shown = catalogue(theories)
    else:
        parts = [part for theory in theories for part in (theory, *theory["claims"], *theory["experiments"])]
        known = {part["name"]: part for part in parts}
        shown = describe(named("theory, claim or experiment", options.name, known))
    console().print(shown, highlight=False)
    return 0


def stored() -> list[Texts]:
    """Returns the stored texts of all theories; those of the records, if a theory was added or removed."""
    theories = json.loads(STORED.read_text(encoding="utf-8"))
    folders = {file.parent.name for file in STORED.parents[1].glob("theories/*/__init__.py")}
    if folders != {theory["name"] for theory in theories}:
        return json.loads(stored_text())
    return theories


def catalogue(theories: Iterable[Texts]) -> Group:
    """Formats the theories: name and question, and one line per claim and experiment. A text that is too long
    ends in an ellipsis.
    """
    parts = []
    for theory in theories:
        parts += [Text(theory["name"], style="bold"), Padding(Text(theory["text"]), (0, 0, 0, 2))]
        for title in ("claims", "experiments"):
            if lines := theory[title]:
                table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
                table.add_column(no_wrap=True, min_width=max(len(line["name"]) for line in lines))
                table.add_column(style="dim")
                for line in lines:
                    text = Text(plain(line["text"]), no_wrap=True, overflow="ellipsis")
                    table.add_row(line["name"], text)
                parts += [Padding(Text(title, style="dim"), (0, 0, 0, 2)), Padding(table, (0, 0, 0, 4))]
        parts.append(Text())
    return Group(*parts[:-1])


def describe(texts: Texts) -> Group:
    """Formats the description of a theory, a claim or an experiment."""
    parts = [_item(texts)]
    for title, paragraphs in texts["sections"].items():
        parts += [Text(title, style="dim")] if title else []
        parts += [_wrapped(text) for text in paragraphs]
    for title in ("claims", "experiments"):
        if lines := texts.get(title):
            parts += [Text(), Text(title, style="dim"), *map(_item, lines)]
    return Group(*parts, Text(f"sources: {', '.join(texts['sources'])}", style="dim"))


def texts_of(theory: "Theory") -> Texts:
    """Returns the texts of a theory, its claims and its experiments."""
    return {
        "name": theory.name,
        "text": theory.question,
        "sections": {"": [theory.statement], "assumptions": _items(theory.assumptions)},
        "sources": [source.label for source in theory.sources],
        "claims": [_of_claim(claim) for claim in theory.claims],
        "experiments": [
            {
                "name": kind.name,
                "text": summary(kind),
                "sections": {},
                "sources": [source.label for source in kind.sources],
            }
            for kind in theory.experiments
        ],
    }


def _of_claim(claim: "Claim") -> Texts:
    """Returns the texts of a claim."""
    from ..core import format

    sections = {
        "measures": [f"{claim.measures}; threshold: {format.threshold(claim.op, claim.threshold)}"],
        "assumptions": _items(claim.assumptions),
        "control, which must fail": [claim.control_description],
    }
    if claim.corrected:
        kind = "corrects" if claim.corrects_published else "differs from an unpublished text"
        sections[f"{kind}: {claim.corrected.label}"] = [claim.corrects]
    return {
        "name": claim.id,
        "text": claim.statement,
        "sections": sections,
        "sources": [claim.source.label],
    }


def summary(kind: "type[Experiment]") -> str:
    """Returns the first paragraph of an experiment's docstring as plain text."""
    from ..core import experiment

    return experiment.summary(kind).replace("`", "")


def stored_text() -> str:
    """Returns what :data:`STORED` must hold."""
    from ..theories import list_theories

    return json.dumps([texts_of(theory) for theory in list_theories()], indent=1, ensure_ascii=False) + "\n"


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def _item(texts: Texts) -> Group:
    return Group(Text(texts["name"], style="bold"), _wrapped(texts["text"]))


def _wrapped(text: str) -> Padding:
    return Padding(Text(plain(text)), (0, 0, 0, 2))


if __name__ == "__main__":
    STORED.write_text(stored_text(), encoding="utf-8")
