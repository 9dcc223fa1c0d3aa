"""Learning in context: gradient descent, statistics and functions inside a prompt.

:mod:`.prompts` draws regression prompts, :mod:`.descent` writes layers that are steps of descent,
:mod:`.preconditioned` has the best single step in closed form, :mod:`.statistics` ridge, lasso, logistic
regression and model selection in attention, :mod:`.dual` the dual form, :mod:`.references` the algorithms
that answers are compared with, and :mod:`.learning` trains models. :mod:`.claims` contains the checkable
statements, :mod:`.figures` the experiments; :mod:`.on_data` uses tokens of the user, :mod:`.in_networks`
measures trained networks.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .claims import CLAIMS
from .descent import LinearAttentionGD
from .dual import dual_part
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, DualShare, InContextScore, own_context, repeated_context
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .learning import (
    AttentionRegression,
    RegressionDecoder,
    train_attention,
    train_decoder,
    train_on_functions,
)
from .on_data import ON_DATA
from .preconditioned import fourth_moment, gamma, optimal_step, preconditioner, risk
from .prompts import Prompts, function_prompts, gaussian_inputs, linear_prompts
from .references import compare_predictors, one_step, recursive_least_squares, slope_on_step
from .statistics import lasso_transformer, logistic_transformer, ridge_transformer, select

THEORY = Theory(
    name="in_context",
    title="Learning in context",
    colour="#1B9AAA",
    question="Which algorithm does a transformer run on the examples of its prompt?",
    statement="A layer of linear attention can take a step of gradient descent on the examples of its "
    r"prompt. Trained on linear prompts, one layer answers $x^\top G \frac1N \sum_j y_j x_j$ with $G = "
    r"\Gamma^{-1}$, $\Gamma = (1 + \frac1N) \Lambda + \frac{\operatorname{tr} \Lambda + \sigma^2}{N} I$: a "
    "preconditioned step, which is plain descent for isotropic inputs only. Attention with ReLUs runs "
    "ridge, lasso and logistic regression, and selects among them by validation inside the prompt.",
    sources=(
        Source("vonoswald2023transformers"),
        Source("zhang2024trained"),
        Source("bai2023transformers"),
        Source("dai2023why"),
        Source("garg2022what"),
        Source("akyurek2023learning"),
    ),
    assumptions=(
        "linear attention without softmax, one layer for the closed form",
        r"examples $y_j = w^\top x_j + \varepsilon_j$ with $w \sim N(0, I)$, drawn anew for each prompt",
        r"independent inputs with mean zero and covariance $\Lambda$",
        "keys are the examples, not the query",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "THEORY",
    "AttentionRegression",
    "DualShare",
    "InContextScore",
    "LinearAttentionGD",
    "Prompts",
    "RegressionDecoder",
    "compare_predictors",
    "dual_part",
    "fourth_moment",
    "function_prompts",
    "gamma",
    "gaussian_inputs",
    "lasso_transformer",
    "linear_prompts",
    "logistic_transformer",
    "one_step",
    "optimal_step",
    "own_context",
    "preconditioner",
    "recursive_least_squares",
    "repeated_context",
    "ridge_transformer",
    "risk",
    "select",
    "slope_on_step",
    "train_attention",
    "train_decoder",
    "train_on_functions",
]
