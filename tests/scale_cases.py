"""One call of each public numerical function, for :mod:`tests.test_scales`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import networkx
import torch
from torch import Tensor

from tests.scale_table import (
    COLLAPSE,
    CRATE,
    LABELS,
    LENGTH,
    MANY,
    MAPS,
    MATRIX,
    METRICS,
    ONE,
    PARTICLES,
    ROUTER,
    SQUARE,
    VALUES,
    Case,
    X,
    distributions,
    normal,
)
from transformer_theory.theories import (
    attention_svm,
    bottleneck,
    chain_of_thought,
    graph_tokens,
    in_context,
    induction,
    joma,
    random_features,
    rate_reduction,
    scan_snap,
    universal,
    vision,
)

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
        others=(normal(2, 1, 5, seed=37),),
        allowed=(math.nan, math.inf, -math.inf),  # a gain may be infinite, a logit may be unread
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
            raise ValueError("each problem must have a solution, got the status of one without")
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
    start = joma.gaussian_block(CONTEXTS, units=4, scale=1.0, generator=torch.Generator().manual_seed(0))
    return getattr(joma, name)(start, CONTEXTS, joma.Model(joma.Linear()), steps=3, **numbers)


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
