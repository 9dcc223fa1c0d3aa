"""Claims about transformers of ReLU attention that run ridge, lasso, logistic regression and
model selection.
"""

from dataclasses import replace

import torch
from torch import Generator

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ..prompts import Prompts, gaussian_inputs, linear_prompts
from ..references import ridge, ridge_estimate
from ..statistics import (
    KNOTS,
    Slots,
    decay_head,
    extreme_eigenvalues,
    lasso_transformer,
    link_error,
    logistic_transformer,
    residual_heads,
    ridge_transformer,
    run,
    select,
)
from .layers import relative

STRENGTH, STRENGTHS, LAYERS = 0.1, (0.003, 0.03, 0.3), (10, 30, 60)
NOISES, PROMPTS = (0.01, 4.0), 100  # variances of two kinds of prompts, and the number of each
LONG = (*LAYERS, 300)  # for the lasso, whose bound falls by the condition number of the data alone
INSTANCE = "N = 20 examples of Gaussian inputs in 5 dimensions, noise of variance .1"
ROUNDING, SOLVER = 1e-14, 1e-12  # relative, of the layers and of scikit-learn


def _one(generator: Generator) -> Prompts:
    return linear_prompts(1, 20, gaussian_inputs(torch.ones(5)), noise=0.1, generator=generator)


@claim(
    "in_context/ridge-heads",
    measures="largest relative difference of w after 25 layers",
    at_most=1e-12,
    source=Source(
        "bai2023transformers", "Theorem 4; the construction: Theorem 13, Proposition C.2", "confirmed"
    ),
    assumptions=(INSTANCE, "keys include the query, so the values of the two data heads carry (N + 1)/N"),
    control=but("leaves the factor (N + 1)/N out", counted=False),
)
def ridge_heads(generator: Generator, *, counted: bool = True) -> float:
    r"""Three heads of ReLU attention are one step of descent on $\frac{1}{2N} \|X w - y\|^2 + \frac\lambda2
    \|w\|^2$.
    """
    prompts, eta, strength = _one(generator), 0.2, STRENGTH
    N, slots = prompts.x.shape[1], Slots(5)
    scale = 1.0 if counted else N / (N + 1)
    w, _ = run(prompts, (*residual_heads(slots, eta * scale, N), decay_head(slots, eta, strength)), 25)
    exact = torch.zeros(5, dtype=torch.float64)
    for _ in range(25):
        exact = exact - eta * ((prompts.x[0] @ exact - prompts.y[0]) @ prompts.x[0] / N + strength * exact)
    return relative(w[0], exact)


@claim(
    "in_context/ridge",
    measures="largest share of the bound that the distance reaches, after 10, 30 and 60 layers",
    at_most=1.0,
    margin=BOUND,
    source=Source("bai2023transformers", "Theorem 4", "confirmed"),
    assumptions=(
        INSTANCE,
        r"$\eta = 1/(\beta + \lambda)$ with the extreme eigenvalues $\alpha, \beta$ of $X^\top X / N$",
        r"$\lambda = .1$",
        r"a distance of $10^{-14} \|w_\lambda\|$ is allowed for rounding",
    ),
    control=but("leaves the third head out", third_head=False),
)
def ridge_rate(generator: Generator, *, third_head: bool = True) -> Measured:
    r"""After L layers the estimate is within $(1 - 1/\kappa)^L \|w_\lambda\|$ of ridge, $\kappa = (\beta +
    \lambda)/(\alpha + \lambda)$. (The paper states the order of the number of layers; this explicit form is
    the library's.)
    """
    prompts = _one(generator)
    low, high = extreme_eigenvalues(prompts)
    kappa, exact, shares = (high + STRENGTH) / (low + STRENGTH), ridge_estimate(prompts, STRENGTH)[0], []
    for layers in LAYERS:
        if third_head:
            w, _ = ridge_transformer(prompts, STRENGTH, layers)
        else:
            w, _ = run(prompts, residual_heads(Slots(5), 1 / (high + STRENGTH), prompts.x.shape[1]), layers)
        # For small kappa the bound after 60 layers lies below the rounding of float64.
        shares.append(float((w[0] - exact).norm() / (((1 - 1 / kappa) ** layers + ROUNDING) * exact.norm())))
    return Measured(max(shares), {"kappa": kappa})


