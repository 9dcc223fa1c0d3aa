"""Scan-and-snap's exact population flow: ours against autograd in plain time, and against LSODA in log time
on our rate.

Both versions alternate on one thread. Times are medians of processor time; ratios are medians over the
rounds. Our version integrates twice to measure its error; LSODA runs once.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import ratio, take_turns
from benchmarks.baselines.flows import in_plain_time
from transformer_theory.theories.scan_snap import (
    SequenceClasses,
    alike,
    exact_flow,
    single_common,
    symmetric_exact_flow,
)

WEIGHTS = torch.linspace(0.1, 1, 10, dtype=torch.float64)
RATES = {"eta_y": 1.0, "eta_z": 0.1}


def instance(classes: int, vocab_size: int) -> SequenceClasses:
    """Returns classes with ten distinct tokens each and one common token."""
    return single_common(WEIGHTS.expand(classes, -1), 0.06, vocab_size=vocab_size)


def lsoda_in_log_time(classes: SequenceClasses, end: float, tolerance: float) -> Tensor:
    """Returns the logits [S] of the strongest alternative: one run of LSODA on our rate in logarithmic time,
    without a measured error.
    """
    from scipy.integrate import solve_ivp

    from transformer_theory.theories.scan_snap.flow.general import derivatives

    rate = derivatives(classes, lambda f: f, RATES["eta_z"])
    size = classes.tokens * (classes.classes + 2)
    solved = solve_ivp(  # u = log(1 + t), so dy/du = (1 + t) dy/dt
        lambda u, y: np.exp(u) * rate(np.expm1(u), y),
        (0.0, float(np.log1p(end))),
        np.zeros(size),
        method="LSODA",
        rtol=tolerance,
        atol=tolerance * 1e-3,
    )
    return torch.from_numpy(solved.y[-classes.tokens :, -1].copy())


def report(
    title: str, ours: Callable[[], Tensor], other: Callable[[], Tensor], *, rounds: int, atol: float
) -> None:
    """Prints the processor times of both versions, after a check that their logits agree to ``atol``."""
    error = float((ours() - other()).abs().max())
    assert error < atol, f"logits differ by {error:.1e}"
    times = take_turns({"ours": ours, "other": other}, rounds, clock=time.process_time)
    middle = {name: statistics.median(seconds) for name, seconds in times.items()}
    print(
        f"{title}\n  ours {middle['ours']:.3f} s, other {middle['other']:.3f} s, {ratio(times, 'other'):.1f}x"
    )


def end_of(classes: SequenceClasses, end: float, tolerance: float = 1e-8) -> Tensor:
    """Returns the attention logits [S] of the first query at the time ``end``."""
    return exact_flow(classes, torch.tensor([end], dtype=torch.float64), **RATES, tolerance=tolerance).logits[
        0, 0
    ]


def main() -> None:
    """Prints times, ratios and errors."""
    small, end = instance(2, 20), 300.0
    plain = lambda: in_plain_time(small.conditional, 20, end, ratio=0.1, method="RK45", tolerance=1e-7)[0]  # noqa: E731
    report(
        "K = 2, M = 20, t = 300: autograd in plain time, RK45",
        lambda: end_of(small, end),
        plain,
        rounds=5,
        atol=1e-5,
    )
    far = instance(10, 1000)
    other = lambda: lsoda_in_log_time(far, 1e12, 1e-8)  # noqa: E731
    report(
        "K = 10, M = 1000, S = 101, t = 1e12: LSODA in log time",
        lambda: end_of(far, 1e12),
        other,
        rounds=7,
        atol=1e-6,
    )
    error = float((end_of(far, 1e12) - end_of(far, 1e12, 1e-11)).abs().max())
    print(f"  error against tolerance 1e-11: {error:.1e} (target <= 1e-6)")
    huge = instance(10, 10**6)
    million = lambda: end_of(huge, 1e12)  # noqa: E731
    # a different vocabulary gives different logits; atol only excludes divergence
    report(
        "  the same, other: M = 1e6 (target 1.0x +- 0.2)",
        lambda: end_of(far, 1e12),
        million,
        rounds=7,
        atol=9.0,
    )
    for M in (10_000, 1_000_000):
        family = alike(10_000, vocab_size=M, weights=WEIGHTS, common_share=0.3)
        times = []
        for _ in range(5):
            started = time.process_time()
            flow = symmetric_exact_flow(family, torch.tensor([1e12], dtype=torch.float64), **RATES)
            times.append(time.process_time() - started)
        print(
            f"K = 10,000, M = {M:,}, all alike, t = 1e12: {statistics.median(times):.3f} s, error "
            f"{flow.error:.0e} (target <= 1 s)"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
