"""Universal approximation by contextual mappings: the construction of Yun et al., layer by layer.

:mod:`.grids` enumerates the grid and defines the codes of tokens. :mod:`.layers` holds the layers with
explicit weights and evaluates them in any arithmetic. :mod:`.mapping` is the contextual mapping,
:mod:`.approximator` the whole network, :mod:`.temperature` the softmax that replaces hard-max attention.
:mod:`.functions` draws targets. :mod:`.claims` contains the checkable statements, :mod:`.figures` the
experiments, and :mod:`.in_networks` measures contextual embeddings in trained networks.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .approximator import Approximation, UniversalApproximator, expected_layers
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .functions import random_function
from .grids import all_grids, collisions, column_codes, contexts, excluded_share, has_distinct_tokens
from .in_networks import IN_NETWORKS, Contexts, contextual_share, smallest_distance
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .layers import Attention, FeedForward, Head, run
from .mapping import ContextualMapping
from .temperature import sufficient_inverse_temperature

THEORY = Theory(
    name="universal",
    title="Universal approximation by contextual mappings",
    colour="#6A51A3",
    question="Can a transformer of small width approximate any sequence-to-sequence function?",
    statement="Transformers with two heads of size one and feed-forward layers of width four approximate "
    r"every continuous permutation-equivariant function of sequences with compact support in $L^p$, $1 \le "
    r"p < \infty$, and with positions every continuous function on a compact set. Feed-forward layers round "
    r"the tokens to a grid of width $\delta$. Attention layers then give each token a code $q_j$ that "
    "determines the whole sequence, a contextual mapping, and feed-forward layers replace codes by values. "
    r"The depth grows like $n \delta^{-dn}$.",
    sources=(Source("yun2020transformers"),),
    assumptions=(
        "hard-max attention, or softmax attention of a high inverse temperature",
        "no layer normalisation; depth exponential in the length of the sequence",
        "without positions: the function is permutation-equivariant, and the tokens on the grid are distinct",
        r"entries in $[0, 1)$; the error is measured in $L^p$, $p < \infty$",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "THEORY",
    "Approximation",
    "Attention",
    "Contexts",
    "ContextualMapping",
    "FeedForward",
    "Head",
    "UniversalApproximator",
    "all_grids",
    "collisions",
    "column_codes",
    "contexts",
    "contextual_share",
    "excluded_share",
    "expected_layers",
    "has_distinct_tokens",
    "random_function",
    "run",
    "smallest_distance",
    "sufficient_inverse_temperature",
]
