"""One call of each public numerical function, for :mod:`tests.test_scales`."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import networkx
import numpy as np
import torch
from torch import Tensor

from transformer_theory import metrics
from transformer_theory.theories import (
    attention_svm,
    bottleneck,
    chain_of_thought,
    collapse,
    crate,
    graph_tokens,
    in_context,
    induction,
    joma,
    length,
    particles,
    random_features,
    rate_reduction,
    router,
    scan_snap,
    universal,
    vision,
)


class Case(NamedTuple):
    """A call ``function(*scaled, *others, **numbers)``.

    Attributes:
        function: the function.
        scaled: ordinary tensors, float64, of which multiples are passed.
        others: further arguments; floating-point tensors get the dtype of ``scaled``.
        numbers: real parameters at ordinary values.
        powers: the function is homogeneous if a number is multiplied by this power of the scale.
        degree: degree of homogeneity; None: no law.
        allowed: NaN or infinities that may be among the entries of the tensors.
        in_float32: whether float32 is accepted.
    """

    function: Callable[..., Any]
    scaled: tuple[Tensor, ...] = ()
    others: tuple[Any, ...] = ()
    numbers: Mapping[str, float] = MappingProxyType({})
    powers: Mapping[str, float] = MappingProxyType({})
    degree: float | None = None
    allowed: tuple[float, ...] = ()
    in_float32: bool = True

    def __call__(
        self,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float64,
        *,
        exact: bool = False,
        numbers: Mapping[str, float] = MappingProxyType({}),
    ) -> Any:
        """Calls the function with scaled tensors rounded to a dtype; ``exact``: rounded, but as float64."""

        def given(value: Any, factor: float = 1.0) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            value = (value * factor).to(dtype)
            return value.double() if exact else value

        tensors = [*(given(value, scale) for value in self.scaled), *(given(value) for value in self.others)]
        return self.function(*tensors, **{**self.numbers, **numbers})

    def at(self, scale: float) -> dict[str, float]:
        """Returns the numbers that keep the law at a scale."""
        return {
            name: float(self.numbers[name] * np.float64(scale) ** power)
            for name, power in self.powers.items()
        }


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distributions(*shape: int) -> Tensor:
    """Draws rows of multiples of 1/64, which half precision holds exactly, with the sum 1."""
    draws = torch.randint(shape[-1], (*shape[:-1], 64), generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.one_hot(draws, shape[-1]).double().mean(-2)


X = normal(12, 5)
LABELS = torch.arange(12) % 3
SOFT = distributions(12, 3)
BASES = torch.linalg.qr(normal(6, 6, seed=2)).Q.unflatten(1, (3, 2)).transpose(0, 1).contiguous()
TOKENS = normal(2, 8, 6, seed=3)
ONE = TOKENS[0]
MAPS = distributions(2, 3, 7, 7)
MANY = torch.tensor([[0.5, *[2.0**-17] * 65_536], [2.0**-16] * 65_536 + [0.0]], dtype=torch.float64)
MANY_SCORES = normal(2, 100_001, seed=5)
SCORES = 3 * normal(3, 7, seed=6)
MATRIX = normal(6, 6, seed=7) / 6
SQUARE = normal(5, 5, seed=8)
PLACES = torch.arange(7)
GROUPS = torch.arange(6) // 2

with_eps = {"numbers": {"eps": 0.5}, "powers": {"eps": 1}}

METRICS = {
    **{
        name: Case(getattr(metrics, name), others=(MAPS,))
        for name in ("diagonal_mass", "effective_support", "entropy", "sharpness", "sink_mass", "top1_mass")
    },
    **{
        f"{name}: many keys": Case(getattr(metrics, name), others=(MANY,))
        for name in ("effective_support", "entropy", "sharpness", "sink_mass", "top1_mass")
    },
    **{
        name: Case(getattr(metrics, name), (X,), degree=0, **with_eps)
        for name in ("coding_rate", "coding_length", "centred_coding_length", "mean_coding_length")
    },
    **{name: Case(getattr(metrics, name), (X,), degree=-1, **with_eps) for name in ("coding_rate_gradient",)},
    "expansion_operator": Case(metrics.expansion_operator, (X,), degree=-2, **with_eps),
    **{
        f"{name}{': memberships' * soft}": Case(
            getattr(metrics, name), (X,), (SOFT if soft else LABELS,), degree=degree, **with_eps
        )
        for soft in (False, True)
        for name, degree in {
            "class_coding_rate": 0,
            "class_coding_rate_gradient": -1,
            "class_coding_rates": 0,
            "compression_operators": -2,
            "rate_reduction": 0,
            "rate_reduction_gradient": -1,
            "segmented_coding_length": 0,
        }.items()
    },
    "alignment": Case(metrics.alignment, (X,), (normal(12, 5, seed=9),), degree=0),
    "alignment: both": Case(metrics.alignment, (X, normal(12, 5, seed=9)), degree=0),
    "effective_rank": Case(metrics.effective_rank, (TOKENS,), degree=0),
    "entropy_lower_bound": Case(metrics.entropy_lower_bound, (SCORES.abs(),), numbers={"keys": 7}),
    "entropy_lower_bound: many": Case(
        metrics.entropy_lower_bound, (SCORES.abs(),), numbers={"keys": 100_001}
    ),
    "hard_max_gap": Case(metrics.hard_max_gap, (SCORES,), degree=1),
    "neural_collapse": Case(metrics.neural_collapse, (X,), (LABELS,), degree=0),
    "neural_collapse: classifier": Case(
        lambda x, labels, w: metrics.neural_collapse(x, labels, classifier=w),
        (X,),
        (LABELS, normal(3, 5)),
        degree=0,
    ),
    "numerical_rank": Case(metrics.numerical_rank, (TOKENS,), numbers={"tolerance": 0.3}, degree=0),
    "principal_angles": Case(metrics.principal_angles, (TOKENS[:, :, :2],), (TOKENS[:, :, 3:],), degree=0),
    "rank_collapse_residual": Case(metrics.rank_collapse_residual, (TOKENS,), degree=0),
    "rollout": Case(metrics.rollout, others=(MAPS,)),
    "stable_rank": Case(metrics.stable_rank, (TOKENS,), degree=0),
    "subspace_coding_rate": Case(metrics.subspace_coding_rate, (TOKENS,), (BASES,), degree=0, **with_eps),
    "unit_norm": Case(metrics.unit_norm, (TOKENS,), degree=0),
}

beta = {"numbers": {"beta": 2.0}}
PARTICLES = {
    "attention": Case(particles.attention, (ONE,), **beta, powers={"beta": -2}, degree=0),
    "attention: causal": Case(
        partial(particles.attention, causal=True), (ONE,), **beta, powers={"beta": -2}, degree=0
    ),
    "common_cosine": Case(
        lambda n, beta, start: particles.common_cosine([1.0, 3.0], n=n, beta=beta, start=start),
        numbers={"n": 4, "beta": 2.0, "start": 0.1},
    ),
    "consensus_estimate": Case(particles.consensus_estimate, numbers={"t": 30.0, "n": 4, "beta": 1.0}),
    "count_clusters": Case(particles.count_clusters, (TOKENS,), numbers={"same": 0.3}, degree=0),
    # tokens that are not finite are named in the second result
    "directions": Case(particles.directions, (TOKENS,), degree=0, allowed=(math.nan,)),
    "energy": Case(particles.energy, (TOKENS,), **beta, degree=0),
    "flow": Case(
        lambda x: particles.flow(x, partial(particles.softmax_field, beta=1.0), times=[0.5], tolerance=1e-6),
        (ONE,),
        degree=0,
    ),
    "half_space_probability": Case(particles.half_space_probability, numbers={"n": 5, "d": 3}),
    "in_half_space": Case(particles.in_half_space, (ONE,), degree=0),
    "layer_cosine": Case(particles.layer_cosine, numbers={"cosine": 0.3, "n": 5.0, "beta": 2.0}),
    "layer_cosine_limit": Case(particles.layer_cosine_limit, numbers={"cosine": 0.3, "gamma": 2.0}),
    "mean_cosine": Case(particles.mean_cosine, (TOKENS,), degree=0),
    "pair_sums": Case(
        particles.pair_sums, (), (metrics.unit_norm(normal(4, 3, 5)), torch.ones(4, 3, dtype=torch.bool))
    ),
    "pre_norm_field": Case(particles.pre_norm_field, (TOKENS,), **beta, degree=0),
    "separation_time": Case(particles.separation_time, numbers={"beta": 2.0, "cosine": 0.3}),
    "softmax_field": Case(particles.softmax_field, (TOKENS,), **beta, degree=0),
    "softmax_field: matrices": Case(
        lambda x, B, V, beta: particles.softmax_field(x, beta=beta, bilinear=B, value=V),
        (TOKENS,),
        (MATRIX, MATRIX),
        **beta,
        degree=0,
    ),
    "tangent": Case(particles.tangent, (ONE,), (metrics.unit_norm(ONE.flip(0)),), degree=None),
    "unit": Case(particles.unit, (TOKENS,), degree=0),
    "unnormalised_field": Case(particles.unnormalised_field, (TOKENS,), **beta, degree=0),
}

W, V = normal(2, 3, 6, 6, seed=10) / 6, normal(2, 3, 6, 6, seed=11) / 6
COLLAPSE = {
    "bound_ratio": Case(collapse.bound_ratio, (), (ONE, 0.01 * ONE.flip(0), W, V)),
    "composite_norm": Case(collapse.composite_norm, (TOKENS,), degree=1),
    "contraction": Case(
        lambda x, A: collapse.contraction(A, x), (ONE,), (normal(8, 8).softmax(-1),), degree=0
    ),
    "contraction_of_tokens": Case(
        lambda v, rho, D, n: collapse.contraction_of_tokens(v, rho, n, D),
        (torch.tensor([0.5, 1.0], dtype=torch.float64),),
        (torch.tensor([0.1, 0.4], dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)),
        {"n": 8},
    ),
    "cosine_after": Case(collapse.cosine_after, numbers={"v": 0.5, "rho": 0.2, "n": 4, "d": 8.0}),
    "cubic_law": Case(lambda x, W, V: collapse.cubic_law(x, W, V), (), (ONE, MATRIX, MATRIX)),
    "depth_cosine": Case(collapse.depth_cosine, numbers={"alpha": 0.5, "layers": 4, "n": 8}),
    "dimension": Case(collapse.dimension, (TOKENS,), degree=0),
    "equiangular": Case(
        lambda rho, n, d: collapse.equiangular(n, d, rho, torch.Generator().manual_seed(0)),
        numbers={"rho": 0.3, "n": 3, "d": 5},
    ),
    "gaussian_participation": Case(
        lambda n, b: collapse.gaussian_participation(n, b, 3, torch.Generator().manual_seed(0)),
        numbers={"n": 5, "b": 1.0},
    ),
    "limit": Case(collapse.limit, numbers={"b": 0.5, "n": 8}),
    "log_bound": Case(collapse.log_bound, (), (ONE, W, V)),
    "log_bound: matrices": Case(lambda x, V, W: collapse.log_bound(x, W, V), (ONE, V), (W,)),
    "mean_cosine": Case(collapse.mean_cosine, (TOKENS,), degree=0),
    "participation": Case(collapse.participation, others=(MAPS,)),
    "participation: many keys": Case(collapse.participation, others=(MANY,)),
    "permuted_contraction": Case(collapse.permuted_contraction, others=(MAPS,)),
    "pure_attention": Case(collapse.pure_attention, (), (ONE, W[0], V[0])),
    "pure_attention: values": Case(
        lambda V, x, W: collapse.pure_attention(x, W, V), (V[0],), (ONE, W[0]), degree=1
    ),
    "residual": Case(collapse.residual, (TOKENS,), degree=1),
    "score_gradient": Case(
        lambda g, x, W, V: collapse.score_gradient(x, W, V, g), (ONE,), (ONE, MATRIX, MATRIX), degree=1
    ),
    "score_gradient: tokens": Case(
        lambda x, g, W, V: collapse.score_gradient(x, W, V, g), (ONE,), (ONE, MATRIX, MATRIX)
    ),
    "squared_contraction": Case(
        collapse.squared_contraction, numbers={"v": 0.5, "rho": 0.2, "n": 4, "d": 8.0}
    ),
    "stream": Case(
        lambda alpha, deviation, skip: collapse.stream(
            3, 5, 2, alpha, torch.Generator().manual_seed(0), deviation=deviation, skip=skip
        ),
        numbers={"alpha": 0.5, "deviation": 1.0, "skip": 1.0},
    ),
    "value_gradient": Case(lambda g, x, W: collapse.value_gradient(x, W, g), (ONE,), (ONE, MATRIX), degree=1),
    "value_gradient: tokens": Case(lambda x, g, W: collapse.value_gradient(x, W, g), (ONE,), (ONE, MATRIX)),
}

VALUES = normal(3, 7, 4, seed=12)
LENGTH = {
    "continuum_weight": Case(length.continuum_weight, numbers={"ratio": 0.7}),
    "kept_share": Case(length.kept_share, (SCORES, SCORES.flip(0))),
    "kept_share: one": Case(length.kept_share, (SCORES,), (SCORES.flip(0),)),
    # a key without weight makes the bound infinite
    "log_dispersion_bound": Case(length.log_dispersion_bound, (SCORES,), allowed=(-math.inf,)),
    "log_factor": Case(length.log_factor, numbers={"n": 100, "trained": 16}),
    "one_token_change": Case(
        lambda v, new, s, t: length.one_token_change(s, v, t, new),
        (VALUES, VALUES[:, 0]),
        (SCORES, SCORES[:, 1]),
        degree=1,
    ),
    "one_token_change: scores": Case(
        lambda s, t, v, new: length.one_token_change(s, v, t, new),
        (SCORES, SCORES[:, 1]),
        (VALUES, VALUES[:, 0]),
    ),
    "resampled_top_weight": Case(
        lambda pool, factor, n: length.resampled_top_weight(
            pool, n, factor=factor, generator=torch.Generator().manual_seed(0), samples=5
        ),
        (SCORES,),
        numbers={"factor": 1.0, "n": 9},
        powers={"factor": -1},
        degree=0,
    ),
    "score_gap": Case(length.score_gap, (SCORES,)),
    "score_gap: many keys": Case(length.score_gap, (MANY_SCORES,)),
    "top_weight": Case(length.top_weight, (SCORES,)),
    "top_weight: many keys": Case(length.top_weight, (0.01 * MANY_SCORES,)),
    "winner_weight": Case(length.winner_weight, (SCORES,), numbers={"n": 9.0}),
    "without_sink": Case(lambda v, A: length.without_sink(A, v), (VALUES[0],), (MAPS[0, 0],), degree=None),
}

ROUTER = {
    "best_accuracy": Case(
        lambda w: router.best_accuracy(torch.arange(12)[:, None] % 4, LABELS, w),
        (),
        (torch.full((12,), 1 / 12, dtype=torch.float64),),
    ),
    "entropy_gradient": Case(router.entropy_gradient, (SCORES,)),
    "gumbel_softmax": Case(
        partial(router.gumbel_softmax, hard=False),
        (SCORES, SCORES.flip(0)),
        numbers={"temperature": 2.0},
        powers={"temperature": 1},
        degree=0,
    ),
    "gumbel_softmax: hard": Case(
        router.gumbel_softmax,
        (SCORES, SCORES.flip(0)),
        numbers={"temperature": 2.0},
        powers={"temperature": 1},
        degree=0,
    ),
    "mixture": Case(router.mixture, numbers={"penalty": 0.1}),
    "relaxed_gradient_mean": Case(router.relaxed_gradient_mean, numbers={"delta": 0.3}),
    "sample_choice": Case(
        lambda s: router.sample_choice(s, 3, generator=torch.Generator().manual_seed(0)), (SCORES,)
    ),
    "straight_through": Case(router.straight_through, numbers={"penalty": 0.1}),
    "hit": Case(lambda: router.hit(LABELS, LABELS)),
    "label_blind_bound": Case(lambda hit: router.label_blind_bound(hit), numbers={"hit": 0.3}),
}

DICTIONARY = normal(6, 9, seed=13)
CODE = normal(2, 8, 9, seed=14).relu()
step = {"numbers": {"kappa": 0.05, "eps": 0.5}, "powers": {"kappa": 2, "eps": 1}, "degree": 1}
CRATE = {
    "causal_exact_step": Case(partial(crate.causal_exact_step, context=8), (TOKENS,), (BASES,), **step),
    "exact_step": Case(crate.exact_step, (TOKENS,), (BASES,), **step),
    "fista": Case(
        lambda y, D, lam: crate.fista(y, D, lam=lam, tol=1e-3, max_steps=100).code,
        (ONE,),
        (BASES.transpose(0, 1).flatten(1),),
        {"lam": 0.1},
        {"lam": 1},
        1,
    ),
    "fit_subspaces": Case(
        lambda x: crate.fit_subspaces(x, K=2, p=2, generator=torch.Generator().manual_seed(0), starts=2)[1],
        (ONE,),
        degree=0,
    ),
    "gradient_error": Case(crate.gradient_error, (0.1 * TOKENS,), (BASES,), degree=0, **with_eps),
    "incoherence": Case(crate.incoherence, others=(BASES + 0.1,)),
    "incompleteness": Case(crate.incompleteness, others=(BASES + 0.1,)),
    "ista": Case(partial(crate.ista, steps=5), (ONE,), (DICTIONARY,), {"lam": 0.1}, {"lam": 1}, 1),
    "ista_step": Case(
        crate.ista_step, (CODE, TOKENS), (DICTIONARY,), {"eta": 0.02, "lam": 0.1}, {"lam": 1}, 1
    ),
    "lasso": Case(crate.lasso, (CODE, TOKENS), (DICTIONARY,), {"lam": 0.1}, {"lam": 1}, 2),
    "lipschitz": Case(
        lambda b, n, eps: crate.lipschitz(b, n=n, eps=eps),
        (BASES,),
        numbers={"n": 8, "eps": 0.5},
        powers={"eps": 1},
        degree=0,
    ),
    "mssa": Case(crate.mssa, (TOKENS,), (BASES,), {"eps": 0.5, "scale": 1.0}, {"scale": -2}, 1),
    "neumann_error": Case(crate.neumann_error, numbers={"radius": 0.5, "terms": 2}),
    "nonzeros": Case(crate.nonzeros, (TOKENS.relu(),), degree=0),
    "nonzeros: many": Case(crate.nonzeros, (normal(2, 300, 300).relu(),), degree=0),
    "paper_step": Case(crate.paper_step, (TOKENS,), (BASES,), {"kappa": 0.05, "eps": 0.5}),
    "rate_gradient": Case(crate.rate_gradient, (TOKENS,), (BASES,), degree=-1, **with_eps),
    "released_step": Case(crate.released_step, (TOKENS,), (BASES, BASES.mT)),
    "sparse_rate_objective": Case(
        crate.sparse_rate_objective, (TOKENS,), (BASES,), {"eps": 0.5, "lam": 0.1}, {"eps": 1}, 0
    ),
    "top_mass": Case(crate.top_mass, (MAPS[0],), numbers={"mass": 0.6}, degree=0),
    "top_mass: many keys": Case(crate.top_mass, (MANY[None],), numbers={"mass": 0.6}, degree=0),
    "tssa_step": Case(crate.tssa_step, (TOKENS,), (BASES,), **step),
}

JOINT = torch.tensor([[0.3, 0.1, 0.05], [0.05, 0.3, 0.2]], dtype=torch.float64)
EIGENVALUES = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
BOTTLENECK = {
    "gaussian_bottleneck": Case(bottleneck.gaussian_bottleneck, others=(EIGENVALUES,), numbers={"beta": 3.0}),
    "information_bottleneck": Case(
        lambda joint, betas: bottleneck.information_bottleneck(joint, betas).points[0].compression,
        others=(JOINT,),
        numbers={"betas": 3.0},
    ),
    "onset": Case(lambda joint: bottleneck.onset(joint, starts=4, steps=20), others=(JOINT,)),
    "plug_in_bias": Case(bottleneck.plug_in_bias, numbers={"x": 3, "y": 4, "n": 10}),
    "random_joint": Case(
        lambda concentration: bottleneck.random_joint(
            2, 3, torch.Generator().manual_seed(0), concentration=concentration
        ),
        numbers={"concentration": 1.0},
    ),
    "sample_information": Case(
        lambda: bottleneck.sample_information(torch.arange(9) % 3, torch.arange(9) % 2)
    ),
    "rare_cluster": Case(
        bottleneck.rare_cluster,
        others=(JOINT, torch.tensor([0.7, 0.3], dtype=torch.float64)),
        numbers={"mass": 0.1},
    ),
}

D = 4
PROMPT = normal(3, 7, D, seed=15), normal(3, 7, seed=16), normal(3, D, seed=17), normal(3, seed=18)
COVARIANCE = normal(30, D, seed=19).mT @ normal(30, D, seed=19) / 30
STEP = normal(D, D, seed=20)


def prompted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of the tensors of prompts."""
    return lambda x, y, query, target, *args, **numbers: function(
        in_context.Prompts(x, y, query, target), *args, **numbers
    )


