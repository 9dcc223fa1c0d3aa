"""The commands and the Python of the README and the pages: commands exist and take those options, the quick
ones run, the Python runs.
"""

import functools
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

import transformer_theory as tt
from tests.contract.instances import few_steps
from tests.pages import FENCE, PAGES, ROOT, blocks, ours
from transformer_theory.cli import main
from transformer_theory.cli.parsers import parse
from transformer_theory.comparison.judged import headlines, quantities, rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core import format, sources
from transformer_theory.core.claims import Verification
from transformer_theory.data import Images, TokenData
from transformer_theory.report.sentences import network_statements

QUICK = {"list", "cite", "verify"}  # executed; the others are parsed
BUILDS = "docs/adding_a_theory.md"  # the page that builds a theory of its own
OWN = "docs/own_models/"  # snippets that tests/test_own_models.py runs


def page_text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands() -> list[str]:
    """The command lines of the shell blocks, without prompts and comments; those of BUILDS are run by
    tests/test_docs_skeleton.py.
    """
    text = "\n".join(text for page, text in blocks("bash", "console", "sh") if page != BUILDS).replace(
        "\\\n", " "
    )
    lines = [line.removeprefix("$ ").split(" #")[0].strip() for line in text.splitlines()]
    return sorted({line for line in lines if line and not line.startswith("#")})


