"""Claims about attention to many keys: dispersion, gap, further keys, predictions at length, scaling, one
token, sinks.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.claims import Claim, Evidence
from ...core.sources import Source
from ...metrics.attention import hard_max_gap
from .dispersion import (
    kept_share,
    log_dispersion_bound,
    one_token_change,
    score_gap,
    winner_weight,
    without_sink,
)
from .longer import continuum_weight, log_factor, resampled_top_weight, top_weight
from .retrieval import KEYS, LENGTHS, Kind, PooledHead, at_length, draw, short_scores, trained_head

VELICKOVIC, OWN = (
    Source("velickovic2025softmax", status="second-hand"),
    Source("velickovic2025softmax", status="own"),
)
CHIANG, HAHN = (
    Source("chiang2022overcoming", status="own"),
    Source("hahn2020theoretical", status="second-hand"),
)
SINKS = Source("xiao2024efficient", status="own")
RETRIEVAL = (
    "one head with a learnt query, width 32, trained on 16 keys by Adam at rate .003 on batches of 64 new "
    "sequences"
)
F64 = torch.float64


def _between(generator: Generator, low: float, high: float) -> float:
    """Draws a number between two bounds."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def _head_scores(generator: Generator, *, n: int, scale: float, queries: int = 32) -> Float[Tensor, "q n"]:
    """Returns scores of a random head on Gaussian tokens of dimension 16, with variance ``scale**2``."""
    x = torch.randn(n, 16, generator=generator, dtype=F64)
    W = torch.randn(16, 16, generator=generator, dtype=F64)
    return scale * x[:queries] @ W @ x.mT / 16