noisy = {"numbers": {"N": 10, "noise": 0.2}, "powers": {"noise": 1}}
IN_CONTEXT = {
    "compare_predictors": Case(
        lambda a, b: in_context.compare_predictors(a, {"other": b}), (ONE[0], ONE[1]), degree=None
    ),
    "dual_part": Case(
        lambda v, s: in_context.dual_part(s, v), (VALUES[0],), (MATRIX.new_ones(7, 7) * MAPS[0, 0],), degree=1
    ),
    "fourth_moment": Case(in_context.fourth_moment, (X,), degree=4),
    "gaussian_inputs": Case(
        lambda spectrum: in_context.gaussian_inputs(spectrum)((2,), torch.Generator().manual_seed(0)),
        (EIGENVALUES,),
        degree=0.5,
    ),
    "linear_prompts": Case(
        lambda noise: in_context.linear_prompts(
            2,
            3,
            in_context.gaussian_inputs(EIGENVALUES),
            noise=noise,
            generator=torch.Generator().manual_seed(0),
        ),
        numbers={"noise": 0.1},
    ),
    "gamma": Case(in_context.gamma, (COVARIANCE,), degree=1, **noisy, in_float32=False),
    "lasso_transformer": Case(
        prompted(in_context.lasso_transformer),
        PROMPT,
        (),
        {"strength": 0.1, "layers": 3},
        {"strength": 2},
        None,
    ),
    "lasso_transformer: labels": Case(
        lambda y, x, query, target, **k: prompted(in_context.lasso_transformer)(x, y, query, target, **k),
        (PROMPT[1],),
        (PROMPT[0], *PROMPT[2:]),
        {"strength": 0.1, "layers": 3},
        {"strength": 1},
        1,
    ),
    "logistic_transformer": Case(
        prompted(in_context.logistic_transformer),
        (),
        (PROMPT[0], (PROMPT[1] > 0).double(), *PROMPT[2:]),
        {"eta": 0.1, "layers": 3},
    ),
    "one_step": Case(lambda G, *p: prompted(in_context.one_step)(*p, G.double()), (STEP,), PROMPT, degree=1),
    "optimal_step": Case(in_context.optimal_step, (COVARIANCE,), degree=-1, **noisy, in_float32=False),
    "preconditioner": Case(in_context.preconditioner, (COVARIANCE,), degree=-1, **noisy, in_float32=False),
    "preconditioner: fourth": Case(
        lambda c, N, noise: in_context.preconditioner(c, N, noise=noise, fourth=c.square()),
        (COVARIANCE,),
        degree=-1,
        in_float32=False,
        **noisy,
    ),
    "recursive_least_squares": Case(
        prompted(in_context.recursive_least_squares), PROMPT, (), {"strength": 0.1}, {"strength": 2}, 1
    ),
    "ridge_transformer": Case(
        lambda y, x, query, target, **k: prompted(in_context.ridge_transformer)(x, y, query, target, **k),
        (PROMPT[1],),
        (PROMPT[0], *PROMPT[2:]),
        {"strength": 0.1, "layers": 3},
        {},
        1,
    ),
    "risk": Case(
        lambda c, G, N, noise: in_context.risk(G.double(), c, N, noise=noise),
        (),
        (COVARIANCE, STEP),
        {"N": 10, "noise": 0.2},
        in_float32=False,
    ),
    "select": Case(
        prompted(partial(in_context.select, strengths=(0.1, 1.0), held_out=2, layers=3)),
        (),
        PROMPT,
        {"temperature": 1.0},
    ),
}

