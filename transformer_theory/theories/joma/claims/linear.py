"""Claims about one linear unit with exponential attention: its orbit, its blow-up, its clock, and softmax
attention beside it.
"""

import math

import torch
from torch import Generator, Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ..block import AttentionForm, Block, Contexts, Exponential, Softmax, zero_block
from ..dynamics import Model, gradient_flow, runge_kutta, signed
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress
from .sources import NOT_FOUND, OWN

CONSTANT_GRADIENT = "one linear unit whose backpropagated gradient is constant"
FROM_ZERO = "v and z start at zero"
PLAIN = "equal learning rates, T = 1, samples of one query"
NORMALISER = 2.0  # A
TOKENS = "six tokens: one leads, the others have at most 0.8 of its discriminancy"
ORBIT_ASSUMPTIONS = (
    CONSTANT_GRADIENT,
    "exponential attention with a constant normaliser A",
    PLAIN,
    FROM_ZERO,
    TOKENS,
)
EXPONENTIAL, SOFTMAX = Exponential(NORMALISER), Softmax()


def lopsided(generator: Generator, *, tokens: int = 6) -> tuple[Contexts, Tensor]:
    """Returns two samples with opposite targets, and Delta: one token leads, the others have at most 0.8 of
    its discriminancy.
    """
    share = torch.cat(
        [
            torch.ones(1, dtype=torch.float64),
            0.1 + 0.7 * torch.rand(tokens - 1, generator=generator, dtype=torch.float64),
        ]
    )
    sign = 2 * torch.randint(2, (tokens,), generator=generator) - 1
    counts = torch.stack([share * (sign > 0), share * (sign < 0)]) + 0.2
    contexts = Contexts(counts, torch.zeros(2, dtype=torch.long), torch.tensor([1, 0]))
    return contexts, share * sign / 2


def flow_towards(
    contexts: Contexts, form: AttentionForm, end: float, *, halvings: int, steps: int = 25
) -> Block:
    """Returns the state of the flow from zero at the time (1 - 2^-halvings) ``end``.

    The solution blows up at ``end``, so each group of ``steps`` steps covers half of the remaining time.
    """
    model, state, remaining = Model(form, loss=signed), zero_block(contexts, units=1), end
    for _ in range(halvings):
        state = gradient_flow(state, contexts, model, step=remaining / 2 / steps, steps=steps).state(-1)
        remaining /= 2
    return state


@claim(
    "joma/linear-orbit",
    measures=r"largest ratio $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ over the smallest, minus "
    "1, in the joint flow of attention and MLP",
    at_most=1e-6,
    source=Source("tian2024joma", "Theorem 2", "second-hand"),
    assumptions=ORBIT_ASSUMPTIONS,
    control=but(
        r"uses $\operatorname{erf}(v / 2)$ instead of $\operatorname{erf}(v / \sqrt{2})$", divisor=2.0
    ),
)
def linear_orbit(generator: Generator, *, divisor: float = math.sqrt(2)) -> Measured:
    r"""With a linear MLP $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ is the same for every token, where
    $\Delta_l = E[g x_l] / A$ and g is the backpropagated gradient.
    """
    contexts, drawn = lopsided(generator)
    discriminancy = drawn / NORMALISER
    lower = flow_towards(contexts, Exponential(NORMALISER), blow_up_time(discriminancy), halvings=5).lower[0]
    constants = progress(lower * math.sqrt(2) / divisor, discriminancy)
    return Measured(float(constants.max() / constants.min()) - 1, {"leading v": float(lower.abs().max())})


@claim(
    "joma/blow-up",
    measures=r"largest distance of the other tokens from their limits at $(1 - 2^{-13}) t^*$",
    at_most=1e-3,
    source=NOT_FOUND,
    assumptions=ORBIT_ASSUMPTIONS,
    control=but("uses softmax attention, which is slower and leaves the orbit", form=SOFTMAX),
)
def blow_up(generator: Generator, *, form: AttentionForm = EXPONENTIAL) -> Measured:
    r"""With a linear MLP the token of the largest $|\Delta_l|$, $\Delta_l = E[g x_l] / A$, blows up at $t^* =
    \sqrt{\pi/2} / |\Delta|_{\max}$; the others are then at $v_l = \sqrt{2}\, \operatorname{erf}^{-1}(\Delta_l
    / |\Delta|_{\max})$.
    """
    contexts, drawn = lopsided(generator)
    discriminancy = drawn / NORMALISER
    state = flow_towards(contexts, form, blow_up_time(discriminancy), halvings=13)
    others = discriminancy.abs() < discriminancy.abs().max()
    gap = float((state.lower[0] - limits(discriminancy))[others].abs().max())
    mean = Model(form).attend(state, contexts).mean(0)
    return Measured(gap, {"attention to the leading token": float((mean / mean.sum()).max())})


