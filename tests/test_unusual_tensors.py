"""Tensors that are not ordinary arrays of numbers get one clear line instead of an error of torch, and what
can be converted without loss is.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import activations, measure, metrics, models, probe, respond
from transformer_theory.core.validation import as_tensor
from transformer_theory.data import TokenData
from transformer_theory.metrics import AttentionStatistics

pytestmark = pytest.mark.usefixtures("unchecked")
F = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 2
X = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "channels": 3, "dim": 8, "depth": 1, "heads": 2}
    return models.ViT.for_images(**sizes, num_classes=3).eval()


def nested(layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.randn(3, 3), torch.randn(5, 3)], layout=layout)


def quantised(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


UNUSUAL = {
    "meta": (lambda x: x.to("meta"), "meta device"),
    "sparse": (lambda x: x.to_sparse(), r"sparse_coo; pass \w+.to_dense\(\)"),
    "compressed": (lambda x: x.flatten(1).to_sparse_csr(), r"sparse_csr; pass \w+.to_dense\(\)"),
    "quantised": (quantised, r"torch.qint8; pass \w+.dequantize\(\)"),
    "nested": (lambda x: nested(torch.strided), "a nested tensor; pad it"),
    "jagged": (lambda x: nested(torch.jagged), "a nested tensor; pad it"),
}
FUNCTIONS = {
    "rate": lambda x: metrics.coding_rate(x, eps=0.5),
    "reduction": lambda x: metrics.rate_reduction(x, Y, eps=0.5),
    "labels": lambda x: metrics.rate_reduction(F, x, eps=0.5),
    "collapse": lambda x: metrics.neural_collapse(x, Y),
    "rank": metrics.stable_rank,
    "norm": metrics.unit_norm,
    "moments": lambda x: metrics.SecondMoments().update(x, Y),
}


@each_case("function", FUNCTIONS)
@each_case("case", UNUSUAL)
def test_functions(case, function):
    make, words = UNUSUAL[case]
    with pytest.raises(ValueError, match=words) as caught:
        FUNCTIONS[function](make(F))
    assert "\n" not in str(caught.value)
    assert " must be " in str(caught.value)


@each_case("case", UNUSUAL)
@each_case(
    "call",
    [
        lambda x: measure(network(), x, theories=["router"], networks=1),
        lambda x: activations(network(), x),
        lambda x: respond(network(), x, [AttentionStatistics()]),
        lambda x: TokenData(x),
    ],
)
def test_inputs_of_networks(case, call):
    make, words = UNUSUAL[case]
    with pytest.raises(ValueError, match=words):
        call(make(X))


@each_case("function", FUNCTIONS)
@each_case("x", [None, F + 0j, F[:0], F[:, :0], F[0, 0], [["a", "b", "c"]] * 8, {"x": F}])
def test_other_types_and_empty_ones(function, x):
    if function == "norm" and isinstance(x, torch.Tensor) and x.shape == (0, 3):
        assert metrics.unit_norm(x).shape == (0, 3)
        return
    with pytest.raises((ValueError, TypeError), match=r"must|need") as caught:
        FUNCTIONS[function](x)
    assert "\n" not in str(caught.value)


def test_a_network_without_values():
    with torch.device("meta"):
        model = network()
    for call in (
        lambda: measure(model, X, theories=["router"]),
        lambda: activations(model, X),
        lambda: respond(model, X, [AttentionStatistics()]),
    ):
        with pytest.raises(ValueError, match="ViT must have weights, got parameters on the meta device"):
            call()
    with pytest.raises(ValueError, match="must have weights"), probe(model, [AttentionStatistics()]):
        model(X)
    model.to_empty(device="cpu").load_state_dict(network().state_dict())
    with torch.no_grad():
        assert_close(model(X), network()(X))
    assert activations(model, X)


def test_inputs_that_require_gradients_are_measured():
    plain, tracked = (
        measure(network(), x, Y, theories=["router"], networks=1).table
        for x in (X, X.clone().requires_grad_())
    )
    assert [row.value for row in plain] == [row.value for row in tracked]


def test_inputs_must_exist():
    with pytest.raises(ValueError, match="inputs must hold at least one array"):
        activations(network(), {})


@each_case("number", [np.float32, np.float16, np.float64, np.longdouble])
def test_a_distortion_may_be_a_number_of_numpy(number):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (metrics.coding_rate, lambda x, *, eps: metrics.rate_reduction(x, Y, eps=eps)):
            assert float(function(F.double(), eps=number(0.5))) == float(function(F.double(), eps=0.5))


def test_ordinary_tensors_are_not_copied():
    for x in (F, F.mT, F.half(), Y, Y > 0, F[:0], F.clone().requires_grad_()):
        assert as_tensor("x", x) is x
