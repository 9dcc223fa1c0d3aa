"""Mutants of the theory of the information bottleneck."""

from . import Mutant

BOTTLENECK = "theories.bottleneck"
MUTANTS = (
    # The curve.
    Mutant(
        f"{BOTTLENECK}.curve.log_likelihood",
        "beta * (cross",
        "(cross",
        "dropped factor",
        "an encoder that ignores beta",
    ),
    Mutant(
        f"{BOTTLENECK}.curve.log_likelihood",
        "cross = channel @ decoders",
        "cross = channel.square() @ decoders",
        "swapped function",
        "a cross-entropy with squared probabilities",
    ),
    Mutant(
        f"{BOTTLENECK}.curve.encode",
        " + mass.log()",
        "",
        "missing term",
        "an encoder without the masses of the code words",
    ),
    Mutant(
        f"{BOTTLENECK}.curve.decode",
        "encoder.T @ joint",
        "encoder.T @ joint.square()",
        "wrong normaliser",
        "decoders of another law",
    ),
    Mutant(
        f"{BOTTLENECK}.curve.point",
        "compression - beta * relevance, gap",
        "compression - relevance, gap",
        "dropped factor",
        "the Lagrangian without beta",
    ),
    Mutant(
        f"{BOTTLENECK}.curve.point",
        "information(encoder.T @ joint))",
        "information(joint))",
        "swapped function",
        "I(X;Y) in place of I(Z;Y)",
    ),
    Mutant(
        f"{BOTTLENECK}.curve.certificate",
        "joint.sum(1).log() - log_mixture",
        "-log_mixture",
        "missing term",
        "a certificate without p(x)",
    ),
    # The onset.
    Mutant(
        f"{BOTTLENECK}.first_beta.onset",
        "best, found = correlation, marginal",
        "best, found = 2 * correlation, marginal",
        "wrong factor",
        "twice the squared correlation as a lower bound",
    ),
    Mutant(
        f"{BOTTLENECK}.first_beta.ratio",
        "above / below",
        "below / above",
        "swapped function",
        "the ratio upside down",
    ),
    Mutant(
        f"{BOTTLENECK}.first_beta.onset",
        "for _ in range(steps)",
        "for _ in range(0)",
        "missing term",
        "the local value alone",
    ),
    Mutant(
        f"{BOTTLENECK}.first_beta.second_correlation",
        "[1].square()",
        "[1]",
        "dropped factor",
        "the correlation without its square",
    ),
    Mutant(
        f"{BOTTLENECK}.first_beta.rare_cluster",
        "posterior / marginal",
        "posterior",
        "wrong normaliser",
        "another posterior",
    ),
    # Informations.
    Mutant(
        f"{BOTTLENECK}.information.entropy",
        "-torch.xlogy",
        "-0.5 * torch.xlogy",
        "wrong factor",
        "half of the entropy",
    ),
    Mutant(f"{BOTTLENECK}.information.plug_in_bias", "(2 * n)", "n", "dropped factor", "twice the bias"),
    Mutant(
        f"{BOTTLENECK}.information.plug_in_bias",
        "* (y - 1)",
        "* y",
        "missing term",
        "the bias with one value too many",
    ),
    Mutant(
        f"{BOTTLENECK}.information.table",
        "first * columns + second",
        "first * rows + second",
        "wrong factor",
        "counts of pairs that overlap",
    ),
    # Gaussian variables.
    Mutant(
        f"{BOTTLENECK}.gaussian.gaussian_bottleneck",
        "(beta - 1)",
        "beta",
        "missing term",
        "a rate without the one",
    ),
    Mutant(
        f"{BOTTLENECK}.gaussian.gaussian_bottleneck",
        "beta * (1 - value) > 1",
        "beta * (1 - value) > 3",
        "wrong factor",
        "a larger critical trade-off",
    ),
    Mutant(
        f"{BOTTLENECK}.gaussian.gaussian_bottleneck",
        "(1 - value) > 1",
        "(1 - value) > 0",
        "missing term",
        "all directions are active",
    ),
    Mutant(
        f"{BOTTLENECK}.gaussian.GaussianPair.informations",
        "rate - 0.5 *",
        "rate - 1.0 *",
        "wrong factor",
        "a relevance without the half",
    ),
)
