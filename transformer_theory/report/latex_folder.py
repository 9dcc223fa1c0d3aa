r"""A folder of LaTeX files made from results, ready for ``\input``:

* ``all.tex``: all theories in one compact table; ``findings.tex``: the findings in a few sentences, as a
  list;
* ``reach.tex``: how far the theories reach, as a list of sentences and a table of the rungs;
* ``<theory>.tex``: the tables of one theory; ``networks.tex``: the results of trained networks;
* ``macros.tex``: a macro for every number; ``appendix.tex``: the provenance of the numbers;
  ``references.bib``: the cited works;
* ``figures/``: each figure as PDF and SVG; ``example.tex``: a document that includes all files and compiles
  with pdflatex and bibtex.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from string import Template

from ..core import format
from ..core.theory import Theory
from . import tables
from .aggregate import Aggregate
from .bibtex import references, software_key
from .figures import IN_COLUMN, Drawn, Picture, draw, file_names, pictures
from .findings import findings
from .html import TEMPLATES
from .latex import PACKAGES, all_theories, longtable
from .latex_findings import itemize
from .latex_reach import reach
from .macros import definitions, example, macros
from .math_text import escape, typewriter
from .reached import reached
from .software import sentence
from .table_model import Table

OWN = (
    "all",
    "findings",
    "reach",
    "networks",
    "macros",
    "appendix",
    "example",
)  # stems of files that belong to no theory; theories may not use them


def latex_folder(
    aggregate: Aggregate,
    *,
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
    drawn: Drawn | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """Returns the contents of the files by name, and one sentence per figure that could not be drawn.

    Args:
        aggregate: the results.
        folders: folders of the results, in the order of the results; empty if the results are not stored.
        checksums: for each result, a mapping from file name to SHA-256; empty if the results are not stored.
        drawn: figures as files; if None, they are drawn here.
        progress: function that is called with a line of text before a figure is drawn; drawing takes about a
            second per figure.
    """
    drawn = drawn or draw(pictures(aggregate), progress=progress)
    texts = {"all.tex": all_theories(aggregate)}
    software = sentence(aggregate.results)
    leading: list[tuple[str, str]] = []
    if cells := reached(aggregate):
        texts["reach.tex"] = reach(cells, software)
        leading.append(("Reach", "reach"))
    if found := itemize(findings(aggregate)):
        texts["findings.tex"] = found
        leading.append(("Findings", "findings"))
    inputs: list[tuple[str, Theory | None]] = []
    for name, theory, theory_tables in _theories(aggregate):
        texts[f"{name}.tex"] = "\n".join(longtable(table, software) for table in theory_tables)
        inputs.append((name, theory))
    if (networks := tables.networks(aggregate)) is not None:
        texts["networks.tex"] = longtable(networks, software)
        inputs.append(("networks", None))
    texts["macros.tex"] = definitions(aggregate)
    texts["appendix.tex"] = longtable(tables.provenance(aggregate, folders, checksums))
    texts["references.bib"] = references(aggregate.results, theories=aggregate.theories)
    texts["example.tex"] = _example(aggregate, inputs, drawn.shown, leading)
    return {name: text.encode() for name, text in texts.items()} | {
        f"figures/{name}": data for name, data in drawn.files.items()
    }, drawn.failed


def names(aggregate: Aggregate) -> list[str]:
    """Lists the files that :func:`latex_folder` may write, without drawing; figures that turn out to be empty
    are listed too.
    """
    missing = {"networks"} if tables.networks(aggregate) is None else set()
    missing |= set() if itemize(findings(aggregate)) else {"findings"}
    missing |= set() if reached(aggregate) else {"reach"}
    stems = [name for name in OWN if name not in missing]
    texts = [f"{name}.tex" for name in (*stems, *(name for name, *_ in _theories(aggregate)))]
    return [*texts, "references.bib", *(f"figures/{name}" for name in file_names(pictures(aggregate)))]


def _theories(aggregate: Aggregate) -> Iterator[tuple[str, Theory, list[Table]]]:
    """Yields the file name, the theory and the tables of each theory that has a table. Equal names or labels
    are numbered.
    """
    with_tables = [
        (theory, theory_tables)
        for theory in aggregate.theories
        if (theory_tables := tables.of_theory(aggregate, theory))
    ]
    labels = format.unique(format.slug(theory.name) for theory, _ in with_tables)
    for (theory, theory_tables), label, name in zip(
        with_tables, labels, format.unique(_file_name(theory) for theory, _ in with_tables)
    ):
        slug = format.slug(theory.name)
        yield (
            name,
            theory,
            [replace(table, name=f"{label}{table.name.removeprefix(slug)}") for table in theory_tables],
        )


def _file_name(theory: Theory) -> str:
    """Returns the theory's name if every file system accepts it, otherwise its slug. A name in :data:`OWN`
    gets a prefix.
    """
    name = theory.name if re.fullmatch(r"[a-z0-9_]+", theory.name) else format.slug(theory.name)
    return f"theory-{name}" if name in OWN else name


def _example(
    aggregate: Aggregate,
    inputs: Sequence[tuple[str, Theory | None]],
    shown: Sequence[Picture],
    leading: Sequence[tuple[str, str]],
) -> str:
    """Returns the example document, with the leading sections (title, file), one per theory and one for the
    networks.
    """
    number = example(macros(aggregate))
    macro_text = (
        rf"A number in the text is a macro: {typewriter(chr(92) + number.name)} is \{number.name}."
        if number
        else ""
    )
    sections = [line for title, name in leading for line in (rf"\section{{{title}}}", rf"\input{{{name}}}")]
    for name, theory in inputs:
        panels = [picture for picture in shown if picture.theory == (theory.name if theory else None)]
        sections += [
            rf"\section{{{escape(theory.title if theory else 'Networks')}}}",
            rf"\input{{{name}}}",
            *map(_figure, panels),
        ]
    # Figures without a theory belong to the section on networks; without this section, they come last.
    if not any(theory is None for _, theory in inputs):
        sections += map(_figure, (picture for picture in shown if picture.theory is None))
    template = (TEMPLATES / "example.tex").read_text(encoding="utf-8")
    return _Template(template).substitute(
        packages=",".join(PACKAGES), software=software_key(), number=macro_text, sections="\n".join(sections)
    )


class _Template(Template):
    """A template with placeholders such as ``@{name}``, because a dollar begins a formula in LaTeX."""

    delimiter = "@"


def _figure(picture: Picture) -> str:
    """Returns the LaTeX code of a figure that does not float, because LaTeX limits the number of pending
    floats.
    """
    size = (
        ""
        if picture.name.endswith(f"-{IN_COLUMN}")
        else r"[width=\linewidth,height=0.8\textheight,keepaspectratio]"
    )
    image = rf"\includegraphics{size}{{figures/{picture.name}}}"
    title = rf"\\{{\small {escape(picture.title)}}}"
    return "\n".join(
        [r"\noindent\begin{minipage}{\linewidth}\centering", image, title, r"\end{minipage}\par\bigskip"]
    )
