"""What finite precision and softmax do to the construction. Source: :cite:t:`perez2021attention`."""

import math
from fractions import Fraction

from torch import Generator

from ....core.claims import Claim, Evidence
from ..construction import Arithmetic, compile_machine
from ..machines import parity
from .construction import NORMAL_FORM
from .instances import SETTING, Run, bits, rewriting_runs

LONG = 400  # steps; float32 fails before
SHORT = 30
DELTA = Fraction(1, 2**400)  # so small that its square does not matter


def least_agreement(runs: tuple[Run, ...], **arithmetic) -> Evidence:
    """The smallest share of steps before the first wrong state, symbol or head."""
    shares = {run.name: run.transformer.run(run.word, run.steps, **arithmetic).agreement(run.reference) for run in runs}
    return Evidence(min(shares.values()), 1.0, ">=", detail=shares)


def precise(generator: Generator, arithmetic: Arithmetic) -> Evidence:
    """Three machines in one arithmetic."""
    return least_agreement(rewriting_runs(generator, LONG), arithmetic=arithmetic)


def sufficient_inverse_temperature(steps: int) -> float:
    r"""Returns :math:`\frac34 T^5 (T \ln 2 + 6 \ln T)`, at which softmax runs any machine for T steps.

    The keys other than the best have a total weight of at most :math:`T \exp(-\frac43 \beta T^{-5}) = 2^{-T} T^{-5}`. A lack of weight in
    state or symbol at most doubles per step, so after T steps it is below :math:`T^{-4}`, too small to move the smallest gap.
    """
    return 0.75 * steps**5 * (steps * math.log(2) + 6 * math.log(steps))


def soft(generator: Generator, inverse_temperature: float) -> Evidence:
    """Three machines with softmax."""
    runs = rewriting_runs(generator, SHORT)
    return least_agreement(runs, arithmetic="float64", score="softmax", inverse_temperature=inverse_temperature)


def growth(run: Run) -> Evidence:
    r"""The factor by which a missing share :math:`\delta` of the first state has grown in the last, as a base-2 logarithm per step."""
    machine = run.machine
    target, _, _ = machine.step(machine.start, machine.blank)
    entry = (f"delta({machine.start},{machine.blank})", f"q2[{target}]")
    transformer = compile_machine(machine).changed("decoder.1.down", {entry: 1 - DELTA})
    *_, last = transformer.steps(run.word, run.steps)
    place = transformer.coordinates.index(f"q1[{run.reference.states[-1]}]")
    missing = (1 - last.token.get(place, 0)) / DELTA
    return Evidence(math.log2(missing) / run.steps, 0.05, ">=", detail={"factor, log2": math.log2(missing)})


def check_growth(generator: Generator) -> Evidence:
    """The growth in a walk that rewrites cells."""
    return growth(rewriting_runs(generator, 100)[2])


def control_growth(generator: Generator) -> Evidence:
    """The growth in a sweep over a word."""
    return growth(Run("sweep", parity().normalise(), bits(98, generator).translate({48: "a", 49: "b"}), 98))


CLAIMS = (
    Claim(
        id="turing/double-precision",
        statement=rf"In float64 the trace is the machine's for ${LONG}$ steps that rewrite cells.",
        measures="smallest share of steps before the first wrong state, symbol or head",
        source=SETTING,
        assumptions=(NORMAL_FORM, "a counter, a zigzag of width 5 to 20, a closed random walk of period 40", "hard-max attention"),
        check=lambda generator: precise(generator, "float64"),
        control=lambda generator: precise(generator, "float32"),
        control_description="float32",
    ),
    Claim(
        id="turing/softmax",
        statement=r"Softmax with inverse temperature $\frac34 T^5 (T \ln 2 + 6 \ln T)$ runs a machine for T steps.",
        measures="smallest share of steps before the first wrong state, symbol or head",
        source=SETTING,
        assumptions=(NORMAL_FORM, "a counter, a zigzag of width 5 to 20, a closed random walk of period 40", f"float64, T = {SHORT}"),
        check=lambda generator: soft(generator, sufficient_inverse_temperature(SHORT)),
        control=lambda generator: soft(generator, 1e3),
        control_description="inverse temperature $10^3$",
    ),
    Claim(
        id="turing/errors-grow",
        statement=r"The construction does not correct errors: a share $\delta$ that is missing in the first state grows exponentially in "
        r"the number of steps where cells are rewritten, so softmax needs a weight of other keys below $e^{-\kappa T}$.",
        measures="log2 of the growth of a missing share of the state, per step",
        source=SETTING,
        assumptions=(
            NORMAL_FORM,
            "exact arithmetic, hard-max attention, $\\delta = 2^{-400}$",
            "a closed random walk of period 40, 100 steps",
        ),
        check=check_growth,
        control=control_growth,
        control_description="a machine that sweeps over its word once and rewrites nothing",
    ),
)
