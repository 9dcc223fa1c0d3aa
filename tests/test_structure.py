"""The structure of the package: layout, order of imports, documentation, length of files, words, and no
meaning hidden in sentences.

A test goes through all files and lists every violation, with its file.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import jaxtyping
import networkx
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core import sources
from transformer_theory.data import TokenData
from transformer_theory.theories import THEORIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_theory"
FILES = sorted(PACKAGE.rglob("*.py"))
ORDER = (
    "core",
    "maths",
    ("data", "metrics"),
    "models",
    "probes",
    "training",
    "theories",
    "comparison",
    "report",
    "cli",
)
"""Each layer may import those before it, and itself."""
LEVEL = {
    name: level
    for level, names in enumerate(ORDER)
    for name in (names if isinstance(names, tuple) else (names,))
}


def violations(check: Callable[[Path], Iterable[object]]) -> list[str]:
    """What is wrong in each file of the package, by a function that yields it for one file."""
    return [f"{path.relative_to(PACKAGE)}: {text}" for path in FILES for text in check(path)]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Frees the files' trees after the last test: the garbage collector would walk through them in all later
    ones.
    """
    yield
    parsed.cache_clear()
    nodes.cache_clear()


@cache
def imports(path: Path) -> tuple[tuple[str, ...], ...]:
    """The imports of the package anywhere in a file, in parts: ``("core", "claims", "Claim")``."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    package = path.relative_to(ROOT).parts[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (
            tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "transformer_theory"
        )


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_layout_is_that_of_the_design():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert folders | (modules - {"__init__", "__main__"}) == LEVEL.keys()
    assert modules == {"__init__", "__main__"}


def test_imports_follow_the_order_of_layers():
    def upwards(path: Path) -> Iterator[str]:
        importing = layer(path)
        if importing in ("__init__", "__main__"):
            return
        for parts in imports(path):
            imported = parts[0] if parts else ""
            if imported in LEVEL and imported != importing and LEVEL[imported] >= LEVEL[importing]:
                yield f"{importing} imports {'.'.join(parts)}"

    assert not violations(upwards)


def test_theories_do_not_import_one_another():
    def others(path: Path) -> set[str]:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "theories" or parts[1] == "__init__.py":
            return set()
        return {
            names[1]
            for names in imports(path)
            if len(names) > 1 and names[0] == "theories" and names[1] in THEORIES
        } - {parts[1]}

    assert not violations(others)


def test_theories_have_the_same_parts():
    for name in THEORIES:
        folder = PACKAGE / "theories" / name
        present = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
        assert {"__init__", "claims", "ladder"} <= present, name
        assert not present & {"experiments", "reducers", "measure", "readings"}, name
        public = [node for node in parsed(folder / "__init__.py").body if isinstance(node, ast.Assign)]
        names = next(
            ast.literal_eval(node.value) for node in public if ast.unparse(node.targets[0]) == "__all__"
        )
        assert len(names) <= 30, f"{name} exports {len(names)} names"


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """The functions and classes without a leading underscore."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def raises(node: ast.AST) -> bool:
    """Whether the body raises something itself (a bare re-raise and an abstract method do not count)."""
    return any(
        isinstance(inner, ast.Raise)
        and inner.exc is not None
        and "NotImplementedError" not in ast.unparse(inner.exc)
        for inner in ast.walk(node)
    )


def plain_tensors(node: ast.FunctionDef) -> bool:
    """Whether the signature has a tensor whose shape is not in its annotation."""
    annotations = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs)] + [
        node.returns
    ]
    return any(
        annotation is not None and ast.unparse(annotation) in ("Tensor", "torch.Tensor")
        for annotation in annotations
    )


