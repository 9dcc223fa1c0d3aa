"""Every example runs on its own, as a reader would start it, within 20 seconds of one core."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("plot_*.py"))


def seconds() -> float:
    """CPU seconds of finished child processes: the same on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_there_is_one_for_each_room():
    from transformer_theory.theories import THEORIES

    assert {path.stem for path in EXAMPLES} >= {f"plot_{theory.name}" for theory in THEORIES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100
    before = seconds()
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert seconds() - before < 20
