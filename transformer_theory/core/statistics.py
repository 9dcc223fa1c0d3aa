r"""Statistics of claims and measurements: null distributions, p-values, intervals, false discovery rate,
agreement.

* Shares: the interval of Clopper and Pearson, from quantiles of the beta distribution
  :cite:p:`clopper1934use`.
* False discovery rate: the step-up procedure of :cite:t:`benjamini1995controlling`.
* Means over seeds: Student's t interval, on the logit scale for a bounded quantity
  (:func:`bounded_interval`). Smooth functions of a sample: the jackknife over groups.
* Permutation p-value of a value against B null draws: :math:`(1 + \#\{\text{draws at least as extreme}\}) /
  (1 + B)`, never zero.
* Trained against untrained networks: the exact rank-sum test of Mann and Whitney.
* Agreement: :math:`(v - m) / (\hat v - m)` with the prediction :math:`\hat v` and the median m of the null: 0
  is chance, 1 the prediction.

**Numbers of draws.** The null of a headline permutes only the evaluation, so draws are cheap, and there is a
p-value. B draws reach p = 1 / (1 + B), and a single effect among m tests needs p <= :data:`LEVEL` / m.
Headlines on data have :data:`DATA_DRAWS`, enough for 60 tests; a metric's own null in a network has
:data:`HEADLINE_DRAWS`, since it only has to bear out another one. A null that needs a new training has
:data:`RANGE_DRAWS` draws; their range is shown, without a p-value. Curves over training have a band of
:data:`BAND_DRAWS` draws.

**Several seeds.** Seeds of a comparison share the data, their split and their labels. They therefore share
the permutations as well (:func:`permutations`, :func:`fixed_generator`): draw i is averaged over the seeds,
which gives the null of the mean. If each seed drew its own permutations, this null would be too narrow, and a
mean over many seeds of one accident of the labels would look like a finding.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .format import counted
from .measurement import Measurement, Null, extremeness, within

# draws of the null of a headline on data: one value beyond all of them is a finding among up to 60 tests
DATA_DRAWS = 1199
HEADLINE_DRAWS = 199  # draws of a metric's own null in a network; the smallest p-value is 1/200
LEVEL = 0.05  # level of tests and of the false discovery rate
# rungs of the longest ladder (16), and networks of the user that are measured beside them
LADDER_TESTS = 20
# draws on ladders, whose rungs are one family: one value beyond all of them is a finding among so many tests
LADDER_DRAWS = round(LADDER_TESTS / LEVEL) - 1
RANGE_DRAWS = 19  # draws of a null that needs a new training, and of other nulls that have no p-value
BAND_DRAWS = 9  # draws at the checkpoints of a training
# Kinds of nulls whose draws are networks, in the order in which a row has them, with its own nulls behind the
# first. Each keeps the code, the inputs and the masks of the network that is measured.
# the entries of every trained matrix permuted within the matrix, in all layers at once: the standard null
EQUAL_SCALE = "equal scale"
HELD_INPUTS = "equal scale, inputs held"  # the same, but each layer receives the inputs of the trained one
EQUAL_SPECTRUM = "equal spectrum"  # the singular values of every matrix with random singular vectors
EQUAL_NORM = "fresh weights of equal norm"  # initial weights, each matrix scaled to its trained norm
PERMUTED_LABELS = "networks trained on permuted labels"  # the null of a statement about the task
PERMUTED_EQUAL_STEPS = f"{PERMUTED_LABELS}, equal steps"  # but not of equal training loss: shown only
UNTRAINED = "untrained networks"  # initial weights: shown, never the decision
EXCHANGED = "exchanged networks"  # of a difference: the two networks exchanged in some groups of the inputs
COPIES = (EQUAL_SCALE, HELD_INPUTS, EQUAL_SPECTRUM, EQUAL_NORM)  # of the network itself
SHOWN = (PERMUTED_EQUAL_STEPS, UNTRAINED)  # never decide
NETWORKS = (*COPIES, PERMUTED_LABELS, *SHOWN)
SMALLEST_P = 0.01  # a p-value is reported only if the test can reach this number; against copies: LEVEL
# an unusual number: data drawn with a common seed, such as 0, must not repeat the draws of a null
FIXED_SEED = 4_019_217_653
MAX_CHOICES = 20_000  # largest number of choices that a rank-sum test with ties enumerates
ROUNDING = 1e-6  # relative difference of two values of one quantity that single precision does not tell apart


def fixed_generator() -> torch.Generator:
    """Returns a generator with a fixed seed, for choices that all seeds of a comparison share: splits,
    subsets and null draws.
    """
    return torch.Generator().manual_seed(FIXED_SEED)


def permutations(n: int, draws: int, generator: torch.Generator | None = None) -> Int[Tensor, "draws n"]:
    """Draws permutations of 0 to n - 1. By default they depend only on n: row i is the same in every call,
    for any number of draws.

    >>> bool((permutations(5, 2) == permutations(5, 7)[:2]).all())
    True
    """
    generator = fixed_generator() if generator is None else generator
    rows = [torch.randperm(n, generator=generator) for _ in range(draws)]
    return torch.stack(rows) if rows else torch.empty(0, n, dtype=torch.long)


def clopper_pearson(successes, trials, *, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Computes the lower and upper ends of the Clopper-Pearson interval of a share; they are 0 and 1 if there
    are no trials.

    >>> low, high = clopper_pearson(5, 5)  # even five successes in five trials leave a wide interval
    >>> f"{low:.2f} to {high:.2f}"
    '0.48 to 1.00'

    Args:
        successes, trials: integers, or arrays of integers of equal shape.
        confidence: coverage probability.
    """
    from scipy.special import betaincinv

    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    tail = (1 - confidence) / 2
    # np.where evaluates both branches, so np.maximum keeps the parameters of the beta distribution positive.
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, tail), 0.0)
    high = np.where(k < n, betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail), 1.0)
    return low, high


