"""Mutants of the theory of learning in context."""

from . import Mutant

CONTEXT = "theories.in_context"
MUTANTS = (
    # Steps of descent.
    Mutant(
        f"{CONTEXT}.descent.LinearAttentionGD.heads",
        "self.eta / N * label",
        "self.eta * label",
        "dropped factor",
        "a step without 1/N",
    ),
    Mutant(
        f"{CONTEXT}.descent.LinearAttentionGD.heads",
        "label[d, :d] = self.initial",
        "label[d, :d] = -self.initial",
        "flipped sign",
        "minus W_0",
    ),
    Mutant(
        f"{CONTEXT}.descent.LinearAttentionGD.heads",
        "inputs, -self.gamma",
        "inputs, self.gamma",
        "flipped sign",
        "GD++ upwards",
    ),
    Mutant(
        f"{CONTEXT}.descent.LinearAttentionGD.__call__",
        "-(prompts.query @ W)",
        "(prompts.query @ W)",
        "flipped sign",
        "the query's first y",
    ),
    Mutant(
        f"{CONTEXT}.descent.plus_plus_answers",
        "(1 - gamma * value).square()",
        "(1 - gamma * value)",
        "wrong factor",
        "eigenvalues shrunk once",
    ),
    # The best step.
    Mutant(
        f"{CONTEXT}.preconditioned.gamma",
        "(1 + 1 / N) * covariance",
        "covariance",
        "missing term",
        "Gamma without 1/N",
    ),
    Mutant(
        f"{CONTEXT}.preconditioned.gamma",
        "(covariance.trace() + noise) / N",
        "noise / N",
        "missing term",
        "Gamma without the trace",
    ),
    Mutant(
        f"{CONTEXT}.preconditioned.gaussian_fourth",
        "2 * covariance @",
        "covariance @",
        "wrong factor",
        "half of the first term of Q",
    ),
    Mutant(
        f"{CONTEXT}.preconditioned.second_moment",
        "+ noise / N * covariance",
        "+ noise * covariance",
        "dropped factor",
        "noise without 1/N",
    ),
    Mutant(
        f"{CONTEXT}.preconditioned.second_moment",
        "(1 - 1 / N) * covariance @",
        "covariance @",
        "missing term",
        "pairs that include equal examples",
    ),
    Mutant(
        f"{CONTEXT}.preconditioned.preconditioner",
        "second_moment(covariance, N, noise=noise, fourth=fourth), covariance",
        "second_moment(covariance, N, noise=noise), covariance",
        "missing term",
        "the best matrix without the fourth moment",
    ),
    Mutant(
        f"{CONTEXT}.preconditioned.optimal_step",
        "(covariance @ covariance).trace()",
        "covariance.trace()",
        "wrong factor",
        "tr Lambda above",
    ),
    Mutant(
        f"{CONTEXT}.references.recursive_least_squares",
        "(1 + (x * Px)",
        "((x * Px)",
        "missing term",
        "Sherman and Morrison without the 1",
    ),
    # Statistics in attention.
    Mutant(
        f"{CONTEXT}.statistics.residual_heads",
        "eta * (N + 1) / N",
        "eta",
        "dropped factor",
        "the mean over N + 1 keys",
    ),
    Mutant(
        f"{CONTEXT}.statistics.residual_heads",
        '("y", "one", -sign)',
        '("y", "one", -1.0)',
        "flipped sign",
        "one sign of y in both heads",
    ),
    Mutant(
        f"{CONTEXT}.statistics.residual_heads",
        '("t", "one", -R)',
        '("t", "one", 0.0)',
        "missing term",
        "the query counts as an example",
    ),
    Mutant(
        f"{CONTEXT}.statistics.decay_head",
        "-eta * strength",
        "eta * strength",
        "flipped sign",
        "weights that grow",
    ),
    Mutant(
        f"{CONTEXT}.statistics.link_heads",
        "torch.diff(slopes), -slopes[-1:]",
        "torch.diff(slopes), 0 * slopes[-1:]",
        "missing term",
        "a link without end",
    ),
    Mutant(
        f"{CONTEXT}.statistics.soft_threshold",
        "= -threshold",
        "= threshold",
        "flipped sign",
        "a threshold upwards",
    ),
    Mutant(
        f"{CONTEXT}.statistics.select",
        "(-losses / temperature)",
        "(-temperature * losses)",
        "wrong factor",
        "the temperature upside down",
    ),
    # The dual form.
    Mutant(
        f"{CONTEXT}.dual.dual_part",
        "return centred / count",
        "return kept / count",
        "missing projection",
        "scores that are not centred",
    ),
    Mutant(
        f"{CONTEXT}.dual.dual_part",
        "return centred / count @",
        "return centred @",
        "dropped factor",
        "a sum in place of a mean",
    ),
)
