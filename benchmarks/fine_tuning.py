"""A step of fine-tuning CRATE-T at 32 x 32 pixels: ours against the official step. d = 384, 12 layers, 6
heads, patches of 4 (65 tokens).

Both start from the same file of weights in the released layout and get a new head for ten classes. The
official step is that of the released ``finetune.py`` on a CPU: plain softmax attention with one matrix, ISTA
in three products, cross-entropy, AdamW with torch's default loop and weight decay .01, no clipping, the loss
and the number of correct images read after each step. Ours is the step of ``train``: our blocks, fused AdamW,
clipping at norm 1, and one test that loss and gradient are finite. A third row has a frozen body
(``--layer-decay 0``).

All variants compute the same function; this is checked first, for logits and gradients in float64. They take
turns in every round, on one thread. Times are processor times; ratios are medians over the rounds.

``python -m benchmarks.fine_tuning`` uses our plain formulation of the official network; with the path of a
checkout's ``model/crate.py`` as the argument it runs that file in its place.
"""

import argparse
import copy
import importlib.util
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.__main__ import header
from benchmarks._common import ratio, take_turns, verdict
from benchmarks.baselines.crate import SoftmaxAttention, ThreeProductIsta
from transformer_theory import models
from transformer_theory.training.optimisers import freeze_body, optimiser

SIZES = {"image_size": 32, "patch_size": 4, "dim": 384, "depth": 12, "heads": 6}
CLASSES, BATCH, ROUNDS, TARGET = 10, 32, 7, 1.3
RATE, DECAY = 5e-5, 0.01  # of the published command for CIFAR-10


def given_weights(folder: Path) -> Path:
    """Writes weights of a network for 1,000 classes in the layout of a released checkpoint, and returns their
    file.
    """
    network = models.build(
        lambda: models.CRATE.for_images(**SIZES, num_classes=1000), torch.Generator().manual_seed(0)
    )
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in network.state_dict().items()}},
        folder / "crate.pth",
    )
    return folder / "crate.pth"


def official_network(path: Path | None) -> nn.Module:
    """Builds the official network for ten classes: from a file of the released code, or in our plain
    formulation.
    """
    if path is None:
        return models.CRATE.for_images(
            **SIZES, num_classes=CLASSES, attention=SoftmaxAttention, sparsify=ThreeProductIsta
        )
    specification = importlib.util.spec_from_file_location("official_crate", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.CRATE(**SIZES, num_classes=CLASSES, dim_head=SIZES["dim"] // SIZES["heads"])


def networks(weights: Path, official: Path | None) -> dict[str, nn.Module]:
    """Returns the networks of all variants, with the body of the file and one new head."""
    ours = models.with_head(
        models.CRATE.from_released(models.load_weights(weights), 32, 4), CLASSES, generator=torch.Generator()
    )
    theirs = official_network(official)
    # As the official script: all but the head, by name; then our new head, so that both compute the same
    # function.
    body = {name: value for name, value in models.load_weights(weights).items() if "mlp_head" not in name}
    theirs.load_state_dict(body, strict=False)
    theirs.load_state_dict(ours.state_dict())
    frozen = copy.deepcopy(ours)
    freeze_body(frozen)
    return {"ours": ours, "official": theirs, "frozen": frozen}


def disagreement(ours: nn.Module, other: nn.Module) -> float:
    """Returns the largest relative difference of logits and gradients, in float64."""
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for network in (ours, other):
        wide = copy.deepcopy(network).double()
        logits = wide(images)
        functional.cross_entropy(logits, torch.arange(4)).backward()
        gradients = {name: parameter.grad for name, parameter in wide.named_parameters()}
        results.append([logits.detach(), *(gradients[name] for name in sorted(gradients))])
    return max(float((a - b).norm() / b.norm()) for a, b in zip(*results))


def our_step(network: nn.Module, images: Tensor, targets: Tensor) -> Callable[[], None]:
    """Returns the step of ``train`` (:mod:`transformer_theory.training.fitting`)."""
    adamw = optimiser(network, learning_rate=RATE, weight_decay=DECAY)

    def step() -> None:
        loss = functional.cross_entropy(network(images), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        assert all(map(math.isfinite, torch.stack([loss.detach(), norm]).tolist()))
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def official_step(network: nn.Module, images: Tensor, targets: Tensor) -> Callable[[], None]:
    """Returns the step of the released script, in which autocast and the scaler do nothing on a CPU."""
    adamw = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    total = {"loss": 0.0, "correct": 0}

    def step() -> None:
        outputs = network(images)
        loss = functional.cross_entropy(outputs, targets)
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        total["loss"] += loss.item()
        total["correct"] += outputs.max(1)[1].eq(targets).sum().item()

    return step


def main(official: Path | None = None, rounds: int = ROUNDS, batch: int = BATCH) -> dict[str, list[float]]:
    """Prints and returns the processor seconds of a step in each round."""
    with tempfile.TemporaryDirectory() as folder:
        variants = networks(given_weights(Path(folder)), official)
    print(
        f"CRATE-T, 32 x 32 pixels in patches of 4, batch {batch}, float32, {torch.get_num_threads()} "
        f"thread, {rounds} rounds in turn"
    )
    print(f"official: {'the plain formulation' if official is None else official}")
    print(
        "largest difference of logits and gradients in float64: "
        f"{disagreement(variants['ours'], variants['official']):.0e}"
    )
    generator = torch.Generator().manual_seed(0)
    images, targets = (
        torch.randn(batch, 3, 32, 32, generator=generator),
        torch.randint(CLASSES, (batch,), generator=generator),
    )
    makers = {"ours": our_step, "official": official_step, "frozen": our_step}
    steps = {name: makers[name](network.train(), images, targets) for name, network in variants.items()}
    seconds = take_turns(steps, rounds, clock=time.process_time)
    for name, times in seconds.items():
        print(
            f"  {name:9} {1e3 * statistics.median(times):7.0f} ms per step, {min(times) * 1e3:.0f} to "
            f"{max(times) * 1e3:.0f}"
        )
    factors = [theirs / mine for theirs, mine in zip(seconds["official"], seconds["ours"])]
    value = ratio(seconds, "official")
    print(
        f"  official / ours: {value:.2f} ({min(factors):.2f} to {max(factors):.2f}), target {TARGET}: "
        f"{verdict(value >= TARGET)}"
    )
    print(f"  official / frozen body: {ratio(seconds, 'official', 'frozen'):.2f}")
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "official", type=Path, nargs="?", help="model/crate.py of a checkout of the released code"
    )
    torch.set_num_threads(1)
    print(header())
    main(parser.parse_args().official)
