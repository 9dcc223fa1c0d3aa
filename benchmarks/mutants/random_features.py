"""Mutants of random-feature attention."""

from . import Mutant

FEATURES, KERNELS = "theories.random_features.features", "theories.random_features.kernels"
MUTANTS = (
    # The kernels.
    Mutant(
        f"{KERNELS}._arc_cosine",
        "(math.pi - angle) * cosine",
        "math.pi * cosine",
        "missing term",
        "a kernel of relu without the angle",
    ),
    Mutant(
        f"{KERNELS}._arc_cosine",
        "angle.sin() +",
        "angle.sin() -",
        "flipped sign",
        "a kernel of relu with a difference",
    ),
    Mutant(
        f"{KERNELS}._arc_cosine",
        "(2 * math.pi)",
        "math.pi",
        "wrong normaliser",
        "a kernel of relu twice as large",
    ),
    Mutant(
        f"{KERNELS}.attention_kernel",
        "spread**2 * _correlations(part)",
        "spread * _correlations(part)",
        "dropped factor",
        "the spread, not its square",
    ),
    Mutant(
        f"{KERNELS}.attention_kernel",
        "values * keys",
        "values",
        "dropped factor",
        "a kernel without the inner product of the keys",
    ),
    Mutant(
        f"{KERNELS}.attention_kernel",
        "queries[start : start + rows, :, None, None] * keys",
        "keys",
        "dropped factor",
        "scores that ignore the query",
    ),
    Mutant(
        f"{KERNELS}._norms",
        "+ spread**2 * _correlations(x).square()",
        "",
        "missing term",
        "norms without the correlation",
    ),
    Mutant(
        f"{KERNELS}.mlp_kernel",
        "1 + a @ b.mT",
        "a @ b.mT",
        "missing term",
        "an MLP's kernel without the constant",
    ),
    # The features.
    Mutant(
        f"{FEATURES}.RandomFeatureAttention.features",
        "q, k).relu()",
        "q, k)",
        "swapped function",
        "linear attention in place of relu",
    ),
    Mutant(
        f"{FEATURES}.RandomFeatureAttention.features",
        " / keys.shape[1]\n",
        "\n",
        "wrong normaliser",
        "a sum over keys in place of the mean",
    ),
    Mutant(
        f"{FEATURES}.RandomFeatureAttention.features",
        " / math.sqrt(heads)",
        " / heads",
        "wrong normaliser",
        "features divided by the number of heads",
    ),
    Mutant(
        f"{FEATURES}.RandomFeatureAttention.draw",
        "bias + spread * torch.randn(heads, 1, 1, generator=generator, dtype=torch.float64)",
        "bias + spread",
        "swapped function",
        "a fixed weight of the correlation in place of a Gaussian one",
    ),
    Mutant(
        f"{FEATURES}.RandomFeatureAttention.draw",
        "[1.0] * d + [0.0]",
        "[1.0] * d + [1.0]",
        "swapped function",
        "the constant counts as a correlation",
    ),
    # Ridge regression.
    Mutant(
        f"{FEATURES}.RidgePath.fit",
        "errors.argmin()",
        "errors.argmax()",
        "swapped function",
        "the worst penalty",
    ),
    Mutant(
        f"{FEATURES}.RidgePath.fit",
        "self.s.square() + penalties",
        "self.s + penalties",
        "dropped factor",
        "singular values that are not squared",
    ),
    Mutant(
        f"{FEATURES}.RidgePath.fit",
        "coefficients[best] + mean",
        "coefficients[best]",
        "missing term",
        "predictions without the mean",
    ),
    Mutant(
        f"{FEATURES}.share_explained",
        "target - target.mean(0)",
        "target",
        "missing projection",
        "a variance around zero",
    ),
)