def share_interval(share: float, n: int) -> tuple[float, float] | None:
    """Computes the lower and upper ends of the 95 % interval for a share of n samples; None if share * n is
    not an integer.

    >>> low, high = share_interval(0.65, 540)
    >>> f"{low:.2%} to {high:.2%}"
    '60.81% to 69.02%'
    """
    successes = round(share * n)
    # The share may be a float32 number, whose rounding error is about 1e-7.
    if n < 1 or not 0 <= successes <= n or abs(successes - share * n) > 1e-6 * n:
        return None
    low, high = clopper_pearson(successes, n)
    return float(low), float(high)


def with_interval(row: Measurement) -> Measurement:
    """Returns the row with the Clopper-Pearson interval; unchanged if it has an interval or its value is not
    a share of ``n`` samples.
    """
    if row.interval is not None or row.unit != "share" or row.value is None or not row.n:
        return row
    ends = share_interval(row.value, row.n)
    return row if ends is None else dataclasses.replace(row, interval=ends, interval_kind="over samples")


def student_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Computes Student's t interval of the mean of independent values; None for fewer than two values.

    >>> low, high = student_interval([1.0, 2.0, 3.0])
    >>> f"{low:.2f} to {high:.2f}"
    '-0.48 to 4.48'
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return None
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(values))
    return mean - half, mean + half


def bounded_interval(
    values: Sequence[float], bounds: tuple[float | None, float | None] | None, *, confidence: float = 0.95
) -> tuple[float, float] | None:
    r"""Computes an interval of the mean of independent values that stays inside the bounds of the quantity.

    Student's t interval on the logit scale, :math:`\lambda(m) = \log \frac{m - a}{b - m}`, around the mean m:
    by the delta method its standard error is that of the mean times :math:`\lambda'(m) = \frac1{m - a} +
    \frac1{b - m}`. With one bound the scale is :math:`\log |m - a|`; without bounds this is
    :func:`student_interval`.

    >>> low, high = bounded_interval([0.98, 1.0, 0.99], (0.0, 1.0))
    >>> f"{low:.3f} to {high:.3f}"
    '0.890 to 0.999'

    Args:
        values: one value per seed, inside the bounds.
        bounds: smallest and largest possible value; None for no bound.
        confidence: coverage probability.
    """
    plain = student_interval(values, confidence=confidence)
    low, high = bounds or (None, None)
    if plain is None or (low is None and high is None):
        return plain
    mean = float(np.mean(values))
    below = None if low is None else mean - low
    above = None if high is None else high - mean
    if any(distance is not None and distance <= 0 for distance in (below, above)):
        return within(plain, bounds, mean)  # all values equal the bound, or rounding puts one beyond it
    slope = sum(1 / distance for distance in (below, above) if distance is not None)
    half = (plain[1] - mean) * slope
    if high is None or low is None:
        origin = high if low is None else low
        assert origin is not None  # one bound is given
        ends = sorted(origin + (mean - origin) * math.exp(step) for step in (-half, half))
        return ends[0], ends[1]
    # The logistic function of the shifted logit, with the odds (mean - low) / (high - mean).
    odds = (mean - low) / (high - mean)
    ends = [low + (high - low) / (1 + math.exp(-step) / odds) for step in (-half, half)]
    return min(ends[0], mean), max(ends[1], mean)  # rounding


