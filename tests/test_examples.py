"""Every example runs in a process of its own within 20 seconds of one core; the processes begin with the
imports that all share.
"""

import multiprocessing
from pathlib import Path

import pytest

from transformer_theory.theories import THEORIES

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("plot_*.py"))
RUN = """
import os, runpy, sys, time
os.chdir({folder!r})
sys.stderr = open("stderr", "w")
runpy.run_path({path!r}, run_name="__main__")
assert time.process_time() < 20, f"it takes {{time.process_time():.0f}} s"
"""


@pytest.fixture(scope="module")
def processes():
    """Forks of one interpreter that has imported the libraries, and nothing of this process."""
    context = multiprocessing.get_context("forkserver")
    libraries = [
        "matplotlib.backends.backend_agg",
        "matplotlib.pyplot",
        "mpl_toolkits.mplot3d",
        "scipy.integrate",
        "sklearn.cluster",
        "sklearn.datasets",
        "torch._dynamo",
    ]
    own = ["comparison", "core.plotting", *(f"theories.{name}" for name in THEORIES)]
    context.set_forkserver_preload([*libraries, *(f"transformer_theory.{name}" for name in own)])
    return context


def test_every_theory_has_an_example():
    assert {path.stem for path in EXAMPLES} >= {f"plot_{name}" for name in THEORIES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path, processes):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100
    running = processes.Process(target=exec, args=(RUN.format(folder=str(tmp_path), path=str(path)), {}))
    running.start()
    running.join(180)
    running.kill()
    assert running.exitcode == 0, (tmp_path / "stderr").read_text(encoding="utf-8")
