"""Claims about the flows of :cite:t:`tian2023scan`: relative gains, growth of tokens, speed of attention, the
decoder's gain.

Each claim names the dynamics that it refers to. The docstrings of the functions that draw instances state the
assumptions that the instances satisfy.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..closed_form import B, exact_common_logit, gamma, h, h_discrete, scanning_time
from ..families import with_overlap
from ..flow import (
    EXACT,
    LEMMA4,
    MODIFIED,
    Flow,
    exact_flow,
    lemma4_flow,
    modified_flow,
    symmetric_exact_flow,
    symmetric_lemma4_flow,
)
from ..gains import gain_bounds, printed_gain_bounds, relative_gains
from ..growth import growth_exponents
from ..problem import SequenceClasses, single_common

PAPER = "tian2023scan"
ASSUMPTION_2 = (
    r"equal overlaps that satisfy Assumption 2: $M \gg K^2$, $|\lambda_1(E)| < 1/K$ and $|\lambda_i(E)| \ge "
    r"\sqrt{6/M}$"
)


def random_classes(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Draws two to four classes of one query, with one common token and three to five distinct
    tokens each.
    """
    K, D = (
        int(torch.randint(2, 5, (), generator=generator)),
        int(torch.randint(3, 6, (), generator=generator)),
    )
    weights = 0.1 + torch.rand(K, D, generator=generator, dtype=torch.float64)
    share = 0.05 + 0.4 * torch.rand(K, generator=generator, dtype=torch.float64)
    return single_common(weights, share, vocab_size=vocab_size)


