"""Two nodes, launched by two commands of torchrun on loopback, train as one process: the recipe of
docs/distributed.md.
"""

import ast
import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.problems.two_nodes import COMMAND, cheap
from tests.training.test_loggers import logged
from transformer_theory.cli import main
from transformer_theory.core.result import Result
from transformer_theory.training.image.loggers import STEP_LOSS

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("nodes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.problems.two_nodes", str(folder), port]
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return folder


def output(folder: Path, rank: int) -> tuple[list[int], str]:
    codes, text = (folder / f"output-{rank}").read_text().split("\n", 1)
    return ast.literal_eval(codes), text


def test_losses_gradients_and_accuracies_are_those_of_one_process(both, tmp_path):
    assert output(both, 0)[0][0] == output(both, 1)[0][0] == 0
    with cheap():
        assert main([*COMMAND, "--out", str(tmp_path / "run")]) == 0
    two, one = Result.load(both / "run"), Result.load(tmp_path / "run")
    assert two.provenance["processes"] == 2
    columns = ("quantity", "split", "layer", "head", "step")
    measured = [
        [
            (*(getattr(row, name) for name in columns), row.value)
            for row in result.table
            if row.unit != "s" and row.value is not None
        ]
        for result in (two, one)
    ]
    there, here = ({row[:-1]: row[-1] for row in rows if row[0] != "images per second"} for rows in measured)
    assert there.keys() == here.keys()
    assert there == pytest.approx(here, rel=1e-4, abs=1e-5)
    for quantity in ("loss", "accuracy"):
        pair = [
            result.select(theory="network", quantity=quantity, split="test").one().value
            for result in (two, one)
        ]
        assert pair[0] == pytest.approx(pair[1], rel=1e-4)
    # the mean over both shares, not the first one
    shown = [logged(folder / "run")[1][STEP_LOSS] for folder in (both, tmp_path)]
    assert shown[0] == [(step, pytest.approx(value, rel=1e-4)) for step, value in shown[1]]
    # The first moment of AdamW is the mean of the gradients, and the weights are what they led to.
    states = [torch.load(folder / "run" / "last.pt", weights_only=True) for folder in (both, tmp_path)]
    for name, weight in states[0]["network"].items():
        assert torch.allclose(weight, states[1]["network"][name], rtol=1e-4, atol=1e-6)
    for name, moments in states[0]["optimiser"]["state"].items():
        assert torch.allclose(
            moments["exp_avg"], states[1]["optimiser"]["state"][name]["exp_avg"], rtol=1e-4, atol=1e-6
        )


def test_one_process_writes_and_prints(both):
    assert "test accuracy" in output(both, 0)[1]
    assert "test accuracy" not in output(both, 1)[1]
    with (both / "run" / "metrics.csv").open(newline="") as file:
        steps = [int(line["step"]) for line in csv.DictReader(file)]
    assert steps == sorted(set(steps))
    assert len(list((both / "run" / "tensorboard").iterdir())) == 1
    assert not list((both / "run").glob(".*"))


def test_nodes_that_differ_are_refused(both):
    for rank in (0, 1):
        codes, text = output(both, rank)
        assert codes[1:] == [2, 2]
        assert "all processes must train the same, got settings seed 0 in process 0" in text
    assert "must lie on a file system that all processes share, process 1" in output(both, 0)[1]
    assert not (both / "seeds").exists()
