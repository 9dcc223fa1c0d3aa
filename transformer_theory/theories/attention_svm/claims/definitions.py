r"""Claims that the library's gradients and steps are those of the definitions, by automatic differentiation
of the loss.

Descent works on differences of scores in the log domain, in the space in which a step is cheapest
(:mod:`~..dynamics`). At weights of moderate norm float64 resolves the definition as well, and both must
agree:

.. math:: L(W) = \tfrac1n \sum_i \ell\Big(Y_i\, h\big(X_i^\top \operatorname{softmax}(X_i W z_i)\big)\Big),
    \qquad
    L = \ell(Y_i v^\top X_i^\top \operatorname{softmax}(X_i W z_i)) \text{ averaged, for a linear head.}
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ..balance import common_norm_descent
from ..dynamics import (
    HeadInstance,
    JointInstance,
    JointState,
    descent_direction,
    joint_descent,
    mirror_descent,
    normalised_descent,
    plain_descent,
    polyak_descent,
    random_factors,
    random_start,
    relu_head,
)
from ..problem import Instance, token_scores

SETTING = Source("tarzanagh2023transformers", status="own")
AGREEMENT_RTOL = 1e-9
SHARE, PENALTY, POWER, STEPS = 0.2, 1e-3, 3.0, 15
POLYAK_STEPS, LONGEST = 8, 2.0  # near a saddle Polyak's steps explode, and long steps amplify rounding errors
# steps on logits, on images, on W
SIZES = ({"n": 4, "T": 5, "d": 8}, {"n": 10, "T": 12, "d": 6}, {"n": 20, "T": 10, "d": 3})
Loss = Callable[..., Tensor]


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _fixed_sum(logits: Tensor) -> Tensor:
    """Returns the attention weights, whose sum does not depend on the logits for
    automatic differentiation.
    """
    weights = logits.exp()
    return weights / weights.sum(-1, keepdim=True).detach()


class _Data:
    """Random tokens, queries, head and labels."""

    def __init__(self, generator: torch.Generator, *, n: int, T: int, d: int):
        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        self.x, self.z = (torch.nn.functional.normalize(v, dim=-1) for v in (normal(n, T, d), normal(n, d)))
        self.v, self.Y, self.V, self.gamma = normal(d), normal(n).sign(), normal(d, 4), normal(n, 1).abs()
        self.instance = Instance(self.x, self.z, token_scores(self.x, self.v, self.Y))

    def loss(self, W: Tensor, attention: Callable[[Tensor], Tensor] = _softmax) -> Tensor:
        """Returns the logistic loss of the linear head."""
        return torch.nn.functional.softplus(-self.Y * (self.mixture(W, attention) @ self.v)).mean()

    def relu_loss(self, W: Tensor, attention: Callable[[Tensor], Tensor] = _softmax) -> Tensor:
        """Returns the logistic loss of a head with one hidden layer."""
        return torch.nn.functional.softplus(
            -self.Y * (self.mixture(W, attention) @ self.V).relu().sum(-1)
        ).mean()

    def tied_loss(self, W: Tensor, attention: Callable[[Tensor], Tensor] = _softmax) -> Tensor:
        """Returns the logistic loss for the scores of :meth:`tied`."""
        s = attention((self.x @ W @ self.z[..., None]).squeeze(-1))
        return torch.nn.functional.softplus(-(s * self.tied().scores).sum(-1)).mean()

    def tied(self) -> Instance:
        """Returns the problem in which all tokens of an input but the first have the score zero."""
        scores = torch.zeros_like(self.x[..., 0])
        scores[:, :1] = self.gamma
        return Instance(self.x, self.z, scores)

    def mixture(self, W: Tensor, attention: Callable[[Tensor], Tensor]) -> Tensor:
        s = attention((self.x @ W @ self.z[..., None]).squeeze(-1))
        return (s[:, None] @ self.x).squeeze(1)


def _differentiated(loss: Loss, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the gradients of the loss."""
    leaves = [parameter.detach().requires_grad_() for parameter in parameters]
    return torch.autograd.grad(loss(*leaves), leaves)


