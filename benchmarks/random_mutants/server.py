"""Starts processes that have loaded the libraries, but nothing of the package: a fork takes no time, whereas
torch, scipy and pytest take seconds.

Each line of standard input is a JSON object with a module of the standard command line ("pytest" or this
folder's ``claims_process``), its arguments, variables of the environment, whether compiled modules are
stored, and the seconds of processor time after which the process is ended. The answer is a line with its exit
status, which is negative if a signal ended it.
"""

import json
import os
import resource
import signal
import sys
from typing import Any

import beartype  # noqa: F401
import hypothesis  # noqa: F401
import jaxtyping  # noqa: F401
import numpy  # noqa: F401
import pytest
import torch

LONGEST = 1800  # seconds until a process that waits is ended


def work(job: dict[str, Any]) -> int:
    """Runs a job in this process and returns its exit status."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.environ.update(job["environment"])
    sys.dont_write_bytecode = not job["compiled"]
    limit = round(job["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    signal.alarm(LONGEST)
    torch.set_num_threads(1)
    if job["module"] == "pytest":
        return int(pytest.main(job["arguments"]))
    from benchmarks.random_mutants import claims_process

    return claims_process.main(*job["arguments"])


def main() -> None:
    """Answers jobs until the input ends."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 70
            try:
                status = work(json.loads(line))
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
