"""Claims about the contextual mapping: which tokens in context have codes of their own, and in which
arithmetic.

Source: :cite:t:`yun2020transformers`.
"""

from fractions import Fraction

import numpy as np
import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ..grids import collisions, column_codes, contexts, excluded_share, has_distinct_tokens
from ..layers import run
from ..mapping import ContextualMapping, Positions
from ..temperature import sufficient_inverse_temperature
from .sources import CLAIM_1, EXACT, GRID, HARD, LEMMA, OWN, THEOREM_3, listed, one_of

COVERED = ((4, 1, 3), (2, 2, 3), (3, 2, 3), (2, 3, 3), (6, 1, 4), (5, 1, 3))
WITH_POSITIONS = ((2, 1, 2), (4, 1, 3), (2, 2, 3), (3, 2, 3), (4, 1, 4), (3, 2, 2), (5, 1, 3))
# all sizes with k <= 16, d <= 3, n <= 5 and at most 70,000 grids
FACTOR_FAILS = ((5, 1, 3), (2, 1, 4), (2, 1, 5), (3, 1, 5))
LARGE = ((10, 2, 5), (32, 1, 6), (4, 3, 5), (9, 2, 5))
SMALL = ((2, 1, 2), (3, 1, 3), (4, 1, 3), (2, 2, 3))
SAMPLE = 200  # grids drawn where too many exist


def _no_collisions(generator: Generator, *, all_grids: bool) -> Evidence:
    """Counts collisions over the grids with distinct tokens, or over all grids."""
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    grids = mapping.grids()
    if not all_grids:
        grids = grids[has_distinct_tokens(grids, k)]
    codes = mapping.codes(grids)
    return Evidence(
        collisions(contexts(grids, k), codes),
        0,
        "<=",
        detail={"grids": len(grids), "largest code": float(codes.max())},
    )


def _above(generator: Generator, *, shifted: bool) -> Evidence:
    """Measures by how much the smallest code of grids with distinct tokens exceeds the largest code of the
    others.
    """
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    grids, layers = mapping.grids(), mapping.layers()
    codes = column_codes(run(layers if shifted else layers[:-1], mapping.embed(grids)), k)
    distinct = has_distinct_tokens(grids, k)
    return Evidence(float(codes[distinct].min() - codes[~distinct].max()), 1, ">=")


def _excluded(generator: Generator, *, leading_order: bool) -> Evidence:
    """Measures the distance of the share of grids with a repeated token from the formula."""
    k, d, n = one_of(COVERED, generator)
    grids = ContextualMapping(d, n, Fraction(1, k)).grids()
    measured = Fraction(int((~has_distinct_tokens(grids, k)).sum()), len(grids))
    formula = Fraction(n * (n - 1), 2 * k**d) if leading_order else excluded_share(k, d, n)
    return Evidence(float(abs(measured - formula)), 0, "<=", detail={"share": float(measured)})


def _decoding(generator: Generator, *, decreasing: bool) -> Evidence:
    """Measures the share of tokens in context from whose code the sequence is not recovered."""
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k))
    grids = mapping.grids()
    grids = grids[has_distinct_tokens(grids, k)]
    *shifts, last = mapping.layers()
    codes = column_codes(run((*(shifts[::-1] if decreasing else shifts), last), mapping.embed(grids)), k)
    found = mapping.unrolled(codes.ravel()).reshape(*codes.shape, n)
    wrong = (found != np.sort(column_codes(grids, k), axis=-1)[:, None]).any(-1)
    return Evidence(float(wrong.mean()), 0, "<=", detail={"tokens": wrong.size})


def _positions(generator: Generator, positions: Positions) -> Evidence:
    """Counts collisions over all grids, where tokens of different grids or positions must have different
    codes.
    """
    k, d, n = one_of(WITH_POSITIONS, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), positions)
    codes = mapping.codes(mapping.grids())
    number = np.arange(codes.size).reshape(codes.shape)
    return Evidence(
        collisions(number, codes), 0, "<=", detail={"tokens": codes.size, "largest code": float(codes.max())}
    )


def _windows(generator: Generator, positions: Positions) -> Evidence:
    """Measures the smallest distance of the codes of two successive tokens, over all grids, in units of
    delta.
    """
    k, d, n = one_of(WITH_POSITIONS, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), positions)
    codes = column_codes(mapping.embed(mapping.grids()), k)
    gap = min(int(codes[:, j + 1].min() - codes[:, j].max()) for j in range(n - 1))
    return Evidence(gap, 1, ">=", detail={"window": mapping.states})