def jackknife_interval(
    statistic: Callable[[Tensor], float], n: int, *, groups: int = 10, confidence: float = 0.95
) -> tuple[float, float] | None:
    r"""Computes the delete-a-group jackknife interval of a smooth statistic of n samples; None for fewer
    samples than groups.

    The samples are divided at random into G equal groups, and the statistic is computed without each of them.
    With these values :math:`v_g` the squared standard error is :math:`\tfrac{G-1}{G} \sum_g (v_g - \bar
    v)^2`. The interval has the quantile of Student's t with G - 1 degrees of freedom.

    Args:
        statistic: function of the indices of the samples, ``[m]``.
        n: number of samples.
        groups: G.
        confidence: coverage probability.
    """
    if n < groups:
        return None
    order = torch.randperm(n, generator=fixed_generator())
    values = [statistic(order[torch.arange(n) % groups != group]) for group in range(groups)]
    half = jackknife_half_width(values, confidence=confidence)
    value = statistic(torch.arange(n))
    return value - half, value + half


def jackknife_half_width(values: Sequence[float], *, confidence: float = 0.95) -> float:
    """Computes half the width of the delete-a-group jackknife interval (:func:`jackknife_interval`).

    Args:
        values: the statistic without each group.
        confidence: coverage probability.
    """
    from scipy.special import stdtrit

    groups = len(values)
    return float(stdtrit(groups - 1, (1 + confidence) / 2)) * math.sqrt((groups - 1) * float(np.var(values)))


def pseudo_values(value: float, without: Sequence[float]) -> Float[np.ndarray, " groups"]:
    r"""Computes the pseudo-values of the jackknife over G groups, moved so that their mean is the value:
    :math:`v + (G - 1)(\bar v - v_g)` with the statistic :math:`v_g` without group g and the mean
    :math:`\bar v` of these. Of a mean over samples they are the means of the groups.

    Tukey's pseudo-values, :math:`G v - (G - 1) v_g`, have the mean of the statistic that is corrected for its
    bias. The correction of a statistic that is far from linear varies more than the pseudo-values say.

    >>> pseudo_values(2.0, [2.5, 1.5]).tolist()
    [1.5, 2.5]
    """
    values = np.array(without, dtype=float)
    return value + (len(values) - 1) * (values.mean() - values)


def exchanged_networks(pseudo: Sequence[float] | Float[np.ndarray, " groups"]) -> Null:
    r"""Returns the null of the difference of two networks: the mean of its pseudo-values with each pattern of
    signs other than the pattern of the data, :math:`2^G - 1` draws in a fixed order.

    If the networks are exchanged in a group of the inputs, the difference of a mean over inputs changes its
    sign there. If the networks differ by chance alone, all patterns are equally probable, and the rank of the
    absolute value among them is an exact test. For other smooth statistics it is an approximate one.

    >>> exchanged_networks([1.0, 3.0]).draws
    (-1.0, 1.0, -2.0)
    """
    values = np.asarray(pseudo, dtype=float)
    return Null(EXCHANGED, tuple((_signs(len(values)) @ values / len(values)).tolist()))


@lru_cache(maxsize=1)
def _signs(groups: int) -> np.ndarray:
    """All patterns of signs but the one without a minus; most differences have equally many groups."""
    return np.array([*product((1.0, -1.0), repeat=groups)])[1:]


def evenly_spaced(size: int, count: int) -> Int[Tensor, " chosen"]:
    """Returns up to ``count`` evenly spaced indices below ``size``, with both ends."""
    return torch.linspace(0, size - 1, min(size, count)).round().long()


