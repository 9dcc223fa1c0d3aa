"""Mutants of universal approximation."""

from . import Mutant

UNIVERSAL = "theories.universal"
MUTANTS = (
    # The contextual mapping.
    Mutant(
        f"{UNIVERSAL}.layers.selective_shift",
        "Head(weight, 2 * t + 1, -output)",
        "Head(weight, 2 * t + 3, -output)",
        "wrong factor",
        "a selective shift that moves the tokens of two codes",
    ),
    Mutant(f"{UNIVERSAL}.layers.selective_shift", "-output", "output", "flipped sign", "two heads that are added, not subtracted"),
    Mutant(
        f"{UNIVERSAL}.layers._hard",
        "keys.min(-1, keepdims=True)",
        "0 * keys.min(-1, keepdims=True)",
        "dropped factor",
        "attention that returns 0, not the smallest key, below the threshold",
    ),
    Mutant(
        f"{UNIVERSAL}.layers._hard",
        "2 * keys > twice_threshold",
        "keys > twice_threshold",
        "dropped factor",
        "thresholds of twice their value",
    ),
    Mutant(
        f"{UNIVERSAL}.layers.global_shift",
        "weight, -1, output",
        "weight, 1, output",
        "flipped sign",
        "a global shift that leaves code 0 out",
        "After the selective shifts only tokens of the grid of zeros have code 0, and there the largest code is 0 as well.",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.layers",
        "first * self.states) for t in scanned",
        "first) for t in scanned",
        "dropped factor",
        "selective shifts by max - min, without S",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.layers",
        "return (*shifts, global_shift",
        "return (*shifts[:-1], global_shift",
        "missing term",
        "the last selective shift is left out",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.range",
        "self.states**self.n",
        "self.states ** (self.n - 1)",
        "dropped factor",
        "a global factor that is smaller by S",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.range",
        "(self.top + 1)",
        "self.states",
        "wrong factor",
        "the global factor of Theorem 2 with positions",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.offset",
        "self.k**i for i in range(self.d)",
        "self.k**i for i in range(self.d - 1)",
        "missing term",
        "windows that are too near for their width",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.step",
        '"integers": self.k',
        '"integers": self.k - 1',
        "wrong factor",
        "positions that are not multiples of 1",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.unrolled",
        "(shifted - start) % self.states",
        "(shifted - start) % self.k",
        "swapped function",
        "decoding modulo k in place of k^d",
    ),
    Mutant(
        f"{UNIVERSAL}.mapping.ContextualMapping.dtype",
        "np.int64 if self.largest_code.bit_length() <= INT64_BITS else object",
        "np.int64",
        "swapped function",
        "int64 for codes of any size, which overflows",
    ),
    Mutant(f"{UNIVERSAL}.grids.powers", "k**i for i in range(d)", "(k - 1) ** i for i in range(d)", "wrong factor", "u of powers of k - 1"),
    Mutant(
        f"{UNIVERSAL}.grids.excluded_share", "math.perm(k**d, n)", "math.comb(k**d, n)", "swapped function", "combinations for permutations"
    ),
    # The network.
    Mutant(
        f"{UNIVERSAL}.layers.quantiser",
        "(-1.0, 1 + slope, -slope)",
        "(-1.0, 1.0, 0.0)",
        "missing term",
        "a quantiser that keeps its largest move above its interval",
    ),
    Mutant(
        f"{UNIVERSAL}.layers.quantiser",
        "-t - np.array",
        "-t - 0.5 - np.array",
        "wrong factor",
        "cubes that are shifted by half their width",
    ),
    Mutant(
        f"{UNIVERSAL}.layers.value_step",
        "np.array([1, -1, -1, 1], dtype=object)",
        "np.array([1, -1, -1, 0], dtype=object)",
        "missing term",
        "a bump of three ReLUs",
    ),
    Mutant(
        f"{UNIVERSAL}.approximator.Approximation.layers",
        "self.values * self.k - self.tokens.astype(float)",
        "self.values * self.k",
        "missing term",
        "value layers that do not remove the code",
    ),
    Mutant(
        f"{UNIVERSAL}.approximator.Approximation.layers",
        "self.k * settings.n",
        "self.k",
        "dropped factor",
        "quantisers for the window of the first token only",
    ),
    Mutant(
        f"{UNIVERSAL}.approximator.UniversalApproximator.fit",
        "(self.mapping.grids() + 0.5) / self.mapping.k",
        "self.mapping.grids() / (self.mapping.k - 1)",
        "wrong normaliser",
        "values at the points j / (k - 1), not at the centres",
    ),
    Mutant(
        f"{UNIVERSAL}.approximator.expected_layers",
        "n * math.comb(states, n)",
        "math.comb(states, n)",
        "dropped factor",
        "one value layer per grid, not per token",
    ),
    Mutant(
        f"{UNIVERSAL}.temperature.sufficient_inverse_temperature",
        "2 * mapping.k**2",
        "mapping.k",
        "wrong factor",
        "an inverse temperature of 1/delta, not 2/delta^2",
    ),
    Mutant(
        f"{UNIVERSAL}.layers._soft",
        "twice_threshold / 2",
        "twice_threshold",
        "dropped factor",
        "softmax attention with thresholds of twice their value",
    ),
)
