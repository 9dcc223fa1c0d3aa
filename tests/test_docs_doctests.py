"""Every ``>>>`` in the package's docstrings runs and prints what it says."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "transformer_theory").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_docstring_shows_is_what_comes_out(name: str):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    found = [test for test in doctest.DocTestFinder().find(import_module(name)) if test.examples]
    told: list[str] = []
    with torch.random.fork_rng():
        for test in found:
            runner.run(test, out=told.append)
    assert runner.summarize(verbose=False) == (0, sum(len(test.examples) for test in found)), "".join(told)
    assert found, f"{name} has a >>> outside of its docstrings"


def test_there_are_enough_of_them():
    assert len(MODULES) >= 8
