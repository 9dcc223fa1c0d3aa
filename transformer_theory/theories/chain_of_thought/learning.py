r"""A small decoder, trained with the chain, without it, or with empty symbols in its place.

The loss is the mean cross-entropy of the symbols after the question; the question is masked. Evaluation is
*free-running*: the network gets the question and continues with its own most likely symbols until the end,
and the answer is right if all its symbols are. With teacher forcing a wrong step would be corrected for it.
Compute is counted in symbols that the network reads in training, padding included.

Source: :cite:t:`feng2023towards`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from ...core.validation import integers, positive
from ...models.decoder import Decoder, PreNorm
from ...probes.evaluation import evaluation, forward, logits_of
from ...training.fitting import at_steps, fit, permuted
from ...training.tasks import StreamTask
from .tasks import ANSWER, END, FILLER, THEN, ChainTask, Sample, Split, Symbols, encode, vocabulary

Mode = Literal["chain", "direct", "filler"]
MODES: tuple[Mode, ...] = ("chain", "direct", "filler")
IGNORED = -1  # target of a masked place


def check_mode(mode: str) -> None:
    """Raises ValueError for an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}; take one of these")


def prompt(sample: Sample, mode: Mode) -> Symbols:
    """Returns the question and what follows it up to the first symbol that the network has to find."""
    if mode == "chain":
        return (*sample.question, THEN)
    filler = (THEN, *(FILLER for _ in sample.chain)) if mode == "filler" else ()
    return (*sample.question, *filler, ANSWER)


def continuation(sample: Sample, mode: Mode) -> Symbols:
    """Returns what the network has to find after the prompt."""
    return (*sample.chain, ANSWER, *sample.answer, END) if mode == "chain" else (*sample.answer, END)


def rows(
    task: ChainTask, samples: Sequence[Sample], mode: Mode
) -> tuple[Int[Tensor, "n seq"], Int[Tensor, "n seq"]]:
    """Returns ids and targets ``[n, seq]``: the next id, or -1 where the loss is masked."""
    ids = [(encode(task, prompt(each, mode)), encode(task, continuation(each, mode))) for each in samples]
    length = max(len(first) + len(second) for first, second in ids) - 1
    inputs, targets = torch.zeros(len(ids), length, dtype=torch.long), torch.full((len(ids), length), IGNORED)
    for row, (first, second) in enumerate(ids):
        whole = torch.tensor(first + second)
        inputs[row, : len(whole) - 1] = whole[:-1]
        targets[row, len(first) - 1 : len(whole) - 1] = whole[len(first) :]
    return inputs, targets


def last_logits(model: nn.Module, ids: Int[Tensor, "n seq"]) -> Float[Tensor, "n vocabulary"]:
    """Returns the logits at the last place, on the CPU.

    Raises:
        ValueError: the model returns no logits for each place, or NaN.
    """
    logits = logits_of(forward(model, ids))
    if logits is None or logits.ndim != 3 or logits.shape[1] != ids.shape[1]:
        shape = "none" if logits is None else list(logits.shape)
        raise ValueError(
            f"the model must return logits [n, seq, vocabulary] for ids {list(ids.shape)}, got {shape}; "
            "pass a causal one"
        )
    if bool((last := logits[:, -1].cpu()).isnan().any()):
        raise ValueError("the model must return numbers as logits, got NaN; check its weights")
    return last


def generate(
    model: nn.Module, prompts: Int[Tensor, "n seq"], *, limit: int, end: int, dtype: torch.dtype | None = None
) -> Int[Tensor, "n found"]:
    """Continues prompts of one length with the most likely ids, up to ``limit`` ids or until every row has
    ended.

    Args:
        model: maps ids ``[n, seq]`` to logits ``[n, seq, vocabulary]``; a model of ``transformers`` or any
            other.
        prompts: ids.
        limit: largest number of ids to generate.
        end: id that ends a row; all later ids of the row are ``end`` too.
        dtype: precision of the network (autocast); None: its own.
    Returns:
        The generated ids, ``[n, found]``.
    Raises:
        ValueError: the model returns no logits for each place, or NaN.
    """
    integers(limit=limit)
    ids, ended, found = prompts, torch.zeros(len(prompts), dtype=torch.bool), []
    with evaluation(model), torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        for _ in range(limit):
            following = last_logits(model, ids).argmax(-1).masked_fill(ended, end)
            found.append(following)
            ended |= following == end
            ids = torch.cat([ids, following[:, None]], dim=1)
            if bool(ended.all()):
                break
    return torch.stack(found, dim=1)


