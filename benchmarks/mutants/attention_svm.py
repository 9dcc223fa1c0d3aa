"""Mutants of attention_svm: gradients, descents, paths, constraints, solvers, local optimality, and finite
parts.
"""

from . import Mutant

ROOT = "theories.attention_svm."
GRADIENT, SPACES, JOINT, PATH = (
    ROOT + "dynamics." + part for part in ("gradient.Gradient.", "spaces.", "joint.", "path.")
)
BUILDERS, SOLVERS, BALANCE, NEXT = (
    ROOT + part for part in ("builders.", "solvers.", "balance.", "next_token.")
)

MUTANTS: tuple[Mutant, ...] = (
    # gradients
    Mutant(
        GRADIENT + "coefficients",
        ".sub_(scaled).mul_(slope)",
        ".sub_(scaled)",
        "dropped factor",
        "the gradient without the slope of the loss",
    ),
    Mutant(
        GRADIENT + "coefficients",
        "share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled).mul_(slope)",
        "scaled.neg().mul_(slope)",
        "missing projection",
        "the gradient without the mean score",
    ),
    Mutant(
        GRADIENT + "_distinct",
        "self.slope(best.sub_(minus_e)).mul_(minus_top)",
        "minus_top",
        "dropped factor",
        "the gradient for distinct scores without the slope of the loss",
    ),
    Mutant(
        GRADIENT + "_distinct",
        "pull.sum(-1, keepdim=True).mul_(minus_top)",
        "pull.sum(-1, keepdim=True).neg()",
        "wrong normaliser",
        "the gradient for distinct scores without the share of the most attended token",
    ),
    Mutant(
        ROOT + "problem.token_scores", "sign[..., None] * ", "", "dropped factor", "scores without the label"
    ),
    Mutant(
        ROOT + "dynamics.heads.relu_head",
        "(hidden > 0).to(V.dtype) @ V.mT",
        "torch.ones_like(hidden) @ V.mT",
        "dropped factor",
        "the gradient of the network without the derivative of its activation",
    ),
    # descent on W
    Mutant(
        ROOT + "dynamics.descent.trajectory",
        "rate_tensor / size.add_",
        "rate_tensor / size.square().add_",
        "wrong normaliser",
        "normalised steps divided by the squared norm",
    ),
    Mutant(
        ROOT + "dynamics.descent.plain_descent",
        "rate / instance.tokens.shape[-3]",
        "rate",
        "dropped factor",
        "constant steps without the factor 1/n of the mean loss",
    ),
    Mutant(
        SPACES + "Logits.__init__",
        "gram.mul_(_outer(data.query)[:, :, None, :, None])",
        "gram.mul_(1.0)",
        "dropped factor",
        "steps on logits without the inner products of the queries",
    ),
    Mutant(
        SPACES + "Logits.turned",
        "(free * direction).sum((-2, -1), keepdim=True)",
        "direction.square().sum((-2, -1), keepdim=True)",
        "wrong normaliser",
        "steps on logits divided by the norm of their own change",
    ),
    Mutant(
        SPACES + "Images.turned",
        "torch.bmm(self.queries, P)",
        "P.clone()",
        "dropped factor",
        "steps on images without the inner products of the queries",
    ),
    Mutant(
        ROOT + "dynamics.polyak.polyak_descent",
        " - log_size[..., 0, 0]",
        "",
        "dropped factor",
        "Polyak's step not divided by the norm of the gradient",
    ),
    Mutant(
        ROOT + "dynamics.mirror.mirror_descent",
        "signed_power(dual, 1 / (power - 1))",
        "signed_power(dual, 1 / power)",
        "wrong factor",
        "mirror descent with the inverse map of another potential",
    ),
    # descent on K and Q
    Mutant(
        SPACES + "Pair.__init__",
        "2 * penalty * data.inputs",
        "penalty * data.inputs",
        "dropped factor",
        "the penalty's gradient without its factor 2",
    ),
    Mutant(
        BALANCE + "common_norm_trajectory",
        "to_K.square().sum((-2, -1), keepdim=True) + ",
        "",
        "missing term",
        "the common norm without the gradient of K",
    ),
    Mutant(
        BALANCE + "imbalance",
        "state.K - state.Q",
        "state.K + state.Q",
        "flipped sign",
        "the sum of the factors' Gram matrices as their imbalance",
    ),
    Mutant(
        BALANCE + "penalised_residual",
        "(2 * penalty)",
        "penalty",
        "dropped factor",
        "the stationarity equations without the factor 2",
    ),
    # prompt and head
    Mutant(
        JOINT + "_descent_directions",
        "((log_slope - scale_v).exp() * mixture)",
        "mixture",
        "dropped factor",
        "the head's gradient without the slope of the loss",
    ),
    Mutant(
        JOINT + "_descent_directions",
        "scaled - share * scaled.sum(-1, keepdim=True)",
        "scaled",
        "missing projection",
        "the prompt's gradient without the mean score",
    ),
    Mutant(
        JOINT + "joint_targets",
        "support[pairs.input].double()",
        "(~support)[pairs.input].double()",
        "flipped sign",
        "p_relax with margins of the inputs that are no support vectors",
    ),
    Mutant(
        JOINT + "_equal_steps",
        "(head.margins - 1).clamp(min=0.0)[pairs.input] / head.norm",
        "(head.margins - 1).clamp(min=0.0)[pairs.input]",
        "dropped factor",
        "p_eq with label margins that are not divided by the norm of the head",
    ),
    Mutant(
        ROOT + "published.prompt_limit",
        "0.5 * (",
        "(",
        "dropped factor",
        "the limit of the prompt's second coordinate without its factor 1/2",
    ),
    # regularisation paths
    Mutant(
        PATH + "factored_path",
        "(2 * R) ** 0.5",
        "R**0.5",
        "dropped factor",
        "the ball of the factors with half the radius",
    ),
    Mutant(
        PATH + "projected_descent",
        "project(candidate)",
        "candidate",
        "missing projection",
        "the regularisation path without the projection onto the ball",
    ),
    # selections and constraints
    Mutant(
        ROOT + "selection.neighbour_advantage",
        "difference = difference - scores.gather(-1, select[..., None]).squeeze(-1).gather(-1, pairs.input)",
        "difference = scores.gather(-1, select[..., None]).squeeze(-1).gather(-1, pairs.input) - difference",
        "flipped sign",
        "neighbours that must score higher than the selected token",
    ),
    Mutant(
        ROOT + "selection.first_step_condition",
        "M, _ = descent_direction(instance, W)",
        "M = -descent_direction(instance, W)[0]",
        "flipped sign",
        "a first step up the loss",
    ),
    Mutant(
        ROOT + "sharing.least_push",
        "(attention * gain).sum(-1, keepdim=True) - gain",
        "gain - (attention * gain).sum(-1, keepdim=True)",
        "flipped sign",
        "tokens that the head pulls in, in the place of those that it pushes away",
    ),
    Mutant(
        BUILDERS + "constraints",
        "(selected - tokens.gather",
        "(-selected + tokens.gather",
        "flipped sign",
        "constraints that put the selected token last",
    ),
    Mutant(
        BUILDERS + "causal_mask",
        ".tril()",
        "",
        "missing term",
        "causal attention that sees the tokens after its position",
    ),
    Mutant(
        BUILDERS + "self_attention",
        "tokens[..., position, :]",
        "tokens[..., 0, :]",
        "swapped function",
        "self-attention with the first token as every query",
    ),
    Mutant(
        BUILDERS + "graph_svm",
        "equality=equality",
        "equality=torch.zeros_like(equality)",
        "missing term",
        "Graph-SVM without its equations",
    ),
    Mutant(
        ROOT + "graph.priority_graph",
        'connection="strong"',
        'connection="weak"',
        "swapped function",
        "weakly connected components of the graphs",
    ),
    Mutant(
        NEXT + "finite_part",
        "components.gather(1, labels[:, None])",
        "labels[:, None]",
        "swapped function",
        "the finite part with the label's id in the place of its component",
    ),
    # solutions
    Mutant(
        SOLVERS + "pairs.Pairs.gram",
        " * (self.query @ self.query.T)",
        "",
        "dropped factor",
        "the Gram matrix of the constraints without the queries",
    ),
    Mutant(
        SOLVERS + "nuclear.Reduced._checked",
        " * self.size[:, None, None]",
        "",
        "dropped factor",
        "the nuclear solution in the unit of the Frobenius solution",
    ),
    Mutant(
        SOLVERS + "newton_polish._newton",
        "Q) - Q)",
        "Q) + Q)",
        "flipped sign",
        "Newton's equations of the nuclear solution with a wrong sign",
    ),
    Mutant(
        SOLVERS + "generalised.Generalised.scale",
        'as_float64("W", W) - self.finite.W',
        'as_float64("W", W)',
        "missing term",
        "the scale R fitted without the finite part",
        equivalent="W_fin lies in the span of the equations, to which W_dir is orthogonal, so that <W_dir, "
        "W_fin> = 0",
    ),
    Mutant(
        BUILDERS + "multi_token",
        "level.gather(-1, reference[..., None]) - level.gather(-1, other)",
        "level.gather(-1, other) - level.gather(-1, reference[..., None])",
        "flipped sign",
        "the finite part with inverted ratios of attention",
    ),
    Mutant(
        ROOT + "feasibility.construct",
        "torch.linalg.pinv(rows) @ rhs[members]",
        "rows.mT @ rhs[members]",
        "swapped function",
        "the construction with the transpose in the place of the pseudo-inverse",
    ),
)