def test_the_readme_begins_with_the_two_commands():
    made = re.findall(
        r"^make \w+", "\n".join(text for page, text in blocks("bash") if page == "README.md"), re.MULTILINE
    )
    assert made[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("line", commands())
def test_command_exists(line: str, capsys: pytest.CaptureFixture[str]):
    program, *arguments = shlex.split(line)
    while "=" in program:  # settings before the command
        program, *arguments = arguments
    if program == "make":
        targets = [argument for argument in arguments if "=" not in argument]
        assert all(
            re.search(rf"^{re.escape(t)}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            for t in targets
        )
    elif (given := ours(program, arguments)) is not None:
        parse(given)
        if given[0] in QUICK and "tcp://" not in line:  # tests/test_cluster.py has a cluster
            assert (
                main([*given, *(["--seeds", "1"] if given[0] == "verify" and "--seeds" not in given else [])])
                == 0
            )
            assert capsys.readouterr().out.strip()
    elif program == "dask":
        command = import_module(f"distributed.cli.dask_{arguments[0]}").main
        command.make_context(arguments[0], arguments[1:])  # raises for an unknown option
    elif program == "python3":
        assert arguments == ["-m", "venv", ".venv"]
    elif program.endswith("python"):
        assert arguments[:2] == ["-m", "benchmarks"] or (ROOT / arguments[0]).is_file()
    elif program == "jupyter":
        assert arguments[0] == "lab"
        assert all((ROOT / argument).is_file() for argument in arguments[1:])
    elif program.endswith("pytest"):
        assert all((ROOT / argument).exists() for argument in arguments if argument.startswith("tests"))
    else:
        assert program in ("git", "cd", "source", "pip", "uv", "."), f"unknown program {program!r}"


WRONG = {
    "torchrun --nproc-per-node 2 -m transformer_theory train crat": "unknown network 'crat'",
    "transformer-theory run": "EXPERIMENT",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_a_wrong_command_line_is_found(line: str, message: str):
    program, *arguments = shlex.split(line)
    with pytest.raises(ValueError, match=message):
        parse(ours(program, arguments) or [])


def pages() -> list[tuple[str, str]]:
    """The Python blocks that run by themselves; those of the page on theories are files of a theory, those of
    OWN run elsewhere.
    """
    return [(page, code) for page, code in blocks("python") if page != BUILDS and not page.startswith(OWN)]


load = functools.cache(tt.data.load)  # cutting the digits takes as long as what most blocks do with them


images = functools.cache(tt.data.images)
# What the functions of the blocks are given, whatever the page gives them: no line of a page states a number
# that depends on it.
LESS = {
    "transformer_theory": {
        "compare": {"steps": 2, "claim_seeds": 0, "seeds": 2},
        "reach": {"seeds": 1},
        "verify": {"seeds": (0,)},
    },
    "transformer_theory.theories.chain_of_thought": {
        "split": {"train": 640, "test": 20},
        "train": {"steps": 2},
    },
    "transformer_theory.theories.in_context": {"train_attention": {"steps": 10}},
    "transformer_theory.theories.induction": {"train_induction": {"steps": 5}},
    "transformer_theory.theories.vision": {"train_patches": {"steps": 10}, "train_tokens": {"steps": 10}},
}


def few(source: str | Path) -> TokenData:
    """Some sequences of a data set."""
    return load(source)[:200]


def few_images(source: str | Path, **options) -> tuple[Images, ...]:
    """Some training and test images of a data set."""
    return tuple(part[torch.arange(min(len(part), 200))] for part in images(source, **options))


def with_less(function: Callable, less: dict) -> Callable:
    """The function with these arguments in place of those that it is called with."""
    return lambda *given, **named: function(*given, **named | less)


@pytest.mark.parametrize(("page", "code"), pages(), ids=lambda value: value if value.endswith(".md") else "")
def test_python_runs(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each block alone in an empty folder, as if pasted into a new interpreter, with few images, few training
    steps and no claims.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tt.data, "load", few)
    monkeypatch.setattr(tt.data, "images", few_images)
    for module, functions in LESS.items():
        for name, less in functions.items():
            monkeypatch.setattr(f"{module}.{name}", with_less(getattr(import_module(module), name), less))
    with torch.random.fork_rng(), few_steps():
        exec(compile(code, page, "exec"), {})


def test_the_bilinear_form_of_the_page_on_probes_gives_the_scores():
    """score(key x, query z) = x^T W z is what scaled_dot_product_attention computes from the same
    projections.
    """
    (code,) = (code for page, code in blocks("python") if page == "docs/probes.md" and "def bilinear" in code)
    names = {}
    exec(compile(code, "docs/probes.md", "exec"), names)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x = names["MyAttention"](), torch.randn(5, 6)
        module.heads, module.query, module.key = (
            2,
            torch.nn.Linear(6, 6, bias=False),
            torch.nn.Linear(6, 6, bias=False),
        )
    query, key = (layer(x).unflatten(-1, (2, 3)).transpose(0, 1) for layer in (module.query, module.key))
    torch.testing.assert_close(x @ module.bilinear().mT @ x.T, query @ key.mT / 3**0.5)


def test_the_list_of_theories_is_that_of_the_registry():
    readme, table = (page_text(name) for name in ("README.md", "docs/theories.md"))
    assert "(docs/theories.md)" in readme
    rows = re.findall(
        r"^\| \[(.+?)\]\(theories/(\w+)\.md\) \| (.+?) \| (.+?) \| (.+) \|$", table, re.MULTILINE
    )
    assert [(name, question) for _, name, question, _, _ in rows] == [
        (theory.name, theory.question) for theory in tt.list_theories()
    ]
    for _, name, *_ in rows:
        assert (ROOT / "docs" / "theories" / f"{name}.md").is_file()


def test_the_first_screen_of_readme_and_home_page():
    """What it is, a picture, an example of at most ten lines with what it prints, and three doors; the home
    page takes the example from the README.
    """
    readme, home = (page_text(name) for name in ("README.md", "docs/index.md"))
    example, _ = ten_lines()
    assert len(example.splitlines()) <= 10
    assert (
        "```{include} ../README.md\n:start-after: <!-- ten lines -->\n:end-before: <!-- end -->\n```" in home
    )
    (badge,) = re.findall(r"^\[!\[CI\]\(.*\)\]\(.*\)\n", readme, re.MULTILINE)
    for text, folder in ((readme.replace(badge, ""), "docs/"), (home, "")):
        places = [text.index("]("), text.index("ten lines -->")]
        for door, page in (("Compare", "comparing"), ("Train", "training"), ("Cite", "for_survey_writers")):
            found = re.search(rf"\[(?:\*\*)?{door}(?:\*\*)?\]\({folder}{page}\.md\)", text)
            assert found, door
            places.append(found.start())
        assert places == sorted(places)
        assert text[places[0] - 1 :].partition("](")[2].startswith(f"{folder}figures/")
    assert len(readme.splitlines()) <= 110


def test_the_badge_is_that_of_a_workflow_of_this_repository():
    readme = page_text("README.md")
    (badge, workflow), *others = re.findall(r"\[!\[CI\]\((.*?)/badge\.svg\)\]\((.*?)\)", readme)
    assert not others
    prefix = f"{sources.REPOSITORY}/actions/workflows/"
    assert badge == workflow
    assert workflow.startswith(prefix)
    text = page_text(f".github/workflows/{workflow.removeprefix(prefix)}")
    assert "run: .ci/run\n" in text
    assert (ROOT / ".ci" / "run").is_file()
    assert f'repository-code: "{sources.REPOSITORY}"' in page_text("CITATION.cff")


def ten_lines() -> tuple[str, str]:
    """The example of the README and what it prints."""
    return re.findall(
        r"<!-- ten lines -->\s+```python\n(.*?)```\s+```text\n(.*?)```\s+<!-- end -->",
        page_text("README.md"),
        re.DOTALL,
    )[0]


def test_the_ten_lines_print_what_the_readme_says(monkeypatch: pytest.MonkeyPatch, capsys):
    """On all digits. The claims that ``compare`` checks are left out, and two of three seeds: neither is
    printed, and what depends on the data alone is the same for all seeds.
    """
    code, printed = ten_lines()
    monkeypatch.setattr(tt, "compare", with_less(tt.compare, {"claim_seeds": 0, "seeds": 1}))
    monkeypatch.setattr(tt, "figures", lambda result: None)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_first_command_prints_what_the_page_says(monkeypatch: pytest.MonkeyPatch, capsys):
    (command, printed), *_ = re.findall(
        r"```bash\ntransformer-theory (.*?)\n```\n\n```text\n(.*?)```", page_text("docs/start.md"), re.DOTALL
    )
    monkeypatch.setenv("COLUMNS", "110")
    assert main(command.split()) == 0
    out = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    assert [line.rstrip() for line in out.splitlines()] == printed.splitlines()


def test_the_sentences_about_a_network_are_those_of_its_stored_result():
    """The README quotes the first three sentences of ``measure`` about MiniLM, with the meaning of each
    quantity.
    """
    result = tt.Result.load(ROOT / "docs" / "atlas" / "minilm-wikitext-2")
    found = quantities(result, tt.list_theories())
    said = network_statements(headlines(found, tt.list_theories()), found)[:3]
    assert len(said) == 3
    readme = page_text("README.md")
    quoted = " ".join(re.findall(r"^> (.*)$", readme, re.MULTILINE))
    assert quoted == " ".join(
        f"**{title}:** {text}. *{format.sentence_case(meaning)}.*" for title, text, meaning in said
    )
    assert result.settings["model"] == "MiniLM (WikiText-2)"
    assert f"{round(result.settings['parameters'] / 1e6)} million weights" in " ".join(readme.split())
    assert (
        f"[{len(list((ROOT / 'docs' / 'atlas').glob('*/result.json')))} trained networks]"
        in readme.replace("nine", "9")
    )


def test_the_story_of_the_readme_has_the_numbers_of_the_reach():
    """Attention as a support vector machine: the cosines of its rungs, and their nulls where it ends."""
    stored = tt.Result.load(ROOT / "docs" / "reach")
    story = " ".join(page_text("README.md").split("## Where a theory ends")[1].split("\n## ")[0].split())
    theory = tt.theory("attention_svm")
    rows = stored.table.select(theory=theory.name, quantity=theory.ladder.quantity).summary()
    rungs = {row.rung: row for row in rows if row.nulls}
    judged = {
        each.name: each.judged.outcome for each in rung_results(aggregate([stored])) if each.theory == theory
    }
    agreeing, ending = ("own instances", "16 real inputs", "K and Q", "head trained"), ("AdamW", "two layers")
    assert [judged[name] for name in agreeing] == ["as predicted"] * len(agreeing)
    assert [judged[name] for name in ending] == ["matched by a second null"] * len(ending)
    permuted = {name: rungs[name].nulls[1] for name in ending}
    assert {null.kind for null in permuted.values()} == {"queries permuted among inputs"}
    expected = [f"{rungs[name].value:.3f}" for name in (*agreeing, "AdamW")]
    expected += [f"{permuted['AdamW'].low:.3f}", f"{permuted['AdamW'].high:.3f}"]
    expected += [f"{rungs['two layers'].value:.3f}", f"{permuted['two layers'].median:.3f}"]
    assert re.findall(r"\d\.\d+", story) == expected


def counts() -> str:
    """What the ledger says, as the README has it."""
    documents = json.loads((ROOT / "docs" / "claims.json").read_text(encoding="utf-8"))
    claims = [Verification.from_json(one) for document in documents for one in document["verifications"]]
    seeds = sorted({len(claim.seeds) for claim in claims})
    consistent = sum(claim.verdict == "consistent" for claim in claims)
    undecided = sum(len(claim.seeds) - claim.decided for claim in claims)
    fail, corrected = (
        sum(claim.control == "fails" for claim in claims),
        sum(claim.corrects_published for claim in claims),
    )
    status = Counter(claim.source.status for claim in claims)
    outcome = (
        f"{consistent} consistent on every decided seed ({undecided} undecided in all), {fail} controls fail "
        "on every seed"
    )
    searched = (
        f"{status['confirmed']} read in the full text, {status['second-hand']} found at second hand, "
        f"{status['not found']} not found"
    )
    span = f"{seeds[0]} to {seeds[-1]}" if seeds[1:] else str(seeds[0])
    return (
        f"{len(claims)} claims: {outcome}, {corrected} correct a published text. "
        f"Cited statements: {searched}; {status['own']} are this library's own statements | {span} seeds each"
    )


def test_the_counts_of_the_measurements_are_those_of_the_ledger():
    """They stand in one place, so that one line has to be changed when the ledger is made anew."""
    measured = page_text("docs/measured.md")
    assert measured.count(counts()) == 1, f"docs/measured.md must have in its table: {counts()}"
    pattern = r"\d+ claims|\d+ consistent|\d+ (?:lead to )?corrections?\b|\d+ correct\b"
    assert len(re.findall(pattern, measured)) == 3
    assert not re.findall(pattern, page_text("README.md"))


def test_the_readme_says_what_papers_state_and_what_the_library_adds():
    status = Counter(claim.source.status for theory in tt.list_theories() for claim in theory.claims)
    assert (
        f"The library checks {status.total()} statements. Papers state {status.total() - status['own']} of "
        f"them: {status['confirmed']} were read in the full text, {status['second-hand']} in a text that "
        f"cites them, and for {status['not found']} no text was available. The other {status['own']} are "
        "this library's own, in the setting of a paper that does not state them."
    ) in " ".join(page_text("README.md").split())


def test_a_package_index_shows_the_description():
    """An index has none of the repository's files, so the text must have neither relative links nor pictures
    of it.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = project["readme"]["text"]
    assert project["readme"]["content-type"] == "text/markdown"
    assert "![" not in text
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]*)\)", text))
    assert project["authors"] == [{"name": sources.AUTHORS}]
    for theory in tt.list_theories()[:5]:
        assert sources.field(theory.sources[0].key, "url") in text
    ours_in_text = [line for line in text.splitlines() if line.startswith("    transformer-theory ")]
    assert len(ours_in_text) >= 3
    for line in ours_in_text:
        parse(shlex.split(line)[1:])


def test_the_number_of_theories_is_that_of_the_registry():
    words = {18: "eighteen", 19: "nineteen", 20: "twenty"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    word = words[len(tt.list_theories())]
    for text in (project["readme"]["text"], (ROOT / "README.md").read_text(encoding="utf-8")):
        assert f"{word.capitalize()} theories are here" in " ".join(text.split())
    assert f"[the {word}](theories.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_pages_say_how_to_install():
    cpu, clone = "https://download.pytorch.org/whl/cpu", f"git clone {sources.REPOSITORY}"
    torch_first = f'pip install torch --index-url {cpu}\npip install -e ".[notebook]"\n'
    lines = {
        page: "\n".join(code for name, code in blocks("bash") if name == page)
        for page in ("README.md", "docs/start.md", "docs/install.md")
    }
    for page in lines:
        assert re.search(rf"^{re.escape(clone)}( |$)", lines[page], re.MULTILINE), page
        assert "install.md)" in (ROOT / page).read_text(encoding="utf-8") or page == "docs/install.md"
    assert torch_first in lines["docs/install.md"]
    assert f"{clone} && cd transformer_theory && pip install -e .\n" in lines["README.md"]
    assert f"`--extra-index-url {cpu}`" in page_text("README.md")
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert re.findall(r"^\| `\[(\w+)\]` \|", text, re.MULTILINE) == list(project["optional-dependencies"])
    assert {"notebook", "graphs", "distributed", "docs", "dev"} <= project["optional-dependencies"].keys()
    assert len(set(project["urls"].values())) >= 3
    versions = {word.rpartition(" ")[2] for word in project["classifiers"] if re.search(r":: 3\.\d+$", word)}
    assert versions == {"3.11", "3.12", "3.13"}
    assert all(version in text for version in versions)


def test_the_published_sizes_stand_on_the_page():
    page = (ROOT / "docs" / "theories" / "crate_reference.md").read_text(encoding="utf-8")
    with torch.device("meta"):
        for make in (
            tt.models.crate_tiny,
            tt.models.crate_small,
            tt.models.crate_base,
            tt.models.crate_large,
        ):
            assert f"{sum(parameter.numel() for parameter in make().parameters()):,}" in page, make.__name__


def test_no_line_of_a_page_is_taken_for_a_comment():
    """In MyST a line that begins with a per cent sign does not appear, except in a block of code."""
    for page in PAGES:
        assert not re.findall(r"^[ ]*%.*", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE), (
            page.name
        )


def test_versions_agree():
    def found(pattern: str, file: str) -> str:
        match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert match, file
        return match[1]

    assert (
        tt.__version__
        == found(r'^version = "(.+)"', "pyproject.toml")
        == found(r"^version: (.+)$", "CITATION.cff")
        == found(r"^## (\S+)", "CHANGELOG.md")
    )


def test_every_dependency_is_pinned():
    pins = dict(
        re.findall(
            r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert pins["torch"] == "2.13.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=\[; ]", requirement)[0].lower() for requirement in wanted}
    assert names <= {name.lower() for name in pins}
