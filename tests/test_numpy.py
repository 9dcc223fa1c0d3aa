"""Public functions accept numpy arrays: float64, float32, integers and lists give what a float64 tensor
gives.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory import attention_svm, metrics, models
from transformer_theory.maths import linalg
from transformer_theory.metrics.networks import AttentionStatistics

# the run-time shape checks of the tests see arrays before they are converted
pytestmark = pytest.mark.usefixtures("unchecked")

# Small integers and multiples of 1/4, which every number type holds exactly.
POINTS = np.random.default_rng(0).integers(-4, 5, (12, 4))
LABELS = np.arange(12) % 3
WEIGHTS = np.array([[[0.5, 0.25, 0.25], [1, 0, 0], [0.25, 0.25, 0.5]]])
ALLOWED = np.ones((3, 3), dtype=bool)
BASIS = np.eye(4)[:, :2]
TOKENS, QUERY = (
    np.random.default_rng(1).integers(-5, 6, (3, 4, 8)),
    np.random.default_rng(2).integers(-5, 6, (3, 8)),
)
SELECT = np.array([0, 1, 2])

RATES = (
    "class_coding_rate",
    "class_coding_rate_gradient",
    "class_coding_rates",
    "compression_operators",
    "rate_reduction",
)
RATES += ("rate_reduction_gradient", "segmented_coding_length")
LENGTHS = (
    "centred_coding_length",
    "coding_length",
    "coding_rate",
    "coding_rate_gradient",
    "expansion_operator",
    "mean_coding_length",
)
ROWS = ("diagonal_mass", "effective_support", "entropy", "sink_mass", "top1_mass")
METRICS: dict[str, tuple[tuple, dict[str, Any]]] = {
    **{name: ((POINTS, LABELS), {"eps": 0.5}) for name in RATES},
    **{name: ((POINTS,), {"eps": 0.5}) for name in LENGTHS},
    **{name: ((WEIGHTS,), {}) for name in ROWS},
    **{name: ((POINTS,), {}) for name in ("effective_rank", "rank_collapse_residual", "stable_rank")},
    "alignment": ((POINTS[:4], POINTS[4:8]), {}),
    "entropy_lower_bound": ((np.array([0.0, 1.0, 2.0]),), {"keys": 4}),
    "hard_max_gap": ((WEIGHTS,), {"allowed": ALLOWED}),
    "neural_collapse": ((POINTS, LABELS), {"classifier": POINTS[:3]}),
    "numerical_rank": ((POINTS,), {"tolerance": 1e-6}),
    "principal_angles": ((BASIS, BASIS[::-1].copy()), {}),
    "rollout": ((WEIGHTS[None],), {}),
    "sharpness": ((WEIGHTS,), {"allowed": ALLOWED}),
    "subspace_coding_rate": ((POINTS, np.stack([BASIS, BASIS])), {"eps": 0.5}),
    "unit_norm": ((POINTS + 5,), {}),
}
LINALG: dict[str, tuple[tuple, dict[str, Any]]] = {
    "cosine": ((POINTS[:4], POINTS[4:8]), {}),
    "logdet_identity_plus": ((POINTS, 0.5), {}),
    "orthonormalise": ((BASIS + 1,), {}),
}
EVERY = np.zeros((3, 4), dtype=int)  # the first token, selected for every query
SOLVERS: dict[str, tuple[tuple, dict[str, Any]]] = {
    "alignment": ((np.eye(8), TOKENS, QUERY), {}),
    "analyse": ((TOKENS, QUERY, TOKENS[..., 0]), {"steps": (0, 5)}),
    "analyse_head": ((TOKENS, QUERY, np.arange(8), np.array([1, -1, 1])), {"steps": (0, 5)}),
    "causal": ((TOKENS, EVERY), {}),
    "constraints": ((TOKENS, QUERY, SELECT), {}),
    "generalised_max_margin": ((TOKENS, QUERY, np.tile([0.5, 0.5, 0, 0], (3, 1))), {}),
    "prompt": ((TOKENS, SELECT), {}),
    "self_attention": ((TOKENS, SELECT), {}),
    "sequence_to_sequence": ((TOKENS, TOKENS, EVERY), {"allowed": np.ones((3, 4, 4), dtype=bool)}),
}
# return constraints, which solvers take
BUILDERS = {"causal", "constraints", "prompt", "self_attention", "sequence_to_sequence"}
# a sampler without data; the other two have tests of their own below
OTHERS = {"cross_attention", "start", "graph_svm"}


def reals(function: Any) -> bool:
    """Whether a parameter of the function is a tensor."""
    return any(
        "Tensor" in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values()
    )


def walked(module: Any) -> set[str]:
    """The names of a module's public functions that take tensors."""
    return {
        name for name in module.__all__ if inspect.isfunction(one := getattr(module, name)) and reals(one)
    }


def test_every_public_function_has_a_case():
    assert walked(metrics) == METRICS.keys()
    assert walked(attention_svm) - OTHERS == SOLVERS.keys()


def tensor(value: Any) -> Any:
    """Arrays as tensors: integers that count stay integers, booleans stay booleans, everything else is
    float64.
    """
    if not isinstance(value, np.ndarray):
        return value
    keep = value.dtype == bool or any(value is one for one in (LABELS, SELECT, EVERY))
    return torch.as_tensor(value) if keep else torch.as_tensor(value).double()


