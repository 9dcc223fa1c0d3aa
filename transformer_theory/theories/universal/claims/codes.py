"""Claims about the contextual mapping: which tokens in context have codes of their own, and in which
arithmetic.

Source: :cite:t:`yun2020transformers`.
"""

from fractions import Fraction

import numpy as np
import torch
from torch import Generator

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ..grids import collisions, column_codes, contexts, excluded_share, has_distinct_tokens
from ..layers import run
from ..mapping import ContextualMapping, Positions
from ..temperature import sufficient_inverse_temperature
from .sources import CLAIM_1, EXACT, GRID, HARD, OWN, listed, one_of

COVERED = ((4, 1, 3), (2, 2, 3), (3, 2, 3), (2, 3, 3), (6, 1, 4), (5, 1, 3))
WITH_POSITIONS = ((2, 1, 2), (4, 1, 3), (2, 2, 3), (3, 2, 3), (4, 1, 4), (3, 2, 2), (5, 1, 3))
# all sizes with k <= 16, d <= 3, n <= 5 and at most 70,000 grids
FACTOR_FAILS = ((5, 1, 3), (2, 1, 4), (2, 1, 5), (3, 1, 5))
LARGE = ((10, 2, 5), (32, 1, 6), (4, 3, 5), (9, 2, 5))
SMALL = ((2, 1, 2), (3, 1, 3), (4, 1, 3), (2, 2, 3))
SAMPLE = 200  # grids drawn where too many exist


@claim(
    "universal/no-collisions",
    measures="number of contexts minus number of codes, over all grids with distinct tokens",
    at_most=0,
    source=Source("yun2020transformers", "Lemma 6, property 2; Lemma 10", "second-hand"),
    assumptions=(GRID, "the tokens of a grid are distinct", EXACT, HARD, listed(COVERED)),
    control=but("admits grids with repeated tokens, such as (0, 0, 1) and (0, 1, 1)", all_grids=True),
    corrects=(
        "It states the lemma for a subset of grids that contains almost all, and does not name it. The "
        "subset is that of the grids with distinct tokens."
    ),
    corrected=Source("wong2023understanding", "Lemma C.10", "confirmed"),
)
def no_collisions(generator: Generator, *, all_grids: bool = False) -> Measured:
    r"""Without positions, any two tokens have different codes $q_j = \tilde l_j + S^{n+1} \tilde l_n$ unless
    they are equal and their grids are permutations of one another, for all grids whose tokens are distinct.
    """
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    grids = mapping.grids()
    if not all_grids:
        grids = grids[has_distinct_tokens(grids, k)]
    codes = mapping.codes(grids)
    return Measured(
        collisions(contexts(grids, k), codes), {"grids": len(grids), "largest code": float(codes.max())}
    )


@claim(
    "universal/covered-above",
    measures="smallest code of grids with distinct tokens minus the largest code of the others",
    at_least=1,
    source=Source("yun2020transformers", "Lemma 6, properties 3 and 4", "second-hand"),
    assumptions=(GRID, EXACT, HARD, listed(COVERED)),
    control=but("leaves out the global shift", shifted=False),
)
def covered_above(generator: Generator, *, shifted: bool = True) -> float:
    """Without positions every code $q_j$ of a grid with distinct tokens is larger than all codes of grids
    that repeat a token, so a threshold separates the covered grids from the others. (The paper has an
    interval that holds the codes of the covered grids: its inputs may lie outside the cube. For grids in the
    cube a threshold is enough.)
    """
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    grids, layers = mapping.grids(), mapping.layers()
    codes = column_codes(run(layers if shifted else layers[:-1], mapping.embed(grids)), k)
    distinct = has_distinct_tokens(grids, k)
    return float(codes[distinct].min() - codes[~distinct].max())


