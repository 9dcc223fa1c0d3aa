"""What finite precision and softmax do to the construction. Source: :cite:t:`perez2021attention`."""

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Generator

from ....core.claims import Measured, but, claim
from ..floating import trace
from ..machines import parity
from .construction import NORMAL_FORM
from .instances import SETTING, Run, letters, rewriting_runs

LONG, SOFT = 400, 120  # steps with hard-max, in which float32 fails, and with softmax
DELTA = Fraction(1, 2**400)  # so small that its square does not matter
MACHINES = "a counter, a zigzag of width 5 to 20, a closed random walk of period 40"


def least_agreement(generator: Generator, steps: int, **settings) -> Measured:
    """The smallest share of steps before the first wrong state, symbol or head of three machines."""
    shares = {
        run.name: run.trace(**settings).agreement(run.reference) for run in rewriting_runs(generator, steps)
    }
    return Measured(min(shares.values()), shares)


@claim(
    "turing/double-precision",
    measures="smallest share of steps before the first wrong state, symbol or head",
    at_least=1.0,
    source=SETTING,
    assumptions=(NORMAL_FORM, MACHINES, "hard-max attention"),
    control=but("float32", arithmetic="float32"),
)
def double_precision(generator: Generator, *, arithmetic: str = "float64") -> Measured:
    """In float64 the trace is the machine's for $400$ steps that rewrite cells."""
    return least_agreement(generator, LONG, arithmetic=arithmetic)


def sufficient_inverse_temperature(steps: int) -> float:
    r"""Returns :math:`\frac34 T^5 (T \ln 2 + 6 \ln T)`, at which softmax runs any machine for T steps.

    The keys other than the best have a total weight of at most :math:`T \exp(-\frac43 \beta T^{-5}) = 2^{-T}
    T^{-5}`. A lack of weight in state or symbol at most doubles per step, so after T steps it is below
    :math:`T^{-4}`, too small to move the smallest gap.
    """
    return 0.75 * steps**5 * (steps * math.log(2) + 6 * math.log(steps))


@claim(
    "turing/softmax",
    measures="logarithm of the largest total weight of the other keys over that of its bound; 0 if a state, "
    "symbol or head is wrong",
    at_least=1.0,
    margin=(
        "the threshold is the bound of the statement; the numbers are logarithms, so the control, at a "
        "factor of 1.5, has at least $10^{14}$ times the weight of the bound"
    ),
    source=SETTING,
    assumptions=(NORMAL_FORM, MACHINES, f"float64, T = {SOFT}"),
    control=but("half the inverse temperature", share=0.5),
)
def softmax(generator: Generator, *, share: float = 1.0) -> Measured:
    r"""Softmax with inverse temperature $\frac34 T^5 (T \ln 2 + 6 \ln T)$ runs a machine for T steps: all
    keys other than the best have a total weight of at most $2^{-T} T^{-5}$ at each of them. This suffices and
    is not necessary: a tenth of it still runs these three machines, a hundredth does not.
    """
    beta, bound = share * sufficient_inverse_temperature(SOFT), -(SOFT * math.log(2) + 5 * math.log(SOFT))
    ratios = {}
    for run in rewriting_runs(generator, SOFT):
        scores = torch.full((SOFT, SOFT), -math.inf, dtype=torch.float64)
        found = trace(
            run.transformer.machine,
            run.transformer.weights,
            run.word,
            SOFT,
            dtype=torch.float64,
            inverse_temperature=beta,
            all_scores=scores,
        )
        best, others = scores[1:].max(1, keepdim=True)  # at the first time there is only one key
        rest = (beta * (scores[1:] - best)).scatter(1, others, -math.inf).logsumexp(1)
        right = found.agreement(run.reference) == 1
        ratios[run.name] = float(rest.max()) / bound if right else 0.0
    return Measured(min(ratios.values()), ratios)


def growth(run: Run) -> Measured:
    r"""The factor by which a missing share :math:`\delta` of the first state has grown in the last, as a
    base-2 logarithm per step.
    """
    machine = run.machine
    target, _, _ = machine.step(machine.start, machine.blank)
    entry = (f"delta({machine.start},{machine.blank})", f"q2[{target}]")
    *_, last = run.transformer.changed("decoder.1.down", {entry: 1 - DELTA}).steps(run.word, run.steps)
    place = run.transformer.coordinates.index(f"q1[{run.reference.states[-1]}]")
    missing = math.log2((1 - last.token.get(place, 0)) / DELTA)
    return Measured(missing / run.steps, {"factor, log2": missing})


def walk(generator: Generator) -> Run:
    """Draws a closed random walk, which rewrites and revisits its cells."""
    return rewriting_runs(generator, 100)[2]


def sweep(generator: Generator) -> Run:
    """Draws a word for the machine that sweeps over it once."""
    return Run("sweep", parity().normalise(), letters(98, generator, "ab"), 98)


@claim(
    "turing/errors-grow",
    measures="log2 of the growth of a missing share of the state, per step",
    at_least=0.05,
    source=SETTING,
    assumptions=(
        NORMAL_FORM,
        "exact arithmetic, hard-max attention, $\\delta = 2^{-400}$",
        "a closed random walk of period 40, 100 steps",
    ),
    control=but(
        "a machine that sweeps over its word once and rewrites nothing",
        draw=sweep,
    ),
)
def errors_grow(generator: Generator, *, draw: Callable[[Generator], Run] = walk) -> Measured:
    r"""The construction does not correct errors: a share $\delta$ that is missing in the first state grows
    exponentially in the number of steps where cells are rewritten and revisited within a bounded time.
    """
    return growth(draw(generator))


CLAIMS = (double_precision, softmax, errors_grow)