EMBEDDING = normal(9, 6, seed=21)
INDUCTION = {
    "capacity": Case(induction.capacity, numbers={"d": 64}),
    "copying_score": Case(
        induction.copying_score,
        (normal(2, 6, 3, seed=22), normal(2, 3, 6, seed=23)),
        (EMBEDDING, EMBEDDING.mT),
        degree=0,
    ),
    "copying_score: all": Case(
        induction.copying_score,
        (normal(2, 6, 3, seed=22), normal(2, 3, 6, seed=23), EMBEDDING, EMBEDDING.mT),
        degree=0,
    ),
    "predicted_recall": Case(induction.predicted_recall, numbers={"N": 100, "d": 64}),
    # some weights are not read
    "score_weights": Case(
        induction.score_weights,
        others=(torch.cat([MAPS, MAPS[..., :1]], -1)[..., :6, :6],),
        allowed=(math.nan,),
    ),
}

INPUTS = normal(4, 5, 3, seed=24)
RANDOM_FEATURES = {
    "arc_cosine": Case(
        random_features.arc_cosine,
        (torch.tensor([1.0, -0.5], dtype=torch.float64), torch.tensor([2.0, 1.0], dtype=torch.float64)),
        (torch.tensor([1.5, 0.7], dtype=torch.float64),),
        degree=1,
    ),
    "attention_kernel": Case(random_features.attention_kernel, (INPUTS,), numbers={"spread": 0.5}),
    "mlp_kernel": Case(random_features.mlp_kernel, (INPUTS,)),
    "share_explained": Case(random_features.share_explained, (X, X + 0.1 * X.flip(0)), degree=0),
}

