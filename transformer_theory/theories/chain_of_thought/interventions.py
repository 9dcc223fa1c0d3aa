r"""Predictions of chains of thought for a network: the answer is read from the chain.

The prompts show examples of the task with their chains, then a question with its chain and ":"
(:mod:`.in_networks`). The loss is that of the answer. Three changes take the chain away:

* In every attention the ":" does not see the chain; its other weights are divided by their sum. Nothing else
  follows the chain, so that no other token can pass it on. The control hides as many other tokens.
* The chain becomes that of another question with another answer, in the ids of this prompt. The control
  exchanges other tokens for those of another prompt, whose examples and question differ but have the same
  lengths. Prompts agree in their signs: as many of the tokens that differ are exchanged as in the chain.
* The chain becomes as many filler symbols. The control writes the filler over as many other tokens.

Sources: :cite:t:`feng2023towards`; filler symbols as in :cite:t:`pfau2024dot`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from ...core.intervention import (
    Attended,
    Control,
    InputPass,
    Inputs,
    Intervention,
    normalised,
)
from ...core.sources import Source
from .in_networks import EXAMPLES, SURPLUS, TASK, balanced, few_shot, fitting, symbol_ids
from .tasks import FILLER, Sample, Symbols, split

QUESTIONS = 60


@dataclass(frozen=True)
class Places:
    """Places of tokens in a sequence: a structure.

    Attributes:
        places: the chosen ones.
        others: those that may be drawn in their stead.
        tokens: number of tokens of a sequence.
    """

    places: frozenset[int]
    others: frozenset[int]
    tokens: int


def other_places(chosen: Places, generator: Generator) -> Places | None:
    """Draws as many other places; None if there are too few."""
    others = sorted(chosen.others)
    if len(others) < len(chosen.places):
        return None
    order = torch.randperm(len(others), generator=generator)[: len(chosen.places)].tolist()
    drawn = frozenset(others[index] for index in order)
    return Places(drawn, (chosen.others | chosen.places) - drawn, chosen.tokens)


@dataclass(frozen=True)
class Exchange:
    """What stands in a prompt, once the chain or other places are exchanged.

    Attributes:
        chain: places of the chain.
        ids: for each prompt an id for each place, ``[n, seq]``.
    """

    chain: Places
    ids: Int[Tensor, "n seq"]


def given_chains(
    limits: dict[str, int], generator: Generator, *, instead: Literal["other", "filler"] | None = None
) -> Inputs:
    """Returns questions with their chains, in random ids for each question; the answer alone is scored.
    Questions and chains have the most frequent lengths, so that all prompts have one length.

    Args:
        limits: sizes of the network.
        generator: draws questions and ids.
        instead: what may take the place of the chain: that of another question or filler symbols, which
            makes the structure an :class:`Exchange`. None: nothing, and it has the :class:`Places` alone.
    Raises:
        ValueError: the limits leave too few ids, or contexts that are too short, or no question can take the
            place of another one.
    """
    parts = split(TASK, train=EXAMPLES, test=SURPLUS * QUESTIONS, generator=generator)
    lengths = Counter(map(_lengths, parts.test)).most_common(1)[0][0]
    test = balanced([each for each in parts.test if _lengths(each) == lengths], QUESTIONS, generator)
    examples = fitting(TASK, parts.train, test, limits["length"])
    rows, others, answers = [], [], []
    for sample in test:
        ids = symbol_ids(TASK, limits["vocabulary"], generator)
        text = few_shot(examples, sample, sample.chain)
        other: Symbols = (FILLER,) * len(text)
        if instead == "other":
            *shown, question = (_another(each, parts.test, generator) for each in (*examples, sample))
            other = few_shot(shown, question, question.chain)
        rows.append([ids[symbol] for symbol in text])
        others.append([ids[symbol] for symbol in other])
        answers.append(ids[sample.answer[0]])
    prompts = torch.tensor(rows)
    targets = torch.full_like(prompts, -1)
    targets[:, -1] = torch.tensor(answers)
    n = prompts.shape[1]
    chain = frozenset(range(n - 1 - lengths[1], n - 1))  # before the ":"
    places = Places(chain, frozenset(range(n - 1)) - chain, n)
    return Inputs(prompts, targets, places if instead is None else Exchange(places, torch.tensor(others)))


def _lengths(sample: Sample) -> tuple[int, int]:
    """Returns the lengths of question and chain."""
    return len(sample.question), len(sample.chain)


def _another(sample: Sample, samples: Sequence[Sample], generator: Generator) -> Sample:
    """Draws a question with another answer, whose question and chain have the same lengths.

    Raises:
        ValueError: there is none.
    """
    alike = [s for s in samples if _lengths(s) == _lengths(sample) and s.answer != sample.answer]
    if not alike:
        raise ValueError(
            f"no other question has lengths {_lengths(sample)} of question and chain and another answer, so "
            "that no chain can take the place of this one"
        )
    return alike[int(torch.randint(len(alike), (1,), generator=generator))]


def hidden(attended: Attended) -> Attended:
    """Hides the places from the last token.

    Raises:
        ValueError: an attention has another number of keys than the prompt has tokens.
    """
    chosen: Places = attended.structure
    if attended.weights.shape[-2:] != (chosen.tokens, chosen.tokens):
        raise ValueError(
            f"places need attention among the {chosen.tokens} tokens of the prompt, got "
            f"{list(attended.weights.shape[-2:])} queries and keys"
        )
    weights = attended.weights.clone()
    weights[..., -1, sorted(chosen.places)] = 0.0
    weights[..., -1, :] = normalised(weights[..., -1, :])
    return attended.with_weights(weights)


def exchanged(passed: InputPass) -> InputPass:
    """Exchanges the chain of each prompt."""
    ids, _, chain = _parts(passed)
    return passed.with_inputs(torch.where(chain, ids, passed.inputs))


def exchanged_elsewhere(passed: InputPass) -> InputPass:
    """Exchanges other tokens of each prompt, drawn at random, as many as differ in the chain."""
    ids, differs, chain = _parts(passed)
    others = differs & ~chain
    numbers = torch.rand(ids.shape, generator=passed.generator, device=ids.device)
    rank = numbers.masked_fill(~others, 2.0).argsort(-1).argsort(-1)
    drawn = others & (rank < (differs & chain).sum(-1, keepdim=True))
    return passed.with_inputs(torch.where(drawn, ids, passed.inputs))


def _parts(
    passed: InputPass,
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"], Bool[Tensor, " seq"]]:
    """Returns the ids that may take the places of those of each prompt, where they differ from them, and
    whether a place is in the chain. The last place stays.
    """
    chosen: Exchange = passed.structure
    ids = chosen.ids[passed.numbers].to(passed.inputs)
    places = torch.arange(ids.shape[1], device=ids.device)
    chain = torch.isin(places, torch.tensor(sorted(chosen.chain.places), device=ids.device))
    return ids, (ids != passed.inputs) & (places < ids.shape[1] - 1), chain


INTERVENTIONS = (
    Intervention(
        name="chain hidden from the answer",
        change=hidden,
        predicts="broken",
        controls=(Control("as many other tokens hidden", structure=other_places),),
        source=Source("feng2023towards", status="own"),
        inputs=given_chains,
    ),
    Intervention(
        name="chain replaced by that of another question",
        change=exchanged,
        predicts="broken",
        controls=(Control("as many other tokens replaced by those of another prompt", exchanged_elsewhere),),
        source=Source("feng2023towards", status="own"),
        inputs=partial(given_chains, instead="other"),
        site="inputs",
    ),
    Intervention(
        name="chain replaced by filler symbols",
        change=exchanged,
        predicts="broken",
        controls=(Control("as many other tokens replaced by the filler", exchanged_elsewhere),),
        source=Source("pfau2024dot", status="own"),
        inputs=partial(given_chains, instead="filler"),
        site="inputs",
    ),
)
