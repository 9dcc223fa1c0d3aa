"""Claims about attention to many keys: dispersion, gap, further keys, predictions at length, scaling, one
token, sinks.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.claims import BOUND, BY_CHANCE, NEAR, Measured, but, claim
from ...core.sources import Source
from ...metrics.attention import hard_max_gap
from ...probes.changed_pass import changed_attention, check_changed
from .dispersion import (
    kept_share,
    log_dispersion_bound,
    one_token_change,
    score_gap,
    winner_weight,
    without_sink,
)
from .interventions import doubled
from .longer import continuum_weight, log_factor, resampled_top_weight, top_weight
from .retrieval import KEYS, LENGTHS, Kind, PooledHead, at_length, draw, short_scores, trained_head

OWN, CHIANG = Source("velickovic2025softmax", status="own"), Source("chiang2022overcoming", status="own")
SINKS = Source("xiao2024efficient", status="own")
RETRIEVAL = (
    "one head with a learnt query, width 32, trained on 16 keys by Adam at rate .003 on batches of 64 new "
    "sequences"
)
F64 = torch.float64
LAWS: dict[str, Callable[[Generator, int, int], Tensor]] = {
    "Gaussian, 2": lambda generator, rows, n: 2 * torch.randn(rows, n, generator=generator, dtype=F64),
    "uniform, 60": lambda generator, rows, n: 60 * torch.rand(rows, n, generator=generator, dtype=F64),
    "exponential, .7": lambda generator, rows, n: (
        0.7 * torch.empty(rows, n, dtype=F64).exponential_(generator=generator)
    ),
}


def _head_scores(generator: Generator, *, n: int, scale: float, queries: int = 32) -> Float[Tensor, "q n"]:
    """Returns scores of a random head on Gaussian tokens of dimension 16, with variance ``scale**2``."""
    x = torch.randn(n, 16, generator=generator, dtype=F64)
    W = torch.randn(16, 16, generator=generator, dtype=F64)
    return scale * x[:queries] @ W @ x.mT / 16


@claim(
    "length/dispersion",
    measures="largest excess of |log(n a)| over delta, nats",
    at_most=1e-9,
    source=Source("velickovic2025softmax", "Section 2, before Theorem 2.2", "second-hand"),
    assumptions=("random heads on Gaussian tokens, 16 to 4,096 keys, scores of standard deviation .3 and 3",),
    control=but("delta of another head, with a third of the scores", own=False),
)
def dispersion(generator: Generator, *, own: bool = True) -> Measured:
    r"""Scores in an interval of length $\delta$ give weights with $e^{-\delta}/n \le a_j
    \le e^{\delta}/n$.
    """
    worst, detail = -math.inf, {}
    for n in (16, 128, 1024, 4096):
        for scale in (0.3, 3.0):
            scores = _head_scores(generator, n=n, scale=scale)
            bounded = scores if own else _head_scores(generator, n=n, scale=scale / 3)
            delta = log_dispersion_bound(bounded) + math.log(n)
            ends = scores.log_softmax(-1) + math.log(n)
            worst = max(worst, float((ends.abs().amax(-1) - delta).max()))
            detail[f"least slack, {n} keys, scale {scale:g}"] = float((delta - ends.abs().amax(-1)).min())
    return Measured(worst, detail)


def _between(generator: Generator, low: float, high: float) -> float:
    """Draws a number between two bounds."""
    return low + (high - low) * float(torch.rand((), generator=generator))


@claim(
    "length/dispersion-attained",
    measures="largest distance of log a from delta - log n, divided by (e^delta - 1)/n",
    at_most=1.0,
    margin=BOUND,
    source=OWN,
    assumptions=("64 to 4,096 keys, delta between .5 and 3",),
    control=but("the other scores are uniform on the same interval", equal=False),
)
def dispersion_attained(generator: Generator, *, equal: bool = True) -> float:
    r"""The upper bound is attained up to $O(1/n)$: one score among $n - 1$ equal ones that are smaller by
    $\delta$ has $0 \le \delta - \log n - \log a \le (e^{\delta} - 1)/n$.
    """
    worst = 0.0
    for n in (64, 512, 4096):
        delta = _between(generator, 0.5, 3.0)
        scores = torch.zeros(n, dtype=F64) if equal else delta * torch.rand(n, generator=generator, dtype=F64)
        scores[0], scores[1] = delta, 0.0
        distance = abs(float(scores.log_softmax(0)[0] - log_dispersion_bound(scores)))
        worst = max(worst, distance * n / math.expm1(delta))
    return worst


@claim(
    "length/gap",
    measures="largest relative distance of the two",
    at_most=1e-10,
    source=OWN,
    assumptions=("random heads, 3 to 4,096 keys, scores of standard deviation .5 to 5",),
    control=but("g is the largest score minus the second largest", gap=hard_max_gap),
)
def identity(generator: Generator, *, gap: Callable[[Tensor], Tensor] = score_gap) -> float:
    r"""With $g = s_{\max} - \log \mathrm{mean}_{j \ne \max} e^{s_j}$ the largest weight is $1 / (1 + (n - 1)
    e^{-g})$.
    """
    worst = 0.0
    for n in (3, 16, 256, 4096):
        scores = _head_scores(generator, n=n, scale=_between(generator, 0.5, 5.0), queries=min(n, 32))
        worst = max(worst, float((winner_weight(gap(scores), n) / top_weight(scores) - 1).abs().max()))
    return worst


@claim(
    "length/kept-share",
    measures="largest relative distance of the two",
    at_most=1e-10,
    source=OWN,
    assumptions=("24 keys and 8 to 199 further ones, Gaussian scores of standard deviation .5 to 3",),
    control=but("sigmoid attention, whose weights do not depend on further keys", softmax=False),
)
def kept(generator: Generator, *, softmax: bool = True) -> Measured:
    """Further keys multiply the weight of each key by $R = Z_1 / (Z_1 + Z_2)$, with the sums Z of $e^s$ of
    both sets.
    """
    n, m = 24, int(torch.randint(8, 200, (), generator=generator))
    first, others = (
        _between(generator, 0.5, 3.0) * torch.randn(32, k, generator=generator, dtype=F64) for k in (n, m)
    )
    both = torch.cat([first, others], -1)
    weights = [scores.softmax(-1) if softmax else scores.sigmoid() for scores in (first, both)]
    ratio = weights[1][:, :n] / weights[0] / kept_share(first, others)[:, None]
    return Measured(float((ratio - 1).abs().max()), {"further keys": m})


@claim(
    "length/exchangeable-keys",
    measures="distance of the mean of 4,000 queries from 1/m, standard errors",
    at_most=4.5,
    margin=BY_CHANCE,
    source=OWN,
    assumptions=(
        "2 to 8 sets of 16 keys, Gaussian scores of standard deviation .5 to 4, half of the variance "
        "shared by the sets",
    ),
    control=but("the further keys are copies of the lightest key", same=False),
)
def exchangeable_keys(generator: Generator, *, same: bool = True) -> Measured:
    """If m sets of keys are exchangeable, $E R = 1/m$ exactly: the mean factor of each weight is 1/m."""
    n, m, size = 16, int(torch.randint(2, 9, (), generator=generator)), _between(generator, 0.5, 4.0)
    # A part that all sets share makes them exchangeable without being independent.
    scores, shared = (torch.randn(4000, k, n, generator=generator, dtype=F64) for k in (m, 1))
    scores = size * (scores + shared) / 2**0.5
    if not same:  # the further keys are copies of the lightest key of the first set
        scores[:, 1:] = scores[:, :1].amin(-1, keepdim=True)
    share = kept_share(scores[:, 0], scores[:, 1:].flatten(1))
    error = float(share.std()) / 4000**0.5
    return Measured(
        abs(float(share.mean()) - 1 / m) / error, {"sets": m, "size": size, "mean": float(share.mean())}
    )


@claim(
    "length/resampling",
    measures="largest absolute logarithm of the mean largest weight over its prediction",
    at_most=0.25,
    margin=NEAR,
    source=OWN,
    assumptions=(
        "64 to 1,024 keys; scores Gaussian, uniform or exponential",
        "512,000 scores in the pool, means of 4,000 sequences",
    ),
    control=but(
        "scores of a sequence share a factor, .2 or 2, as with queries that differ between sequences",
        independent=False,
    ),
)
def resampling(generator: Generator, *, independent: bool = True) -> Measured:
    r"""If all scores are independent draws of one law, $n$ scores that are drawn with replacement from those
    of sequences of 16 keys predict the mean of $a_{\max}$ at n keys, exactly in the limit of a large pool.
    """
    worst, detail = 0.0, {}

    def sizes(rows: int) -> Float[Tensor, "rows 1"] | float:
        return 1.0 if independent else torch.where(torch.rand(rows, 1, generator=generator) < 0.5, 0.2, 2.0)

    for name, law in LAWS.items():
        pool = sizes(32_000) * law(generator, 32_000, KEYS)
        for n in (64, 256, 1024):
            value = float(top_weight(sizes(4000) * law(generator, 4000, n)).mean())
            predicted = resampled_top_weight(pool, n, generator=generator, samples=4000)
            worst = max(worst, abs(math.log(value / predicted)))
            detail |= {f"{name}, {n} keys": value, f"{name}, {n} keys, predicted": predicted}
    return Measured(worst, detail)


def _written(
    generator: Generator, kind: str, n: int, size: float, spread: float, rows: int = 400
) -> Float[Tensor, "rows n"]:
    """Returns scores of a written head: a needle of the given size among Gaussian rivals, or the size times
    uniform keys.
    """
    if kind == "continuum":
        return size * torch.rand(rows, n, generator=generator, dtype=F64)
    scores = spread * torch.randn(rows, n, generator=generator, dtype=F64)
    scores[:, 0] = size
    return scores


@claim(
    "length/needle-scaling",
    measures="smallest weight of the winner at 64 to 4,096 keys, minus that at 16",
    at_least=-0.05,
    source=CHIANG,
    assumptions=(
        r"gap of 1.5 to 2.5 times log 16 at 16 keys",
        "Gaussian rivals of standard deviation at most .3",
    ),
    control=but("a continuum of rivals: scores 80 to 200 times uniform keys", kind="continuum"),
)
def needle_scaling(generator: Generator, *, kind: str = "needle") -> Measured:
    r"""With scores multiplied by $\log n / \log 16$ a needle among like rivals, with a gap above the critical
    value $\log 15$, keeps its weight up to 4,096 keys.
    """
    ratio, spread = _between(generator, 1.5, 2.5), _between(generator, 0.0, 0.3)
    size = ratio * math.log(KEYS) if kind == "needle" else _between(generator, 80.0, 200.0)
    found = {
        n: float(top_weight(log_factor(n, KEYS) * _written(generator, kind, n, size, spread)).mean())
        for n in LENGTHS
    }
    plain = float(top_weight(_written(generator, kind, LENGTHS[-1], size, spread)).mean())
    value = min(found[n] for n in LENGTHS[1:]) - found[KEYS]
    return Measured(value, {f"{n} keys": x for n, x in found.items()} | {"4,096 keys, not scaled": plain})


@claim(
    "length/continuum-scaling",
    measures="largest distance of the mean largest weight at 64 to 1,024 keys, scores multiplied by "
    "n/16, from the limit",
    at_most=0.03,
    source=OWN,
    assumptions=(
        "s/16 between .2 and 10 at 16 keys, uniform on a logarithmic axis, means of 2,000 sequences",
    ),
    control=but(r"scores multiplied by log n / log 16", factor=lambda n: log_factor(n, KEYS)),
)
def continuum_scaling(
    generator: Generator, *, factor: Callable[[int], float] = lambda n: n / KEYS
) -> Measured:
    r"""For scores $s x$ with uniform x the mean largest weight depends on $s/n$ alone in the limit of many
    keys: $E[1/\sum_{k \ge 0} e^{-(s/n)\Gamma_k}]$ with $\Gamma_0 = 0$, the largest key, and the points
    $\Gamma_1 < \Gamma_2 < \dots$ of a Poisson process of rate 1, which is $\int_0^\infty e^{-t - (n/s)
    \mathrm{Ein}(t)} dt$. Scores must grow like n to keep it.
    """
    size = KEYS * math.exp(_between(generator, math.log(0.2), math.log(10.0)))
    limit = continuum_weight(size / KEYS)
    found = {
        n: float(top_weight(factor(n) * size * torch.rand(2000, n, generator=generator, dtype=F64)).mean())
        for n in (64, 256, 1024)
    }
    worst = max(abs(value - limit) for value in found.values())
    return Measured(worst, {f"{n} keys": x for n, x in found.items()} | {"limit": limit})


@claim(
    "length/one-token",
    measures="largest change minus its bound",
    at_most=1e-12,
    source=Source("hahn2020theoretical", "Lemma 5", "own"),
    assumptions=(
        "2 to 64 keys, Gaussian scores of standard deviation .1 to 6",
        "values Gaussian, or of two opposite directions",
    ),
    control=but("the weight before the change in place of the larger one", larger=False),
)
def one_token(generator: Generator, *, larger: bool = True) -> Measured:
    r"""If one key and its value change, the output changes by at most $2 a' \max_j |v_j|$, with the larger a'
    of its weights before and after. (The source has $O(1/n)$ for a whole network, with constants that it does
    not give; the explicit bound on one layer is the library's.)
    """
    worst, ratio = -math.inf, 0.0
    for n in (2, 3, 8, 64):
        size = _between(generator, 0.1, 6.0)
        scores, new = (
            size * torch.randn(500, *shape, generator=generator, dtype=F64) for shape in ((n,), ())
        )
        values, new_value = (
            torch.randn(500, *shape, 3, generator=generator, dtype=F64) for shape in ((n,), ())
        )
        # Values of norm 1 along one direction come near the bound: the rest at -v, the new value at v.
        values[:250], new_value[:250] = (
            torch.tensor([-1.0, 0, 0], dtype=F64),
            torch.tensor([1.0, 0, 0], dtype=F64),
        )
        change, bound = one_token_change(scores, values, new, new_value)
        if not larger:
            largest = torch.cat([values.norm(dim=-1), new_value.norm(dim=-1)[:, None]], -1).amax(-1)
            bound = 2 * scores.softmax(-1)[:, 0] * largest
        worst, ratio = (
            max(worst, float((change - bound).max())),
            max(ratio, float((change / bound)[bound > 1e-6].max())),
        )
    return Measured(worst, {"largest ratio": ratio})


@claim(
    "length/one-token-rate",
    measures="distance of the slope in log n of the log of the mean change from -1",
    at_most=0.05,
    source=Source("hahn2020theoretical", "Lemma 5", "second-hand"),
    assumptions=("scores in [0, 2], Gaussian values, 16 to 4,096 keys",),
    control=but("the score of the changed key grows like log n", bounded=False),
)
def one_token_rate(generator: Generator, *, bounded: bool = True) -> Measured:
    """For bounded scores one token changes the output by $O(1/n)$. (One layer; the source states it for
    networks of any depth.)
    """
    points = []
    for n in LENGTHS:
        scores, values = (
            2 * torch.rand(200, n, generator=generator, dtype=F64),
            torch.randn(200, n, 4, generator=generator, dtype=F64),
        )
        added = 0.0 if bounded else math.log(n)
        scores[:, 0] += added
        new = 2 * torch.rand(200, generator=generator, dtype=F64) + added
        change, _ = one_token_change(scores, values, new, torch.randn(200, 4, generator=generator, dtype=F64))
        points.append((math.log(n), math.log(float(change.mean()))))
    x, y = torch.tensor(points, dtype=F64).unbind(1)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return Measured(abs(slope + 1), {"slope": slope})


@claim(
    "length/sink",
    measures="relative distance of the two, or largest error of the split into sink and rest",
    at_most=1e-11,
    source=SINKS,
    assumptions=("4 to 39 Gaussian tokens", "mass up to .9, the same for all queries"),
    control=but("a mass of its own for each query", shared=False),
)
def sink(generator: Generator, *, shared: bool = True) -> Measured:
    r"""If all queries have weight m on one key, $res(A X) = (1 - m) \, res(A' X)$ with the attention A' to
    the others and the distance res from the mean token: a sink contracts the branch.
    """
    n, d = int(torch.randint(4, 40, (), generator=generator)), 6
    x, rest = (torch.randn(n, k, generator=generator, dtype=F64) for k in (d, n - 1))
    mass = torch.rand(1 if shared else n, 1, generator=generator, dtype=F64).expand(n, 1) * 0.9
    weights = torch.cat([mass, (1 - mass) * (2 * rest).softmax(-1)], -1)
    m, others = without_sink(weights, x)
    output = (1 - m)[:, None] * others + m[:, None] * x[0]
    residual, contracted = weights @ x, (1 - m.mean()) * (others - others.mean(0))
    distance = (residual - residual.mean(0) - contracted).norm() / contracted.norm()
    split = float((output - residual).abs().max())
    return Measured(max(float(distance), split), {"mass": float(m.mean()), "error of the split": split})


def _sequences(keys: int) -> int:
    """Returns the number of sequences that are measured at a length."""
    return max(256, min(1000, 2**18 // keys))


@claim(
    "length/retrieval-at-length",
    measures="largest absolute logarithm of the mean largest weight over its prediction",
    at_most=0.2,
    source=OWN,
    assumptions=(
        RETRIEVAL,
        "the right key is the largest of n uniform ones",
        "independent tokens, no positions, one query for all sequences: scores are independent draws of "
        "one law at every length",
        "256 to 1,000 sequences at each length, pool of 64,000 scores",
    ),
    control=but("the largest weight stays as at 16 keys", predict=False),
    cost="training",
)
def retrieval_at_length(generator: Generator, *, predict: bool = True) -> Measured:
    r"""Scores of 16 keys predict the mean of $a_{\max}$ in a trained retrieval head at 64 to 4,096 keys, if a
    score depends on its own key alone.
    """
    model = trained_head("maximum", generator.initial_seed())
    pool = short_scores(model, "maximum", generator=generator, sequences=4000)
    stays, worst, detail = float(top_weight(pool).mean()), 0.0, {}
    for n in LENGTHS[1:]:
        found = at_length(model, "maximum", n, pool, generator=generator, sequences=_sequences(n))
        worst = max(worst, abs(math.log(found.top / (found.predicted if predict else stays))))
        detail |= {
            f"{n} keys": found.top,
            f"{n} keys, predicted": found.predicted,
            f"{n} keys, right key": found.right,
        }
        detail[f"{n} keys, accuracy"] = found.accuracy
    return Measured(worst, detail | {"16 keys": stays})


@claim(
    "length/vacuous",
    measures="smallest delta - log n over 64 sequences, nats",
    at_least=0.0,
    source=OWN,
    assumptions=(RETRIEVAL, "the right key is the largest of n uniform ones"),
    control=but("an untrained head", trained=False),
    cost="training",
)
def vacuous(generator: Generator, *, trained: bool = True) -> Measured:
    r"""The bound of dispersion says nothing about a trained retrieval head: $e^{\delta}/n > 1$ at
    4,096 keys.
    """
    model = trained_head("maximum", generator.initial_seed()) if trained else PooledHead()
    if not trained:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
                )
    with torch.no_grad():
        scores = model.scores(draw(64, LENGTHS[-1], kind="maximum", generator=generator).tokens).double()
    return Measured(
        float(log_dispersion_bound(scores).min()), {"largest": float(log_dispersion_bound(scores).max())}
    )


@claim(
    "length/trained-needle",
    measures="mean weight on the right key at 4,096 keys",
    at_least=0.9,
    margin=NEAR,
    source=CHIANG,
    assumptions=(RETRIEVAL, "the right key is 1 and all others are 0"),
    control=but("the right key is the largest of n uniform ones", kind="maximum"),
    cost="training",
)
def trained_needle(generator: Generator, *, kind: Kind = "needle") -> Measured:
    r"""Scores multiplied by $\log n / \log 16$ keep the weight of a trained head on a needle at 4,096 keys,
    at least .9.
    """
    model = trained_head(kind, generator.initial_seed())
    pool = short_scores(model, kind, generator=generator)
    plain, scaled = (
        at_length(model, kind, LENGTHS[-1], pool, generator=generator, scaled=each, sequences=256)
        for each in (False, True)
    )
    detail = {
        "not scaled": plain.right,
        "accuracy": scaled.accuracy,
        "accuracy, not scaled": plain.accuracy,
        "largest weight": scaled.top,
    }
    return Measured(scaled.right, detail)


class _NeedleReader(nn.Module):
    """Attention of one query per sequence, tokens ``[batch, n, d]`` to the weight on its needle, ``[batch]``.

    Token 0 is the needle: its product with itself is its score. All others have the product 0 with it.
    """

    def forward(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, " batch"]:
        needle = x[:, :1]
        read = (needle @ x.mT).softmax(-1) @ x
        return ((read * needle).sum(-1) / needle.square().sum(-1))[:, 0]


def _weights_of_needles(
    n: int, ratio: float, *, logarithmic: bool, shared: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the weights of the needles of 8 sequences of n keys, with and without a change.

    Args:
        n: number of keys.
        ratio: score of a needle over log n.
        logarithmic: whether the scores of the changed attention are multiplied by log 2n / log n.
        shared: whether all sequences have the same needle; otherwise each needle answers to one query.
    """
    x = torch.zeros(8, n, 8, dtype=F64)
    x[:, 0] = (ratio * math.log(n)) ** 0.5 * (
        torch.eye(8, dtype=F64)[:1] if shared else torch.eye(8, dtype=F64)
    )
    model = _NeedleReader()
    with torch.no_grad():
        unchanged = model(x)
    with changed_attention(model, partial(doubled, logarithmic=logarithmic)) as changed:
        found = model(x)
    check_changed(changed, "keys of another sequence")
    return found, unchanged


@claim(
    "length/diluted-needle",
    measures="largest relative distance of the factor from its prediction",
    at_most=1e-10,
    source=OWN,
    assumptions=(
        "one query per sequence, a needle with the score c log n, c between 1 and 2.5, and n - 1 keys with "
        "the score 0, 16 to 1,024 keys",
        "the needle of another sequence has the score 0, too",
    ),
    control=but("all sequences have the same needle, which a query finds twice", shared=True),
)
def diluted_needle(generator: Generator, *, shared: bool = False) -> Measured:
    r"""The intervention that adds the keys of another sequence multiplies the weight of a needle by $(n^c + n
    - 1) / (n^c + 2n - 1)$, exactly.
    """
    worst, detail = 0.0, {}
    for n in (16, 128, 1024):
        c = _between(generator, 1.0, 2.5)
        found, before = _weights_of_needles(n, c, logarithmic=False, shared=shared)
        predicted = (n**c + n - 1) / (n**c + 2 * n - 1)
        worst = max(worst, float((found / before / predicted - 1).abs().max()))
        detail[f"{n} keys, factor"] = float((found / before).mean())
    return Measured(worst, detail)


@claim(
    "length/repaired-needle",
    measures="largest relative distance of the weights from w(2n)",
    at_most=1e-10,
    source=CHIANG,
    assumptions=(
        "one query per sequence, a needle with the score c log n, c between 1 and 2.5, and n - 1 keys with "
        "the score 0, 16 to 1,024 keys",
        "the needle of another sequence has the score 0, too",
    ),
    control=but("fixed scores, without the logarithm", logarithmic=False),
)
def repaired_needle(generator: Generator, *, logarithmic: bool = True) -> Measured:
    r"""With scores times $\log 2n / \log n$ the keys of another sequence do not dilute a needle: its weight
    $w(n) = n^c / (n^c + n - 1)$ becomes $w(2n)$ exactly, which is larger if $2^c > (2n - 1) / (n - 1)$.
    """
    worst, detail = 0.0, {}
    for n in (16, 128, 1024):
        c = _between(generator, 1.0, 2.5)
        found, before = _weights_of_needles(n, c, logarithmic=logarithmic)
        predicted = (2 * n) ** c / ((2 * n) ** c + 2 * n - 1)
        worst = max(worst, float((found / predicted - 1).abs().max()))
        detail |= {f"{n} keys, before": float(before.mean()), f"{n} keys, after": float(found.mean())}
    return Measured(worst, detail)


CLAIMS = (
    dispersion,
    dispersion_attained,
    identity,
    kept,
    exchangeable_keys,
    resampling,
    needle_scaling,
    continuum_scaling,
    one_token,
    one_token_rate,
    sink,
    diluted_needle,
    repaired_needle,
    retrieval_at_length,
    vacuous,
    trained_needle,
)
