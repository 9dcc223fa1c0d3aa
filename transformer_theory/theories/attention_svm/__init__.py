r"""Attention as a support vector machine: where gradient descent sends the attention weights.

    data = cross_attention(inputs=6, tokens=8, dim=10, generator=torch.Generator().manual_seed(0))
    c = constraints(data.tokens, data.query, data.optimal())   # the tokens to select: (x_a - x_t)^T W z >= 1
    frobenius_max_margin(c).W                                  # the direction of descent on W
    nuclear_max_margin(c).W                                    # the direction of descent on W = K Q^T
    normalised_descent(data, start(data), steps=1000).W        # W after 1000 steps

The package exports the most common names; the others are imported from their modules.

- Problems: :mod:`.constraint_set`, the common form of every selection; :mod:`.builders`, one function per
  kind of attention (cross, self, prompt, causal, sequence to sequence, several tokens, token-priority
  graphs); :mod:`.problem`, :mod:`.sequences`, :mod:`.next_token` and :mod:`.graph`, training problems and
  samplers; :mod:`.published`, the data of the papers' figures.
- Max-margin solutions: :mod:`.solvers` (Frobenius, nuclear, entrywise and spectral norms, finite parts),
  :mod:`.solution`, :mod:`.feasibility`.
- Descent: :mod:`.dynamics` (normalised, plain, Polyak, mirror and joint descent, regularisation paths),
  :mod:`.balance` (K and Q with one common norm; where a penalty stops them), :mod:`.selection` (local
  optimality), :mod:`.sharing` (attention on several tokens).
- Your own data and trained networks: :mod:`.analysis`, :mod:`.on_data`, :mod:`.in_networks`.
- Claims and the papers' figures: :mod:`.claims`, :mod:`.ladder`, :mod:`.figures`.
"""

from ...core.errors import Infeasible, NotConverged
from ...core.sources import Source
from ...core.theory import Theory
from .analysis import Analysis, analyse, analyse_head
from .builders import causal, constraints, graph_svm, prompt, self_attention, sequence_to_sequence
from .claims import CLAIMS
from .constraint_set import Constraints
from .dynamics import (
    joint_descent,
    mirror_descent,
    normalised_descent,
    plain_descent,
    regularisation_path,
    start,
    trajectory,
)
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, alignment
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .on_data import ON_DATA
from .problem import Instance, cross_attention
from .solution import MaxMargin
from .solvers import (
    frobenius_max_margin,
    frobenius_max_margins,
    generalised_max_margin,
    lp_max_margin,
    nuclear_max_margin,
    nuclear_max_margins,
)

THEORY = Theory(
    name="attention_svm",
    title="Attention as a support vector machine",
    colour="#0072B2",
    question="Where does gradient descent send the attention weights?",
    statement=(
        r"One attention head scores token $x$ for query $z$ by $x^\top W z$. Under long training $W$ grows "
        "without bound, attention concentrates on one token $a_i$ of each input, and $W$ converges in "
        r"direction to the solution of the hard-margin problem $\min \|W\|_F$ subject to $(x_{i,a_i} - "
        r"x_{i,t})^\top W z_i \ge 1$ for all $i$ and $t \ne a_i$. The selected tokens are locally optimal: "
        "each helps the prediction more than its neighbours, the tokens of margin one. For the factors of "
        r"$W = K Q^\top$ the nuclear norm takes the place of the Frobenius norm: proven for the "
        "regularisation path (loss minimised within a growing ball), observed for descent in which one "
        "norm divides both gradients. With the published penalty descent on the factors stops at a finite "
        "point near that direction; with a separate norm for each it stays away from it."
    ),
    sources=(
        Source("tarzanagh2023transformers"),
        Source("tarzanagh2023maxmargin"),
        Source("vasudeva2025implicit"),
        Source("li2024mechanics"),
    ),
    assumptions=(
        "One attention head with a fixed linear head on its output, trained alone by gradient descent with "
        "a decreasing smooth loss.",
        "Some $W$ separates the selected tokens from the others of their inputs (feasibility).",
        "Each input has one best token. If all its other tokens score the same there is no finite "
        "stationary point; that descent reaches the best tokens is guaranteed from $W = 0$ if the first "
        "step already points to them, and from any start for a single input.",
        "The statements are limits: they do not say how long descent takes.",
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
    "Analysis",
    "Constraints",
    "Infeasible",
    "Instance",
    "MaxMargin",
    "NotConverged",
    "alignment",
    "analyse",
    "analyse_head",
    "causal",
    "constraints",
    "cross_attention",
    "frobenius_max_margin",
    "frobenius_max_margins",
    "generalised_max_margin",
    "graph_svm",
    "joint_descent",
    "lp_max_margin",
    "mirror_descent",
    "normalised_descent",
    "nuclear_max_margin",
    "nuclear_max_margins",
    "plain_descent",
    "prompt",
    "regularisation_path",
    "self_attention",
    "sequence_to_sequence",
    "start",
    "trajectory",
]
