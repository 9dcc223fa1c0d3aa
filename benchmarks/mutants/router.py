"""Mutants of the theory of routing."""

from . import Mutant

ROUTER = "theories.router"
MUTANTS = (
    # The random choice and its gradient.
    Mutant(
        f"{ROUTER}.choice.gumbel_noise",
        "\n        .clamp_min(torch.finfo(dtype).tiny)\n        .log()",
        "",
        "missing term",
        "exponential noise: the outer logarithm is missing",
    ),
    Mutant(
        f"{ROUTER}.choice.gumbel_noise",
        "-torch.empty",
        "torch.empty",
        "flipped sign",
        "noise with the other sign",
    ),
    Mutant(
        f"{ROUTER}.choice.gumbel_softmax",
        "torch.softmax(noisy / temperature, -1)",
        "torch.softmax(noisy, -1)",
        "dropped factor",
        "a relaxation without temperature",
    ),
    Mutant(
        f"{ROUTER}.choice.gumbel_softmax",
        "scores + noise",
        "scores",
        "missing term",
        "a choice without noise",
    ),
    Mutant(
        f"{ROUTER}.choice.sample_choice",
        ".argmax(-1)",
        ".argmin(-1)",
        "swapped function",
        "the smallest noisy score",
    ),
    Mutant(
        f"{ROUTER}.choice.entropy_gradient",
        "(log_p + ",
        "(log_p - ",
        "flipped sign",
        "an entropy gradient with -H",
    ),
    Mutant(
        f"{ROUTER}.choice.entropy_gradient",
        "-p * (",
        "p * (",
        "flipped sign",
        "the gradient of the negative entropy",
    ),
    Mutant(f"{ROUTER}.choice.exact_gradient", "0.25 /", "0.5 /", "wrong factor", "twice the exact gradient"),
    Mutant(
        f"{ROUTER}.choice.exact_gradient",
        "700.0) / 2)",
        "700.0))",
        "wrong factor",
        "an exact gradient of twice the difference",
    ),
    Mutant(
        f"{ROUTER}.choice.relaxed_gradient_mean",
        "(d - 2 +",
        "(d + 2 +",
        "flipped sign",
        "a density with d + 2",
    ),
    Mutant(
        f"{ROUTER}.choice.relaxed_gradient_second_moment",
        "(6 * temperature)",
        "(4 * temperature)",
        "wrong factor",
        "1/4 for 1/6",
    ),
    Mutant(
        f"{ROUTER}.choice.score_function_gradients",
        "(chosen - 1 /",
        "(chosen + 1 /",
        "flipped sign",
        "REINFORCE with + p",
    ),
    # The task and its closed forms.
    Mutant(
        f"{ROUTER}.needle.uniform_accuracies",
        "0.5 / tokens",
        "1 / tokens",
        "wrong factor",
        "a random token that tells twice as much",
    ),
    Mutant(
        f"{ROUTER}.needle.uniform_accuracies",
        "tokens - 1, tokens // 2",
        "tokens, tokens // 2",
        "wrong factor",
        "T for T - 1",
    ),
    Mutant(
        f"{ROUTER}.needle.best_accuracy", ".amax(1)", ".mean(1)", "swapped function", "a head that guesses"
    ),
    Mutant(
        f"{ROUTER}.needle.shortcut",
        "data.labels == 1",
        "data.labels >= 0",
        "dropped factor",
        "a router that always takes the needle",
    ),
    Mutant(
        f"{ROUTER}.needle.label_blind",
        "rule[data.needle]",
        "rule[data.labels]",
        "swapped function",
        "a choice by the label",
    ),
    # Information and bound.
    Mutant(
        f"{ROUTER}.information.label_blind_bound",
        "(1 - share) / 2",
        "(1 - share) / 4",
        "wrong factor",
        "half of the guesses",
    ),
    Mutant(f"{ROUTER}.information.information_bias", "/ (2 * n)", "/ n", "wrong factor", "twice the bias"),
    Mutant(
        f"{ROUTER}.information._plug_in", "+ parts[1] - parts[2]", "- parts[1]", "missing term", "H(C) - H(Y)"
    ),
    Mutant(
        f"{ROUTER}.information.choice_information",
        "int(inside.sum())\n            / n\n            * float",
        "float",
        "dropped factor",
        "a sum over conditions",
    ),
)
