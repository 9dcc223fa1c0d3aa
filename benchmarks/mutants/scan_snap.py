"""Mutants of scan_snap: its closed forms, gains, flows, descent directions and samples."""

from . import Mutant

ROOT = "theories.scan_snap."
CLOSED, GENERAL, SYMMETRIC, DYNAMICS = (ROOT + part for part in ("closed_form.", "flow.general.", "flow.symmetric.", "dynamics."))

MUTANTS: tuple[Mutant, ...] = (
    # closed forms
    Mutant(CLOSED + "B", "* overlap**2) / 4", "* overlap**2) / 2", "wrong factor", "B with 1/2 in the place of 1/4"),
    Mutant(CLOSED + "B", "overlap**2", "overlap", "wrong factor", "B with E_0 in the place of its square"),
    Mutant(CLOSED + "B", "(classes - 1) * overlap", "classes * overlap", "wrong factor", "B with K in the place of K - 1"),
    Mutant(CLOSED + "Gamma", "** 2 / 2", "** 2", "dropped factor", "Gamma without its factor 1/2"),
    Mutant(CLOSED + "Gamma", "eta_z / eta_y * classes *", "eta_z / eta_y *", "dropped factor", "Gamma without its factor K"),
    Mutant(CLOSED + "gamma", "(M - 1) ** 2 * gain", "(M - 1) * gain", "dropped factor", "gamma with M - 1 in the place of its square"),
    Mutant(CLOSED + "gamma", "t / classes", "t", "dropped factor", "gamma with the decoder's gain at t in the place of t/K"),
    Mutant(CLOSED + "scaled_gain", "math.log(M - 1) + np.log(", "np.log(", "missing term", "h without the term ln(M - 1)"),
    Mutant(
        CLOSED + "h_discrete",
        "vocab_size - 1 + math",
        "vocab_size + math",
        "wrong factor",
        "the recursion of h with M in the place of M - 1",
    ),
    Mutant(CLOSED + "exact_common_logit", "gap**2) / 2", "gap**2)", "dropped factor", "the exact flow's law without its factor 1/2"),
    Mutant(
        CLOSED + "exact_common_logit",
        "h((1 - overlap) * t / classes",
        "h(t / classes",
        "dropped factor",
        "the exact flow's law with a decoder that overlaps do not slow down",
    ),
    Mutant(CLOSED + "scanning_time", "classes * math.log", "math.log", "dropped factor", "t0' without its factor K"),
    Mutant(ROOT + "growth.growth_exponents", "/ (1 + 4 *", "/ (1 +", "dropped factor", "dB/dln t without the 4 in its denominator"),
    Mutant(
        ROOT + "growth.growth_exponents",
        "(vocab_size * eta_y * t / classes).log()",
        "(eta_y * t / classes).log()",
        "dropped factor",
        "dB/dln ln with the printed ln(eta_Y t/K) instead of ln(M eta_Y t/K)",
    ),
    # relative gains
    Mutant(
        ROOT + "gains.relative_gains", "torch.exp(2 * change)", "torch.exp(change)", "dropped factor", "chi = e^z in the place of e^{2 z}"
    ),
    Mutant(
        ROOT + "gains.gain_bounds", "flow.drive * classes.weights", "flow.drive", "dropped factor", "the bounds without the class's share"
    ),
    Mutant(
        ROOT + "gains._bounds", "2 * start**2 * drive", "2 * start * drive", "wrong factor", "the lower bound with f in the place of f^2"
    ),
    Mutant(
        ROOT + "gains._bounds",
        "2 * start**2 * drive, 2 * drive",
        "2 * start**2 * drive, 4 * drive",
        "wrong factor",
        "twice the upper bound",
    ),
    Mutant(ROOT + "gains._bounds", "2 * start**2 * drive", "start**2 * drive", "dropped factor", "half of the lower bound"),
    # the flows of any classes
    Mutant(GENERAL + "_velocity", "inverse_gram(f) @ pull", "pull", "dropped factor", "Lemma 4 without its Gram inverse"),
    Mutant(GENERAL + "_velocity", "-M / (M - 1) ** 2", "M / (M - 1) ** 2", "flipped sign", "Lemma 4 with the sign of q_0 flipped"),
    Mutant(GENERAL + "_velocity", "(g - f * projection[:, None])", "g", "missing projection", "Lemma 4 without the projection"),
    Mutant(
        GENERAL + "normal_part",
        "f * (g - f * np.add.reduce(f * g, 1, keepdims=True))",
        "f * g",
        "missing projection",
        "the exact and the modified flow without their projection",
    ),
    Mutant(GENERAL + "modified_flow", "inverse_gram(f) @ f", "f", "swapped function", "the modified flow with the exact flow's decoder"),
    Mutant(
        GENERAL + "exact_flow",
        "lambda f: f",
        "lambda f: inverse_gram(f) @ f",
        "swapped function",
        "the exact flow with the modified flow's decoder",
    ),
    Mutant(
        GENERAL + "derivatives",
        "math.log(rest), 1 / rest",
        "math.log(rest), 1.0",
        "wrong normaliser",
        "the trained flows with the residual of all M - K equal columns in each of them",
    ),
    Mutant(
        GENERAL + "derivatives",
        "math.log(rest), 1 / rest",
        "0.0, 1 / rest",
        "wrong normaliser",
        "the trained flows with one of the M - K equal columns in the softmax",
    ),
    Mutant(
        GENERAL + "derivatives", "w * residual * scale", "residual * scale", "dropped factor", "the decoder's equation without the shares"
    ),
    Mutant(GENERAL + "shares_by_query", " * classes.weights.numpy()", "", "dropped factor", "attention's equation without the shares"),
    Mutant(
        GENERAL + "features",
        "f /= np.sqrt(np.add.reduce(f * f, 1, keepdims=True))",
        "f /= np.add.reduce(f, 1, keepdims=True)",
        "wrong normaliser",
        "features with sum one in the place of norm one",
    ),
    # the flows of classes that are alike
    Mutant(
        SYMMETRIC + "symmetric_exact_flow",
        "fc * rest,",
        "fc * rests,",
        "wrong factor",
        "the symmetric exact flow with M - K in the place of one in da/ds",
    ),
    Mutant(
        SYMMETRIC + "symmetric_modified_flow",
        "others + rests * (K - 1) * eps / total)",
        "others)",
        "missing term",
        "the symmetric modified flow without the term of the dual basis in db/ds",
    ),
    Mutant(
        SYMMETRIC + "symmetric_lemma4_flow",
        "(1 + (M - 1) * eps) / (1 + (K - 1) * eps)",
        "(1 + (M - 1) * eps)",
        "wrong normaliser",
        "the symmetric flow of Lemma 4 without an eigenvalue of the Gram matrix",
    ),
    Mutant(
        SYMMETRIC + "symmetric_lemma4_flow",
        "-pull * classes.per_query / K",
        "-pull / K",
        "dropped factor",
        "the symmetric flow of Lemma 4 without the number of classes per query",
    ),
    Mutant(
        SYMMETRIC + "_rate",
        "rests * orthogonal + g - f * (f @ g)",
        "rests * orthogonal + g",
        "missing projection",
        "the symmetric trained flows without their projection",
    ),
    # descent on counts
    Mutant(
        DYNAMICS + "model.forward",
        "dz = f * (g - f * (residual * logits).sum(-1, keepdim=True))",
        "dz = f * g",
        "missing projection",
        "descent without the projection",
    ),
    Mutant(
        DYNAMICS + "model.forward",
        "dY[..., K:] /= weights.rest",
        "dY[..., K:] /= 1",
        "wrong normaliser",
        "descent with the residual of all equal columns in each of them",
    ),
    Mutant(
        DYNAMICS + "grouped.GroupedBatch.descent",
        "dz = f * (g - f * projection)",
        "dz = -f * (g - f * projection)",
        "flipped sign",
        "the grouped training with attention's sign flipped",
    ),
    Mutant(
        DYNAMICS + "grouped.GroupedBatch.descent",
        "dz = f * (g - f * projection)",
        "dz = f * g",
        "missing projection",
        "the grouped training without the projection",
    ),
    Mutant(
        DYNAMICS + "grouped.GroupedBatch.descent",
        "dY[..., -1] /= weights.rest",
        "dY[..., -1] /= 1",
        "wrong normaliser",
        "the grouped training with the residual of all equal columns in each of them",
    ),
    Mutant(
        DYNAMICS + "grouped.residuals",
        "total = others + target_logit.exp()",
        "total = others + 1",
        "wrong normaliser",
        "the grouped training with e^0 in the place of the target's weight in the softmax",
    ),
    Mutant(
        DYNAMICS + "minibatches.SparseBatch.descent",
        "residual /= B",
        "residual /= 1",
        "wrong normaliser",
        "the training on lists of tokens with the sum of the gradients in the place of their mean",
    ),
    Mutant(
        DYNAMICS + "minibatches.SparseBatch.descent",
        "dz = f * (g - f * (residual * logits).sum(-1, keepdim=True))",
        "dz = f * g",
        "missing projection",
        "the training on lists of tokens without the projection",
    ),
    Mutant(
        DYNAMICS + "training.HeavyBall.move",
        "mul_(self.momentum).add_(direction)",
        "mul_(self.momentum).add_(direction.sign())",
        "swapped function",
        "momentum that sums the signs of the directions",
    ),
    # data
    Mutant(
        ROOT + "multinomial._halve",
        "left_p / np.maximum",
        "right_p / np.maximum",
        "swapped function",
        "counts whose left and right halves are exchanged",
    ),
    Mutant(ROOT + "problem.SequenceClasses.attended", "self.conditional.log() + ", "", "missing term", "attention that ignores P(l | n)"),
    Mutant(
        ROOT + "families.with_overlap",
        "math.sqrt(overlap / (1 - overlap))",
        "overlap / (1 - overlap)",
        "wrong factor",
        "families with the odds of the overlap unrooted",
    ),
)
