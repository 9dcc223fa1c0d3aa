"""Claims about the choice: its sampler and gradient, the uniform start, the penalty, the shortcut, and what
trained selectors do.
"""

import math
from functools import lru_cache

import torch
from torch import Generator

from ...core.claims import BY_CHANCE, NEAR, Measured, but, claim
from ...core.sources import Source
from .choice import (
    descend_entropy,
    exact_gradient,
    relaxed_gradient_mean,
    relaxed_gradient_second_moment,
    sample_choice,
    sampled_gradients,
    score_function_gradients,
)
from .information import choice_information, hit, information_bias, label_blind_bound
from .needle import (
    Needles,
    best_accuracy,
    chosen_tokens,
    enumerate_needles,
    label_blind,
    shortcut,
    uniform_accuracies,
)
from .selector import ANNEALED, Schedule, mixture, straight_through, train_on_needles

GUMBEL = Source("maddison2017concrete", status="second-hand")
JANG, LEI = Source("jang2017categorical", status="own"), Source("lei2016rationalizing", status="own")
SHORTCUT = Source("jethani2021learned", status="own")
LISTED = "all sequences of 8 tokens with keys 0 and 1 are listed, with equal probability"
TRAINED = "16 tokens, keys of 8 dimensions, 500 batches of 32 new sequences, AdamW, torch's initial weights"
DRAWS, NETWORKS, GOOD = 40_000, 24, 0.9
EARLY = straight_through(0.05)  # the penalty from the first step


@claim(
    "router/gumbel-max",
    measures="chi-square statistic of 40,000 choices among eight tokens; 40.5 is its quantile 1 - 1e-6",
    at_most=40.5,
    margin="the threshold is the quantile 1 - 1e-6 of the distribution of the statistic",
    source=GUMBEL,
    assumptions=("independent standard Gumbel noise", "standard Gaussian scores"),
    control=but("Gaussian noise of the same variance", gaussian=True),
)
def gumbel_max(generator: Generator, *, gaussian: bool = False) -> Measured:
    r"""The largest noisy score is a sample of the softmax: $P(\arg\max_i (s_i + g_i) = j) = e^{s_j} / \sum_i
    e^{s_i}$ with $g_i = -\log(-\log u_i)$.
    """
    scores = torch.randn(8, generator=generator, dtype=torch.float64)
    if gaussian:  # of the same variance as Gumbel noise
        noise = torch.randn(DRAWS, 8, generator=generator, dtype=torch.float64) * math.pi / 6**0.5
        choice = (scores + noise).argmax(-1)
    else:
        choice = sample_choice(scores, DRAWS, generator=generator)
    expected = DRAWS * torch.softmax(scores, -1)
    statistic = (torch.bincount(choice, minlength=8) - expected).square().div(expected).sum()
    return Measured(float(statistic), {"largest p": float(expected.max()) / DRAWS})


@claim(
    "router/straight-through-bias",
    measures="larger of the distances of both means from their formulas, standard errors",
    at_most=4.5,
    margin=BY_CHANCE,
    source=JANG,
    assumptions=("a linear loss of two tokens", "temperature 1", "scores that differ by at most 1.5"),
    control=but("the exact gradient as the target of both", relaxed=False),
)
def straight_through_bias(generator: Generator, *, relaxed: bool = True) -> Measured:
    r"""For two tokens at temperature 1 the straight-through gradient has the mean $e^\delta ((\delta - 2)
    e^\delta + \delta + 2) / (e^\delta - 1)^3$, which is $1/6$ at $\delta = 0$, and REINFORCE the exact
    $\sigma'(\delta)$, which is $1/4$.
    """
    delta = 3 * float(torch.rand((), generator=generator)) - 1.5
    through = sampled_gradients(delta, temperature=1.0, draws=DRAWS, generator=generator)
    plain = score_function_gradients(delta, draws=DRAWS, generator=generator)
    means = relaxed_gradient_mean(delta) if relaxed else exact_gradient(delta), exact_gradient(delta)
    distances = [
        abs(float(g.mean()) - mean) / (float(g.std()) / DRAWS**0.5)
        for g, mean in zip((through, plain), means)
    ]
    detail = {
        "delta": delta,
        "straight-through": float(through.mean()),
        "exact": means[1],
        "REINFORCE": float(plain.mean()),
    }
    return Measured(max(distances), detail)


@claim(
    "router/temperature",
    measures="relative error of the formula",
    at_most=0.05,
    source=JANG,
    assumptions=("a linear loss of two tokens", "temperature .1", "scores that differ by at most 1"),
    control=but("temperature 1", temperature=1.0),
)
def second_moment(generator: Generator, *, temperature: float = 0.1) -> Measured:
    r"""At low temperature the second moment of the relaxed gradient grows as $\sigma'(\delta) / (6 \tau)$."""
    delta = 2 * float(torch.rand((), generator=generator)) - 1
    gradients = sampled_gradients(delta, temperature=temperature, draws=200_000, generator=generator)
    second, limit = float(gradients.square().mean()), relaxed_gradient_second_moment(delta, temperature)
    bias = float(gradients.mean()) / exact_gradient(delta) - 1
    return Measured(abs(second / limit - 1), {"delta": delta, "relative bias of the mean": bias})