def _factor(generator: Generator, *, of_theorem_2: bool) -> Evidence:
    """Counts collisions with positions, for the sufficient factor or for k^((n + 1) d)."""
    k, d, n = one_of(FACTOR_FAILS, generator)
    factor = k ** ((n + 1) * d) if of_theorem_2 else None
    mapping = ContextualMapping(d, n, Fraction(1, k), "integers", factor)
    codes = mapping.codes(mapping.grids())
    number = np.arange(codes.size).reshape(codes.shape)
    return Evidence(
        collisions(number, codes), 0, "<=", detail={"factor": mapping.factor, "tokens": codes.size}
    )


def _large(generator: Generator, *, floats: bool) -> Evidence:
    """Measures the share of random tokens that are not recovered, with their sequence, from a code of more
    than 53 bits.
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
    return Evidence(float(wrong.mean()), 0, "<=", detail={"bits": mapping.largest_code.bit_length()})


def _equivariance(generator: Generator, positions: Positions) -> Evidence:
    """Measures the share of tokens whose code changes when the grid is permuted and the codes are permuted
    back.
    """
    k, d, n = one_of(COVERED, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), positions)
    grids = mapping.grids()
    order = torch.rand(len(grids), n, generator=generator).argsort(1).numpy()
    # Grids whose order does not change by chance show nothing; they count as unchanged in check and control
    # alike.
    permuted = mapping.codes(np.take_along_axis(grids, order[..., None], axis=1))
    changed = permuted != np.take_along_axis(mapping.codes(grids), order, axis=1)
    return Evidence(float(changed.mean()), 0, "<=", detail={"grids": len(grids)})


def _softmax(generator: Generator, *, share: float) -> Evidence:
    """Measures the largest error of the codes with softmax attention at a multiple of the sufficient inverse
    temperature.
    """
    k, d, n = one_of(SMALL, generator)
    mapping = ContextualMapping(d, n, Fraction(1, k), "integers")
    beta = share * sufficient_inverse_temperature(mapping)
    grids = mapping.grids()
    error = np.abs(
        mapping.codes(grids, dtype=np.float64, inverse_temperature=beta) - mapping.codes(grids).astype(float)
    ).max()
    return Evidence(float(error), 0.25, "<=", detail={"inverse temperature": beta})


CLAIMS = (
    Claim(
        id="universal/no-collisions",
        statement=r"Without positions, any two tokens have different codes $q_j = \tilde l_j + S^{n+1} "
        r"\tilde l_n$ unless they are equal and their grids are permutations of one another, for all grids "
        "whose tokens are distinct.",
        measures="number of contexts minus number of codes, over all grids with distinct tokens",
        source=LEMMA,
        assumptions=(GRID, "the tokens of a grid are distinct", EXACT, HARD, listed(COVERED)),
        check=lambda generator: _no_collisions(generator, all_grids=False),
        control=lambda generator: _no_collisions(generator, all_grids=True),
        control_description="admits grids with repeated tokens, such as (0, 0, 1) and (0, 1, 1)",
        corrects="The survey of Wong et al. (2023) states the lemma for a subset of grids that contains "
        "almost all, and does not name it. The subset is that of the grids with distinct tokens.",
    ),
    Claim(
        id="universal/covered-above",
        statement="Without positions every code $q_j$ of a grid with distinct tokens is larger than all "
        "codes of grids that repeat a token, so a threshold separates the covered grids from the others.",
        measures="smallest code of grids with distinct tokens minus the largest code of the others",
        source=LEMMA,
        assumptions=(GRID, EXACT, HARD, listed(COVERED)),
        check=lambda generator: _above(generator, shifted=True),
        control=lambda generator: _above(generator, shifted=False),
        control_description="leaves out the global shift",
    ),
    Claim(
        id="universal/excluded-share",
        statement=r"The share of grids that the lemma leaves out is exactly $1 - \frac{(k^d)!}{(k^d - n)!\, "
        r"k^{dn}}$, of order $\binom n2 \delta^d$.",
        measures="distance of the counted share of grids with a repeated token from the formula",
        source=OWN,
        assumptions=(GRID, listed(COVERED)),
        check=lambda generator: _excluded(generator, leading_order=False),
        control=lambda generator: _excluded(generator, leading_order=True),
        control_description=r"uses the leading order $\binom n2 \delta^d$, which overcounts on coarse grids",
    ),
    Claim(
        id="universal/decoding",
        statement=r"The code of one token determines the whole sequence: $\tilde l_n = \lfloor q / F "
        r"\rfloor$, $l_j = \tilde l_j \bmod S$, $\tilde l_{j-1} = l_j + (\tilde l_j - l_j) / S$.",
        measures="share of tokens from whose code the sequence is not recovered",
        source=OWN,
        assumptions=(GRID, "the tokens of a grid are distinct", EXACT, HARD, listed(COVERED)),
        check=lambda generator: _decoding(generator, decreasing=False),
        control=lambda generator: _decoding(generator, decreasing=True),
        control_description="applies the selective shifts in decreasing order of t",
    ),
    Claim(
        id="universal/windows",
        statement=r"With positions $E_j = (j-1)(1, \dots, 1)$ the codes $u^\top(x_j + E_j)$ of the j-th "
        "tokens lie in windows that do not overlap.",
        measures="smallest difference between the codes of successive tokens, over all grids, in units of "
        "delta",
        source=THEOREM_3,
        assumptions=(GRID, listed(WITH_POSITIONS)),
        check=lambda generator: _windows(generator, "integers"),
        control=lambda generator: _windows(generator, "steps"),
        control_description=r"adds $(j-1)\,\delta$ in place of $j - 1$",
    ),
    Claim(
        id="universal/positions",
        statement=r"With positions $E_j = (j-1)(1, \dots, 1)$ and $F = S^n (1 + \max l)$ all tokens of all "
        "grids have different codes, also where a grid repeats a token.",
        measures="number of tokens minus number of codes, over all grids",
        source=THEOREM_3,
        assumptions=(GRID, EXACT, HARD, listed(WITH_POSITIONS)),
        check=lambda generator: _positions(generator, "integers"),
        control=lambda generator: _positions(generator, "steps"),
        control_description=r"adds $(j-1)\,\delta$ in place of $j - 1$, so that windows overlap",
    ),
    Claim(
        id="universal/global-factor",
        statement=r"With positions the global shift needs a larger factor than without: $F = S^n (1 + \max "
        "l)$ suffices, and $S^{n+1} = k^{(n+1)d}$ does not for some sizes.",
        measures="number of tokens minus number of codes, over all grids",
        source=OWN,
        assumptions=(GRID, EXACT, HARD, listed(FACTOR_FAILS)),
        check=lambda generator: _factor(generator, of_theorem_2=False),
        control=lambda generator: _factor(generator, of_theorem_2=True),
        control_description=r"uses $k^{(n+1)d}$, the factor of Theorem 2",
        corrects="$k^{(n+1)d}$ is the factor without positions. Used with positions it gives one code to "
        "the third token of (0, 2, 2) and the first of (2, 4, 4) for (k, d, n) = (5, 1, 3). We could not "
        "read which factor the paper has for Theorem 3.",
    ),
    Claim(
        id="universal/equivariance",
        statement="Without positions the mapping is permutation-equivariant, $q(PX) = P q(X)$ for every "
        "permutation matrix P; with positions it is not.",
        measures="share of tokens whose code changes under a random permutation of their grid",
        source=CLAIM_1,
        assumptions=(GRID, EXACT, HARD, "one random permutation per grid", listed(COVERED)),
        check=lambda generator: _equivariance(generator, "none"),
        control=lambda generator: _equivariance(generator, "integers"),
        control_description=r"adds the positions $E_j = (j-1)(1, \dots, 1)$",
    ),
    Claim(
        id="universal/large-codes",
        statement="Codes grow like $k^{(2n+2)d}$; beyond $2^{53}$ exact integers still determine the token "
        "and its sequence, and float64 does not.",
        measures="share of random tokens whose code does not give back the token and its sequence",
        source=OWN,
        assumptions=(GRID, "random grids with distinct tokens", HARD, listed(LARGE)),
        check=lambda generator: _large(generator, floats=False),
        control=lambda generator: _large(generator, floats=True),
        control_description="runs the layers in float64",
    ),
    Claim(
        id="universal/softmax",
        statement=r"Softmax attention at inverse temperature $\beta^* = \frac{2}{\delta^2} \ln(8 T S (n-1) "
        "R (1 + 2S)^n (1 + F))$ keeps every code within 1/4 of its integer, where the value layers are "
        "exact.",
        measures="largest error of the codes over all grids, in units of delta",
        source=OWN,
        assumptions=(GRID, "with positions", "float64", listed(SMALL)),
        check=lambda generator: _softmax(generator, share=1.0),
        control=lambda generator: _softmax(generator, share=0.1),
        control_description=r"uses $\beta^* / 10$",
    ),
)
