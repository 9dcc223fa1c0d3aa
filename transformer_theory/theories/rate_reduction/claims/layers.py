r"""Claims about single layers of ReduNet: what a layer computes, on vectors and on all cyclic shifts of
signals.

The checks compute each layer from the definitions: the gradient of :math:`\Delta R` by automatic
differentiation, the operators by matrix inverses, and shifts as separate samples. Source:
:cite:t:`chan2022redunet`.
"""

import itertools
import math

import torch
from torch import Generator, Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....metrics.coding import SecondMoments, rate_reduction, unit_norm
from ..loss import MaximalCodingRateReduction
from ..redunet import construct, construct_shift_invariant

SETTING = Source("yu2020learning", "", "own")
EPS = 0.1**0.5  # ε² = 0.1, the distortion of the published networks
ROUNDING = 1e-9
SHARPNESS = 3.0  # low enough for memberships between 0 and 1
# odd and even numbers of places: only even ones have a frequency that is its own mirror image
GRIDS = ((5,), (6,), (3, 4))


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _reduction(
    features: Tensor, labels: Tensor, *, eps: float, gamma1: float = 1.0, gamma2: float = 1.0
) -> Tensor:
    """Computes γ_2 R_{γ_1} - R^c directly from its definition, with LU factorisations of d x d matrices."""
    n, d = features.shape
    identity = torch.eye(d, dtype=features.dtype)
    value = 0.5 * gamma2 * torch.logdet(identity + gamma1 * d / (n * eps**2) * features.mT @ features)
    for j in labels.unique():
        members = features[labels == j]
        size = len(members)
        value = value - 0.5 * size / n * torch.logdet(identity + d / (size * eps**2) * members.mT @ members)
    return value


def _loss_gradient(
    features: Tensor, labels: Tensor, *, eps: float, gamma1: float = 1.0, gamma2: float = 1.0
) -> Tensor:
    """Computes the gradient of R^c - γ_2 R_{γ_1} by the formula of the claim, with inverses of d x d
    matrices.
    """
    n, d = features.shape
    identity, alpha = torch.eye(d, dtype=features.dtype), d / (n * eps**2)
    gradient = (
        -gamma1
        * gamma2
        * alpha
        * features
        @ torch.linalg.inv(identity + gamma1 * alpha * features.mT @ features)
    )
    for j in labels.unique():
        members = features[labels == j]
        a = d / (len(members) * eps**2)
        gradient[labels == j] += (
            len(members) / n * members @ (a * torch.linalg.inv(identity + a * members.mT @ members))
        )
    return gradient


@claim(
    "rate_reduction/training-loss",
    measures="largest relative error of the loss and of its gradient, by the library and by the formula",
    at_most=ROUNDING,
    source=SETTING,
    assumptions=(
        "features have norm 1",
        "each sample belongs to one class, and no class is empty",
        "the published values: γ₁ = γ₂ = 1, and γ₁ = 20 with γ₂ = 0.05",
    ),
    control=but("takes γ₁ = γ₂ = 1 in the definition and in the formula for both pairs", weighted=False),
)
def training_loss(generator: Generator, *, weighted: bool = True) -> Measured:
    r"""The gradient of the training loss $R^c - \gamma_2 R_{\gamma_1}$, $R_{\gamma_1} = \frac12 \log\det(I +
    \gamma_1 \alpha X^\top X)$, is $\sum_j \frac{n_j}{n} \Pi_j X C_j - \gamma_1 \gamma_2\, \alpha X (I +
    \gamma_1 \alpha X^\top X)^{-1}$ with $C_j = \alpha_j (I + \alpha_j X^\top \Pi_j X)^{-1}$.
    """
    gaps = {}
    for (n, d, k), (gamma1, gamma2) in itertools.product(
        ((40, 6, 3), (9, 20, 2), (60, 8, 20)), ((1.0, 1.0), (20.0, 0.05))
    ):
        features = unit_norm(_normal(generator, n, d))
        labels = torch.cat([torch.arange(k), torch.randint(k, (n - k,), generator=generator)])
        leaf, again = features.clone().requires_grad_(), features.clone().requires_grad_()
        loss = MaximalCodingRateReduction(eps=EPS, gamma1=gamma1, gamma2=gamma2)(leaf, labels).loss
        loss.backward()
        settings = {"gamma1": gamma1, "gamma2": gamma2} if weighted else {}
        expected = -_reduction(again, labels, eps=EPS, **settings)
        (gradient,) = torch.autograd.grad(expected, again)
        assert leaf.grad is not None
        name = f"{n} samples, {d} dimensions, γ₁ = {gamma1:g}"
        formula = _loss_gradient(features, labels, eps=EPS, **settings)
        gaps[f"value, {name}"] = abs(float(loss.detach() / expected.detach()) - 1)
        gaps[f"gradient, {name}"] = float((leaf.grad - gradient).abs().max() / gradient.abs().max())
        gaps[f"formula, {name}"] = float((leaf.grad - formula).abs().max() / formula.abs().max())
    return Measured(max(gaps.values()), gaps)