@claim(
    "attention_svm/gradient",
    measures="largest relative distance from the gradient by automatic differentiation, three heads and "
    "ten W each",
    at_most=AGREEMENT_RTOL,
    source=SETTING,
    assumptions=("logistic loss; W of moderate norm, so that float64 resolves the definition too",),
    control=but(
        r"The attention of an input need not sum to one: the term $-s_i s_i^\top$ is "
        r"missing.",
        attention=_fixed_sum,
    ),
)
def gradient(generator: torch.Generator, *, attention: Callable[[Tensor], Tensor] = _softmax) -> Measured:
    r"""$-\nabla L(W) = \tfrac1n \sum_i |\ell'(f_i)|\, X_i^\top(\operatorname{diag}(s_i) - s_i s_i^\top)
    \gamma_i z_i^\top$ with the attention $s_i$ and the scores $\gamma_i$ of the tokens of input i, the
    prediction $f_i$ (label included: $f_i = s_i^\top\gamma_i$ for a linear head) and the derivative $\ell'$
    of the loss; for a nonlinear head h, $f_i = Y_i h(X_i^\top s_i)$ and $\gamma_{i,t} = Y_i \nabla h(X_i^\top
    s_i)^\top x_{i,t}$. The library forms it from differences of scores in the log domain.
    """
    worst = 0.0
    for _ in range(10):
        data = _Data(generator, n=4, T=5, d=6)
        W = 2 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
        head = HeadInstance(data.x, data.z, data.Y, relu_head(data.V))
        for instance, loss in (
            (data.instance, data.loss),
            (data.tied(), data.tied_loss),
            (head, data.relu_loss),
        ):
            M, C = descent_direction(instance, W)
            (gradient,) = _differentiated(partial(loss, attention=attention), (W,))
            worst = max(worst, float((M * C.exp() + gradient).norm() / gradient.norm()))
    return Measured(worst, {"gradients": 30})


def _descend(
    loss: Loss, parameters: Sequence[Tensor], step: Callable[..., Sequence[Tensor]], steps: int = STEPS
) -> Sequence[Tensor]:
    """Takes ``steps`` steps; ``step`` maps parameters and gradients to the changes of the parameters."""
    for _ in range(steps):
        changes = step(parameters, _differentiated(loss, parameters))
        parameters = [parameter + change for parameter, change in zip(parameters, changes)]
    return parameters


