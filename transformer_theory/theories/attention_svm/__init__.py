r"""Attention as a support vector machine: where gradient descent sends the attention weights.

    data = cross_attention(inputs=6, tokens=8, dim=10, generator=torch.Generator().manual_seed(0))
    c = constraints(data.tokens, data.query, data.optimal())   # the tokens to select: (x_a - x_t)^T W z >= 1
    frobenius_max_margin(c).W                                  # where descent on W goes, in direction
    nuclear_max_margin(c).W                                    # where descent on W = K Q^T goes
    normalised_descent(data, start(data), steps=1000).W        # where it is after 1000 steps

What the room offers, by the question it answers:

- *Which tokens are to be selected?* :mod:`.constraint_set` the one form of every problem, :mod:`.builders` a function a kind of attention:
  :func:`constraints`, :func:`self_attention`, :func:`prompt`, :func:`causal`, :func:`sequence_to_sequence`, :func:`multi_token`,
  :func:`graph_svm`.
- *Where does descent go?* :mod:`.solvers`: :func:`frobenius_max_margin` and :func:`nuclear_max_margin`, with an s for a batch;
  :func:`generalised_max_margin`, :func:`lp_max_margin`, :func:`spectral_max_margin`, :func:`rank`. :mod:`.solution` what they return,
  :mod:`.feasibility` an answer without optimisation.
- *What does it do?* :mod:`.dynamics`: :func:`normalised_descent`, :func:`plain_descent`, :func:`polyak_descent`, :func:`mirror_descent`,
  :func:`joint_descent`, :func:`regularisation_path`.
- *On which data?* :mod:`.problem` training problems and samplers, :mod:`.sequences` with many queries an input, :mod:`.next_token` of next
  tokens and their :mod:`.graph`, :mod:`.published` those of the papers.
- *Which tokens did it select?* :mod:`.selection` local optimality, :mod:`.sharing` attention on several tokens.
- *And my data, my model?* :func:`analyse` and :func:`analyse_head` (:mod:`.analysis`), :func:`alignment` of any trained head,
  :mod:`.measure` labelled data.
- *What holds, and what do the papers show?* :mod:`.claims`, :mod:`.experiments`, :mod:`.figures`.
"""

from ...core.errors import Infeasible, NotConverged
from ...core.sources import Source
from ...core.theory import Theory
from .alignment import QUANTITY, Alignment, AlignmentReducer, alignment
from .analysis import Analysis, Selection, analyse, analyse_head
from .builders import (
    causal,
    causal_mask,
    constraints,
    distinct_constraints,
    graph_svm,
    multi_token,
    prompt,
    self_attention,
    sequence_to_sequence,
)
from .claims import CLAIMS
from .constraint_set import Constraints, stack
from .dynamics import (
    EXPONENTIAL,
    LINEAR,
    LOGISTIC,
    Factors,
    HeadInstance,
    JointInstance,
    JointState,
    JointTargets,
    Loss,
    RegularisationPath,
    State,
    bregman_divergence,
    descent_direction,
    differentiable,
    factored_path,
    joint_descent,
    joint_targets,
    load,
    log_excess_loss,
    mirror_descent,
    normalised_descent,
    plain_descent,
    polyak_descent,
    random_factors,
    random_start,
    regularisation_path,
    relu_head,
    save,
    start,
    trajectory,
)
from .experiments import (
    EXPERIMENTS,
    GlobalConvergence,
    Graph,
    Joint,
    LocalConvergence,
    LongRun,
    LossComparison,
    Mirror,
    MultiInput,
    MultiToken,
    ProbabilityMap,
    Rank,
    RankMap,
    Sequences,
    SingleInput,
    Trajectories,
)
from .feasibility import Construction, construct
from .figures import draw
from .graph import PriorityGraph, priority_graph
from .measure import ANSWER, predict_and_measure
from .next_token import LOG, finite_part, next_token_instance, random_sequences
from .problem import Instance, cross_attention, equal_distractors, published_instance, random_selection, token_logits, token_scores
from .published import published_instances, published_picture
from .selection import first_step_condition, locally_optimal, neighbour_gap, neighbours
from .sequences import causal_instance, sequence_instance
from .sharing import settled, shared
from .solution import Farkas, MaxMargin, MaxMargins
from .solvers import (
    Generalised,
    frobenius_max_margin,
    frobenius_max_margins,
    generalised_max_margin,
    generalised_max_margins,
    lp_max_margin,
    nuclear_max_margin,
    nuclear_max_margins,
    official_rank,
    rank,
    spectral_max_margin,
)

