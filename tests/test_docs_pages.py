"""The pages lead where they say: links, anchors, names of claims, experiments and functions, commands within
the text, one outline.
"""

import ast
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import transformer_theory as tt
from benchmarks.readability import readability, sentences
from tests.cases import each_case
from tests.pages import FENCE, PAGES, ROOT
from transformer_theory.cli.parsers import parse

THEORIES = {theory.name: theory for theory in tt.list_theories()}
NAMES = "|".join(THEORIES)
NAMESPACES = ("core", "maths", "data", "metrics", "models", "probes", "training", "report")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.")
OUTLINE = (
    "Notation",
    "In code",
    "Claims",
    "Figures",
    "What fails, and when",
    "On data, and in trained networks",
    "What is not here",
)
SHORT_PAGES = (
    "attention_svm",
    "scan_snap",
    "joma",
    "crate",
    "rate_reduction",
    "in_context",
    "universal",
    "turing",
    "graph_tokens",
    "induction",
    "length",
    "collapse",
    "particles",
    "vision",
    "router",
    "bottleneck",
    "chain_of_thought",
    "random_features",
)  # theories whose page is short and whose details have a page of their own
LARGEST_PAGE = 1500  # words, with those of tables, code and formulas
FIRST_SCREEN = re.compile(
    r"# [^\n]+\n\n"
    r"\*\*The question\.\*\* \*(?P<question>[^*]+\?)\*\n\n"
    r"\*\*The answer\.\*\* (?P<answer>(?:.(?!\n\n))+.)\n\n"
    r"!\[[^\]]+\]\((?P<picture>[^)\s]+)\)\n\n"
    r"(?P<caption>\*[^*](?:.(?!\n\n))+\*)\n\n"
    r"\*\*One command\.\*\* (?:.(?!\n\n))+.\n\n"
    r"```bash\n(?P<command>[^\n]+)\n```\n\n"
    r"\*\*One caveat\.\*\* (?P<caveat>(?:.(?!\n\n))+.)\n\n"
    r"\*\*The sources\.\*\* (?P<sources>.+)",
    re.DOTALL,
)
every_page = each_case("page", PAGES, ids=lambda page: page.stem)


@cache
def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of the page's headings, on GitHub and in Sphinx."""
    slugs: list[str] = []
    for title in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        slugs.append(
            slug if slug not in slugs else f"{slug}-{sum(other.startswith(slug) for other in slugs)}"
        )
    return frozenset(slugs)


def inline(page: Path) -> Iterator[str]:
    """The text between single backticks, on one line or over two, without roles such as ``{doc}``."""
    for text in re.findall(r"`([^`]+)`", re.sub(r"\{[\w:]+\}`[^`]*`", "", prose(page))):
        yield " ".join(text.split())


def broken(page: Path) -> Iterator[str]:
    """Links within this repository whose target does not exist; a page of the gallery exists if its example
    does.
    """
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose(page)):
        target = (page.parent / path).resolve() if path else page
        if re.match(r"\w+:", path):
            continue
        if not target.exists():
            yield path
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{path}#{anchor}"
    for name in re.findall(r"<sphx_glr_auto_examples_(\w+)\.py>", prose(page)):
        if not (ROOT / "examples" / f"{name}.py").is_file():
            yield name


@every_page
def test_links_lead_somewhere(page: Path):
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path):
    (tmp_path / "there.md").write_text("# What is\n\n## What is\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](there.md#what-is) [b](there.md#what-is-1) [c](there.md#what-was) [d](nowhere.md) "
        "[e](#here) [f](#there) [g](https://a.b/c) {ref}`h <sphx_glr_auto_examples_plot_none.py>`\n",
        encoding="utf-8",
    )
    assert list(broken(page)) == ["there.md#what-was", "nowhere.md", "#there", "plot_none"]


