"""Induction heads: how two layers of attention continue a sequence that has occurred before.

:mod:`.heads` writes an induction head by hand, :mod:`.circuits` takes attention-only networks apart,
:mod:`.scores` measures heads on blocks that occur twice. :mod:`.network` and :mod:`.learning` train small
networks on repeated patterns and on Markov chains (:mod:`.chains`), :mod:`.memory` treats weights and
embeddings as associative memories. :mod:`.in_networks` and :mod:`.user_models` measure any network of ids.
:mod:`.claims` contains the checkable statements, :mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .chains import sample_chains, strategies
from .circuits import AttentionOnly, Heads, copying_score, path_expansion
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .heads import InductionHead, in_context_bigram, with_bos
from .in_networks import IN_NETWORKS, CopyingScore, InductionScores, PositionalShare
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .learning import train_chains, train_induction
from .memory import MemoryNetwork, capacity, predicted_recall, train_memories
from .network import Network
from .scores import draw_blocks, score_weights, sequence_scores
from .user_models import attention_only, head_map, score_heads, with_model

THEORY = Theory(
    name="induction",
    title="Induction heads",
    colour="#B8860B",
    question="How does a transformer continue what it has seen once in its context?",
    statement="A *previous-token head* writes into each token which token stood before it; in the next "
    "layer an *induction head* attends to the tokens whose predecessor is the present token, and copies "
    "them. So two layers predict the bigram statistics of the sequence, $c_{xy}/c_x$; one layer has the "
    "frequencies of single tokens only. Such heads form suddenly when small networks are trained on data "
    "that repeat.",
    sources=(
        Source("elhage2021mathematical"),
        Source("olsson2022incontext"),
        Source("edelman2024evolution"),
        Source("bietti2023birth"),
    ),
    assumptions=(
        "causal attention in at least two layers",
        "for the identities: no norms, MLPs and biases",
        "for formation: data in which contexts repeat, at varying distances",
        "for associative memories: random embeddings, nearly orthogonal",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "THEORY",
    "AttentionOnly",
    "CopyingScore",
    "Heads",
    "InductionHead",
    "InductionScores",
    "MemoryNetwork",
    "Network",
    "PositionalShare",
    "attention_only",
    "capacity",
    "copying_score",
    "draw_blocks",
    "head_map",
    "in_context_bigram",
    "path_expansion",
    "predicted_recall",
    "sample_chains",
    "score_heads",
    "score_weights",
    "sequence_scores",
    "strategies",
    "train_chains",
    "train_induction",
    "train_memories",
    "with_bos",
    "with_model",
]