RATE_REDUCTION = {
    "construct": Case(
        lambda x, eps, step, sharpness: (
            rate_reduction.construct(x, LABELS, layers=2, eps=eps, step=step, sharpness=sharpness).rates
        ),
        (X,),
        numbers={"eps": 0.5, "step": 0.5, "sharpness": 500.0},
        degree=0,
    ),
    "construct_shift_invariant": Case(
        lambda x, eps, step, sharpness: (
            rate_reduction.construct_shift_invariant(
                x, LABELS, layers=2, eps=eps, step=step, sharpness=sharpness
            ).rates
        ),
        (normal(12, 2, 5, seed=25),),
        numbers={"eps": 0.5, "step": 0.5, "sharpness": 500.0},
        degree=0,
    ),
    "flat_reduction": Case(partial(rate_reduction.flat_reduction, [5, 8], [2, 3], 6), numbers={"eps": 0.5}),
    "gaussian_toy": Case(
        lambda noise: rate_reduction.gaussian_toy(
            3, 4, noise=noise, generator=torch.Generator().manual_seed(0)
        ),
        numbers={"noise": 0.1},
    ),
    "guaranteed_step": Case(rate_reduction.guaranteed_step, numbers={"n": 10, "dim": 5, "eps": 0.5}),
    "largest_rank": Case(rate_reduction.largest_rank, numbers={"size": 5, "n": 10, "dim": 5, "eps": 0.5}),
    "layer": Case(
        lambda x, eps: rate_reduction.layer(x, LABELS, eps=eps), (X,), degree=None, numbers={"eps": 0.5}
    ),
    "lift": Case(rate_reduction.lift, (normal(3, 2, 5, seed=26),), (normal(4, 2, 3, seed=27),), degree=1),
    "maximise": Case(
        lambda eps: rate_reduction.maximise(
            [3, 4], [1, 2], 4, eps=eps, generator=torch.Generator().manual_seed(0), steps=3
        )[2],
        numbers={"eps": 0.5},
    ),
    "nearest_subspace": Case(
        lambda x, test, rank: rate_reduction.nearest_subspace(x, LABELS, test, rank=rank),
        (X, normal(6, 5, seed=28)),
        numbers={"rank": 2},
        degree=0,
    ),
    "optimum": Case(partial(rate_reduction.optimum, [5, 8], 6), numbers={"eps": 0.5}),
    "polar": Case(
        lambda x: rate_reduction.polar(x, rings=2, angles=4), (normal(2, 1, 8, 8, seed=29),), degree=1
    ),
}

