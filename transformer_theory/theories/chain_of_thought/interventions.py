r"""What chains of thought say of a network: the answer is read from the chain.

The prompts show examples of the task with their chains, then a question with its chain and ":"
(:mod:`.in_networks`). In every attention the ":" does not see the chain; its other weights are divided by
their sum. Nothing else follows the chain, so that no other token can pass it on. The control hides as many
other tokens of the prompt. The loss is that of the answer. Source: :cite:t:`feng2023towards`.
"""

from collections import Counter

import torch
from torch import Generator

from ...core.intervention import Attended, Control, Inputs, Intervention, Places, normalised, other_places
from ...core.sources import Source
from .in_networks import EXAMPLES, SURPLUS, TASK, balanced, few_shot, fitting, symbol_ids
from .tasks import END, split

QUESTIONS = 60


def given_chains(limits: dict[str, int], generator: Generator) -> Inputs:
    """Returns questions with their chains, in random ids for each question; the answer alone is scored. All
    chains have the most frequent length.

    Raises:
        ValueError: the limits leave too few ids, or contexts that are too short.
    """
    parts = split(TASK, train=EXAMPLES, test=SURPLUS * QUESTIONS, generator=generator)
    length = Counter(len(sample.chain) for sample in parts.test).most_common(1)[0][0]
    usual = [sample for sample in parts.test if len(sample.chain) == length]
    test = balanced(usual, QUESTIONS, generator)
    examples = fitting(TASK, parts.train, test, limits["length"])
    texts = [few_shot(examples, sample, sample.chain) for sample in test]
    longest = max(map(len, texts))
    rows, answers = [], []
    for sample, text in zip(test, texts):
        ids = symbol_ids(TASK, limits["vocabulary"], generator)
        rows.append([ids[symbol] for symbol in (END,) * (longest - len(text)) + text])
        answers.append(ids[sample.answer[0]])
    targets = torch.full((len(rows), longest), -1)
    targets[:, -1] = torch.tensor(answers)
    chain = frozenset(range(longest - 1 - length, longest - 1))
    hidden = Places(chain, frozenset(range(longest - 1)) - chain, longest)
    return Inputs(torch.tensor(rows), targets, hidden)


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


INTERVENTIONS = (
    Intervention(
        name="chain hidden from the answer",
        change=hidden,
        predicts="broken",
        controls=(Control("as many other tokens hidden", structure=other_places),),
        source=Source("feng2023towards", status="own"),
        inputs=given_chains,
    ),
)
