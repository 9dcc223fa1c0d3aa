"""Linear MLP: one number for all tokens and attention on one of them after finite time, if it is exponential; what softmax does to it."""

import math

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..dynamics import Model, rk4, signed, train
from ..forms import AttentionForm, Exponential, Softmax
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress
from ..problem import Block, Contexts, zero_block

JOMA = Source("tian2024joma")
ASSUMED = (
    "one linear unit whose backpropagated gradient is constant",
    "exponential attention with a constant normaliser",
    "all start at zero",
)


def lopsided(generator: Generator, *, tokens: int = 6) -> tuple[Contexts, Tensor]:
    """Two samples of opposite targets, and the discriminancy: one token leads, the others have at most 0.8 of its size."""
    share = torch.cat([torch.ones(1, dtype=torch.float64), 0.1 + 0.7 * torch.rand(tokens - 1, generator=generator, dtype=torch.float64)])
    sign = 2 * torch.randint(2, (tokens,), generator=generator) - 1
    counts = torch.stack([share * (sign > 0), share * (sign < 0)]) + 0.2
    contexts = Contexts(counts, torch.zeros(2, dtype=torch.long), torch.tensor([1, 0]))
    return contexts, share * sign / 2


def approach(contexts: Contexts, form: AttentionForm, end: float, *, halvings: int, steps: int = 25) -> Block:
    """The flow from zero up to 2^-halvings of the time ``end``, in stretches that halve what remains."""
    model, state, left = Model(form, loss=signed), zero_block(contexts, units=1), end
    for _ in range(halvings):
        state = train(state, contexts, model, step=left / 2 / steps, steps=steps, method=rk4).at(-1)
        left /= 2
    return state


def _spread(generator: Generator, *, inside: float) -> Evidence:
    """How unequal erf(v / c) / Delta is over tokens, largest over smallest less one, at 1/32 of t* before the blow-up."""
    contexts, discriminancy = lopsided(generator)
    lower = approach(contexts, Exponential(), blow_up_time(discriminancy), halvings=5).lower[0]
    found = progress(lower * math.sqrt(2) / inside, discriminancy)
    return Evidence(float(found.max() / found.min()) - 1, 1e-6, "<=", detail={"leading v": float(lower.abs().max())})


def _lag(generator: Generator, form: AttentionForm, *, time: float, steps: int = 200) -> Evidence:
    """How far the token that is last lags behind the first in erf(v / sqrt 2) / Delta, as a share, at ``time`` t* of the joint flow.

    Delta = E[g b] at the start. Above 1 a token has moved against its Delta. Contexts are shares, so that at the
    start b is the context in both forms, and t* the blow-up of the exponential one.
    """
    drawn, _ = lopsided(generator)
    contexts = Contexts(drawn.counts / drawn.counts.sum(1, keepdim=True), drawn.query, drawn.targets)
    model, start = Model(form, loss=signed), zero_block(contexts, units=1)
    discriminancy = model.velocity(start, contexts).lower[0]
    step = time * blow_up_time(discriminancy) / steps
    lower = train(start, contexts, model, step=step, steps=steps, method=rk4).at(-1).lower[0]
    found = progress(lower, discriminancy)
    return Evidence(1 - float(found.min() / found.max()), 0.05, ">=", detail={"leading v": float(lower.abs().max())})


def _limits(generator: Generator, form: AttentionForm) -> Evidence:
    """Largest distance of the other tokens from their limits at 2^-13 of t* before the blow-up, and attention to the leading one."""
    contexts, discriminancy = lopsided(generator)
    state = approach(contexts, form, blow_up_time(discriminancy), halvings=13)
    others = discriminancy.abs() < discriminancy.abs().max()
    gap = float((state.lower[0] - limits(discriminancy))[others].abs().max())
    mean = Model(form).attend(state, contexts).mean(0)
    return Evidence(gap, 1e-3, "<=", detail={"attention to the leading token": float((mean / mean.sum()).max())})


