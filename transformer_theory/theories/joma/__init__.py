"""JoMA: attention and MLP learn jointly, and attention follows from the MLP's lower layer.

:mod:`.forms` ways to attend, :mod:`.problem` the block and its data, :mod:`.dynamics` their training, :mod:`.invariants` what it leaves
alone, :mod:`.orbit` the linear MLP in closed form, :mod:`.nonlinear` and :mod:`.mixture` the nonlinear one, :mod:`.lower_layer` several
units, :mod:`.tree` and :mod:`.relatives` a binary tree of latents, :mod:`.hierarchy`, :mod:`.stack`, :mod:`.joint` and :mod:`.recovery` a
network that learns sequences made from latents, :mod:`.claims` checkable statements, :mod:`.experiments` runs, :mod:`.subject`,
:mod:`.trainings`, :mod:`.analysis` and :mod:`.reducers` what it says about data and about trained networks.
"""

from ...core.sources import Source
from ...core.theory import Theory
from . import dynamics, forms, invariants, lower_layer, mixture, nonlinear, orbit, recovery
from .analysis import Analysis, analyse
from .analysis_rows import ANSWER
from .claims import CLAIMS
from .dynamics import Model, Path, train
from .experiments import EXPERIMENTS, HierarchyLearning, Invariant, LinearOrbit, LowerLayer, Relatives, TwoPhases
from .figures import draw
from .forms import Exponential, Linear, Softmax
from .hierarchy import Hierarchy, random_hierarchy
from .joint import Learning, learn
from .measure import predict_and_measure
from .problem import Block, Contexts, gaussian_block, gaussian_contexts, random_contexts, sampled_contexts, zero_block
from .reducers import LOWER_RANK, JointDynamics, reducers
from .relatives import MaskedLeaf, masked_leaf
from .stack import Stack
from .tree import Tree, pair_table, sample_leaves, uniform_tree

THEORY = Theory(
    name="joma",
    title="Joint dynamics of MLP and attention",
    question="Does attention follow from the MLP's weights, sparse first and dense later?",
    statement=r"When attention and the MLP above it are trained together, the logits z of a query follow from the lower layer's weights v: "
    r"$z = \frac{1}{2} \sum_k v_k^2$ up to a constant for exponential attention, nearly $\frac{1}{2} \sum_k (v_k^2 - \|v_k\|^2 \bar b)$ "
    r"for softmax. So attention can be integrated out. With a linear MLP it ends on one token, after finite time; with a nonlinear one, "
    r"$\dot v = (\mu - v) \circ e^{v^2/2}$, it first becomes sparse, on the salient tokens, and then dense again.",
    sources=(Source("tian2024joma"),),
    assumptions=(
        "one query's samples alone train attention and MLP, embeddings are orthonormal and fixed",
        "gradient flow with a known ratio of learning rates, no momentum, no weight decay",
        "softmax: the mean attention stays, and the second moment of the gradient factorises",
        "linear MLP: the backpropagated gradient is constant; nonlinear MLP: near a critical point",
    ),
    claims=CLAIMS,
    experiments=EXPERIMENTS,
    needs=("ids", "next_id"),
    predict_and_measure=predict_and_measure,
    reducers=reducers,
    draw=draw,
    order_parameter=LOWER_RANK,
    answer=ANSWER,
    order_relation="<=",  # a salient component is learnt first, so the rank falls; it comes back, but not above a random matrix's
)

__all__ = [
    "THEORY",
    "Analysis",
    "Block",
    "Contexts",
    "Exponential",
    "Hierarchy",
    "HierarchyLearning",
    "Invariant",
    "JointDynamics",
    "Learning",
    "Linear",
    "LinearOrbit",
    "LowerLayer",
    "MaskedLeaf",
    "Model",
    "Path",
    "Relatives",
    "Softmax",
    "Stack",
    "Tree",
    "TwoPhases",
    "analyse",
    "draw",
    "dynamics",
    "forms",
    "gaussian_block",
    "gaussian_contexts",
    "invariants",
    "learn",
    "lower_layer",
    "masked_leaf",
    "mixture",
    "nonlinear",
    "orbit",
    "pair_table",
    "predict_and_measure",
    "random_contexts",
    "random_hierarchy",
    "recovery",
    "reducers",
    "sample_leaves",
    "sampled_contexts",
    "train",
    "uniform_tree",
    "zero_block",
]
