"""Turing completeness: a transformer with hard attention whose fixed weights run a given Turing machine on
any word.

:mod:`.machine` defines machines, their normal form and their files, and :mod:`.machines` is a library of
them. :mod:`.construction` writes the weights; :mod:`.exact` and :mod:`.floating` run them. :mod:`.invariance`
treats transformers without positions.
"""

from ...core.sources import Source
from ...core.theory import Theory
from . import invariance, machines
from .claims import CLAIMS
from .construction import PerezTransformer, compile_machine
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, Margins
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .machine import Trace, TuringMachine
from .matrices import Matrix

THEORY = Theory(
    name="turing",
    title="Turing completeness of hard attention",
    colour="#661100",
    question="Can a transformer with fixed weights run any program?",
    statement=r"For every Turing machine with states Q and alphabet $\Sigma$ there is a transformer with "
    r"tokens of size $d = 2|Q| + 4|\Sigma| + 11$, one encoder layer and three decoder layers that generates "
    "the run of the machine on any word, one step per token. It needs exact rational numbers, hard-max "
    r"attention with the score $-|\langle q, k \rangle|$, and positions $(1, p, 1/p, 1/p^2)$. Without "
    "positions the output depends on the proportions of the symbols only.",
    sources=(Source("perez2021attention"),),
    assumptions=(
        "exact arithmetic on rational numbers",
        r"hard-max attention with the score $-|\langle q, k \rangle|$, which averages over ties",
        "positions p, 1/p and 1/p^2 for every p",
        "a machine in normal form, and as many generated tokens as steps",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "THEORY",
    "Margins",
    "Matrix",
    "PerezTransformer",
    "Trace",
    "TuringMachine",
    "compile_machine",
    "invariance",
    "machines",
]