TREE = {"classes": 4, "vocab_size": 20, "eta_y": 1.0, "eta_z": 0.1, "overlap": 0.3}
CLASSES = scan_snap.synthetic(2, common=2, distinct=2)
TIMES = torch.tensor([5.0, 50.0], dtype=torch.float64)
SCAN_SNAP = {
    "alike": Case(
        lambda w, common_share: scan_snap.alike(3, vocab_size=20, weights=w, common_share=common_share),
        (ONE[0].abs(),),
        numbers={"common_share": 0.3},
        degree=0,
    ),
    "exact_flow": Case(
        lambda t: scan_snap.exact_flow(CLASSES, t, eta_y=1.0, eta_z=0.1).logits, others=(TIMES,)
    ),
    "growth_exponents": Case(scan_snap.growth_exponents, (TIMES,), numbers=TREE),
    "lemma4_flow": Case(
        lambda t: scan_snap.lemma4_flow(CLASSES, t, eta_y=1.0, eta_z=0.1).logits, others=(TIMES,)
    ),
    "modified_flow": Case(
        lambda t, eta_y, eta_z: scan_snap.modified_flow(CLASSES, t, eta_y=eta_y, eta_z=eta_z).logits,
        others=(TIMES,),
        numbers={"eta_y": 1.0, "eta_z": 0.1},
    ),
    "relative_gains": Case(
        lambda z: scan_snap.relative_gains(
            scan_snap.single_common(torch.tensor([[1.0, 2.0], [3.0, 1.0]]), 0.3, vocab_size=9), z
        ),
        (normal(2, 1, 5, seed=37),),
    ),
    "single_common": Case(
        lambda w, common_share: scan_snap.single_common(w, common_share, vocab_size=60).conditional,
        (ONE.abs(),),
        numbers={"common_share": 0.3},
        degree=0,
    ),
    "with_overlap": Case(
        lambda w, overlap: scan_snap.with_overlap(3, vocab_size=30, weights=w, overlap=overlap),
        (ONE[0].abs(),),
        numbers={"overlap": 0.3},
        degree=0,
    ),
    **{
        f"symmetric_{name}": Case(
            lambda t, eta_y, eta_z, name=name: getattr(scan_snap, f"symmetric_{name}")(
                scan_snap.alike(3, vocab_size=20, weights=torch.tensor([1.0, 2.0]), common_share=0.3),
                t,
                eta_y=eta_y,
                eta_z=eta_z,
            ),
            others=(TIMES,),
            numbers={"eta_y": 1.0, "eta_z": 0.1},
        )
        for name in ("exact_flow", "lemma4_flow", "modified_flow")
    },
}