@claim(
    "scan_snap/relative-gain",
    measures="largest relative error of r(0) chi",
    at_most=1e-9,
    source=Source(PAPER, "Thm. 3, Eq. (11)", "confirmed"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "Lemma 4's flow: the decoder follows Lemma 3",
        "distinct tokens of different probabilities",
    ),
    control=but(
        "follows the exact population flow, whose decoder depends on past attention, instead of Lemma 4's",
        flow=exact_flow,
    ),
)
def relative_gain(generator: Generator, *, flow: Callable[..., Flow] = lemma4_flow) -> Measured:
    r"""In Lemma 4's flow the relative gain $r(t) = c_l^2 / c_{l'}^2 - 1$ of two distinct tokens of a class is
    $r(t) = r(0)\, \chi_l(t)$ with $\chi_l = e^{2 (z_l(t) - z_l(0))}$.
    """
    classes = random_classes(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    path: Flow = flow(
        classes,
        t0 * torch.tensor([0.3, 1.0, 10.0, 100.0], dtype=torch.float64),
        eta_y=1.0,
        eta_z=0.1,
        tolerance=1e-9,
    )
    gains = relative_gains(classes, path.logits)
    grown = float((gains.predicted[-1] / gains.start).max())
    return Measured(gains.error, {"largest chi": grown, "pairs": len(gains.start)})


def uniform(low: float, high: float, generator: Generator) -> float:
    """Draws a number, uniform in [low, high]."""
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def weakly_overlapping(generator: Generator, *, vocab_size: int = 20_000) -> SequenceClasses:
    """Draws classes like :func:`random_classes`, with equal overlaps that satisfy Assumption 2."""
    K, D = (
        int(torch.randint(2, 5, (), generator=generator)),
        int(torch.randint(3, 6, (), generator=generator)),
    )
    weights = 0.1 + torch.rand(K, D, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    # Assumption 2 for K equal overlaps rho: sqrt(6/M) <= rho < 1 / (K (K-1)). Draw rho log-uniformly, 10 %
    # away from both ends.
    rho = math.exp(
        uniform(math.log(1.1 * math.sqrt(6 / vocab_size)), math.log(0.9 / (K * (K - 1))), generator)
    )
    # The odds of the common share that give this overlap are derived in with_overlap.
    odds = torch.linalg.vector_norm(weights, dim=1) * math.sqrt(rho / (1 - rho))
    return single_common(weights, odds / (1 + odds), vocab_size=vocab_size)


@claim(
    "scan_snap/gain-bounds",
    measures="smallest distance of ln chi to the exponent of a bound, as a share of ln chi",
    at_least=0.0,
    source=Source(PAPER, "Thm. 3, Eq. (12); Eq. (98)", "confirmed"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "one common token, which falls",
        ASSUMPTION_2,
        "$l_0$ is the likeliest distinct token at the start",
    ),
    control=but("uses the printed bounds, without the share of the class", bounds=printed_gain_bounds),
    corrects=r"Lemma 4 (Eqs. (10) and (94)) drops the class shares, while $\gamma$ counts all steps, "
    "$h(t/K)$. The printed bounds follow from the printed flow; with the shares they need $w_n B_n$ "
    "for $B_n$, and the printed lower bound is violated, as the control shows.",
    corrected=Source("tian2023scan", "Lemma 4, Eqs. (10) and (94)", "confirmed"),
)
def slack(generator: Generator, *, bounds: Callable = gain_bounds) -> Measured:
    r"""In Lemma 4's flow the likeliest distinct token $l_0$ of a class obeys $e^{2 f_{nl_0}(0)^2 w_n B_n(t)}
    \le \chi_{l_0}(t) \le e^{2 w_n B_n(t)}$, where $w_n$ is the share of class $n$ and $\dot B_n = \eta_Z
    \xi_n$. Here: the smallest distance of $\ln \chi_{l_0}$ to the exponent of a bound, as a share of $\ln
    \chi_{l_0}$, up to $10^8\, t_0'$.
    """
    classes = weakly_overlapping(generator)
    eta_z = 10 ** uniform(-2.5, -0.5, generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([1.0, 10.0, 1e4, 1e8], dtype=torch.float64)
    path = lemma4_flow(classes, times, eta_y=1.0, eta_z=eta_z, tolerance=1e-9)
    gains = bounds(classes, path)
    covered = classes.weak_overlap().holds
    return Measured(
        float(gains.slack.min()), covered=covered, detail={"largest ln chi": float(gains.log_chi.max())}
    )


@claim(
    "scan_snap/first-gain",
    measures="largest relative distance of the lower exponent, or f^2 times the upper one, to ln chi",
    at_most=0.002,
    source=Source(PAPER, "Thm. 3; Eq. (98)", "own"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        ASSUMPTION_2,
        "$l_0$ is the likeliest distinct token at the start",
        r"$\eta_Z < \eta_Y$",
    ),
    control=but("uses the printed bounds, without the share of the class", bounds=printed_gain_bounds),
)
def first_gain(generator: Generator, *, bounds: Callable = gain_bounds) -> Measured:
    r"""At the start of Lemma 4's flow the likeliest distinct token $l_0$ of a class has $\ln \chi_{l_0}(t)
    \approx 2 f_{nl_0}(0)^2 w_n B_n(t)$, by Eq. (98). This is the exponent of Theorem 3's lower bound, which
    is sharp there, and $f_{nl_0}(0)^2$ times that of the upper one. Here: the larger of the two relative
    distances to $\ln \chi_{l_0}$, at $t_0'/20$.
    """
    classes = weakly_overlapping(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    eta_z, t = 10 ** uniform(-2.5, -0.5, generator), torch.tensor([0.05 * t0], dtype=torch.float64)
    gains = bounds(classes, lemma4_flow(classes, t, eta_y=1.0, eta_z=eta_z, tolerance=1e-9))
    f = classes.features().gather(1, gains.token[:, None])[:, 0]
    expected = torch.cat([gains.lower, f**2 * gains.upper])
    return Measured(float((expected / gains.log_chi - 1).abs().max()), covered=classes.weak_overlap().holds)


def _smallest_move(flow: Callable[..., Flow], classes: SequenceClasses) -> Measured:
    """Measures the smallest move in the predicted direction (distinct tokens up, common tokens down) between
    0, .5, 2 and 50 t0'.

    It is a share of the largest move between the same two times.
    """
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([0.0, 0.5, 2.0, 50.0], dtype=torch.float64)
    moves = flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits[:, 0].diff(dim=0)
    signed = torch.where(classes.common(), -moves, moves) / moves.abs().amax(1, keepdim=True)
    return Measured(
        float(signed.min()), covered=classes.weak_overlap().holds and int(classes.common().sum()) == 1
    )


def several_common(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Draws two classes with two common tokens; the second one is likely in one class only, so its attention
    logit grows.
    """
    a, b = uniform(0.28, 0.32, generator), uniform(0.0005, 0.0015, generator)
    P = torch.tensor([[a, a, 1 - 2 * a, 0.0], [a, b, 0.0, 1 - a - b]], dtype=torch.float64)
    return SequenceClasses(P, torch.zeros(2, dtype=torch.long), vocab_size)


def _two_common_tokens(generator: Generator) -> Measured:
    return _smallest_move(lemma4_flow, several_common(generator))


@claim(
    "scan_snap/single-common-token",
    measures="smallest move in the predicted direction between two times, as a share of the largest one",
    at_least=0.0,
    source=Source(PAPER, "Thm. 2(a) and (b)", "confirmed"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "one common token",
        "distinct tokens in every class",
        ASSUMPTION_2,
    ),
    control=but(
        "has two common tokens, one of them rare in one of the classes: its logit grows", _two_common_tokens
    ),
)
def single_common_token(generator: Generator) -> Measured:
    r"""In Lemma 4's flow distinct tokens gain attention, $\dot z_l > 0$, and a single common token loses it,
    $\dot z_l < 0$, at all times. Here: the smallest move in the predicted direction between the times $0$,
    $t_0'/2$, $2 t_0'$ and $50\, t_0'$, as a share of the largest move between the same two times.
    """
    classes = weakly_overlapping(generator)
    exact = _smallest_move(exact_flow, classes)
    return replace(_smallest_move(lemma4_flow, classes), detail={"exact flow": exact.value})


def equally_common(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Draws classes like :func:`several_common`, but each common token has the same probability in both
    classes.
    """
    a, b = uniform(0.28, 0.32, generator), uniform(0.1, 0.3, generator)
    P = torch.tensor([[a, b, 1 - a - b, 0.0], [a, b, 0.0, 1 - a - b]], dtype=torch.float64)
    return SequenceClasses(P, torch.zeros(2, dtype=torch.long), vocab_size)


@claim(
    "scan_snap/several-common-tokens",
    measures="largest move of a common token, as a share of the largest move; the smallest one of the "
    "three flows",
    at_least=0.0,
    source=Source(PAPER, "Thm. 2(b); Corollary 2, App. E", "own"),
    assumptions=(
        "infinitely many, infinitely long sequences",
        "two common tokens, the second of different probability in the classes",
    ),
    control=but(
        "makes the common tokens equally likely in both classes (Corollary 2), so all of them lose attention",
        instance=equally_common,
    ),
)
def several_common_tokens(
    generator: Generator, *, instance: Callable[[Generator], SequenceClasses] = several_common
) -> Measured:
    r"""Of several common tokens one may gain attention, $\dot z_l > 0$: frequent in one class and rare in the
    other, it behaves like a distinct token, in the exact, the modified and Lemma 4's flow. The paper's
    theorem is about a single common token; the example is the library's own. Here: its move as a share of the
    largest move, in the flow where it is smallest.
    """
    classes = instance(generator)
    t0 = scanning_time(classes=2, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([2.0, 50.0], dtype=torch.float64)
    upward = []
    for flow in (exact_flow, modified_flow, lemma4_flow):
        move = flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits[-1, 0]
        upward.append(float(move[classes.common()].max() / move.abs().max()))
    return Measured(min(upward), dict(zip((EXACT, MODIFIED, LEMMA4), upward)))


def _weights(generator: Generator) -> Tensor:
    """Draws weights of three to six distinct tokens, ``[D]``."""
    D = int(torch.randint(3, 7, (), generator=generator))
    return 0.1 + torch.rand(D, generator=generator, dtype=torch.float64)


@claim(
    "scan_snap/quadratic-start",
    measures="distance of the power of t to 2",
    at_most=0.005,
    source=Source(PAPER, "Thm. 4, Eq. (14), line 1; Lemma 9; Eq. (130)", "confirmed"),
    assumptions=("one common token, all classes alike", r"$\eta_Z \ll \eta_Y$"),
    control=but("measures the same after t0', when attention has snapped", start=3.0),
)
def quadratic_start(generator: Generator, *, start: float = 0.01) -> Measured:
    r"""In Lemma 4's flow the logit of a single common token falls as $-t^2$ long before $t_0' = K \ln M /
    \eta_Y$: there $\gamma(t) \approx \eta_Y t / K$. Here: the distance of the power of $t$ to 2, over half a
    decade from $t_0'/100$.
    """
    # The slope is negative if the token gains attention.
    K, M = int(torch.randint(2, 7, (), generator=generator)), int(10 ** uniform(3, 5, generator))
    classes = with_overlap(
        K, vocab_size=M, weights=_weights(generator), overlap=uniform(0.05, 0.3, generator)
    )
    t = (
        start
        * scanning_time(classes=K, vocab_size=M, eta_y=1.0)
        * torch.tensor([1.0, 10**0.5], dtype=torch.float64)
    )
    z = symmetric_lemma4_flow(classes, t, eta_y=1.0, eta_z=10 ** uniform(-3, -1.5, generator)).common[:, 0]
    slope = float(-z[1].sign() * (z[1] / z[0]).abs().log() / (t[1] / t[0]).log())
    return Measured(abs(slope - 2), {"slope": slope, "K": K, "M": M})


@claim(
    "scan_snap/double-logarithm",
    measures="distance of dB / d ln ln(M eta_Y t / K) to 1/2",
    at_most=2e-4,
    source=Source(PAPER, "Thm. 4, Eq. (14), line 2; Eqs. (124), (132), (133)", "confirmed"),
    assumptions=("one common token, all classes alike", "times that no training reaches"),
    control=but(
        r"measures at $t_0 = 2 t_0'$, where the paper's second regime begins", decades=math.log10(2.0)
    ),
)
def double_logarithm(generator: Generator, *, decades: float = 280.0) -> Measured:
    r"""In closed form $B(t) \sim \frac12 \ln \ln t$: $dB / d \ln\ln(M \eta_Y t / K) \to \frac12$. Here: the
    distance to $\frac12$ at $10^{280}\, t_0'$.
    """
    K, M = int(torch.randint(2, 11, (), generator=generator)), int(10 ** uniform(2, 5, generator))
    t = torch.tensor([10.0**decades * scanning_time(classes=K, vocab_size=M, eta_y=1.0)], dtype=torch.float64)
    eta_z, overlap = 10 ** uniform(-1, 1, generator), uniform(0.1, 0.4, generator)
    slope = float(
        growth_exponents(t, classes=K, vocab_size=M, eta_y=1.0, eta_z=eta_z, overlap=overlap).per_loglog[0]
    )
    return Measured(abs(slope - 0.5), {"slope": slope, "K": K, "M": M})


@claim(
    "scan_snap/late-speed",
    measures="largest ratio of gamma(t) eta_Y t / K to ln(M eta_Y t / K)",
    at_most=2.5,
    margin=NEAR,
    source=Source(PAPER, "Thm. 1(b); Lemma 9", "confirmed"),
    assumptions=("the decoder follows Lemma 3", "equal shares", r"$M$ from 100 to $10^{100}$"),
    control=but(r"divides by the printed $\ln(\eta_Y t / K)$", printed=True),
    corrects=r"Theorem 1(b) and the second bullet of Theorem 4 print $\ln(\eta_Y t / K)$; as a rate in "
    r"$M$ it must be $\ln(M \eta_Y t / K)$, as in Lemma 9 and Eq. (14). For a fixed $M$ both have the "
    "same limit.",
    corrected=Source("tian2023scan", "Thm. 1(b); Thm. 4, second bullet", "confirmed"),
)
def late_speed(generator: Generator, *, printed: bool = False) -> Measured:
    r"""From $2 t_0'$ on the speed of attention is $\gamma(t) = O(K \ln(M \eta_Y t / K) / (\eta_Y t))$, with a
    constant that holds for every $M$. Here: the largest ratio of $\gamma(t)\, \eta_Y t / K$ to $\ln(M \eta_Y
    t / K)$, from $2 t_0'$ to $10^6\, t_0'$. The bound 2.5 is the library's own.
    """
    K, M, eta_y = (
        int(torch.randint(2, 50, (), generator=generator)),
        int(10 ** uniform(2, 100, generator)),
        10 ** uniform(-2, 0, generator),
    )
    t = scanning_time(classes=K, vocab_size=M, eta_y=eta_y) * torch.logspace(
        math.log10(2), 6, 200, dtype=torch.float64
    )
    s = eta_y * t / K
    logarithm = s.log() if printed else math.log(M) + s.log()
    ratio = float((gamma(t, classes=K, vocab_size=M, eta_y=eta_y) * s / logarithm).max())
    return Measured(ratio, {"K": K, "log10 M": math.log10(M)})


def _distance(
    law: Callable[..., Tensor],
    generator: Generator,
    *,
    K: int,
    overlap: float,
    eta_z: float,
    **options: float,
) -> Measured:
    """Returns the largest relative distance of the law to the exact flow's common logit; the options are
    those of the flow.
    """
    classes = with_overlap(K, vocab_size=K, weights=_weights(generator), overlap=overlap)
    t = K * torch.logspace(0, 30, 16, dtype=torch.float64)
    z = symmetric_exact_flow(classes, t, eta_y=1.0, eta_z=eta_z, **options).common[:, 0]
    predicted = law(t, classes=K, eta_y=1.0, eta_z=eta_z, overlap=overlap)
    return Measured(float((predicted / z - 1).abs().max()), {"K": K, "overlap": overlap, "z": float(z[-1])})


def _minus_B(t: Tensor, *, classes: int, eta_y: float, eta_z: float, overlap: float) -> Tensor:
    """Returns Theorem 4's closed form with M = K."""
    return -B(t, classes=classes, vocab_size=classes, eta_y=eta_y, eta_z=eta_z, overlap=overlap)


@claim(
    "scan_snap/exact-common-logit",
    measures="largest relative difference of formula and exact flow",
    at_most=0.1,
    source=Source(PAPER, status="own"),
    assumptions=(
        "one common token, all classes alike",
        "M = K",
        r"eight classes and more, $E_0 \le 0.1$",
        "derived here, not in the paper",
    ),
    control=but(
        "uses the closed form of Theorem 4, $z = -B$, which assumes the modified decoder and large $M$",
        law=_minus_B,
    ),
)
def law_error(generator: Generator, *, law: Callable[..., Tensor] = exact_common_logit) -> Measured:
    r"""If every token of the vocabulary is some class's next token, $M = K$, a single common token's logit in
    the exact flow is $z = -\frac12 \ln(1 + \frac{\eta_Z}{\eta_Y} \frac{(K-1) E_0}{1 - E_0} [K h((1 - E_0) t /
    K)]^2)$, up to what distinct tokens gain. Here: the largest relative difference, for $\eta_Z$ from $.01\,
    \eta_Y$ to $\eta_Y$.
    """
    K = int(torch.randint(8, 200, (), generator=generator))
    overlap, eta_z = 10 ** uniform(-3, -1, generator), 10 ** uniform(-2, 0, generator)
    # The largest error of any instance that can be drawn is 0.085: eight classes, overlap 0.1, weights 1.1,
    # 0.1 and 0.1.
    return _distance(law, generator, K=K, overlap=overlap, eta_z=eta_z)


def _without_slowing(t: Tensor, *, classes: int, eta_y: float, eta_z: float, overlap: float) -> Tensor:
    """Returns the law with h(t/K) for h((1 - E_0) t/K)."""
    return exact_common_logit(t / (1 - overlap), classes=classes, eta_y=eta_y, eta_z=eta_z, overlap=overlap)


@claim(
    "scan_snap/exact-slow-logit",
    measures="largest relative difference of formula and exact flow",
    at_most=0.01,
    source=Source(PAPER, status="own"),
    assumptions=(
        "one common token, all classes alike",
        "M = K",
        r"eight to fifty classes, $E_0$ from .05 to .1",
        r"$\eta_Z = 10^{-6} \eta_Y$",
        "derived here, not in the paper",
    ),
    control=but(
        "has $h(t/K)$ instead of $h((1 - E_0) t/K)$: a decoder that does not slow down where classes overlap",
        law=_without_slowing,
    ),
)
def exact_slow_logit(generator: Generator, *, law: Callable[..., Tensor] = exact_common_logit) -> Measured:
    r"""In the same setting, $M = K$, while attention has moved little, the exact flow's common logit is $z =
    -\frac12 \ln(1 + \frac{\eta_Z}{\eta_Y} \frac{(K-1) E_0}{1 - E_0} [K h((1 - E_0) t / K)]^2)$ to 1 %. Here:
    the largest relative difference for $\eta_Z = 10^{-6} \eta_Y$.
    """
    K, overlap = int(torch.randint(8, 51, (), generator=generator)), uniform(0.05, 0.1, generator)
    return _distance(law, generator, K=K, overlap=overlap, eta_z=1e-6, tolerance=1e-9)


@claim(
    "scan_snap/closed-form-h",
    measures="distance of the excess to [0, 2 eta_Y / M], in units of 2 eta_Y / M",
    at_most=1e-9,
    source=Source(PAPER, "Lemma 5, Eq. (33); Lemma 6, Eq. (45); Lemma 7(a)", "confirmed"),
    assumptions=("Lemma 3's decoder from zero",),
    control=but("omits the linear term (M - 1) M h of the equation, as for large t", linear_term=False),
)
def closed_form_h(generator: Generator, *, linear_term: bool = True) -> Measured:
    r"""The decoder's gain under gradient descent, $h^*(s) = h^*(s-1) + \eta_Y / (M - 1 + e^{M h^*(s-1)})$,
    exceeds the root $h$ of $e^{Mh} + (M-1) M h = M \eta_Y t + 1$ at $t = s$ by at most $2 \eta_Y / M$. Here:
    how far the excess leaves $[0, 2 \eta_Y / M]$ within 3000 steps, in units of $2 \eta_Y / M$, for $\eta_Y$
    from .001 to 100.
    """
    steps = 3000
    t, outside, largest = torch.arange(steps, dtype=torch.float64), 0.0, 0.0
    for low, high in ((3, 100), (100, 1e5)):
        M = int(math.exp(uniform(math.log(low), math.log(high), generator)))
        for decade in (-3.0, -1.0, 1.0):
            eta_y = 10 ** (decade + uniform(0.0, 1.0, generator))
            closed = h(t, vocab_size=M, eta_y=eta_y) if linear_term else torch.log1p(M * eta_y * t) / M
            gap = (h_discrete(steps, vocab_size=M, eta_y=eta_y) - closed) * M / (2 * eta_y)
            outside = max(outside, float((-gap).max()), float((gap - 1).max()))
            largest = max(largest, float(gap.max()))
    return Measured(outside, {"largest gap in units of 2 eta_Y / M": largest})


CLAIMS = (
    relative_gain,
    slack,
    first_gain,
    single_common_token,
    several_common_tokens,
    quadratic_start,
    double_logarithm,
    late_speed,
    law_error,
    exact_slow_logit,
    closed_form_h,
)
