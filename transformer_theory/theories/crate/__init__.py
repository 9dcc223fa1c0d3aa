r"""CRATE: transformer layers derived as steps that compress tokens into subspaces and make them sparse.

    from transformer_theory import crate
    crate.exact_step(tokens, bases, kappa=0.1, eps=0.5)     # also paper_step, released_step, tssa_step
    crate.fista(tokens, dictionary, lam=0.1).code           # the non-negative LASSO

Definitions: :mod:`.problem`; compression: :mod:`.attention`, :mod:`.tssa`, :mod:`.causal`; what attention approximates: :mod:`.neumann`,
:mod:`.denoising`; sparsification: :mod:`.sparse_coding`; modules: :mod:`.block`; any network layer by layer: :mod:`.layer_curves`,
:mod:`.segmentation`.
"""

from ...core.sources import Source
from ...core.theory import Theory
from ...models.crate import (
    CausalExactAttention,
    CausalPaperAttention,
    CausalReleasedAttention,
    CausalReleasedTokenStatisticsAttention,
    CausalTokenStatisticsAttention,
    ExactAttention,
    Fista,
    Ista,
    Layer,
    OvercompleteIsta,
    PaperAttention,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
    TokenStatisticsAttention,
    orthogonal,
)
from ...models.crate.causal import added_rates, causal_exact_step, causal_paper_step, causal_rate_gradient, causal_released_step
from ...models.crate.sparse_coding import (
    LassoSolution,
    duality_gap,
    fista,
    fista_steps,
    from_tokens,
    ista,
    ista_step,
    largest_step,
    lasso,
    overcomplete_code,
)
from ...models.crate.subspace_attention import exact_step, lipschitz, mssa, paper_step, rate_gradient, released_step
from ...models.crate.token_statistics import (
    causal_memberships,
    causal_shrinkage,
    membership_rate,
    memberships,
    shrinkage,
    tssa_gradient,
    tssa_step,
    variational_rate,
)
from .claims import CLAIMS
from .denoising import denoise, log_density
from .experiments import EXPERIMENTS, Departures, Emergence, Layers, Unrolled, Variants
from .figures import draw
from .layer_curves import Curves, head_rate, layerwise
from .neumann import gradient_error, neumann_error, neumann_sum
from .problem import fit_subspaces, incoherence, incompleteness, nonzeros, random_subspaces, sparse_rate_objective
from .readings import COMPRESSION, Compression, Sparsity, reducers
from .segmentation import Overlap, class_attention, components, exceeding, overlap, random_patches, top_mass
from .unrolled import ANSWER, compress, forms, guaranteed, predict_and_measure, sparse_code

THEORY = Theory(
    name="crate",
    title="White-box transformers: sparse rate reduction",
    question="Does each layer compress the tokens into subspaces and make them sparse?",
    statement=(
        r"Tokens lie near a mixture of $K$ subspaces with bases $U_k$. A layer lowers the objective "
        r"$R^c(Z; U_{[K]}) + \lambda \|Z\|_0 - R(Z)$ in two steps: attention with one matrix $U_k$ for query, key and value is an "
        r"approximate gradient step on $R^c(Z; U_{[K]}) = \frac{1}{2} \sum_k \log\det(I + \beta (Z U_k)^\top Z U_k)$, the compression; "
        r"$\mathrm{relu}(Z + \eta (Z - Z D^\top) D - \eta\lambda)$ is an ISTA step towards a sparse code, the sparsification. "
        r"So from layer to layer $R^c$ and the share of non-zeros should fall."
    ),
    sources=(Source("yu2023white"), Source("hu2024indepth"), Source("beck2009fast")),
    assumptions=(
        "tokens lie in a mixture of low-dimensional subspaces",
        "the subspaces are orthonormal, mutually incoherent, and their projections add up to the identity",
        "the Neumann series behind the attention step converges: beta times the largest eigenvalue of each head's Gram matrix is below 1",
    ),
    claims=CLAIMS,
    experiments=EXPERIMENTS,
    needs=(),
    predict_and_measure=predict_and_measure,
    reducers=reducers,
    draw=draw,
    order_parameter=COMPRESSION,
    answer=ANSWER,
)

__all__ = [
    "EXPERIMENTS",
    "THEORY",
    "CausalExactAttention",
    "CausalPaperAttention",
    "CausalReleasedAttention",
    "CausalReleasedTokenStatisticsAttention",
    "CausalTokenStatisticsAttention",
    "Compression",
    "Curves",
    "Departures",
    "Emergence",
    "ExactAttention",
    "Fista",
    "Ista",
    "LassoSolution",
    "Layer",
    "Layers",
    "OvercompleteIsta",
    "Overlap",
    "PaperAttention",
    "ReleasedAttention",
    "ReleasedTokenStatisticsAttention",
    "Sparsity",
    "TokenStatisticsAttention",
    "Unrolled",
    "Variants",
    "added_rates",
    "causal_exact_step",
    "causal_memberships",
    "causal_paper_step",
    "causal_rate_gradient",
    "causal_released_step",
    "causal_shrinkage",
    "class_attention",
    "components",
    "compress",
    "denoise",
    "duality_gap",
    "exact_step",
    "exceeding",
    "fista",
    "fista_steps",
    "fit_subspaces",
    "forms",
    "from_tokens",
    "gradient_error",
    "guaranteed",
    "head_rate",
    "incoherence",
    "incompleteness",
    "ista",
    "ista_step",
    "largest_step",
    "lasso",
    "layerwise",
    "lipschitz",
    "log_density",
    "membership_rate",
    "memberships",
    "mssa",
    "neumann_error",
    "neumann_sum",
    "nonzeros",
    "orthogonal",
    "overcomplete_code",
    "overlap",
    "paper_step",
    "predict_and_measure",
    "random_patches",
    "random_subspaces",
    "rate_gradient",
    "reducers",
    "released_step",
    "shrinkage",
    "sparse_code",
    "sparse_rate_objective",
    "top_mass",
    "tssa_gradient",
    "tssa_step",
    "variational_rate",
]
