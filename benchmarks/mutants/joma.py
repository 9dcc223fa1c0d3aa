"""Mutants of JoMA."""

from . import Mutant

JOMA, BOUND = "theories.joma", "metrics.attention.entropy_lower_bound"
MUTANTS = (
    # The block and its gradient.
    Mutant(
        f"{JOMA}.dynamics.Model._forward",
        "+ block.offset.mT",
        "- block.offset.mT",
        "flipped sign",
        "units that subtract their weight along the query",
    ),
    Mutant(
        f"{JOMA}.dynamics.Model.velocity",
        "self.rate_lower * (g.mT @ indicator / n",
        "self.rate_lower * (-g.mT @ indicator / n",
        "flipped sign",
        "the offset climbs the loss",
    ),
    Mutant(
        f"{JOMA}.dynamics.Model.velocity",
        "g = down * slope",
        "g = down",
        "dropped factor",
        "the backpropagated gradient without the slope of the activation",
    ),
    Mutant(
        f"{JOMA}.dynamics.Model.velocity",
        "self.rate_logits / n * (",
        "self.rate_logits / contexts.queries * (",
        "wrong normaliser",
        "attention moves by the sum over samples, divided by the number of queries",
    ),
    Mutant(
        f"{JOMA}.dynamics.cross_entropy",
        "(shares / -total)",
        "(-torch.ones_like(shares) / h.shape[-1])",
        "swapped function",
        "the gradient of the cross-entropy with uniform probabilities",
    ),
    Mutant(f"{JOMA}.dynamics.tanh", "1 - h * h", "1 - h", "wrong factor", "tanh with the slope of the logistic function"),
    Mutant(
        f"{JOMA}.dynamics.squared",
        "gap.square().sum(-1) / 2, gap",
        "gap.square().sum(-1) / 2, 2 * gap",
        "wrong factor",
        "the gradient of the squared distance, for half of it",
    ),
    Mutant(f"{JOMA}.block.Softmax.factor", "0.5 / self", "0.65 / self", "wrong factor", "the softmax invariant with .65 for 1/2"),
    Mutant(f"{JOMA}.block.Exponential.factor", "0.5 / self.temperature", "0.5", "dropped factor", "the invariant without temperature"),
    Mutant(
        f"{JOMA}.block.Softmax.pull",
        "(gradient - (attended * gradient).sum(-1, keepdim=True))",
        "gradient",
        "missing projection",
        "the softmax gradient without its projection",
    ),
    Mutant(
        f"{JOMA}.block.Softmax.attend",
        " + counts.log()",
        " + counts.sqrt().log()",
        "swapped function",
        "softmax attention in which a token counts by the root of its share",
    ),
    Mutant(
        f"{JOMA}.block.Exponential.attend", " / self.normaliser", "", "wrong normaliser", "exponential attention without its normaliser"
    ),
    Mutant(f"{JOMA}.block.Linear.pull", "counts * gradient", "gradient", "dropped factor", "linear attention moves without its context"),
    # Integrators.
    Mutant(
        f"{JOMA}.dynamics.runge_kutta",
        "fourth = velocity(plus(state, third, step))",
        "fourth = velocity(plus(state, third, step / 2))",
        "wrong factor",
        "the last stage of the Runge-Kutta method at half a step",
    ),
    # The invariants.
    Mutant(
        f"{JOMA}.invariants.conserved",
        "- ratio * form.factor",
        "+ ratio * form.factor",
        "flipped sign",
        "the conserved quantity with the sign of its second term flipped",
    ),
    Mutant(
        f"{JOMA}.invariants.conserved",
        "- ratio * form.factor",
        "- form.factor",
        "dropped factor",
        "the conserved quantity without the ratio of the learning rates",
    ),
    Mutant(
        f"{JOMA}.invariants.fixed_mean_change",
        "squares - squares.sum(-1, keepdim=True) * mean",
        "squares",
        "missing term",
        "the softmax invariant without its second term",
    ),
    Mutant(
        f"{JOMA}.invariants.fixed_mean",
        "mean[0]",
        "mean",
        "swapped function",
        "the softmax invariant with the current mean attention outside the integral",
    ),
    Mutant(
        f"{JOMA}.invariants.moving_mean",
        "(mean[1:] + mean[:-1]) / 2",
        "(mean[1:] - mean[:-1]) / 2",
        "flipped sign",
        "the trapezoidal rule with a difference",
    ),
    Mutant(
        f"{JOMA}.invariants._terms",
        "model.ratio * model.attention.factor",
        "model.attention.factor",
        "dropped factor",
        "the softmax prediction without the ratio of the learning rates",
    ),
    Mutant(
        f"{JOMA}.invariants.factorisation_error", "2 * model.ratio", "model.ratio", "dropped factor", "the factorised velocity at half size"
    ),
    # The linear unit.
    Mutant(f"{JOMA}.orbit.orbit", "math.sqrt(2) * inverse", "inverse", "dropped factor", "the orbit without the root of two"),
    Mutant(f"{JOMA}.orbit.blow_up_time", "math.pi / 2", "math.pi", "wrong factor", "a blow-up time of the root of pi"),
    Mutant(
        f"{JOMA}.orbit.limits",
        "math.sqrt(2) * torch.erfinv(discriminancy / _largest(discriminancy))",
        "math.sqrt(2) * torch.erfinv((discriminancy / _largest(discriminancy)).square()) * discriminancy.sign()",
        "wrong factor",
        "limits with the square of the ratio of discriminancies",
    ),
    Mutant(
        f"{JOMA}.orbit.normalised_clock", "normaliser * grid *", "normaliser *", "dropped factor", "the clock without the Jacobian of ln r"
    ),
    Mutant(f"{JOMA}.orbit.normalised_clock", ".square() / 2)", ".square())", "dropped factor", "the normaliser with attention exp(v^2)"),
    # Nonlinear units.
    Mutant(f"{JOMA}.nonlinear._speed", ".square() / 2", ".square()", "dropped factor", "the nonlinear flow with attention exp(v^2)"),
    Mutant(
        f"{JOMA}.nonlinear.log_remaining", "mu[:, None].square() / 2 + (", "(", "dropped factor", "the linear tail with the first speed"
    ),
    Mutant(f"{JOMA}.nonlinear.learning_ratio", "mu.square() / 2", "mu.square()", "dropped factor", "speeds of exp(mu^2)"),
    Mutant(
        f"{JOMA}.nonlinear.salient_descent", "lambda v: mu - v", "lambda v: mu", "missing term", "a nonlinear pull without restoring term"
    ),
    Mutant(
        f"{JOMA}.nonlinear._descend",
        "attention(v, temperature=temperature)",
        "attention(v, temperature=temperature).sqrt()",
        "swapped function",
        "the descent with the root of attention",
    ),
    Mutant(
        f"{JOMA}.nonlinear.nonlinear_layer",
        "points.norm(dim=0)",
        "points.abs().amax(dim=0)",
        "swapped function",
        "columns that learn at the speed of their largest entry",
    ),
    Mutant(f"{JOMA}.nonlinear.linear_layer", " / lengths", "", "wrong normaliser", "linear columns that are not normalised"),
    Mutant(
        f"{JOMA}.nonlinear.Bounce.rebound", "self.end - self.least", "self.start - self.least", "swapped function", "rebound to the start"
    ),
    Mutant(
        f"{JOMA}.mixture.Mixture.velocity", "pull - drag * v", "pull + drag * v", "flipped sign", "the mixture's drag as a push along v"
    ),
    Mutant(
        f"{JOMA}.mixture.relu_averages",
        "torch.exp(-u * u / 2) / math.sqrt(2 * math.pi)",
        "torch.exp(-u * u / 2) / math.sqrt(math.pi)",
        "wrong normaliser",
        "the normal density with the root of pi",
    ),
    # Latents.
    Mutant(f"{JOMA}.tree.Tree.cooccurrence", "- 2 * mean)", "- mean)", "dropped factor", "co-occurrence with half of its mean sign"),
    Mutant(
        f"{JOMA}.tree.Tree.sign_product",
        "sum((2 * p - 1) ** 2 for p in self.zero) / len(self.zero)",
        "(sum(2 * p - 1 for p in self.zero) / len(self.zero)) ** 2",
        "swapped function",
        "the square of the mean for the mean of the square at the root",
    ),
    Mutant(
        f"{JOMA}.tree.sample_leaves", "(1 + rho) / 2", "rho", "wrong factor", "nodes that keep their parent's value with probability rho"
    ),
    Mutant(
        f"{JOMA}.hierarchy.recovery",
        "_largest_cosine(hidden - hidden.mean(0), a - a.mean(0))",
        "_largest_cosine(hidden, a)",
        "missing projection",
        "recovery without centring",
    ),
    Mutant(
        f"{JOMA}.hierarchy._largest_cosine",
        "cosines.amax(0).mean()",
        "cosines.amax(1).mean()",
        "swapped function",
        "the best latent of each unit for the best unit of each latent",
    ),
    Mutant(f"{JOMA}.joint.Layer.forward", "+ copies.log()).masked_fill", ").masked_fill", "missing term", "a padding that counts once"),
    # Networks.
    Mutant(
        f"{JOMA}.in_networks.gaussian_rank",
        " + TRACY_WIDOM_MEAN * scale",
        "",
        "missing term",
        "the null of the stable rank without the Tracy-Widom correction",
    ),
    # A second list, written after the claims that the first one led to.
    Mutant(f"{JOMA}.block.Exponential.pull", " / self.temperature", "", "dropped factor", "the exponential gradient without temperature"),
    Mutant(f"{JOMA}.dynamics.relu", "(p > 0).to(p.dtype)", "torch.ones_like(p)", "dropped factor", "relu with slope one everywhere"),
    Mutant(
        f"{JOMA}.dynamics.signed", "2 * targets - 1", "targets", "missing term", "the constant gradient for targets 0 and 1, not -1 and 1"
    ),
    Mutant(
        f"{JOMA}.invariants.goodness_of_fit",
        "x - x.mean(-1, keepdim=True)",
        "x",
        "missing projection",
        "the fit without centring",
        "A softmax does not change the sum of the logits, and the predictions sum to zero: both sides are centred already.",
    ),
    Mutant(
        f"{JOMA}.invariants.goodness_of_fit",
        "(p - m).norm(dim=-1) / size",
        "(p - m).norm(dim=-1) / p.norm(dim=-1)",
        "wrong normaliser",
        "the relative error divided by the size of the prediction",
    ),
    Mutant(
        f"{JOMA}.invariants.drift",
        "values - values[0]",
        "values - values[-1]",
        "swapped function",
        "the drift from the end",
        "Both drifts lie within a factor of two of each other: rounding where the quantity is conserved, of order one where it is not.",
    ),
    Mutant(f"{JOMA}.orbit.orbit", "discriminancy.sign() * ", "", "flipped sign", "an orbit that ignores the sign of Delta"),
    Mutant(f"{JOMA}.orbit.progress", "lower / math.sqrt(2)", "lower", "dropped factor", "erf(v) for erf(v / sqrt 2)"),
    Mutant(
        f"{JOMA}.nonlinear._time_table",
        "torch.cat([torch.zeros_like(last), steps.cumsum(1)], dim=1)",
        "torch.cat([torch.zeros_like(last), steps.cumsum(1)], dim=1) * 1.01",
        "wrong factor",
        "a time table that is one per cent late",
    ),
    Mutant(
        f"{JOMA}.nonlinear.linear_descent",
        "lambda v: discriminancy",
        "lambda v: discriminancy - v",
        "missing term",
        "a linear descent with a restoring term",
    ),
    Mutant(f"{JOMA}.nonlinear.attention", "lower.square() /", "lower.abs() /", "swapped function", "attention softmax(|v| / T)"),
    Mutant(
        f"{JOMA}.nonlinear.rank_bounce",
        "stable_rank(points)[None], ",
        "",
        "missing term",
        "the stable rank without its value at the start",
        "At the first time, 1e-7, V is a multiple of the critical points up to 1e-6: the same value.",
    ),
    Mutant(
        f"{JOMA}.mixture.tanh_averages",
        "torch.tanh(affinity[:, None] + width * _NODES)",
        "torch.tanh(affinity[:, None] + _NODES)",
        "dropped factor",
        "tanh averages of unit width",
    ),
    Mutant(
        f"{JOMA}.mixture.Mixture.terms", "-self.spread / size", "-self.spread", "wrong normaliser", "a drag not divided by the length of v"
    ),
    Mutant(f"{JOMA}.tree.Tree.mean_sign", "math.prod(self.rho)", "self.rho[0]", "dropped factor", "a mean sign of one edge"),
    Mutant(
        f"{JOMA}.tree.Tree.kinship",
        "int(other).bit_length()",
        "bin(int(other)).count('1')",
        "swapped function",
        "kinship by the number of differing digits",
    ),
    Mutant(
        f"{JOMA}.tree.masked_leaf", "leaves[:, 1:].double()", "1 - leaves[:, 1:].double()", "flipped sign", "contexts of the absent leaves"
    ),
    Mutant(
        f"{JOMA}.hierarchy.Hierarchy.activity",
        "active[-1].float() @ composition",
        "(active[-1].float() @ composition.roll(1, 0))",
        "swapped function",
        "the parts of the next latent",
        "The sets of a layer are independent random sets, so the perturbed hierarchy is another draw of the same distribution.",
    ),
    Mutant(
        f"{JOMA}.joint.Layer.forward", "last * copies.log()", "last", "wrong factor", "entropy with the mass for the logarithm of copies"
    ),
    Mutant(
        f"{JOMA}.hierarchy.chance_recovery", "below**units", "below**(units // 2)", "dropped factor", "the chance level of half the units"
    ),
    # A third list, written when claims were sharpened.
    Mutant(BOUND, "gap = spread *", "gap = 1.2 * spread *", "wrong factor", "the bound on the entropy for 1.2 times the norm"),
    Mutant(BOUND, "spread * math.sqrt(keys / (keys - 1))", "spread", "dropped factor", "the bound on the entropy with the gap s"),
    Mutant(
        BOUND,
        "torch.where(rest > 0, gap, 0.0) * rest / (1 + rest)",
        "torch.where(rest > 0, gap, 0.0) * rest",
        "wrong normaliser",
        "the bound on the entropy without the denominator of its second term",
    ),
    Mutant(
        f"{JOMA}.hierarchy.chance_recovery",
        "student.cdf(math.sqrt(classes - 2) * x.tan().numpy(), classes - 2)",
        "student.cdf(math.sqrt(classes - 1) * x.tan().numpy(), classes - 1)",
        "wrong factor",
        "the chance level with C - 1 degrees of freedom",
    ),
    Mutant(
        f"{JOMA}.orbit.limits",
        "discriminancy / _largest(discriminancy)",
        "discriminancy / discriminancy[discriminancy.abs().argmax()]",
        "flipped sign",
        "limits divided by the leading discriminancy with its sign",
    ),
    Mutant(
        f"{JOMA}.invariants.moving_mean",
        "squares.sum(-2) - squares[0].sum(-2)",
        "squares.sum(-2)",
        "missing term",
        "the moving-mean prediction for a start at zero",
    ),
    Mutant(
        f"{JOMA}.invariants.fixed_mean_change",
        "logits - logits[0]",
        "logits",
        "missing term",
        "the fixed-mean prediction for a start at zero",
    ),
    Mutant(
        f"{JOMA}.dynamics.squared",
        "gap = _one_hot(targets, h) - h",
        "gap = _one_hot(targets, h) - h.mean(-1, keepdim=True)",
        "swapped function",
        "the squared distance from the mean unit",
    ),
    Mutant(
        f"{JOMA}.nonlinear.linear_descent",
        "lambda v: discriminancy",
        "lambda v: discriminancy / (1 + v.square())",
        "wrong factor",
        "a linear descent whose pull fades",
    ),
    Mutant(
        f"{JOMA}.block.Exponential.pull",
        "attended * gradient",
        "attended * self.normaliser * gradient",
        "wrong normaliser",
        "the exponential gradient without its normaliser",
    ),
)
