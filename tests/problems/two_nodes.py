"""One node of a training on two: ``python -m tests.problems.two_nodes FOLDER PORT`` starts both, as two
launches of torchrun would.

The options are parsed by torchrun itself; only the processes are forks of this one, since the imports take
longer than the training.
"""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch
from torch.distributed.launcher.api import elastic_launch

from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.cli.parsers import parse
from transformer_theory.data.image_sets import images
from transformer_theory.probes import NoAttention
from transformer_theory.training.monitor import Monitor

COMMAND = [
    "train",
    "crate",
    "--data",
    "digits",
    "--device",
    "cpu",
    "--precision",
    "float32",
    "--dim",
    "8",
    "--depth",
    "1",
    "--heads",
    "2",
]
COMMAND += [
    "--patch-size",
    "4",
    "--validation-share",
    "0.5",
    "--epochs",
    "2",
    "--theories",
    "none",
    "--csv",
    "--tensorboard",
]


def options(rank: int, port: int) -> list[str]:
    """The options of torchrun on one node."""
    return [
        "--nnodes=2",
        f"--node-rank={rank}",
        "--nproc-per-node=1",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
    ]


@contextlib.contextmanager
def cheap() -> Iterator[None]:
    """Draws no page and measures no metric, which tests/report and tests/probes/test_processes.py do."""
    with (
        patch.object(report, "write", lambda result, folder: folder),
        patch("transformer_theory.report.training.live", lambda *arguments, **options: ""),
        patch.object(Monitor, "_measure", side_effect=NoAttention),
    ):
        yield


def process(folder: str, *more: str) -> int:
    """The process of one node: the command, and another one that the nodes must refuse, since their seeds or
    folders differ.
    """
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), cheap():
        codes = [
            main([*COMMAND, "--out", f"{folder}/run"]),
            main([*COMMAND, "--seed", rank, "--out", f"{folder}/seeds"]),
            main([*COMMAND, "--out", f"{folder}/local-{rank}"]),
        ]
    Path(folder, f"output-{rank}").write_text(f"{codes}\n{out.getvalue()}")
    return 0


def node(folder: str, rank: int, port: int) -> None:
    from torch.distributed import run

    config, _, _ = run.config_from_args(run.parse_args([*options(rank, port), "unused.py"]))
    config.start_method = "fork"
    elastic_launch(config, process)(folder)


if __name__ == "__main__":
    sys.modules["torchmetrics"] = None  # pyright: ignore[reportArgumentType]  # Fabric asks for its version only; its import takes seconds
    for name in ("lightning_fabric", "transformer_theory.report.training", "torch.utils.tensorboard"):
        importlib.import_module(name)
    parse([*COMMAND, "--out", sys.argv[1]])  # imports the theories
    images("digits")
    other = os.fork()
    node(sys.argv[1], 0 if other else 1, int(sys.argv[2]))
    if other:
        _, status = os.waitpid(other, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    os._exit(0)
