"""Mutants of the theory of vision transformers."""

from . import Mutant

VISION = "theories.vision"
MUTANTS = (
    # The data and the model.
    Mutant(
        f"{VISION}.patches.sigma",
        "x * x * x",
        "x * x",
        "wrong factor",
        "a square, which loses the sign, for the cube",
    ),
    Mutant(
        f"{VISION}.patches.SpatialPatchData.coefficients",
        "u >= 1 - self.q / 2",
        "u >= 1 - self.q",
        "wrong factor",
        "twice as many -1",
    ),
    Mutant(
        f"{VISION}.patches.SpatialPatchData.coefficients",
        "labels[:, None], delta)",
        "1.0, delta)",
        "dropped factor",
        "no label in the group",
    ),
    Mutant(
        f"{VISION}.patches.group_accuracy",
        "C**3 + cubes",
        "C**2 + cubes",
        "wrong factor",
        "an active group that counts less",
    ),
    Mutant(
        f"{VISION}.patches.group_accuracy",
        "range(D // C - 1)",
        "range(D // C)",
        "wrong factor",
        "one group too many",
    ),
    Mutant(
        f"{VISION}.patches.group_accuracy",
        "0: 1 - q,",
        "0: 1 - q / 2,",
        "wrong factor",
        "a law that does not sum to one",
    ),
    # Association.
    Mutant(
        f"{VISION}.association.group_attention",
        "== groups)",
        "!= groups)",
        "swapped function",
        "attention to the other groups",
    ),
    Mutant(
        f"{VISION}.association.group_attention",
        "same / same.sum(1, keepdim=True)",
        "same",
        "wrong normaliser",
        "weights that sum to C",
    ),
    Mutant(
        f"{VISION}.association.other_group_attention",
        "order.roll(-size)",
        "order",
        "missing term",
        "rows that are not moved",
    ),
    Mutant(
        f"{VISION}.association.other_group_attention",
        "order.roll(-size)",
        "order.roll(-1)",
        "wrong factor",
        "rows moved by one patch",
    ),
    Mutant(
        f"{VISION}.association.group_mass",
        "1 - S.diagonal",
        "1 + S.diagonal",
        "flipped sign",
        "a share of too much weight",
    ),
    Mutant(
        f"{VISION}.association.group_mass",
        "(S * same).sum(-1)",
        "S.sum(-1)",
        "missing projection",
        "all weight as mass on the group",
    ),
    Mutant(
        f"{VISION}.association.mean_margin",
        "3 * q * g * r",
        "q * g * r",
        "dropped factor",
        "the variance once instead of three times",
    ),
    Mutant(
        f"{VISION}.association.mean_margin",
        "(1 - member)",
        "member",
        "swapped function",
        "squared weights of the own group",
    ),
    Mutant(
        f"{VISION}.association.mean_margin",
        "/ member.shape[1])",
        ")",
        "wrong normaliser",
        "a sum over groups",
    ),
    # Estimators.
    Mutant(
        f"{VISION}.in_networks._hsic",
        "free = 1 - torch.eye",
        "free = 1 + 0 * torch.eye",
        "missing term",
        "HSIC with the diagonal",
    ),
    Mutant(
        f"{VISION}.in_networks._hsic",
        "- 2 * (k @ m) / (n - 2)",
        "",
        "missing term",
        "HSIC without the cross term",
    ),
    Mutant(
        f"{VISION}.in_networks._hsic",
        "(K * L).sum() +",
        "(K * L).sum() -",
        "flipped sign",
        "HSIC with the product of the sums subtracted",
    ),
    Mutant(
        f"{VISION}.relevance.word_posteriors",
        "+ shrinkage * prior",
        "+ shrinkage",
        "dropped factor",
        "shrinkage that adds mass",
    ),
    Mutant(
        f"{VISION}.relevance.word_posteriors",
        "posterior.log() - prior.log()",
        "posterior.log()",
        "missing term",
        "a gain without the prior",
        equivalent="the mean stays below 0",
    ),
)