@every_page
def test_names_on_the_page_exist(page: Path):
    """Claims ``theory/claim``, rungs ``theory/rung``, experiments and functions ``theory.name``,
    ``metrics.name``, files, modules.
    """
    claims = {claim.id for theory in THEORIES.values() for claim in theory.claims}
    claims |= {
        f"{theory.name}/{rung.name}"
        for theory in THEORIES.values()
        if theory.ladder
        for rung in theory.ladder.rungs
    }
    experiments = {kind.name for theory in THEORIES.values() for kind in theory.experiments}
    unknown = []
    for text in inline(page):
        unknown += [
            name
            for name in re.findall(rf"(?<![\w./])(?:{NAMES})/[a-z0-9-]+(?![\w./])", text)
            if name not in claims
        ]
        for name in re.findall(
            rf"^(?:tt\.|transformer_theory\.)?((?:theories\.)?(?:{NAMES}|{'|'.join(NAMESPACES)})(?:\.[A-Za-z_]\w*)+)",
            text,
        ):
            if name not in experiments and not text.endswith((".py", ".tex", ".csv")) and not exists(name):
                unknown.append(name)
        for name in re.findall(r"^(?:transformer_theory/)[\w/]+(?:\.py|/)$", text):
            if not (ROOT / name).exists():
                unknown.append(name)
    assert unknown == []


def exists(name: str) -> bool:
    """Whether a dotted name below the package, or below a theory, can be imported."""
    head, *rest = name.removeprefix("theories.").split(".")
    found = import_module(f"transformer_theory.{'theories.' if head in THEORIES else ''}{head}")
    for part in rest:
        if not hasattr(found, part):
            try:
                import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


@cache
def members() -> dict[str, frozenset[str]]:
    """The attributes of each class of the package: methods, fields, and what is assigned to ``self``."""
    names: dict[str, set[str]] = {}
    for path in (ROOT / "transformer_theory").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own = names.setdefault(node.name, set())
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef):
                        own.add(inner.name)
                    elif isinstance(inner, ast.AnnAssign):
                        own.add(ast.unparse(inner.target))
                    elif isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "self":
                        own.add(inner.attr)
    return {name: frozenset(own) for name, own in names.items()}


@every_page
def test_attributes_on_the_page_exist(page: Path):
    """``Class.attribute``, as in the tables of the notation; an inherited attribute belongs to some other
    class.
    """
    inherited = frozenset[str]().union(*members().values())
    unknown = []
    for name in re.findall(r"`(?:tt\.|models\.)?([A-Z][a-z]\w*\.[a-z]\w*)", prose(page)):
        owner, attribute = name.split(".")
        if owner not in members() or attribute not in members()[owner] | inherited:
            unknown.append(name)
    assert unknown == []


def test_a_wrong_name_is_found():
    assert exists("crate.exact_step")
    assert exists("theories.crate.exact_step")
    assert exists("core.measurement.Measurement")
    assert not exists("crate.exact_stepp")
    assert not exists("core.measurements.Measurement")
    assert "conditional" in members()["SequenceClasses"]
    assert "Readings" not in members()


@every_page
def test_commands_within_the_text_can_be_typed(page: Path):
    """Every command is parsed, except those with a placeholder or with the theory that a page builds
    (tests/test_docs_skeleton.py).
    """
    for text in inline(page):
        if "averaging" in text:
            continue
        program, *words = (
            shlex.split(text)
            if text.startswith("transformer-theory ") and not PLACEHOLDER.search(text)
            else [""]
        )
        if len(words) > 1:
            parse(words)
        elif program:
            with pytest.raises(SystemExit):
                parse([*words, "--help"])


@each_case("name", THEORIES)
def test_the_page_of_a_theory_has_the_outline_every_claim_and_every_experiment(name: str):
    """A theory with a short page has them on its reference page."""
    page = ROOT / "docs" / "theories" / f"{name}.md"
    reference = page.with_name(f"{name}_reference.md")
    assert reference.is_file() == (name in SHORT_PAGES)
    text = prose(page) + (prose(reference) if name in SHORT_PAGES else "")
    titles = [title for title in re.findall(r"^## (.+)$", text, re.MULTILINE) if title in OUTLINE]
    assert titles == list(OUTLINE)
    assert f"*{THEORIES[name].question}*" in prose(page)
    assert sorted(re.findall(rf"^\| `({name}/[\w-]+)`", text, re.MULTILINE)) == sorted(
        claim.id for claim in THEORIES[name].claims
    )
    for kind in THEORIES[name].experiments:
        assert f"`{kind.name.removeprefix(f'{name}.')}`" in text or f"`{kind.name}`" in text, kind.name


