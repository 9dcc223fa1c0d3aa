"""Class-wise coding rate, forward and backward: ours against the k x m x m diagonal matrices of the formula,
and against a loop.

At the full size (m = 10,000, k = 100) the matrices would take 40 GB. The whole formula is therefore timed at
m = 2,000, k = 20. At the full size, one class is timed with its matrix in memory, and the time is multiplied
by the number of classes ("extrapolated"). Times are medians over alternating rounds on one thread; ratios are
medians of the rounds' ratios. Memory is the growth of the peak resident size of a fresh process.
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

from benchmarks._common import ratio, take_turns, verdict
from benchmarks.baselines.coding_rate import masked_loop, memberships, one_term, textbook
from transformer_theory.metrics.coding import class_coding_rate, unit_norm

P, EPS = 128, 0.5


def instance(m: int, k: int) -> tuple[Tensor, Tensor]:
    """Returns float32 features [m, P] of norm 1 that require gradients, and labels [m] of all k classes."""
    generator = torch.Generator().manual_seed(0)
    features = unit_norm(torch.randn(m, P, generator=generator)).requires_grad_()
    return features, torch.arange(m)[torch.randperm(m, generator=generator)] % k


def forward_backward(function: Callable[[], Tensor], features: Tensor) -> tuple[float, Tensor]:
    """Returns the seconds of one forward and backward pass, and the gradient by the features [m, P]."""
    started = time.perf_counter()
    (gradient,) = torch.autograd.grad(function(), features)
    return time.perf_counter() - started, gradient


def interleaved(
    functions: dict[str, Callable[[], Tensor]], features: Tensor, rounds: int
) -> dict[str, list[float]]:
    """Returns the seconds of a forward and backward pass of each function in each round, after a check that
    the gradients agree.
    """
    gradients = {name: forward_backward(function, features)[1] for name, function in functions.items()}
    first = next(iter(gradients.values()))
    for name, gradient in gradients.items():
        error = float((gradient - first).norm() / first.norm())
        assert error < 1e-4, f"{name}: gradients differ by {error:.1e}"
    passes = {name: partial(forward_backward, function, features) for name, function in functions.items()}
    return take_turns(passes, rounds)


def functions_of(features: Tensor, labels: Tensor, k: int) -> dict[str, Callable[[], Tensor]]:
    """Returns three versions of the class-wise coding rate of features [m, p] with labels [m] of
    k classes.
    """
    return {
        "ours": lambda: class_coding_rate(features, labels, eps=EPS),
        "loop": lambda: masked_loop(features, labels, k, EPS),
        "formula": lambda: textbook(features, labels, k, EPS),
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


def main() -> None:
    """Prints the results for three sizes and whether the targets are met."""
    for m, k, rounds in ((1000, 10, 7), (2000, 20, 3)):
        features, labels = instance(m, k)
        functions = functions_of(features, labels, k)
        times = interleaved(functions, features, rounds)
        memory = {name: peak_memory(name, m, k) for name in functions}
        report(m, k, times, memory)
    m, k = 10_000, 100
    features, labels = instance(m, k)
    functions = functions_of(features, labels, k)
    del functions["formula"]
    times = interleaved(functions, features, 7)
    member = memberships((labels != 0).long(), 2, features.dtype)[0]  # the matrix of class 0 alone
    one = statistics.median(
        forward_backward(lambda: one_term(features, member, EPS), features)[0] for _ in range(2)
    )
    memory = {name: peak_memory(name, m, k) for name in functions}
    report(m, k, times, memory)
    seconds, ours = one * k, statistics.median(times["ours"])
    megabytes = k * m**2 * 4 / 2**20
    print(
        f"  formula  extrapolated from one class ({one:.2f} s, without building the matrix): {seconds:.0f} "
        f"s = {seconds / ours:.0f}x ours"
    )
    print(f"           its matrices, computed: {megabytes:.0f} MiB = {megabytes / memory['ours']:.0f}x ours")
    print(
        f"  target: >= 20x faster ({verdict(seconds / ours >= 20)}), <= 1/50 of the memory "
        f"({verdict(megabytes >= 50 * memory['ours'])})"
    )


def report(m: int, k: int, times: dict[str, list[float]], memory: dict[str, float]) -> None:
    """Prints times, memory and ratios of all versions at one size."""
    print(f"class-wise coding rate, forward + backward, float32, p = {P}, m = {m}, k = {k}")
    for name in times:
        line = f"  {name:8} {1e3 * statistics.median(times[name]):8.1f} ms  peak +{memory[name]:.1f} MiB"
        if name != "ours":
            line += f"   {ratio(times, name):.1f}x slower, {memory[name] / max(memory['ours'], 0.1):.0f}x the memory"  # noqa: E501
        print(line)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
