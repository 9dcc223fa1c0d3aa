"""Blocks of CRATE: each returns the change of its step, a layer takes any of them, and the plain formulation
gives the same network.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from benchmarks.baselines.crate import FusedAttention, SoftmaxAttention, ThreeProductIsta
from tests.cases import each_case
from tests.problems.crate import gaussian, released_statistics_by_loops, statistics_by_loops
from transformer_theory.models import CRATE
from transformer_theory.models import crate as blocks
from transformer_theory.models.crate import sparsification
from transformer_theory.models.crate.compression import expansion
from transformer_theory.models.crate.sparsification import curvature
from transformer_theory.theories import crate
from transformer_theory.theories.crate import steps

SIZES = {"heads": 3, "head_dim": 4}
COMPRESSIONS = {
    "exact": lambda dim, **sizes: blocks.ExactAttention(dim, **sizes),
    "paper": lambda dim, **sizes: blocks.PaperAttention(dim, **sizes),
    "released": lambda dim, **sizes: blocks.ReleasedAttention(dim, **sizes),
    "token statistics": lambda dim, **sizes: blocks.TokenStatisticsAttention(dim, **sizes),
    "released token statistics": lambda dim, **sizes: blocks.ReleasedTokenStatisticsAttention(dim, **sizes),
    "causal exact": lambda dim, **sizes: blocks.CausalExactAttention(dim, context=9, **sizes),
    "causal paper": lambda dim, **sizes: blocks.CausalPaperAttention(dim, context=9, **sizes),
    "causal released": lambda dim, **sizes: blocks.CausalReleasedAttention(dim, **sizes),
    "causal token statistics": lambda dim, **sizes: blocks.CausalTokenStatisticsAttention(dim, **sizes),
    "causal released token statistics": lambda dim, **sizes: blocks.CausalReleasedTokenStatisticsAttention(
        dim, context=9, **sizes
    ),
    "orthogonal paper": lambda dim, **sizes: blocks.orthogonal(blocks.PaperAttention(dim, **sizes)),
}
SPARSIFICATIONS = {
    "one step": blocks.Ista,
    "three steps": lambda dim: blocks.Ista(dim, steps=3),
    "FISTA": blocks.Fista,
    "overcomplete": blocks.OvercompleteIsta,
}


def block(name, dim=12, **sizes):
    torch.manual_seed(0)
    return COMPRESSIONS[name](dim, **(SIZES | sizes)).double()


def after(module, tokens):
    """The step whose change the block returns."""
    U = module.subspaces()
    match module:
        case blocks.CausalExactAttention():
            return crate.causal_exact_step(tokens, U, kappa=module.kappa, eps=module.eps, context=9)
        case blocks.CausalPaperAttention():
            return steps.causal_paper_step(tokens, U, kappa=module.kappa, eps=module.eps, context=9)
        case blocks.CausalReleasedAttention():
            linear = module.to_out[0]
            return steps.causal_released_step(tokens, U, linear.weight.T.unflatten(0, (3, 4)), linear.bias)
        case blocks.TokenStatisticsAttention():  # the causal one too
            numbers = {"step": module.step, "eps": module.eps, "causal": module.is_causal}
            return torch.stack(
                [
                    statistics_by_loops(each, U.detach(), module.temperature.detach(), **numbers)
                    for each in tokens
                ]
            )
        case blocks.ReleasedTokenStatisticsAttention():  # the causal one too
            weights = dict(module.named_parameters())
            return tokens + torch.stack(
                [released_statistics_by_loops(weights, each, heads=3) for each in tokens]
            )
        case blocks.ExactAttention():
            return crate.exact_step(tokens, U, kappa=module.kappa, eps=module.eps)
        case blocks.PaperAttention():
            return crate.paper_step(tokens, U, kappa=module.kappa, eps=module.eps)
        case blocks.ReleasedAttention():
            linear = module.to_out[0]
            return crate.released_step(tokens, U, linear.weight.T.unflatten(0, (3, 4)), linear.bias)


@each_case("name", COMPRESSIONS)
def test_a_compression_block_returns_the_change_of_its_step(name):
    module, tokens = block(name), gaussian(2, 5, 12)
    for weight in ("temperature", "temp", "denom_bias"):  # constant at first
        if hasattr(module, weight):
            nn.init.normal_(getattr(module, weight), generator=torch.Generator().manual_seed(1))
    assert_close(tokens + module(tokens), after(module, tokens))
    assert module.is_causal == name.startswith("causal")


def test_the_step_of_token_statistics_is_given_as_its_share():
    module, tokens = block("token statistics"), gaussian(5, 12)
    kappa = module.step / expansion(module.subspaces(), n=5, eps=module.eps)
    stepped = crate.tssa_step(
        tokens, module.subspaces(), kappa=kappa, eps=module.eps, temperature=module.temperature
    )
    assert_close(tokens + module(tokens[None])[0], stepped)


@each_case("name", ["released", "paper", "causal released", "causal paper"])
def test_bilinear_gives_the_scores_of_the_kernel(name):
    module, tokens = block(name), gaussian(5, 12)
    scores = torch.einsum("id,kde,je->kji", tokens, module.bilinear(), tokens)  # [head, query, key]
    if module.is_causal:
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    expected = (scores.softmax(-1) @ (tokens @ module.subspaces())).transpose(0, 1).flatten(-2)
    assert_close(module.attend(tokens[None], scale=1.0 if "paper" in name else 0.5)[0], expected)


@each_case("higher", [2.8, 30.0, 300.0])
@each_case("name", [name for name in COMPRESSIONS if "token statistics" in name])
def test_memberships_that_underflow_give_no_nan(name, higher):
    """In float32 a head has no member: logits of equal tokens differ by (tau_2 - tau_1) p, more than the 104
    that exp can represent.
    """
    torch.manual_seed(0)
    module = COMPRESSIONS[name](128, heads=2, head_dim=64)
    temperature = module.temperature if hasattr(module, "temperature") else module.temp
    with torch.no_grad():
        temperature.copy_(torch.tensor([1.0, higher]).view_as(temperature))
    distinct, equal, zero = (
        gaussian(5, 128),
        gaussian(1, 128, seed=1).expand(5, 128),
        torch.zeros(5, 128, dtype=torch.float64),
    )
    tokens = torch.stack([distinct, equal, zero]).float().requires_grad_()
    exact = copy.deepcopy(module).double()(tokens.detach().double())
    result = module(tokens)
    assert_close(result.double(), exact, atol=1e-6, rtol=1e-5)
    (1e3 * result * gaussian(3, 5, 128, seed=2).float()).sum().backward()
    assert all(bool(each.grad.isfinite().all()) for each in (tokens, *module.parameters()))


@each_case("name", [name for name in COMPRESSIONS if name.startswith("causal")])
def test_a_causal_block_does_not_depend_on_later_tokens(name):
    module, tokens = block(name), gaussian(2, 7, 12)
    other = torch.cat([tokens[:, :4], gaussian(2, 3, 12, seed=5)], dim=1)
    past = module(tokens)[:, :4]
    assert_close(module(other)[:, :4], past, atol=1e-14, rtol=0)
    assert_close(module(tokens[:, :4]), past, atol=1e-14, rtol=0)
    plain = block(name.removeprefix("causal "))
    plain.load_state_dict(
        {weight: value for weight, value in module.state_dict().items() if weight != "denom_bias"}
    )
    assert (plain(other)[:, :4] - plain(tokens)[:, :4]).norm() > 1e-3 * past.norm()


@each_case("name", COMPRESSIONS)
def test_every_parameter_gets_a_gradient_also_under_autocast(name):
    torch.manual_seed(0)
    module, tokens = COMPRESSIONS[name](12, **SIZES), gaussian(2, 5, 12).float()
    wide = module(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = module(tokens.bfloat16())
    assert (narrow.float() - wide).norm() < 0.05 * wide.norm()
    narrow.float().square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) and float(p.grad.norm()) > 0 for p in module.parameters())


def test_orthogonal_subspaces_stay_orthogonal_in_training():
    module, tokens = blocks.orthogonal(block("paper")), gaussian(2, 5, 12)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    start = module.subspaces().detach()
    for _ in range(5):
        optimiser.zero_grad()
        (tokens + module(tokens)).pow(4).sum().backward()
        optimiser.step()
    bases = module.subspaces().detach()
    assert (bases - start).norm() > 0.1
    assert crate.incoherence(bases) < 1e-12
    assert crate.incompleteness(bases) < 1e-12
    assert crate.incoherence(block("paper").subspaces().detach()) > 0.1


def test_orthogonal_subspaces_must_fit_into_the_dimension():
    with pytest.raises(ValueError, match=r"got 3 \* 5 > 12"):
        blocks.orthogonal(blocks.PaperAttention(12, heads=3, head_dim=5))


@each_case("name", SPARSIFICATIONS)
def test_a_sparsification_block_is_its_steps(name):
    torch.manual_seed(0)
    module, tokens = SPARSIFICATIONS[name](12).double(), gaussian(2, 5, 12)
    D = module.weight
    expected = tokens
    if name == "overcomplete":
        expected = sparsification.overcomplete_code(tokens, D, eta=0.1, lam=0.1) @ module.decoder.T
    elif name == "FISTA":
        expected = sparsification.fista_steps(tokens, tokens, D, eta=0.1, lam=0.1, steps=4)
    else:
        for _ in range(module.steps):
            expected = crate.ista_step(expected, tokens, D, eta=0.1, lam=0.1)
    assert_close(module(tokens), expected)
    assert module.relative_step() == pytest.approx(0.1 * curvature(D.detach()))


def test_a_new_dictionary_of_square_size_allows_the_released_step():
    torch.manual_seed(0)
    assert 0.5 < blocks.Ista(192).relative_step() < 1


@each_case("sparsify", SPARSIFICATIONS)
@each_case("attention", COMPRESSIONS)
def test_a_layer_takes_any_pair_of_blocks(attention, sparsify):
    torch.manual_seed(0)
    layer = blocks.Layer(
        12, attention=block(attention), sparsify=SPARSIFICATIONS[sparsify](12).double()
    ).double()
    tokens = gaussian(2, 5, 12)
    half = tokens + layer[0].fn(layer[0].norm(tokens))
    sparse = layer[1].fn(layer[1].norm(half))
    assert_close(layer(tokens), half + sparse if sparsify == "overcomplete" else sparse)
    assert sparsify == "overcomplete" or (layer(tokens) >= 0).all()


def test_sizes_of_blocks_are_checked():
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        blocks.ReleasedAttention(12, heads=0, head_dim=4)
    with pytest.raises(ValueError, match="eta must be positive and finite, got 0"):
        blocks.Ista(12, eta=0.0)
    with pytest.raises(ValueError, match="lam must be positive and finite, got nan"):
        blocks.OvercompleteIsta(12, lam=float("nan"))
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        blocks.Fista(12, steps=0)
    with pytest.raises(ValueError, match="ratio must be at least 1, got 0"):
        blocks.OvercompleteIsta(12, ratio=0)


def test_the_block_of_the_docstring_has_the_interface():
    code = "\n".join(
        line[4:] for line in (blocks.__doc__ or "").splitlines() if line.startswith("    ") or not line
    )
    names = {name: getattr(blocks, name) for name in ("Subspaces", "Layer", "Ista")}
    torch.manual_seed(0)
    exec(code, names)
    layer, tokens = names["layer"].double(), gaussian(2, 5, 96)
    assert layer(tokens).shape == tokens.shape
    coords = layer[0].fn.coordinates(tokens)
    moved = torch.einsum("bknp,kdp->bnd", coords.mean(2, keepdim=True) - coords, layer[0].fn.subspaces())
    assert_close(layer[0].fn(tokens), 0.1 * moved)


def test_outputs_and_gradients_are_those_of_the_plain_formulation():
    sizes = {"image_size": 16, "patch_size": 4, "num_classes": 10, "dim": 24, "depth": 3, "heads": 3}
    torch.manual_seed(0)
    # 204 tokens, many for 24 dimensions
    images, labels = torch.randn(12, 3, 16, 16, dtype=torch.float64), torch.arange(12) % 10
    ours = CRATE.for_images(**sizes).double()
    fast = [ours(images)]
    functional.cross_entropy(fast[0], labels).backward()
    fast += [p.grad for p in ours.parameters()]
    for attention in (SoftmaxAttention, FusedAttention):
        plain = CRATE.for_images(**sizes, attention=attention, sparsify=ThreeProductIsta).double()
        plain.load_state_dict(ours.state_dict())
        expected = [plain(images)]
        functional.cross_entropy(expected[0], labels).backward()
        expected += [p.grad for p in plain.parameters()]
        for one, other in zip(fast, expected, strict=True):
            assert_close(one, other, atol=1e-13, rtol=1e-13)