def _separate(_: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    return [-SHARE * g / g.norm() for g in gradients]


def _common(_: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    size = torch.stack([g.norm() for g in gradients]).norm()
    return [-SHARE * g / size for g in gradients]


def _mirrored(data: _Data, W: Tensor) -> Tensor:
    """Returns W after mirror descent with the potential of the l_p norm, p = POWER."""
    q = POWER / (POWER - 1)
    for _ in range(STEPS):
        (gradient,) = _differentiated(data.loss, [W])
        dual = W.sign() * W.abs() ** (POWER - 1) - SHARE * gradient / torch.linalg.vector_norm(
            gradient, ord=q
        )
        W = dual.sign() * dual.abs() ** (1 / (POWER - 1))
    return W


def _joint(data: _Data, generator: torch.Generator) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Returns prompt and head after joint descent, by the library and by automatic differentiation."""
    keys = torch.randn(data.x.shape, generator=generator, dtype=torch.float64)
    p, v = torch.randn(2, keys.shape[-1], generator=generator, dtype=torch.float64)

    def loss(p: Tensor, v: Tensor) -> Tensor:
        mixture = ((keys @ p).softmax(-1)[:, None] @ data.x).squeeze(1)
        return torch.nn.functional.softplus(-data.Y * (mixture @ v)).mean()

    end = joint_descent(JointInstance(data.x, data.Y, keys=keys), JointState(p, v), steps=STEPS, rate=SHARE)
    return [end.p, end.v], _descend(loss, [p, v], _separate)


@claim(
    "attention_svm/descent-steps",
    measures="largest relative distance of the weights after 15 steps (8 of Polyak's) from those by "
    "automatic differentiation",
    at_most=AGREEMENT_RTOL,
    source=SETTING,
    assumptions=(
        "logistic loss; W of moderate norm, so that float64 resolves the definition too",
        "half Polyak's step, at most of length 2: near a saddle it explodes, and long steps amplify "
        "rounding errors",
    ),
    control=but(
        "The reference divides the gradients of K and Q by their common norm, not by one norm each.",
        factor_step=_common,
    ),
)
def descent_steps(
    generator: torch.Generator, *, factor_step: Callable[..., Sequence[Tensor]] = _separate
) -> Measured:
    r"""Each method takes the steps of its definition: normalised descent $W - \eta \nabla L / \|\nabla L\|$,
    and constant, Polyak, mirror and joint descent, on W (stored as W or as its coordinates in the span of the
    data), and on K and Q with a penalty and with one common norm.
    """
    distances: dict[str, float] = {}

    def compare(name: str, ours: Sequence[Tensor], reference: Sequence[Tensor]) -> None:
        distances[name] = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, reference))

    for size in SIZES:
        data = _Data(generator, **size)
        W = random_start(data.instance, generator=generator)
        end = normalised_descent(data.instance, W, steps=STEPS, rate=SHARE)
        compare("steps on {n}, {T}, {d}".format(**size), [end.W], _descend(data.loss, [W.W], _separate))
    data = _Data(generator, **SIZES[0])
    W, factors = (
        random_start(data.instance, generator=generator),
        random_factors(data.instance, generator=generator),
    )

    def slowed(_: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        return [-SHARE * g / (g.norm() + PENALTY) for g in gradients]

    end = normalised_descent(data.instance, W, steps=STEPS, rate=SHARE, eps=PENALTY)
    compare("eps", [end.W], _descend(data.loss, [W.W], slowed))
    end = plain_descent(data.instance, W, steps=STEPS, rate=2.0)
    compare("constant steps", [end.W], _descend(data.loss, [W.W], lambda _, g: [-2 * g[0]]))
    least = torch.nn.functional.softplus(-data.instance.scores.amax(-1)).mean()

    def half_polyak(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        size = gradients[0].norm()
        return [-(0.5 * (data.loss(parameters[0]) - least) / size).clamp(max=LONGEST) * gradients[0] / size]

    end = polyak_descent(data.instance, W, steps=POLYAK_STEPS, rate=0.5, longest=LONGEST)
    compare("Polyak", [end.W], _descend(data.loss, [W.W], half_polyak, POLYAK_STEPS))
    end = mirror_descent(data.instance, W, power=POWER, steps=STEPS, rate=SHARE)
    compare("mirror", [end.W], [_mirrored(data, W.W)])

    def factored(K: Tensor, Q: Tensor) -> Tensor:
        return data.loss(K @ Q.mT) + PENALTY * (K.square().sum() + Q.square().sum())

    end = normalised_descent(data.instance, factors, steps=STEPS, rate=SHARE, penalty=PENALTY)
    compare("K and Q", [end.K, end.Q], _descend(factored, [factors.K, factors.Q], factor_step))
    end = common_norm_descent(data.instance, factors, steps=STEPS, rate=SHARE)
    compare(
        "common norm",
        [end.K, end.Q],
        _descend(lambda K, Q: data.loss(K @ Q.mT), [factors.K, factors.Q], _common),
    )
    compare("prompt and head", *_joint(data, generator))
    return Measured(max(distances.values()), distances)


CLAIMS = (gradient, descent_steps)
