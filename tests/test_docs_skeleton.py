"""The room that docs/adding_a_theory.md builds passes what every room must: in a copy of the project, with the page's own commands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding_a_theory.md").read_text(encoding="utf-8")
(DESCRIBED,) = re.findall(r"^````markdown\n(.*?)^````", PAGE, re.MULTILINE | re.DOTALL)
FILES = dict(re.findall(r"^## \d\. [^\n]*`(averaging/\w+\.py)`$.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
REST = shutil.ignore_patterns("_build", "auto_examples")  # what is compiled saves the time


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which the page was followed."""
    copy = tmp_path_factory.mktemp("skeleton") / "project"
    for name in ("transformer_theory", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=REST)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy / path.name)
    for name, text in FILES.items():
        path = copy / "transformer_theory" / "theories" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def change(name: str, old: str, new: str) -> None:
        text = (copy / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
        (copy / name).write_text(text.replace(old, new), encoding="utf-8")

    change("transformer_theory/theories/__init__.py", "from . import attention_svm,", "from . import attention_svm, averaging,")
    change("transformer_theory/theories/__init__.py", "crate.THEORY)\n", "crate.THEORY, averaging.THEORY)\n")
    change("transformer_theory/__init__.py", "from .theories import attention_svm,", "from .theories import attention_svm, averaging,")
    change("transformer_theory/__init__.py", '    "attention_svm",\n', '    "attention_svm",\n    "averaging",\n')
    (copy / "docs" / "theories" / "averaging.md").write_text(DESCRIBED, encoding="utf-8")
    question = "Does attention make the tokens of a sequence alike?"
    row = f"| {question} | [Averaging](theories/averaging.md) | `transformer-theory verify averaging/diameter` | how fast |\n"
    change("docs/which_theory.md", "| **When attention", f"{row}| **When attention")
    change("README.md", "\n## Measured\n", f"\n[Averaging](docs/theories/averaging.md): {question}\n\n## Measured\n")
    return copy


def run(project: Path, *command: str) -> str:
    """Standard output of a command in the copy; fails with it if the command fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONPATH": str(project)}
    done = subprocess.run([sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


POWER = """
from pathlib import Path

import transformer_theory as tt


def test_the_control_of_averaging_has_power_on_many_seeds():
    verdict = tt.verify("averaging/diameter", range(20))
    assert Path(tt.__file__).is_relative_to(Path(__file__).parents[1])
    assert (verdict.share, verdict.control) == (1.0, "fails")
"""


def test_the_page_holds_every_file():
    assert [Path(name).name for name in FILES] == ["problem.py", "claims.py", "analysis.py", "experiments.py", "__init__.py"]


def test_the_room_passes_the_contract_and_the_registry_takes_it(project: Path):
    """Both commands of the page at once, of the tests that look at the room; shapes are checked in the new room alone. One test more,
    in the same process, verifies the claim on many seeds."""
    (project / "tests" / "test_power.py").write_text(POWER, encoding="utf-8")
    first, second = re.findall(r"^\.venv/bin/pytest (.*?)(?: -k averaging)?$", PAGE, re.MULTILINE)
    assert set(first.split()) < set(second.split())
    plugin = (project / "pyproject.toml").read_text(encoding="utf-8")
    assert plugin.count("--jaxtyping-packages=transformer_theory,") == 1
    narrow = plugin.replace("--jaxtyping-packages=transformer_theory,", "--jaxtyping-packages=transformer_theory.theories.averaging,")
    (project / "pyproject.toml").write_text(narrow, encoding="utf-8")
    chosen = "averaging or registry or registered or names or cite or exported or table_of_the_readme or every_theory"
    told = run(project, "-m", "pytest", "-v", "-p", "no:cacheprovider", *second.split(), "tests/test_power.py", "-k", chosen)
    passed = re.search(r"(\d+) passed, \d+ deselected", told)
    assert passed, told
    assert int(passed[1]) > 50
    assert "test_the_control_of_averaging_has_power_on_many_seeds PASSED" in told


def test_the_room_has_style(project: Path):
    run(project, "-m", "ruff", "check", "--no-cache", "transformer_theory/theories/averaging")
    run(project, "-m", "ruff", "format", "--check", "--no-cache", "transformer_theory/theories/averaging")
