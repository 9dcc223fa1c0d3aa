r"""What a chain buys in any model of ids: accuracy of the answer with the chain minus without.

The prompt shows k examples of a small task and then a question. The symbols of the task are ids of the model: the caller's
(``{"3": 362, ...}``), or random ones, so that the model has to learn their use from the prompt. The answer is the symbol with the largest
logit among the possible answers. All answers are equally frequent, so a constant guess is at chance with and without the chain.

* :func:`chain_gain`: the model *generates* its chain, for any model that maps ids to logits.
* The response of :data:`IN_NETWORKS` *gives* the chain, in one pass. What remains is to take the answer from it.

**Null**, for the same questions: filler symbols in place of the chain, and the chain of another question.
Source: :cite:t:`feng2023towards`; filler symbols as in :cite:t:`pfau2024dot`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn

from ...core.measurement import Measurement, Null
from ...core.metric import ActivationKind, Activations, Metric
from ...core.sources import Source
from ...core.statistics import share_interval
from ...core.theory import InNetworks, Response
from .arithmetic import Arithmetic
from .learning import continuation, generate, prompt
from .tasks import ANSWER, END, FILLER, THEN, ChainTask, Sample, Symbols, majority, split, vocabulary

NAME, SOURCE = "chain_of_thought", Source("feng2023towards", status="own")
GAP = "accuracy with the chain minus without, from a prompt"
NULL_KIND = "filler symbols or the chain of another question"
TASK = Arithmetic(2, 3)  # the smallest task whose answer is not that of its last operation alone
EXAMPLES, QUESTIONS = 4, 32  # examples in a prompt, and questions
GIVEN, DRAWS = 15, 2  # of the response: questions, and draws of each of the two nulls; a large model runs on all of them
WITH, WITHOUT = 1, 0
NO_LIMIT = 2**31
SURPLUS = 4  # questions drawn per question used, so that all answers can be equally frequent


def answers_of(task: ChainTask, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Returns the symbols that occur as answers of one symbol, in the order of the vocabulary.

    Raises:
        ValueError: an answer has several symbols.
    """
    found = {sample.answer for sample in samples}
    if longer := [answer for answer in found if len(answer) != 1]:
        raise ValueError(f"answers must have one symbol, got {' '.join(longer[0])!r}; take arithmetic or another task with one")
    return tuple(symbol for symbol in vocabulary(task) if (symbol,) in found)


def symbol_ids(task: ChainTask, vocabulary_size: int, generator: Generator) -> dict[str, int]:
    """Draws a different id for each symbol of a task.

    Raises:
        ValueError: the vocabulary of the model is too small.
    """
    known = vocabulary(task)
    if len(known) > vocabulary_size:
        raise ValueError(f"the vocabulary must hold the {len(known)} symbols of {task}, got {vocabulary_size} ids; take a smaller task")
    return dict(zip(known, torch.randperm(vocabulary_size, generator=generator)[: len(known)].tolist()))


def balanced(samples: Sequence[Sample], n: int, generator: Generator) -> tuple[Sample, ...]:
    """Returns n samples in random order, whose answers are as equally frequent as possible: a constant guess is at chance."""
    groups: dict[Symbols, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.answer, []).append(sample)
    ranked = sorted((rank, answer) for answer, group in groups.items() for rank in range(len(group)))
    chosen = ranked[:n]
    return tuple(groups[chosen[i][1]][chosen[i][0]] for i in torch.randperm(len(chosen), generator=generator).tolist())


def shown(sample: Sample, *, chain: bool) -> Symbols:
    """Returns an example of the prompt: question, chain (or none), answer and end."""
    return (*prompt(sample, "chain" if chain else "direct"), *continuation(sample, "chain" if chain else "direct"))


def few_shot(examples: Sequence[Sample], sample: Sample, chain: Symbols | None) -> Symbols:
    """Returns the examples, the question and the given chain, up to the ":" before the answer; without chain if it is None."""
    before = tuple(symbol for each in examples for symbol in shown(each, chain=chain is not None))
    return (*before, *sample.question, *(() if chain is None else (THEN, *chain)), ANSWER)


def fitting(examples: Sequence[Sample], samples: Sequence[Sample], length: int) -> list[Sample]:
    """Returns as many examples as fit into a context with every question and its chain.

    Raises:
        ValueError: not even one example fits.
    """
    longest = max(len(shown(sample, chain=True)) for sample in samples)
    for k in range(len(examples), 0, -1):
        needed = longest + sum(len(shown(each, chain=True)) for each in examples[:k])
        if needed <= length:
            return list(examples[:k])
    raise ValueError(f"the context must hold {needed} ids, one example and a question, got a limit of {length}; take a smaller task")


