"""Scan and snap: where attention goes while a one-layer model learns to predict the next token.

:mod:`.problem` and :mod:`.families` the data, :mod:`.dynamics` exact gradient descent in count form, :mod:`.flow` the exact population
flow, Lemma 3's and Lemma 4's, :mod:`.closed_form`, :mod:`.gains` and :mod:`.growth` what the theorems give, :mod:`.claims` checkable
statements, :mod:`.subject`, :mod:`.analysis` and :mod:`.reducers` what it says about data and about trained networks.
"""

from ...core.sources import Source
from ...core.theory import Theory
from . import closed_form
from .analysis import Analysis, analyse
from .claims import CLAIMS
from .dynamics import (
    Adam,
    Batch,
    HeavyBall,
    State,
    Trajectory,
    Weights,
    attend,
    forward,
    gradient_descent,
    minibatches,
    population,
    sampled,
)
from .experiments import (
    EXPERIMENTS,
    BGrowth,
    Chi,
    DecoderGain,
    Exponents,
    Fates,
    LongSequences,
    Recall,
    RegimeMap,
    SynMedium,
    SynSmall,
    SynSmallAdam,
    TextAttention,
    TextDepth,
    TextRates,
)
from .families import SymmetricClasses, alike, smallest_vocabulary, with_overlap
from .figures import draw
from .flow import (
    DrivenFlow,
    Flow,
    SymmetricFlow,
    exact_flow,
    lemma4_flow,
    lemma4_velocity,
    modified_flow,
    symmetric_exact_flow,
    symmetric_lemma4_flow,
    symmetric_modified_flow,
)
from .gains import GainBounds, GainClock, RelativeGains, gain_bounds, gain_clock, printed_gain_bounds, relative_gains
from .growth import Growth, decades_near_half, growth_exponents, longest_logarithmic_growth
from .measure import predict_and_measure
from .problem import CountedSequences, SequenceClasses, WeakOverlap, count_sequences, single_common, synthetic
from .reading import Reading
from .reading_rows import ANSWER
from .reducers import SHARPNESS, ScanAndSnap, reducers

THEORY = Theory(
    name="scan_snap",
    title="Scan and snap",
    question="Which tokens does attention learn to look at, and when does it stop changing?",
    statement=r"A one-layer model that learns the next token n attends to token l of class n in proportion to $P(l|n)\, e^{z_l}$. Training "
    r"moves attention away from common tokens, which occur in many classes, towards distinct ones, which occur in one: the likeliest gain "
    r"most, and their relative gain is $r(t) = r(0)\, e^{2 (z_l(t) - z_l(0))}$. Attention is scanned until $t_0' = K \ln M / \eta_Y$, then "
    r"the decoder has learnt, $\gamma(t)$ falls, and the combination of tokens all but freezes: it snaps.",
    sources=(Source("tian2023scan"),),
    assumptions=(
        "no positions, one layer, one-hot tokens, attended tokens of Euclidean norm one",
        "long sequences, and a decoder that learns much faster than attention",
        "tokens are distinct to one class or common; for the fate of a common token it must be the only one",
        r"weakly overlapping classes: $|\lambda_1(E)| < 1/K$ and $|\lambda_i(E)| \ge \sqrt{6/M}$",
        "the decoder follows the modified dynamics of Lemma 3 (closed forms)",
    ),
    claims=CLAIMS,
    experiments=EXPERIMENTS,
    needs=("ids", "next_id"),
    predict_and_measure=predict_and_measure,
    reducers=reducers,
    draw=draw,
    order_parameter=SHARPNESS,
    answer=ANSWER,
)

__all__ = [
    "THEORY",
    "Adam",
    "Analysis",
    "BGrowth",
    "Batch",
    "Chi",
    "CountedSequences",
    "DecoderGain",
    "DrivenFlow",
    "Exponents",
    "Fates",
    "Flow",
    "GainBounds",
    "GainClock",
    "Growth",
    "HeavyBall",
    "LongSequences",
    "Reading",
    "Recall",
    "RegimeMap",
    "RelativeGains",
    "ScanAndSnap",
    "SequenceClasses",
    "State",
    "SymmetricClasses",
    "SymmetricFlow",
    "SynMedium",
    "SynSmall",
    "SynSmallAdam",
    "TextAttention",
    "TextDepth",
    "TextRates",
    "Trajectory",
    "WeakOverlap",
    "Weights",
    "alike",
    "analyse",
    "attend",
    "closed_form",
    "count_sequences",
    "decades_near_half",
    "draw",
    "exact_flow",
    "forward",
    "gain_bounds",
    "gain_clock",
    "gradient_descent",
    "growth_exponents",
    "lemma4_flow",
    "lemma4_velocity",
    "longest_logarithmic_growth",
    "minibatches",
    "modified_flow",
    "population",
    "predict_and_measure",
    "printed_gain_bounds",
    "reducers",
    "relative_gains",
    "sampled",
    "single_common",
    "smallest_vocabulary",
    "symmetric_exact_flow",
    "symmetric_lemma4_flow",
    "symmetric_modified_flow",
    "synthetic",
    "with_overlap",
]