def test_docstrings_are_complete():
    def missing(path: Path) -> Iterator[str]:
        tree = parsed(path)
        if path.name in ("__init__.py", "__main__.py") and not [*public(tree.body)]:
            return
        module = ast.get_docstring(tree) or ""
        if not module:
            yield "the module has no docstring"
        for node in public(tree.body):
            text = ast.get_docstring(node) or ""
            if not text:
                yield f"{node.name} has no docstring"
            elif isinstance(node, ast.FunctionDef):
                if raises(node) and "raise" not in text.lower():
                    yield f"{node.name} raises an error that its docstring does not name"
                if plain_tensors(node) and "[" not in text + module:
                    yield f"{node.name} has tensors without a shape"
            else:
                constructors = [
                    m
                    for m in node.body
                    if isinstance(m, ast.FunctionDef) and m.name in ("__init__", "__post_init__")
                ]
                if any(raises(m) for m in constructors) and "raise" not in text.lower():
                    yield f"the constructor of {node.name} raises an error that its docstring does not name"

    assert not violations(missing)


def test_displayed_formulas_and_tables_of_docstrings_are_whole():
    """The lines of a displayed formula after the first are indented, and the rules of a table have lines of
    their own; the documentation would show neither otherwise.
    """

    def broken(path: Path) -> Iterator[int]:
        lines = path.read_text(encoding="utf-8").splitlines()
        inside = ""
        for number, line in enumerate(lines, 1):
            indent = line[: len(line) - len(line.lstrip())]
            if line.strip() == '"""':
                inside = ""
            if inside and line.strip() and len(indent) < len(inside):
                yield number
            begins = line.lstrip().startswith(".. math::")
            inside = f"{indent} " if begins else inside if line.strip() else ""
            if "====" in line and line.strip(' ="r'):
                yield number

    assert not violations(broken)


@each_case("theory", THEORIES)
def test_the_mathematics_of_a_theory_names_its_source(theory: str):
    """A module that states formulas in its docstring, or claims, cites."""
    silent = []
    for path in sorted((PACKAGE / "theories" / theory).rglob("*.py")):
        text = ast.get_docstring(parsed(path)) or ""
        formulas = (
            ":math:" in text
            or ".. math" in text
            or (path.parent.name == "claims" and "@claim(" in path.read_text(encoding="utf-8"))
        )
        if (
            formulas
            and path.name != "__init__.py"
            and ":cite:" not in text
            and "Source(" not in path.read_text(encoding="utf-8")
        ):
            silent.append(path.name)
    assert not silent, f"neither :cite: in the module's docstring nor a Source: {silent}"


