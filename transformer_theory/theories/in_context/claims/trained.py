"""Claims about models that learn to answer prompts by gradient descent."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine
from ..learning import train_attention, train_on_functions
from ..preconditioned import preconditioner, risk
from ..prompts import Prompts, function_prompts, gaussian_inputs, linear_prompts
from ..references import answers_of, least_squares, nearest, ridge
from .layers import SPECTRUM
from .steps import COVARIANCE, SETTING, N

BATCH, STEPS, TESTED = 256, 2000, 2000
D, EXAMPLES, DECODER_STEPS = 3, 24, 600


@claim(
    "in_context/trained",
    measures="cosine of the trained layer's matrix",
    at_least=0.999,
    margin="a cosine ends at 1; in terms of 1 - cosine the control is 33 times the threshold of .001",
    source=Source(
        "zhang2024trained",
        "Theorem 4.1, Assumption 3.3 of arXiv v3; in the journal Theorem 4, Assumption 3",
        "confirmed",
    ),
    assumptions=(SETTING, "2,000 batches of 256 prompts, Adam; the theorem is about gradient flow"),
    control=but(r"compares with the nearer one of $\Lambda^{-1}$ and I", best=False),
    cost="training",
)
def trained(generator: Generator, *, best: bool = True) -> Measured:
    r"""One layer of linear attention that is trained on prompts finds $\Gamma^{-1}$, not $\eta I$ and not
    $\Lambda^{-1}$. (The theorem is on gradient flow and Gaussian inputs without noise; Adam on batches is the
    library's.)
    """

    def draw(generator: Generator) -> Prompts:
        return linear_prompts(BATCH, N, gaussian_inputs(SPECTRUM), generator=generator)

    G = train_attention(draw, len(SPECTRUM), steps=STEPS, generator=generator).preconditioner()
    eye, closed = torch.eye(len(SPECTRUM), dtype=torch.float64), preconditioner(COVARIANCE, N)
    matrices = {
        "closed form": closed,
        "inverse covariance": torch.linalg.inv(COVARIANCE),
        "plain descent": eye,
    }
    cosines = {name: float(cosine(G, matrix)) for name, matrix in matrices.items()}
    risks = {"risk": risk(G, COVARIANCE, N), "smallest risk": risk(closed, COVARIANCE, N)}
    other = max(cosines["inverse covariance"], cosines["plain descent"])
    return Measured(cosines["closed form"] if best else other, cosines | risks)


def by_signs(prompts: Prompts, rate: float = 1.5) -> Float[Tensor, " n"]:
    """Computes the mean y of the examples with the weights e^(-rate D), where D counts the coordinates of
    another sign than the query's.
    """
    distance = ((prompts.x > 0) != (prompts.query > 0)[:, None]).sum(-1)
    return ((-rate * distance).softmax(1) * prompts.y).sum(1)


def _errors(generator: Generator, kind: str, *, own: bool) -> dict[str, float]:
    """Trains a decoder on functions of one kind; returns errors after 24 examples as shares of that of the
    answer zero.
    """
    model = train_on_functions(kind, d=D, N=EXAMPLES, steps=DECODER_STEPS, generator=generator)
    prompts = function_prompts(kind, TESTED, EXAMPLES, D, generator=generator)
    shown = prompts if own else prompts.with_contexts(torch.arange(TESTED).roll(1))
    answers = {
        "decoder": answers_of(model, shown),
        "least squares": least_squares(prompts),
        "ridge": ridge(prompts, 0.1),
    }
    answers |= {"3 neighbours": nearest(prompts), "average by signs": by_signs(prompts)}
    zero = prompts.target.square().mean()
    return {name: float((each - prompts.target).square().mean() / zero) for name, each in answers.items()}


@claim(
    "in_context/functions",
    measures="mean squared error after 24 examples, as a share of that of the answer zero",
    at_most=0.1,
    source=Source("garg2022what", status="own"),
    assumptions=("3 dimensions, no noise", "600 batches of 128 prompts, Adam"),
    control=but("the examples of another prompt", own=False),
    cost="training",
)
def functions(generator: Generator, *, own: bool = True) -> Measured:
    """A decoder of two blocks that is trained on linear functions, of a new $w$ in each prompt, answers from
    its examples: its error is below a tenth of that of the answer zero. The threshold is ours.
    """
    errors = _errors(generator, "linear", own=own)
    return Measured(errors["decoder"], errors)


@claim(
    "in_context/trees",
    measures="mean squared error after 24 examples, relative to the best of the three algorithms",
    at_most=1.0,
    margin=BOUND,
    source=Source("garg2022what", status="own"),
    assumptions=("3 dimensions, no noise", "600 batches of 128 prompts, Adam"),
    control=but("the examples of another prompt", own=False),
    cost="training",
)
def trees(generator: Generator, *, own: bool = True) -> Measured:
    """A decoder of two blocks that is trained on decision trees of depth 2 over signs of coordinates, $x_i >
    0$, has a smaller error than least squares, ridge and the mean of three neighbours.
    """
    errors = _errors(generator, "tree", own=own)
    others = min(errors[name] for name in ("least squares", "ridge", "3 neighbours"))
    return Measured(errors["decoder"] / others, errors)


CLAIMS = (trained, functions, trees)