@claim(
    "router/uniform-start",
    measures="larger of the distances from both formulas",
    at_most=1e-12,
    source=LEI,
    assumptions=("2 to 9 tokens; all sequences are listed, with equal probability",),
    control=but("the needle has twice the weight of another token", equal=False),
)
def uniform_start(generator: Generator, *, equal: bool = True) -> Measured:
    r"""With equal scores the best accuracy from a random content is $1/2 + 1/(2T)$, and from the mean of all
    contents $1/2 + 2^{-T} \binom{T-1}{\lfloor T/2 \rfloor}$.
    """
    tokens = int(torch.randint(2, 10, (), generator=generator))
    data = enumerate_needles(tokens)
    n, contents = len(data.labels), data.tokens[..., 1]
    weights = torch.ones(n, tokens, dtype=torch.float64)
    if not equal:
        weights[torch.arange(n), data.needle] = 2
    weights /= weights.sum(1, keepdim=True)
    # A random token: every sequence with every choice, with the probability of the choice.
    one = best_accuracy(
        contents.reshape(-1, 1).long(), data.labels.repeat_interleave(tokens), (weights / n).flatten()
    )
    mean = best_accuracy((contents * weights).sum(1, keepdim=True).mul(1e6).round().long(), data.labels)
    predicted = uniform_accuracies(tokens)
    distance = max(abs(one - predicted[0]), abs(mean - predicted[1]))
    return Measured(distance, {"tokens": tokens, "sequences": n, "random token": one, "mean": mean})


@claim(
    "router/entropy-vertex",
    measures="smallest final probability of the initially largest score",
    at_least=0.9,
    margin=NEAR,
    source=LEI,
    assumptions=(
        "500 steps of gradient descent at rate 1 on 16 Gaussian scores",
        "the two largest scores differ by more than .05",
    ),
    control=but("the penalty with the other sign", sign=-1.0),
)
def entropy_vertex(generator: Generator, *, sign: float = 1.0) -> Measured:
    r"""The penalty alone, $\dot s_i = \lambda p_i (\log p_i + H)$, sends the choice to the token of the
    largest initial score.
    """
    scores = torch.randn(50, 16, generator=generator, dtype=torch.float64)
    top = scores.topk(2, dim=1).values
    scores = scores[top[:, 0] - top[:, 1] > 0.05]  # a tie takes arbitrarily long to break
    p = descend_entropy(scores, penalty=sign, steps=500)
    final = p.gather(1, scores.argmax(1, keepdim=True))
    return Measured(float(final.min()), {"starts": len(scores), "mean": float(final.mean())})


def _observed(data: Needles, choice: torch.Tensor) -> torch.Tensor:
    return torch.cat([choice[:, None], chosen_tokens(data, choice)], 1)


@claim(
    "router/label-blind-bound",
    measures="largest distance of the best accuracy from the bound, over ten routers",
    at_most=1e-12,
    source=SHORTCUT,
    assumptions=(LISTED, "one choice for each position of the needle"),
    control=but("the shortcut, which sees contents", blind=False),
)
def bound(generator: Generator, *, blind: bool = True) -> Measured:
    """If the choice depends on the keys alone, the best head that knows the keys has accuracy $h + (1 - h)/2$
    at hit h.
    """
    data, distances = enumerate_needles(8), []
    for _ in range(10):
        share = 0.05 + 0.9 * float(torch.rand((), generator=generator))
        choice = label_blind(data, share, generator=generator) if blind else shortcut(data)
        accuracy = best_accuracy(_observed(data, choice), data.labels)
        distances.append(abs(accuracy - float(label_blind_bound(hit(choice, data.needle)))))
    return Measured(max(distances), {"last accuracy": accuracy, "last hit": hit(choice, data.needle)})


@claim(
    "router/shortcut",
    measures="largest distance of accuracy, hit and both informations from 1, 1/2, 0 and log 2",
    at_most=1e-12,
    source=SHORTCUT,
    assumptions=(LISTED, "the head sees key and content of the chosen token"),
    control=but("a router with the same hit that sees keys only", contents=False),
)
def shortcut_accuracy(generator: Generator, *, contents: bool = True) -> Measured:
    r"""A router that takes the needle if its content is +1 and its neighbour if not has accuracy 1 and hit
    $1/2$. Its position has $I(C; Y) = 0$; given the needle, $I(C; Y | K) = \log 2$.
    """
    data = enumerate_needles(8)
    choice = (
        shortcut(data)
        if contents
        else torch.where(torch.arange(8) % 2 == 0, torch.arange(8), (torch.arange(8) + 1) % 8)[data.needle]
    )
    order = torch.randperm(len(choice), generator=generator)
    position = choice_information(choice[order], data.labels[order], corrected=False)
    given = choice_information(choice[order], data.labels[order], given=data.needle[order], corrected=False)
    found = best_accuracy(chosen_tokens(data, choice), data.labels), hit(choice, data.needle), position, given
    distance = max(abs(value - target) for value, target in zip(found, (1.0, 0.5, 0.0, math.log(2))))
    return Measured(distance, dict(zip(("accuracy", "hit", "of the position", "given the needle"), found)))