def rank_sum_p(
    values: Sequence[float], draws: Sequence[float], side: str, *, predicted: float | None = None
) -> float:
    """Computes the exact p-value of the one-sided rank-sum test of Mann and Whitney: are the values more
    extreme than the draws?

    One of the 56 ways to choose 3 of 8 numbers is as extreme as these:

    >>> f"{rank_sum_p([5.0, 6.0, 7.0], range(5), '>='):.4f}"
    '0.0179'

    Args:
        values: measured values, of independent trained networks.
        draws: values of independent untrained networks.
        side, predicted: see :func:`permutation_p`.
    Raises:
        ValueError: there are no values or no draws, the side is unknown, or ``predicted`` is missing for
            "==".
    """
    from scipy.stats import mannwhitneyu, rankdata

    if not len(values) or not len(draws):
        raise ValueError(f"a rank-sum test needs values and draws, got {len(values)} and {len(draws)}")
    first, second = extremeness(values, draws, side, predicted)
    together = [*first, *second]
    if len(set(together)) == len(together) or math.comb(len(together), len(first)) > MAX_CHOICES:
        return float(mannwhitneyu(first, second, alternative="greater", method="exact").pvalue)
    # scipy's exact distribution ignores ties: enumerate all choices of as many mid-ranks.
    ranks = rankdata(together)
    sums = np.array([ranks[list(chosen)].sum() for chosen in combinations(range(len(together)), len(first))])
    return float(np.mean(sums >= ranks[: len(first)].sum() - 1e-9))


def false_discoveries(p: Sequence[float]) -> list[float]:
    """Adjusts p-values for the false discovery rate by the method of Benjamini and Hochberg; keeps their
    order.
    """
    from scipy.stats import false_discovery_control

    return [float(adjusted) for adjusted in false_discovery_control(p)] if len(p) else []


def studentised(
    values: Float[np.ndarray, " m"], draws: Float[np.ndarray, "B m"]
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "B m"]]:
    """Standardises m tests and the B draws of each: mean 0 and variance 1 over the value and its draws
    together, so that the value is exchangeable with the draws if it is one of them. A test whose draws all
    equal the value, up to :data:`ROUNDING`, is 0 everywhere.
    """
    together = np.vstack([values, draws])
    centred = together - together.mean(0)
    deviation = centred.std(0)
    rounding = ROUNDING * np.abs(together).max(0)
    scaled = np.where(deviation > rounding, centred / np.where(deviation > 0, deviation, 1), 0.0)
    return scaled[0], scaled[1:]


def studentised_maximum(
    values: Float[np.ndarray, " m"], draws: Float[np.ndarray, "B m"]
) -> Float[np.ndarray, " m"]:
    r"""Computes two-sided p-values of m tests that share their B draws, adjusted for the family.

    Tests are standardised (:func:`studentised`) to :math:`z_j` and :math:`z_j^{(i)}`. The step-down maximum
    of :cite:t:`westfall1993resampling` takes them in the order of decreasing :math:`|z_j|`. The adjusted
    p-value is :math:`(1 + \#\{i : \max_k |z_k^{(i)}| \ge |z_j|\}) / (1 + B)`, with the maximum over test j
    and those behind it, and at least that of the test before. If value and draws are exchangeable, jointly
    for all tests, the probability that any p-value is at most a level is at most the level, however the tests
    depend on each other.

    >>> studentised_maximum(np.array([9.0, 0.5]), np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 2.0]])).tolist()
    [0.25, 0.75]

    Args:
        values: values of the tests.
        draws: their draws; draw i of all tests belongs together.
    """
    z, others = (np.abs(each) for each in studentised(values, draws))
    adjusted, largest = np.ones(len(z)), np.full(len(draws), -np.inf)
    order = np.argsort(-z, kind="stable")
    for test in order[::-1]:  # the smallest first: the maximum grows with each test
        largest = np.maximum(largest, others[:, test])
        adjusted[test] = (1 + np.sum(largest >= z[test] - 1e-9)) / (1 + len(draws))
    adjusted[order] = np.maximum.accumulate(adjusted[order])
    return np.where(z > 0, adjusted, 1.0)