KEYS, QUERY, SELECT = normal(3, 4, 6, seed=30), normal(3, 2, seed=31), torch.tensor([0, 1, 2])
solved = lambda solve: lambda x, z, **numbers: solve(attention_svm.constraints(x, z, SELECT), **numbers).W  # noqa: E731


def batched(solve: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Tensor, z: Tensor) -> Tensor:
        solution = solve(attention_svm.constraints(x[None], z[None], SELECT[None]))
        if not bool(solution.solved.all()):
            raise ValueError("the status of a problem in a batch says that it was not solved")
        return solution.W

    return call


def descended(instance: attention_svm.Instance, name: str, **numbers: float) -> Tensor:
    state = attention_svm.start(instance, W=normal(6, 2, seed=34))
    return getattr(attention_svm, name)(instance, state, steps=3, **numbers).W


ATTENTION_SVM = {
    **{
        name: Case(
            lambda x, z, s, name=name, **numbers: descended(attention_svm.Instance(x, z, s), name, **numbers),
            (),
            (KEYS, QUERY, KEYS[..., 0]),
            {"rate": 0.1} | ({"power": 3.0} if name == "mirror_descent" else {}),
        )
        for name in ("mirror_descent", "normalised_descent", "plain_descent")
    },
    "alignment": Case(
        lambda W, x, z: attention_svm.alignment(W, x, z, generator=torch.Generator().manual_seed(0)).cosine,
        (normal(6, 2, seed=33),),
        (KEYS, QUERY),
        degree=0,
    ),
    "start": Case(
        lambda W: attention_svm.start(attention_svm.Instance(KEYS, QUERY, KEYS[..., 0]), W=W).W,
        (normal(6, 2, seed=33),),
        degree=1,
    ),
    "causal": Case(
        lambda x: attention_svm.causal(x, torch.zeros(3, 4, dtype=torch.long)).difference, (KEYS,), degree=1
    ),
    "constraints": Case(
        lambda x, z: attention_svm.constraints(x, z, SELECT).difference, (KEYS,), (QUERY,), degree=1
    ),
    "frobenius_max_margin": Case(solved(attention_svm.frobenius_max_margin), (KEYS,), (QUERY,), degree=-1),
    "frobenius_max_margins": Case(
        batched(attention_svm.frobenius_max_margins),
        (KEYS,),
        (QUERY,),
        degree=-1,
    ),
    "generalised_max_margin": Case(
        lambda x, z, a, threshold: (
            attention_svm.generalised_max_margin(x, z, a, threshold=threshold).direction.W
        ),
        (KEYS,),
        (QUERY, torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 3, dtype=torch.float64)),
        {"threshold": 1e-3},
        degree=-1,
    ),
    "lp_max_margin": Case(solved(attention_svm.lp_max_margin), (KEYS,), (QUERY,), {"p": 1.5}, degree=None),
    "nuclear_max_margin": Case(solved(attention_svm.nuclear_max_margin), (KEYS,), (QUERY,), degree=None),
    "nuclear_max_margins": Case(
        batched(attention_svm.nuclear_max_margins),
        (KEYS,),
        (QUERY,),
        degree=None,
    ),
    "prompt": Case(lambda x: attention_svm.prompt(x, SELECT).difference, (KEYS,), degree=1),
    "self_attention": Case(lambda x: attention_svm.self_attention(x, SELECT).difference, (KEYS,), degree=1),
    "sequence_to_sequence": Case(
        lambda x, z: attention_svm.sequence_to_sequence(x, z, torch.zeros(3, 4, dtype=torch.long)).difference,
        (KEYS,),
        (KEYS,),
        degree=1,
    ),
}