def test_citations_in_the_text_are_in_the_bibliography():
    texts = [*FILES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in texts:
        if path.name == "adding_a_theory.md":  # it adds an entry of its own
            continue
        for keys in re.findall(
            r":cite:\w+:`([^`]+)`|\{cite:\w+\}`([^`]+)`", path.read_text(encoding="utf-8")
        ):
            for key in (keys[0] or keys[1]).split(","):
                assert key.strip() in sources.entries(), f"{path.relative_to(ROOT)}: {key}"


def test_files_are_short():
    paths = [
        path
        for folder in ("transformer_theory", "tests", "examples", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    paths = [path for path in paths if "_build" not in path.parts and "auto_examples" not in path.parts]
    long = {
        str(path.relative_to(ROOT)): lines
        for path in paths
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 700
    }
    assert not long


def test_annotations_are_live():
    """Annotations that are strings would switch the shape checks off."""
    statement = "from __future__ import annotations"
    assert not violations(lambda path: [statement] if statement in path.read_text(encoding="utf-8") else [])


WORDS = re.compile(
    r"\b(upstairs|told|outside assumptions|one a seed|a row each a|rooms?\b(?! temperature))"
    r"|(?<!\bof )(?<!\bin )(?<!\bis )(?<!naming )\ban input(?=[.;:)]|$| each\b)",  # for "per input"
    re.IGNORECASE,
)
NAMES = {"says", "CUT", "SEEN", "SURE", "NEARLY"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and all other string constants with their lines."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_words_are_those_of_the_field():
    assert not violations(
        lambda path: (f"{line}: {match[0]}" for line, text in texts(path) for match in WORDS.finditer(text))
    )


def test_words_of_the_documentation():
    wrong = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if path.name == "glossary.md" or "_build" in path.parts or "auto_examples" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            wrong += [f"{path.name}:{number}: {match[0]}" for match in WORDS.finditer(line)]
    assert not wrong


def test_identifiers_are_those_of_the_field():
    """``at_least`` is the threshold of a claim, and nothing else."""

    def used(path: Path) -> Iterator[str]:
        found = list(nodes(path))
        calls = [node for node in found if isinstance(node, ast.Call) and ast.unparse(node.func) == "claim"]
        thresholds = [keyword for call in calls for keyword in call.keywords if keyword.arg == "at_least"]
        for node in found:
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.arg | ast.keyword) and node.arg and node not in thresholds:
                yield node.arg
            elif isinstance(node, ast.Attribute):
                yield node.attr

    defines = PACKAGE / "core" / "claims.py"
    assert not violations(lambda path: NAMES.intersection(used(path)) if path != defines else ())


PARSERS = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "split",
    "find",
    "index",
}
PROSE = {"quantity", "note", "caption"}


def is_prose(node: ast.AST) -> bool:
    """A quantity, a note or a caption: a name, an attribute or a key."""
    if isinstance(node, ast.Attribute):
        return node.attr in PROSE
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in PROSE
    return isinstance(node, ast.Name) and node.id in PROSE


def test_no_meaning_is_recovered_from_sentences():
    """No prefix, pattern or substring is looked for in a quantity, a note or a caption."""

    def parsing(path: Path) -> Iterator[str]:
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                on_prose = is_prose(node.func.value) and node.func.attr in PARSERS
                pattern = ast.unparse(node.func.value) == "re" and any(
                    is_prose(argument) for argument in node.args
                )
                if on_prose or pattern:
                    yield f"{node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.Compare):
                for op, right in zip(node.ops, node.comparators):
                    if isinstance(op, ast.In | ast.NotIn) and is_prose(right):
                        yield f"{node.lineno}: {ast.unparse(node)}"

    assert not violations(parsing)


def test_coordinates_are_columns_and_not_text():
    """No coordinate is called "setting", as texts of the former version are; the text of the coordinates is
    for people, so nothing is looked up by it.
    """

    def as_text(path: Path) -> Iterator[str]:
        # they read tables of the former version
        if path in (PACKAGE / "core" / "measurement.py", PACKAGE / "core" / "table.py"):
            return
        for node in nodes(path):
            if isinstance(node, ast.Dict) and any(
                isinstance(key, ast.Constant) and key.value == "setting" for key in node.keys
            ):
                yield f"{node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.Compare | ast.Subscript | ast.Call) and any(
                isinstance(part, ast.Attribute)
                and part.attr == "setting"
                and ast.unparse(part.value) == "row"
                for part in ast.iter_child_nodes(node)
            ):
                yield f"{node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.keyword) and node.arg == "at" and isinstance(node.value, ast.Dict):
                for value in node.value.values:
                    if isinstance(value, ast.JoinedStr) and "=" in ast.unparse(value):
                        yield f"{node.lineno}: a number inside a text, {ast.unparse(value)}"

    assert not violations(as_text)


def test_modules_import_one_another_in_one_direction():
    """No module imports another one that imports it, also not inside a function."""
    names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in FILES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    arrows: dict[str, set[str]] = {}
    for name, path in names.items():
        if path.name in ("__init__.py", "__main__.py"):  # the face of a package imports its modules
            continue
        targets = (".".join(parts[:end]) for parts in imports(path) for end in range(1, len(parts) + 1))
        arrows[name] = {target for target in targets if target in names and target != name} & {
            target for target in names if names[target].name != "__init__.py"
        }
    circles = list(networkx.simple_cycles(networkx.DiGraph(arrows)))
    assert not circles


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
