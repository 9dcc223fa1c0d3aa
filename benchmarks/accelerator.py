"""The step of CRATE and the probe on an accelerator; without one, the benchmark says so and measures nothing.

* A training step (forward, backward, fused AdamW) of CRATE in our formulation against plain softmax attention
  and fused attention, both with three-product ISTA, as in :mod:`.crate_step`; batch 512 at 32 pixels, batch
  64 at 224 pixels. All have the same parameters and compute the same function.
* A training step of a ViT and a CRATE with the metrics of all theories at every tenth step, against training
  without a probe, as in :mod:`.probe_overhead`.
* Agreement: the largest relative difference between the metrics' values on the accelerator and on the CPU,
  with the same float32 network and images.

The versions take turns. A time is that of ten steps between two synchronisations; times are medians over the
rounds.
"""

import copy
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks._common import ratio, take_turns
from benchmarks.crate_step import SIZES, TINY, models
from benchmarks.probe_overhead import EVERY, IMAGES, Network, all_metrics
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.probes import probe

STEPS, ROUNDS = 10, 9


def steps(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, low: bool) -> Callable[[], None]:
    """Returns a function that makes ten training steps and waits for the device."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        for _ in range(STEPS):
            with torch.autocast("cuda", dtype=torch.bfloat16) if low else nullcontext():
                loss = functional.cross_entropy(model(images).float(), labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        torch.cuda.synchronize()

    return run


def crate_steps(name: str, sizes: dict[str, int], batch: int) -> None:
    """Prints the milliseconds per step and the ratios of the formulations of CRATE."""
    side, classes = sizes["image_size"], sizes["num_classes"]
    images, labels = (
        torch.randn(batch, 3, side, side, device="cuda"),
        torch.randint(classes, (batch,), device="cuda"),
    )
    versions = {
        f"{kind}, {precision}": steps(model.cuda(), images, labels, precision == "bf16")
        for precision in ("fp32", "bf16")
        for kind, model in models(sizes).items()
    }
    seconds = take_turns(versions, ROUNDS)
    print(f"  {name}, batch {batch}, milliseconds per step")
    for version, values in seconds.items():
        print(f"    {version:14} {1e3 * statistics.median(values) / STEPS:8.2f}")
    for plain in ("softmax", "SDPA"):
        for precision in ("fp32", "bf16"):
            factor = ratio(seconds, f"{plain}, {precision}", f"ours, {precision}")
            print(f"    {plain} / ours, {precision}: {factor:.2f}")


def probed_step(network: Network, model: nn.Module, optimiser: torch.optim.Optimizer, metrics: list) -> None:
    """Makes one training step under a probe with the given metrics, or without a probe if there are none."""
    with probe(model, metrics, draws=0) if metrics else nullcontext() as p:
        if p is not None:
            p.labels = network.labels.to(network.inputs.device)
        loss = functional.cross_entropy(model(network.inputs), network.labels.to(network.inputs.device))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    torch.cuda.synchronize()


def probe_cost(network: Network) -> None:
    """Prints the cost of the metrics of all theories at every tenth step, and that of each theory."""
    model = build(network.make, torch.Generator().manual_seed(0)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    groups = all_metrics()
    variants = {
        "without": [],
        "all metrics": [metric for group in groups.values() for metric in group],
    } | groups
    run = {
        name: partial(probed_step, network, model, optimiser, metrics) for name, metrics in variants.items()
    }
    medians = {name: statistics.median(values) for name, values in take_turns(run, ROUNDS).items()}
    step = medians.pop("without")
    print(
        f"  {network.name}: {1e3 * step:.1f} ms per step without a probe; share of training at every tenth "
        "step"
    )
    for name, median in medians.items():
        print(f"    {name:20} {1e3 * median:8.1f} ms = {(median - step) / step / EVERY:+7.1%}")


def agreement(network: Network) -> None:
    """Prints the largest relative differences between the values of all metrics on the accelerator and on the
    CPU.
    """
    model = build(network.make, torch.Generator().manual_seed(0)).eval()
    tables = []
    for device in ("cpu", "cuda"):
        metrics = [metric for group in all_metrics().values() for metric in group]
        there = copy.deepcopy(model).to(device)
        with torch.no_grad(), probe(there, metrics, draws=0) as p:
            p.labels = network.labels.to(device)
            there(network.inputs.to(device))
        tables.append({(row.theory, row.quantity, row.layer, row.head): row for row in p.result().table})
    rows = [(abs(row.value - other) / max(abs(row.value), 1e-3), key, row.value, other)
            for key, row in tables[0].items() if row.value is not None and (other := tables[1][key].value) is not None]  # fmt: skip  # noqa: E501
    different = [
        key for key, row in tables[0].items() if (row.value is None) != (tables[1][key].value is None)
    ]
    print(
        f"  {network.name}: {len(rows)} values; {len(different)} on one device only {different[:5]}; "
        "largest relative differences"
    )
    for difference, key, here, there in sorted(rows, key=lambda row: -row[0])[:6]:
        print(f"    {difference:.1e}  {key}: {here:.6g} on the CPU, {there:.6g} on the accelerator")


def main() -> None:
    """Prints all costs."""
    if not torch.cuda.is_available():
        print("  no accelerator on this machine: nothing measured")
        return
    print(f"  {torch.cuda.get_device_name()}, driver's CUDA {torch.version.cuda}")
    crate_steps("CRATE d = 192, 6 layers, 65 tokens", SIZES, 512)
    crate_steps("CRATE-T, 197 tokens", TINY, 64)
    images = torch.rand(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for name, kind in (("ViT", ViT), ("CRATE", CRATE)):
        network = Network(
            f"{name}, 32 x 32 pixels, 17 tokens, batch 128",
            lambda kind=kind: kind.for_images(**IMAGES),
            images,
            10,
        )
        agreement(network)
        network = Network(network.name, network.make, images.cuda(), 10)
        probe_cost(network)


if __name__ == "__main__":
    main()