SYMMETRIC = SQUARE @ SQUARE.mT
OTHER = SQUARE.mT @ SQUARE
GRID = torch.tensor([0, 0, 1, 1, 2, 2])
WEIGHTS = torch.tensor([[32, 16, 8, 4, 2, 2]] * 6, dtype=torch.float64) / 64
IDS = torch.arange(24).reshape(8, 3) % 4
VISION = {
    "attention_mass": Case(vision.attention_mass, others=(MAPS[0], torch.arange(7).expand(3, 7) > 3)),
    "attention_mass: many keys": Case(
        lambda w: vision.attention_mass(w[:, None], torch.arange(65_537).expand(2, -1) > 0), others=(MANY,)
    ),
    "chance": Case(vision.chance, numbers={"patches": 12, "group": 3}),
    "group_mass": Case(vision.group_mass, others=(WEIGHTS, GRID)),
    "group_ranking": Case(vision.group_ranking, (MATRIX,), (GRID,), degree=0),
    "group_accuracy": Case(
        lambda linear: vision.group_accuracy(vision.SpatialPatchData(12, 3), linear=linear),
        numbers={"linear": 0.1},
    ),
    "hsic": Case(vision.hsic, (SYMMETRIC,), (OTHER,), degree=1),
    "hsic: both": Case(vision.hsic, (SYMMETRIC, OTHER), degree=2),
    "mean_margin": Case(vision.mean_margin, others=(WEIGHTS, GRID), numbers={"q": 0.3, "linear": 0.1}),
    "needed_samples": Case(partial(vision.needed_samples, [10, 100], [0.5, 0.9]), numbers={"target": 0.7}),
    "patch_association": Case(vision.patch_association, (MATRIX,), (GRID,)),
    "relevant_mass": Case(
        vision.relevant_mass, (MAPS[0],), (normal(3, 7, seed=32),), {"share": 0.3}, degree=0
    ),
    "relevant_share": Case(
        lambda threshold: vision.relevant_share(
            vision.word_posteriors(IDS, torch.arange(8) % 2, words=4, classes=2),
            IDS,
            torch.arange(8) % 2,
            threshold=threshold,
        ),
        numbers={"threshold": 0.01},
    ),
    "word_posteriors": Case(
        lambda shrinkage: vision.word_posteriors(
            IDS, torch.arange(8) % 2, words=4, classes=2, shrinkage=shrinkage
        ),
        numbers={"shrinkage": 5.0},
    ),
}

