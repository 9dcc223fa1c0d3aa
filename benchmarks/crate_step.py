"""A training step of CRATE: ours against the plain formulation (three equal matrices in attention, three
products in ISTA).

d = 192, 6 layers, 3 heads, 32 x 32 pixels in patches of 4 (65 tokens), batches of 128, forward + backward +
fused AdamW, one thread. All variants have the same parameters and compute the same function; this is checked
first. The variants take turns in every round. Times are processor times, and ratios are medians over the
rounds. Memory is the size of the storages that autograd saves for the backward pass, each counted once.
Further rows: a step of CRATE-T at 224 pixels, and the time of a generated token of a causal CRATE.

``python -m benchmarks.crate_step FIGURE.svg`` also plots the cost of a compression against the number of
tokens.
"""

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._common import command_line, take_turns, verdict, write
from benchmarks._rows import Row
from benchmarks.baselines.crate import FusedAttention, SoftmaxAttention, ThreeProductIsta
from transformer_theory.models import CRATE, CRATELanguageModel
from transformer_theory.models.crate import ExactAttention, ReleasedAttention, TokenStatisticsAttention

SIZES = {"image_size": 32, "patch_size": 4, "num_classes": 10, "dim": 192, "depth": 6, "heads": 3}
TINY = {"image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 384, "depth": 12, "heads": 6}
LANGUAGE: dict[str, Any] = {"vocabulary": 256, "context": 256, "dim": 128, "depth": 4, "heads": 4}
TINY_TARGET, TOKEN_TARGET = 1.4, 1.5  # ratio of a training step, milliseconds of a generated token
BATCH, ROUNDS = 128, 7
TARGETS = {"fp32": 1.4, "bf16": 1.5, "bf16 against plain fp32": 4.0, "memory": 0.45}
VARIANTS = {"ours": {}, "softmax": {"attention": SoftmaxAttention, "sparsify": ThreeProductIsta},
            "SDPA": {"attention": FusedAttention, "sparsify": ThreeProductIsta}}  # fmt: skip
# sizes of the figure; ENTRIES: tokens per batch
TOKENS, DIM, HEADS, ENTRIES = (64, 128, 256, 512, 1024, 2048, 4096), 192, 3, 8192


def models(sizes: dict[str, int] = SIZES) -> dict[str, CRATE]:
    """Returns one CRATE in each formulation, all with the same parameters."""
    torch.manual_seed(0)
    networks = {name: CRATE.for_images(**sizes, **blocks) for name, blocks in VARIANTS.items()}
    for model in networks.values():
        model.load_state_dict(networks["ours"].state_dict())
    return networks


def disagreement(networks: dict[str, CRATE]) -> float:
    """Returns the largest relative difference of logits and gradients between ours and the others, in
    float64.
    """
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(16, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.arange(16) % 10
    results = {}
    for name, model in networks.items():
        wide = copy.deepcopy(model).double()
        logits = wide(images)
        functional.cross_entropy(logits, labels).backward()
        results[name] = [logits.detach(), *(p.grad for p in wide.parameters() if p.grad is not None)]
    return max(
        float((a - b).norm() / b.norm()) for name in results for a, b in zip(results["ours"], results[name])
    )


def step(
    model: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor, labels: Tensor, low: bool
) -> None:
    """Makes one training step; if ``low``, products are computed in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16) if low else nullcontext():
        loss = functional.cross_entropy(model(images).float(), labels)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def saved_memory(model: nn.Module, images: Tensor, low: bool) -> float:
    """Returns the MiB that autograd saves for the backward pass of images [batch, 3, h, w], without the
    parameters.
    """
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, tuple[int, Tensor]] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes(), saved
        return saved

    precision = torch.autocast("cpu", dtype=torch.bfloat16) if low else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved), precision:
        logits = model(images)  # noqa: F841 while the logits exist, no storage is freed and reused
    return sum(size for size, _ in storages.values()) / 2**20


def run(rounds: int = ROUNDS, batch: int = BATCH, sizes: dict[str, int] = SIZES) -> dict[str, list[float]]:
    """Returns the processor seconds of a step in each round: ``run()["ours, bf16"]``."""
    generator, side = torch.Generator().manual_seed(0), sizes["image_size"]
    images = torch.randn(batch, 3, side, side, generator=generator)
    labels = torch.randint(sizes["num_classes"], (batch,), generator=generator)
    steps: dict[str, Callable[[], None]] = {}
    for low, precision in ((False, "fp32"), (True, "bf16")):
        for name, model in models(sizes).items():
            optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            steps[f"{name}, {precision}"] = partial(step, model, optimiser, images, labels, low)
    return take_turns(steps, rounds, clock=time.process_time)


def forward_backward(block: nn.Module, stream: Tensor) -> None:
    """Computes the gradients of one block with respect to its tokens [batch, n, d] and its parameters."""
    block(stream.clone().requires_grad_()).sum().backward()


def cost(tokens: tuple[int, ...] = TOKENS, rounds: int = 3) -> dict[str, list[float]]:
    """Returns the processor seconds per token of the forward and backward pass of each compression, one per
    number of tokens.
    """
    torch.manual_seed(0)
    sizes = {"heads": HEADS, "head_dim": DIM // HEADS}
    blocks = {
        "exact": ExactAttention(DIM, **sizes),
        "softmax": ReleasedAttention(DIM, **sizes),
        "token statistics": TokenStatisticsAttention(DIM, **sizes),
    }
    costs: dict[str, list[float]] = {name: [] for name in blocks}
    for n in tokens:
        stream = functional.layer_norm(torch.randn(max(1, ENTRIES // n), n, DIM), (DIM,))
        passes = {name: partial(forward_backward, block, stream) for name, block in blocks.items()}
        for name, seconds in take_turns(passes, rounds, clock=time.process_time).items():
            costs[name].append(statistics.median(seconds) / (stream.shape[0] * n))
    return costs


def generation(rounds: int = 3) -> dict[str, list[float]]:
    """Returns the processor seconds per token that a causal CRATE generates, with and without stored tokens,
    in each round.
    """
    torch.manual_seed(0)
    model, whole = (CRATELanguageModel(**LANGUAGE).eval() for _ in range(2))
    whole.load_state_dict(model.state_dict())
    # a network with hooks passes the whole sequence for every token
    whole.transformer.register_forward_hook(lambda *_: None)
    prompt, count = torch.zeros(1, 8, dtype=torch.long), LANGUAGE["context"] - 8
    versions = {
        name: partial(network.generate, prompt, count, generator=torch.Generator())
        for name, network in (("stored", model), ("whole", whole))
    }
    seconds = take_turns(versions, rounds, clock=time.process_time)
    return {name: [value / count for value in values] for name, values in seconds.items()}


def plot(costs: dict[str, list[float]], caption: str):
    """Draws milliseconds against tokens per sequence on logarithmic axes, with proportional growth as a
    dotted line.
    """
    from transformer_theory.core.plotting import COLOURS, axes, colour, style

    tints = dict(zip(costs, (colour("crate"), colour("attention_svm"), colour("rate_reduction"))))
    with style():
        figure, (ax,) = axes(width=5.0)
        for name, seconds in costs.items():
            ax.loglog(
                TOKENS,
                [1e3 * n * s for n, s in zip(TOKENS, seconds)],
                marker="o",
                markersize=3,
                color=tints[name],
                label=name,
            )
        first = 1e3 * TOKENS[0] * min(seconds[0] for seconds in costs.values())
        ax.plot(
            (TOKENS[0], TOKENS[-1]),
            (first, first * TOKENS[-1] / TOKENS[0]),
            ":",
            color=COLOURS["null"],
            linewidth=0.9,
            label="proportional",
        )
        ax.set_xticks(TOKENS, [str(n) for n in TOKENS])
        ax.minorticks_off()
        ax.set(xlabel="tokens per sequence", ylabel="milliseconds, forward + backward")
        ax.set_title("Cost of a compression")
        ax.legend(loc="upper left", fontsize=7)
        figure.supxlabel(caption, fontsize=6.5, color=COLOURS["raw"])
    return figure


def row_of(
    seconds: dict[str, list[float]],
    mine: str,
    plain: str,
    theirs: str,
    difference: float,
    size: str,
    target: float,
) -> Row:
    """Returns the row of ours in one precision against plain blocks in the same or another."""
    attention = {"softmax": "softmax attention", "SDPA": "torch's fused attention"}[plain]
    return Row(
        f"CRATE training step, {mine}",
        f"{attention} and three-product ISTA, {theirs}",
        size,
        seconds[f"ours, {mine}"],
        seconds[f"{plain}, {theirs}"],
        difference,
        "logits and gradients in float64",
        target,
    )


def main(path: Path | None = None) -> list[Row]:
    """Prints memory and costs, draws the costs if a path is given, and returns the rows of the steps."""
    networks = models()
    difference, seconds = disagreement(networks), run()
    sizes = f"d = 192, 6 layers, 65 tokens, batch {BATCH}"
    rows = [
        row_of(seconds, mine, plain, theirs, difference, sizes, TARGETS[target])
        for plain in ("softmax", "SDPA")
        for target, mine, theirs in (
            ("fp32", "fp32", "fp32"),
            ("bf16", "bf16", "bf16"),
            ("bf16 against plain fp32", "bf16", "fp32"),
        )
    ]
    images = torch.randn(32, 3, 32, 32)
    memory = {
        f"{name}, {word}": saved_memory(model, images, word == "bf16")
        for name, model in networks.items()
        for word in ("fp32", "bf16")
    }
    for name, size in memory.items():
        print(f"  {name:14} {size:6.1f} MiB saved at batch 32")
    for plain in ("softmax", "SDPA"):
        share = memory["ours, bf16"] / memory[f"{plain}, fp32"]
        print(f"  memory in bf16 against {plain} in fp32: {share:.2f} (target {TARGETS['memory']}: "
              f"{verdict(share <= TARGETS['memory'])})")  # fmt: skip
    large = run(rounds=3, batch=8, sizes=TINY)
    rows += [
        row_of(large, word, "softmax", word, difference, "224 x 224 pixels, CRATE-T, batch 8", TINY_TARGET)
        for word in ("fp32", "bf16")
    ]
    tokens = {name: 1e3 * statistics.median(values) for name, values in generation().items()}
    print(
        f"  a generated token: {tokens['stored']:.2f} ms, {tokens['whole']:.2f} ms without stored tokens "
        f"(target {TOKEN_TARGET} ms)"
    )
    costs = cost()
    print("  forward + backward of one compression, microseconds per token at 64 ... 4096 tokens")
    for name, times in costs.items():
        print(f"    {name:17}" + " ".join(f"{1e6 * s:7.1f}" for s in times))
    if path is not None:
        setting = f"d = {DIM}, {HEADS} heads, float32 · processor time of one thread, medians"
        write(path, lambda caption: plot(costs, caption), setting)
    return rows


if __name__ == "__main__":
    command_line(main, __doc__)