def _dispersion(generator: Generator, *, own: bool) -> Evidence:
    """Measures the largest excess of |log(n a)| over delta, nats, for heads of 8 sizes; the control has delta
    of a smaller head.
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
    return Evidence(worst, 1e-9, "<=", detail=detail)


def _attained(generator: Generator, *, one: bool) -> Evidence:
    """Measures the largest distance of log a_max from delta - log n, over (e^delta - 1)/n; the control has
    uniform scores.
    """
    worst = 0.0
    for n in (64, 512, 4096):
        delta = _between(generator, 0.5, 3.0)
        scores = torch.zeros(n, dtype=F64) if one else delta * torch.rand(n, generator=generator, dtype=F64)
        scores[0], scores[1] = delta, 0.0
        distance = abs(float(scores.log_softmax(0)[0] - log_dispersion_bound(scores)))
        worst = max(worst, distance * n / math.expm1(delta))
    return Evidence(worst, 1.0, "<=")


def _identity(generator: Generator, gap: Callable[[Tensor], Tensor]) -> Evidence:
    """Measures the largest relative distance of the largest weight from 1 / (1 + (n - 1) e^-g)."""
    worst = 0.0
    for n in (3, 16, 256, 4096):
        scores = _head_scores(generator, n=n, scale=_between(generator, 0.5, 5.0), queries=min(n, 32))
        worst = max(worst, float((winner_weight(gap(scores), n) / top_weight(scores) - 1).abs().max()))
    return Evidence(worst, 1e-10, "<=")


def _kept(generator: Generator, *, softmax: bool) -> Evidence:
    """Measures the largest relative distance of weights with further keys from R times the weights without
    them.
    """
    n, m = 24, int(torch.randint(8, 200, (), generator=generator))
    first, others = (
        _between(generator, 0.5, 3.0) * torch.randn(32, k, generator=generator, dtype=F64) for k in (n, m)
    )
    both = torch.cat([first, others], -1)
    weights = [scores.softmax(-1) if softmax else scores.sigmoid() for scores in (first, both)]
    ratio = weights[1][:, :n] / weights[0] / kept_share(first, others)[:, None]
    return Evidence(float((ratio - 1).abs().max()), 1e-10, "<=", detail={"further keys": m})


def _exchangeable(generator: Generator, *, same: bool) -> Evidence:
    """Measures the distance of the mean share R from 1/m, in standard errors, over 4,000 queries."""
    n, m, size = 16, int(torch.randint(2, 9, (), generator=generator)), _between(generator, 0.5, 4.0)
    # A part that all sets share makes them exchangeable without being independent.
    scores, shared = (torch.randn(4000, k, n, generator=generator, dtype=F64) for k in (m, 1))
    scores = size * (scores + shared) / 2**0.5
    if not same:  # the further keys are copies of the lightest key of the first set
        scores[:, 1:] = scores[:, :1].amin(-1, keepdim=True)
    share = kept_share(scores[:, 0], scores[:, 1:].flatten(1))
    error = float(share.std()) / 4000**0.5
    return Evidence(
        abs(float(share.mean()) - 1 / m) / error,
        4.5,
        "<=",
        detail={"sets": m, "size": size, "mean": float(share.mean())},
    )


LAWS: dict[str, Callable[[Generator, int, int], Tensor]] = {
    "Gaussian, 2": lambda generator, rows, n: 2 * torch.randn(rows, n, generator=generator, dtype=F64),
    "uniform, 60": lambda generator, rows, n: 60 * torch.rand(rows, n, generator=generator, dtype=F64),
    "exponential, .7": lambda generator, rows, n: (
        0.7 * torch.empty(rows, n, dtype=F64).exponential_(generator=generator)
    ),
}


def _resampled(generator: Generator, *, independent: bool) -> Evidence:
    """Measures the largest |log| of the mean largest weight at 64 to 1,024 keys over its prediction from 16,
    over three laws.

    The control multiplies all scores of a sequence by .2 or by 2.
    """
    worst, detail = 0.0, {}

    def sizes(rows: int) -> Float[Tensor, "rows 1"] | float:
        return 1.0 if independent else torch.where(torch.rand(rows, 1, generator=generator) < 0.5, 0.2, 2.0)

    for name, law in LAWS.items():
        pool = sizes(16_000) * law(generator, 16_000, KEYS)
        for n in (64, 256, 1024):
            value = float(top_weight(sizes(2000) * law(generator, 2000, n)).mean())
            predicted = resampled_top_weight(pool, n, generator=generator, samples=2000)
            worst = max(worst, abs(math.log(value / predicted)))
            detail |= {f"{name}, {n} keys": value, f"{name}, {n} keys, predicted": predicted}
    return Evidence(worst, 0.4, "<=", detail=detail)


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


def _log_n(generator: Generator, kind: str) -> Evidence:
    """Measures the smallest weight of the winner at 64 to 4,096 keys, minus that at 16; scores are multiplied
    by log n / log 16.
    """
    ratio, spread = _between(generator, 1.5, 2.5), _between(generator, 0.0, 0.3)
    size = ratio * math.log(KEYS) if kind == "needle" else _between(generator, 80.0, 200.0)
    found = {
        n: float(top_weight(log_factor(n, KEYS) * _written(generator, kind, n, size, spread)).mean())
        for n in LENGTHS
    }
    plain = float(top_weight(_written(generator, kind, LENGTHS[-1], size, spread)).mean())
    value = min(found[n] for n in LENGTHS[1:]) - found[KEYS]
    return Evidence(
        value,
        -0.05,
        ">=",
        detail={f"{n} keys": x for n, x in found.items()} | {"4,096 keys, not scaled": plain},
    )


def _continuum(generator: Generator, *, factor: Callable[[int], float]) -> Evidence:
    """Measures the largest distance of the mean largest weight from the limit at s/16; scores s x are
    multiplied by ``factor(n)``.
    """
    size = _between(generator, 60.0, 160.0)
    limit = continuum_weight(size / KEYS)
    found = {
        n: float(top_weight(factor(n) * size * torch.rand(2000, n, generator=generator, dtype=F64)).mean())
        for n in (64, 256, 1024)
    }
    worst = max(abs(value - limit) for value in found.values())
    return Evidence(worst, 0.03, "<=", detail={f"{n} keys": x for n, x in found.items()} | {"limit": limit})


def _one_token(generator: Generator, *, larger: bool) -> Evidence:
    """Measures the largest excess of the change of the output over its bound, over heads with 2 to 64 keys."""
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
    return Evidence(worst, 1e-12, "<=", detail={"largest ratio": ratio})


def _rate(generator: Generator, *, bounded: bool) -> Evidence:
    """Measures the slope of the log of the mean change over log n, 16 to 4,096 keys; the control adds log n
    to the score of the key.
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
    return Evidence(abs(slope + 1), 0.1, "<=", detail={"slope": slope})


def _sink(generator: Generator, *, shared: bool) -> Evidence:
    """Measures the distance of the residual of A X from (1 - m) times that of A' X, relative to the latter;
    the sink is key 0.
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
    return Evidence(
        max(float(distance), split),
        1e-11,
        "<=",
        detail={"mass": float(m.mean()), "error of the split": split},
    )


def _sequences(keys: int) -> int:
    """Returns the number of sequences that are measured at a length."""
    return max(256, min(1000, 2**18 // keys))


def _at_length(generator: Generator, *, predict: bool) -> Evidence:
    """Measures the largest |log| of the mean largest weight of a trained head at 64 to 4,096 keys over its
    prediction.
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
    return Evidence(worst, 0.2, "<=", detail=detail | {"16 keys": stays})


