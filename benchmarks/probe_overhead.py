"""Cost of a probe: training of four networks with measurements at every tenth step, against training without
a probe.

As ``every=10`` does, the probe draws no nulls: they belong to checkpoints.

Steps with all theories' metrics, with the general statistics (:class:`AttentionStatistics`,
:class:`Geometry`), with an empty probe and without a probe take turns on one thread, so that a busy machine
slows all of them. Their times are processor times. A share is (median time of a measured step - median time
of a step) / 10 / (median time of a step). Targets: all metrics at most 15 %, the general statistics at most
3 %.

With ``background=True`` a second process computes all metrics. What the training process does for it is
measured in the same way. Trainings of ten steps with and without it take turns, and the median ratio of
neighbours, with its quartiles, tells how much longer the training takes; the target is 5 % with one free
core.

The cost of each metric is measured separately: a forward pass with only this metric, minus a forward pass
with an empty probe. A quantity that several metrics share (attention weights, entropies, subspaces) therefore
counts for each of them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transformer_theory.core.metric import Metric
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.probes import probe
from transformer_theory.probes.background import is_possible
from transformer_theory.theories import list_theories

EVERY, ROUNDS, PASSES = 10, 9, 3
GROUPS = 21  # groups of ten steps with a second process, and as many without
TARGETS = {"all metrics": 0.15, "general statistics": 0.03}
LONGER = 0.05  # largest share by which the training may take longer with a second process
IMAGES = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 192, "depth": 4, "heads": 3}


@dataclass(frozen=True)
class Network:
    """A network, one batch of its inputs, and the labels of the batch."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    classes: int

    @property
    def labels(self) -> Tensor:
        """Class of each sequence, ``[batch]``."""
        return torch.arange(len(self.inputs)) % self.classes


def networks() -> list[Network]:
    """Returns the four networks."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(200, (16, 48), generator=generator)
    images = torch.rand(128, 3, 32, 32, generator=generator)
    digits = torch.rand(64, 16, 4, generator=generator)
    return [
        Network("GPT-2 of transformers, 48 tokens, batch 16", gpt2, words, 4),
        Network("ViT, 32 x 32 pixels, 17 tokens, batch 128", lambda: ViT.for_images(**IMAGES), images, 10),
        Network(
            "CRATE, 32 x 32 pixels, 17 tokens, batch 128", lambda: CRATE.for_images(**IMAGES), images, 10
        ),
        Network("ViT of the digits, 17 tokens, batch 64", lambda: ViT.for_tokens(16, 4, 10), digits, 10),
    ]


def gpt2() -> nn.Module:
    """Returns a small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        "n_embd": 192,
        "n_layer": 4,
        "n_head": 4,
        "vocab_size": 200,
        "n_positions": 64,
    }
    settings |= {"bos_token_id": 0, "eos_token_id": 0, "attn_implementation": "sdpa"}
    return GPT2LMHeadModel(GPT2Config(**settings))


def all_metrics() -> dict[str, list[Metric]]:
    """Returns the metrics of every theory by its name, and the general statistics under ``network``."""
    groups = {
        theory.name: list(theory.in_networks.metrics()) for theory in list_theories() if theory.in_networks
    }
    return groups | {"network": [AttentionStatistics(), Geometry()]}


def seconds(
    network: Network,
    model: nn.Module,
    metrics: Sequence[Metric] | None,
    optimiser: torch.optim.Optimizer | None = None,
) -> float:
    """Returns the processor time of a forward pass, or of a training step if there is an optimiser; no probe
    if ``metrics`` is None.
    """
    started = time.process_time()
    with (
        nullcontext() if metrics is None else probe(model, metrics, draws=0) as p,
        torch.set_grad_enabled(optimiser is not None),
    ):
        if p is not None:
            p.labels = network.labels
        output = model(network.inputs)
    if optimiser is not None:
        loss = getattr(output, "logits", output).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return time.process_time() - started


def in_background(network: Network, metrics: Sequence[Metric]) -> tuple[float, list[float]]:
    """Returns what a second process for the metrics costs the training process at every tenth step, and how
    much longer the training takes, the three quartiles, as shares.
    """
    trainings = []
    for _ in range(2):
        model = build(network.make, torch.Generator().manual_seed(0))
        trainings.append((model, torch.optim.AdamW(model.parameters(), lr=1e-4)))
    measured, others, longer = [], [], []
    with probe(trainings[0][0], metrics, every=EVERY, background=True) as p:
        for group in range(1 + GROUPS):
            walls = []
            for model, optimiser in trainings:
                started = time.perf_counter()
                for step in range(EVERY):
                    p.labels = network.labels
                    spent = seconds(network, model, None, optimiser)
                    if group and model is p.model:  # the first group forks, and is not counted
                        (others if step else measured).append(spent)
                walls.append(time.perf_counter() - started)
            if group:
                longer.append(walls[0] / walls[1] - 1)
    step = statistics.median(others)
    return (statistics.median(measured) - step) / step / EVERY, statistics.quantiles(longer)


def measure(network: Network) -> None:
    """Prints the shares of one network and the cost of each metric."""
    model = build(network.make, torch.Generator().manual_seed(0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    groups = all_metrics()
    everything = [metric for group in groups.values() for metric in group]
    variants = {
        "without": None,
        "all metrics": everything,
        "general statistics": groups["network"],
        "empty probe": [],
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for metrics in variants.values():  # warm up
        seconds(network, model, metrics, optimiser)
    for _ in range(ROUNDS):
        for name, metrics in variants.items():
            times[name].append(seconds(network, model, metrics, optimiser))
    medians = {name: statistics.median(values) for name, values in times.items()}
    step = medians.pop("without")
    print(f"  {network.name}: {1e3 * step:.0f} ms per step")
    for name, median in medians.items():
        target = f" (target <= {TARGETS[name]:.0%})" if name in TARGETS else ""
        print(
            f"    {name + ' at every tenth step':38s} {(median - step) / step / EVERY:+6.1%} of "
            f"training{target}"
        )
    if is_possible():
        share, (low, longer, high) = in_background(network, everything)
        print(f"    {'all metrics in a second process':38s} {share:+6.1%} of the time of this process")
        print(
            f"    {'':38s} {longer:+6.1%} of the time of the training (target <= {LONGER:.0%}; half of the "
            f"groups {low:+.1%} to {high:+.1%})"
        )
    empty = min(seconds(network, model, []) for _ in range(PASSES))
    for group, members in groups.items():
        for metric in members:
            cost = min(seconds(network, model, [metric]) for _ in range(PASSES)) - empty
            print(
                f"      {group + '.' + type(metric).__name__:36s} {1e3 * cost:7.1f} ms = "
                f"{cost / step / EVERY:5.1%}"
            )


def main() -> None:
    """Prints the costs in all networks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for network in networks():
            measure(network)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
