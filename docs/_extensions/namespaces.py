"""The pages of the API: where each name is documented, and how signatures and docstrings look there."""

import importlib
import re
from pathlib import Path
from typing import Any

INDEX = Path(__file__).parents[1] / "api" / "index.md"
NAMESPACES = re.findall(r"^   (transformer_theory[\w.]*)$", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
COLON = "\N{FULLWIDTH COLON}"  # stands for ": " while napoleon reads


def home(page: str, name: str) -> str:
    """The page on which a name is documented.

    Of the pages that export it this is the one with the longest name that its module begins with, or else the
    longest of all.
    """
    found = getattr(importlib.import_module(page), name)
    having = [other for other in NAMESPACES if getattr(importlib.import_module(other), name, None) is found]
    having = [other for other in having if exported(importlib.import_module(other), name)]
    return max(
        having, key=lambda other: (f"{getattr(found, '__module__', '')}.".startswith(f"{other}."), len(other))
    )


def exported(module: Any, name: str) -> bool:
    """Whether the name is in the module's ``__all__``, or, without one, whether it is defined there."""
    return (
        name in module.__all__
        if hasattr(module, "__all__")
        else getattr(getattr(module, name), "__module__", "") == module.__name__
    )


def place(page: str, name: str) -> str:
    """The name as the table of a page prints it: alone if it is documented on that page, otherwise with the
    page that documents it.
    """
    there = home(page, name)
    return (
        name
        if there == page
        else f"{there.removeprefix(f'{page}.')}.{name}"
        if there.startswith(f"{page}.")
        else f"~{there}.{name}"
    )


def as_typed(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> Any:
    """Signatures as they stand in the source: ``Float[Tensor, "n d"]``, without the modules that the names
    come from.
    """
    parts = [
        part and re.sub(r"~?\b(?:jaxtyping|torch|typing|collections\.abc)\.(?=[A-Z])", "", part)
        for part in (signature, returns)
    ]
    return tuple(parts)


def verbatim(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Protects text that napoleon would misread.

    Indented formulas and code after an empty line become literal blocks; the colon in the sentence of a
    property would end a type; and "a, b: text" would be read as a type and a name.
    """
    lines[:] = [
        re.sub(r"^ {4,}\w+(?:, \w+)+: ", lambda names: f"    {names[0].strip().replace(', ', ',')} ", line)
        for line in lines
    ]
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", COLON)
    for at in range(len(lines) - 1, 1, -1):
        before, empty, line = lines[at - 2 : at + 1]
        follows = bool(before.strip()) and not before.startswith((" ", "..", "-")) and before[-2:] != "::"
        if line.startswith("    ") and not empty.strip() and follows:
            lines[at:at] = ["::", ""]


def with_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Restores the colons that :func:`verbatim` replaced."""
    lines[:] = [line.replace(COLON, ": ") for line in lines]


def nearest_module(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Writes ``.tasks`` out as the module of that name in the same package: other theories have modules of
    this name, too.
    """
    module = name if what == "module" else getattr(obj, "__module__", None) or ""

    def full(match: re.Match[str]) -> str:
        for package in (module, module.rpartition(".")[0]):
            if f"{package}.{match[1]}" in NAMESPACES:
                return f":mod:`~{package}.{match[1]}`"
        return match[0]

    lines[:] = [re.sub(r":mod:`\.(\w+)`", full, line) for line in lines]


def skip_foreign(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the methods that scikit-learn writes into its estimators (``set_score_request``): their
    texts refer to its own pages.
    """
    return True if (getattr(obj, "__module__", None) or "").startswith("sklearn.") else None


def setup(app: Any) -> None:
    app.config.autosummary_context = {"home": home, "place": place}
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", nearest_module)
    app.connect("autodoc-process-signature", as_typed)
    # before napoleon makes lists of the sections
    app.connect("autodoc-process-docstring", verbatim, priority=400)
    app.connect("autodoc-process-docstring", with_colons, priority=600)
