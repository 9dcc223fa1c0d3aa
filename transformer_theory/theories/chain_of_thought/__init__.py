"""Chains of thought: what intermediate steps buy a transformer of fixed depth.

:mod:`.tasks` defines tasks, verification and disjoint splits; :mod:`.arithmetic` and :mod:`.dynamic` hold the
five tasks. :mod:`.written` is a decoder with written weights that produces a chain, :mod:`.learning` trains
decoders with and without one. :mod:`.claims` contains the checkable statements, :mod:`.figures` the
experiments, and :mod:`.in_networks` measures what a chain buys in any model of ids.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .arithmetic import Arithmetic, Equations
from .claims import CLAIMS
from .dynamic import LIS, EditDistance, Membership
from .figures import EXPERIMENTS
from .in_networks import IN_NETWORKS, ChainGap, chain_gain
from .interventions import INTERVENTIONS
from .ladder import LADDER
from .learning import Recipe, Trained, correct, generate, train
from .tasks import (
    ChainTask,
    Sample,
    Split,
    accepts,
    decode,
    encode,
    expected_overlap,
    majority,
    split,
    verify,
    vocabulary,
)
from .written import WrittenDecoder

THEORY = Theory(
    name="chain_of_thought",
    title="Chains of thought",
    colour="#2F4B7C",
    question="What do intermediate steps buy a transformer?",
    statement=r"A decoder of bounded depth computes functions in $\mathrm{TC}^0$. Expressions modulo p and "
    r"linear equations are hard for $\mathrm{NC}^1$, so if $\mathrm{TC}^0 \ne \mathrm{NC}^1$ no such "
    "decoder of polynomial size answers them directly. With a chain of polynomial length a decoder of "
    "constant size does: each symbol is one operation on earlier ones, or a maximum that attention finds.",
    sources=(
        Source("feng2023towards", status="second-hand"),
        Source("merrill2024expressive", status="second-hand"),
        Source("pfau2024dot", status="second-hand"),
    ),
    assumptions=(
        r"$\mathrm{TC}^0 \ne \mathrm{NC}^1$, for what cannot be done without a chain",
        "precision of a logarithmic number of bits, depth bounded, size polynomial in the length of the "
        "question",
        "the chain is generated symbol by symbol and is part of the input of the next symbol",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    in_networks=IN_NETWORKS,
    interventions=INTERVENTIONS,
)

__all__ = [
    "LIS",
    "THEORY",
    "Arithmetic",
    "ChainGap",
    "ChainTask",
    "EditDistance",
    "Equations",
    "Membership",
    "Recipe",
    "Sample",
    "Split",
    "Trained",
    "WrittenDecoder",
    "accepts",
    "chain_gain",
    "correct",
    "decode",
    "encode",
    "expected_overlap",
    "generate",
    "majority",
    "split",
    "train",
    "verify",
    "vocabulary",
]
