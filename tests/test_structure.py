"""The structure of the package: order of imports, layout, documentation, length of files, words, and no meaning inside sentences."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jaxtyping
import pytest
import torch

from transformer_theory.core import sources
from transformer_theory.data import TokenData
from transformer_theory.theories import THEORIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_theory"
FILES = sorted(PACKAGE.rglob("*.py"))
ORDER = ("core", "maths", ("data", "metrics"), "models", "probes", "training", "theories", "compare", "report", "cli")
"""Each layer may import those before it, and itself."""
LEVEL = {name: level for level, names in enumerate(ORDER) for name in (names if isinstance(names, tuple) else (names,))}
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[tuple[str, ...], ...]:
    """What a file imports of the package, wherever in the file, as parts: ``("core", "claims", "Claim")``."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "transformer_theory")


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_layout_is_that_of_the_design():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert folders | (modules - {"__init__", "__main__"}) == LEVEL.keys()
    assert modules == {"__init__", "__main__", "compare"}


@every_file
def test_imports_follow_the_order_of_layers(path: Path):
    here = layer(path)
    if here in ("__init__", "__main__"):
        return
    for parts in imports(path):
        there = parts[0] if parts else ""
        if there in LEVEL and there != here:
            assert LEVEL[there] < LEVEL[here], f"{here} imports {'.'.join(parts)}"


@every_file
def test_theories_do_not_import_one_another(path: Path):
    parts = path.relative_to(PACKAGE).parts
    if parts[0] != "theories" or parts[1] == "__init__.py":
        return
    others = {one[1] for one in imports(path) if len(one) > 1 and one[0] == "theories" and one[1] in THEORIES} - {parts[1]}
    assert not others


def test_theories_have_the_same_parts():
    for name in THEORIES:
        folder = PACKAGE / "theories" / name
        present = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
        assert {"__init__", "claims", "ladder", "figures"} <= present, name
        assert not present & {"experiments", "reducers", "measure", "readings"}, name
        public = [node for node in parsed(folder / "__init__.py").body if isinstance(node, ast.Assign)]
        names = next(ast.literal_eval(node.value) for node in public if ast.unparse(node.targets[0]) == "__all__")
        assert len(names) <= 30, f"{name} exports {len(names)} names"


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
    annotations = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs)] + [node.returns]
    return any(annotation is not None and ast.unparse(annotation) in ("Tensor", "torch.Tensor") for annotation in annotations)


@every_file
def test_docstrings_say_what_a_user_needs(path: Path):
    tree = parsed(path)
    if path.name in ("__init__.py", "__main__.py") and not [*public(tree.body)]:
        return
    module = ast.get_docstring(tree) or ""
    wrong = [] if module else ["the module has no docstring"]
    for node in public(tree.body):
        text = ast.get_docstring(node) or ""
        if not text:
            wrong.append(f"{node.name} has no docstring")
        elif isinstance(node, ast.FunctionDef):
            if raises(node) and "raise" not in text.lower():
                wrong.append(f"{node.name} raises, and its docstring does not say what")
            if plain_tensors(node) and "[" not in text + module:
                wrong.append(f"{node.name} has tensors whose shape is stated nowhere")
        else:
            start = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name in ("__init__", "__post_init__")]
            if any(raises(m) for m in start) and "raise" not in text.lower():
                wrong.append(f"{node.name} raises when it is made, and its docstring does not say what")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("theory", THEORIES)
def test_the_mathematics_of_a_theory_names_its_source(theory: str):
    """A module that states formulas in its docstring, or claims, cites."""
    silent = []
    for path in sorted((PACKAGE / "theories" / theory).rglob("*.py")):
        text = ast.get_docstring(parsed(path)) or ""
        formulas = ":math:" in text or ".. math" in text or (path.parent.name == "claims" and "Claim(" in path.read_text(encoding="utf-8"))
        if formulas and path.name != "__init__.py" and ":cite:" not in text and "Source(" not in path.read_text(encoding="utf-8"):
            silent.append(path.name)
    assert not silent, f"neither :cite: in the module's docstring nor a Source: {silent}"