def can_still_decide(values: Float[np.ndarray, " m"], draws: Float[np.ndarray, "B m"], planned: int) -> bool:
    r"""Returns whether a test of a family may yet become significant if the draws are continued up to a
    planned number.

    An adjusted p-value of all planned draws is at least (1 + the number of draws that now exceed the test) /
    (1 + planned), but for the new mean and deviation of each test. False once this bound is twice
    :data:`LEVEL` for every test; the factor allows for that change. To stop then is to accept every null
    hypothesis: the p-values at the stop, with fewer draws, are above the level too. A family is rejected only
    with all planned draws, so the probability of a false finding is at most that of the full test, wherever
    the stop lies (compare :cite:t:`besag1991sequential`). A finding on the edge of the level may be lost.

    Args:
        values, draws: see :func:`studentised_maximum`.
        planned: number of draws that would be taken.
    """
    exceeding = studentised_maximum(values, draws) * (1 + len(draws)) - 1
    return bool((1 + exceeding < 2 * LEVEL * (1 + planned)).any())


def agreement(value: float | None, predicted: float | None, null: float | None) -> float | None:
    """Computes (value - null) / (predicted - null); None if a number is missing or the prediction equals the
    null.

    >>> agreement(0.9, 1.0, 0.5)
    0.8
    """
    if value is None or predicted is None or null is None or not math.isfinite(null) or predicted == null:
        return None
    return (value - null) / (predicted - null)


def over_heads(rows: Sequence[Measurement]) -> Measurement:
    """Averages the rows of one quantity at one step over heads, or over layers and heads: the mean value, and
    the null whose draw i is the mean of draws i of the rows.

    Rows without a value are ignored. The other columns are those of the first row, except for ``head`` and
    the columns that describe the value of a single head (interval, p-value, agreement, verdict), which become
    empty.
    """
    measured = [row for row in rows if row.value is not None] or list(rows[:1])
    values = [row.value for row in measured if row.value is not None]
    return dataclasses.replace(
        measured[0],
        value=sum(values) / len(values) if values else None,
        nulls=Null.means_of(measured),
        **dict.fromkeys(("head", "interval", "p", "agreement", "verdict")),
        interval_kind="",
    )


def place_of(row: Measurement) -> tuple[str, str, Mapping[str, Any], int | None, int | None]:
    """Returns the columns that identify a row within a network, without its step."""
    return row.theory, row.quantity, row.at, row.layer, row.head


def nulls_of(measurements: Sequence[Sequence[Measurement]], kind: str) -> dict[tuple, Null]:
    """Returns one null per :func:`place_of` from repeated measurements; each measurement adds the value of
    the row, if any, as a draw.
    """
    values: dict[tuple, list[float]] = {}
    for row in (row for rows in measurements for row in rows):
        if row.value is not None:
            values.setdefault(place_of(row), []).append(row.value)
    return {place: Null(kind, tuple(draws)) for place, draws in values.items()}


def in_order(nulls: Iterable[Null]) -> tuple[Null, ...]:
    """Sorts the nulls of a row in a network: copies of equal scale, which are tested, then the nulls of the
    metric, then the other networks in the order of :data:`NETWORKS`.
    """

    def place(null: Null) -> int:
        if null.kind == EQUAL_SCALE:
            return -1
        return 1 + NETWORKS.index(null.kind) if null.kind in NETWORKS else 0

    return tuple(sorted(nulls, key=place))


def equals_its_draws(value: float | None, null: Null) -> bool:
    """Returns whether all draws of a null equal the value up to :data:`ROUNDING`, as a rotation leaves a
    quantity of the spectrum unchanged.
    """
    value = value if null.value is None else null.value
    if value is None or not null.draws:
        return False
    ends = (null.low, null.high)
    largest = max(abs(each) for each in (value, *ends))
    return all(abs(end - value) <= ROUNDING * largest for end in ends)


def smallest_p(null: Null, networks: int = 1) -> float:
    """Returns the smallest p-value that a test against a null can reach: 1 / (1 + B) with B draws, and with
    untrained networks that of the rank-sum test of so many networks.
    """
    draws = len(null.draws)
    return 1 / math.comb(draws + networks, networks) if null.kind == UNTRAINED else 1 / (1 + draws)