def _vacuous(generator: Generator, *, trained: bool) -> Evidence:
    """Measures the smallest delta - log n at 4,096 keys over 64 sequences, nats."""
    model = trained_head("maximum", generator.initial_seed()) if trained else PooledHead()
    if not trained:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
                )
    with torch.no_grad():
        scores = model.scores(draw(64, LENGTHS[-1], kind="maximum", generator=generator).tokens).double()
    return Evidence(
        float(log_dispersion_bound(scores).min()),
        0.0,
        ">=",
        detail={"largest": float(log_dispersion_bound(scores).max())},
    )


def _trained_log_n(generator: Generator, kind: Kind) -> Evidence:
    """Measures the weight of a trained head on the right key at 4,096 keys, with scores multiplied by log n /
    log 16.
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
    return Evidence(scaled.right, 0.9, ">=", detail=detail)


CLAIMS = (
    Claim(
        id="length/dispersion",
        statement=r"Scores in an interval of length $\delta$ give weights with $e^{-\delta}/n \le a_j \le "
        r"e^{\delta}/n$.",
        measures="largest excess of |log(n a)| over delta, nats",
        source=VELICKOVIC,
        assumptions=(
            "random heads on Gaussian tokens, 16 to 4,096 keys, scores of standard deviation .3 and 3",
        ),
        check=lambda generator: _dispersion(generator, own=True),
        control=lambda generator: _dispersion(generator, own=False),
        control_description="delta of another head, with a third of the scores",
    ),
    Claim(
        id="length/dispersion-attained",
        statement="The upper bound is attained up to $O(1/n)$: one score among $n - 1$ equal ones that are "
        r"smaller by $\delta$ has $0 \le \delta - \log n - \log a \le (e^{\delta} - 1)/n$.",
        measures="largest distance of log a from delta - log n, divided by (e^delta - 1)/n",
        source=OWN,
        assumptions=("64 to 4,096 keys, delta between .5 and 3",),
        check=lambda generator: _attained(generator, one=True),
        control=lambda generator: _attained(generator, one=False),
        control_description="the other scores are uniform on the same interval",
    ),
    Claim(
        id="length/gap",
        statement=r"With $g = s_{\max} - \log \mathrm{mean}_{j \ne \max} e^{s_j}$ the largest weight is $1 "
        r"/ (1 + (n - 1) e^{-g})$.",
        measures="largest relative distance of the two",
        source=OWN,
        assumptions=("random heads, 3 to 4,096 keys, scores of standard deviation .5 to 5",),
        check=lambda generator: _identity(generator, score_gap),
        control=lambda generator: _identity(generator, hard_max_gap),
        control_description="g is the largest score minus the second largest",
    ),
    Claim(
        id="length/kept-share",
        statement=r"Further keys multiply the weight of each key by $R = Z_1 / (Z_1 + Z_2)$, with the sums "
        r"Z of $e^s$ of both sets.",
        measures="largest relative distance of the two",
        source=OWN,
        assumptions=("24 keys and 8 to 199 further ones, Gaussian scores of standard deviation .5 to 3",),
        check=lambda generator: _kept(generator, softmax=True),
        control=lambda generator: _kept(generator, softmax=False),
        control_description="sigmoid attention, whose weights do not depend on further keys",
    ),
    Claim(
        id="length/exchangeable-keys",
        statement=r"If m sets of keys are exchangeable, $E R = 1/m$ exactly: the mean factor of each weight "
        r"is 1/m.",
        measures="distance of the mean of 4,000 queries from 1/m, standard errors",
        source=OWN,
        assumptions=(
            "2 to 8 sets of 16 keys, Gaussian scores of standard deviation .5 to 4, half of the variance "
            "shared by the sets",
        ),
        check=lambda generator: _exchangeable(generator, same=True),
        control=lambda generator: _exchangeable(generator, same=False),
        control_description="the further keys are copies of the lightest key",
    ),
    Claim(
        id="length/resampling",
        statement="If all scores are independent draws of one law, $n$ scores that are drawn with "
        r"replacement from those of sequences of 16 keys predict the mean of $a_{\max}$ at n keys.",
        measures="largest absolute logarithm of the mean largest weight over its prediction",
        source=OWN,
        assumptions=(
            "64 to 1,024 keys; scores Gaussian, uniform or exponential",
            "256,000 scores in the pool, means of 2,000 sequences",
        ),
        check=lambda generator: _resampled(generator, independent=True),
        control=lambda generator: _resampled(generator, independent=False),
        control_description="scores of a sequence share a factor, .2 or 2, as with queries that differ "
        "between sequences",
    ),
    Claim(
        id="length/needle-scaling",
        statement=r"With scores multiplied by $\log n / \log 16$ a needle among like rivals, with a gap "
        r"above the critical value $\log 15$, keeps its weight up to 4,096 keys.",
        measures="smallest weight of the winner at 64 to 4,096 keys, minus that at 16",
        source=CHIANG,
        assumptions=(
            r"gap of 1.5 to 2.5 times log 16 at 16 keys",
            "Gaussian rivals of standard deviation at most .3",
        ),
        check=lambda generator: _log_n(generator, "needle"),
        control=lambda generator: _log_n(generator, "continuum"),
        control_description="a continuum of rivals: scores 80 to 200 times uniform keys",
    ),
    Claim(
        id="length/continuum-scaling",
        statement=r"For scores $s x$ with uniform x the largest weight depends on $s/n$ alone, $E[1/\sum_k "
        r"e^{-(s/n)\Gamma_k}]$ with a Poisson process $\Gamma$, which is $\int_0^\infty e^{-t - (n/s) "
        r"\mathrm{Ein}(t)} dt$: scores must grow like n to keep it.",
        measures="largest distance of the mean largest weight at 64 to 1,024 keys, scores multiplied by "
        "n/16, from the limit",
        source=OWN,
        assumptions=("s between 60 and 160, means of 2,000 sequences",),
        check=lambda generator: _continuum(generator, factor=lambda n: n / KEYS),
        control=lambda generator: _continuum(generator, factor=lambda n: log_factor(n, KEYS)),
        control_description=r"scores multiplied by log n / log 16",
    ),
    Claim(
        id="length/one-token",
        statement=r"If one key and its value change, the output changes by at most $2 a' \max_j |v_j|$, "
        "with the larger a' of its weights before and after.",
        measures="largest change minus its bound",
        source=HAHN,
        assumptions=(
            "2 to 64 keys, Gaussian scores of standard deviation .1 to 6",
            "values Gaussian, or of two opposite directions",
        ),
        check=lambda generator: _one_token(generator, larger=True),
        control=lambda generator: _one_token(generator, larger=False),
        control_description="the weight before the change in place of the larger one",
    ),
    Claim(
        id="length/one-token-rate",
        statement=r"For bounded scores one token changes the output by $O(1/n)$.",
        measures="distance of the slope in log n of the log of the mean change from -1",
        source=HAHN,
        assumptions=("scores in [0, 2], Gaussian values, 16 to 4,096 keys",),
        check=lambda generator: _rate(generator, bounded=True),
        control=lambda generator: _rate(generator, bounded=False),
        control_description="the score of the changed key grows like log n",
    ),
    Claim(
        id="length/sink",
        statement=r"If all queries have weight m on one key, $res(A X) = (1 - m) \, res(A' X)$ with the "
        "attention A' to the others and the distance res from the mean token: a sink contracts the branch.",
        measures="relative distance of the two, or largest error of the split into sink and rest",
        source=SINKS,
        assumptions=("4 to 39 Gaussian tokens", "mass up to .9, the same for all queries"),
        check=lambda generator: _sink(generator, shared=True),
        control=lambda generator: _sink(generator, shared=False),
        control_description="a mass of its own for each query",
    ),
    Claim(
        id="length/retrieval-at-length",
        statement=r"Scores of 16 keys predict the mean of $a_{\max}$ in a trained retrieval head at 64 to "
        "4,096 keys, if a score depends on its own key alone.",
        measures="largest absolute logarithm of the mean largest weight over its prediction",
        source=OWN,
        assumptions=(
            RETRIEVAL,
            "the right key is the largest of n uniform ones",
            "independent tokens, no positions, one query for all sequences: scores are independent draws of "
            "one law at every length",
            "256 to 1,000 sequences at each length, pool of 64,000 scores",
        ),
        check=lambda generator: _at_length(generator, predict=True),
        control=lambda generator: _at_length(generator, predict=False),
        control_description="the largest weight stays as at 16 keys",
        cost="training",
    ),
    Claim(
        id="length/vacuous",
        statement=r"The bound of dispersion says nothing about a trained retrieval head: $e^{\delta}/n > 1$ "
        r"at 4,096 keys.",
        measures="smallest delta - log n over 64 sequences, nats",
        source=OWN,
        assumptions=(RETRIEVAL, "the right key is the largest of n uniform ones"),
        check=lambda generator: _vacuous(generator, trained=True),
        control=lambda generator: _vacuous(generator, trained=False),
        control_description="an untrained head",
        cost="training",
    ),
    Claim(
        id="length/trained-needle",
        statement=r"Scores multiplied by $\log n / \log 16$ keep the weight of a trained head on a needle "
        r"at 4,096 keys, at least .9.",
        measures="mean weight on the right key at 4,096 keys",
        source=CHIANG,
        assumptions=(RETRIEVAL, "the right key is 1 and all others are 0"),
        check=lambda generator: _trained_log_n(generator, "needle"),
        control=lambda generator: _trained_log_n(generator, "maximum"),
        control_description="the right key is the largest of n uniform ones",
        cost="training",
    ),
)
