"""Length: what softmax attention can hold on to when sequences grow.

:mod:`.dispersion` has bounds and identities of one row of attention, :mod:`.longer` predicts weights among
many keys from the scores of short sequences, :mod:`.retrieval` trains heads on 16 keys and runs them on
4,096. :mod:`.in_networks` and :mod:`.responses` measure networks. :mod:`.claims` contains the checkable
statements, :mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .claims import CLAIMS
from .dispersion import (
    kept_share,
    log_dispersion_bound,
    one_token_change,
    score_gap,
    winner_weight,
    without_sink,
)
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, KeptShare, ScoreGaps
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .longer import continuum_weight, log_factor, resampled_top_weight, top_weight
from .responses import DoubledWeight, SinkValue, TokenChange
from .retrieval import PooledHead, at_length, short_scores, train_head

THEORY = Theory(
    name="length",
    title="Attention to many keys: dispersion and length",
    colour="#3F6F21",
    question="What will a head hold on to when the sequence is many times longer?",
    statement="Bounded scores *disperse*: weights are $O(1/n)$, and one token moves the output by "
    "$O(1/n)$. The bound says nothing about trained heads, but an identity does: with the *gap* $g = "
    r"s_{\max} - \log \mathrm{mean}\, e^{s_j}$ over the other keys the largest weight is $1/(1 + (n-1) "
    r"e^{-g})$, and $g / \log(n-1) = 1$ is critical. Scores of short sequences predict the largest weight "
    r"of long ones by *resampling*. Multiplying scores by $\log n$ keeps the weight on a needle with $g > "
    r"\log(n-1)$, but not on the largest of n numbers, which needs a factor n. A *sink* of mass m contracts "
    "the branch by 1 - m.",
    sources=(
        Source("velickovic2025softmax"),
        Source("chiang2022overcoming"),
        Source("hahn2020theoretical"),
        Source("xiao2024efficient"),
    ),
    assumptions=(
        "softmax attention",
        "for predictions at other lengths: the scores of further keys come from the source of the first "
        "ones, or the winner stays alone",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "THEORY",
    "DoubledWeight",
    "KeptShare",
    "PooledHead",
    "ScoreGaps",
    "SinkValue",
    "TokenChange",
    "at_length",
    "continuum_weight",
    "kept_share",
    "log_dispersion_bound",
    "log_factor",
    "one_token_change",
    "resampled_top_weight",
    "score_gap",
    "short_scores",
    "top_weight",
    "train_head",
    "winner_weight",
    "without_sink",
]
