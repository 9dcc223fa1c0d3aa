"""Claims about written layers of linear attention: steps of descent, GD++, the dual form."""

import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, but, claim
from ....core.sources import Source
from ....models.attention import attend
from ..descent import LinearAttentionGD, plus_plus_answers
from ..dual import affine_residual, dual_part
from ..prompts import Prompts, gaussian_inputs, linear_prompts
from ..references import many_steps

OSWALD, DAI = "vonoswald2023transformers", "dai2023why"
# eigenvalues of the inputs' covariance in all claims
SPECTRUM = torch.tensor([2.0, 1.0, 0.5, 0.25, 0.1], dtype=torch.float64)
KEYS_ONLY = "keys are the N examples, not the query"


def _prompts(generator: Generator, *, noise: float = 0.0) -> Prompts:
    return linear_prompts(32, 10, gaussian_inputs(SPECTRUM), noise=noise, generator=generator)


def relative(found: Tensor, exact: Tensor) -> float:
    """Returns the largest difference of two tensors ``[...]`` relative to the largest entry of the second."""
    return float((found - exact).abs().max() / exact.abs().max())


@claim(
    "in_context/one-step",
    measures="largest difference to a step along autograd's gradient, relative to the largest answer",
    at_most=1e-13,
    source=Source(OSWALD, "Proposition 1", "confirmed"),
    assumptions=(KEYS_ONLY, "N = 10 examples in 5 dimensions, noise of variance .5, random $W_0$"),
    control=but("the query is a key as well", query_is_key=True),
)
def one_step(generator: Generator, *, query_is_key: bool = False) -> float:
    r"""One layer of linear attention with the values $(0, W_0 x - y)$ of a token $(x, y)$ and $P =
    \frac{\eta}{N} I$ answers as $W_0 + \Delta W$ does, $\Delta W = -\frac{\eta}{N} \sum_j (W_0 x_j - y_j)
    x_j^\top$: one step of gradient descent.
    """
    prompts = _prompts(generator, noise=0.5)
    W, eta = torch.randn(len(SPECTRUM), generator=generator, dtype=torch.float64), 0.3
    model = LinearAttentionGD(eta, initial=W)
    answers = model(prompts)
    if query_is_key:
        N = prompts.x.shape[1]
        x, y = (
            torch.cat([prompts.x, prompts.query[:, None]], 1),
            torch.cat([prompts.y, -(prompts.query @ W)[:, None]], 1),
        )
        # N + 1 keys with the factor eta / N.
        answers = LinearAttentionGD(eta * (N + 1) / N, initial=W)(
            Prompts(x, y, prompts.query, prompts.target)
        )
    exact = []
    for x, y, query in zip(prompts.x, prompts.y, prompts.query):
        w = W.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((x @ w - y).square().sum() / (2 * len(x)), w)
        exact.append(query @ (W - eta * gradient))
    return relative(answers, torch.stack(exact))


@claim(
    "in_context/many-steps",
    measures="largest relative difference to gradient descent after 2, 5 and 20 steps",
    at_most=1e-13,
    source=Source("vonoswald2023transformers", "Eq. (4), Proposition 1", "confirmed"),
    assumptions=(KEYS_ONLY, r"$W_0 = 0$, all layers equal"),
    control=but("compares with one step fewer", missing=1),
)
def layers(generator: Generator, *, missing: int = 0) -> float:
    r"""L such layers are L steps: the y of the tokens become residuals, $y_j \leftarrow y_j - \Delta
    W x_j$.
    """
    prompts = _prompts(generator, noise=0.5)
    errors = [
        relative(LinearAttentionGD(0.2, steps)(prompts), many_steps(prompts, 0.2, steps - missing))
        for steps in (2, 5, 20)
    ]
    return max(errors)


@claim(
    "in_context/gd-plus-plus",
    measures="largest relative difference of the answers of 5 layers to the product over eigenvalues",
    at_most=1e-11,
    source=Source(OSWALD, status="own"),
    assumptions=(KEYS_ONLY, "examples without noise", r"$\eta = .15$, $\gamma = .06$"),
    control=but("leaves the second head out", second_head=False),
)
def gd_plus_plus(generator: Generator, *, second_head: bool = True) -> float:
    r"""A second head that changes the inputs, $x \leftarrow (I - \gamma S) x$, leaves the error $\prod_l (1 -
    \eta \lambda_l)$ in each eigendirection of S, with $\lambda_{l+1} = \lambda_l (1 - \gamma \lambda_l)^2$.
    """
    prompts, eta, gamma = _prompts(generator), 0.15, 0.06
    model = LinearAttentionGD(eta, 5, gamma=gamma if second_head else 0.0)
    return relative(model(prompts), plus_plus_answers(prompts, eta, gamma, 5))


def _context(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draws 64 queries and 16 keys and values with 4 channels."""
    shapes = ((64, 4), (16, 4), (16, 4))
    queries, keys, values = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return queries, keys, values


@claim(
    "in_context/dual",
    measures="largest relative difference of the two sides",
    at_most=1e-13,
    source=Source("dai2023why", "Section 2.2, Eqs. (7)-(9); Section 3.1, Eqs. (11) and (12)", "confirmed"),
    assumptions=("attention without normalisation",),
    control=but("softmax attention", softmax=True),
)
def dual(generator: Generator, *, softmax: bool = False) -> float:
    r"""Linear attention is an update of a linear layer: $W_0 q + \sum_j v_j k_j^\top q = (W_0 + \sum_j v_j
    k_j^\top) q$.
    """
    queries, keys, values = _context(generator)
    W = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    read = attend(queries, keys, values, scale=1.0) if softmax else queries @ keys.mT @ values
    return relative(queries @ W.mT + read, queries @ (W + values.mT @ keys).mT)


@claim(
    "in_context/softmax",
    measures="share of the outputs' variance outside the best affine map of 64 queries",
    at_least=0.02,
    source=Source(DAI, status="own"),
    assumptions=("scores of standard deviation 2: 4 channels, scale 1, 16 keys",),
    control=but("scores a hundred times smaller, where softmax is affine", scale=0.01),
)
def softmax(generator: Generator, *, scale: float = 1.0) -> float:
    r"""Softmax attention has no dual form: with Gaussian queries and keys no affine map $q \mapsto A q + c$
    of the queries explains it, even one that is fitted to the context. The threshold is ours.
    """
    queries, keys, values = _context(generator)
    return affine_residual(queries, attend(queries, keys, values, scale=scale))


@claim(
    "in_context/first-order",
    measures="error of this sum, relative to the attention without the mean of the values",
    at_most=0.05,
    margin=NEAR,
    source=Source(DAI, status="own"),
    assumptions=("scores of standard deviation .02: 4 channels, scale .01, 16 keys",),
    control=but("scores a hundred times larger", scale=1.0),
)
def first_order(generator: Generator, *, scale: float = 0.01) -> float:
    r"""At small scores $s_j$ softmax attention is the mean of the values plus $\frac1n \sum_j (s_j - \bar s)
    v_j$, which has a dual form.
    """
    queries, keys, values = _context(generator)
    exact = attend(queries, keys, values, scale=scale) - values.mean(0)
    return float((exact - dual_part(scale * queries @ keys.mT, values)).norm() / exact.norm())


CLAIMS = (one_step, layers, gd_plus_plus, dual, softmax, first_order)
