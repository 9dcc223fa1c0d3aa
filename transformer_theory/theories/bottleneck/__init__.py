"""The information bottleneck: how much of the label a representation can keep at a given compression.

:mod:`.information` holds entropies, the bias of counts and the words of features; :mod:`.curve` the exact
information curve with a bound on the distance from the optimum; :mod:`.first_beta` the smallest trade-off at
which anything is kept; :mod:`.gaussian` the closed form for Gaussian variables and a variational bottleneck.
:mod:`.claims` contains the checkable statements, :mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .claims import CLAIMS
from .curve import Bottleneck, Curve, information_bottleneck, random_joint
from .figures import EXPERIMENTS
from .first_beta import Onset, onset, rare_cluster
from .gaussian import (
    GaussianPair,
    VariationalBottleneck,
    gaussian_bottleneck,
    train_variational,
    variational_bound,
)
from .in_networks import IN_NETWORKS, WordInformation
from .information import plug_in_bias, sample_information
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .on_data import ON_DATA

THEORY = Theory(
    name="bottleneck",
    title="The information bottleneck",
    colour="#7B5D3F",
    question="How much of the label can a representation keep, given how much it keeps of the input?",
    statement=r"Representations z of x that minimise $I(X;Z) - \beta I(Z;Y)$ trace a concave curve with the "
    r"slope $1/\beta$. It is a convex problem in the law of the decoders $p(y|z)$, so the optimum can be "
    r"certified. Below $\beta = 1/\eta_{KL}$ nothing is kept, with the strong data-processing constant "
    r"$\eta_{KL} = \sup_q KL(qC \| p_Y)/KL(q \| p_X)$ of the channel $C = p(y|x)$.",
    sources=(
        Source("tishby1999information"),
        Source("chechik2005information"),
        Source("alemi2017deep"),
        Source("kolchinsky2019caveats"),
    ),
    assumptions=(
        "X and Y take finitely many values, or are jointly Gaussian",
        "their joint law is known",
        "the representation is stochastic: a continuous deterministic map has infinite information",
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
    "Bottleneck",
    "Curve",
    "GaussianPair",
    "Onset",
    "VariationalBottleneck",
    "WordInformation",
    "gaussian_bottleneck",
    "information_bottleneck",
    "onset",
    "plug_in_bias",
    "random_joint",
    "rare_cluster",
    "sample_information",
    "train_variational",
    "variational_bound",
]