def correct(
    model: nn.Module,
    task: ChainTask,
    samples: Sequence[Sample],
    mode: Mode,
    *,
    dtype: torch.dtype | None = None,
) -> Bool[Tensor, " n"]:
    """Returns whether the freely generated answer of each question is right, ``[n]``.

    Args:
        model, task, samples, mode: trained network, its task, and questions that it has not seen.
        dtype: precision of the network; None: its own.
    Raises:
        ValueError: the mode is unknown, or there are no questions.
    """
    check_mode(mode)
    integers(samples=len(samples))
    end, colon = encode(task, (END, ANSWER))
    limit = max(len(continuation(each, mode)) for each in samples)
    right = torch.zeros(len(samples), dtype=torch.bool)
    lengths: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        lengths.setdefault(len(prompt(sample, mode)), []).append(index)
    for chosen in lengths.values():
        prompts = torch.tensor([encode(task, prompt(samples[i], mode)) for i in chosen])
        generated = generate(model, prompts, limit=limit, end=end, dtype=dtype).tolist()
        for i, row in zip(chosen, generated):
            if mode == "chain":  # the answer follows the first colon
                row = row[row.index(colon) + 1 :] if colon in row else []
            expected = encode(task, (*samples[i].answer, END))
            right[i] = row[: len(expected)] == expected
    return right


def given(
    model: nn.Module, task: ChainTask, samples: Sequence[Sample], chains: Sequence[Symbols]
) -> list[tuple[int, ...]]:
    """Returns the ids that a network trained with chains writes as the answer when the chain is written for
    it.

    Args:
        chains: one chain per question, its own or another one.
    """
    end = encode(task, (END,))[0]
    found = []
    for sample, chain in zip(samples, chains):
        ids = torch.tensor([encode(task, (*sample.question, THEN, *chain, ANSWER))])
        found.append(tuple(generate(model, ids, limit=len(sample.answer), end=end)[0].tolist()))
    return found


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of the decoder; equal for all modes, except for the number of steps.

    Raises:
        ValueError: a size or the rate is not positive.
    """

    dim: int = 64
    depth: int = 2
    heads: int = 4
    rate: float = 3e-3
    batch: int = 64
    warmup: int = 50

    def __post_init__(self):
        integers(dim=self.dim, depth=self.depth, heads=self.heads, batch=self.batch, warmup=self.warmup)
        positive(rate=self.rate)


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        model: network, in evaluation mode.
        accuracies: accuracy on the test questions at each measured step.
        seconds: wall time of the training, without the measurements on the way.
    """

    model: nn.Module
    accuracies: dict[int, float]
    seconds: float


def train(
    parts: Split,
    mode: Mode,
    *,
    steps: int,
    generator: Generator,
    recipe: Recipe | None = None,
    measured: Sequence[int] = (),
    questions: int = 200,
) -> Trained:
    """Trains a decoder.

    Args:
        parts: disjoint questions.
        mode: what stands between question and answer.
        steps: optimiser steps (AdamW, warm-up, then a constant rate, so that every step is a fair end).
        generator: draws initial weights and batches.
        recipe: sizes; None: the default.
        measured: steps at which the accuracy is measured.
        questions: test questions of these measurements.
    Raises:
        ValueError: the mode is unknown, or a number is not positive.
        TypeError: a number is no integer.
    """
    check_mode(mode)
    integers(steps=steps, questions=questions)
    recipe, task = recipe or Recipe(), parts.task
    inputs, targets = rows(task, parts.train, mode)
    size = min(recipe.batch, len(inputs))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        sizes: dict[str, Any] = {
            "dim": recipe.dim,
            "depth": recipe.depth,
            "heads": recipe.heads,
            "hidden": 4 * recipe.dim,
        }
        model = Decoder(vocabulary=len(vocabulary(task)), dropout=0.0, block=PreNorm, **sizes)

    def loss(model: nn.Module, batch: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        return cross_entropy(
            model(inputs[batch]).flatten(0, 1), targets[batch].flatten(), ignore_index=IGNORED
        )

    accuracies: dict[int, float] = {}

    def measure(step: int, model: nn.Module) -> None:
        accuracies[step] = float(correct(model, task, parts.test[:questions], mode).double().mean())

    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.01, betas=(0.9, 0.98))
    stream = StreamTask(loss, lambda generator: permuted(len(inputs), size, generator))
    calls = {
        "schedule": lambda state: min(1.0, (state.step + 1) / recipe.warmup),
        "callbacks": [at_steps(measured, measure, limit=steps)],
    }
    fitted = fit(model, stream, optimiser=optimiser, steps=steps, clip=1.0, generator=generator, **calls)
    return Trained(model, accuracies, fitted.seconds)


def symbols_per_step(parts: Split, mode: Mode, recipe: Recipe | None = None) -> int:
    """Returns the number of symbols that a network reads in one step, padding included."""
    longest = max(len(prompt(each, mode)) + len(continuation(each, mode)) - 1 for each in parts.train)
    return min((recipe or Recipe()).batch, len(parts.train)) * longest


def equal_compute_steps(parts: Split, mode: Mode, steps: int, recipe: Recipe | None = None) -> int:
    """Returns the number of steps of a mode in which the network reads as many symbols as in ``steps`` steps
    with the chain.
    """
    return math.ceil(steps * symbols_per_step(parts, "chain", recipe) / symbols_per_step(parts, mode, recipe))