@claim(
    "joma/slower-clock",
    measures="distance from the orbit at the time given by the clock",
    at_most=1e-5,
    source=NOT_FOUND,
    assumptions=(CONSTANT_GRADIENT, "z = v²/2 is kept", FROM_ZERO, TOKENS),
    control=but("uses the clock of attention without a normaliser", normalised=False),
)
def slower_clock(generator: Generator, *, normalised: bool = True) -> Measured:
    r"""A normaliser common to all samples, $\dot v_l = \Delta_l e^{v_l^2/2} / A$ with $A = \sum_l x_l
    e^{v_l^2/2}$, keeps the orbit and changes the clock to $t = \int A\, d\tau$, where $\tau$ is the time of
    the flow without A.
    """
    _, discriminancy = lopsided(generator)
    frequency = torch.rand(len(discriminancy), generator=generator, dtype=torch.float64) + 0.5
    r = torch.tensor([0.1], dtype=torch.float64)
    t = (
        float(normalised_clock(discriminancy, frequency, r))
        if normalised
        else 0.9 * blow_up_time(discriminancy)
    )
    v, steps = torch.zeros_like(discriminancy), 400

    def velocity(v: Tensor) -> Tensor:
        weight = torch.exp(v.square() / 2)
        return discriminancy * weight / (frequency * weight).sum()

    for _ in range(steps):
        v = runge_kutta(v, velocity, step=t / steps)
    return Measured(float((v - orbit(discriminancy, r)[0]).abs().max()), {"time": t})


@claim(
    "joma/softmax-leaves-the-orbit",
    measures=r"1 minus the smallest ratio $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ over the "
    "largest at $3 t^*$, $t^*$ the time at which exponential attention blows up",
    at_least=0.05,
    source=OWN,
    assumptions=(
        CONSTANT_GRADIENT,
        PLAIN,
        "two contexts of opposite targets, as shares",
        FROM_ZERO,
        TOKENS,
    ),
    control=but(
        "uses exponential attention, which stays on the orbit, and stops at "
        r"$\frac{31}{32} t^*$, since it blows up at $t^*$",
        form=Exponential(),
        time=31 / 32,
    ),
)
def softmax_leaves_the_orbit(
    generator: Generator, *, form: AttentionForm = SOFTMAX, time: float = 3.0, steps: int = 200
) -> Measured:
    r"""Softmax attention that is trained with the MLP is not only slower: $\dot z = E[g\, b \circ (v - b^\top
    v)]$ drives z away from $v^2/2$, and each sample has its own normaliser, so $\operatorname{erf}(v_l /
    \sqrt{2}) / \Delta_l$ becomes unequal. The statement is the library's own. The threshold is ours.
    """
    # Delta is E[g b] at the start. A value above 1 means that a token has moved against its Delta. Contexts
    # are shares, so that at the start b is the context in both forms of attention; t* is the blow-up time of
    # the exponential form.
    drawn, _ = lopsided(generator)
    contexts = Contexts(drawn.counts / drawn.counts.sum(1, keepdim=True), drawn.query, drawn.targets)
    model, start = Model(form, loss=signed), zero_block(contexts, units=1)
    discriminancy = model.velocity(start, contexts).lower[0]
    step = time * blow_up_time(discriminancy) / steps
    lower = gradient_flow(start, contexts, model, step=step, steps=steps).state(-1).lower[0]
    constants = progress(lower, discriminancy)
    return Measured(1 - float(constants.min() / constants.max()), {"leading v": float(lower.abs().max())})


CLAIMS = (linear_orbit, blow_up, slower_clock, softmax_leaves_the_orbit)
