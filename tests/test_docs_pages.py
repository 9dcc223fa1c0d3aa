"""The pages lead where they say: links, anchors, names of claims, experiments and functions, commands within the text, one outline."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import transformer_theory as tt
from tests.pages import FENCE, PAGES, ROOT
from transformer_theory.cli.parsers import parse

ROOMS = {theory.name: theory for theory in tt.theories()}
NAMES = "|".join(ROOMS)
NAMESPACES = ("data", "linalg", "metrics", "models", "probes", "training")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.")
OUTLINE = ("Notation", "In code", "Claims", "Figures", "What fails, and when", "On data, and in trained networks", "What is not here")


@cache
def prose(page: Path) -> str:
    """The text of a page without its code blocks, each paragraph as it stands."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link to a heading of the page may end in, on GitHub and in Sphinx."""
    found: list[str] = []
    for title in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{sum(one.startswith(slug) for one in found)}")
    return frozenset(found)


def inline(page: Path) -> Iterator[str]:
    """What stands between single backticks, on one line or over two; roles such as ``{doc}`` are left out."""
    for found in re.findall(r"`([^`]+)`", re.sub(r"\{[\w:]+\}`[^`]*`", "", prose(page))):
        yield " ".join(found.split())


def broken(page: Path) -> Iterator[str]:
    """Links that lead nowhere, in this repository; what Sphinx will make of the examples is asked of the examples."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path):
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path):
    (tmp_path / "there.md").write_text("# What is\n\n## What is\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](there.md#what-is) [b](there.md#what-is-1) [c](there.md#what-was) [d](nowhere.md) [e](#here) [f](#there) "
        "[g](https://a.b/c) {ref}`h <sphx_glr_auto_examples_plot_none.py>`\n",
        encoding="utf-8",
    )
    assert list(broken(page)) == ["there.md#what-was", "nowhere.md", "#there", "plot_none"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_are_in_the_registry(page: Path):
    """Claims as ``room/claim``, experiments and functions as ``room.name``, functions of the ground as ``metrics.name``."""
    claims = {claim.id for room in ROOMS.values() for claim in room.claims}
    experiments = {kind.name for room in ROOMS.values() for kind in room.experiments}
    unknown = []
    for text in inline(page):
        unknown += [name for name in re.findall(rf"(?<![\w./])(?:{NAMES})/[a-z0-9-]+(?![\w./])", text) if name not in claims]
        for name in re.findall(rf"^(?:tt\.)?((?:{NAMES}|{'|'.join(NAMESPACES)})(?:\.[A-Za-z_]\w*)+)", text):
            if name not in experiments and not text.endswith((".py", ".tex")) and not exists(name):
                unknown.append(name)
    assert unknown == []


def exists(name: str) -> bool:
    """Whether a dotted name below the package, or below a room, is one."""
    from importlib import import_module

    head, *rest = name.split(".")
    found = import_module(f"transformer_theory.{'theories.' if head in ROOMS else ''}{head}")
    for part in rest:
        if not hasattr(found, part):
            try:
                import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


def test_a_name_that_is_none_is_found():
    assert exists("crate.exact_step")
    assert exists("probes.pictures.heads")
    assert not exists("crate.exact_stepp")
    assert not exists("probes.picture.heads")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_within_the_text_can_be_typed(page: Path):
    """As they stand, but for those that name what the reader is to fill in."""
    for text in inline(page):
        program, *words = shlex.split(text) if text.startswith("transformer-theory ") and not PLACEHOLDER.search(text) else [""]
        if len(words) > 1:
            parse(words)
        elif program:
            with pytest.raises(SystemExit):
                parse([*words, "--help"])


@pytest.mark.parametrize("room", ROOMS)
def test_the_page_of_a_theory_has_the_outline_every_claim_and_every_experiment(room: str):
    page = ROOT / "docs" / "theories" / f"{room}.md"
    titles = [title for title in re.findall(r"^## (.+)$", prose(page), re.MULTILINE) if title in OUTLINE]
    assert titles == list(OUTLINE)
    assert f"*{ROOMS[room].question}*" in prose(page)
    assert sorted(re.findall(rf"^\| `({room}/[\w-]+)`", prose(page), re.MULTILINE)) == sorted(claim.id for claim in ROOMS[room].claims)
    for kind in ROOMS[room].experiments:
        assert f"`{kind.name.removeprefix(f'{room}.')}`" in prose(page) or f"`{kind.name}`" in prose(page), kind.name


def test_every_theory_answers_a_question_and_every_question_has_a_command():
    page = ROOT / "docs" / "which_theory.md"
    rows = re.findall(
        r"^\| (?!\*\*|question|theory|-)(.+?\?) \| (.+?) \| (.+?) \| (.+?) \|$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 2 * len(ROOMS)
    for _, _, command, limit in rows:
        assert re.fullmatch(r"`transformer-theory [^`]+`", command)
        assert limit.strip()
    for room in ROOMS:
        assert any(f"theories/{room}.md" in answer for _, answer, _, _ in rows), room


def test_the_api_lists_what_can_be_imported_and_every_room():
    from importlib import import_module

    names = re.findall(r"^   (transformer_theory[\w.]*)$", (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"transformer_theory.theories.{room}" for room in ROOMS} <= set(names)
    assert {f"transformer_theory.{name}" for name in NAMESPACES} <= set(names)
    for name in names:
        assert import_module(name).__doc__, name
