"""Random-feature attention: what one layer of attention learns if its query-key matrices stay as they were
drawn.

:mod:`.features` has the model, its counterpart without attention and ridge regression, :mod:`.kernels` the
limits of infinitely many features in closed form, and :mod:`.targets` inputs and targets of the paper's kind.
:mod:`.on_data` fits the labels of any tokens. :mod:`.claims` contains the checkable statements,
:mod:`.figures` the experiments.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .claims import CLAIMS
from .features import RandomFeatureAttention, RandomFeatureMLP, Ridge, RidgePath, share_explained
from .figures import EXPERIMENTS
from .kernels import arc_cosine, attention_kernel, mlp_kernel
from .ladder import LADDER
from .on_data import ON_DATA
from .targets import TARGETS, sphere

THEORY = Theory(
    name="random_features",
    title="Random-feature attention",
    colour="#44AA99",
    question="What can one layer of attention learn if only its values are trained?",
    statement="A layer of relu attention with random, frozen query-key matrices is linear in its values, "
    r"$f = \sum_m \frac1N \sum_i \mathrm{relu}(\tilde x_0^\top W_m \tilde x_i)\, v_m^\top \tilde x_i$, so "
    r"training is convex. It learns averages $\frac1N \sum_i F(x_0, x_i)$ from a number of inputs that does "
    "not grow with the number of keys, unlike random features of the concatenated tokens. Targets through "
    r"$\langle x_0, x_i \rangle$ need far fewer inputs if the matrices favour the correlation.",
    sources=(Source("fu2023what"), Source("cho2009kernel")),
    assumptions=(
        "query-key matrices are drawn and not trained",
        "relu and an average over keys in place of softmax",
        "targets are averages of a function of query and key",
        "inputs on the sphere, for the rates",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
)

__all__ = [
    "TARGETS",
    "THEORY",
    "RandomFeatureAttention",
    "RandomFeatureMLP",
    "Ridge",
    "RidgePath",
    "arc_cosine",
    "attention_kernel",
    "mlp_kernel",
    "share_explained",
    "sphere",
]
