"""Mutants of the theory of tokens as particles."""

from . import Mutant

P = "theories.particles"
MUTANTS = (
    # The flow.
    Mutant(
        f"{P}.dynamics._tangent",
        "Y - (X * Y)",
        "Y + (X * Y)",
        "flipped sign",
        "a projection that doubles the radial part",
    ),
    Mutant(
        f"{P}.dynamics.softmax_field",
        "return _tangent(X, ",
        "return (",
        "missing projection",
        "SA without its projection",
    ),
    Mutant(
        f"{P}.dynamics._attention",
        "beta * (X @ keys.mT)",
        "2 * beta * (X @ keys.mT)",
        "wrong factor",
        "twice the inverse temperature",
    ),
    Mutant(
        f"{P}.dynamics._attention",
        ".triu(1)",
        ".tril(-1)",
        "swapped function",
        "a mask that hides earlier tokens",
    ),
    Mutant(f"{P}.dynamics.unnormalised_field", " / X.shape[-2]", "", "wrong normaliser", "USA without 1/n"),
    Mutant(
        f"{P}.dynamics.pre_norm_field",
        "beta=beta) @ X",
        "beta=beta) @ X - X",
        "missing term",
        "a stream whose norm does not grow",
    ),
    # One common cosine.
    Mutant(
        f"{P}.equiangular.softmax_rate",
        "return 2 * (1 - g)",
        "return (1 - g)",
        "dropped factor",
        "half the speed of SA",
    ),
    Mutant(
        f"{P}.equiangular.softmax_rate",
        "math.exp(beta * (1 - g)) + n - 1",
        "math.exp(beta * (1 - g)) + n",
        "wrong normaliser",
        "one weight too many",
    ),
    Mutant(
        f"{P}.equiangular.unnormalised_rate",
        "math.exp(beta * g)",
        "math.exp(beta * (g - 1))",
        "wrong factor",
        "USA slower by e^beta",
    ),
    Mutant(
        f"{P}.equiangular.consensus_estimate",
        "t - n * math.exp(beta) / 2",
        "t",
        "missing term",
        "the estimate counted from time 0",
    ),
    Mutant(
        f"{P}.equiangular.separation_time",
        "math.exp(beta * (1 - cosine)) /",
        "math.exp(beta * (1 - cosine) / 2) /",
        "wrong factor",
        "half the exponent",
    ),
    Mutant(
        f"{P}.equiangular.layer_cosine",
        "(n - 2) * b**2",
        "(n - 1) * b**2",
        "wrong factor",
        "one common token too many",
    ),
    Mutant(
        f"{P}.equiangular.layer_cosine_limit",
        "(1 + 3 * cosine)",
        "(1 + 4 * cosine)",
        "wrong factor",
        "the wrong critical cosine",
    ),
    # Energy and clusters.
    Mutant(
        f"{P}.clusters.energy", "X @ X.mT - 1", "X @ X.mT", "missing term", "an energy that may exceed one"
    ),
    Mutant(
        f"{P}.clusters.half_space_probability",
        "2 ** (n - 1)",
        "2**n",
        "dropped factor",
        "half of Wendel's probability",
    ),
    Mutant(
        f"{P}.clusters.half_space_probability",
        "range(min(d, n))",
        "range(min(d + 1, n))",
        "wrong factor",
        "one dimension too many",
    ),
    # Within less between.
    Mutant(
        f"{P}.within_between.unchecked_sums",
        "u.sum(0) / counts[:, None]",
        "(u.sum((0, 1)) / counts.sum()).expand(T, d)",
        "missing term",
        "one mean for all positions",
    ),
    Mutant(
        f"{P}.within_between.unchecked_sums",
        "T * (T - 1.0) * (n - 1)",
        "T * T * (n - 1.0)",
        "wrong factor",
        "pairs of a position with itself, complete sets",
    ),
    Mutant(
        f"{P}.within_between._pair",
        " + C / (counts * counts[:, None])",
        "",
        "missing term",
        "an expectation without its last term",
    ),
    Mutant(
        f"{P}.within_between._pair",
        "sums.square().sum() - squares",
        "sums.square().sum()",
        "missing term",
        "pairs of a token with itself",
    ),
    Mutant(
        f"{P}.within_between._pair",
        " - weights.diagonal().sum()",
        "",
        "missing term",
        "pairs of a position with itself in the expectation",
    ),
    # Displacements.
    Mutant(
        f"{P}.in_networks.ValueAlignment._sums",
        "length - radial.square() / size",
        "length",
        "missing projection",
        "displacements with their radial part",
    ),
    Mutant(
        f"{P}.in_networks.ValueAlignment._sums",
        "step / toward, 0.0",
        "step, 0.0",
        "wrong normaliser",
        "a predicted step of another length",
    ),
)