@claim(
    "universal/excluded-share",
    measures="distance of the counted share of grids with a repeated token from the formula",
    at_most=0,
    source=OWN,
    assumptions=(GRID, listed(COVERED)),
    control=but(
        r"uses the leading order $\binom n2 \delta^d$, which overcounts on coarse grids", leading_order=True
    ),
)
def excluded(generator: Generator, *, leading_order: bool = False) -> Measured:
    r"""The share of grids that the lemma leaves out is exactly $1 - \frac{(k^d)!}{(k^d - n)!\, k^{dn}}$, of
    order $\binom n2 \delta^d$.
    """
    k, d, n = one_of(COVERED, generator)
    grids = ContextualMapping(d, n, Fraction(1, k)).grids()
    measured = Fraction(int((~has_distinct_tokens(grids, k)).sum()), len(grids))
    formula = Fraction(n * (n - 1), 2 * k**d) if leading_order else excluded_share(k, d, n)
    return Measured(float(abs(measured - formula)), {"share": float(measured)})


@claim(
    "universal/decoding",
    measures="share of tokens from whose code the sequence is not recovered",
    at_most=0,
    source=OWN,
    assumptions=(GRID, "the tokens of a grid are distinct", EXACT, HARD, listed(COVERED)),
    control=but("applies the selective shifts in decreasing order of t", decreasing=True),
)
def decoding(generator: Generator, *, decreasing: bool = False) -> Measured:
    r"""The code of one token determines the whole sequence: $\tilde l_n = \lfloor q / F \rfloor$, $l_j =
    \tilde l_j \bmod S$, $\tilde l_{j-1} = l_j + (\tilde l_j - l_j) / S$.
    """
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    grids = mapping.grids()
    grids = grids[has_distinct_tokens(grids, k)]
    *shifts, last = mapping.layers()
    codes = column_codes(run((*(shifts[::-1] if decreasing else shifts), last), mapping.embed(grids)), k)
    found = mapping.unrolled(codes.ravel()).reshape(*codes.shape, n)
    wrong = (found != np.sort(column_codes(grids, k), axis=-1)[:, None]).any(-1)
    return Measured(float(wrong.mean()), {"tokens": wrong.size})


@claim(
    "universal/windows",
    measures="smallest difference between the codes of successive tokens, over all grids, in units of delta",
    at_least=1,
    margin=BOUND,
    source=Source("yun2020transformers", "sketch after Theorem 3", "second-hand"),
    assumptions=(GRID, listed(WITH_POSITIONS)),
    control=but(r"adds $(j-1)\,\delta$ in place of $j - 1$", positions="steps"),
)
def windows(generator: Generator, *, positions: Positions = "integers") -> Measured:
    r"""With positions $E_j = (j-1)(1, \dots, 1)$ the codes $u^\top(x_j + E_j)$ of the j-th tokens lie in
    windows that do not overlap.
    """
    k, d, n = one_of(WITH_POSITIONS, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), positions)
    codes = column_codes(mapping.embed(mapping.grids()), k)
    gap = min(int(codes[:, j + 1].min() - codes[:, j].max()) for j in range(n - 1))
    return Measured(gap, {"window": mapping.states})


@claim(
    "universal/positions",
    measures="number of tokens minus number of codes, over all grids",
    at_most=0,
    source=Source("yun2020transformers", "sketch after Theorem 3", "second-hand"),
    assumptions=(GRID, EXACT, HARD, listed(WITH_POSITIONS)),
    control=but(r"adds $(j-1)\,\delta$ in place of $j - 1$, so that windows overlap", positions="steps"),
)
def positions(generator: Generator, *, positions: Positions = "integers") -> Measured:
    r"""With positions $E_j = (j-1)(1, \dots, 1)$ and $F = S^n (1 + \max l)$ all tokens of all grids have
    different codes, also where a grid repeats a token.
    """
    k, d, n = one_of(WITH_POSITIONS, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), positions)
    codes = mapping.codes(mapping.grids())
    number = np.arange(codes.size).reshape(codes.shape)
    return Measured(collisions(number, codes), {"tokens": codes.size, "largest code": float(codes.max())})


