"""Mutants of rate_reduction: rates and lengths, gradients, the loss, ReduNet, the optimum, the landscape, and
clustering.
"""

from . import Mutant

RATES, MEMBERSHIPS, GRADIENTS, RESOLVENTS, STREAMING = (
    f"metrics.coding.{name}" for name in ("rates", "memberships", "gradients", "resolvents", "streaming")
)
NAME = "theories.rate_reduction"
BUILT, SHIFTS = f"{NAME}.redunet.construction", f"{NAME}.redunet.shift_invariant"

MUTANTS = (
    # rates and lengths
    Mutant(f"{RATES}.coding_rate", "0.5 * logdet", "logdet", "dropped factor", "R without the factor 1/2"),
    Mutant(
        f"{RATES}.coding_rate",
        "d / (n * eps**2)",
        "1 / (n * eps**2)",
        "dropped factor",
        "R without the dimension in α",
    ),
    Mutant(
        f"{RATES}.class_coding_rates",
        "counts[classes].to(features.dtype)",
        "len(labels)",
        "wrong normaliser",
        "R_j with n for n_j",
    ),
    Mutant(
        f"{RATES}.class_coding_rate",
        "(class_sizes(features, labels).to(rates.dtype) / len(labels)) @ rates",
        "rates.mean()",
        "wrong normaliser",
        "R^c as the plain mean of the R_j",
    ),
    Mutant(
        f"{RATES}.coding_length",
        "sum(features.shape)",
        "len(features)",
        "missing term",
        "L without the d code words of the subspace",
    ),
    Mutant(
        f"{RATES}.mean_coding_length",
        "features.shape[1] / 2 * bits",
        "1 / 2 * bits",
        "dropped factor",
        "bits of the mean without the factor d",
    ),
    Mutant(
        f"{RATES}.segmented_coding_length",
        "(sizes + d)",
        "sizes",
        "missing term",
        "L^s without the d code words of each group",
    ),
    Mutant(
        f"{RATES}.segmented_coding_length",
        " + n * torch.special.entr(sizes / n).sum()",
        "",
        "missing term",
        "L^s without the bits for the group of each sample",
    ),
    Mutant(
        f"{MEMBERSHIPS}.class_shares",
        "relative.sum(0)",
        "len(memberships)",
        "wrong normaliser",
        "soft classes divided by n, not by n_j",
    ),
    Mutant(
        f"{STREAMING}.SecondMoments._rates",
        "moments / counts[..., None, None]",
        "moments",
        "wrong normaliser",
        "moments not divided by n_j",
    ),
    # gradients and the loss
    Mutant(
        f"{GRADIENTS}._by_gram_matrices",
        "class_factors = alpha * resolvent",
        "class_factors = alpha * (sizes / n)[:, None, None] * resolvent",
        "wrong factor",
        "gradient of R^c weighted by n_j / n twice",
    ),
    Mutant(
        f"{GRADIENTS}._by_gram_matrices",
        "gamma1 * gamma2 * alpha * resolvent",
        "gamma2 * alpha * resolvent",
        "dropped factor",
        "gradient of the expansion without γ₁",
    ),
    Mutant(
        f"{GRADIENTS}.compression_operators",
        "ratio * class_shares(memberships)",
        "ratio / len(features) * memberships",
        "wrong normaliser",
        "the matrix of C_j with n for n_j",
    ),
    Mutant(
        f"{RESOLVENTS}.inverse",
        "- rows.mT @ small",
        "+ rows.mT @ small",
        "flipped sign",
        "Woodbury's identity with the wrong sign",
    ),
    Mutant(
        f"{RESOLVENTS}.pulls_and_leverages",
        "return weights[:, None] * resolvent",
        "return resolvent",
        "dropped factor",
        "gradient of soft classes without the memberships",
    ),
    Mutant(
        f"{NAME}.loss._ClosedForm.forward",
        "module.gamma2 * parts.expansion",
        "parts.expansion",
        "dropped factor",
        "the loss without γ₂",
    ),
    Mutant(
        f"{NAME}.loss._ClosedForm.backward",
        "return -grad * gradient",
        "return grad * gradient",
        "flipped sign",
        "the loss ascends",
    ),
    # ReduNet
    Mutant(
        f"{BUILT}.grow",
        "shares.view(shape) * layer_operators[1:]",
        "layer_operators[1:]",
        "dropped factor",
        "layers without n_j / n",
    ),
    Mutant(
        f"{BUILT}.grow",
        "layer_operators[0] - shares",
        "layer_operators[0] + shares",
        "flipped sign",
        "layers that expand each class",
    ),
    Mutant(
        f"{BUILT}.operators",
        "(counts * eps**2)",
        "(counts[0] * eps**2)",
        "wrong normaliser",
        "C_j with n for n_j",
    ),
    Mutant(f"{BUILT}.guaranteed_step", "eps**2", "eps", "wrong factor", "the guaranteed step with ε for ε²"),
    Mutant(
        f"{NAME}.redunet.vector.Layer.advance",
        "torch.softmax(-sharpness",
        "torch.softmax(sharpness",
        "flipped sign",
        "new samples in the class that fits worst",
    ),
    Mutant(
        f"{NAME}.redunet.vector.Layer._moves",
        "memberships * self.shares",
        "memberships",
        "dropped factor",
        "new samples without n_j / n",
    ),
    Mutant(
        f"{NAME}.redunet.vector.Layer.advance",
        "return unit_norm(",
        "return (",
        "missing projection",
        "new samples that leave the sphere",
    ),
    Mutant(
        f"{SHIFTS}.Spectrum.norms",
        "self.weights / math.prod",
        "torch.ones_like(self.weights) / math.prod",
        "wrong factor",
        "norms without the frequencies that are not stored",
    ),
    Mutant(
        f"{SHIFTS}.Spectrum.of",
        "grid[-1] % 2 == 0",
        "grid[-1] % 2 == 1",
        "wrong factor",
        "the wrong weight of the last frequency",
    ),
    Mutant(
        f"{SHIFTS}.SpectralLayer.advance",
        "self.shares * torch.softmax",
        "torch.softmax",
        "dropped factor",
        "new images without n_j / n",
    ),
    Mutant(
        f"{SHIFTS}.SpectralLayer.advance",
        "return spectrum.unit_norm(",
        "return (",
        "missing projection",
        "new images that leave the sphere",
    ),
    # optimum, landscape, spheres
    Mutant(
        f"{NAME}.optimum._gain", "(share * ranks)", "ranks", "dropped factor", "the optimum with α for α_j"
    ),
    Mutant(
        f"{NAME}.optimum._optimum",
        "budget -= ranks[-1]",
        "budget -= 1",
        "wrong factor",
        "ranks of the optimum that exceed d",
    ),
    Mutant(
        f"{NAME}.optimum.maximise",
        "len(members) ** 0.5 *",
        "len(members) *",
        "wrong factor",
        "classes of norm n_j for √n_j",
    ),
    Mutant(
        f"{NAME}.landscape.Regularised.squares",
        "- self.penalty * (alpha + a)",
        "+ self.penalty * (alpha + a)",
        "flipped sign",
        "the roots s of the critical points",
    ),
    Mutant(
        f"{NAME}.landscape.Regularised.gradient",
        "self.penalty * X",
        "self.penalty / 2 * X",
        "wrong factor",
        "half of the penalty's gradient",
    ),
    Mutant(
        f"{NAME}.landscape._rate_hessian",
        "- a**2",
        "+ a**2",
        "flipped sign",
        "second term of the Hessian of R",
    ),
    Mutant(
        f"{NAME}.landscape.largest_penalty",
        "max(sizes)",
        "min(sizes)",
        "swapped function",
        "the bound on λ of the smallest class",
    ),
    Mutant(
        f"{NAME}.ascent.ascend",
        "values.abs()",
        "values",
        "missing projection",
        "plain Newton, which also climbs down to saddles",
    ),
    Mutant(
        f"{NAME}.spheres.OnSpheres.gradient",
        "return G - self._by_class(self._multipliers(X, G)) * X",
        "return G",
        "missing projection",
        "the gradient not projected to the spheres",
    ),
    Mutant(
        f"{NAME}.spheres.OnSpheres.hessian",
        "- torch.diag(curvature)",
        "",
        "missing term",
        "the Hessian without the curvature of the spheres",
    ),
    Mutant(
        f"{NAME}.spheres.uneven",
        "problem.unit**2",
        "problem.unit",
        "wrong factor",
        "the uneven saddles with α for α²",
    ),
    Mutant(
        f"{NAME}.problem.equal_moments",
        "n**0.5 * orthonormalise",
        "orthonormalise",
        "dropped factor",
        "second moments that differ with n_j",
    ),
    # clustering
    Mutant(
        f"{NAME}.clustering._Groups._length",
        "- counts * np.log(counts / self.n)",
        "+ counts * np.log(counts / self.n)",
        "flipped sign",
        "negative bits for the group of each sample",
    ),
    Mutant(
        f"{NAME}.clustering._Groups._scale",
        "self.d / counts",
        "self.d / self.n",
        "wrong normaliser",
        "groups with n for their size",
    ),
    Mutant(
        f"{NAME}.clustering._Groups._measure",
        " - self.lengths[groups] - self.lengths[i]",
        " - self.lengths[groups]",
        "missing term",
        "the gain of a merge without one of its groups",
    ),
)