@each_case("name", SHORT_PAGES)
def test_a_short_page_answers_its_question_on_the_first_screen(name: str):
    """The question, three sentences, a picture with its caption, a command, a caveat and the sources, in this
    order, before the first heading; at most 1,500 words on the page.
    """
    page = (ROOT / "docs" / "theories" / f"{name}.md").read_text(encoding="utf-8")
    assert len(page.split()) <= LARGEST_PAGE
    first, *below = page.split("\n## ")
    assert below
    found = FIRST_SCREEN.fullmatch(first)
    assert found, "expected " + ", ".join(FIRST_SCREEN.groupindex)
    assert found["question"] == THEORIES[name].question
    assert len(list(sentences(found["answer"]))) == 3
    assert (ROOT / "docs" / "theories" / found["picture"]).is_file()
    assert len(list(sentences(found["caveat"]))) == 1
    program, *arguments = shlex.split(found["command"], comments=True)
    assert program == "transformer-theory"
    parse(arguments)
    assert readability(first).mean <= 15
    assert readability(first).long <= 0.04


def questions(text: str) -> list[list[str]]:
    """The rows of tables that begin with a question; the last two cells are a command and its limit."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if re.match(r"\| [^|]+\? \| ", line)]
    for *_, command, limit in rows:
        assert re.fullmatch(r"`transformer-theory [^`]+`", command), command
        assert limit.strip()
    return rows


def test_the_short_list_of_questions_has_every_theory_and_stays_short():
    rows = questions((ROOT / "docs" / "which_theory.md").read_text(encoding="utf-8"))
    assert len(THEORIES) < len(rows) <= 25
    assert {len(row) for row in rows} == {4}
    for name in THEORIES:
        assert any(f"theories/{name}.md" in answer for _, answer, _, _ in rows), name


def test_the_page_of_all_questions_has_a_section_for_every_theory():
    page = (ROOT / "docs" / "all_questions.md").read_text(encoding="utf-8")
    everything, *sections = re.split(r"^The theory: ", page, flags=re.MULTILINE)
    assert questions(everything)
    assert len(sections) == len(THEORIES)
    for name, section in zip(THEORIES, sections, strict=True):
        assert f"](theories/{name}.md).\n" in section.splitlines(keepends=True)[0]
        rows = questions(section)
        assert {len(row) for row in rows} == {3}, name
    assert len(questions(page)) > 4 * len(THEORIES)


def test_every_page_is_in_a_table_of_contents():
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = {
        line.strip()
        for _, text in re.findall(r"^```\{toctree\}\n(.*?)\n\n(.*?)^```", index, re.MULTILINE | re.DOTALL)
        for line in text.split()
    }
    included = {
        os.path.relpath(page.parent / name, docs)
        for page in PAGES
        for name in re.findall(r"^```\{include\} (.*)\.md$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    pages = {str(page.relative_to(docs).with_suffix("")) for page in PAGES if docs in page.parents} - included
    pages |= {f"notebooks/{path.stem}" for path in (docs / "notebooks").glob("*.ipynb")}
    assert listed - {"auto_examples/index"} == pages - {"index"}


def test_the_api_lists_what_can_be_imported_and_every_package_and_theory():
    names = re.findall(
        r"^   (transformer_theory[\w.]*)$",
        (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(names) == len(set(names))
    assert {f"transformer_theory.theories.{name}" for name in THEORIES} <= set(names)
    for name in NAMESPACES:
        assert any(f"{listed}.".startswith(f"transformer_theory.{name}.") for listed in names), name
    for name in names:
        module = import_module(name)
        assert module.__doc__, name
        package, _, last = name.rpartition(".")
        # autosummary looks attributes up first, so a function with the name of its module would take the
        # module's page
        assert not package or getattr(import_module(package), last) is module, (
            f"{name} is shadowed by another object"
        )
