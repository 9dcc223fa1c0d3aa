"""Collapse: what attention does to the differences between tokens.

:mod:`.residuals` has attention without skip connections, :mod:`.initialisation` random weights, one layer and
many, :mod:`.phases` the random-energy model of a row of scores, :mod:`.heads` the contraction of a head and
its null. :mod:`.in_networks` measures networks, :mod:`.on_data` random heads on a data set. :mod:`.claims`
contains the checkable statements, :mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .heads import contraction, permuted_contraction
from .in_networks import IN_NETWORKS, HeadContraction
from .initialisation import (
    contraction_of_tokens,
    cosine_after,
    depth_cosine,
    dimension,
    equiangular,
    mean_cosine,
    squared_contraction,
    stream,
)
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .on_data import ON_DATA
from .phases import curves, gaussian_participation, limit, participation
from .residuals import (
    bound_ratio,
    composite_norm,
    cubic_law,
    log_bound,
    pure_attention,
    residual,
    score_gradient,
    value_gradient,
)

THEORY = Theory(
    name="collapse",
    title="Collapse: what attention does to the differences between tokens",
    colour="#3B6FB6",
    question="Does attention make tokens alike, how fast, and what do skip connections, depth and the size "
    "of the scores change?",
    statement="Without skip connections one layer is cubic in the differences $R$ between tokens, "
    r"$\mathrm{res}(Y) = R W C_a V$, so L layers have the power $3^L$, and the gradient of $W_{QK}$ "
    r"vanishes like $|R|^2$. Random weights contract by $c^2 = (e^v - e^{\rho v})/n + (1-\rho) v/d$. Scores "
    r"of standard deviation $b \sqrt{\log n}$ average over many keys below $b = 1/\sqrt2$ and hold on to a "
    r"few above $\sqrt2$. With skip connections the cosine of the tokens stays away from 1 if the branch is "
    r"scaled by $1/\sqrt L$.",
    sources=(
        Source("dong2021attention"),
        Source("noci2022signal"),
        Source("giorlandino2026two"),
        Source("derrida1981random"),
    ),
    assumptions=(
        "no MLP; rows of attention see all keys",
        "for the cubic law: differences between tokens are small, and there is no skip connection",
        "for one layer and depth: random weights, and scores that vary little within a row",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "ON_DATA",
    "THEORY",
    "HeadContraction",
    "bound_ratio",
    "composite_norm",
    "contraction",
    "contraction_of_tokens",
    "cosine_after",
    "cubic_law",
    "curves",
    "depth_cosine",
    "dimension",
    "equiangular",
    "gaussian_participation",
    "limit",
    "log_bound",
    "mean_cosine",
    "participation",
    "permuted_contraction",
    "pure_attention",
    "residual",
    "score_gradient",
    "squared_contraction",
    "stream",
    "value_gradient",
]