@claim(
    "universal/global-factor",
    measures="number of tokens minus number of codes, over all grids",
    at_most=0,
    source=OWN,
    assumptions=(GRID, EXACT, HARD, listed(FACTOR_FAILS)),
    control=but(r"uses $k^{(n+1)d}$, the factor of Theorem 2", of_theorem_2=True),
)
def global_factor(generator: Generator, *, of_theorem_2: bool = False) -> Measured:
    r"""With positions the global shift needs a larger factor than without: $F = S^n (1 + \max l)$ suffices,
    and $S^{n+1} = k^{(n+1)d}$ does not for some sizes. (The paper sketches this case; a later proof takes $n
    k^{(n+1)d+1}$.)
    """
    k, d, n = one_of(FACTOR_FAILS, generator)
    factor = k ** ((n + 1) * d) if of_theorem_2 else None
    mapping = ContextualMapping(d, n, Fraction(1, k), "integers", factor)
    codes = mapping.codes(mapping.grids())
    number = np.arange(codes.size).reshape(codes.shape)
    return Measured(collisions(number, codes), {"factor": mapping.factor, "tokens": codes.size})


@claim(
    "universal/equivariance",
    measures="share of tokens whose code changes under a random permutation of their grid",
    at_most=0,
    source=CLAIM_1,
    assumptions=(GRID, EXACT, HARD, "one random permutation per grid", listed(COVERED)),
    control=but(r"adds the positions $E_j = (j-1)(1, \dots, 1)$", positions="integers"),
)
def equivariance(generator: Generator, *, positions: Positions = "none") -> Measured:
    """Without positions the mapping is permutation-equivariant, $q(PX) = P q(X)$ for every permutation matrix
    P; with positions it is not.
    """
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), positions)
    grids = mapping.grids()
    order = torch.rand(len(grids), n, generator=generator).argsort(1).numpy()
    # Grids whose order does not change by chance show nothing; they count as unchanged in check and control
    # alike.
    permuted = mapping.codes(np.take_along_axis(grids, order[..., None], axis=1))
    changed = permuted != np.take_along_axis(mapping.codes(grids), order, axis=1)
    return Measured(float(changed.mean()), {"grids": len(grids)})


@claim(
    "universal/large-codes",
    measures="share of random tokens whose code does not give back the token and its sequence",
    at_most=0,
    source=OWN,
    assumptions=(GRID, "random grids with distinct tokens", HARD, listed(LARGE)),
    control=but("runs the layers in float64", floats=True),
)
def large_codes(generator: Generator, *, floats: bool = False) -> Measured:
    """Codes grow like $k^{(2n+2)d}$; beyond $2^{53}$ exact integers still determine the token and its
    sequence, and float64 does not.
    """
    k, d, n = one_of(LARGE, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    # n different tokens per grid, by code
    drawn = torch.rand(SAMPLE, k**d, generator=generator).argsort(1)[:, :n].numpy()
    grids = drawn[..., None] // k ** np.arange(d) % k
    codes = mapping.codes(grids, dtype=np.float64 if floats else None)
    exact = np.array([int(code) for code in codes.ravel().tolist()], dtype=object)
    wrong = (mapping.unrolled(exact).reshape(*codes.shape, n) != np.sort(drawn, axis=-1)[:, None]).any(-1)
    wrong |= (exact % mapping.factor % mapping.states).reshape(codes.shape) != drawn
    return Measured(float(wrong.mean()), {"bits": mapping.largest_code.bit_length()})


@claim(
    "universal/softmax",
    measures="largest error of the codes over all grids, in units of delta",
    at_most=0.25,
    source=OWN,
    assumptions=(GRID, "with positions", "float64", listed(SMALL)),
    control=but(r"uses $\beta^* / 10$", share=0.1),
)
def softmax(generator: Generator, *, share: float = 1.0) -> Measured:
    r"""Softmax attention at inverse temperature $\beta^* = \frac{2}{\delta^2} \ln(8 T S (n-1) R (1 + 2S)^n (1
    + F))$ keeps every code within 1/4 of its integer, where the value layers are exact.
    """
    k, d, n = one_of(SMALL, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), "integers")
    beta = share * sufficient_inverse_temperature(mapping)
    grids = mapping.grids()
    error = np.abs(
        mapping.codes(grids, dtype=np.float64, inverse_temperature=beta) - mapping.codes(grids).astype(float)
    ).max()
    return Measured(float(error), {"inverse temperature": beta})


CLAIMS = (
    no_collisions,
    covered_above,
    excluded,
    decoding,
    windows,
    positions,
    global_factor,
    equivariance,
    large_codes,
    softmax,
)
