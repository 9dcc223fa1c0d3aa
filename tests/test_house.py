"""The rules of the house that a newcomer relies on: who may import whom, what a docstring says, how long a file may be."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import jaxtyping
import pytest
import torch

from transformer_theory.core import sources as citations
from transformer_theory.data import TokenData

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_theory"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(folder.name for folder in (PACKAGE / "theories").iterdir() if (folder / "__init__.py").is_file())
UPSTAIRS = ("compare", "cli", "__main__", "models", "training", "report", "theories")  # what stands on the ground
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Absolute names of what a file of the package imports, wherever in the file: ``transformer_theory.data.tokens`` and names in it."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def inside(names: Iterable[str], *parts: str) -> list[str]:
    """The imported names that lie in the given part of the package."""
    prefix = ".".join(["transformer_theory", *parts])
    return [name for name in names if name == prefix or name.startswith(f"{prefix}.")]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_the_ground(room: str):
    for path in sorted((PACKAGE / "theories" / room).rglob("*.py")):
        for part in ("models", "training", "compare", "cli", "report"):
            assert not inside(imports(path), part), path
        elsewhere = [name for name in inside(imports(path), "theories") if not name.startswith(f"transformer_theory.theories.{room}")]
        assert not elsewhere, path


def test_the_ground_imports_no_room():
    ground = [path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") not in (*UPSTAIRS, "__init__")]
    assert len(ground) > 10
    for path in ground:
        for part in UPSTAIRS:
            assert not inside(imports(path), part), path


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """The functions and classes without a leading underscore."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def raises(node: ast.AST) -> bool:
    """Whether the body raises something itself (a bare re-raise and an abstract method do not count)."""
    return any(
        isinstance(inner, ast.Raise) and inner.exc is not None and "NotImplementedError" not in ast.unparse(inner.exc)
        for inner in ast.walk(node)
    )


def plain_tensors(node: ast.FunctionDef) -> bool:
    """Whether the signature has a tensor whose shape is not in its annotation."""
    given = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs)] + [node.returns]
    return any(annotation is not None and ast.unparse(annotation) in ("Tensor", "torch.Tensor") for annotation in given)


@every_file
def test_docstrings_say_what_a_user_needs(path: Path):
    tree = parsed(path)
    if path.name in ("__init__.py", "__main__.py") and not [*public(tree.body)]:
        return
    module = ast.get_docstring(tree) or ""
    wrong = [] if module else ["the module has no docstring"]
    for node in public(tree.body):
        said = ast.get_docstring(node) or ""
        if not said:
            wrong.append(f"{node.name} has no docstring")
        elif isinstance(node, ast.FunctionDef):
            if raises(node) and "raise" not in said.lower():
                wrong.append(f"{node.name} raises, and its docstring does not say what")
            if plain_tensors(node) and "[" not in said + module:
                wrong.append(f"{node.name} has tensors whose shape stands nowhere")
        else:
            start = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name in ("__init__", "__post_init__")]
            if any(raises(m) for m in start) and "raise" not in said.lower():
                wrong.append(f"{node.name} raises when it is made, and its docstring does not say what")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ROOMS)
def test_the_mathematics_of_a_room_names_its_source(room: str):
    silent = []
    for path in sorted((PACKAGE / "theories" / room).rglob("*.py")):
        if path.name in ("__init__.py", "experiments.py") or "figures" in (path.stem, path.parent.name):
            continue
        if ":cite:" not in (ast.get_docstring(parsed(path)) or "") and "Source(" not in path.read_text(encoding="utf-8"):
            silent.append(path.name)
    assert not silent, f"neither :cite: in the module's docstring nor a Source: {silent}"


def test_citations_in_the_text_are_in_the_bibliography():
    texts = [*FILES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in texts:
        for keys in re.findall(r":cite:\w+:`([^`]+)`|\{cite:\w+\}`([^`]+)`", path.read_text(encoding="utf-8")):
            for key in (keys[0] or keys[1]).split(","):
                assert key.strip() in citations.entries(), f"{path.relative_to(ROOT)}: {key}"


def test_files_are_short():
    own = [path for folder in ("transformer_theory", "tests", "examples", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    own = [path for path in own if "_build" not in path.parts and "auto_examples" not in path.parts]
    long = {str(path.relative_to(ROOT)): lines for path in own if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long


@every_file
def test_annotations_are_live(path: Path):
    assert "from __future__ import annotations" not in path.read_text(encoding="utf-8"), "it would switch the shape checks off"


def test_shape_checks_are_on_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        TokenData(tokens=torch.zeros(2, 3))


def test_unchecked_shows_our_own_messages(unchecked):
    with pytest.raises(ValueError, match=r"tokens must have shape \[n, seq, dim\], got \[2, 3\]"):
        TokenData(tokens=torch.zeros(2, 3))
    jaxtyping.config.update("jaxtyping_disable", False)
    with pytest.raises(jaxtyping.TypeCheckError):  # the fixture, not the message, made the difference
        TokenData(tokens=torch.zeros(2, 3))


def test_the_network_is_out_of_reach():
    import socket

    with pytest.raises(OSError, match="tests must not need the network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