def _clock(generator: Generator, *, normalised: bool) -> Evidence:
    """Distance of the normalised flow from the orbit at the time that the clock gives, r = 0.1 of t* before the end."""
    _, discriminancy = lopsided(generator)
    frequency = torch.rand(len(discriminancy), generator=generator, dtype=torch.float64) + 0.5
    r = torch.tensor([0.1], dtype=torch.float64)
    t = float(normalised_clock(discriminancy, frequency, r)) if normalised else 0.9 * blow_up_time(discriminancy)
    v, steps = torch.zeros_like(discriminancy), 400

    def velocity(v: Tensor) -> Tensor:
        grown = torch.exp(v.square() / 2)
        return discriminancy * grown / (frequency * grown).sum()

    for _ in range(steps):  # Runge-Kutta of order 4
        first = velocity(v)
        second = velocity(v + t / steps / 2 * first)
        third = velocity(v + t / steps / 2 * second)
        fourth = velocity(v + t / steps * third)
        v = v + t / steps / 6 * (first + 2 * second + 2 * third + fourth)
    return Evidence(float((v - orbit(discriminancy, r)[0]).abs().max()), 1e-5, "<=", detail={"time": t})


CLAIMS = (
    Claim(
        id="joma/linear-orbit",
        statement=r"With a linear MLP $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ is the same for every token, $\Delta_l = E[g x_l]$. "
        r"Here: the largest over the smallest, less 1, in the joint flow of attention and MLP.",
        source=JOMA,
        assumptions=ASSUMED,
        check=lambda generator: _spread(generator, inside=math.sqrt(2)),
        control=lambda generator: _spread(generator, inside=2.0),
        control_description=r"takes $\operatorname{erf}(v / 2)$ in the place of $\operatorname{erf}(v / \sqrt{2})$",
    ),
    Claim(
        id="joma/blow-up",
        statement=r"The token of the largest $|\Delta|$ blows up at $t^* = \sqrt{\pi/2} / |\Delta|_{\max}$; the others then stand at "
        r"$v_l = \sqrt{2}\, \operatorname{erf}^{-1}(\Delta_l / \Delta_{\max})$. Here: their largest distance from there "
        r"at $(1 - 2^{-13}) t^*$.",
        source=JOMA,
        assumptions=ASSUMED,
        check=lambda generator: _limits(generator, Exponential()),
        control=lambda generator: _limits(generator, Softmax()),
        control_description="takes softmax attention, which is slower and leaves the orbit",
    ),
    Claim(
        id="joma/slower-clock",
        statement=r"A normaliser common to all samples, $\dot v_l = \Delta_l e^{v_l^2/2} / A$ with $A = \sum_l x_l e^{v_l^2/2}$, keeps the "
        r"orbit and changes the clock to $t = \int A\, d\tau$. Here: the distance from the orbit at the time that this gives.",
        source=JOMA,
        assumptions=("one linear unit whose backpropagated gradient is constant", "z = v²/2 is kept", "all start at zero"),
        check=lambda generator: _clock(generator, normalised=True),
        control=lambda generator: _clock(generator, normalised=False),
        control_description="reads the clock of attention without normaliser",
    ),
    Claim(
        id="joma/softmax-leaves-the-orbit",
        statement=r"Softmax attention that is trained with the MLP is not only slower: $\dot z = E[g\, b \circ (v - b^\top v)]$ takes z "
        r"off $v^2/2$, and each sample has its own normaliser, so $\operatorname{erf}(v_l / \sqrt{2}) / \Delta_l$ comes apart. Here: 1 "
        r"less the smallest over the largest, at $3 t^*$ (the leading v stands near 5); empirical, the line is ours.",
        source=JOMA,
        assumptions=("one linear unit whose backpropagated gradient is constant", "two contexts of opposite targets", "all start at zero"),
        check=lambda generator: _lag(generator, Softmax(), time=3.0),
        control=lambda generator: _lag(generator, Exponential(), time=31 / 32),
        control_description=r"takes exponential attention, at $\frac{31}{32} t^*$: it stays on the orbit",
    ),
)
