r"""CRATE: transformer layers derived as steps that compress tokens into subspaces and make them sparse.

    from transformer_theory import crate
    crate.exact_step(tokens, bases, kappa=0.1, eps=0.5)     # also paper_step, released_step, tssa_step
    crate.fista(tokens, dictionary, lam=0.1).code           # the non-negative LASSO

:mod:`.problem` contains the definitions. :mod:`.steps` compresses tokens, and :mod:`.approximations` measures
the error of attention as an approximation of these steps. :mod:`.sparse_coding` makes tokens sparse.
:mod:`.unrolled` is the unrolled model without training. :mod:`.layer_curves` and :mod:`.segmentation` measure
trained networks, and :mod:`.tasks` is the objective as a training task. The blocks and networks are in
:mod:`transformer_theory.models.crate`.
"""

from ...core.sources import Source
from ...core.theory import Theory
from ...core.validation import converted, in_range
from ...models.crate import compression, sparsification
from .approximations import gradient_error, neumann_error
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, Compression, Growth, Sparsity
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .layer_curves import layerwise
from .on_data import ON_DATA
from .problem import (
    fit_subspaces,
    incoherence,
    incompleteness,
    nonzeros,
    random_subspaces,
    sparse_rate_objective,
)
from .segmentation import class_attention, components, overlap, top_mass
from .sparse_coding import LassoSolution, fista, ista, lasso
from .steps import causal_exact_step, exact_step, lipschitz, mssa, paper_step, released_step, tssa_step
from .tasks import SparseRateReduction

rate_gradient = in_range(converted(floats=("tokens", "bases"))(compression.rate_gradient))
ista_step = in_range(converted(floats=("code", "tokens", "dictionary"))(sparsification.ista_step))

THEORY = Theory(
    name="crate",
    title="White-box transformers: sparse rate reduction",
    colour="#B4508A",
    question="Does each layer compress the tokens into subspaces and make them sparse?",
    statement=(
        "Tokens lie near a mixture of $K$ subspaces with bases $U_k$. A layer lowers the objective $R^c(Z; "
        r"U_{[K]}) + \lambda \|Z\|_0 - R(Z)$ in two steps: attention with one matrix $U_k$ for query, key "
        r"and value is an approximate gradient step on $R^c(Z; U_{[K]}) = \frac{1}{2} \sum_k \log\det(I + "
        r"\beta (Z U_k)^\top Z U_k)$, the compression; $\mathrm{relu}(Z + \eta (Z - Z D^\top) D - "
        r"\eta\lambda)$ is an ISTA step towards a sparse code, the sparsification. So from layer to layer "
        "$R^c$ and the share of non-zeros should fall."
    ),
    sources=(Source("yu2023white"), Source("hu2024indepth"), Source("beck2009fast")),
    assumptions=(
        "tokens lie in a mixture of low-dimensional subspaces",
        "the subspaces are orthonormal, mutually incoherent, and their projections add up to the identity",
        "the Neumann series behind the attention step converges: beta times the largest eigenvalue of each "
        "head's Gram matrix is below 1",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
    objectives=(SparseRateReduction,),
)

__all__ = [
    "THEORY",
    "Compression",
    "Growth",
    "LassoSolution",
    "Sparsity",
    "causal_exact_step",
    "class_attention",
    "components",
    "exact_step",
    "fista",
    "fit_subspaces",
    "gradient_error",
    "incoherence",
    "incompleteness",
    "ista",
    "ista_step",
    "lasso",
    "layerwise",
    "lipschitz",
    "mssa",
    "neumann_error",
    "nonzeros",
    "overlap",
    "paper_step",
    "random_subspaces",
    "rate_gradient",
    "released_step",
    "sparse_rate_objective",
    "top_mass",
    "tssa_step",
]