@claim(
    "router/information-bias",
    measures="mean of the corrected estimate, as a share of this bias",
    at_most=0.2,
    source=Source("miller1955note", "pp. 95-100", "second-hand"),
    assumptions=("16 tokens, 2 to 10 labels, uniform", "100 sets of 2,000 samples"),
    control=but("the plug-in estimate", corrected=False),
)
def bias(generator: Generator, *, corrected: bool = True) -> Measured:
    """The plug-in estimate of $I(C; Y)$ exceeds 0 by $(|C| - 1)(|Y| - 1)/(2n)$ on average for independent
    variables, within a fifth.
    """
    a, b, n = 16, int(torch.randint(2, 11, (), generator=generator)), 2000
    values = []
    for _ in range(100):
        choice, labels = (torch.randint(size, (n,), generator=generator) for size in (a, b))
        values.append(choice_information(choice, labels, corrected=corrected))
    mean, bias = sum(values) / len(values), information_bias(a, b, n)
    return Measured(abs(mean) / bias, {"labels": b, "mean, nats": mean, "bias, nats": bias})


@lru_cache(maxsize=64)
def _trained(schedule: Schedule, contents: bool, seed: int) -> dict[str, float]:
    """Trains 24 selectors; the numbers that the claims compare."""
    generator = torch.Generator().manual_seed(seed)
    found, _ = train_on_needles(schedule, sees_contents=contents, networks=NETWORKS, generator=generator)
    excess = found.accuracy - label_blind_bound(found.hit)
    worst = int(excess.argmax())
    return {
        "success": float((found.hit > GOOD).double().mean()),
        "excess": float(excess.max()),
        "its accuracy": float(found.accuracy[worst]),
        "its hit": float(found.hit[worst]),
        "its information given the needle, nats": float(found.information[worst]),
        "mean accuracy": float(found.accuracy.mean()),
    }


def _success(generator: Generator, schedule: Schedule) -> Measured:
    numbers = _trained(schedule, False, generator.initial_seed())
    return Measured(numbers["success"], numbers)


@claim(
    "router/early-penalty",
    measures="share of selectors with a hit above .9",
    at_most=0.75,
    margin="a share of 24 selectors in each of five trainings, which ends at 1",
    source=LEI,
    assumptions=(TRAINED, "the router sees keys only"),
    control=but("no penalty", schedule=straight_through(0.0)),
    cost="training",
)
def early_penalty(generator: Generator, *, schedule: Schedule = EARLY) -> Measured:
    r"""A penalty from the first step costs successes: with straight-through choices and $\lambda = .05$ at
    most $3/4$ of 24 selectors reach a hit above .9.
    """
    return _success(generator, schedule)


@claim(
    "router/annealed",
    measures="share of selectors with a hit above .9",
    at_least=0.95,
    margin=(
        "a share of 24 selectors in each of five trainings, which ends at 1; the control loses at "
        "least seven of 24"
    ),
    source=LEI,
    assumptions=(TRAINED, "the router sees keys only"),
    control=but(
        "the same schedule with the penalty from the first step", schedule=Schedule(penalty_from=0.0)
    ),
    cost="training",
)
def annealed(generator: Generator, *, schedule: Schedule = ANNEALED) -> Measured:
    r"""Soft choices with temperature 3 to .5 and no penalty in the first half, then hard ones with $\lambda =
    .05$, succeed: at least .95 of 24 selectors reach a hit above .9.
    """
    return _success(generator, schedule)


@claim(
    "router/learnt-shortcut",
    measures="largest excess of the accuracy over the label-blind bound",
    at_least=0.1,
    source=SHORTCUT,
    assumptions=(TRAINED, "the mixture softmax(s) without noise and penalty"),
    control=but("the router sees keys only", contents=False),
    cost="training",
)
def learnt_shortcut(generator: Generator, *, contents: bool = True) -> Measured:
    """Training finds the shortcut: among 24 selectors whose router sees contents, one exceeds the label-blind
    bound $h + (1 - h)/2$ by at least .1.
    """
    numbers = _trained(mixture(0.0), contents, generator.initial_seed())
    return Measured(numbers["excess"], numbers)


CLAIMS = (
    gumbel_max,
    straight_through_bias,
    second_moment,
    uniform_start,
    entropy_vertex,
    bound,
    shortcut_accuracy,
    bias,
    early_penalty,
    annealed,
    learnt_shortcut,
)
