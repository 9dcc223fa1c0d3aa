"""Mutants of the theory of length."""

from . import Mutant

LENGTH = "theories.length"
ROW = f"{LENGTH}.dispersion"
MUTANTS = (
    # One row of attention.
    Mutant(
        f"{ROW}.log_dispersion_bound",
        "- math.log(",
        "+ math.log(",
        "flipped sign",
        "a bound that grows with n",
    ),
    Mutant(
        f"{ROW}.log_dispersion_bound",
        "scores.amax(-1) - scores.amin(-1)",
        "scores.amax(-1)",
        "missing term",
        "the maximum for the range",
    ),
    Mutant(
        f"{ROW}.log_dispersion_bound",
        "scores.amax(-1) - scores.amin(-1)",
        "scores.std(-1)",
        "swapped function",
        "deviation for range",
    ),
    Mutant(f"{ROW}.score_gap", "(count - 1)", "count", "wrong normaliser", "a mean over n in place of n - 1"),
    Mutant(
        f"{ROW}.score_gap",
        "rivals.log()",
        "rivals.log() * 0",
        "missing term",
        "a sum in place of the mean",
    ),
    Mutant(
        f"{ROW}.score_gap",
        "scatter(-1, best, -math.inf)",
        "scatter(-1, best, 0.0)",
        "missing projection",
        "the winner as a rival of score 0",
    ),
    Mutant(
        f"{ROW}.score_gap",
        "scores.argmax(-1, keepdim=True)",
        "scores.argmin(-1, keepdim=True)",
        "swapped function",
        "the loser's gap",
    ),
    Mutant(
        f"{ROW}.winner_weight",
        "gap - math.log(",
        "gap + math.log(",
        "flipped sign",
        "a weight that grows with n",
    ),
    Mutant(f"{ROW}.winner_weight", "max(n - 1, 1e-300)", "n", "wrong normaliser", "n rivals"),
    Mutant(
        f"{ROW}.kept_share",
        "first.logsumexp(-1) - others",
        "others.logsumexp(-1) - others",
        "missing projection",
        "always one half",
    ),
    Mutant(
        f"{ROW}.kept_share",
        "first.logsumexp(-1) -",
        "first.amax(-1) -",
        "swapped function",
        "the maximum for the sum",
    ),
    Mutant(
        f"{ROW}.kept_share",
        "- others.logsumexp(-1)",
        "- others.logsumexp(-1) / 2",
        "wrong factor",
        "half the log of the other sum",
    ),
    Mutant(
        f"{ROW}.one_token_change",
        "vector_norm(change, -1), 2 *",
        "vector_norm(change, -1),",
        "dropped factor",
        "the bound without the 2",
    ),
    Mutant(
        f"{ROW}.one_token_change",
        "torch.maximum(",
        "torch.minimum(",
        "swapped function",
        "the smaller of the two weights",
    ),
    Mutant(
        f"{ROW}.one_token_change",
        "vector_norm(new_value, -1)[..., None]",
        "0 * vector_norm(new_value, -1)[..., None]",
        "missing term",
        "old values only",
    ),
    Mutant(
        f"{ROW}.without_sink",
        "rest / (1 - mass)",
        "rest / (1 + mass)",
        "flipped sign",
        "a rest that does not sum to one",
    ),
    Mutant(
        f"{ROW}.without_sink", "rest[..., sink] = 0.0", "pass", "missing projection", "the sink in the rest"
    ),
    # Longer sequences.
    Mutant(
        f"{LENGTH}.longer.resampled_top_weight",
        "(count, n)",
        "(count, max(1, n // 2))",
        "wrong factor",
        "half as many keys",
    ),
    Mutant(
        f"{LENGTH}.longer.resampled_top_weight",
        "total / samples",
        "total / n",
        "wrong normaliser",
        "the sum over n",
    ),
    Mutant(
        f"{LENGTH}.longer.top_weight",
        "scores.amax(-1, keepdim=True)",
        "scores.mean(-1, keepdim=True)",
        "swapped function",
        "the mean's weight",
    ),
    Mutant(
        f"{LENGTH}.longer.log_factor",
        "math.log(n) / math.log(trained)",
        "math.log(trained) / math.log(n)",
        "flipped sign",
        "the inverse",
    ),
    Mutant(
        f"{LENGTH}.longer.log_factor",
        "/ math.log(trained)",
        "",
        "wrong normaliser",
        "log n, without the length of the training",
        equivalent="a larger factor keeps the needle as well",
    ),
    Mutant(
        f"{LENGTH}.longer.continuum_weight",
        "math.exp(-t -",
        "math.exp(-2 * t -",
        "wrong factor",
        "the winner twice",
    ),
    Mutant(
        f"{LENGTH}.longer.continuum_weight",
        "ein / ratio",
        "ein / (2 * ratio)",
        "wrong factor",
        "twice the ratio",
    ),
)
