"""Mutants of JoMA."""

from . import Mutant

JOMA = "theories.joma"
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
        "one_hot - logs.exp()",
        "one_hot - 1 / h.shape[-1]",
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
        f"{JOMA}.block.Exponential.attend",
        " / self.normaliser",
        "",
        "wrong normaliser",
        "exponential attention without its normaliser",
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
        f"{JOMA}.invariants.fixed_mean",
        "squares.sum(-2) - total * mean[0]",
        "squares.sum(-2)",
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
        f"{JOMA}.invariants.factorisation_error",
        "2 * model.ratio",
        "model.ratio",
        "dropped factor",
        "the factorised velocity at half its size",
    ),
    # The linear unit.
    Mutant(
        f"{JOMA}.orbit.orbit", "math.sqrt(2) * torch", "torch", "dropped factor", "the orbit without the root of two before the inverse erf"
    ),
    Mutant(f"{JOMA}.orbit.blow_up_time", "math.pi / 2", "math.pi", "wrong factor", "a blow-up time of the root of pi"),
    Mutant(
        f"{JOMA}.orbit.limits",
        "math.sqrt(2) * torch.erfinv(discriminancy / _largest(discriminancy))",
        "math.sqrt(2) * torch.erfinv((discriminancy / _largest(discriminancy)).square()) * discriminancy.sign()",
        "wrong factor",
        "limits with the square of the ratio of discriminancies",
    ),
    Mutant(
        f"{JOMA}.orbit.normalised_clock",
        "normaliser * grid *",
        "normaliser *",
        "dropped factor",
        "the clock without the Jacobian of ln r",
    ),
    Mutant(
        f"{JOMA}.orbit.normalised_clock",
        ".square() / 2)",
        ".square())",
        "dropped factor",
        "the normaliser with attention exp(v^2)",
    ),
    # Nonlinear units.
    Mutant(
        f"{JOMA}.nonlinear._speed",
        ".square() / 2",
        ".square()",
        "dropped factor",
        "the nonlinear flow with attention exp(v^2)",
    ),
    Mutant(
        f"{JOMA}.nonlinear.log_remaining",
        "mu[:, None].square() / 2 + (",
        "(",
        "dropped factor",
        "the linear tail with the speed of the start",
    ),
    Mutant(f"{JOMA}.nonlinear.learning_ratio", "mu.square() / 2", "mu.square()", "dropped factor", "speeds of exp(mu^2)"),
    Mutant(f"{JOMA}.nonlinear.salient_descent", "lambda v: mu - v", "lambda v: mu", "missing term", "the nonlinear pull without its restoring term"),
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
    Mutant(
        f"{JOMA}.nonlinear.linear_layer",
        "discriminancy / lengths",
        "discriminancy",
        "wrong normaliser",
        "linear columns that are not normalised",
    ),
    Mutant(f"{JOMA}.nonlinear.Bounce.rebound", "self.end - self.least", "self.start - self.least", "swapped function", "rebound to the start"),
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
        f"{JOMA}.tree.sample_leaves",
        "(1 + rho) / 2",
        "rho",
        "wrong factor",
        "nodes that keep their parent's value with probability rho",
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
    Mutant(
        f"{JOMA}.joint.Layer.forward",
        "+ copies.log()).masked_fill",
        ").masked_fill",
        "missing term",
        "a padding that counts once",
    ),
    # Networks.
    Mutant(
        f"{JOMA}.in_networks.gaussian_rank",
        " + TRACY_WIDOM_MEAN * scale",
        "",
        "missing term",
        "the null of the stable rank without the Tracy-Widom correction",
    ),
)
