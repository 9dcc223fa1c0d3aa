"""Routing: a router scores the tokens, a selector chooses one of them, and a head predicts the label from it
alone.

:mod:`.choice` has Gumbel noise, the relaxed choice and its gradient; :mod:`.information` what the choice says
about the label; :mod:`.needle` a task that can be enumerated; :mod:`.selector` the networks. :mod:`.on_data`
trains them on a data set, :mod:`.in_networks` measures the choices of attention. :mod:`.claims` contains the
checkable statements, :mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .choice import entropy_gradient, gumbel_noise, gumbel_softmax, relaxed_gradient_mean, sample_choice
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, HeaviestKey
from .information import choice_information, hit, label_blind_bound
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .needle import Needles, best_accuracy, draw_needles, enumerate_needles, uniform_accuracies
from .on_data import ON_DATA
from .selector import (
    ANNEALED,
    RouterSelector,
    Schedule,
    measure_selectors,
    mixture,
    straight_through,
    train_selectors,
)

THEORY = Theory(
    name="router",
    title="Routing: a selector chooses the tokens",
    colour="#C0392B",
    question="Does a selector choose the token that carries the label, or does its choice tell the label?",
    statement=r"A *router* gives each token a score, a *selector* takes one token by $\arg\max_i (s_i + "
    "g_i)$ with Gumbel noise, and a head predicts the label from it. Training fails in two ways. A penalty "
    "on the entropy from the first step may harden the choice on a token that does not carry the label. A "
    "router that sees contents may choose a token for what it tells the head: accuracy 1 at hit $1/2$. A "
    "label-blind choice cannot exceed $h + (1 - h)/2$ at hit $h$, so accuracy alone says little: hit and "
    "$I(C; Y)$ stand beside it.",
    sources=(
        Source("lei2016rationalizing"),
        Source("jang2017categorical"),
        Source("maddison2017concrete"),
        Source("jacovi2021aligning"),
        Source("jethani2021learned"),
        Source("yu2021understanding"),
        Source("chen2018learning"),
    ),
    assumptions=(
        "one token carries the label, and its key marks it",
        "for the bound: the other tokens are independent of the label, and labels are balanced",
        "for the schedule: the router sees keys only",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "ANNEALED",
    "ON_DATA",
    "THEORY",
    "HeaviestKey",
    "Needles",
    "RouterSelector",
    "Schedule",
    "best_accuracy",
    "choice_information",
    "draw_needles",
    "entropy_gradient",
    "enumerate_needles",
    "gumbel_noise",
    "gumbel_softmax",
    "hit",
    "label_blind_bound",
    "measure_selectors",
    "mixture",
    "relaxed_gradient_mean",
    "sample_choice",
    "straight_through",
    "train_selectors",
    "uniform_accuracies",
]
