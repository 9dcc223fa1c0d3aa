"""Claims about the dynamics themselves: each flow against an integration of its own equations by other means.

The other routes share as little as possible with the flows: all M columns of the decoder, automatic
differentiation, the pseudo-inverse instead of the Gram matrix, fixed steps. Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..closed_form import B, gamma, printed_B, scanning_time
from ..dynamics import Weights, gradient_descent, population
from ..families import SymmetricClasses, alike, with_overlap
from ..flow import (
    EXACT,
    LEMMA4,
    MODIFIED,
    exact_flow,
    lemma4_flow,
    modified_flow,
    symmetric_exact_flow,
    symmetric_lemma4_flow,
    symmetric_modified_flow,
)
from ..problem import SequenceClasses, single_common
from .theorems import PAPER, uniform

PRINTED_C0 = (
    r"The paper has $C_0 = \rho_0^4 / K$, i.e. $1/C_0 = K E_0^2$; the sum over $n' \ne n$ has $K - 1$ terms."
)
FLOWS = (
    (EXACT, symmetric_exact_flow, exact_flow),
    (MODIFIED, symmetric_modified_flow, modified_flow),
    (LEMMA4, symmetric_lemma4_flow, lemma4_flow),
)


def unequal_classes(generator: Generator, *, vocab_size: int) -> SequenceClasses:
    """Draws four classes of two queries, with one common token, three distinct tokens each, and shares
    between .1 and .4.
    """
    weights = 0.1 + torch.rand(4, 3, generator=generator, dtype=torch.float64)
    common = 0.1 + 0.3 * torch.rand(4, generator=generator, dtype=torch.float64)
    P = single_common(weights, common, vocab_size=vocab_size).conditional
    share = 0.5 + torch.rand(4, generator=generator, dtype=torch.float64)
    return SequenceClasses(P, torch.tensor([0, 0, 1, 1]), vocab_size, share / share.sum())


def _largest_difference(value: Tensor, expected: Tensor) -> float:
    """Returns the largest difference as a share of the largest expected logit."""
    return float((value - expected).abs().max() / expected.abs().max())


@claim(
    "scan_snap/exact-flow",
    measures="largest difference of the logits from gradient descent, as a share of the largest logit",
    at_most=0.02,
    source=Source(PAPER, status="own"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "one common token",
        "small steps",
        r"$\eta_Z \le \eta_Y$",
    ),
    control=but("uses Lemma 3's modified flow instead of the exact one", flow=modified_flow),
)
def descent_error(generator: Generator, *, flow: Callable = exact_flow) -> Measured:
    r"""The exact flow is the limit of gradient descent with small steps on infinitely many, infinitely long
    sequences, for unequal shares, several queries and $M \gg K$. Here: the largest difference of the
    attention logits, as a share of the largest, after $t_0'/2$, $t_0'$ and $2 t_0'$ in steps of $\eta_Y =
    .05$.
    """
    classes = unequal_classes(generator, vocab_size=1000)
    rate, ratio = 0.05, 10 ** uniform(-1.0, 0.0, generator)
    scanning = scanning_time(classes=4, vocab_size=1000, eta_y=rate)
    steps = [int(scanning * factor) for factor in (0.5, 1.0, 2.0)]
    start = Weights.zeros(classes.tokens, classes.queries, 4, 1000)
    path = gradient_descent(
        start, population(classes), steps=steps[-1], eta_y=rate, eta_z=ratio * rate, keep=steps
    )
    z = flow(classes, torch.tensor(steps, dtype=torch.float64), eta_y=rate, eta_z=ratio * rate).logits
    errors = [_largest_difference(z[k], path.attention[1 + k]) for k in range(3)]
    return Measured(max(errors), {"largest logit": float(z[-1].abs().max()), "eta_Z / eta_Y": ratio})


@claim(
    "scan_snap/modified-flow",
    measures="largest difference of the logits from an explicit integration, as a share of the largest logit",
    at_most=1e-4,
    source=Source(PAPER, "Lemma 3; Eq. (26), App. D", "confirmed"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "one common token",
        r"$\eta_Z \le \eta_Y$",
    ),
    control=but("integrates the exact gradient, whose decoder follows the features", dual=False),
)
def explicit_error(generator: Generator, *, dual: bool = True) -> Measured:
    r"""Lemma 3's term $f_n - F E' e_n$ is the dual basis vector $d_n$ of the features, $d_n^\top f_{n'} =
    \delta_{nn'}$, and the decoder's flow is $\dot Y = \eta_Y \sum_n w_n d_n (e_n - \alpha_n)^\top$. Here: the
    largest difference of the attention logits, as a share of the largest, from Runge-Kutta steps on all $M$
    columns with the pseudo-inverse and automatic differentiation, at $1.5\, t_0'$.
    """
    # dual: whether the explicit decoder follows the dual basis; otherwise it follows the features.
    M = int(torch.randint(20, 60, (), generator=generator))
    classes, ratio = unequal_classes(generator, vocab_size=M), 10 ** uniform(-1.0, 0.0, generator)
    S, w, end, steps = (
        classes.tokens,
        classes.weights,
        1.5 * scanning_time(classes=4, vocab_size=M, eta_y=1.0),
        120,
    )

    def rate(Y: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
        z = Z.clone().requires_grad_()
        c = classes.conditional * torch.exp(z[classes.query])
        f = c / c.norm(dim=1, keepdim=True)
        log_alpha = torch.log_softmax(f @ Y, dim=1)
        (dz,) = torch.autograd.grad((w * log_alpha.diagonal()).sum(), z)
        directions = torch.linalg.pinv(f.detach()) if dual else f.detach().T  # [S, K]
        return directions @ (
            w[:, None] * (torch.eye(4, M, dtype=torch.float64) - log_alpha.detach().exp())
        ), ratio * dz

    Y, Z, step = torch.zeros(S, M, dtype=torch.float64), torch.zeros(2, S, dtype=torch.float64), end / steps
    for _ in range(steps):  # Runge and Kutta's method of order 4
        k1 = rate(Y, Z)
        k2 = rate(Y + step / 2 * k1[0], Z + step / 2 * k1[1])
        k3 = rate(Y + step / 2 * k2[0], Z + step / 2 * k2[1])
        k4 = rate(Y + step * k3[0], Z + step * k3[1])
        Y, Z = (x + step / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip((Y, Z), k1, k2, k3, k4))
    z = modified_flow(classes, torch.tensor([end], dtype=torch.float64), eta_y=1.0, eta_z=ratio).logits[0]
    return Measured(_largest_difference(z, Z), {"M": M, "largest logit": float(z.abs().max())})


@claim(
    "scan_snap/slow-attention",
    measures="largest difference of the logits of both flows, as a share of the largest logit",
    at_most=1e-3,
    source=Source(PAPER, "Lemma 5, Eq. (31); Lemma 4, Eq. (10)", "own"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "one common token",
        r"$\eta_Z \ll \eta_Y$",
    ),
    control=but("uses the exact flow instead of Lemma 3's", flow=exact_flow),
    corrects=r"Lemma 4 (Eqs. (10) and (94)) sums over the classes without their shares, while $\gamma$ "
    "counts the steps of one class, $h(t/K)$; with the shares $w_n = 1/K$ both have the same unit of "
    "time.",
    corrected=Source("tian2023scan", "Lemma 4, Eqs. (10) and (94)", "confirmed"),
)
def slow_attention(generator: Generator, *, flow: Callable = modified_flow) -> Measured:
    r"""While attention stands still, the decoder of Lemma 3's flow is known in closed form, and Lemma 4's
    flow with the shares $w_n$ moves attention as Lemma 3's flow does. The paper has equal shares; unequal
    ones are the library's own. Here: the largest difference of the attention logits, as a share of the
    largest, for $\eta_Z = 10^{-7} \eta_Y$, from $0.1\, t_0'$ to $30\, t_0'$.
    """
    M = int(10 ** uniform(1.0, 4.0, generator))
    classes = unequal_classes(generator, vocab_size=max(M, 10))
    times = scanning_time(classes=4, vocab_size=classes.vocab_size, eta_y=1.0) * torch.tensor(
        [0.1, 1.0, 30.0], dtype=torch.float64
    )
    found, expected = (
        each(classes, times, eta_y=1.0, eta_z=1e-7, tolerance=1e-9).logits for each in (flow, lemma4_flow)
    )
    return Measured(max(map(_largest_difference, found, expected)), {"M": classes.vocab_size})


def _tiny_overlaps(generator: Generator) -> SymmetricClasses:
    K, M = int(torch.randint(2, 5, (), generator=generator)), int(10 ** uniform(2.0, 4.0, generator))
    weights = 0.1 + torch.rand(4, generator=generator, dtype=torch.float64)
    return with_overlap(K, vocab_size=M, weights=weights, overlap=uniform(0.05, 0.5, generator) / M)


def _smallest_move(move: Tensor, classes: SequenceClasses) -> float:
    """Returns the smallest move in the predicted direction, distinct tokens up and the common one down, over
    the largest move.
    """
    return float(torch.where(classes.common(), -move, move).min() / move.abs().max())


def _first_velocity(classes: SequenceClasses, *, sign: int) -> Tensor:
    """Returns the velocity of the attention logits at the start by Eq. (10), up to its scale, ``[S]``.

    Args:
        sign: of the term q_0 (1 + theta_n') in beta, Eq. (88), with theta = 0: 1 as printed, -1 as it follows
            from Eqs. (82) to (84).
    """
    K, M, f = classes.classes, classes.vocab_size, classes.features()
    E = torch.eye(K, dtype=torch.float64) - torch.linalg.inv(f @ f.T)  # E'
    q_1, q_0 = M / (M - 1), -M / (M - 1) ** 2
    velocity = torch.zeros_like(f[0])
    for n in range(K):
        for other in set(range(K)) - {n}:
            beta = q_1 * E[other, n] + q_0 * (sign + sum(float(E[k, other]) for k in range(K) if k != n))
            velocity += beta * f[n] * (f[n] * (f[n] @ f[other]) - f[other])
    return velocity


@claim(
    "scan_snap/tiny-overlaps",
    measures="smallest move in the predicted direction, as a share of the largest move",
    at_least=0.0,
    source=Source(PAPER, "Thm. 2(b); Eq. (88), App. D.5", "own"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "one common token, all classes alike",
        r"$E_0$ from $.05/M$ to $.5/M$",
    ),
    control=but(
        r"uses $\beta$ as printed in the velocity at the start: the common token gains "
        r"attention",
        sign=1,
    ),
    corrects=r"Eq. (88) prints $q_0 ((1 + \theta_{n'}) + \sum_{k \ne n} (1 + \theta_k) E'_{kn'})$; from "
    r"Eqs. (82) to (84) it is $q_0 (-(1 + \theta_{n'}) + \sum_{k \ne n} (1 + \theta_k) E'_{kn'})$: the "
    "first of the two terms changes its sign. As printed, a common token would gain attention where "
    "classes overlap by less than about $1/M$.",
    corrected=Source("tian2023scan", "Eq. (88), App. D.5", "confirmed"),
)
def tiny_overlaps(generator: Generator, *, sign: int = -1) -> Measured:
    r"""In Lemma 4's flow a single common token loses attention, and distinct tokens gain it, even where
    classes overlap by less than $1/M$: $\beta_{nn'} \approx E'_{n'n} + 1/M > 0$. Theorem 2(b) has Assumption
    2; that it holds below is the library's own statement. Here: the smallest move in the predicted direction,
    as a share of the largest move, of the velocity at the start by Eq. (10) and of the flow after $50\,
    t_0'$.
    """
    family = _tiny_overlaps(generator)
    classes = family.written_out()
    times = scanning_time(classes=family.classes, vocab_size=family.vocab_size, eta_y=1.0) * torch.tensor(
        [50.0], dtype=torch.float64
    )
    flow = _smallest_move(lemma4_flow(classes, times, eta_y=1.0, eta_z=0.05).logits[0, 0], classes)
    start = _smallest_move(_first_velocity(classes, sign=sign), classes)
    detail = {
        "E_0 M": family.overlap * family.vocab_size,
        "velocity at the start": start,
        "after 50 t0'": flow,
    }
    return Measured(min(start, flow), detail)


@claim(
    "scan_snap/symmetric-classes",
    measures="largest difference of the logits from the flows of all classes, as a share of the largest "
    "logit",
    at_most=1e-5,
    source=Source(PAPER, status="own"),
    assumptions=("infinitely many, infinitely long sequences", "all classes alike"),
    control=but("halves the weight of a token of one class, so that it differs from the others", skew=0.5),
)
def symmetric_classes(generator: Generator, *, skew: float = 1.0) -> Measured:
    """If all classes are alike, training preserves the symmetry, and the exact, the modified and Lemma 4's
    flow are determined by $O(D + C)$ numbers, with $D$ distinct tokens a class and $C$ common ones, for any
    $K$ and $M$. Here: the largest difference of the attention logits from the flows of all classes, as a
    share of the largest logit.
    """
    # skew: factor on the probability of the first class's first distinct token, before its row is divided by
    # its sum.
    K, per_query = ((2, 1), (3, 3), (4, 2), (4, 4))[int(torch.randint(4, (), generator=generator))]
    M = K if float(torch.rand((), generator=generator)) < 0.3 else int(10 ** uniform(1.0, 4.0, generator))
    weights = 0.1 + torch.rand(3, generator=generator, dtype=torch.float64)
    common = int(torch.randint(1, 4, (), generator=generator))
    family = alike(
        K,
        vocab_size=M,
        weights=weights,
        common_share=uniform(0.1, 0.5, generator),
        common=common,
        per_query=per_query,
    )
    classes = family.written_out()
    P = classes.conditional.clone()
    P[0, common] *= skew
    classes = SequenceClasses(P / P.sum(1, keepdim=True), classes.query, M)
    times = scanning_time(classes=K, vocab_size=M, eta_y=1.0) * torch.tensor(
        [0.3, 1.0, 30.0], dtype=torch.float64
    )
    eta_z = 10 ** uniform(-1.5, 0.0, generator)
    errors = {}
    for name, reduced, full in FLOWS:
        found = reduced(family, times, eta_y=1.0, eta_z=eta_z, tolerance=1e-9).written_out(family).logits
        errors[name] = _largest_difference(
            found, full(classes, times, eta_y=1.0, eta_z=eta_z, tolerance=1e-9).logits
        )
    return Measured(max(errors.values()), {**errors, "K": K, "M": M})


def _minus_B(t: Tensor, **setting: float) -> Tensor:
    return -B(t, **setting)  # pyright: ignore[reportArgumentType]


def _minus_printed_B(t: Tensor, *, classes: int, overlap: float, **setting: float) -> Tensor:
    """Returns minus the printed form with C_0 = 1 / ((K - 1) E_0^2)."""
    return -printed_B(t, classes=classes, constant=1 / ((classes - 1) * overlap**2), **setting)  # pyright: ignore[reportArgumentType]


@claim(
    "scan_snap/common-logit",
    measures="largest relative difference of -B and a numerical solution",
    at_most=1e-6,
    source=Source(PAPER, "Thm. 4; Eq. (124)", "confirmed"),
    assumptions=("one common token, all classes alike",),
    control=but(r"uses the printed form $\frac14 \ln(C_0 + 4\Gamma)$", closed=_minus_printed_B),
    corrects=r"Eq. (124) prints $\frac14 \ln(C_0 + 4\Gamma)$, which is not zero at $t = 0$ unless $C_0 "
    r"= 1$. " + PRINTED_C0,
    corrected=Source("tian2023scan", "Eq. (124)", "confirmed"),
)
def common_logit(generator: Generator, *, closed: Callable = _minus_B) -> Measured:
    r"""For any $C_0$ the solution of Theorem 4's equation $\dot z = -\eta_Z \gamma(t)\, e^{4z} / C_0$, $z(0)
    = 0$, is $z = -B(t)$ with $B = \frac14 \ln(1 + 4 \Gamma / C_0)$; here $1 / C_0 = (K-1) E_0^2$. Measured:
    the largest relative difference from a numerical solution, from $0.1\, t_0'$ to $10^4\, t_0'$.
    """
    from scipy.integrate import solve_ivp

    K, M = int(torch.randint(2, 20, (), generator=generator)), int(10 ** uniform(1.5, 6.0, generator))
    setting = {"classes": K, "vocab_size": M, "eta_y": 10 ** uniform(-1, 1, generator)}
    eta_z, overlap = setting["eta_y"] * 10 ** uniform(-2, 2, generator), 10 ** uniform(-2, -0.3, generator)
    times = scanning_time(**setting) * torch.tensor([0.1, 1.0, 10.0, 1e4], dtype=torch.float64)

    def rate(u: float, z: np.ndarray) -> np.ndarray:  # u = ln t, so dz/du = t dz/dt
        t = math.exp(u)
        return -eta_z * t * float(gamma(torch.tensor(t), **setting)) * (K - 1) * overlap**2 * np.exp(4 * z)

    # Before the first time z is of the order of t^2, so a start at 1e-9 times it is a start at 0.
    logs = times.log().tolist()
    solved = solve_ivp(
        rate, (logs[0] - 20, logs[-1]), [0.0], method="DOP853", t_eval=logs, rtol=1e-9, atol=1e-18
    )
    z = torch.from_numpy(solved.y[0])
    error = float((closed(times, eta_z=eta_z, overlap=overlap, **setting) / z - 1).abs().max())
    return Measured(error, converged=solved.success, detail={"K": K, "M": M, "z": float(z[-1])})


@claim(
    "scan_snap/weak-overlap-logit",
    measures="largest relative difference of -B and Lemma 4's flow",
    at_most=0.05,
    source=Source(PAPER, "Thm. 4", "confirmed"),
    assumptions=(
        "one common token, all classes alike",
        r"$K E_0 \ll 1 \ll M E_0$: $E_0 \le .005$, at most four classes, $M E_0 = 10^4$",
        "a hundred distinct tokens of similar probability, so that none gains much",
    ),
    control=but(r"has a vocabulary of $M = 2 / E_0$, so the term $1 / (M E_0)$ is one half", products=2.0),
    corrects=PRINTED_C0,
    corrected=Source("tian2023scan", "Eq. (13)", "confirmed"),
)
def weak_overlap_logit(generator: Generator, *, products: float = 1e4) -> Measured:
    r"""In Lemma 4's flow the logit of a single common token is $-B(t)$ with $1/C_0 = (K-1) E_0^2$, to 5 %,
    for $\eta_Z$ from 1 to $1000\, \eta_Y$; the error is of the order of $K E_0$, $1 / (M E_0)$ and of the
    gain of the distinct tokens. Here: the largest relative difference, up to $100\, t_0'$.
    """
    # products: M E_0.
    K, overlap = int(torch.randint(2, 5, (), generator=generator)), 10 ** uniform(-3, -2.3, generator)
    M = max(K, int(products / overlap))
    weights = 0.5 + torch.rand(100, generator=generator, dtype=torch.float64)
    classes = with_overlap(K, vocab_size=M, weights=weights, overlap=overlap)
    setting = {"eta_y": 1.0, "eta_z": 10 ** uniform(0, 3, generator)}
    times = scanning_time(classes=K, vocab_size=M, eta_y=1.0) * torch.tensor(
        [0.1, 1.0, 100.0], dtype=torch.float64
    )
    z = lemma4_flow(classes.written_out(), times, **setting, tolerance=1e-9).logits[:, 0, 0]
    error = float((-B(times, classes=K, vocab_size=M, overlap=overlap, **setting) / z - 1).abs().max())
    return Measured(error, {"K": K, "E_0": overlap, "M": M, "z": float(z[-1])})


@claim(
    "scan_snap/scanning-time",
    measures="relative distance of the time of the largest gamma to t0'",
    at_most=0.25,
    margin=NEAR,
    source=Source(PAPER, "Thm. 1(b)", "own"),
    assumptions=("the decoder follows Lemma 3", "equal shares", r"$M \ge 100$"),
    control=but("counts all steps in the decoder's gain, not the steps of one class", share=False),
)
def peak(generator: Generator, *, share: bool = True) -> Measured:
    r"""The speed of attention $\gamma(t)$ is largest near $t_0' = K \ln M / \eta_Y$, for $M \ge 100$ within a
    quarter of it. Theorem 1(b) bounds $\gamma$ before and after; the maximum and the quarter are the
    library's own. Here: the relative distance of that time to $t_0'$.
    """
    # share: whether gamma counts the steps of one class, t/K; otherwise it counts all steps.
    K, M, eta_y = (
        int(torch.randint(2, 50, (), generator=generator)),
        int(10 ** uniform(2, 12, generator)),
        10 ** uniform(-2, 1, generator),
    )
    scanning = scanning_time(classes=K, vocab_size=M, eta_y=eta_y)
    t = scanning * torch.linspace(0.01, 4, 4000, dtype=torch.float64)
    speed = (
        gamma(t, classes=K, vocab_size=M, eta_y=eta_y)
        if share
        else gamma(K * t, classes=K, vocab_size=M, eta_y=eta_y)
    )
    ratio = float(t[speed.argmax()]) / scanning
    return Measured(abs(ratio - 1), {"K": K, "M": M, "time over t0'": ratio})


CLAIMS = (
    descent_error,
    explicit_error,
    slow_attention,
    tiny_overlaps,
    symmetric_classes,
    common_logit,
    weak_overlap_logit,
    peak,
)