@claim(
    "rate_reduction/moments-suffice",
    measures="largest relative change of the rate reduction",
    at_most=ROUNDING,
    source=SETTING,
    assumptions=("each sample belongs to one class",),
    control=but("rotates the features of each class, which changes its second moment", same=False),
)
def moments_suffice(generator: Generator, *, same: bool = True) -> Measured:
    r"""$\Delta R$ depends on the samples only through $n_j$ and the second moments $X_j^\top X_j$: it does
    not change if the samples of each class are mixed by an orthogonal matrix, $X_j \to Q_j X_j$, and sums of
    moments over parts of the data suffice.
    """
    gaps = {}
    for n, d, k in ((60, 5, 3), (200, 8, 4)):
        labels = torch.cat([torch.arange(n - n // 3) % k, torch.zeros(n // 3, dtype=torch.int64)])
        features = _normal(generator, n, d) @ _normal(generator, d, d)
        # Q X has the second moment of X for every orthogonal Q. Within classes this changes each sample and
        # no moment.
        others = features.clone()
        for j in range(k):
            members = labels == j
            turn = torch.linalg.qr(_normal(generator, int(members.sum()), int(members.sum()))).Q
            others[members] = (
                turn @ features[members]
                if same
                else features[members] @ torch.linalg.qr(_normal(generator, d, d)).Q
            )
        first, second = SecondMoments(), SecondMoments()
        first.update(others[::2], labels[::2])
        second.update(others[1::2], labels[1::2])
        first.merge(second)
        expected = float(_reduction(features, labels, eps=EPS))
        gaps[f"other samples, d = {d}"] = abs(float(rate_reduction(others, labels, eps=EPS)) / expected - 1)
        gaps[f"summed moments, d = {d}"] = abs(float(first.rate_reduction(eps=EPS)) / expected - 1)
    return Measured(max(gaps.values()) if same else min(gaps.values()), gaps)


@claim(
    "rate_reduction/redunet-layer",
    measures="largest difference of features from the formulas",
    at_most=ROUNDING,
    source=Source("chan2022redunet", status="second-hand"),
    assumptions=(
        "features have norm 1",
        "training samples move by their labels; in the source they, too, move by estimated memberships",
    ),
    control=but("leaves out n_j / n for new samples", weighted=False),
)
def redunet_layer(generator: Generator, *, weighted: bool = True) -> Measured:
    r"""A layer of ReduNet takes training samples one step along the gradient, $X^+ \propto X + \eta\, \nabla
    \Delta R(X)$, and new samples to $x^+ \propto x + \eta\,(xE - \sum_j \frac{n_j}{n} \hat\pi_j\, xC_j)$,
    $\hat\pi_j = \mathrm{softmax}_j(-\lambda \|xC_j\|)$, on the unit sphere.
    """
    gaps = {}
    for n, d, k in ((30, 5, 3), (12, 8, 2)):
        labels = torch.randperm(n, generator=generator) % k
        labels[: n // 4] = 0  # the classes differ in size
        x, new = unit_norm(_normal(generator, n, d)), unit_norm(_normal(generator, 7, d))
        step = 0.3
        net = construct(x, labels, layers=1, eps=EPS, step=step, sharpness=SHARPNESS)
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(_reduction(leaf, labels, eps=EPS), leaf)
        identity = torch.eye(d, dtype=x.dtype)
        E = d / (n * EPS**2) * torch.linalg.inv(identity + d / (n * EPS**2) * x.mT @ x)
        scales = [d / (int((labels == j).sum()) * EPS**2) for j in range(k)]
        C = [
            a * torch.linalg.inv(identity + a * x[labels == j].mT @ x[labels == j])
            for j, a in enumerate(scales)
        ]
        compressed = torch.stack([new @ operator for operator in C])  # [k, 7, d]
        estimated = torch.softmax(-SHARPNESS * compressed.norm(dim=2), 0)
        shares = torch.bincount(labels).double() / n if weighted else torch.ones(k, dtype=x.dtype)
        moved = new + step * (new @ E - ((shares[:, None] * estimated)[..., None] * compressed).sum(0))
        gaps[f"training samples, d = {d}"] = float(
            (net.features - unit_norm(x + step * gradient)).abs().max()
        )
        gaps[f"new samples, d = {d}"] = float((net.transform(new) - unit_norm(moved)).abs().max())
    return Measured(max(gaps.values()), gaps)


@claim(
    "rate_reduction/shifts-are-samples",
    measures="largest difference of features, memberships and rates of the two networks",
    at_most=ROUNDING,
    source=Source("chan2022redunet", status="second-hand"),
    assumptions=(
        "shifts are cyclic: the grid is a ring or a torus",
        r"the Fourier transform is not normalised: $\hat x(0) = \sum_t x(t)$",
    ),
    control=but(
        "takes the unitary Fourier transform, as in the released code, with the same settings", unitary=True
    ),
    corrects="The released code takes the unitary transform in the same formulas. Its network is the "
    r"one here with $\epsilon^2$, $\eta$ and $\lambda$ multiplied by $T$.",
    corrected=Source("chan2022redunet", "released code, redunet/layers/fourier1d.py", "confirmed"),
)
def shifts_are_samples(generator: Generator, *, unitary: bool = False) -> Measured:
    r"""The shift-invariant ReduNet, with operators $c \times c$ at each frequency of the grid, is ReduNet on
    vectors in $\mathbb{R}^{cT}$ built from all $nT$ cyclic shifts of the samples, $T$ the number of places.
    """
    gaps = {}
    for grid in GRIDS:
        samples, unseen = _normal(generator, 7, 2, *grid), _normal(generator, 4, 2, *grid)
        labels = torch.tensor([0, 0, 1, 1, 1, 1, 0])[torch.randperm(7, generator=generator)]
        # With the unitary transform, the same formulas are those of a network with ε² T, η T, λ T.
        places = math.prod(grid) if unitary else 1
        eps, step, sharpness = places**0.5 * EPS, places * 0.3, places * SHARPNESS
        net = construct_shift_invariant(samples, labels, layers=2, eps=eps, step=step, sharpness=sharpness)
        axes = tuple(range(2, samples.ndim))
        shifted = [samples.roll(by, axes).flatten(1) for by in itertools.product(*map(range, grid))]
        vectors = construct(
            torch.cat(shifted), labels.repeat(len(shifted)), layers=2, eps=EPS, step=0.3, sharpness=SHARPNESS
        )
        moved, expected = net.transform(unseen), vectors.transform(unseen.flatten(1))
        gaps[f"training samples, grid {grid}"] = float(
            (net.features.flatten(1) - vectors.features[:7]).abs().max()
        )
        gaps[f"new samples, grid {grid}"] = float((moved.flatten(1) - expected).abs().max())
        gaps[f"rates, grid {grid}"] = float((net.rates - vectors.rates).abs().max())
        probabilities = net.probabilities(moved) - vectors.probabilities(expected)
        gaps[f"memberships, grid {grid}"] = float(probabilities.abs().max())
    return Measured(max(gaps.values()), gaps)


CLAIMS = (training_loss, moments_suffice, redunet_layer, shifts_are_samples)
