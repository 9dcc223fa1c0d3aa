"""Cost of a probe: training the digits ViT with every theory's metrics at every tenth step, against the same training without.

Blocks of steps with and without the probe take turns on one thread, so that a busy machine slows both; times are processor time (wall
time of an idle machine), and the overhead is the median over the rounds of (time with / time without) - 1.
The share of each metric is measured separately, on one probed forward pass.
Batches of 64 sequences, AdamW; target: at most 15 % of the training time.

Then a ViT and a CRATE on images of 32 x 32 pixels (17 tokens, d = 192, 4 layers, batch 128), the same target: a measurement of 256 other
images at every 100th step, and of the batch itself at every 10th: with all metrics, with ``max_samples=64``, and with the metrics of rates
by class, sparsity and entropy alone.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_theory import crate, data
from transformer_theory.core.metric import Metric
from transformer_theory.metrics import AttentionStatistics, FeatureRates, Geometry
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.probes import probe
from transformer_theory.theories import list_theories

BATCH, EVERY, STEPS, ROUNDS, TARGET = 64, 10, 20, 9, 0.15
OBSERVED = ("all metrics", "all metrics, max_samples=64", "rates, sparsity, entropy")


def all_metrics() -> dict[str, list[Metric]]:
    """The metrics of every theory, and those of the network."""
    groups = {theory.name: list(theory.in_networks.metrics()) for theory in list_theories() if theory.in_networks}
    return groups | {"network": [AttentionStatistics(), Geometry()]}


def seconds_of_training(model: nn.Module, optimiser, tokens: Tensor, labels: Tensor, metrics: Sequence[Metric] | None) -> float:
    """Time of STEPS steps; probed if there are metrics (an empty list: a probe without metrics)."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(len(labels), (BATCH,), generator=generator) for _ in range(STEPS)]
    started = time.process_time()
    with nullcontext() if metrics is None else probe(model, metrics, every=EVERY) as p:
        for batch in batches:
            if p is not None:
                p.labels = labels[batch]
            loss = functional.cross_entropy(model(tokens[batch]), labels[batch])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return time.process_time() - started


def seconds_of_a_pass(model: nn.Module, tokens: Tensor, labels: Tensor, metrics: Sequence[Metric] | None, repeats: int = 7) -> float:
    """Median time of one forward pass of a batch with metrics (None: without a probe)."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        with nullcontext() if metrics is None else probe(model, metrics) as p:
            if p is not None:
                p.labels = labels[:BATCH]
            model(tokens[:BATCH])
        times.append(time.process_time() - started)
    return statistics.median(times)


def image_networks() -> None:
    """Prints the cost of measurements in training on images: median times of a step and of a measurement, taken in turn."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(256, 3, 32, 32, generator=generator), torch.randint(10, (256,), generator=generator)
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 192, "depth": 4}
    makes = {"ViT": lambda: ViT.for_images(**sizes, heads=3), "CRATE": lambda: CRATE.for_images(**sizes, heads=3)}
    groups = all_metrics()
    everything = [metric for group in groups.values() for metric in group]
    subset = [FeatureRates(), crate.Sparsity(), AttentionStatistics()]
    for name, make in makes.items():
        model = build(make, generator)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(metrics: Sequence[Metric] | None = None, limit: int | None = None, model=model, optimiser=optimiser) -> float:
            """Seconds of a training step on 128 images, probed if there are metrics."""
            started = time.process_time()
            with nullcontext() if metrics is None else probe(model, metrics, max_samples=limit) as p:
                if p is not None:
                    p.labels = labels[:128]
                loss = functional.cross_entropy(model(images[:128]), labels[:128])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            return time.process_time() - started

        def measured(metrics: Sequence[Metric], model=model) -> float:
            """Seconds of a pass of 256 other images."""
            started = time.process_time()
            with probe(model, metrics) as p, torch.no_grad():
                p.labels = labels
                model(images)
            return time.process_time() - started

        step(everything)  # warm up
        measured(everything)
        times: dict[str, list[float]] = {way: [] for way in ("step", *OBSERVED, "measured", "empty")}
        for _ in range(5):
            times["step"].append(step())
            for way, (metrics, limit) in zip(OBSERVED, ((everything, None), (everything, 64), (subset, None))):
                times[way].append(step(metrics, limit))
            times["measured"].append(measured(everything))
            times["empty"].append(measured([]))
        took = {way: statistics.median(each) for way, each in times.items()}
        print(f"  {name} on images, 17 tokens, d = 192, 4 layers, 128 images per step: {1e3 * took['step']:.0f} ms per step")
        share = took["measured"] / took["step"] / 100
        print(f"    256 images measured every 100 steps: {1e3 * took['measured']:.0f} ms = {share:+.1%} of training")
        for way in OBSERVED:
            shares = sorted((a - b) / took["step"] / EVERY for a, b in zip(times[way], times["step"]))
            text = f"{statistics.median(shares):+.1%} of training, rounds {shares[0]:+.1%} .. {shares[-1]:+.1%}"
            print(f"    {way} every {EVERY} steps: {text}")
        for group, members in groups.items():
            for metric in members:
                cost = min(measured([metric]) for _ in range(3)) - took["empty"]
                print(f"      {group + '.' + type(metric).__name__:36s} {1e3 * cost:7.1f} ms per measurement")


def main() -> None:
    """Prints the overhead and the share of each metric."""
    image_networks()
    digits = data.load("digits")
    assert digits.labels is not None
    tokens, labels = digits.tokens.float(), digits.labels
    model = build(lambda: ViT.for_tokens(tokens.shape[1], tokens.shape[2], digits.classes), torch.Generator().manual_seed(0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    groups = all_metrics()
    everything = [metric for group in groups.values() for metric in group]
    ways = {"with all metrics": everything, "empty probe": [], "without": None}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:  # warm up
        seconds_of_training(model, optimiser, tokens, labels, ways[way])
    for _ in range(ROUNDS):
        for way, metrics in ways.items():
            times[way].append(seconds_of_training(model, optimiser, tokens, labels, metrics))
    step = statistics.median(times["without"]) / STEPS
    setting = f"digits ViT, {BATCH} sequences per step, every={EVERY}, threads: {torch.get_num_threads()}"
    print(f"  {setting}; {1e3 * step:.1f} ms per step without a probe")
    for way in ("with all metrics", "empty probe"):
        shares = sorted(a / b - 1 for a, b in zip(times[way], times["without"]))
        text = f" (target <= {TARGET:.0%})" if way != "empty probe" else ""
        print(f"  {way:18s} {statistics.median(shares):+7.1%} of the training time{text}, rounds {shares[0]:+.1%} .. {shares[-1]:+.1%}")
    bare, empty = (seconds_of_a_pass(model, tokens, labels, metrics) for metrics in (None, []))
    share = 1e3, 1 / (EVERY * step)
    print(f"  one pass: {'empty probe':16s} {share[0] * (empty - bare):7.1f} ms = {share[1] * (empty - bare):6.1%} of the training time")
    for name, group in groups.items():
        for metric in group:
            cost = seconds_of_a_pass(model, tokens, labels, [metric]) - empty
            label = f"{name}.{type(metric).__name__}"
            print(f"    {label:36s} {share[0] * cost:7.1f} ms = {share[1] * cost:6.1%}")


if __name__ == "__main__":
    main()
