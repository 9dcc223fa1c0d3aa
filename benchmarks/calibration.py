"""Calibration: on noise nothing is found. Twenty data sets of random tokens and random labels are compared as
real data are.

A p-value of scope "these data" belongs to a null that permutes labels or next tokens, so on noise at most 5 %
of them should be 5 % or less. P-values of one data set depend on each other, so the share is computed per
data set, and its interval is over data sets.
"""

import time

import numpy as np
import torch

from transformer_theory import compare
from transformer_theory.core import parallel
from transformer_theory.core.statistics import LEVEL, student_interval
from transformer_theory.core.table import Table
from transformer_theory.data import TokenData, digits
from transformer_theory.data.synthetic import noise_like

SETS = 20
NETWORKS = ("CRATE (released form)",)  # trained on the noise: with random labels
SHARE_LIMIT = 0.10


def noise(seed: int) -> TokenData:
    """Returns noise of the shape of the digits."""
    return noise_like(digits(), torch.Generator().manual_seed(seed))


def p_values(seed: int, *, networks: tuple[str, ...] | None, steps: int, seeds: int = 2) -> Table:
    """Compares all theories on one data set of noise and returns the summary rows of scope "these data" that
    have a p-value.
    """
    data = noise(1000 + seed)
    result = compare(data, seeds=seeds, steps=steps, networks=networks, claim_seeds=0)
    final = result.table.where(
        lambda row: row.kind in ("on data", "in network", "network") and row.scope == "these data"
    )
    last = {(row.model, row.seed): row.step or 0 for row in final.where(lambda row: row.step is not None)}
    at_end = final.where(lambda row: row.step is None or row.step == max(last.values()))
    return at_end.summary().where(lambda row: row.p is not None)


def shares(tables: list[Table]) -> list[float]:
    """Returns the share of p-values of at most 5 % in each data set."""
    return [float(np.mean([row.p <= LEVEL for row in table])) for table in tables if len(table)]


def main(sets: int = SETS, networks: tuple[str, ...] | None = NETWORKS, steps: int = 100) -> None:
    """Prints the share of p-values of at most 5 % over all data sets, its interval, and the shares by theory
    and kind.
    """
    started = time.perf_counter()
    with parallel.workers(2):
        tables = list(
            parallel.stream(
                p_values, ({"seed": seed, "networks": networks, "steps": steps} for seed in range(sets))
            )
        )
    by_set = shares(tables)
    mean, interval = float(np.mean(by_set)), student_interval(by_set)
    low, high = interval or (float("nan"), float("nan"))
    count = sum(len(table) for table in tables)
    print(f"  {sets} data sets of noise, {count} p-values of scope 'these data'")
    print(f"  share of p <= .05: {mean:.3f}, 95 % interval over data sets {low:.3f} to {high:.3f}")
    print(f"  limit {SHARE_LIMIT:.2f}: {'met' if mean <= SHARE_LIMIT else 'MISSED'}")
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in (row for table in tables for row in table):
        groups.setdefault((row.theory, row.kind, row.quantity), []).append(row.p)
    for (theory, kind, quantity), values in groups.items():
        print(
            f"  {theory:16s} {kind:11s} {quantity:60s} n = {len(values):4d}  p <= .05: "
            f"{np.mean(np.array(values) <= LEVEL):.3f}"
        )
    print(f"  two processes, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
