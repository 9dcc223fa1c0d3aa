"""Mutants of the theory of collapse."""

from . import Mutant

COLLAPSE = "theories.collapse"
RESIDUALS, INITIAL, PHASES, HEADS = (
    f"{COLLAPSE}.{name}" for name in ("residuals", "initialisation", "phases", "heads")
)
MUTANTS = (
    # Attention without skip connections.
    Mutant(
        f"{RESIDUALS}.centred",
        "tokens.mean(-2",
        "0.5 * tokens.mean(-2",
        "wrong factor",
        "half of the mean token subtracted",
    ),
    Mutant(
        f"{RESIDUALS}.composite_norm",
        ".sqrt()",
        "",
        "wrong factor",
        "the product of the two norms without its root",
    ),
    Mutant(
        f"{RESIDUALS}.log_bound",
        "math.log(4 * H",
        "math.log(0.4 * H",
        "wrong factor",
        "a constant below the slack of 8",
    ),
    Mutant(
        f"{RESIDUALS}.log_bound",
        "math.log(4 * H",
        "math.log(8 * H",
        "wrong factor",
        "a constant twice as large",
    ),
    Mutant(
        f"{RESIDUALS}.log_bound",
        "3**L * math.log",
        "3**L / 2 * math.log",
        "wrong factor",
        "half of the exponent of the residual",
    ),
    Mutant(
        f"{RESIDUALS}.log_bound",
        "(3**L - 1) / 2",
        "3**L / 2",
        "wrong factor",
        "another exponent of the constant",
    ),
    Mutant(f"{RESIDUALS}.cubic_law", "@ W @", "@ W.mT @", "swapped function", "W transposed"),
    Mutant(
        f"{RESIDUALS}.mean_weights",
        "Combined(W.mT)",
        "Combined(W)",
        "swapped function",
        "the mean token as a key",
    ),
    Mutant(
        f"{RESIDUALS}.weighted_covariance",
        "a.unsqueeze(-2) @ tokens",
        "tokens.mean(-2, keepdim=True)",
        "missing term",
        "a covariance around the plain mean",
        equivalent="the two means differ by the order of the squared differences, which changes the "
        "covariance at its fourth order",
    ),
    Mutant(
        f"{RESIDUALS}.score_gradient",
        "- (A * P).sum(-1, keepdim=True)",
        "",
        "missing projection",
        "rows that do not sum to 0",
    ),
    Mutant(
        f"{RESIDUALS}.value_gradient",
        "weights(tokens, W) @ tokens",
        "residual(tokens)",
        "missing term",
        "without the mean token",
    ),
    # Random weights.
    Mutant(
        f"{INITIAL}.squared_contraction",
        "math.exp(rho * v) * math.expm1((1 - rho) * v)",
        "math.expm1(v)",
        "missing term",
        "each query draws its tokens alone",
    ),
    Mutant(
        f"{INITIAL}.squared_contraction",
        "(1 - rho) * v / d",
        "v / d",
        "dropped factor",
        "without the share of the differences",
    ),
    Mutant(
        f"{INITIAL}.cosine_after",
        "rho + (1 - rho)",
        "rho + 3 * (1 - rho)",
        "wrong factor",
        "too large a norm of the averages",
    ),
    Mutant(
        f"{INITIAL}.mean_cosine",
        "- squares",
        "",
        "missing term",
        "the tokens with themselves counted as pairs",
    ),
    Mutant(
        f"{INITIAL}.dimension",
        "trace.square()",
        "trace",
        "wrong factor",
        "the trace without its square",
    ),
    Mutant(
        f"{INITIAL}.contraction_of_tokens",
        "/ D - 1 / n",
        "/ D",
        "missing term",
        "the sample's own 1/n counted twice",
    ),
    Mutant(
        f"{INITIAL}.equiangular_cosines",
        "(1 - rho) * A @ A.mT",
        "A @ A.mT",
        "dropped factor",
        "without 1 - rho",
    ),
    Mutant(
        f"{INITIAL}.depth_cosine",
        "math.log1p(alpha**2)",
        "math.log1p(alpha)",
        "wrong factor",
        "alpha for its square",
    ),
    Mutant(f"{INITIAL}.depth_cosine", "(n + growth)", "(1 + growth)", "wrong normaliser", "one token for n"),
    # Phases and heads.
    Mutant(f"{PHASES}.participation", "square()", "abs()", "wrong factor", "a sum of weights, which is 1"),
    Mutant(
        f"{PHASES}.limit", "math.exp(b * b", "math.exp(0.5 * b * b", "wrong factor", "half of the variance"
    ),
    Mutant(
        "metrics.attention.row_deviation",
        ".square().mean(-1).sqrt()",
        ".square().mean(-1)",
        "wrong factor",
        "the variance as deviation",
    ),
    Mutant(
        f"{PHASES}.Curves.expected",
        "self.mean[right - 1]",
        "self.mean[right]",
        "swapped function",
        "no interpolation",
    ),
    Mutant(
        f"{HEADS}.permuted_contraction",
        "- 1 / weights.shape[-1]",
        "",
        "missing term",
        "without the level of uniform weights",
    ),
    Mutant(
        f"{HEADS}.permuted_keys",
        "*weights.shape[-2:])",
        "1, weights.shape[-1])",
        "swapped function",
        "one order for all rows",
    ),
    Mutant(
        f"{HEADS}.residual_within",
        "return centred(rows)",
        "return rows",
        "missing projection",
        "means of the averages not subtracted",
    ),
)
