"""The MCR² training loss, forward and backward: ours against the k x m x m membership matrices of the
formula, and a loop over classes.

At m = 1,000, k = 100 the matrices take 0.4 GB, and the whole formula is timed. At m = 10,000, k = 10 they
would take 4 GB, so the loop is the baseline. Memory is reported in two ways: the size of the tensors that
autograd saves between the passes, without the features, and the growth of the peak resident size of a fresh
process over both passes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._rows import Row, table
from benchmarks.baselines.mcr2_loss import masked_loop, textbook
from benchmarks.coding_rate import FORMULA, LOOP, P, compare, instance, peak_memory
from transformer_theory.theories.rate_reduction.loss import MaximalCodingRateReduction

EPS = 0.5**0.5


def functions_of(features: Tensor, labels: Tensor, k: int) -> dict[str, Callable[[], Tensor]]:
    """Returns three versions of the loss of features [m, p] with labels [m] of k classes."""
    loss = MaximalCodingRateReduction(eps=EPS)
    return {
        "ours": lambda: loss(features, labels).loss,
        LOOP: lambda: masked_loop(features, labels, k, EPS),
        FORMULA: lambda: textbook(features, labels, k, EPS),
    }


def saved(function: Callable[[], Tensor], features: Tensor) -> float:
    """Returns the MiB of distinct storages that autograd saves for the backward pass, without the storage of
    the features.
    """
    sizes: dict[int, int] = {}  # bytes of each storage, by its address

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != features.untyped_storage().data_ptr():
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = function()  # while the loss exists, no saved storage is freed, so every address is distinct
        total = sum(sizes.values()) / 2**20
    del value
    return total


def measure(m: int, k: int, targets: dict[str, float], rounds: int) -> list[Row]:
    """Prints the memory of our version and of each version with a target, and returns their rows.

    Args:
        m: number of samples.
        k: number of classes.
        targets: smallest accepted ratio to our time, by version.
        rounds: number of timed rounds.
    """
    features, labels = instance(m, k)
    functions = functions_of(features, labels, k)
    functions = {name: function for name, function in functions.items() if name == "ours" or name in targets}
    print(f"MCR² loss, forward + backward, float32, p = {P}, m = {m}, k = {k}")
    for name, function in functions.items():
        peak = peak_memory(name, m, k, subject="mcr2_loss")
        print(f"  {name:37} saved for backward {saved(function, features):7.2f} MiB  peak +{peak:.1f} MiB")
    sizes = {"one gradient": m * P, "m p + k p² numbers": m * P + k * P**2, "the k m² matrices": k * m**2}
    print("  computed: " + ", ".join(f"{name} {4 * count / 2**20:.2f} MiB" for name, count in sizes.items()))
    return compare("MCR² loss", functions, features, f"m = {m:,}, k = {k}", rounds, targets)


def main() -> list[Row]:
    """Returns the rows of both sizes."""
    return [
        *measure(1000, 100, {LOOP: 10, FORMULA: 100}, rounds=5),
        *measure(10_000, 10, {LOOP: 2}, rounds=9),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(main()))
