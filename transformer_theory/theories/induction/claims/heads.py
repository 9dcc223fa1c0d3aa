"""Claims about heads: the explicit induction head, paths, the copying score, prefix matching, and the
positional share of attention.
"""

import math

import torch
from torch import Generator

from ....core.claims import NEAR, Measured, but, claim
from ....core.metric import Activations
from ....core.sources import Source
from ....models.attention import attention_weights, causal_mask
from ..circuits import AttentionOnly, Heads, copying_score, eigenvalue_share, path_expansion
from ..heads import InductionHead, in_context_bigram, random_sequences, with_bos
from ..in_networks import PositionalShare
from ..scores import PREFIX, SCORES, draw_blocks, score_weights, uniform_score

FRAMEWORK, OLSSON = "elhage2021mathematical", "olsson2022incontext"
OWN = Source(FRAMEWORK, status="own")
IDS, TOKENS = 5, 60
COPY = "queries whose token has an earlier copy with a successor"
ONE_LAYER = "one layer: uniform attention, whose output is the share of each id among the tokens so far"


@claim(
    "induction/in-context-bigram",
    measures="largest error of the output at b = 400",
    at_most=1e-12,
    source=Source("elhage2021mathematical", 'section "How Induction Heads Work"', "own"),
    assumptions=("sequences start with BOS", "softmax at scale b = 400, float64", COPY),
    control=but(ONE_LAYER, composed=False),
)
def bigram(generator: Generator, *, composed: bool = True) -> Measured:
    r"""Two layers of one head each, written by hand, tend to the bigram statistics of the sequence as $b \to
    \infty$: $\mathrm{out}_t(v)$ tends to the number of $j \le t$ with $x_{j-1} = x_t$ and $x_j = v$, divided
    by that with $x_{j-1} = x_t$. (The source describes the circuit; counts and limit are the library's.)
    """
    ids = random_sequences(4, vocabulary=IDS, length=TOKENS, generator=generator)
    target, known = in_context_bigram(ids, IDS)
    error = (InductionHead(IDS, TOKENS, 400.0).output(ids, composed=composed) - target)[known].abs().max()
    return Measured(float(error), {"queries": int(known.sum())})


@claim(
    "induction/bound",
    measures="largest ratio of error and bound, over b = 7, 10, 15, 20",
    at_most=1.0,
    source=OWN,
    assumptions=("sequences start with BOS", COPY),
    control=but(ONE_LAYER, composed=False),
)
def bound(generator: Generator, *, composed: bool = True) -> Measured:
    r"""At scale b the error is at most $T e^{-b(1 - 2\delta)} + e^{b\delta} - 1$ with $\delta = T e^{-b}$."""
    ids = random_sequences(4, vocabulary=IDS, length=TOKENS, generator=generator)
    target, known = in_context_bigram(ids, IDS)
    errors = {}
    for scale in (7.0, 10.0, 15.0, 20.0):
        head = InductionHead(IDS, TOKENS, scale)
        errors[scale] = float((head.output(ids, composed=composed) - target)[known].abs().max())
    ratio = max(error / InductionHead(IDS, TOKENS, scale).bound() for scale, error in errors.items())
    return Measured(ratio, {f"error at b = {scale:g}": error for scale, error in errors.items()})


@claim(
    "induction/previous-token",
    measures="largest error of the closed form",
    at_most=1e-12,
    source=OWN,
    assumptions=("b between 2 and 8", "positions i from 1 to 59; the first token has no predecessor"),
    control=but("one key more", shift=1),
)
def previous_token(generator: Generator, *, shift: int = 0) -> Measured:
    """The previous-token head of the construction has the weight $a_{i, i-1} = e^b / (e^b + i)$."""
    scale = 2 + 6 * float(torch.rand((), generator=generator))
    ids = random_sequences(2, vocabulary=IDS, length=TOKENS, generator=generator)
    A = InductionHead(IDS, TOKENS, scale).network().run(ids)[1][0][:, 0]
    i = torch.arange(1, TOKENS, dtype=torch.float64)
    predicted = 1 / (1 + (i + shift) * math.exp(-scale))  # e^b / (e^b + i)
    return Measured(float((A.diagonal(-1, 1, 2) - predicted).abs().max()), {"scale": scale})


def _random_network(generator: Generator, *, layers: int = 2, heads: int = 2, dim: int = 12) -> AttentionOnly:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    each = tuple(
        Heads(normal(heads, dim, dim) / dim, normal(heads, dim, dim) / dim**0.5) for _ in range(layers)
    )
    return AttentionOnly(normal(7, dim), normal(16, dim), each, normal(dim, 7))