def gap_inputs(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Makes the inputs of the response: each question with its chain, and without.

    Rows are filled on the left with the id of the end. Targets are ``[2 n, 2 + answers]``: whether the chain is there, the place of the
    answer among the ids of all answers, and these ids.

    Raises:
        ValueError: the vocabulary or the context is too small.
    """
    n, context = min(GIVEN, limits.get("sequences", GIVEN)), limits.get("length", NO_LIMIT)
    ids = symbol_ids(TASK, limits.get("vocabulary", int(data.max()) + 1), generator)
    parts = split(TASK, train=EXAMPLES, test=SURPLUS * n, generator=generator)
    test = balanced(parts.test, n, generator)
    examples = fitting(parts.train, test, context)
    without = [few_shot(examples, sample, None) for sample in test]

    def rows(chains: Sequence[Symbols]) -> Int[Tensor, "rows seq"]:
        texts = [*(few_shot(examples, sample, chain) for sample, chain in zip(test, chains)), *without]
        return torch.tensor([[ids[symbol] for symbol in (END,) * (length - len(text)) + text] for text in texts])

    chains = [sample.chain for sample in test]
    length = max(len(few_shot(examples, sample, sample.chain)) for sample in test)
    nulls = []
    for _ in range(DRAWS):
        shift = 1 + int(torch.randint(max(n - 1, 1), (), generator=generator))
        fill = vocabulary(TASK)[int(torch.randint(len(ids), (), generator=generator))]
        nulls.append(rows([(fill,) * len(chain) for chain in chains]))
        nulls.append(rows([fitted(chains[(i + shift) % n], len(chain)) for i, chain in enumerate(chains)]))
    answers = answers_of(TASK, (*parts.train, *test))
    targets = [[kind, answers.index(sample.answer[0]), *(ids[a] for a in answers)] for kind in (WITH, WITHOUT) for sample in test]
    return {"value": rows(chains), "null": nulls, "targets": torch.tensor(targets)}


def fitted(chain: Symbols, length: int) -> Symbols:
    """Returns a chain of ``length`` symbols: its end, or the chain with its last symbol repeated. The last symbol stays."""
    return chain[-length:] if len(chain) >= length else chain + chain[-1:] * (length - len(chain))


class ChainGap(Metric):
    """Accuracy of the answer in rows with a chain minus that in rows without. Targets are those of :func:`gap_inputs`.

    Attributes:
        sums: right answers with chain, rows with chain, and the same without, ``[4]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)

    def update(self, activations: Activations) -> None:
        """Adds one forward pass; passes without such targets are skipped.

        Raises:
            ValueError: the outputs are not logits for each place.
        """
        outputs, targets = activations.outputs, activations.targets
        if outputs is None or targets is None or targets.ndim != 2:
            return
        if outputs.ndim != 3:
            raise ValueError(f"outputs must be logits [n, seq, vocabulary], got {list(outputs.shape)}; pass a causal model of ids")
        targets = targets.cpu()
        kind, answer, ids = targets[:, 0], targets[:, 1], targets[:, 2:]
        right = outputs[:, -1].float().cpu().gather(1, ids).argmax(1) == answer
        parts = [(right & (kind == WITH)).sum(), (kind == WITH).sum(), (right & (kind == WITHOUT)).sum(), (kind == WITHOUT).sum()]
        self.add((0,), torch.stack(parts).double())

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns one row; none if no pass had targets."""
        if (0,) not in self.sums:
            return []
        right, n, right_without, without = self.sums[(0,)].tolist()
        note = f"with the chain given {right / n:.0%}, without {right_without / without:.0%}" if n and without else ""
        value, reason = (right / n - right_without / without, "") if n and without else (None, "rows with and without chain are needed")
        return [Measurement(NAME, "in network", GAP, value, unit="share", side=">=", n=int(n), reason=reason, note=note, source=SOURCE)]


def chain_gain(
    model: nn.Module,
    task: ChainTask | None = None,
    *,
    ids: Mapping[str, int] | None = None,
    limits: Mapping[str, int],
    examples: int = EXAMPLES,
    questions: int = QUESTIONS,
    generator: Generator,
) -> Iterator[Measurement]:
    """Measures what a chain buys in a model that generates ids: four accuracies and the share of the most frequent answer.

    Args:
        model: maps ids ``[n, seq]`` to logits ``[n, seq, vocabulary]``, such as a :class:`.Decoder` or a model of ``transformers``.
        task: task with answers of one symbol; None: two operations modulo 3.
        ids: id of each symbol, common ones included (:func:`.tasks.vocabulary`). None: random ids.
        limits: "vocabulary" and "length" of the model.
        examples: examples in the prompt; as many as fit are used. 0: none, for a network that was trained on the task.
        questions: number of questions.
        generator: draws ids, examples and questions.
    Raises:
        ValueError: a symbol has no id, the vocabulary or the context is too small, or the model does not take ids.
    """
    task = TASK if task is None else task
    ids = symbol_ids(task, limits["vocabulary"], generator) if ids is None else dict(ids)
    if missing := [symbol for symbol in vocabulary(task) if symbol not in ids]:
        raise ValueError(f"ids must have every symbol of {task}, got none for {missing[0]!r}; see tasks.vocabulary(task)")
    if outside := [number for number in ids.values() if not 0 <= number < limits["vocabulary"]]:
        raise ValueError(f"ids must lie in [0, {limits['vocabulary']}), got {outside[0]}; take ids of the model's tokenizer")
    drawn = max(questions, min(SURPLUS * questions, (task.questions - examples) // 2))
    parts = split(task, train=max(examples, 1), test=drawn, generator=generator)
    test = balanced(parts.test, questions, generator)
    answers = [ids[symbol] for symbol in answers_of(task, test)]
    chosen = fitting(parts.train, test, limits["length"]) if examples else []
    if not examples and (needed := max(len(shown(each, chain=True)) for each in test)) > limits["length"]:
        raise ValueError(f"the context must hold {needed} ids, a question with its chain, got {limits['length']}; take a smaller task")

    def right(chains: Sequence[Symbols | None]) -> list[bool]:
        return [_answer(model, few_shot(chosen, s, c), ids, answers) == ids[s.answer[0]] for s, c in zip(test, chains)]

    def generated(sample: Sample) -> Symbols:
        text = few_shot(chosen, sample, ())[:-1]  # up to the "="
        known = {number: symbol for symbol, number in ids.items()}
        row = _run(model, [ids[symbol] for symbol in text], len(sample.chain), ids[ANSWER])
        return tuple(known.get(each, FILLER) for each in row if each != ids[ANSWER])

    chains = [sample.chain for sample in test]
    variants: dict[str, list[Symbols | None]] = {
        "generated chain": [generated(sample) for sample in test],
        "given chain": [*chains],
        "filler symbols": [(FILLER,) * len(chain) for chain in chains],
        "chain of another question": [fitted(other, len(own)) for own, other in zip(chains, chains[1:] + chains[:1])],
        "without chain": [None] * len(chains),
    }
    shares = {name: sum(right(each)) / questions for name, each in variants.items()}
    common = majority(test)
    shares["most frequent answer"] = sum(sample.answer == common for sample in test) / questions
    base = shares["without chain"]
    columns: dict[str, Any] = {"unit": "share", "n": questions, "source": SOURCE, "model": type(model).__name__}
    null = Null(NULL_KIND, tuple(shares[name] - base for name in ("filler symbols", "chain of another question")))
    yield Measurement(NAME, "in network", GAP, shares["generated chain"] - base, null=null, side=">=", setting="generated chain", **columns)
    for name, share in shares.items():
        interval = share_interval(share, questions)
        yield Measurement(NAME, "in network", "accuracy of the answer", share, interval=interval, setting=name, **columns)


def _run(model: nn.Module, row: list[int], limit: int, end: int) -> list[int]:
    """Continues one row of ids.

    Raises:
        ValueError: the model does not take ids.
    """
    try:
        return generate(model, torch.tensor([row]), limit=limit, end=end)[0].tolist()
    except (RuntimeError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ValueError(f"the model must take ids [n, seq], got {type(model).__name__} ({reason}); pass a causal model of ids") from error


def _answer(model: nn.Module, text: Symbols, ids: Mapping[str, int], answers: list[int]) -> int:
    """Returns the most likely of the possible answers after a text."""
    from ...probes.evaluation import evaluation, forward, logits_of

    row = torch.tensor([[ids[symbol] for symbol in text]])
    with evaluation(model):
        logits = logits_of(forward(model, row))
    assert logits is not None  # _run has checked
    return answers[int(logits[0, -1].cpu()[answers].argmax())]


IN_NETWORKS = InNetworks(
    metrics=lambda: (),
    headline=GAP,
    side=">=",
    responses=(Response("given chain", gap_inputs, lambda: (ChainGap(),), null_kind=NULL_KIND, reads="ids"),),
)
