"""Checkable statements of scan-and-snap, each with a control that must fail, and each about one named dynamics."""

import math

import torch
from torch import Generator, Tensor

from ...citations import Source
from ...claims import Claim, Evidence
from ...data.bridges import one_hot
from .closed_form import h, h_discrete, scanning_time
from .dynamics import Batch, Weights, forward
from .flow import Flow, exact_flow, lemma4_flow, relative_gains
from .problem import SequenceClasses, single_common

PAPER = "tian2023scan"


def _uniform(low: float, high: float, generator: Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def random_classes(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Two to four classes of one query with one common token and three to five distinct tokens each, of random probabilities."""
    K, D = int(torch.randint(2, 5, (), generator=generator)), int(torch.randint(3, 6, (), generator=generator))
    weights = 0.1 + torch.rand(K, D, generator=generator, dtype=torch.float64)
    share = 0.05 + 0.4 * torch.rand(K, generator=generator, dtype=torch.float64)
    return single_common(weights, share, vocab_size=vocab_size)


def weakly_overlapping(generator: Generator, *, vocab_size: int = 20_000) -> SequenceClasses:
    """As :func:`random_classes`, with the common token's share chosen so that all overlaps are equal and Assumption 2 holds."""
    K, D = int(torch.randint(2, 5, (), generator=generator)), int(torch.randint(3, 6, (), generator=generator))
    weights = 0.1 + torch.rand(K, D, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    rho = math.exp(_uniform(math.log(1.1 * math.sqrt(6 / vocab_size)), math.log(0.9 / (K * (K - 1))), generator))
    odds = torch.linalg.vector_norm(weights, dim=1) * math.sqrt(rho / (1 - rho))
    return single_common(weights, odds / (1 + odds), vocab_size=vocab_size)


def _gain_error(generator: Generator, flow) -> Evidence:
    classes = random_classes(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    path: Flow = flow(classes, t0 * torch.tensor([0.3, 1.0, 10.0, 100.0], dtype=torch.float64), eta_y=1.0, eta_z=0.1, tolerance=1e-8)
    gains = relative_gains(classes, path.logits)
    grown = float((gains.predicted[-1] / gains.start).max())
    return Evidence(gains.error, 1e-9, "<=", detail={"largest chi": grown, "pairs": len(gains.start)})


def _smallest_move(logits: Tensor, classes: SequenceClasses) -> Evidence:
    """Worst case of "distinct tokens rise, common tokens fall", as a share of the largest move: positive if all obey."""
    move = logits[-1, 0]
    signed = torch.where(classes.common(), -move, move) / move.abs().max()
    return Evidence(float(signed.min()), 0.0, ">=", in_assumptions=classes.weak_overlap().holds and int(classes.common().sum()) == 1)


def _fates(generator: Generator) -> Evidence:
    classes = weakly_overlapping(generator)
    t0 = scanning_time(classes=classes.classes, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64)
    found = _smallest_move(lemma4_flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits, classes)
    exact = _smallest_move(exact_flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits, classes)
    return Evidence(found.value, found.bound, found.op, in_assumptions=found.in_assumptions, detail={"exact flow": exact.value})


def several_common(generator: Generator, *, vocab_size: int = 1000) -> SequenceClasses:
    """Two classes with two common tokens, of which the second is likely in one class only: its attention logit grows all the same."""
    a, b = _uniform(0.28, 0.32, generator), _uniform(0.0005, 0.0015, generator)
    P = torch.tensor([[a, a, 1 - 2 * a, 0.0], [a, b, 0.0, 1 - a - b]], dtype=torch.float64)
    return SequenceClasses(P, torch.zeros(2, dtype=torch.long), vocab_size)


def _fates_control(generator: Generator) -> Evidence:
    classes = several_common(generator)
    t0 = scanning_time(classes=2, vocab_size=classes.vocab_size, eta_y=1.0)
    times = t0 * torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64)
    return _smallest_move(lemma4_flow(classes, times, eta_y=1.0, eta_z=0.05, tolerance=1e-8).logits, classes)


def _decoder_gap(generator: Generator, *, linear_term: bool) -> Evidence:
    M = int(math.exp(_uniform(math.log(50), math.log(1e5), generator)))
    eta_y = _uniform(0.1, 1.0, generator)
    steps = 3000
    t = torch.arange(steps, dtype=torch.float64)
    closed = h(t, vocab_size=M, eta_y=eta_y) if linear_term else torch.log1p(M * eta_y * t) / M
    gap = float((h_discrete(steps, vocab_size=M, eta_y=eta_y) - closed).abs().max())
    return Evidence(gap * M / (2 * eta_y), 1.0, "<=", detail={"M": M, "eta_Y": eta_y})


def _gradient_error(generator: Generator, *, projection: bool) -> Evidence:
    """Largest difference of the closed-form gradients and autograd of the explicit model, as a share of the largest gradient entry."""
    S, Q, K, M, context, batch = 6, 2, 3, 11, 9, 5
    ids = torch.randint(S, (batch, context), generator=generator)
    query, target = torch.randint(Q, (batch,), generator=generator), torch.randint(K, (batch,), generator=generator)
    Y = torch.randn(S, M, generator=generator, dtype=torch.float64)
    Y[:, K:] = Y[:, K : K + 1]
    Z = torch.randn(Q, S, generator=generator, dtype=torch.float64)
    X = one_hot(ids, S)
    Y_leaf, Z_leaf = Y.clone().requires_grad_(), Z.clone().requires_grad_()
    attention = torch.softmax(torch.einsum("btl,bl->bt", X, Z_leaf[query]), dim=1)
    attended = torch.einsum("bt,btl->bl", attention, X)
    normalised = attended / attended.norm(dim=1, keepdim=True)
    loss = torch.nn.functional.cross_entropy(normalised @ Y_leaf, target)
    dY, dZ = torch.autograd.grad(loss, (Y_leaf, Z_leaf))
    counts = X.sum(1)
    closed = forward(Weights(Y[:, : K + 1], Z, M - K), Batch(counts, query, target))
    found = closed.attention
    if not projection:
        f = normalised.detach()
        g = (torch.nn.functional.one_hot(target, M) - torch.softmax(f @ Y, dim=1)) @ Y.T
        found = one_hot(query, Q).T @ (f * g) / batch
    errors = {"decoder": _relative(closed.decoder, -dY[:, : K + 1]), "attention": _relative(found, -dZ)}
    return Evidence(max(errors.values()), 1e-12, "<=", detail=errors)


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


CLAIMS = (
    Claim(
        id="scan_snap/relative-gain",
        statement=r"In Lemma 4's flow the relative gain $r(t) = c_l^2 / c_{l'}^2 - 1$ of two distinct tokens of a class is "
        r"$r(t) = r(0)\, \chi_l(t)$ with $\chi_l = e^{2 (z_l(t) - z_l(0))}$.",
        source=Source(PAPER, "Thm. 3"),
        assumptions=("infinitely many, infinitely long sequences", "Lemma 4's flow: the decoder follows Lemma 3", "distinct tokens"),
        check=lambda generator: _gain_error(generator, lemma4_flow),
        control=lambda generator: _gain_error(generator, exact_flow),
        control_says="follows the exact population flow, whose decoder remembers past attention, in the place of Lemma 4's",
    ),
    Claim(
        id="scan_snap/single-common-token",
        statement=r"In Lemma 4's flow distinct tokens gain attention, $\dot z_l > 0$, and a single common token loses it, $\dot z_l < 0$. "
        r"Here: the smallest move in the predicted direction, as a share of the largest move, after $50\, t_0'$.",
        source=Source(PAPER, "Thm. 2"),
        assumptions=("infinitely many, infinitely long sequences", "one common token", "weak overlap (Assumption 2)"),
        check=_fates,
        control=_fates_control,
        control_says="has two common tokens, one of them rare in one of the classes: its logit grows",
    ),
    Claim(
        id="scan_snap/closed-form-h",
        statement=r"The decoder's gain under gradient descent, $h_s = h_{s-1} + \eta_Y / (M - 1 + e^{M h_{s-1}})$, stays within "
        r"$2 \eta_Y / M$ of the root of $e^{Mh} + (M-1) M h = M \eta_Y t + 1$ at $t = s$. "
        r"Here: the largest gap over 3000 steps in units of $2 \eta_Y / M$.",
        source=Source(PAPER, "Lemma 6"),
        assumptions=("Lemma 3's decoder from zero", "a learning rate of at most 1"),
        check=lambda generator: _decoder_gap(generator, linear_term=True),
        control=lambda generator: _decoder_gap(generator, linear_term=False),
        control_says="leaves the linear term (M - 1) M h out of the equation, as for large t",
    ),
    Claim(
        id="scan_snap/gradient",
        statement=r"The descent direction of the attention logits is $\dot z = f \circ (g - f (f^\top g))$, $g = Y (e_n - \alpha)$, a "
        r"function of the tokens' counts alone. Here: the largest relative difference to automatic differentiation of the explicit model.",
        source=Source(PAPER, "Lemma 1"),
        assumptions=("no positions", "the query is no key", "attended tokens have Euclidean norm one"),
        check=lambda generator: _gradient_error(generator, projection=True),
        control=lambda generator: _gradient_error(generator, projection=False),
        control_says="leaves out the projection that the normalisation of the attended tokens brings",
    ),
)