THEORY = Theory(
    name="attention_svm",
    title="Attention as a support vector machine",
    question="Where does gradient descent send the attention weights?",
    statement=(
        r"One attention head scores token $x$ for query $z$ by $x^\top W z$. Trained for long enough, $W$ grows without bound, attention "
        r"concentrates on one token $a_i$ of each input, and the direction of $W$ becomes that of the hard-margin problem "
        r"$\min \|W\|_F$ subject to $(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1$ for all $i$ and $t \ne a_i$. "
        r"The selected tokens are locally optimal: each helps the prediction more than those that come closest to it. "
        r"For the factors of $W = K Q^\top$ the nuclear norm takes the place of the Frobenius norm: proven for the regularisation path "
        r"(loss minimised within a growing ball), observed for descent."
    ),
    sources=(
        Source("tarzanagh2023transformers"),
        Source("tarzanagh2023maxmargin"),
        Source("vasudeva2025implicit"),
        Source("li2024mechanics"),
    ),
    assumptions=(
        "One attention head with a fixed linear head on its output, trained alone by gradient descent with a decreasing smooth loss.",
        "The selected tokens can be separated from the others of their inputs by some $W$ (feasible).",
        "Each input has one best token. If all its other tokens score the same there is no finite stationary point; that descent reaches "
        "the best tokens is promised from $W = 0$ if the first step already points to them, and from any start for a single input.",
        "The statements are limits: nothing is said about how long descent takes.",
    ),
    claims=CLAIMS,
    experiments=EXPERIMENTS,
    needs=("labels",),
    predict_and_measure=predict_and_measure,
    reducers=lambda: (AlignmentReducer(),),
    draw=draw,
    order_parameter=QUANTITY,
    answer=ANSWER,
)

__all__ = [
    "CLAIMS",
    "EXPERIMENTS",
    "EXPONENTIAL",
    "LINEAR",
    "LOG",
    "LOGISTIC",
    "THEORY",
    "Alignment",
    "AlignmentReducer",
    "Analysis",
    "Constraints",
    "Construction",
    "Factors",
    "Farkas",
    "Generalised",
    "GlobalConvergence",
    "Graph",
    "HeadInstance",
    "Infeasible",
    "Instance",
    "Joint",
    "JointInstance",
    "JointState",
    "JointTargets",
    "LocalConvergence",
    "LongRun",
    "Loss",
    "LossComparison",
    "MaxMargin",
    "MaxMargins",
    "Mirror",
    "MultiInput",
    "MultiToken",
    "NotConverged",
    "PriorityGraph",
    "ProbabilityMap",
    "Rank",
    "RankMap",
    "RegularisationPath",
    "Selection",
    "Sequences",
    "SingleInput",
    "State",
    "Trajectories",
    "alignment",
    "analyse",
    "analyse_head",
    "bregman_divergence",
    "causal",
    "causal_instance",
    "causal_mask",
    "constraints",
    "construct",
    "cross_attention",
    "descent_direction",
    "differentiable",
    "distinct_constraints",
    "draw",
    "equal_distractors",
    "factored_path",
    "finite_part",
    "first_step_condition",
    "frobenius_max_margin",
    "frobenius_max_margins",
    "generalised_max_margin",
    "generalised_max_margins",
    "graph_svm",
    "joint_descent",
    "joint_targets",
    "load",
    "locally_optimal",
    "log_excess_loss",
    "lp_max_margin",
    "mirror_descent",
    "multi_token",
    "neighbour_gap",
    "neighbours",
    "next_token_instance",
    "normalised_descent",
    "nuclear_max_margin",
    "nuclear_max_margins",
    "official_rank",
    "plain_descent",
    "polyak_descent",
    "predict_and_measure",
    "priority_graph",
    "prompt",
    "published_instance",
    "published_instances",
    "published_picture",
    "random_factors",
    "random_selection",
    "random_sequences",
    "random_start",
    "rank",
    "regularisation_path",
    "relu_head",
    "save",
    "self_attention",
    "sequence_instance",
    "sequence_to_sequence",
    "settled",
    "shared",
    "spectral_max_margin",
    "stack",
    "start",
    "token_logits",
    "token_scores",
    "trajectory",
]
