"""Claims about the choice: its sampler and gradient, the uniform start, the penalty, the shortcut, and what
trained selectors do.
"""

import math
from functools import lru_cache

import torch
from torch import Generator

from ...core.claims import Claim, Evidence
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
MILLER = Source("miller1955note", status="second-hand")
LISTED = "all sequences of 8 tokens with keys 0 and 1 are listed, with equal probability"
TRAINED = "16 tokens, keys of 8 dimensions, 500 batches of 32 new sequences, AdamW, torch's initial weights"
DRAWS, NETWORKS, GOOD = 40_000, 24, 0.9


def _frequencies(generator: Generator, *, gaussian: bool) -> Evidence:
    """Measures the chi-square statistic of choices among eight tokens beside softmax(s)."""
    scores = torch.randn(8, generator=generator, dtype=torch.float64)
    if gaussian:  # of the same variance as Gumbel noise
        noise = torch.randn(DRAWS, 8, generator=generator, dtype=torch.float64) * math.pi / 6**0.5
        choice = (scores + noise).argmax(-1)
    else:
        choice = sample_choice(scores, DRAWS, generator=generator)
    expected = DRAWS * torch.softmax(scores, -1)
    statistic = (torch.bincount(choice, minlength=8) - expected).square().div(expected).sum()
    return Evidence(float(statistic), 40.5, "<=", detail={"largest p": float(expected.max()) / DRAWS})


def _gradient(generator: Generator, *, relaxed: bool) -> Evidence:
    """Measures the distance of the mean gradient from the two closed forms, in standard errors; the larger of
    both.
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
    return Evidence(max(distances), 4.5, "<=", detail=detail)


def _second_moment(generator: Generator, *, temperature: float) -> Evidence:
    """Measures the relative error of the limit of the second moment."""
    delta = 2 * float(torch.rand((), generator=generator)) - 1
    gradients = sampled_gradients(delta, temperature=temperature, draws=200_000, generator=generator)
    second, limit = float(gradients.square().mean()), relaxed_gradient_second_moment(delta, temperature)
    bias = float(gradients.mean()) / exact_gradient(delta) - 1
    return Evidence(
        abs(second / limit - 1), 0.05, "<=", detail={"delta": delta, "relative bias of the mean": bias}
    )


def _uniform(generator: Generator, *, equal: bool) -> Evidence:
    """Measures the distance of the best accuracies from the closed forms, by listing all sequences; the
    needle has weight 1, or 2.
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
    return Evidence(
        distance, 1e-12, "<=", detail={"tokens": tokens, "sequences": n, "random token": one, "mean": mean}
    )


def _vertex(generator: Generator, *, sign: float) -> Evidence:
    """Measures the smallest final probability of the initially largest score, over 50 starts."""
    scores = torch.randn(50, 16, generator=generator, dtype=torch.float64)
    top = scores.topk(2, dim=1).values
    scores = scores[top[:, 0] - top[:, 1] > 0.05]  # a tie takes arbitrarily long to break
    p = descend_entropy(scores, penalty=sign, steps=500)
    final = p.gather(1, scores.argmax(1, keepdim=True))
    return Evidence(
        float(final.min()), 0.9, ">=", detail={"starts": len(scores), "mean": float(final.mean())}
    )


def _observed(data: Needles, choice: torch.Tensor) -> torch.Tensor:
    return torch.cat([choice[:, None], chosen_tokens(data, choice)], 1)


def _bound(generator: Generator, *, blind: bool) -> Evidence:
    """Measures the distance of the best accuracy from the label-blind bound; the largest over ten routers."""
    data, distances = enumerate_needles(8), []
    for _ in range(10):
        share = 0.05 + 0.9 * float(torch.rand((), generator=generator))
        choice = label_blind(data, share, generator=generator) if blind else shortcut(data)
        accuracy = best_accuracy(_observed(data, choice), data.labels)
        distances.append(abs(accuracy - float(label_blind_bound(hit(choice, data.needle)))))
    return Evidence(
        max(distances), 1e-12, "<=", detail={"last accuracy": accuracy, "last hit": hit(choice, data.needle)}
    )


