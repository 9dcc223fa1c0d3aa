"""Does a training that is killed at random moments end bit for bit as one that is not?

A training on digits runs as a process, is killed by SIGKILL at a random moment (also while it starts, measures or writes), and is resumed
by the same command, until it ends. Weights, moments and rows are compared with those of an uninterrupted training. One thread.

The moment: after a random number of checkpoints, 0 to 3, a random part of a second. So it does not depend on the speed of the machine.

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
TIMED = ("seconds", "images per second")  # quantities that no two trainings have in common
TRAIN = ["train", "crate", "--data", "digits", "--theories", "scan_snap", "--epochs", "12", "--interval", "8", "--resume"]
TRAIN += ["--device", "cpu", "--precision", "float32"]


def training(folder: Path) -> subprocess.Popen[bytes]:
    """The training as a process, which begins or goes on."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "transformer_theory", *TRAIN, "--out", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def until_end(folder: Path) -> float:
    """Seconds of a training until its end.

    Raises:
        RuntimeError: it ended with an error.
    """
    started, process = time.perf_counter(), training(folder)
    _, err = process.communicate()
    if process.returncode:
        raise RuntimeError(err.decode().splitlines()[-1])
    return time.perf_counter() - started


def step_of(folder: Path) -> int | None:
    """The step of the last checkpoint; None before the first."""
    last = folder / "last.pt"
    return torch.load(last, weights_only=True)["step"] if last.exists() else None


def differences(folder: Path, other: Path) -> list[str]:
    """The parts in which two trainings differ."""
    states = [torch.load(path / "last.pt", weights_only=True) for path in (folder, other)]
    parts = [name for name in ("step", "best", "rows", "network", "optimiser", "memory") if not equal(*(state[name] for state in states))]
    rows = [[json.loads(line) for line in (path / "table.jsonl").read_text(encoding="utf-8").splitlines()] for path in (folder, other)]
    first, second = ([row for row in table if row["quantity"] not in TIMED] for table in rows)
    return [*parts, *(["table"] if first != second else [])]


def equal(one: Any, two: Any) -> bool:
    """Whether two states are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return one == two


def wait(process: subprocess.Popen[bytes], folder: Path, checkpoints: int, seconds: float) -> bool:
    """Waits until a training has written some checkpoints, then some seconds. Returns whether the training still runs."""
    written, last = 0, changed(folder)
    while written < checkpoints and process.poll() is None:
        time.sleep(0.002)
        now = changed(folder)
        written, last = written + (now != last), now
    time.sleep(seconds)
    return process.poll() is None


def changed(folder: Path) -> int:
    """The time of the last checkpoint, nanoseconds; 0 before the first."""
    try:
        return (folder / "last.pt").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main(kills: int = KILLS) -> int:
    """Prints a row for each kill, and whether the training ended as the uninterrupted one. Returns the number of differences."""
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
                print(f"{number:4}  {checkpoints:22}  {seconds:.2f} s  {before} -> {step_of(parts)}", flush=True)
            else:  # it has ended before; the remaining kills are of another training
                process.communicate()
                total += compare(parts, whole)
                parts = parts.with_name(f"parts-{number}")
        until_end(parts)
        return total + compare(parts, whole)


def compare(parts: Path, whole: Path) -> int:
    """Prints and counts the differences of a training that was killed and one that was not."""
    found = differences(parts, whole)
    print(f"at the end: {'bit for bit the same' if not found else 'DIFFERENT: ' + ', '.join(found)}", flush=True)
    return len(found)


if __name__ == "__main__":
    print(header())
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
