"""Tokens as interacting particles: where attention takes them if every layer is the same, and whether tokens
of a network cluster.

:mod:`.dynamics` integrates the flow, :mod:`.equiangular` has the equation of a common cosine and one layer on
long sequences, :mod:`.clusters` energy and clusters. :mod:`.within_between` estimates whether tokens of a
sequence cluster beyond positions and a common direction; :mod:`.in_networks` and :mod:`.on_data` measure it.
:mod:`.claims` contains the checkable statements, :mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .claims import CLAIMS
from .clusters import count_clusters, energy, half_space_probability, in_half_space, mean_cosine
from .dynamics import attention, flow, pre_norm_field, softmax_field, tangent, unit, unnormalised_field
from .equiangular import common_cosine, consensus_estimate, layer_cosine, layer_cosine_limit, separation_time
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, SequenceClusters, ValueAlignment, mosaics
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .on_data import ON_DATA
from .within_between import directions, pair_sums

THEORY = Theory(
    name="particles",
    title="Tokens as interacting particles",
    colour="#4B8BBE",
    question="If every layer were the same simple attention, where would the tokens go, and do the tokens "
    "of my network cluster?",
    statement=r"With $V = I$ and tokens on the sphere, attention is the flow $\dot x_i = P_{x_i} \sum_j "
    r"a_{ij} x_j$. It never lowers the energy $n^{-2} \sum_{ij} e^{\beta (\langle x_i, x_j \rangle - 1)}$ "
    r"and takes almost every start to one cluster for $d \ge 3$; several clusters last for a time that "
    r"grows exponentially in $\beta$. From orthogonal tokens all cosines follow one scalar equation. In "
    "networks: the cosine within a sequence less that between sequences at other positions, and whether "
    "$V$ acts as a positive multiple of $I$.",
    sources=(
        Source("geshkovski2025mathematical"),
        Source("geshkovski2024dynamic"),
        Source("bruno2025emergence"),
        Source("karagodin2024clustering"),
        Source("karagodin2025normalization"),
        Source("chen2026critical"),
        Source("wendel1962problem"),
        Source("ethayarajh2019contextual"),
    ),
    assumptions=(
        "the values are a positive multiple of the tokens: $V = c I$",
        "tokens are normalised after each layer, and all layers are the same",
        "one head; no MLP, no positions and no mask unless stated",
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
    "SequenceClusters",
    "ValueAlignment",
    "attention",
    "common_cosine",
    "consensus_estimate",
    "count_clusters",
    "directions",
    "energy",
    "flow",
    "half_space_probability",
    "in_half_space",
    "layer_cosine",
    "layer_cosine_limit",
    "mean_cosine",
    "mosaics",
    "pair_sums",
    "pre_norm_field",
    "separation_time",
    "softmax_field",
    "tangent",
    "unit",
    "unnormalised_field",
]
