"""Vision transformers: which patches a model attends to, and what attention to them buys.

:mod:`.patches` has images whose patches belong together in groups, :mod:`.association` what attention
associates, :mod:`.learning` trains positional attention; :mod:`.tokens` has sequences in which a share of the
tokens carries the label; :mod:`.relevance` estimates such a share. :mod:`.on_data` does so for a data set,
:mod:`.in_networks` measures vision transformers. :mod:`.claims` contains the checkable statements,
:mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .association import (
    Association,
    chance,
    group_attention,
    group_mass,
    group_ranking,
    mean_margin,
    other_group_attention,
    patch_association,
)
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, LayerSimilarity, PatchAttention, RelevantMass, hsic
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .learning import PositionalAttentionModel, train_patches, transfer_accuracy
from .on_data import ON_DATA
from .patches import SpatialPatchData, group_accuracy, sum_accuracy
from .relevance import relevant_mass, relevant_share, word_posteriors
from .tokens import AttentionReLU, LabelRelevantTokens, attention_mass, needed_samples, train_tokens

THEORY = Theory(
    name="vision",
    title="Vision transformers: which patches a model attends to",
    colour="#CC6677",
    question="Does a vision transformer find the patches that belong together, and those that carry the "
    "label?",
    statement="*Patch association*: patches of one group show the class together, and positional attention "
    r"$S = \mathrm{softmax}(A)$ should put its weight on the own group. A written A with this property "
    "generalises. So does the same function with no weight there, because F is a sum over rows. Adam "
    r"associates if $A = P P^\top$ and a patch may attend to itself; a free A generalises without, or ranks "
    "the group first at chance weight. *Label-relevant tokens*: the fewer tokens carry the label, the more "
    "samples are needed, and training moves attention to them.",
    sources=(
        Source("jelassi2022vision"),
        Source("li2023theoretical"),
        Source("raghu2021vision"),
        Source("kornblith2019similarity"),
        Source("song2012feature"),
        Source("nguyen2021wide"),
    ),
    assumptions=(
        "the patches are divided into groups of equal size, one of which shows the class",
        "for patch association: attention depends on positions only, and all groups share one feature",
        "for label-relevant tokens: orthonormal patterns with independent noise",
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
    "Association",
    "AttentionReLU",
    "LabelRelevantTokens",
    "LayerSimilarity",
    "PatchAttention",
    "PositionalAttentionModel",
    "RelevantMass",
    "SpatialPatchData",
    "attention_mass",
    "chance",
    "group_accuracy",
    "group_attention",
    "group_mass",
    "group_ranking",
    "hsic",
    "mean_margin",
    "needed_samples",
    "other_group_attention",
    "patch_association",
    "relevant_mass",
    "relevant_share",
    "sum_accuracy",
    "train_patches",
    "train_tokens",
    "transfer_accuracy",
    "word_posteriors",
]
