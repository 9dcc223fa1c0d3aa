"""Calls of the public functions of metrics and of five theories, for :mod:`tests.test_scales`."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transformer_theory import metrics
from transformer_theory.theories import collapse, crate, length, particles, router


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
