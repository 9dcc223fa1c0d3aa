"""How many images of 32 pixels a CPU trains on per second: the step of the recipe ``minutes``, with larger
batches, in both precisions, and compiled.

A step is forward pass, backward pass and optimiser on one fixed batch. Augmentation, which is left out, takes
a few per cent (:mod:`.training_loop`). The variants of a network take turns. One line per network and
variant: images per second of processor time of one thread, and its ratio to the first variant.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from transformer_theory.models import build
from transformer_theory.models.image_networks import builder
from transformer_theory.training.image.recipes import image_recipe

ROUNDS, WARM = 5, 2
VARIANTS = {
    "bfloat16, batch 128": (128, True, False),
    "bfloat16, batch 512": (512, True, False),
    "float32, batch 128": (128, False, False),
    "bfloat16, batch 128, compiled": (128, True, True),
}


def stepper(name: str, batch: int, low: bool, compiled: bool) -> Callable[[], None]:
    """Returns a function that takes a step of a network of the recipe."""
    settings = image_recipe(name, name="minutes")
    sizes = settings.sizes(image_size=32, channels=3, num_classes=10)
    generator = torch.Generator().manual_seed(0)
    network: nn.Module = build(lambda: builder(name)(sizes), generator).train()
    optimiser = settings.new_optimiser(network)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    called = torch.compile(network) if compiled else network

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = functional.cross_entropy(called(images), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def main() -> None:
    """Times the steps."""
    for name in ("crate", "vit"):
        steps = {title: stepper(name, *variant) for title, variant in VARIANTS.items()}
        for step in steps.values():
            for _ in range(WARM):
                step()
        times: dict[str, list[float]] = {title: [] for title in steps}
        for _ in range(ROUNDS):
            for title, step in steps.items():
                began = time.process_time()
                step()
                times[title].append(time.process_time() - began)
        speeds = {title: VARIANTS[title][0] / statistics.median(spent) for title, spent in times.items()}
        first = next(iter(speeds.values()))
        for title, speed in speeds.items():
            print(f"{name:6} {title:30} {speed:6.0f} images a second of one thread, {speed / first:.2f} ×")


if __name__ == "__main__":
    main()
