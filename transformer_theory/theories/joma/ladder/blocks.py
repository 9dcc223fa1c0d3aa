"""Rungs of the theory's own block: from the exact flow to AdamW, and from synthetic contexts to digits.

The first rungs train one unit on two classes, with exponential attention; the later ones change one thing
each. All trainings start from Gaussian weights of scale .1, as on data sets (:mod:`..query_data`), and have
the same length. A block that learns the targets is trained together with blocks that learn shuffled targets,
on the same batches and from the same start. Their predictions are the second null.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import no_type_check

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ....core.errors import NotConverged
from ....core.measurement import CORRELATION, Measurement
from ....core.statistics import RANGE_DRAWS, permutations
from ....data import digits
from ....training.fitting import State, fit, permuted
from ....training.tasks import StreamTask
from ..block import Block, Contexts, Exponential, Softmax, gaussian_block, sampled_contexts
from ..dynamics import Hidden, Model, Path, cross_entropy, gradient_descent, gradient_flow
from ..invariants import first_term, fixed_mean, goodness_of_fit, shift_invariant
from ..on_data import read
from ..query_data import SCALE, TIME_STEP, QueryData, Sample
from .comparison import LADDER, Change, failed, rows_of

STEPS, BATCH = 400, 32  # steps of TIME_STEP, that is time 200, and sequences per batch
DECAY = 5e-4  # weight decay of descent
ADAMW = {"lr": 3e-3, "betas": (0.9, 0.99), "weight_decay": 0.05}  # as in the trainings of classifiers
# sizes of the synthetic contexts; those of the digits are 300, 32 and 15
SEQUENCES, TOKENS, LENGTH = 300, 20, 15
CORRECTED = "cosine with both covariances", "error with both covariances"
SHUFFLED = "blocks trained on shuffled next tokens"


@no_type_check
def logistic(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """Returns the sum over units of ln(1 + exp(-s h)), s = 2y - 1 for targets y in {0, 1}, in nats, and
    -dL/dh.
    """
    sign = (2 * targets - 1).to(h.dtype)[..., None]
    return nn.functional.softplus(-sign * h).sum(-1), sign * torch.sigmoid(-sign * h)


Trainer = Callable[[Block, Contexts, Model, Generator], Path]


@dataclass(frozen=True)
class Setting:
    """Data, model and training of a rung.

    Attributes:
        train: ``(start, contexts, model, generator) -> path``.
        real: whether the contexts are those of the digits; otherwise each seed draws its own.
        softmax: softmax attention; otherwise exponential attention.
        decay: weight decay of descent.
        units: K.
        classes: 2: each unit by itself learns whether a digit is odd, by the logistic loss; 10: unit k stands
            for digit k, and the units share a cross-entropy.
        queries: whether sequences with other queries train the block too; not with :func:`descent`, whose
            batches may lack a query.
    """

    train: Trainer
    real: bool = False
    softmax: bool = False
    decay: float = 0.0
    units: int = 1
    classes: int = 2
    queries: bool = False

    def contexts(self, generator: Generator) -> Contexts:
        """Returns the samples."""
        if not self.real:
            return sampled_contexts(generator, n=SEQUENCES, tokens=TOKENS, length=LENGTH, classes=2)
        problem, sample = digit_contexts()
        chosen = sample.all_queries if self.queries else sample.one_query
        assert chosen is not None
        # The digit d follows as word 32 + d, which is odd if d is.
        return replace(chosen, targets=problem.classes[chosen.targets] % 2) if self.classes == 2 else chosen

    def model(self) -> Model:
        """Returns attention, loss and weight decay."""
        return Model(
            Softmax() if self.softmax else Exponential(),
            loss=logistic if self.classes == 2 else cross_entropy,
            decay=self.decay,
        )


@lru_cache(maxsize=1)
def digit_contexts() -> tuple[QueryData, Sample]:
    """Returns the sequences of visual words of the digits, and at most 300 of them with the most frequent
    last word.
    """
    problem = read(digits())
    assert isinstance(problem, QueryData)
    return problem, problem.sample()


def flow(start: Block, contexts: Contexts, model: Model, generator: Generator) -> Path:
    """Integrates the gradient flow of all samples."""
    return gradient_flow(start, contexts, model, step=TIME_STEP, steps=STEPS, save_steps=range(0, STEPS, 2))


def descent(start: Block, contexts: Contexts, model: Model, generator: Generator) -> Path:
    """Takes steps of descent, each on a new batch; every epoch has a new order of the samples."""
    state, states = start, [start]
    for step, batch in zip(range(1, STEPS + 1), permuted(len(contexts.query), BATCH, generator)):
        state = gradient_descent(state, _rows(contexts, batch), model, rate=TIME_STEP, steps=1).state(-1)
        if step % 2 == 0:
            states.append(state)
    return _path(states)


class TrainableBlock(nn.Module):
    """A block as a torch module, for optimisers of torch.

    Args:
        start: initial weights, float64.
    """

    def __init__(self, start: Block):
        super().__init__()
        self.logits, self.lower, self.offset = (
            nn.Parameter(part.clone()) for part in (start.logits, start.lower, start.offset)
        )

    def forward(self) -> Block:
        """Returns the weights."""
        return Block(self.logits, self.lower, self.offset)

    def state(self) -> Block:
        """Returns a copy of the weights without gradients."""
        return Block(self.logits.detach().clone(), self.lower.detach().clone(), self.offset.detach().clone())


def adamw(start: Block, contexts: Contexts, model: Model, generator: Generator) -> Path:
    """Trains by AdamW on batches. Its steps act on each weight apart, so blocks with different targets do not
    influence one another.
    """
    network, states = TrainableBlock(start), []
    task = StreamTask(
        lambda block, batch: model.mean_loss(block(), _rows(contexts, batch)).sum(),
        lambda draws: permuted(len(contexts.query), BATCH, draws),
    )
    optimiser = torch.optim.AdamW(network.parameters(), **ADAMW)

    def record(state: State) -> None:
        if state.step % 2 == 0:
            states.append(network.state())

    fit(network, task, optimiser=optimiser, steps=STEPS, callbacks=[record], generator=generator)
    return _path(states)


def measure_block(generator: Generator, *, setting: Setting) -> Iterator[Measurement]:
    """Yields the rows of a rung of the theory's block; one row with the reason if the training does not
    converge.

    For softmax attention and descent two further rows replace the factorisation by
    :func:`~..invariants.shift_invariant`.
    """
    contexts, model = setting.contexts(generator), setting.model()
    n = len(contexts.query)
    own = None if setting.real else generator  # seeds share the digits, and therefore their permutations
    shuffles = permutations(n, RANGE_DRAWS, own)
    runs = replace(contexts, targets=torch.cat([contexts.targets[None], contexts.targets[shuffles]]))
    start = gaussian_block(contexts, units=setting.units, scale=SCALE, generator=generator)
    starts = Block(
        *(part.expand(1 + RANGE_DRAWS, *part.shape) for part in (start.logits, start.lower, start.offset))
    )
    try:
        path = setting.train(starts, runs, model, generator)
    except NotConverged as error:
        yield from failed(error)
        return
    predict = (
        fixed_mean if setting.softmax else lambda model, contexts, path: first_term(model.attention, path)
    )
    # run 0 learnt the targets, query 0 is measured
    measured = path.states.logits[:, 0, 0] - path.states.logits[0, 0, 0]
    end, early = len(path.times) - 1, len(path.times) // 10
    predicted = {index: predict(model, runs, _between(path, index))[-1] for index in (early, end)}
    before, after = (float(model.mean_loss(path.state(index), runs)[0]) for index in (0, end))
    moved = float((measured[end] - measured[end].mean()).square().mean().sqrt())
    change = Change(
        predicted[end][0],
        measured[end],
        (predicted[early][0], measured[early]),
        contexts.counts[contexts.query == 0].mean(0),
        (SHUFFLED, predicted[end][1:]),
        setting.train is not adamw,  # its steps have no ratio of learning rates
        f"The logits move by {moved:.3g} (root mean square); the loss falls from {before:.3g} to "
        f"{after:.3g} nats.",
    )
    data = "digits" if setting.real else ""
    yield from rows_of(change, generator=own, data=data)
    if setting.softmax and setting.train is descent:
        first = Path(path.times, Block(*(part[:, 0] for part in _parts(path))), path.loss)
        found = goodness_of_fit(shift_invariant(model, contexts, first)[-1], measured[end])
        note = (
            "Keeps the term E[g b] (b·v), which the factorisation loses. Not a function of the weights: "
            "integrated along the training."
        )
        columns = {"data": data, "note": note}
        value = float(found.correlation)
        yield LADDER.other_row(CORRECTED[0], value, side=">=", predicted=1.0, bounds=CORRELATION, **columns)
        yield LADDER.other_row(CORRECTED[1], float(found.error), side="<=", predicted=0.0, **columns)


def _rows(contexts: Contexts, batch: Tensor) -> Contexts:
    return Contexts(contexts.counts[batch], contexts.query[batch], contexts.targets[..., batch])


def _parts(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    return path.states.logits, path.states.lower, path.states.offset


def _path(states: list[Block]) -> Path:
    """Returns the path of states that were saved every two steps."""
    parts = (
        torch.stack([getattr(state, name) for state in states]) for name in ("logits", "lower", "offset")
    )
    return Path(
        2 * TIME_STEP * torch.arange(len(states), dtype=torch.float64),
        Block(*parts),
        torch.zeros(len(states)),
    )


def _between(path: Path, index: int) -> Path:
    """Returns the path of two states: the first, and the one with this index."""
    chosen = [0, index]
    return Path(path.times[chosen], Block(*(part[chosen] for part in _parts(path))), path.loss[chosen])
