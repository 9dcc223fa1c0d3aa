"""Claims about heads: the explicit induction head, paths, copying, chance levels, and the positional share of attention."""

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ....core.metric import Activations
from ....core.sources import Source
from ....models.attention import attention_weights, causal_mask
from ..circuits import AttentionOnly, Heads, copying_score, eigenvalue_share, ov_circuit, path_expansion
from ..heads import InductionHead, in_context_bigram, previous_weight, random_sequences, with_bos
from ..in_networks import PositionalShare
from ..scores import PREFIX, SCORES, draw_blocks, score_weights, uniform_score

FRAMEWORK, OLSSON = "elhage2021mathematical", "olsson2022incontext"
OWN = Source(FRAMEWORK, status="own")
SECOND = Source(FRAMEWORK, status="second-hand")
IDS, TOKENS = 5, 60
COPY = "queries whose token has an earlier copy with a successor"


def _bigram(generator: Generator, *, composed: bool) -> Evidence:
    """Measures the largest error of the explicit head at scale 400 against the in-context bigram distribution."""
    ids = random_sequences(4, vocabulary=IDS, length=TOKENS, generator=generator)
    target, known = in_context_bigram(ids, IDS)
    error = (InductionHead(IDS, TOKENS, 400.0).output(ids, composed=composed) - target)[known].abs().max()
    return Evidence(float(error), 1e-12, "<=", detail={"queries": int(known.sum())})


def _bound(generator: Generator, *, composed: bool) -> Evidence:
    """Measures the largest ratio of error and bound over four scales."""
    ids = random_sequences(4, vocabulary=IDS, length=TOKENS, generator=generator)
    target, known = in_context_bigram(ids, IDS)
    errors = {}
    for scale in (7.0, 10.0, 15.0, 20.0):
        head = InductionHead(IDS, TOKENS, scale)
        errors[scale] = float((head.output(ids, composed=composed) - target)[known].abs().max())
    ratio = max(error / InductionHead(IDS, TOKENS, scale).bound() for scale, error in errors.items())
    return Evidence(ratio, 1.0, "<=", detail={f"error at b = {scale:g}": error for scale, error in errors.items()})


def _previous(generator: Generator, *, shift: int) -> Evidence:
    """Measures the largest error of the closed form of the previous-token head; ``shift`` changes the number of other keys."""
    scale = 2 + 6 * float(torch.rand((), generator=generator))
    ids = random_sequences(2, vocabulary=IDS, length=TOKENS, generator=generator)
    A = InductionHead(IDS, TOKENS, scale).network().run(ids)[1][0][:, 0]
    i = torch.arange(1, TOKENS, dtype=torch.float64)
    return Evidence(float((A.diagonal(-1, 1, 2) - previous_weight(i + shift, scale)).abs().max()), 1e-12, "<=", detail={"scale": scale})


def _random_network(generator: Generator, *, layers: int = 2, heads: int = 2, dim: int = 12) -> AttentionOnly:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    each = tuple(Heads(normal(heads, dim, dim) / dim, normal(heads, dim, dim) / dim**0.5) for _ in range(layers))
    return AttentionOnly(normal(7, dim), normal(16, dim), each, normal(dim, 7))


def _paths(generator: Generator, *, longest: int) -> Evidence:
    """Measures the relative error of the sum of the paths with at most ``longest`` heads."""
    model = _random_network(generator)
    ids = torch.randint(7, (3, 16), generator=generator)
    logits, _ = model.run(ids)
    terms = path_expansion(model, ids)
    kept = torch.stack([term for path, term in terms.items() if len(path) <= longest]).sum(0)
    return Evidence(float((kept - logits).norm() / logits.norm()), 1e-12, "<=", detail={"paths": len(terms)})