GROUP = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
UNIVERSAL = {
    "contextual_share": Case(universal.contextual_share, (ONE,), (GROUP,), degree=0),
    "smallest_distance": Case(
        universal.smallest_distance, (ONE,), (GROUP, torch.arange(8).double()), degree=0
    ),
}

CONTEXTS = joma.random_contexts(torch.Generator().manual_seed(0), distinct=3, common=2, classes=4)
JOMA = {
    "gaussian_block": Case(
        lambda scale, logit: joma.gaussian_block(
            CONTEXTS, units=3, scale=scale, logit=logit, generator=torch.Generator().manual_seed(0)
        ),
        numbers={"scale": 1.0, "logit": 0.0},
    ),
    "gradient_descent": Case(lambda rate: block_after("gradient_descent", rate=rate), numbers={"rate": 0.1}),
    "gradient_flow": Case(lambda step: block_after("gradient_flow", step=step), numbers={"step": 0.1}),
    "masked_leaf": Case(
        lambda sibling_rate: joma.masked_leaf(
            joma.uniform_tree(rho=0.5, levels=2, zero=(0.3, 0.6)),
            9,
            generator=torch.Generator().manual_seed(0),
            sibling_rate=sibling_rate,
        ),
        numbers={"sibling_rate": 1.0},
    ),
    "uniform_tree": Case(partial(joma.uniform_tree, levels=2, zero=(0.3, 0.6)), numbers={"rho": 0.5}),
}


def block_after(name: str, **numbers: float) -> Any:
    start = joma.gaussian_block(CONTEXTS, units=3, scale=1.0, generator=torch.Generator().manual_seed(0))
    return getattr(joma, name)(start, CONTEXTS, joma.Model(joma.Linear()), steps=3, **numbers).end


GRAPH = graph_tokens.tokenize_graph(networkx.path_graph(4), generator=torch.Generator().manual_seed(0))
LAYER = graph_tokens.random_layer(2, 3, 4, generator=torch.Generator().manual_seed(0))
PAIRS = distributions(15, 16, 16)
GRAPH_TOKENS = {
    "attention_maps": Case(partial(graph_tokens.attention_maps, GRAPH), numbers={"scale": 20.0}),
    "by_heads": Case(
        lambda x, scale: graph_tokens.by_heads(LAYER, x, GRAPH, scale=scale),
        (normal(4, 4, 2, seed=35),),
        numbers={"scale": 40.0},
    ),
    "by_sums": Case(partial(graph_tokens.by_sums, LAYER), (normal(4, 4, 2, seed=35),)),
    "head_scores": Case(
        lambda W: graph_tokens.head_scores(GRAPH, W), (normal(2, 10, 10, seed=36),), degree=1
    ),
    "overlap": Case(
        graph_tokens.overlap, others=(PAIRS, PAIRS.flip(0), torch.ones(15, 16, dtype=torch.bool))
    ),
    "worst_error": Case(lambda maps: graph_tokens.worst_error(maps, 4), others=(PAIRS,)),
}

CHAIN_OF_THOUGHT = {
    "expected_overlap": Case(chain_of_thought.expected_overlap, numbers={"questions": 100, "train": 30}),
}

CASES: dict[str, Case] = {
    f"{theory}.{name}": case
    for theory, cases in {
        "metrics": METRICS,
        "particles": PARTICLES,
        "collapse": COLLAPSE,
        "length": LENGTH,
        "router": ROUTER,
        "crate": CRATE,
        "bottleneck": BOTTLENECK,
        "in_context": IN_CONTEXT,
        "induction": INDUCTION,
        "random_features": RANDOM_FEATURES,
        "rate_reduction": RATE_REDUCTION,
        "scan_snap": SCAN_SNAP,
        "attention_svm": ATTENTION_SVM,
        "vision": VISION,
        "universal": UNIVERSAL,
        "chain_of_thought": CHAIN_OF_THOUGHT,
        "joma": JOMA,
        "graph_tokens": GRAPH_TOKENS,
    }.items()
    for name, case in cases.items()
}
