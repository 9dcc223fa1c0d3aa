"""What a probe costs: training the digits ViT with every theory's reducers at every tenth step, against the same training without.

Blocks of steps with and without the probe take turns on one thread, so that a busy machine slows both; times are processor time (wall
time of an idle machine), and the overhead is the median over the rounds of (time with / time without) - 1.
The split is measured apart: one reducer at a time, on one observed forward pass.
Batches of 64 sequences, AdamW; target: at most 15 % of the training time.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_theory import data
from transformer_theory.models import ViT, build
from transformer_theory.probes import AttentionStatistics, Geometry, Reducer, probe
from transformer_theory.theories import theories

BATCH, EVERY, STEPS, ROUNDS, TARGET = 64, 10, 20, 9, 0.15


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


def main() -> None:
    """Prints the overhead and where it comes from."""
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