def _shortcut(generator: Generator, *, contents: bool) -> Evidence:
    """Measures the distance of accuracy, hit and both informations of the shortcut from 1, 1/2, 0 and log 2;
    the largest.
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
    return Evidence(
        distance,
        1e-12,
        "<=",
        detail=dict(zip(("accuracy", "hit", "of the position", "given the needle"), found)),
    )


def _bias(generator: Generator, *, corrected: bool) -> Evidence:
    """Measures the mean estimate for independent choices and labels as a share of the first-order bias."""
    a, b, n = 16, int(torch.randint(2, 11, (), generator=generator)), 2000
    values = []
    for _ in range(100):
        choice, labels = (torch.randint(size, (n,), generator=generator) for size in (a, b))
        values.append(choice_information(choice, labels, corrected=corrected))
    mean, bias = sum(values) / len(values), information_bias(a, b, n)
    return Evidence(abs(mean) / bias, 0.2, "<=", detail={"labels": b, "mean, nats": mean, "bias, nats": bias})


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


def _success(generator: Generator, schedule: Schedule, op: str, threshold: float) -> Evidence:
    numbers = _trained(schedule, False, generator.initial_seed())
    return Evidence(numbers["success"], threshold, "<=" if op == "<=" else ">=", detail=numbers)


def _excess(generator: Generator, *, contents: bool) -> Evidence:
    numbers = _trained(mixture(0.0), contents, generator.initial_seed())
    return Evidence(numbers["excess"], 0.1, ">=", detail=numbers)


CLAIMS = (
    Claim(
        id="router/gumbel-max",
        statement=r"The largest noisy score is a sample of the softmax: $P(\arg\max_i (s_i + g_i) = j) = "
        r"e^{s_j} / \sum_i e^{s_i}$ with $g_i = -\log(-\log u_i)$.",
        measures="chi-square statistic of 40,000 choices among eight tokens; 40.5 is its quantile 1 - 1e-6",
        source=GUMBEL,
        assumptions=("independent standard Gumbel noise", "standard Gaussian scores"),
        check=lambda generator: _frequencies(generator, gaussian=False),
        control=lambda generator: _frequencies(generator, gaussian=True),
        control_description="Gaussian noise of the same variance",
    ),
    Claim(
        id="router/straight-through-bias",
        statement=r"For two tokens at temperature 1 the straight-through gradient has the mean $e^\delta "
        r"((\delta - 2) e^\delta + \delta + 2) / (e^\delta - 1)^3$, which is $1/6$ at $\delta = 0$, and "
        r"REINFORCE the exact $\sigma'(\delta)$, which is $1/4$.",
        measures="larger of the distances of both means from their formulas, standard errors",
        source=JANG,
        assumptions=("a linear loss of two tokens", "temperature 1", "scores that differ by at most 1.5"),
        check=lambda generator: _gradient(generator, relaxed=True),
        control=lambda generator: _gradient(generator, relaxed=False),
        control_description="the exact gradient as the target of both",
    ),
    Claim(
        id="router/temperature",
        statement=r"At low temperature the second moment of the relaxed gradient grows as $\sigma'(\delta) "
        r"/ (6 \tau)$.",
        measures="relative error of the formula",
        source=JANG,
        assumptions=("a linear loss of two tokens", "temperature .1", "scores that differ by at most 1"),
        check=lambda generator: _second_moment(generator, temperature=0.1),
        control=lambda generator: _second_moment(generator, temperature=1.0),
        control_description="temperature 1",
    ),
    Claim(
        id="router/uniform-start",
        statement="With equal scores the best accuracy from a random content is $1/2 + 1/(2T)$, and from "
        r"the mean of all contents $1/2 + 2^{-T} \binom{T-1}{\lfloor T/2 \rfloor}$.",
        measures="larger of the distances from both formulas",
        source=LEI,
        assumptions=("2 to 9 tokens; all sequences are listed, with equal probability",),
        check=lambda generator: _uniform(generator, equal=True),
        control=lambda generator: _uniform(generator, equal=False),
        control_description="the needle has twice the weight of another token",
    ),
    Claim(
        id="router/entropy-vertex",
        statement=r"The penalty alone, $\dot s_i = \lambda p_i (\log p_i + H)$, sends the choice to the "
        "token of the largest initial score.",
        measures="smallest final probability of the initially largest score",
        source=LEI,
        assumptions=(
            "500 steps of gradient descent at rate 1 on 16 Gaussian scores",
            "the two largest scores differ by more than .05",
        ),
        check=lambda generator: _vertex(generator, sign=1.0),
        control=lambda generator: _vertex(generator, sign=-1.0),
        control_description="the penalty with the other sign",
    ),
    Claim(
        id="router/label-blind-bound",
        statement=r"If the choice depends on the keys alone, the best head that knows the keys has accuracy "
        r"$h + (1 - h)/2$ at hit h.",
        measures="largest distance of the best accuracy from the bound, over ten routers",
        source=SHORTCUT,
        assumptions=(LISTED, "one choice for each position of the needle"),
        check=lambda generator: _bound(generator, blind=True),
        control=lambda generator: _bound(generator, blind=False),
        control_description="the shortcut, which sees contents",
    ),
    Claim(
        id="router/shortcut",
        statement="A router that takes the needle if its content is +1 and its neighbour if not has "
        r"accuracy 1 and hit $1/2$. Its position has $I(C; Y) = 0$; given the needle, $I(C; Y | K) = \log "
        "2$.",
        measures="largest distance of accuracy, hit and both informations from 1, 1/2, 0 and log 2",
        source=SHORTCUT,
        assumptions=(LISTED, "the head sees key and content of the chosen token"),
        check=lambda generator: _shortcut(generator, contents=True),
        control=lambda generator: _shortcut(generator, contents=False),
        control_description="a router with the same hit that sees keys only",
    ),
    Claim(
        id="router/information-bias",
        statement="The plug-in estimate of $I(C; Y)$ exceeds 0 by $(|C| - 1)(|Y| - 1)/(2n)$ on average for "
        "independent variables, within a fifth.",
        measures="mean of the corrected estimate, as a share of this bias",
        source=MILLER,
        assumptions=("16 tokens, 2 to 10 labels, uniform", "100 sets of 2,000 samples"),
        check=lambda generator: _bias(generator, corrected=True),
        control=lambda generator: _bias(generator, corrected=False),
        control_description="the plug-in estimate",
    ),
    Claim(
        id="router/early-penalty",
        statement=r"A penalty from the first step costs successes: with straight-through choices and "
        r"$\lambda = .05$ at most $3/4$ of 24 selectors reach a hit above .9.",
        measures="share of selectors with a hit above .9",
        source=LEI,
        assumptions=(TRAINED, "the router sees keys only"),
        check=lambda generator: _success(generator, straight_through(0.05), "<=", 0.75),
        control=lambda generator: _success(generator, straight_through(0.0), "<=", 0.75),
        control_description="no penalty",
        cost="training",
    ),
    Claim(
        id="router/annealed",
        statement="Soft choices with temperature 3 to .5 and no penalty in the first half, then hard ones "
        r"with $\lambda = .05$, succeed: at least .95 of 24 selectors reach a hit above .9.",
        measures="share of selectors with a hit above .9",
        source=LEI,
        assumptions=(TRAINED, "the router sees keys only"),
        check=lambda generator: _success(generator, ANNEALED, ">=", 0.95),
        control=lambda generator: _success(generator, Schedule(penalty_from=0.0), ">=", 0.95),
        control_description="the same schedule with the penalty from the first step",
        cost="training",
    ),
    Claim(
        id="router/learnt-shortcut",
        statement="Training finds the shortcut: among 24 selectors whose router sees contents, one exceeds "
        "the label-blind bound $h + (1 - h)/2$ by at least .1.",
        measures="largest excess of the accuracy over the label-blind bound",
        source=SHORTCUT,
        assumptions=(TRAINED, "the mixture softmax(s) without noise and penalty"),
        check=lambda generator: _excess(generator, contents=True),
        control=lambda generator: _excess(generator, contents=False),
        control_description="the router sees keys only",
        cost="training",
    ),
)