@claim(
    "induction/path-expansion",
    measures="relative error of the sum over all paths",
    at_most=1e-12,
    source=Source(
        "elhage2021mathematical",
        'sections "Path Expansion of Logits" and "Virtual Attention Heads"',
        "confirmed",
    ),
    assumptions=("no norms, MLPs and biases", "two layers of two heads with Gaussian weights"),
    control=but("paths of two heads (virtual heads) are left out", longest=1),
)
def paths(generator: Generator, *, longest: int = 2) -> Measured:
    r"""The logits of an attention-only network are a sum over paths, $\sum_{h_1 \ldots h_m} A^{h_m} \cdots
    A^{h_1} x^0 W_{OV}^{h_1} \cdots W_{OV}^{h_m} W_U$.
    """
    model = _random_network(generator)
    ids = torch.randint(7, (3, 16), generator=generator)
    logits, _ = model.run(ids)
    terms = path_expansion(model, ids)
    kept = torch.stack([term for path, term in terms.items() if len(path) <= longest]).sum(0)
    return Measured(float((kept - logits).norm() / logits.norm()), {"paths": len(terms)})


@claim(
    "induction/copying-eigenvalues",
    measures="largest difference of the two scores",
    at_most=1e-6,
    source=OWN,
    assumptions=("Gaussian matrices of 30 ids, width 16 and head width 5",),
    control=but("eigenvalues of W_OV without embedding and unembedding", whole=False),
)
def copying_eigenvalues(generator: Generator, *, whole: bool = True) -> float:
    r"""The copying score $\sum \lambda / \sum |\lambda|$ of the OV circuit $W_E W_V W_O W_U$ is that of the
    small matrix $W_O W_U W_E W_V$.
    """
    W_V, W_O = (torch.randn(4, 16, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    W_E, W_U = (torch.randn(30, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    small = copying_score(W_V, W_O.mT, W_E, W_U.mT)
    large = eigenvalue_share(W_E @ W_V @ W_O.mT @ W_U.mT if whole else W_V @ W_O.mT)
    return float((small - large).abs().max())


@claim(
    "induction/prefix-matching",
    measures="larger of the distances of the prefix matching from 1, and from uniform attention on "
    "unrelated blocks",
    at_most=0.01,
    source=Source(OLSSON, status="own"),
    assumptions=("the explicit head, b between 10 and 16", "blocks of 12 to 25 different ids"),
    control=but(ONE_LAYER, composed=False),
)
def prefix_matching(generator: Generator, *, composed: bool = True) -> Measured:
    r"""On a block that occurs twice the second head attends to the token after the copy, $A_{i, i-P+1} \to
    1$; on unrelated blocks it attends uniformly, with the mean of $1/(i+1)$.
    """
    length, scale = (
        int(torch.randint(12, 26, (), generator=generator)),
        10 + 6 * float(torch.rand((), generator=generator)),
    )
    head = InductionHead(2 * length, 2 * length + 1, scale)
    blocks = draw_blocks(4, length=length, vocabulary=2 * length, generator=generator)
    maps = [head.network(composed=composed).run(with_bos(ids, head.bos))[1][1] for ids in blocks]
    twice, unrelated = (float(score_weights(A[..., 1:, 1:])[SCORES.index(PREFIX)].mean()) for A in maps)
    distances = abs(twice - 1), abs(unrelated - uniform_score(2 * length))
    detail = {
        "b": scale,
        "ids in a block": float(length),
        "block twice": twice,
        "unrelated blocks": unrelated,
    }
    return Measured(max(distances), detail)


@claim(
    "induction/positional-share",
    measures="distance of the share from the formula, mean over six heads",
    at_most=0.06,
    margin=NEAR,
    source=Source(OLSSON, status="own"),
    assumptions=(
        "independent tokens and positions",
        "Gaussian W",
        "300 sequences of 24 tokens of 48 dimensions, causal",
        "ratio of deviations .6 to 1.4",
    ),
    control=but("the share of the variance of the tokens, not of the scores", power=1),
)
def positional_share(generator: Generator, *, power: int = 2) -> Measured:
    r"""For tokens $e + p$ of Gaussian vectors with variances $\sigma_e^2$ and $\sigma_p^2$ the positional
    share of the scores tends, for many dimensions and positions, to $(\sigma_p^2 / (\sigma_e^2 +
    \sigma_p^2))^2$.
    """
    sigma = 0.6 + 0.8 * float(torch.rand((), generator=generator))
    n, T, d = 300, 24, 48
    e = torch.randn(n, T, d, generator=generator, dtype=torch.float64)
    x = e + sigma * torch.randn(T, d, generator=generator, dtype=torch.float64)
    W = torch.randn(6, d, d, generator=generator, dtype=torch.float64) / d**0.75
    query = x[:, None] @ W
    weights = attention_weights(query, x[:, None].expand_as(query), scale=1 / d**0.5, mask=causal_mask(T, T))
    metric = PositionalShare()
    metric.update(Activations("attention", 0, "attention", x, x, query=query, key=query, weights=weights))
    shares = [row.value for row in metric.compute() if row.value is not None]
    predicted = (sigma**2 / (1 + sigma**2)) ** power
    return Measured(
        abs(sum(shares) / len(shares) - predicted),
        {"share": sum(shares) / len(shares), "predicted": predicted},
    )


CLAIMS = (bigram, bound, previous_token, paths, copying_eigenvalues, prefix_matching, positional_share)
