"""The pages of the API: where each name is documented, and how signatures and docstrings look there."""

import importlib
import re
from pathlib import Path
from typing import Any

INDEX = Path(__file__).parents[1] / "api" / "index.md"
NAMESPACES = re.findall(r"^   (transformer_theory[\w.]*)$", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
COLON = "\N{FULLWIDTH COLON}"  # stands for ": " while napoleon reads


def home(page: str, name: str) -> str:
    """The page on which a name is documented: of those that export it, the longest that its module begins with, else the last."""
    found = getattr(importlib.import_module(page), name)
    having = [other for other in NAMESPACES if getattr(importlib.import_module(other), name, None) is found]
    having = [other for other in having if exported(importlib.import_module(other), name)]
    return max(having, key=lambda other: (f"{getattr(found, '__module__', '')}.".startswith(f"{other}."), len(other)))


def exported(module: Any, name: str) -> bool:
    """Whether a star import takes the name, where the module says so, or else whether it is defined there."""
    return name in module.__all__ if hasattr(module, "__all__") else getattr(getattr(module, name), "__module__", "") == module.__name__


def place(page: str, name: str) -> str:
    """How the table of a page calls a name that is documented there or on another page."""
    there = home(page, name)
    return name if there == page else f"{there.removeprefix(f'{page}.')}.{name}" if there.startswith(f"{page}.") else f"~{there}.{name}"


def as_typed(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None) -> Any:
    """Signatures as they stand in the source: ``Float[Tensor, "n d"]``, without the modules that the names come from."""
    parts = [part and re.sub(r"~?\b(?:jaxtyping|torch|typing|collections\.abc)\.(?=[A-Z])", "", part) for part in (signature, returns)]
    return tuple(parts)


def verbatim(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What napoleon would take for something else: formulas and code that stand indented after an empty line are shown as they are, the
    colon of a property's sentence ends no type, and several names before one colon are no type and a name.
    """
    lines[:] = [re.sub(r"^ {4,}\w+(?:, \w+)+: ", lambda names: f"    {names[0].strip().replace(', ', ',')} ", line) for line in lines]
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", COLON)
    for at in range(len(lines) - 1, 1, -1):
        before, empty, line = lines[at - 2 : at + 1]
        follows = bool(before.strip()) and not before.startswith((" ", "..", "-")) and before[-2:] != "::"
        if line.startswith("    ") and not empty.strip() and follows:
            lines[at:at] = ["::", ""]


def with_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ": ") for line in lines]


def setup(app: Any) -> None:
    app.config.autosummary_context = {"home": home, "place": place}
    app.connect("autodoc-process-signature", as_typed)
    app.connect("autodoc-process-docstring", verbatim, priority=400)  # before napoleon makes lists of the sections
    app.connect("autodoc-process-docstring", with_colons, priority=600)