def variants(value: Any) -> Iterator[Any]:
    """The array as it is, as float64, as float32, as 32-bit integers if it holds integers, and as a list."""
    if not isinstance(value, np.ndarray) or value.dtype == bool:
        yield from [value] * 5
        return
    whole, counts = value.dtype.kind == "i", any(value is one for one in (LABELS, SELECT, EVERY))
    yield value
    yield from (value, value) if counts else (value.astype(np.float64), value.astype(np.float32))
    yield value.astype(np.int32) if whole else value
    yield value.tolist()


def same(value: Any, expected: Any) -> None:
    """Compares two results field by field. Rates of float32 features are float32."""
    if isinstance(expected, torch.Tensor):
        single = torch.float32 in (value.dtype, expected.dtype)
        torch.testing.assert_close(
            value.double(), expected.double(), rtol=1e-3 if single else 1e-9, atol=1e-4 if single else 1e-9
        )
    elif hasattr(expected, "__dict__"):
        for name, one in vars(expected).items():
            same(getattr(value, name), one)


def run(module: Any, name: str, arguments: tuple, options: dict[str, Any]) -> Any:
    function = getattr(module, name)
    if "generator" in inspect.signature(function).parameters:
        options = {**options, "generator": torch.Generator().manual_seed(0)}
    result = function(*arguments, **options)
    return (
        attention_svm.frobenius_max_margin(result) if module is attention_svm and name in BUILDERS else result
    )


CASES = [
    (module, name, *case)
    for module, cases in ((metrics, METRICS), (linalg, LINALG), (attention_svm, SOLVERS))
    for name, case in cases.items()
]


@each_case(
    ("module", "name", "arguments", "options"),
    CASES,
    ids=[f"{m.__name__.split('.')[-1]}.{name}" for m, name, *_ in CASES],
)
def test_arrays_give_what_tensors_give(module, name, arguments, options):
    expected = run(
        module, name, tuple(map(tensor, arguments)), {key: tensor(value) for key, value in options.items()}
    )
    named = [zip(variants(value), [key] * 5) for key, value in options.items()]
    for given, *extra in zip(zip(*map(variants, arguments)), *named):
        same(run(module, name, given, {key: value for value, key in extra}), expected)


def test_half_precision_of_tensors_decides_the_tolerance_and_sums_are_float32():
    """The tolerance of a row sum depends on the precision in which the softmax was computed."""
    row = torch.tensor([[0.3, 0.3, 0.4]], dtype=torch.bfloat16)  # sums to 1.0039
    expected = -sum(p * np.log(p) for p in row[0].double().numpy())
    assert metrics.entropy(row).dtype == torch.float32
    assert float(metrics.entropy(row)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="must be distributions"):
        metrics.entropy(row.float().numpy())


def test_masks_hold_booleans():
    with pytest.raises(TypeError, match=r"allowed must hold booleans, got torch\.int64"):
        metrics.sharpness(WEIGHTS, allowed=ALLOWED.astype(int))


def test_descent_starts_from_arrays():
    instance = attention_svm.Instance(TOKENS, QUERY, TOKENS[..., 0], allowed=np.ones((3, 4), dtype=bool))
    state = attention_svm.start(instance, W=np.zeros((8, 8), dtype=np.float32))
    assert torch.equal(
        attention_svm.plain_descent(instance, state, steps=3).W,
        attention_svm.plain_descent(instance, attention_svm.start(instance), steps=3).W,
    )


@each_case("kind", [np.float64, np.float32, np.int64, np.uint8])
def test_token_data_takes_arrays(kind):
    tokens = np.arange(24).reshape(4, 3, 2).astype(kind)
    data = tt.TokenData(
        tokens=tokens, labels=np.array([0, 1, 0, 1], dtype=np.uint8), ids=np.zeros((4, 3), dtype=np.int32)
    )
    assert data.tokens.dtype == torch.float64
    assert data.tokens.tolist() == tokens.tolist()
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert (
        data[np.array([0, 2])].labels.tolist()
        == data[np.array([True, False, True, False])].labels.tolist()
        == [0, 0]
    )


def test_a_network_responds_to_arrays():
    torch.manual_seed(0)
    network = models.ViT.for_tokens(4, 3, 2)
    tokens, null = np.random.default_rng(0).normal(size=(2, 6, 4, 3))
    arrays = tt.respond(
        network, {"value": tokens, "null": null}, [AttentionStatistics()], targets=np.arange(6) % 2
    )
    value, other = torch.as_tensor(tokens), torch.as_tensor(null)
    tensors = tt.respond(
        network, {"value": value, "null": other}, [AttentionStatistics()], targets=torch.arange(6) % 2
    )
    assert len(arrays.table) > 1
    assert arrays.table == tensors.table


def test_a_probe_takes_labels_as_an_array():
    torch.manual_seed(0)
    network = models.ViT.for_tokens(4, 3, 2)
    tokens = torch.as_tensor(np.random.default_rng(0).normal(size=(6, 4, 3))).float()
    tables = []
    for labels in (np.arange(6) % 2, torch.arange(6) % 2):
        with tt.probe(network, tt.rate_reduction.THEORY.in_networks.metrics()) as probe:
            probe.labels = labels
            network(tokens)
        tables.append(probe.result().table)
    assert all(row.value is not None for row in tables[0])
    assert tables[0] == tables[1]
