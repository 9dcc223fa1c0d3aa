"""What a probe costs: training the digits ViT with every theory's reducers at every tenth step, against the same training without.

Blocks of steps with and without the probe take turns on one thread, so that a busy machine slows both; times are processor time (wall
time of an idle machine), and the overhead is the median over the rounds of (time with / time without) - 1.
The split is measured apart: one reducer at a time, on one observed forward pass.
Batches of 64 sequences, AdamW; target: at most 15 % of the training time.

Then a ViT and a CRATE on images of 32 x 32 pixels (17 tokens, d = 192, 4 layers, batch 128), the same target: a reading of 256 other
images at every 100th step, and of the batch itself at every 10th: by all reducers, with ``most=64``, and by the reducers of rates by class,
sparsity and entropy alone.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_theory import crate, data
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.probes import AttentionStatistics, FeatureRates, Geometry, Reducer, probe
from transformer_theory.theories import theories

BATCH, EVERY, STEPS, ROUNDS, TARGET = 64, 10, 20, 9, 0.15
OBSERVED = ("all reducers", "all reducers, most=64", "rates, sparsity, entropy")


def all_reducers() -> dict[str, list[Reducer]]:
    """The order parameters of every theory, and those of the network."""
    return {theory.name: list(theory.reducers()) for theory in theories()} | {"network": [AttentionStatistics(), Geometry()]}


def seconds_of_training(model: nn.Module, optimiser, tokens: Tensor, labels: Tensor, reducers: Sequence[Reducer] | None) -> float:
    """Time of STEPS steps; probed if there are reducers (an empty list: only seen)."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(len(labels), (BATCH,), generator=generator) for _ in range(STEPS)]
    started = time.process_time()
    with nullcontext() if reducers is None else probe(model, reducers, every=EVERY) as p:
        for batch in batches:
            if p is not None:
                p.labels = labels[batch]
            loss = functional.cross_entropy(model(tokens[batch]), labels[batch])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return time.process_time() - started


def seconds_of_a_reading(model: nn.Module, tokens: Tensor, labels: Tensor, reducers: Sequence[Reducer] | None, repeats: int = 7) -> float:
    """Median time of one forward pass of a batch, read by the reducers (None: without a probe)."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        with nullcontext() if reducers is None else probe(model, reducers) as p:
            if p is not None:
                p.labels = labels[:BATCH]
            model(tokens[:BATCH])
        times.append(time.process_time() - started)
    return statistics.median(times)


def image_networks() -> None:
    """Prints what readings cost in training on images: median times of a step and of a reading, taken in turn."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(256, 3, 32, 32, generator=generator), torch.randint(10, (256,), generator=generator)
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 192, "depth": 4}
    makes = {"ViT": lambda: ViT.for_images(**sizes, heads=3), "CRATE": lambda: CRATE.for_images(**sizes, heads=3)}
    groups = all_reducers()
    everything = [reducer for group in groups.values() for reducer in group]
    few = [FeatureRates(), crate.Sparsity(), AttentionStatistics()]
    for name, make in makes.items():
        model = build(make, generator)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(reducers: Sequence[Reducer] | None = None, most: int | None = None, model=model, optimiser=optimiser) -> float:
            """Seconds of a training step on 128 images, observed if there are reducers."""
            started = time.process_time()
            with nullcontext() if reducers is None else probe(model, reducers, most=most) as p:
                if p is not None:
                    p.labels = labels[:128]
                loss = functional.cross_entropy(model(images[:128]), labels[:128])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            return time.process_time() - started

        def reading(reducers: Sequence[Reducer], model=model) -> float:
            """Seconds of a pass of 256 other images."""
            started = time.process_time()
            with probe(model, reducers) as p, torch.no_grad():
                p.labels = labels
                model(images)
            return time.process_time() - started

        step(everything), reading(everything)  # warm up
        times: dict[str, list[float]] = {way: [] for way in ("step", *OBSERVED, "reading", "seeing")}
        for _ in range(5):
            times["step"].append(step())
            for way, given in zip(OBSERVED, ((everything,), (everything, 64), (few,))):
                times[way].append(step(*given))
            times["reading"].append(reading(everything))
            times["seeing"].append(reading([]))
        took = {way: statistics.median(found) for way, found in times.items()}
        print(f"  {name} on images, 17 tokens, d = 192, 4 layers, 128 images a step: {1e3 * took['step']:.0f} ms a step")
        print(
            f"    256 images read every 100 steps: {1e3 * took['reading']:.0f} ms = {took['reading'] / took['step'] / 100:+.1%} of training"
        )
        for way in OBSERVED:
            shares = sorted((a - b) / took["step"] / EVERY for a, b in zip(times[way], times["step"]))
            said = f"{statistics.median(shares):+.1%} of training, rounds {shares[0]:+.1%} .. {shares[-1]:+.1%}"
            print(f"    {way} every {EVERY} steps: {said}")
        for group, own in groups.items():
            for reducer in own:
                cost = min(reading([reducer]) for _ in range(3)) - took["seeing"]
                print(f"      {group + '.' + type(reducer).__name__:36s} {1e3 * cost:7.1f} ms a reading")


def main() -> None:
    """Prints the overhead and where it comes from."""
    image_networks()
    digits = data.load("digits")
    assert digits.labels is not None
    tokens, labels = digits.tokens.float(), digits.labels
    model = build(lambda: ViT.for_tokens(tokens.shape[1], tokens.shape[2], digits.classes), torch.Generator().manual_seed(0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    groups = all_reducers()
    everything = [reducer for group in groups.values() for reducer in group]
    ways = {"with all reducers": everything, "seeing only": [], "without": None}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:  # warm up
        seconds_of_training(model, optimiser, tokens, labels, ways[way])
    for _ in range(ROUNDS):
        for way, reducers in ways.items():
            times[way].append(seconds_of_training(model, optimiser, tokens, labels, reducers))
    step = statistics.median(times["without"]) / STEPS
    setting = f"digits ViT, {BATCH} sequences a step, every={EVERY}, threads: {torch.get_num_threads()}"
    print(f"  {setting}; {1e3 * step:.1f} ms a step without a probe")
    for way in ("with all reducers", "seeing only"):
        shares = sorted(a / b - 1 for a, b in zip(times[way], times["without"]))
        said = f" (target <= {TARGET:.0%})" if way != "seeing only" else ""
        print(f"  {way:18s} {statistics.median(shares):+7.1%} of the training time{said}, rounds {shares[0]:+.1%} .. {shares[-1]:+.1%}")
    bare, seen = (seconds_of_a_reading(model, tokens, labels, reducers) for reducers in (None, []))
    share = 1e3, 1 / (EVERY * step)
    print(f"  one reading: {'seeing':16s} {share[0] * (seen - bare):7.1f} ms = {share[1] * (seen - bare):6.1%} of the training time")
    for name, group in groups.items():
        for reducer in group:
            cost = seconds_of_a_reading(model, tokens, labels, [reducer]) - seen
            label = f"{name}.{type(reducer).__name__}"
            print(f"    {label:36s} {share[0] * cost:7.1f} ms = {share[1] * cost:6.1%}")


if __name__ == "__main__":
    main()
