r"""A folder of LaTeX made from results: tables to ``\input``, macros, figures, bibliography, an appendix, and an example that shows it all.

* ``all.tex``: all theories in one table; ``<theory>.tex``: all that there is of one; ``networks.tex``: what trained networks reached;
* ``macros.tex``: every number under a name; ``appendix.tex``: where the numbers come from; ``references.bib``: what is cited;
* ``figures/``: each figure as PDF and SVG; ``example.tex``: compiles with pdflatex and bibtex, and is what a reader looks at first.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.theory import Theory
from . import tables, wording
from .appendix import appendix
from .bibtex import references, software_key
from .latex import PACKAGES, floats, longtable, typewriter
from .latex_text import escape
from .macros import definitions, example, macros
from .merged import Merged
from .pictures import Drawn, Picture, files, pictures
from .pictures import names as drawn_names
from .tables import Table

OWN = ("all", "networks", "macros", "appendix", "example")  # files that are of no theory


def latex_folder(
    merged: Merged,
    *,
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
    drawn: Drawn | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """The files by their names in the folder, and a sentence for each figure that could not be drawn.

    Args:
        merged: the results.
        folders, checksums: as :func:`~.appendix.appendix` takes them.
        drawn: the figures, if they are drawn already.
        progress: called with a line before each figure, which take a second each.
    """
    drawn = drawn or files(pictures(merged), progress=progress)
    texts = {"all.tex": floats(tables.overall(merged))}
    inputs: list[tuple[str, Theory | None]] = []
    for name, theory, found in _theories(merged):
        texts[f"{name}.tex"] = "\n".join(map(longtable, found))
        inputs.append((name, theory))
    if (reached := tables.networks(merged)) is not None:
        texts["networks.tex"] = longtable(reached)
        inputs.append(("networks", None))
    texts["macros.tex"] = definitions(merged)
    texts["appendix.tex"] = appendix(merged, folders=folders, checksums=checksums)
    texts["references.bib"] = references(merged.results, theories=merged.theories)
    texts["example.tex"] = _example(merged, inputs, drawn.shown)
    figures = {f"figures/{name}": data for name, data in drawn.files.items()}
    return {name: text.encode() for name, text in texts.items()} | figures, drawn.failed


def names(merged: Merged) -> list[str]:
    """The files that :func:`latex_folder` makes of these results, found without drawing; some figures may have nothing to draw."""
    own = [name for name in OWN if name != "networks" or tables.networks(merged) is not None]
    texts = [f"{name}.tex" for name in (*own, *(name for name, *_ in _theories(merged)))]
    return [*texts, "references.bib", *(f"figures/{name}" for name in drawn_names(pictures(merged)))]


def _theories(merged: Merged) -> Iterator[tuple[str, Theory, list[Table]]]:
    """Each theory that has any table, with the name of its file; files and labels of theories with like names are numbered."""
    own = [(theory, found) for theory in merged.theories if (found := tables.of_theory(merged, theory))]
    labels = wording.apart(wording.slug(theory.name) for theory, _ in own)
    for (theory, found), label, name in zip(own, labels, wording.apart(file_name(theory) for theory, _ in own)):
        first = wording.slug(theory.name)
        yield name, theory, [replace(table, name=f"{label}{table.name.removeprefix(first)}") for table in found]


def file_name(theory: Theory) -> str:
    """The theory's name if it is one for a file on every system, else words of it."""
    name = theory.name if re.fullmatch(r"[a-z0-9_]+", theory.name) else wording.slug(theory.name)
    return f"theory-{name}" if name in OWN else name


def _example(merged: Merged, inputs: Sequence[tuple[str, Theory | None]], shown: Sequence[Picture]) -> str:
    number = example(macros(merged))
    used = rf"A number in the text is a macro: {typewriter(chr(92) + number.name)} is \{number.name}." if number else ""
    sections = []
    for name, theory in inputs:
        own = [picture for picture in shown if picture.theory == (theory.name if theory else None)]
        sections += [rf"\section{{{escape(theory.title if theory else 'Networks')}}}", rf"\input{{{name}}}", *map(_figure, own)]
    if not any(theory is None for _, theory in inputs):
        sections += map(_figure, (picture for picture in shown if picture.theory is None))
    return "\n".join(
        [
            "% pdflatex example && bibtex example && pdflatex example && pdflatex example (and once more where it asks for it)",
            r"\documentclass[11pt]{article}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage{lmodern}",
            r"\usepackage[a4paper,margin=25mm]{geometry}",
            rf"\usepackage{{{','.join(PACKAGES)},graphicx}}",
            r"\usepackage[hidelinks]{hyperref}",
            r"\input{macros}",
            r"\begin{document}",
            r"\section*{What theories of transformers say, and what was measured}",
            r"Table~\ref{tab:tt-all} stands over all theories; the sections have the details, and Table~\ref{tab:tt-provenance} tells",
            rf"where the numbers come from. They were measured with \cite{{{software_key()}}}. {used}",
            r"\input{all}",
            *sections,
            r"\appendix",
            r"\section{Where the numbers come from}",
            r"\input{appendix}",
            r"\bibliographystyle{plain}",
            r"\bibliography{references}",
            r"\end{document}",
            "",
        ]
    )


def _figure(picture: Picture) -> str:
    """In its place, not floating: there may be more figures than LaTeX keeps in mind."""
    image = rf"\includegraphics[width=\linewidth,height=0.8\textheight,keepaspectratio]{{figures/{picture.name}}}"
    title = rf"\\{{\small {escape(picture.title)}}}"
    return "\n".join([r"\noindent\begin{minipage}{\linewidth}\centering", image, title, r"\end{minipage}\par\bigskip"])