def _eigenvalues(generator: Generator, *, whole: bool) -> Evidence:
    """Measures the difference of the copying score by p x p matrices and that of the whole OV circuit, or of W_OV alone."""
    W_V, W_O = (torch.randn(4, 16, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    W_E, W_U = (torch.randn(30, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    small = copying_score(W_V, W_O.mT, W_E, W_U.mT)
    W_OV = W_V @ W_O.mT
    large = eigenvalue_share(ov_circuit(W_OV, W_E, W_U.mT) if whole else W_OV)
    return Evidence(float((small - large).abs().max()), 1e-6, "<=")


def _copies(generator: Generator, *, layer: int) -> Evidence:
    """Measures the copying score of a head of the construction, with ids in a random orthonormal basis."""
    network = InductionHead(IDS, 8, 10.0).network()
    basis = torch.linalg.qr(torch.randn(IDS, IDS, generator=generator, dtype=torch.float64)).Q
    # The basis changes what the ids are called, not whether they are copied; BOS has no logit and is left out.
    circuit = basis @ ov_circuit(network.layers[layer].W_OV[0], network.W_E[:-1], network.W_U) @ basis.mT
    share = eigenvalue_share(circuit) if bool(circuit.any()) else torch.zeros(())
    return Evidence(float(share), 1 - 1e-9, ">=")


def _prefix(generator: Generator, *, repeated: bool) -> float:
    """Returns the prefix matching of the explicit head on a block that occurs twice, or on unrelated blocks."""
    head = InductionHead(40, 41, 12.0)
    value, null = draw_blocks(4, length=20, vocabulary=40, generator=generator)
    maps = head.network().run(with_bos(value if repeated else null, head.bos))[1]
    return float(score_weights(maps[1][..., 1:, 1:])[SCORES.index(PREFIX)].mean())


def _chance(generator: Generator, *, repeated: bool) -> Evidence:
    """Measures the distance of the explicit head's prefix matching from that of uniform attention."""
    score = _prefix(generator, repeated=repeated)
    return Evidence(abs(score - uniform_score(40)), 0.01, "<=", detail={"prefix matching": score})


def _positional(generator: Generator, *, power: int) -> Evidence:
    """Measures the distance of the positional share from (variance of the positions / sum of both variances)^power."""
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
    return Evidence(
        abs(sum(shares) / len(shares) - predicted), 0.06, "<=", detail={"share": sum(shares) / len(shares), "predicted": predicted}
    )


HEADS = (
    Claim(
        id="induction/in-context-bigram",
        statement=r"Two layers of one head each, written by hand, tend to the bigram statistics of the sequence as $b \to \infty$: "
        r"$\mathrm{out}_t(v)$ tends to the number of $j \le t$ with $x_{j-1} = x_t$ and $x_j = v$, divided by that with $x_{j-1} = x_t$.",
        measures="largest error of the output at b = 400",
        source=SECOND,
        assumptions=("sequences start with BOS", "softmax at scale b = 400, float64", COPY),
        check=lambda generator: _bigram(generator, composed=True),
        control=lambda generator: _bigram(generator, composed=False),
        control_description="one layer: the second head compares tokens with tokens",
    ),
    Claim(
        id="induction/bound",
        statement=r"At scale b the error is at most $T e^{-b(1 - 2\delta)} + e^{b\delta} - 1$ with $\delta = T e^{-b}$.",
        measures="largest ratio of error and bound, over b = 7, 10, 15, 20",
        source=OWN,
        assumptions=("sequences start with BOS", COPY),
        check=lambda generator: _bound(generator, composed=True),
        control=lambda generator: _bound(generator, composed=False),
        control_description="one layer: the second head compares tokens with tokens",
    ),
    Claim(
        id="induction/previous-token",
        statement=r"The previous-token head of the construction has the weight $a_{i, i-1} = e^b / (e^b + i)$.",
        measures="largest error of the closed form",
        source=OWN,
        assumptions=("b between 2 and 8", "positions i from 1 to 59; the first token has no predecessor"),
        check=lambda generator: _previous(generator, shift=0),
        control=lambda generator: _previous(generator, shift=1),
        control_description="one key more",
    ),
    Claim(
        id="induction/path-expansion",
        statement=r"The logits of an attention-only network are a sum over paths, $\sum_{h_1 \ldots h_m} A^{h_m} \cdots A^{h_1} x^0 "
        r"W_{OV}^{h_1} \cdots W_{OV}^{h_m} W_U$.",
        measures="relative error of the sum over all paths",
        source=SECOND,
        assumptions=("no norms, MLPs and biases", "two layers of two heads with Gaussian weights"),
        check=lambda generator: _paths(generator, longest=2),
        control=lambda generator: _paths(generator, longest=1),
        control_description="paths of two heads (virtual heads) are left out",
    ),
    Claim(
        id="induction/copying-eigenvalues",
        statement=r"The copying score $\sum \lambda / \sum |\lambda|$ of the OV circuit $W_E W_V W_O W_U$ is that of the small matrix "
        r"$W_O W_U W_E W_V$.",
        measures="largest difference of the two scores",
        source=OWN,
        assumptions=("Gaussian matrices of 30 ids, width 16 and head width 5",),
        check=lambda generator: _eigenvalues(generator, whole=True),
        control=lambda generator: _eigenvalues(generator, whole=False),
        control_description="eigenvalues of W_OV without embedding and unembedding",
    ),
    Claim(
        id="induction/copying",
        statement=r"The induction head of the construction copies: $\sum \lambda / \sum |\lambda| = 1$ for its OV circuit.",
        measures="copying score of the second layer's head",
        source=OWN,
        assumptions=("ids in a random orthonormal basis",),
        check=lambda generator: _copies(generator, layer=1),
        control=lambda generator: _copies(generator, layer=0),
        control_description="the previous-token head, which writes to no logit",
    ),
    Claim(
        id="induction/chance",
        statement=r"Without an earlier copy an induction head attends uniformly, so that its prefix matching is the mean of "
        r"$1/(i+1)$, not 0.",
        measures="distance of the prefix matching from that of uniform attention",
        source=Source(OLSSON, status="own"),
        assumptions=("the explicit head at b = 12", "two unrelated blocks of 20 different ids"),
        check=lambda generator: _chance(generator, repeated=False),
        control=lambda generator: _chance(generator, repeated=True),
        control_description="the same block twice",
    ),
    Claim(
        id="induction/prefix-matching",
        statement=r"On a block that occurs twice the second head attends to the token after the copy: $A_{i, i-P+1} \to 1$.",
        measures="prefix matching",
        source=Source(OLSSON, status="own"),
        assumptions=("the explicit head at b = 12", "a block of 20 different ids"),
        check=lambda generator: Evidence(_prefix(generator, repeated=True), 0.99, ">="),
        control=lambda generator: Evidence(_prefix(generator, repeated=False), 0.99, ">="),
        control_description="two unrelated blocks",
    ),
    Claim(
        id="induction/positional-share",
        statement=r"For tokens $e + p$ of Gaussian vectors with variances $\sigma_e^2$ and $\sigma_p^2$ the positional share "
        r"of the scores is "
        r"$(\sigma_p^2 / (\sigma_e^2 + \sigma_p^2))^2$.",
        measures="distance of the share from the formula, mean over six heads",
        source=Source(OLSSON, status="own"),
        assumptions=(
            "independent tokens and positions",
            "Gaussian W",
            "300 sequences of 24 tokens, causal",
            r"ratio of deviations .6 to 1.4",
        ),
        check=lambda generator: _positional(generator, power=2),
        control=lambda generator: _positional(generator, power=1),
        control_description="the share of the variance of the tokens, not of the scores",
    ),
)