@claim(
    "in_context/lasso",
    measures="largest share of the bound that the distance to the coefficients of scikit-learn reaches after "
    "10, 30, 60 and 300 layers",
    at_most=1.0,
    margin=BOUND,
    source=Source("bai2023transformers", "Theorem 10; App. C.1", "own"),
    assumptions=(
        INSTANCE,
        r"$\eta = 1/\beta$ with the extreme eigenvalues $\alpha, \beta$ of $X^\top X / N$; $\alpha > 0$, so "
        r"that $\kappa = \beta/\alpha$ is finite",
        r"$\lambda = .1$",
        r"a distance of $10^{-12} \|w_\lambda\|$ is allowed for the error of scikit-learn",
    ),
    control=but(r"the MLP with half the threshold, for the loss without $\frac12$", share=0.5),
)
def lasso(generator: Generator, *, share: float = 1.0) -> Measured:
    r"""With the MLP $\mathrm{ReLU}(w - \eta\lambda) - \mathrm{ReLU}(-w - \eta\lambda)$ the layers run ISTA on
    $\frac{1}{2N} \|X w - y\|^2 + \lambda \|w\|_1$: after L layers the estimate is within $(1 - 1/\kappa)^L
    \|w_\lambda\|$ of the lasso, so the number of layers that a distance needs grows like the condition number
    $\kappa = \beta/\alpha$. (The paper shows that layers run ISTA and bounds the excess of the loss; the
    bound of the distance to the coefficients is the library's.)
    """
    from sklearn.linear_model import Lasso

    prompts = _one(generator)
    solver = Lasso(alpha=STRENGTH, fit_intercept=False, tol=1e-14, max_iter=1_000_000, random_state=0)
    exact = torch.as_tensor(solver.fit(prompts.x[0].numpy(), prompts.y[0].numpy()).coef_)
    low, high = extreme_eigenvalues(prompts)
    kappa, shares = high / low, []
    for layers in LONG:
        w, _ = lasso_transformer(prompts, share * STRENGTH, layers)
        shares.append(float((w[0] - exact).norm() / (((1 - 1 / kappa) ** layers + SOLVER) * exact.norm())))
    return Measured(max(shares), {"kappa": kappa})


@claim(
    "in_context/logistic",
    measures="distance after 40 layers as a share of the bound",
    at_most=1.0,
    source=Source("bai2023transformers", "Theorem 13, part 1, with Definition 12", "confirmed"),
    assumptions=(
        INSTANCE,
        "labels are the signs of y",
        r"33 knots on $[-8, 8]$, $\varepsilon = .003$, $\eta = .5$",
    ),
    control=but("5 knots", knots=5),
)
def logistic(generator: Generator, *, knots: int = KNOTS) -> float:
    r"""Heads that hold the link as a sum of ReLUs, up to $\varepsilon$, stay within $L \eta \varepsilon
    \frac1N \sum_j \|x_j\|$ of descent on the logistic loss. (The paper has a bound on all inputs in the place
    of the mean.)
    """
    prompts = _one(generator)
    prompts = replace(prompts, y=(prompts.y > 0).double())
    eta, layers, x = 0.5, 40, prompts.x[0]
    w, _ = logistic_transformer(prompts, eta, layers, knots=knots)
    exact = torch.zeros(5, dtype=torch.float64)
    for _ in range(layers):
        exact = exact - eta * (torch.sigmoid(x @ exact) - prompts.y[0]) @ x / len(x)
    # A step of descent with eta <= 2 / smoothness does not expand distances, so the errors of the link add
    # up.
    bound = layers * eta * link_error(KNOTS) * float(x.norm(dim=1).mean())
    return float((w[0] - exact).norm()) / bound


@claim(
    "in_context/selection",
    measures="risk of selection as a share of the best single strength's",
    at_most=1.0,
    margin="the threshold is the bound of the statement: selection may be as good as the best strength",
    source=Source("bai2023transformers", "Theorem 16, Proposition 15", "own"),
    assumptions=(
        "200 prompts of 24 examples in 8 dimensions, 12 of them held out",
        "noise of variance .01 or 4",
        "three strengths",
    ),
    control=but("losses of a prompt of the other noise level", own=False),
)
def selection(generator: Generator, *, own: bool = True) -> Measured:
    r"""On prompts of two noise levels, 60 layers of ridge (not converged) whose strength $\lambda$ is
    selected inside the prompt have a smaller risk than the same layers with any one of the strengths, fitted
    on the same 12 examples. (The paper shows that the output is that of a convex combination of the fits with
    nearly the smallest validation loss; the comparison of risks is the library's.)
    """
    parts = [
        linear_prompts(PROMPTS, 24, gaussian_inputs(torch.ones(8)), noise=noise, generator=generator)
        for noise in NOISES
    ]
    prompts = Prompts(
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "query", "target"))
    )
    weights, _, answers = select(prompts, STRENGTHS, layers=60, held_out=12, temperature=0.02)
    if not own:
        weights = weights.roll(len(weights) // 2, 0)  # the losses of a prompt of the other noise level
    risks = (answers - prompts.target[:, None]).square().mean(0)
    chosen = float(((weights * answers).sum(1) - prompts.target).square().mean())
    every = min(float((ridge(prompts, strength) - prompts.target).square().mean()) for strength in STRENGTHS)
    detail = {f"strength {s}": float(r) for s, r in zip(STRENGTHS, risks)} | {
        "best strength on all 24 examples": every,
        "selected": chosen,
    }
    return Measured(chosen / float(risks.min()), detail)


CLAIMS = (ridge_heads, ridge_rate, lasso, logistic, selection)
