"""JoMA: attention and MLP learn jointly, and attention follows from the MLP's lower layer.

:mod:`.block` defines the model, its data and its forms of attention. :mod:`.dynamics` trains the model, and
:mod:`.invariants` defines the conserved quantities. :mod:`.orbit` solves the linear MLP in closed form;
:mod:`.nonlinear` and :mod:`.mixture` treat the nonlinear MLP. :mod:`.tree` defines a binary tree of latents
and its task. :mod:`.hierarchy` generates sequences from latents, and :mod:`.joint` trains a network on them.
:mod:`.claims` contains the checkable statements, :mod:`.figures` the experiments. :mod:`.query_data` and
:mod:`.on_data` apply the theory to data sets, and :mod:`.in_networks` applies it to trained networks.
"""

from ...core.sources import Source
from ...core.theory import Theory
from . import dynamics, invariants, mixture, nonlinear, orbit
from .block import (
    Block,
    Contexts,
    Exponential,
    Linear,
    Softmax,
    gaussian_block,
    gaussian_contexts,
    random_contexts,
    sampled_contexts,
    zero_block,
)
from .claims import CLAIMS
from .dynamics import Model, Path, gradient_descent, gradient_flow
from .figures import EXPERIMENTS
from .hierarchy import Hierarchy, random_hierarchy
from .in_networks import IN_NETWORKS, JointDynamics
from .interventions import INTERVENTIONS
from .joint import StackRun, fit_stack
from .ladder import LADDER
from .on_data import ON_DATA, analyse
from .tree import Tree, masked_leaf, uniform_tree

THEORY = Theory(
    name="joma",
    title="Joint dynamics of MLP and attention",
    colour="#E69F00",
    question="Does attention follow from the MLP's weights, sparse first and dense later?",
    statement="When attention and the MLP above it are trained together, the logits z of a query follow "
    r"from the lower layer's weights v: $z = \frac{1}{2} \sum_k v_k^2$ up to a constant for exponential "
    r"attention, nearly $\frac{1}{2} \sum_k (v_k^2 - \|v_k\|^2 \bar b)$ for softmax. So attention can be "
    "integrated out. With a linear MLP it ends on one token, after finite time; with a nonlinear one, "
    r"$\dot v = (\mu - v) \circ e^{v^2/2}$, it first becomes sparse, on the salient tokens, and then dense "
    "again.",
    sources=(Source("tian2024joma"),),
    assumptions=(
        "only one query's samples train attention and MLP, embeddings are orthonormal and fixed",
        "gradient flow with a known ratio of learning rates, no momentum, no weight decay",
        "softmax: the mean attention does not change, and the second moment of the gradient factorises",
        "linear MLP: the backpropagated gradient is constant; nonlinear MLP: near a critical point",
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
    "Block",
    "Contexts",
    "Exponential",
    "Hierarchy",
    "JointDynamics",
    "Linear",
    "Model",
    "Path",
    "Softmax",
    "StackRun",
    "Tree",
    "analyse",
    "dynamics",
    "fit_stack",
    "gaussian_block",
    "gaussian_contexts",
    "gradient_descent",
    "gradient_flow",
    "invariants",
    "masked_leaf",
    "mixture",
    "nonlinear",
    "orbit",
    "random_contexts",
    "random_hierarchy",
    "sampled_contexts",
    "uniform_tree",
    "zero_block",
]
