"""JoMA: attention and MLP learn jointly, and attention follows from the MLP's lower layer.

:mod:`.forms` ways to attend, :mod:`.problem` the block and its data, :mod:`.dynamics` their training, :mod:`.invariants` what it leaves
alone, :mod:`.orbit` the linear MLP in closed form, :mod:`.nonlinear` the nonlinear one, :mod:`.claims` checkable statements,
:mod:`.experiments` runs, :mod:`.subject`, :mod:`.analysis` and :mod:`.reducers` what it says about data and about trained networks.
"""

from ...citations import Source
from ...theory import Theory
from . import dynamics, forms, invariants, nonlinear, orbit
from .analysis import ANSWER, predict_and_measure
from .claims import CLAIMS
from .dynamics import Model, Path, train
from .experiments import EXPERIMENTS, Invariant, LinearOrbit, TwoPhases
from .figures import draw
from .forms import Exponential, Linear, Softmax
from .problem import Block, Contexts, gaussian_block, gaussian_contexts, random_contexts, sampled_contexts, zero_block
from .reducers import LOWER_RANK, JointDynamics, reducers

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
)

__all__ = [
    "THEORY",
    "Block",
    "Contexts",
    "Exponential",
    "Invariant",
    "JointDynamics",
    "Linear",
    "LinearOrbit",
    "Model",
    "Path",
    "Softmax",
    "TwoPhases",
    "draw",
    "dynamics",
    "forms",
    "gaussian_block",
    "gaussian_contexts",
    "invariants",
    "nonlinear",
    "orbit",
    "predict_and_measure",
    "random_contexts",
    "reducers",
    "sampled_contexts",
    "train",
    "zero_block",
]
