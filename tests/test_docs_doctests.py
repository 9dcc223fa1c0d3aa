"""Every ``>>>`` in the package's docstrings runs and prints the output beside it."""

import doctest
from importlib import import_module
from pathlib import Path

import torch

from tests.cases import each_case

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "transformer_theory").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@each_case("name", MODULES)
def test_the_examples_of_a_docstring_run(name: str):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    examples = [test for test in doctest.DocTestFinder().find(import_module(name)) if test.examples]
    failures: list[str] = []
    with torch.random.fork_rng():
        for test in examples:
            runner.run(test, out=failures.append)
    assert runner.summarize(verbose=False) == (0, sum(len(test.examples) for test in examples)), "".join(
        failures
    )
    assert examples, f"{name} has a >>> outside of its docstrings"


def test_examples_were_found():
    assert len(MODULES) >= 8
