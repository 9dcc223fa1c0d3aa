"""Does a training run that is killed at random moments end with the same bits as an uninterrupted run?

A training run on digits is a process with one thread. SIGKILL ends it at a random moment, also during its
start, a measurement or a write, and the same command resumes it, until it finishes. Weights, moments and rows
are compared with those of an uninterrupted run.

The moment is a random fraction of a second after a random number of checkpoints, 0 to 3, so it hardly depends
on the machine's speed.

    python -m benchmarks.kill_and_resume [KILLS]
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.__main__ import header

KILLS, SEED = 20, 0
TIMED = ("seconds", "images per second")  # quantities that differ between any two runs
TRAIN = [
    "train",
    "crate",
    "--data",
    "digits",
    "--theories",
    "scan_snap",
    "--epochs",
    "12",
    "--interval",
    "8",
    "--resume",
]
TRAIN += ["--device", "cpu", "--precision", "float32"]


def training(folder: Path) -> subprocess.Popen[bytes]:
    """Starts or resumes the training run as a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "transformer_theory", *TRAIN, "--out", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def until_end(folder: Path) -> float:
    """Runs the training to its end and returns the seconds it took.

    Raises:
        RuntimeError: the process ended with an error; the message is the last line that it printed.
    """
    started, process = time.perf_counter(), training(folder)
    _, err = process.communicate()
    if process.returncode:
        raise RuntimeError(err.decode().splitlines()[-1])
    return time.perf_counter() - started


def step_of(folder: Path) -> int | None:
    """Returns the step of the last checkpoint; None before the first."""
    last = folder / "last.pt"
    return torch.load(last, weights_only=True)["step"] if last.exists() else None


def differences(folder: Path, other: Path) -> list[str]:
    """Lists the parts in which two training runs differ."""
    states = [torch.load(path / "last.pt", weights_only=True) for path in (folder, other)]
    parts = [
        name
        for name in ("step", "best", "rows", "network", "optimiser", "memory")
        if not equal(*(state[name] for state in states))
    ]
    rows = [
        [json.loads(line) for line in (path / "table.jsonl").read_text(encoding="utf-8").splitlines()]
        for path in (folder, other)
    ]
    first, second = ([row for row in table if row["quantity"] not in TIMED] for table in rows)
    return [*parts, *(["table"] if first != second else [])]


def equal(first: Any, second: Any) -> bool:
    """Returns whether two states are equal to the last bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


def wait(process: subprocess.Popen[bytes], folder: Path, checkpoints: int, seconds: float) -> bool:
    """Waits until a run has written ``checkpoints`` checkpoints, then for ``seconds``; returns whether the
    process is still running.
    """
    written, last = 0, changed(folder)
    while written < checkpoints and process.poll() is None:
        time.sleep(0.002)
        now = changed(folder)
        written, last = written + (now != last), now
    time.sleep(seconds)
    return process.poll() is None


def changed(folder: Path) -> int:
    """Returns the time of the last checkpoint in nanoseconds; 0 before the first."""
    try:
        return (folder / "last.pt").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main(kills: int = KILLS) -> int:
    """Prints a row per kill and whether the run ended like the uninterrupted one; returns the number of
    differences.
    """
    generator, total = random.Random(SEED), 0
    with tempfile.TemporaryDirectory() as name:
        whole, parts = Path(name) / "whole", Path(name) / "parts-0"
        print(f"uninterrupted: {until_end(whole):.1f} s, {step_of(whole)} steps")
        print("kill  checkpoints waited for  then  last checkpoint before and after")
        for number in range(1, kills + 1):
            before, process = step_of(parts), training(parts)
            checkpoints, seconds = generator.randrange(4), generator.random()
            if wait(process, parts, checkpoints, seconds):
                process.send_signal(signal.SIGKILL)
                process.communicate()
                print(
                    f"{number:4}  {checkpoints:22}  {seconds:.2f} s  {before} -> {step_of(parts)}", flush=True
                )
            else:  # it finished before the kill; a new run takes the remaining kills
                process.communicate()
                total += compare(parts, whole)
                parts = parts.with_name(f"parts-{number}")
        until_end(parts)
        return total + compare(parts, whole)


def compare(parts: Path, whole: Path) -> int:
    """Prints and counts the differences between a run that was killed and an uninterrupted run."""
    different = differences(parts, whole)
    print(
        f"at the end: {'bit for bit the same' if not different else 'DIFFERENT: ' + ', '.join(different)}",
        flush=True,
    )
    return len(different)


if __name__ == "__main__":
    print(header())
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
