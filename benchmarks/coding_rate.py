"""Class-wise coding rate, forward and backward: ours against the k x m x m diagonal matrices of the formula,
and against a loop.

At the full size (m = 10,000, k = 100) the matrices would take 40 GB. The whole formula is therefore timed at
m = 2,000, k = 20. At the full size, one class is timed with its matrix in memory, and the time is multiplied
by the number of classes ("extrapolated"). Times are processor times of one thread. Memory is the growth of
the peak resident size of a fresh process.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._common import take_turns, verdict
from benchmarks._rows import Row, table
from benchmarks.baselines.coding_rate import masked_loop, memberships, one_term, textbook
from transformer_theory.metrics.coding import class_coding_rate, unit_norm

P, EPS = 128, 0.5
LOOP, FORMULA = "loop over classes", "formula with its membership matrices"


def instance(m: int, k: int) -> tuple[Tensor, Tensor]:
    """Returns float32 features [m, P] of norm 1 that require gradients, and labels [m] of all k classes."""
    generator = torch.Generator().manual_seed(0)
    features = unit_norm(torch.randn(m, P, generator=generator)).requires_grad_()
    return features, torch.arange(m)[torch.randperm(m, generator=generator)] % k


def forward_backward(function: Callable[[], Tensor], features: Tensor) -> tuple[float, Tensor]:
    """Returns the processor seconds of one forward and backward pass, and the gradient by the features
    [m, P].
    """
    started = time.process_time()
    (gradient,) = torch.autograd.grad(function(), features)
    return time.process_time() - started, gradient


def compare(
    what: str,
    functions: dict[str, Callable[[], Tensor]],
    features: Tensor,
    size: str,
    rounds: int,
    targets: dict[str, float] | None = None,
) -> list[Row]:
    """Returns a row for each function beside ours, with the processor seconds of a forward and backward pass.

    The difference is that of the gradient by the features, relative to its norm.
    """
    gradients = {name: forward_backward(function, features)[1] for name, function in functions.items()}
    passes = {name: partial(forward_backward, function, features) for name, function in functions.items()}
    seconds, exact = take_turns(passes, rounds, clock=time.process_time), gradients["ours"]
    return [
        Row(
            f"{what}, forward and backward",
            name,
            f"{size}, p = {P}, float32",
            seconds["ours"],
            seconds[name],
            float((gradients[name] - exact).norm() / exact.norm()),
            "gradient",
            (targets or {}).get(name),
        )
        for name in functions
        if name != "ours"
    ]


def functions_of(features: Tensor, labels: Tensor, k: int) -> dict[str, Callable[[], Tensor]]:
    """Returns three versions of the class-wise coding rate of features [m, p] with labels [m] of
    k classes.
    """
    return {
        "ours": lambda: class_coding_rate(features, labels, eps=EPS),
        LOOP: lambda: masked_loop(features, labels, k, EPS),
        FORMULA: lambda: textbook(features, labels, k, EPS),
    }


def peak_memory(name: str, m: int, k: int, *, subject: str = "coding_rate") -> float:
    """Returns the MiB by which one forward and backward pass raises the peak memory of a fresh process,
    beyond features and labels.
    """
    code = (
        f"from benchmarks.coding_rate import grow; from benchmarks.{subject} import functions_of; "
        f"grow(functions_of, {name!r}, {m}, {k})"
    )
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def grow(
    functions_of: Callable[[Tensor, Tensor, int], dict[str, Callable[[], Tensor]]], name: str, m: int, k: int
) -> None:
    """Prints the number that :func:`peak_memory` returns."""
    torch.set_num_threads(1)
    small, labels = instance(50, 2)
    forward_backward(functions_of(small, labels, 2)[name], small)  # a first pass loads the libraries
    features, labels = instance(m, k)
    Path("/proc/self/clear_refs").write_text("5")  # 5 resets the recorded peak (Linux)
    before = peak()
    forward_backward(functions_of(features, labels, k)[name], features)
    print((peak() - before) / 1024)


def peak() -> int:
    """Returns the peak resident size of this process in KiB; unlike ru_maxrss, it does not include the parent
    process.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> list[Row]:
    """Prints the memory at three sizes and returns the rows."""
    rows = []
    for m, k, rounds in ((1000, 10, 7), (2000, 20, 5)):
        features, labels = instance(m, k)
        functions = functions_of(features, labels, k)
        rows += compare("class-wise coding rate", functions, features, f"m = {m:,}, k = {k}", rounds)
        print_memory(m, k, functions)
    m, k = 10_000, 100
    features, labels = instance(m, k)
    functions = functions_of(features, labels, k)
    del functions[FORMULA]
    (row,) = compare("class-wise coding rate", functions, features, f"m = {m:,}, k = {k}", 7)
    member = memberships((labels != 0).long(), 2, features.dtype)[0]  # the matrix of class 0 alone
    one = statistics.median(
        forward_backward(lambda: one_term(features, member, EPS), features)[0] for _ in range(2)
    )
    memory = print_memory(m, k, functions)
    seconds, ours = one * k, statistics.median(row.ours)
    megabytes = k * m**2 * 4 / 2**20
    print(
        f"  formula  extrapolated from one class ({one:.2f} s, without building the matrix): {seconds:.0f} "
        f"s = {seconds / ours:.0f}x ours"
    )
    print(f"           its matrices, computed: {megabytes:.0f} MiB = {megabytes / memory:.0f}x ours")
    print(
        f"  target: >= 20x faster ({verdict(seconds / ours >= 20)}), <= 1/50 of the memory "
        f"({verdict(megabytes >= 50 * memory)})"
    )
    return [*rows, row]


def print_memory(m: int, k: int, functions: dict[str, Callable[[], Tensor]]) -> float:
    """Prints the peak memory of all versions at one size, and returns ours in MiB."""
    print(f"class-wise coding rate, forward + backward, float32, p = {P}, m = {m}, k = {k}")
    memory = {name: peak_memory(name, m, k) for name in functions}
    for name, peak in memory.items():
        print(f"  {name:37} peak +{peak:.1f} MiB, {peak / max(memory['ours'], 0.1):.0f}x ours")
    return memory["ours"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))
