r"""What a chain buys in any model of ids: accuracy of the answer with the chain minus without.

The prompt shows k examples of a small task and then a question. The symbols of the task are ids of the model:
the caller's (``{"3": 362, ...}``), or random ones, so that the model has to learn their use from the prompt.
The answer is the symbol with the largest logit among the possible answers. All answers are equally frequent,
so a constant guess is at chance with and without the chain.

* :func:`chain_gain`: the model *generates* its chain, for any model that maps ids to logits. Its null is the
  same gap with filler symbols in place of the chain, and with the chain of another question.
* The response of :data:`IN_NETWORKS` *gives* the chain, in one pass. What remains is to take the answer from
  it. Each question has random ids of its own, so that questions are independent of each other, and a model
  that prefers some ids is at chance.

**Null of the response**: the outcomes with and without the chain are exchanged at random for each question.
If the chain brings nothing, a question that is answered correctly in one of the two ways only is so in either
with probability 1/2. Given their number D, the gap over n questions is then the sum of D fair signs over n,
the law of the sign test of McNemar. Draws cost no forward pass.
Source: :cite:t:`feng2023towards`; filler symbols as in :cite:t:`pfau2024dot`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.measurement import Measurement, Null
from ...core.metric import ALL, ActivationKind, Activations, PerModule, Place
from ...core.sources import Source
from ...core.statistics import DATA_DRAWS, fixed_generator, share_interval
from ...core.theory import InNetworks, Response
from ...core.validation import integers
from ...probes.evaluation import evaluation
from .arithmetic import Arithmetic
from .ladder import exchanged
from .learning import continuation, generate, last_logits, prompt
from .tasks import ANSWER, END, FILLER, THEN, ChainTask, Sample, Symbols, majority, split, vocabulary

NAME, SOURCE = "chain_of_thought", Source("feng2023towards", status="own")
GAP = "accuracy with the chain minus without, from a prompt"
NULL_KIND = "filler symbols or the chain of another question"
EXCHANGED = "outcomes with and without the chain exchanged for each question"
TASK = Arithmetic(2, 3)  # the smallest task whose answer is not that of its last operation alone
EXAMPLES, QUESTIONS = 4, 32  # examples in a prompt, and questions
GIVEN = 30  # questions of the response
KINDS = WITH, WITHOUT = 1, 0
NO_LIMIT = 2**31
SURPLUS = 4  # questions drawn per question used, so that all answers can be equally frequent


def answers_of(task: ChainTask, samples: Sequence[Sample], generator: Generator) -> tuple[str, ...]:
    """Returns the answers of these and of 100 other questions, in the order of the vocabulary.

    Raises:
        ValueError: an answer has several symbols.
    """
    found = {sample.answer for sample in (*samples, *(task.sample(generator) for _ in range(100)))}
    if longer := [answer for answer in found if len(answer) != 1]:
        raise ValueError(
            f"answers must have one symbol, got {' '.join(longer[0])!r}; take arithmetic or another task "
            "with one"
        )
    return tuple(symbol for symbol in vocabulary(task) if (symbol,) in found)


def symbol_ids(task: ChainTask, vocabulary_size: int, generator: Generator) -> dict[str, int]:
    """Draws a different id for each symbol of a task.

    Raises:
        ValueError: the vocabulary of the model is too small.
    """
    known = vocabulary(task)
    if len(known) > vocabulary_size:
        raise ValueError(
            f"the vocabulary must hold the {len(known)} symbols of {task}, got {vocabulary_size} ids; take "
            "a smaller task"
        )
    return dict(zip(known, torch.randperm(vocabulary_size, generator=generator)[: len(known)].tolist()))


def balanced(samples: Sequence[Sample], n: int, generator: Generator) -> tuple[Sample, ...]:
    """Returns n samples in random order, whose answers are as equally frequent as possible: a constant guess
    is at chance.
    """
    groups: dict[Symbols, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.answer, []).append(sample)
    ranked = sorted((rank, answer) for answer, group in groups.items() for rank in range(len(group)))
    chosen = ranked[:n]
    return tuple(
        groups[chosen[i][1]][chosen[i][0]] for i in torch.randperm(len(chosen), generator=generator).tolist()
    )


def shown(sample: Sample, *, chain: bool) -> Symbols:
    """Returns an example of the prompt: question, chain (or none), answer and end."""
    return (
        *prompt(sample, "chain" if chain else "direct"),
        *continuation(sample, "chain" if chain else "direct"),
    )


def few_shot(examples: Sequence[Sample], sample: Sample, chain: Symbols | None) -> Symbols:
    """Returns the examples, the question and the given chain, up to the ":" before the answer; without chain
    if it is None.
    """
    before = tuple(symbol for each in examples for symbol in shown(each, chain=chain is not None))
    return (*before, *sample.question, *(() if chain is None else (THEN, *chain)), ANSWER)


def fitting(
    task: ChainTask, examples: Sequence[Sample], samples: Sequence[Sample], length: int
) -> list[Sample]:
    """Returns as many examples as fit into a context with every question and the longest possible chain.

    Raises:
        ValueError: not even one example fits, or no question if there are no examples.
    """
    # with "=" and ":"
    longest = max(len(sample.question) + task.chain_length(sample.question) + 2 for sample in samples)
    for k in range(len(examples), min(1, len(examples)) - 1, -1):
        needed = longest + sum(len(shown(each, chain=True)) for each in examples[:k])
        if needed <= length:
            return list(examples[:k])
    what = "one example, a question" if examples else "a question"
    raise ValueError(
        f"the context must hold {needed} ids, {what} and its chain, got a limit of {length}; take a smaller "
        "task"
    )


def chains_of_null(samples: Sequence[Sample], shift: int) -> dict[str, Sequence[Symbols]]:
    """Returns for each question filler symbols, as many as its chain has, and the chain of the question
    ``shift`` places further.
    """
    others = [sample.chain for sample in (*samples[shift:], *samples[:shift])]
    return {
        "filler symbols": [(FILLER,) * len(sample.chain) for sample in samples],
        "chain of another question": others,
    }


def gap_inputs(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Makes the inputs of the response: each question with its chain, and without, in random ids that are
    drawn for each question.

    Rows are filled on the left with the id of the end. Targets are ``[2 n, 3 + answers]``: whether the chain
    is there, the number of the question, the place of the answer among the ids of all answers, and these ids.

    Raises:
        ValueError: the vocabulary or the context is too small, or there are fewer than two questions.
    """
    n, context = min(GIVEN, limits.get("sequences", 2 * GIVEN) // 2), limits.get("length", NO_LIMIT)
    if n < 2:
        raise ValueError(
            "sequences must be at least 4, two questions with and without chain, got "
            f"{limits['sequences']}; pass more data"
        )
    size = limits.get("vocabulary", int(data.max()) + 1)
    ids = [symbol_ids(TASK, size, generator) for _ in range(n)]
    parts = split(TASK, train=EXAMPLES, test=SURPLUS * n, generator=generator)
    test = balanced(parts.test, n, generator)
    examples = fitting(TASK, parts.train, test, context)
    answers = answers_of(TASK, test, generator)
    texts = [
        few_shot(examples, each, each.chain if kind == WITH else None) for kind in KINDS for each in test
    ]
    length = max(map(len, texts))
    rows = [
        [ids[index % n][symbol] for symbol in (END,) * (length - len(text)) + text]
        for index, text in enumerate(texts)
    ]
    targets = [
        [kind, question, answers.index(sample.answer[0]), *(ids[question][answer] for answer in answers)]
        for kind in KINDS
        for question, sample in enumerate(test)
    ]
    return {"value": torch.tensor(rows), "targets": torch.tensor(targets)}


class ChainGap(PerModule):
    """Accuracy of the answer in rows with a chain minus that in rows without. Targets are those of
    :func:`gap_inputs`.

    Attributes:
        sums: for each row whether it has the chain, its question, whether the answer is right, and whether a
            logit is NaN, ``[rows, 4]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)
    keeps: ClassVar[int] = ALL
    theory, quantity, unit, side, source = NAME, GAP, "share", ">=", SOURCE
    bounds, null_kind = (-1.0, 1.0), EXCHANGED

    def statistics(self, activations: Activations) -> Float[Tensor, "rows 4"] | None:
        """Returns the statistics of one forward pass; None without such targets.

        Raises:
            ValueError: the outputs are not logits for each place.
        """
        outputs, targets = activations.outputs, activations.targets
        if outputs is None or targets is None or targets.ndim != 2:
            return None
        if outputs.ndim != 3:
            raise ValueError(
                f"outputs must be logits [n, seq, vocabulary], got {list(outputs.shape)}; pass a causal "
                "model of ids"
            )
        targets = targets.cpu()
        kind, question, answer, ids = targets[:, 0], targets[:, 1], targets[:, 2], targets[:, 3:]
        logits = outputs[:, -1].float().cpu().gather(1, ids)
        right = logits.argmax(1) == answer
        return torch.stack([kind, question, right, logits.isnan().any(1)], dim=1).double()

    def rows(
        self, place: Place, sums: Float[Tensor, "rows 4"], *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row; its null is drawn from the questions that occur in both ways, if these are all."""
        kind, question, right, missing = sums.T
        right = right.bool()
        given = kind == WITH
        n, without = int(given.sum()), int((~given).sum())
        if missing.any():
            yield self.row(None, reason=f"the logits of {int(missing.sum())} rows are NaN", n=n)
        elif n and without:
            # questions in one order, so that both outcomes of a question belong together
            first, second = (right[way][question[way].argsort()] for way in (given, ~given))
            shares = [float(each.double().mean()) for each in (first, second)]
            note = f"with the chain given {shares[0]:.0%}, without {shares[1]:.0%}"
            paired = draws and torch.equal(question[given].sort().values, question[~given].sort().values)
            generator = fixed_generator() if generator is None else generator
            null = exchanged(first, second, generator, draws=draws).draws if paired else ()
            yield self.row(shares[0] - shares[1], n=n, note=note, draws=null)
        else:
            yield self.row(None, reason="rows with and without chain are needed", n=n)


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
    """Measures what a chain buys in a model that generates ids: five accuracies and the share of the most
    frequent answer.

    The model generates up to the ":" or the longest possible chain; then the ":" is written for it, and it
    chooses among the answers.

    Args:
        model: maps ids ``[n, seq]`` to logits ``[n, seq, vocabulary]``, such as a :class:`.Decoder` or a
            model of ``transformers``.
        task: task with answers of one symbol; None: two operations modulo 3.
        ids: a different id for each symbol, common ones included (:func:`.tasks.vocabulary`). None: random
            ids.
        limits: "vocabulary" and "length" of the model.
        examples: examples in the prompt; as many as fit are used. 0: none, for a network that was trained on
            the task.
        questions: number of questions.
        generator: draws ids, examples and questions.
    Raises:
        ValueError: a symbol has no id or that of another, a limit is missing, a number is too small, the
            vocabulary or the context is too small, or the model does not take ids or returns NaN.
    """
    task = TASK if task is None else task
    integers(questions=questions)
    integers(minimum=0, examples=examples)
    if absent := [name for name in ("vocabulary", "length") if name not in limits]:
        raise ValueError(
            f"limits must have 'vocabulary' and 'length', got no {absent[0]!r}; pass the sizes of the model"
        )
    ids = symbol_ids(task, limits["vocabulary"], generator) if ids is None else dict(ids)
    if missing := [symbol for symbol in vocabulary(task) if symbol not in ids]:
        raise ValueError(
            f"ids must have every symbol of {task}, got none for {missing[0]!r}; see tasks.vocabulary(task)"
        )
    if outside := [number for number in ids.values() if not 0 <= number < limits["vocabulary"]]:
        raise ValueError(
            f"ids must lie in [0, {limits['vocabulary']}), got {outside[0]}; take ids of the model's "
            "tokenizer"
        )
    if len(set(ids.values())) < len(ids):
        raise ValueError(
            f"ids must be different, got {len(set(ids.values()))} for {len(ids)} symbols; take one for each "
            "symbol"
        )
    drawn = max(questions, min(SURPLUS * questions, (task.questions - examples) // 2))
    parts = split(task, train=max(examples, 1), test=drawn, generator=generator)
    test = balanced(parts.test, questions, generator)
    answers = [ids[symbol] for symbol in answers_of(task, test, generator)]
    chosen = fitting(task, parts.train[:examples], test, limits["length"])

    def right(chains: Sequence[Symbols | None]) -> list[bool]:
        return [
            _answer(model, few_shot(chosen, s, c), ids, answers) == ids[s.answer[0]]
            for s, c in zip(test, chains)
        ]

    def generated(sample: Sample) -> Symbols:
        text = few_shot(chosen, sample, ())[:-1]  # up to the "="
        known = {number: symbol for symbol, number in ids.items()}
        row = _run(
            model, [ids[symbol] for symbol in text], task.chain_length(sample.question) + 1, ids[ANSWER]
        )
        row = row[: row.index(ids[ANSWER])] if ids[ANSWER] in row else row[:-1]
        return tuple(known.get(each, FILLER) for each in row)

    variants: dict[str, Sequence[Symbols | None]] = {
        "generated chain": [generated(sample) for sample in test],
        "given chain": [sample.chain for sample in test],
        **chains_of_null(test, 1),
        "without chain": [None] * len(test),
    }
    shares = {name: sum(right(each)) / questions for name, each in variants.items()}
    common = majority(test)
    shares["most frequent answer"] = sum(sample.answer == common for sample in test) / questions
    base = shares["without chain"]
    columns: dict[str, Any] = {
        "unit": "share",
        "n": questions,
        "source": SOURCE,
        "model": type(model).__name__,
    }
    null = Null(NULL_KIND, tuple(shares[name] - base for name in chains_of_null(test, 1)))
    yield Measurement(
        NAME,
        "in network",
        GAP,
        shares["generated chain"] - base,
        nulls=(null,),
        side=">=",
        bounds=ChainGap.bounds,
        at={"chain": "generated chain"},
        **columns,
    )
    for name, share in shares.items():
        interval = share_interval(share, questions)
        yield Measurement(
            NAME,
            "in network",
            "accuracy of the answer",
            share,
            interval=interval,
            at={"chain": name},
            **columns,
        )


def _run(model: nn.Module, row: list[int], limit: int, end: int) -> list[int]:
    """Continues one row of ids.

    Raises:
        ValueError: the model does not take ids.
    """
    try:
        return generate(model, torch.tensor([row]), limit=limit, end=end)[0].tolist()
    except (RuntimeError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ValueError(
            f"the model must take ids [n, seq], got {type(model).__name__} ({reason}); pass a causal model "
            "of ids"
        ) from error


def _answer(model: nn.Module, text: Symbols, ids: Mapping[str, int], answers: list[int]) -> int:
    """Returns the most likely of the possible answers after a text."""
    with evaluation(model):
        return answers[
            int(last_logits(model, torch.tensor([[ids[symbol] for symbol in text]]))[0, answers].argmax())
        ]


IN_NETWORKS = InNetworks(
    metrics=lambda: (),
    headline=GAP,
    side=">=",
    responses=(Response("given chain", gap_inputs, lambda: (ChainGap(),), reads="ids", draws=DATA_DRAWS),),
    meaning="accuracy of answers after the steps in between less that without them",
)