def test_citations_in_the_text_are_in_the_bibliography():
    texts = [*FILES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in texts:
        if path.name == "adding_a_theory.md":  # it adds an entry of its own
            continue
        for keys in re.findall(r":cite:\w+:`([^`]+)`|\{cite:\w+\}`([^`]+)`", path.read_text(encoding="utf-8")):
            for key in (keys[0] or keys[1]).split(","):
                assert key.strip() in sources.entries(), f"{path.relative_to(ROOT)}: {key}"


def test_files_are_short():
    paths = [path for folder in ("transformer_theory", "tests", "examples", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    paths = [path for path in paths if "_build" not in path.parts and "auto_examples" not in path.parts]
    long = {str(path.relative_to(ROOT)): lines for path in paths if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long


@every_file
def test_annotations_are_live(path: Path):
    assert "from __future__ import annotations" not in path.read_text(encoding="utf-8"), "it would switch the shape checks off"


WORDS = re.compile(
    r"\b(upstairs|told|outside assumptions|one a seed|a row each a|rooms?\b(?! temperature))"
    r"|(?<!\bof )(?<!\bin )(?<!\bis )(?<!naming )\ban input(?=[.;:)]|$| each\b)",  # for "per input"
    re.IGNORECASE,
)
NAMES = {"at_least", "says", "CUT", "SEEN", "SURE", "NEARLY"}


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings and all other string constants with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@every_file
def test_words_are_the_fields(path: Path):
    wrong = [f"{line}: {match[0]}" for line, text in texts(parsed(path)) for match in WORDS.finditer(text)]
    assert not wrong


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name)
def test_words_of_the_documentation(path: Path):
    if path.name == "glossary.md" or "_build" in path.parts or "auto_examples" in path.parts:
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [f"{number}: {match[0]}" for number, line in enumerate(lines, 1) for match in WORDS.finditer(line)]


@every_file
def test_identifiers_are_the_fields(path: Path):
    tree = parsed(path)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)
    }
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords if keyword.arg}
    assert not used & NAMES


PARSERS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find", "index"}
PROSE = {"quantity", "note", "caption"}


def is_prose(node: ast.AST) -> bool:
    """A quantity, a note or a caption: a name, an attribute or a key."""
    if isinstance(node, ast.Attribute):
        return node.attr in PROSE
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in PROSE
    return isinstance(node, ast.Name) and node.id in PROSE


@every_file
def test_no_meaning_is_recovered_from_sentences(path: Path):
    """No prefix, pattern or substring is looked for in a quantity, a note or a caption."""
    wrong = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on_prose = is_prose(node.func.value) and node.func.attr in PARSERS
            pattern = ast.unparse(node.func.value) == "re" and any(is_prose(argument) for argument in node.args)
            if on_prose or pattern:
                wrong.append(f"{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.Compare):
            for op, right in zip(node.ops, node.comparators):
                if isinstance(op, ast.In | ast.NotIn) and is_prose(right):
                    wrong.append(f"{node.lineno}: {ast.unparse(node)}")
    assert not wrong


def test_shape_checks_are_on_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        TokenData(tokens=torch.zeros(2, 3))


def test_unchecked_shows_our_own_messages(unchecked):
    with pytest.raises(ValueError, match=r"\[n, seq, dim\].* got \[2, 3\]"):
        TokenData(tokens=torch.zeros(2, 3))
    jaxtyping.config.update("jaxtyping_disable", False)
    with pytest.raises(jaxtyping.TypeCheckError):  # the fixture, not the message, made the difference
        TokenData(tokens=torch.zeros(2, 3))


def test_the_network_is_out_of_reach():
    import socket

    with pytest.raises(OSError, match="network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
