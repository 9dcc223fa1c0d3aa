"""Mutants of the theory of induction heads."""

from . import Mutant

INDUCTION = "theories.induction"
MUTANTS = (
    # The explicit head and its circuits.
    Mutant(
        f"{INDUCTION}.heads.InductionHead.network",
        "dtype=torch.float64), 1)",
        "dtype=torch.float64), -1)",
        "flipped sign",
        "a first layer that looks at the next position, which is masked",
    ),
    Mutant(
        f"{INDUCTION}.heads.InductionHead.network",
        "OV2[0, token, output] =",
        "OV2[0, previous, output] =",
        "swapped function",
        "an induction head that copies what stands before the key",
    ),
    Mutant(
        f"{INDUCTION}.heads.InductionHead.network",
        "QK2[0, previous, token] = self.scale",
        "QK2[0, previous, token] = 0.5 * self.scale",
        "dropped factor",
        "half of the scale in the second layer",
    ),
    Mutant(
        f"{INDUCTION}.heads.InductionHead.bound",
        " + math.expm1(b * delta)",
        "",
        "missing term",
        "a bound without the unequal shares of the keys after copies",
    ),
    Mutant(
        f"{INDUCTION}.heads.in_context_bigram",
        "count.clamp(min=1)",
        "(count + 1)",
        "wrong normaliser",
        "counts smoothed by one",
    ),
    Mutant(
        f"{INDUCTION}.circuits.path_expansion",
        "maps[layer][:, head] @ term",
        "term",
        "missing term",
        "paths without their attention matrices",
    ),
    Mutant(
        f"{INDUCTION}.circuits.Heads.attention",
        "self.W_QK.mT @",
        "self.W_QK @",
        "swapped function",
        "scores with the roles of key and query exchanged",
    ),
    Mutant(
        f"{INDUCTION}.circuits.AttentionOnly.run",
        "(A @ x[:, None] @ heads.W_OV).sum(1)",
        "(A @ x[:, None] @ heads.W_OV).mean(1)",
        "wrong normaliser",
        "heads that are averaged instead of added",
    ),
    Mutant(
        f"{INDUCTION}.circuits.copying_score",
        "W_O @ (W_U @ W_E) @ W_V",
        "W_O @ W_V",
        "missing term",
        "a copying score without the vocabulary",
    ),
    Mutant(
        f"{INDUCTION}.circuits.eigenvalue_share",
        "matrix.diagonal(dim1=-2, dim2=-1).sum(-1)",
        "matrix.diagonal(dim1=-2, dim2=-1).abs().sum(-1)",
        "swapped function",
        "absolute values on the diagonal",
    ),
    # Scores.
    Mutant(
        f"{INDUCTION}.scores.score_weights",
        "n // 2 - 1",
        "n // 2",
        "wrong factor",
        "prefix matching at the copy itself",
    ),
    Mutant(
        f"{INDUCTION}.scores.uniform_score",
        "1 / (1 +",
        "1 / (-5 +",
        "wrong normaliser",
        "uniform attention over fewer keys",
    ),
    Mutant(
        f"{INDUCTION}.in_networks.PositionalShare.rows_of_head",
        "/ (n - 1)",
        "/ n**0.5",
        "wrong normaliser",
        "the positional share over the root of the number of pairs",
    ),
    # Chains.
    Mutant(
        f"{INDUCTION}.chains.strategies",
        "(row + 1)",
        "(row + 0.5)",
        "wrong factor",
        "half a pseudo-count in the bigram rule",
    ),
    Mutant(
        f"{INDUCTION}.chains.strategies",
        "(0, 0, 0, 0, 1, 0)",
        "(0, 0, 0, 0, 0, 1)",
        "swapped function",
        "counts that see the next transition",
    ),
    Mutant(
        f"{INDUCTION}.chains.sample_chains",
        "exponential / exponential.sum(-1, keepdim=True)",
        "exponential.sqrt() / exponential.sqrt().sum(-1, keepdim=True)",
        "wrong normaliser",
        "transition matrices from another prior",
    ),
    Mutant(
        f"{INDUCTION}.chains.expected_loss",
        "(row * prediction.log())",
        "(row * row.log())",
        "swapped function",
        "the entropy of the chain",
    ),
    # Memories.
    Mutant(
        f"{INDUCTION}.memory.predicted_recall",
        "right**2 + N",
        "N",
        "missing term",
        "recall without the right pair in the norm of w",
    ),
    Mutant(
        f"{INDUCTION}.memory.predicted_recall",
        "(right - s) / norm",
        "(right - 0 * s) / norm",
        "missing term",
        "recall without s",
    ),
    Mutant(
        f"{INDUCTION}.memory.capacity",
        "2 * math.log(N)",
        "math.log(N)",
        "dropped factor",
        "twice the capacity",
    ),
    Mutant(
        f"{INDUCTION}.memory.MemoryNetwork.forward",
        "@ self.previous[ids]",
        "@ e",
        "swapped function",
        "a first layer that does not write to a subspace of its own",
    ),
    Mutant(
        f"{INDUCTION}.memory.measured_recall",
        "outputs.mT @ inputs",
        "inputs.mT @ outputs",
        "swapped function",
        "a memory of the inverse map",
    ),
)
