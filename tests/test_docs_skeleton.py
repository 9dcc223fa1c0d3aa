"""The theory that docs/adding_a_theory.md builds passes the contract, first with claims and a ladder, then
whole, in a copy of the project.

Only the theory's folder, the line in THEORIES and the BibTeX entry are touched.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding_a_theory.md").read_text(encoding="utf-8")
BLOCKS = re.findall(
    r"`(averaging/[\w/]+\.py)`[^`]*(?:`[^`]*`[^`]*)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
(ENTRY,) = re.findall(r"^```bibtex\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(
    r"^transformer-theory (.*averaging.*)$|`transformer-theory ([^`]*averaging[^`]*)`", PAGE, re.MULTILINE
)
COMMANDS = [" ".join((block or text).split()) for block, text in COMMANDS]
CONTRACT = re.findall(r"^\.venv/bin/pytest (\S+) -k (\w+)$", PAGE, re.MULTILINE)
(STRUCTURE,) = re.findall(r"^\.venv/bin/pytest (\S+)$", PAGE, re.MULTILINE)
PROGRAM = """
import json, pathlib, shlex, sys
import pytest

class Passed(dict):
    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            file = report.location[0]
            self[file] = self.get(file, 0) + 1

passed = Passed()
paths, selection, *lines = sys.argv[1:]
code = pytest.main(["-q", "-p", "no:cacheprovider", *shlex.split(paths), "-k", selection], plugins=[passed])
assert code == 0, code
pathlib.Path("passed.json").write_text(json.dumps(passed))

from transformer_theory.cli import main
from transformer_theory.cli.parsers import parse

for line in lines:  # the commands of the page can be typed
    parse(shlex.split(line))
if lines:
    assert main(["run", "averaging.depth", "--quick", "--out", "run"]) == 0
    assert main(["list", "averaging"]) == 0
    assert main(["verify", "averaging", "--seeds", "1"]) == 0
"""
SMALL = ("attention.py", "claims.py", "ladder.py", "__init__.py")
WHOLE = ("figures/depth.py", "figures/__init__.py", "on_data.py", "in_networks.py", "__init__.py")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the BibTeX entry and the line in THEORIES."""
    copy = tmp_path_factory.mktemp("skeleton") / "project"
    for name in ("transformer_theory", "tests"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("docs", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("_build", "auto_examples"))
    for name in ("conftest.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    bibliography = copy / "transformer_theory" / "core" / "references.bib"
    bibliography.write_text(f"{bibliography.read_text(encoding='utf-8')}\n{ENTRY}", encoding="utf-8")
    registry = copy / "transformer_theory" / "theories" / "__init__.py"
    text = registry.read_text(encoding="utf-8")
    before, names = text.split("\nTHEORIES = (", 1)
    names = names.replace("\n)", '\n    "averaging",\n)', 1)  # the first closing bracket ends the tuple
    registry.write_text(f"{before}\nTHEORIES = ({names}", encoding="utf-8")
    # shapes are checked in the new theory alone: the others are checked by the tests outside this copy
    settings = (copy / "pyproject.toml").read_text(encoding="utf-8")
    assert settings.count("--jaxtyping-packages=transformer_theory,") == 1
    settings = settings.replace(
        "--jaxtyping-packages=transformer_theory,",
        "--jaxtyping-packages=transformer_theory.theories.averaging,",
    )
    (copy / "pyproject.toml").write_text(settings, encoding="utf-8")
    return copy


def build(project: Path, names: tuple[str, ...], *, last: bool) -> None:
    """Writes the files of a variant; of a file that the page shows twice the first or the last version."""
    for name in names:
        versions = [text for path, text in BLOCKS if path == f"averaging/{name}"]
        assert versions, name
        path = project / "transformer_theory" / "theories" / "averaging" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(versions[-1 if last else 0], encoding="utf-8")


def run(project: Path, *command: str) -> str:
    """Standard output of a command in the copy; fails with it if the command fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "PYTHONPATH": str(project)
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def passing(project: Path, paths: list[str], selection: str, *lines: str) -> tuple[dict[str, int], str]:
    """How many of the selected tests pass in each file, and the output of the commands, all in one process:
    it imports once.
    """
    output = run(project, "-c", PROGRAM, " ".join(paths), selection, *lines)
    return json.loads((project / "passed.json").read_text(encoding="utf-8")), output


def test_the_page_shows_every_file():
    paths = [path for path, _ in BLOCKS]
    assert sorted(set(paths)) == sorted({f"averaging/{name}" for name in (*SMALL, *WHOLE)})
    assert paths.count("averaging/__init__.py") == 2


def test_claims_and_a_ladder_are_a_theory(project: Path):
    build(project, SMALL, last=False)
    (path, selected), again = CONTRACT
    assert (path, selected) == again
    passed, _ = passing(project, [path], selected)
    assert sum(passed.values()) >= 4


def test_the_whole_theory(project: Path):
    build(project, (*SMALL[:3], *WHOLE), last=True)
    (path, selected), _ = CONTRACT
    assert len(COMMANDS) >= 3
    # this copy checks shapes in the new theory alone, so the two tests of these checks cannot pass here
    structure = f"{Path(STRUCTURE).name} and not shape_checks and not unchecked"
    passed, output = passing(project, [path, STRUCTURE], f"{selected} or ({structure})", *COMMANDS)
    assert passed.pop(STRUCTURE) > 10
    assert sum(passed.values()) > 40
    assert "averaging.depth" in output
    assert "averaging/diameter" in output
    run(project, "-m", "ruff", "check", "--no-cache", "transformer_theory/theories/averaging")
    run(project, "-m", "ruff", "format", "--check", "--no-cache", "transformer_theory/theories/averaging")