def reason_without_p(row: Measurement, networks: int = 1) -> str:
    """Returns the reason why a row has no p-value; empty if it can have one.

    Args:
        row: row with its null.
        networks: number of networks behind the row, for the null :data:`UNTRAINED`.
    """
    if row.value is None:
        return "no value"
    if row.null is None or not row.null.draws:
        return "no null distribution"
    if row.side is None:
        return "the theory does not predict a side of the null"
    if row.side == "==" and row.predicted is None:
        return "the theory does not predict a number"
    draws = len(row.null.draws)
    if row.null.low == row.null.high or equals_its_draws(row.value, row.null):
        return "no p-value: all draws of the null are equal"
    limit = LEVEL if row.null.kind in COPIES else SMALLEST_P
    smallest = smallest_p(row.null, networks)
    if row.null.kind == UNTRAINED:
        text = (
            f"no p-value: {counted(networks, 'trained network')} and {draws} untrained ones are too few; add "
            "seeds"
        )
    else:
        needed = math.ceil(1 / limit) - 1
        text = f"no p-value: the null has {counted(draws, 'draw')}, {needed} are needed"
    return text if smallest > limit and not row.null.stopped else ""


def over_seeds(rows: Sequence[Measurement]) -> Measurement:
    """Summarises the rows of one quantity over seeds: the mean, its interval over seeds, the null of the
    mean, p-value and agreement.

    Draw i of the null is averaged over the seeds, which gives the null of the mean. Untrained networks are
    not averaged: the rank-sum test compares the seeds with them, in results of earlier versions, where they
    are the first null. Against copies of equal scale the p-value is two-sided (:func:`studentised_maximum`).
    It is None if there are too few draws or seeds (:func:`reason_without_p`). If all seeds have the same
    value, it depends on the data alone, and the row keeps its own interval. A verdict is kept only if all
    seeds agree. ``n`` is the number of seeds, unless there is only one.
    """
    values = [row.value for row in rows if row.value is not None]
    first = next((row for row in rows if row.value is not None), rows[0])
    mean = float(np.mean(values)) if values else None

    def common(name: str) -> Any:
        """Returns the value of a column if all rows share it, otherwise None."""
        return getattr(first, name) if len({getattr(row, name) for row in rows}) == 1 else None

    def average(name: str, needed: int) -> float | None:
        """Returns the mean of a column over the seeds that have it, if there are enough."""
        numbers = [number for row in rows if (number := getattr(row, name)) is not None]
        return float(np.mean(numbers)) if len(numbers) >= needed else None

    several = len(values) > 1
    same = several and math.isclose(max(values), min(values), rel_tol=1e-9)
    nulls = Null.means_of([row for row in rows if row.value is not None])
    null = nulls[0] if nulls else None
    summary = dataclasses.replace(
        first,
        value=values[0] if same else mean,
        predicted=average("predicted", len(rows)),
        on_noise=average("on_noise", 1),
        threshold=common("threshold"),
        verdict=common("verdict"),
        nulls=nulls,
        p=None,
        agreement=None,
        reason=first.reason if mean is None else "",
        n=len(values) if len(rows) > 1 else first.n,
        note=common("note") or "",
        seed=common("seed"),
    )
    if several and not same:
        summary = dataclasses.replace(
            summary, interval=bounded_interval(values, first.bounds), interval_kind="over seeds"
        )
    elif len(rows) > 1 and not same:
        summary = dataclasses.replace(summary, interval=None, interval_kind="")
    p = None
    if (
        not reason_without_p(summary, len(values))
        and null is not None
        and summary.side is not None
        and summary.value is not None
    ):
        if null.kind == UNTRAINED:
            p = rank_sum_p(values, null.draws, summary.side, predicted=summary.predicted)
        elif null.kind == EQUAL_SCALE:
            value = summary.value if null.value is None else null.value
            (value,), draws = extremeness([value], null.draws, summary.side, summary.predicted)
            p = float(studentised_maximum(np.array([value]), np.array(draws)[:, None])[0])
        else:
            value = summary.value if null.value is None else null.value
            p = null.p(value, summary.side, predicted=summary.predicted)
    return dataclasses.replace(
        summary, p=p, agreement=agreement(mean, summary.predicted, None if null is None else null.median)
    )
