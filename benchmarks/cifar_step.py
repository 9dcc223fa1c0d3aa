"""How many images of 32 pixels a CPU trains on per second: the step of the recipe ``minutes``, with larger
batches, in both precisions, and compiled.

A step is forward pass, backward pass, clipping and optimiser on one fixed batch. Augmentation, which is left
out, takes a few per cent (:mod:`.training_loop`). The variants of a network take turns. One line per network
and variant: images per second of processor time of one thread, its ratio to the first variant, and the
operations of the step divided by its time, as a share of the rate of one large product in the same precision.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._common import take_turns
from transformer_theory.core.allocator import keep_freed_memory
from transformer_theory.models import build
from transformer_theory.models.image_networks import builder
from transformer_theory.training.image.recipes import image_recipe

ROUNDS, SIDE, PRODUCTS = 9, 1024, 3
VARIANTS = {
    "bfloat16, batch 128": (128, True, False),
    "bfloat16, batch 512": (512, True, False),
    "float32, batch 128": (128, False, False),
    "bfloat16, batch 128, compiled": (128, True, True),
}


def stepper(name: str, batch: int, low: bool, compiled: bool) -> tuple[Callable[[], None], float]:
    """Returns a function that takes a step of a network of the recipe, and the operations of its forward and
    backward pass.

    Operations are those of products and convolutions, two per multiplication and addition; the products of
    the optimiser are left out.
    """
    settings = image_recipe(name, name="minutes")
    sizes = settings.sizes(image_size=32, channels=3, num_classes=10)
    generator = torch.Generator().manual_seed(0)
    network: nn.Module = build(lambda: builder(name)(sizes), generator).train()
    optimiser = settings.new_optimiser(network)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)

    def gradient(called: Callable[[Tensor], Tensor]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = functional.cross_entropy(called(images), labels)
        loss.backward()

    with FlopCounterMode(display=False) as counted:
        gradient(network)
    called = torch.compile(network) if compiled else network

    def step() -> None:
        optimiser.zero_grad()
        gradient(called)
        nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
        optimiser.step()

    return step, counted.get_total_flops()


def product(low: bool) -> Callable[[], object]:
    """Returns a function that multiplies two square matrices PRODUCTS times."""
    left, right = torch.randn(2, SIDE, SIDE, dtype=torch.bfloat16 if low else torch.float32)
    return lambda: [left @ right for _ in range(PRODUCTS)]


def main() -> None:
    """Times the steps."""
    keep_freed_memory()  # as the command ``train`` does
    for name in ("crate", "vit"):
        made = {title: stepper(name, *variant) for title, variant in VARIANTS.items()}
        steps = {title: step for title, (step, _) in made.items()}
        products = {low: f"product, {low}" for low in (True, False)}
        seconds = take_turns(
            steps | {title: product(low) for low, title in products.items()}, ROUNDS, clock=time.process_time
        )
        first = next(iter(steps))
        for title, (batch, low, _) in VARIANTS.items():
            images = batch / statistics.median(seconds[title])
            shares = [
                made[title][1] / spent / (PRODUCTS * 2 * SIDE**3 / reference)
                for spent, reference in zip(seconds[title], seconds[products[low]])
            ]
            faster = images * statistics.median(seconds[first]) / VARIANTS[first][0]
            share, low_share, high_share = (
                100 * value for value in (statistics.median(shares), min(shares), max(shares))
            )
            print(
                f"{name:6} {title:30} {images:6.0f} images a second of one thread, {faster:.2f} ×; "
                f"{share:.0f} % ({low_share:.0f} to {high_share:.0f}) of the rate of a product of {SIDE} x "
                f"{SIDE}"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
