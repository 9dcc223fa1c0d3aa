"""Augmentation of CIFAR-sized images: ours on whole batches of bytes against Pillow image by image, and a
crop pixel by pixel.

All versions take and return tensors of bytes, as a loader does, and take turns on one thread with the same
seed. Versions that draw the same windows must agree. Times are medians over the rounds; ratios are medians of
the rounds' ratios.
"""

import statistics
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks._common import ratio, take_turns, verdict
from benchmarks.baselines.augment import crop_and_flip, crop_by_pixels
from transformer_theory.training.augment import Augmentation, crop, flip

ROUNDS, PADDING, CLASSES = 31, 4, 10


def seconds_of(functions: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Returns the seconds of each function in each round. All functions of a round have the same seed, so
    they draw the same crops.
    """
    return take_turns(functions, ROUNDS, prepare=torch.manual_seed)


def against_others(pixels: Tensor) -> None:
    """Compares crop and flip with Pillow image by image, and crop with an index per pixel; ``pixels`` are
    bytes [n, 3, 32, 32].
    """
    floats = pixels / 255
    torch.manual_seed(0)
    ours = flip(crop(pixels, padding=PADDING))
    torch.manual_seed(0)
    theirs = crop_and_flip(pixels, padding=PADDING)
    assert torch.equal(ours, theirs), "crops and flips differ from Pillow's"
    for title, functions, target in (
        (
            "crop and flip, bytes",
            {
                "ours": lambda: flip(crop(pixels, padding=PADDING)),
                "Pillow": lambda: crop_and_flip(pixels, padding=PADDING),
            },
            5.0,
        ),
        (
            "crop, bytes",
            {
                "ours": lambda: crop(pixels, padding=PADDING),
                "by pixels": lambda: crop_by_pixels(pixels, padding=PADDING),
            },
            5.0,
        ),
        (
            "crop, float32",
            {
                "ours": lambda: crop(floats, padding=PADDING),
                "by pixels": lambda: crop_by_pixels(floats, padding=PADDING),
            },
            2.0,
        ),
    ):
        times = seconds_of(functions)
        baseline = next(name for name in functions if name != "ours")
        factor = ratio(times, baseline)
        print(f"{title}, {len(pixels)} images of 32 x 32, {ROUNDS} rounds")
        print(f"  ours       {1e3 * statistics.median(times['ours']):7.2f} ms")
        line = f"  {baseline:10} {1e3 * statistics.median(times[baseline]):7.2f} ms   {factor:.1f}x slower"
        print(f"{line}; target >= {target:g}x ({verdict(factor >= target)})")


def whole_step(pixels: Tensor, labels: Tensor) -> None:
    """Times the whole augmentation of a training step, from bytes [n, 3, 32, 32] to float images and soft
    targets.
    """
    print(f"a step's augmentation, {len(pixels)} images of 32 x 32 from bytes to float32, {ROUNDS} rounds")
    basic = {"crop": PADDING, "flip": 0.5}
    cases = {
        "crop and flip": (Augmentation(**basic), 1.0),
        "and cutout": (Augmentation(**basic, cutout=8), 1.5),
        "and mixup or cutmix": (Augmentation(**basic, mixup=0.8, cutmix=1.0), 2.0),
        "and RandAugment (2, 9)": (Augmentation(**basic, operations=2), 8.0),
    }
    times = seconds_of(
        {
            name: lambda augment=augment: augment(pixels, labels, CLASSES)
            for name, (augment, _) in cases.items()
        }
    )
    for name, (_, target) in cases.items():
        milliseconds = 1e3 * statistics.median(times[name])
        print(
            f"  {name:23} {milliseconds:6.2f} ms; target < {target:g} ms ({verdict(milliseconds < target)})"
        )


def main() -> None:
    """Prints times, ratios and whether the targets are met."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (512, 3, 32, 32), generator=generator, dtype=torch.uint8)
    with torch.random.fork_rng(devices=[]):
        against_others(pixels)
        whole_step(pixels[:128], torch.arange(128) % CLASSES)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
