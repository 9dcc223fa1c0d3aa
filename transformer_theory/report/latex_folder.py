r"""A folder of LaTeX made from results: tables to ``\input``, macros, figures, bibliography, an appendix, and an example that shows it all.

* ``all.tex``: all theories in one table; ``<theory>.tex``: the tables of one theory; ``networks.tex``: what trained networks reached;
* ``macros.tex``: every number under a name; ``appendix.tex``: where the numbers come from; ``references.bib``: what is cited;
* ``figures/``: each figure as PDF and SVG; ``example.tex``: a document that compiles with pdflatex and bibtex.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from string import Template

from ..core.theory import Theory
from . import format, tables
from .aggregate import Aggregate
from .bibtex import references, software_key
from .figures import Drawn, Picture, draw, file_names, pictures
from .html import TEMPLATES
from .latex import PACKAGES, floats, longtable
from .latex_text import escape, typewriter
from .macros import definitions, example, macros
from .table_model import Table

OWN = ("all", "networks", "macros", "appendix", "example")  # files that belong to no theory


def latex_folder(
    aggregate: Aggregate,
    *,
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
    drawn: Drawn | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """The files by their names in the folder, and a sentence for each figure that could not be drawn.

    Args:
        aggregate: the results.
        folders: where they are stored, in their order; empty if they are not.
        checksums: for each the SHA-256 of its files by their names; empty if they are not stored.
        drawn: the figures, if they are drawn already.
        progress: called with a line before each figure, which takes about a second.
    """
    drawn = drawn or draw(pictures(aggregate), progress=progress)
    texts = {"all.tex": floats(tables.summary(aggregate))}
    inputs: list[tuple[str, Theory | None]] = []
    for name, theory, own in _theories(aggregate):
        texts[f"{name}.tex"] = "\n".join(map(longtable, own))
        inputs.append((name, theory))
    if (networks := tables.networks(aggregate)) is not None:
        texts["networks.tex"] = longtable(networks)
        inputs.append(("networks", None))
    texts["macros.tex"] = definitions(aggregate)
    texts["appendix.tex"] = longtable(tables.provenance(aggregate, folders, checksums))
    texts["references.bib"] = references(aggregate.results, theories=aggregate.theories)
    texts["example.tex"] = _example(aggregate, inputs, drawn.shown)
    return {name: text.encode() for name, text in texts.items()} | {
        f"figures/{name}": data for name, data in drawn.files.items()
    }, drawn.failed


def names(aggregate: Aggregate) -> list[str]:
    """The files that :func:`latex_folder` makes of these results, without drawing; some figures may have nothing to draw."""
    own = [name for name in OWN if name != "networks" or tables.networks(aggregate) is not None]
    texts = [f"{name}.tex" for name in (*own, *(name for name, *_ in _theories(aggregate)))]
    return [*texts, "references.bib", *(f"figures/{name}" for name in file_names(pictures(aggregate)))]


def _theories(aggregate: Aggregate) -> Iterator[tuple[str, Theory, list[Table]]]:
    """Each theory that has any table, with the name of its file; files and labels of theories with like names are numbered."""
    own = [(theory, found) for theory in aggregate.theories if (found := tables.of_theory(aggregate, theory))]
    labels = format.unique(format.slug(theory.name) for theory, _ in own)
    for (theory, found), label, name in zip(own, labels, format.unique(_file_name(theory) for theory, _ in own)):
        first = format.slug(theory.name)
        yield name, theory, [replace(table, name=f"{label}{table.name.removeprefix(first)}") for table in found]


def _file_name(theory: Theory) -> str:
    """The theory's name if it is a name for a file on every system, else its slug."""
    name = theory.name if re.fullmatch(r"[a-z0-9_]+", theory.name) else format.slug(theory.name)
    return f"theory-{name}" if name in OWN else name


def _example(aggregate: Aggregate, inputs: Sequence[tuple[str, Theory | None]], shown: Sequence[Picture]) -> str:
    number = example(macros(aggregate))
    used = rf"A number in the text is a macro: {typewriter(chr(92) + number.name)} is \{number.name}." if number else ""
    sections = []
    for name, theory in inputs:
        own = [picture for picture in shown if picture.theory == (theory.name if theory else None)]
        sections += [rf"\section{{{escape(theory.title if theory else 'Networks')}}}", rf"\input{{{name}}}", *map(_figure, own)]
    if not any(theory is None for _, theory in inputs):
        sections += map(_figure, (picture for picture in shown if picture.theory is None))
    template = (TEMPLATES / "example.tex").read_text(encoding="utf-8")
    return _Template(template).substitute(packages=",".join(PACKAGES), software=software_key(), number=used, sections="\n".join(sections))


class _Template(Template):
    """A text with places such as ``@{name}``: dollars are formulas in LaTeX."""

    delimiter = "@"


def _figure(picture: Picture) -> str:
    """The figure in its place, not floating: there may be more figures than LaTeX keeps in memory."""
    image = rf"\includegraphics[width=\linewidth,height=0.8\textheight,keepaspectratio]{{figures/{picture.name}}}"
    title = rf"\\{{\small {escape(picture.title)}}}"
    return "\n".join([r"\noindent\begin{minipage}{\linewidth}\centering", image, title, r"\end{minipage}\par\bigskip"])
