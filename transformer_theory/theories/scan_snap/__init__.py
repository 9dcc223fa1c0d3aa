"""Scan and snap: where attention goes while a one-layer model learns to predict the next token.

:mod:`.problem` and :mod:`.families` define the data. :mod:`.dynamics` trains the model by exact gradient
descent on counts. :mod:`.flow` integrates the exact population flow and the flows of Lemmas 3 and 4.
:mod:`.closed_form`, :mod:`.gains` and :mod:`.growth` compute the formulas of the theorems. :mod:`.claims`
contains the checkable statements. :mod:`.on_data` applies the theory to data sets, and :mod:`.in_networks`
applies it to trained networks.
"""

from ...core.sources import Source
from ...core.theory import Theory
from . import closed_form
from .claims import CLAIMS
from .dynamics import (
    Adam,
    Batch,
    HeavyBall,
    Weights,
    forward,
    gradient_descent,
    minibatches,
    population,
    sampled,
)
from .families import SymmetricClasses, alike, with_overlap
from .figures import EXPERIMENTS
from .flow import (
    exact_flow,
    lemma4_flow,
    modified_flow,
    symmetric_exact_flow,
    symmetric_lemma4_flow,
    symmetric_modified_flow,
)
from .gains import gain_bounds, relative_gains
from .growth import growth_exponents
from .in_networks import IN_NETWORKS, ScanAndSnap
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .on_data import ON_DATA, analyse
from .problem import SequenceClasses, count_sequences, single_common, synthetic

THEORY = Theory(
    name="scan_snap",
    title="Scan and snap",
    colour="#D55E00",
    question="Which tokens does attention learn to attend to, and when does it stop changing?",
    statement="A one-layer model that learns the next token n attends to token l of class n in proportion "
    r"to $P(l|n)\, e^{z_l}$. Training moves attention away from common tokens, which occur in many classes, "
    "towards distinct ones, which occur in one: the likeliest gain most, and their relative gain is $r(t) "
    r"= r(0)\, e^{2 (z_l(t) - z_l(0))}$. Attention is scanned until $t_0' = K \ln M / \eta_Y$, then the "
    r"decoder has learnt, $\gamma(t)$ falls, and the combination of tokens all but freezes: it snaps.",
    sources=(Source("tian2023scan"),),
    assumptions=(
        "no positions, one layer, one-hot tokens, attended tokens of Euclidean norm one",
        "long sequences, and a decoder that learns much faster than attention",
        "each token is distinct to one class or common; the growth of a common token's logit is known only "
        "if it is the only one",
        r"weakly overlapping classes: $M \gg K^2$, $|\lambda_1(E)| < 1/K$ and $|\lambda_i(E)| \ge "
        r"\sqrt{6/M}$",
        "the decoder follows the modified dynamics of Lemma 3 (closed forms)",
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
    "Adam",
    "Batch",
    "HeavyBall",
    "ScanAndSnap",
    "SequenceClasses",
    "SymmetricClasses",
    "Weights",
    "alike",
    "analyse",
    "closed_form",
    "count_sequences",
    "exact_flow",
    "forward",
    "gain_bounds",
    "gradient_descent",
    "growth_exponents",
    "lemma4_flow",
    "minibatches",
    "modified_flow",
    "population",
    "relative_gains",
    "sampled",
    "single_common",
    "symmetric_exact_flow",
    "symmetric_lemma4_flow",
    "symmetric_modified_flow",
    "synthetic",
    "with_overlap",
]
