"""The whole training loop: does the speed of CRATE's blocks survive data loading, augmentation, logging and
checkpoints?

Short runs of :func:`transformer_theory.training.image.loop.train` on generated 32 x 32 images take turns,
with our blocks and with the plain blocks, in float32 and bfloat16. They are compared with the bare step:
forward, backward, clipping and fused AdamW on one fixed batch. Times are processor times of one thread,
without the measurements and files of intervals.
"""

import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from benchmarks._common import ratio
from benchmarks.baselines.crate import SoftmaxAttention, ThreeProductIsta
from transformer_theory.data import Images, shapes
from transformer_theory.models.image_networks import Sizes, crate
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.recipes import image_recipe
from transformer_theory.training.image.settings import Settings
from transformer_theory.training.objectives import CrossEntropy

Precision = Literal["float32", "bfloat16"]
ROUNDS, STEPS, WARM = 3, 10, 3
SETTINGS = {
    "patches of 4 pixels, 6 layers": replace(image_recipe("crate"), patch_size=4, depth=6),
    "patches of 8 pixels, 4 layers": image_recipe("crate"),
}
LOW: dict[Precision, bool] = {"float32": False, "bfloat16": True}


@dataclass(frozen=True)
class Plain(CrossEntropy):
    """Cross-entropy of a CRATE with plain blocks."""

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """Returns a CRATE with plain blocks."""
        return crate(sizes, attention=SoftmaxAttention, sparsify=ThreeProductIsta)


def in_the_loop(
    data: tuple[Images, Images], settings: Settings, objective: CrossEntropy, precision: Precision
) -> float:
    """Returns the median processor seconds of a step inside the loop, without the first ``WARM`` steps."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train(
            data,
            replace(settings, epochs=1, interval=10**6),
            Path(folder) / "run",
            objective=objective,
            hardware=Hardware(device="cpu", precision=precision),
            callback=lambda moment: times.append(time.process_time()),
        )
    ends = times[1:][:STEPS]  # the first call comes before the first step
    return statistics.median(after - before for before, after in zip(ends[WARM:], ends[WARM + 1 :]))


def bare(settings: Settings, objective: CrossEntropy, precision: Precision) -> float:
    """Returns the median processor seconds of a step on one fixed batch, outside the loop."""
    network = objective.network("crate", settings.sizes(image_size=32, channels=3, num_classes=10))
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    images, labels = torch.rand(settings.batch_size, 3, 32, 32), torch.randint(10, (settings.batch_size,))
    times = []
    for _ in range(STEPS):
        started = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16) if LOW[precision] else nullcontext():
            loss = functional.cross_entropy(network(images).float(), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        times.append(time.process_time() - started)
    return statistics.median(times[WARM:])


def main() -> None:
    """Prints the milliseconds of a step in the loop, and ratios."""
    generator = torch.Generator().manual_seed(0)
    data = (shapes(round(128 * STEPS / 0.9) + 8, generator=generator), shapes(64, generator=generator))
    for title, settings in SETTINGS.items():
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for precision in LOW:
                for name, objective in (("ours", CrossEntropy()), ("plain", Plain())):
                    times.setdefault(f"{name}, {precision}, bare", []).append(
                        bare(settings, objective, precision)
                    )
                    times.setdefault(f"{name}, {precision}, loop", []).append(
                        in_the_loop(data, settings, objective, precision)
                    )

        print(f"CRATE d = 192, {title}, batch {settings.batch_size}")
        for precision in LOW:
            bare_gain = ratio(times, f"plain, {precision}, bare", f"ours, {precision}, bare")
            loop_gain = ratio(times, f"plain, {precision}, loop", f"ours, {precision}, loop")
            around = ratio(times, f"ours, {precision}, loop", f"ours, {precision}, bare") - 1
            step = 1e3 * statistics.median(times[f"ours, {precision}, loop"])
            print(
                f"  {precision:9} {step:6.1f} ms per step in the loop, {around:.1%} above the bare step;"
                f" plain blocks take {loop_gain:.2f}x in the loop, {bare_gain:.2f}x bare"
            )
        total = ratio(times, "plain, float32, loop", "ours, bfloat16, loop")
        print(f"  in the loop, ours in bfloat16 against plain in float32: {total:.2f}x")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
