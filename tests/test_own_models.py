"""The snippets of the pages on own models: each is executed as it stands, and its numbers are compared with
other computations.
"""

import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.pages import blocks
from tests.problems import timm_vit
from tests.problems.copies import few_copies
from transformer_theory.cli import main
from transformer_theory.comparison import user_models
from transformer_theory.core.metric import WORDS
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, UNTRAINED
from transformer_theory.probes.measure import NEEDS_CAUSAL
from transformer_theory.report.html_page import head_of_network

FOLDER = "docs/own_models"
HEADS, LAYERS = 4, 2  # of all networks on the pages
ENTROPY, NEEDS_W = "attention entropy", "cosine to the max-margin direction"


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Few draws and networks, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    few_copies(monkeypatch)
    monkeypatch.setattr(user_models, "HEADLINE_DRAWS", 19)


def entropies(weights: Tensor) -> Tensor:
    """Mean entropy over sequences and queries of attention ``[n, heads, queries, keys]``, in nats."""
    return torch.special.entr(weights.double()).sum(-1).mean((0, 2))


def values(result: Result, quantity: str, layer: int) -> Tensor:
    """The values of a quantity in the heads of a layer, which must be all of them."""
    rows = result.select(quantity=quantity, layer=layer)
    assert [row.head for row in rows] == list(range(HEADS))
    return torch.tensor([row.value for row in rows], dtype=torch.float64)


def reason(result: Result, quantity: str) -> str:
    """Why a quantity has no value in any layer."""
    rows = [row for row in result.table if row.quantity == quantity]
    assert rows
    assert all(row.value is None for row in rows), quantity
    return rows[0].reason


def measured(result: Result, quantity: str, theory: str | None = None) -> list:
    rows = [
        row
        for row in result.table
        if (row.quantity, row.setting) == (quantity, "")
        and row.layer is not None
        and theory in (None, row.theory)
    ]
    return [row for row in rows if row.value is not None]


def with_chance(result: Result, quantity: str) -> None:
    """Every head has a value of this quantity and its chance level."""
    rows = measured(result, quantity)
    assert {(row.layer, row.head) for row in rows} == {
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    }
    assert all(row.null is not None and row.null.draws for row in rows)


def own_attention(names: dict[str, Any]) -> None:
    model, result, x = names["model"], names["result"], names["tokens"]
    with torch.no_grad():
        x = model.blocks[0](x)
        attention = model.blocks[1].attention
        query, key = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (attention.query, attention.key)
        )
        expected = entropies((query @ key.mT / 2).softmax(-1))
    torch.testing.assert_close(values(result, ENTROPY, 1), expected, rtol=1e-5, atol=1e-6)
    with_chance(result, NEEDS_W)
    text = Path("page/report.html").read_text(encoding="utf-8")
    assert "my classifier" in text
    assert "2 layers of 4 heads" in text


def multihead(names: dict[str, Any]) -> None:
    model, tokens = names["model"], names["tokens"]
    with torch.no_grad():
        x = model[1].norm(model[0](tokens))
        _, weights = model[1].attention(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(values(names["result"], ENTROPY, 1), entropies(weights), rtol=1e-5, atol=1e-6)
    with_chance(names["result"], NEEDS_W)
    assert reason(names["result"], "contextual share of the embeddings").startswith(
        "no input of the first block occurs twice"
    )


def encoder(names: dict[str, Any]) -> None:
    layer, tokens = names["encoder"].eval().layers[0], names["tokens"]
    with torch.no_grad():
        x = layer.norm1(tokens)
        _, weights = layer.self_attn(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(values(names["result"], ENTROPY, 0), entropies(weights), rtol=1e-5, atol=1e-6)


def eager(names: dict[str, Any], **inputs: Tensor) -> None:
    """The entropies are those of the weights that the model itself returns with its eager implementation."""
    model = names["model"].eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    for layer in range(LAYERS):
        torch.testing.assert_close(
            values(names["result"], ENTROPY, layer), entropies(weights[layer]), rtol=1e-4, atol=1e-5
        )


def vit(names: dict[str, Any]) -> None:
    eager(names, pixel_values=names["images"])
    with_chance(names["result"], "mass on the 4-neighbour patches")
    # 16 patches and the class token
    assert names["result"].arrays["network/small ViT/attention"].shape[-2:] == (17, 17)
    assert reason(names["result"], "repeated block") == NEEDS_CAUSAL
    result, images = names["result"], names["images"]
    # the second axis of images is not that of tokens
    assert "order cannot be changed" in reason(result, "permuted tokens")
    assert (result.settings["tokens"], result.settings["leading"]) == (17, 1)
    with torch.no_grad():
        right = names["model"].eval()(images).logits.argmax(1) == names["labels"]
    assert result.settings["right"] == pytest.approx(float(right.double().mean()))
    pictures = torch.from_numpy(result.arrays["network/images"]).flatten(1)
    assert (pictures.amin(1).tolist(), pictures.amax(1).tolist()) == ([0.0] * 4, [1.0] * 4)
    lead = head_of_network(result)["lead"]
    assert "2 layers of 4 heads" in lead
    assert "48 images of shape [3, 16, 16]; its largest output is the label in" in lead
    some = user_models.measure(names["model"], images, theories=["joma"], max_samples=8)
    assert some.settings["inputs"] == "8 of 48 images of shape [3, 16, 16]"
    assert "one measurement" in reason(some, "rebound of attention's entropy")


def gpt2(names: dict[str, Any]) -> None:
    eager(names, input_ids=names["ids"])
    result = names["result"]
    assert result.settings["causal"]
    maps = result.arrays["network/small GPT-2/attention"]
    assert not torch.from_numpy(maps).triu(1).any()
    matching = [
        row for row in result.select(theory="induction", quantity="prefix matching") if row.value is not None
    ]
    assert len(matching) == LAYERS * HEADS
    assert {row.null.kind for row in matching} == {"unrelated blocks"}
    assert WORDS in reason(result, "mass on the 4-neighbour patches")
    assert reason(result, "contraction of random weights").startswith("a mask hides keys")
    assert reason(result, "given chain").startswith("the context must hold 30 ids")
    cached(names["model"])


def cached(model: Any) -> None:
    """With a cache, later passes of ``generate`` have one query, so that tokens cannot collapse."""
    import transformer_theory as tt
    from transformer_theory.metrics import Geometry

    residuals = {}
    for use_cache in (True, False):
        with tt.probe(model, [Geometry()]) as probe:
            model.generate(
                torch.ones(1, 5, dtype=torch.long),
                max_new_tokens=2,
                do_sample=False,
                use_cache=use_cache,
                pad_token_id=0,
            )
        residuals[use_cache] = [
            row.value for row in probe.result().select(quantity="rank-collapse residual", step=1)
        ]
    assert residuals[True] == [0.0] * LAYERS
    assert min(residuals[False]) > 0


def llama(names: dict[str, Any]) -> None:
    eager(names, input_ids=names["ids"])
    for quantity in (NEEDS_W, "compression by attention"):
        assert "rotary positions" in reason(names["result"], quantity)
    with_chance(names["result"], "gap over the log of the keys")


def bert(names: dict[str, Any]) -> None:
    eager(names, input_ids=names["ids"], attention_mask=names["mask"])
    result = names["result"]
    assert result.settings["sequences"] == 48
    assert not result.settings["causal"]
    assert "needs a causal language model" in reason(result, "repeated blocks")
    with_chance(result, NEEDS_W)
    # the tests change the ids, without their padding
    exchanged = result.select(theory="particles", at={"test": "exchanged tokens"})
    assert all(row.value is not None for row in exchanged)
    assert any(len(row.null.draws) == 19 for row in exchanged if row.null)


def lightning(names: dict[str, Any]) -> None:
    during, after = names["during"], names["after"]
    assert sorted({row.step for row in during.table}) == [0, 3]
    bound = torch.log(torch.tensor(9.0)).item()  # nine keys
    assert all(0 < row.value <= bound for row in during.select(quantity=ENTROPY))
    assert len(during.select(quantity=ENTROPY)) == 2 * LAYERS * HEADS
    with_chance(after, "contraction of differences between tokens")


def lens(names: dict[str, Any]) -> None:
    torch.testing.assert_close(
        values(names["result"], ENTROPY, 1), entropies(names["pattern"]), rtol=1e-4, atol=1e-5
    )
    with_chance(names["result"], "contraction of differences between tokens")


def timm(names: dict[str, Any]) -> None:
    model = names["model"]
    seen: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        # the weights, written out
        block.attn.attn_drop.register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        model(names["images"])
    for layer in range(LAYERS):
        torch.testing.assert_close(
            values(names["result"], ENTROPY, layer), entropies(seen[layer]), rtol=1e-4, atol=1e-5
        )
    with_chance(names["result"], NEEDS_W)
    with_chance(names["result"], "mass on the 4-neighbour patches")
    quiet = functools.partial(
        user_models.measure, inputs=names["images"], theories=["attention_svm", "vision"]
    )
    sizes = names["sizes"]
    registers = quiet(timm_vit.VisionTransformer(**sizes, reg_tokens=4))
    with_chance(registers, "mass on the 4-neighbour patches")
    assert (registers.settings["tokens"], registers.settings["leading"]) == (21, 5)
    assert "queries or keys are normalised" in reason(
        quiet(timm_vit.VisionTransformer(**sizes, qk_norm=True)), NEEDS_W
    )
    with_chance(
        quiet(timm_vit.VisionTransformer(**sizes, global_pool="avg", class_token=False, init_values=0.1)),
        NEEDS_W,
    )


CHECKS: dict[str, tuple[Callable[[dict[str, Any]], None], ...]] = {
    "torch": (own_attention, multihead, encoder),
    "transformers": (vit, gpt2, llama, bert),
    "lightning": (lightning,),
    "transformer_lens": (lens,),
    "timm": (timm,),
}
SNIPPETS = {(page, code) for page, code in blocks("python") if page.startswith(FOLDER)}
NEEDED = {
    "transformer_lens": "transformer_lens",
    "lightning": "pytorch_lightning",
    "transformers": "transformers",
}


def snippets(page: str) -> list[str]:
    return [code for name, code in blocks("python") if name == f"{FOLDER}/{page}.md"]


def test_every_snippet_has_a_check():
    counted = sum(len(checks) for checks in CHECKS.values())
    assert {page: len(snippets(page)) for page in CHECKS} == {
        page: len(checks) for page, checks in CHECKS.items()
    }
    assert len(SNIPPETS) == counted + 1  # and the file for the command


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page, checks in CHECKS.items() for number in range(len(checks))]
)
def test_the_snippet_runs_and_its_numbers_are_right(
    page: str, number: int, monkeypatch: pytest.MonkeyPatch, unchecked
):
    if page in NEEDED and find_spec(NEEDED[page]) is None:
        pytest.skip(f"{NEEDED[page]} is not installed")
    if page == "timm":
        stand_in = ModuleType("timm")
        stand_in.create_model = timm_vit.create_model  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "timm", stand_in)
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(snippets(page)[number], f"{page}.md", "exec"), names)
        CHECKS[page][number](names)


def test_the_file_of_the_page_makes_a_page(capsys: pytest.CaptureFixture[str]):
    (code,) = snippets("overview")
    Path("net.py").write_text(code, encoding="utf-8")
    assert main(["measure", "net.py:small", "--theories", "scan_snap,collapse", "--out", "page"]) == 0
    assert "report: page/report.html" in capsys.readouterr().out
    result = Result.load("page")
    assert result.settings["sequences"] == 64
    assert result.settings["labels"] == 4
    with_chance(result, "contraction of differences between tokens")
    (mean,) = result.select(quantity="contraction of differences between tokens", layer=None)
    rows = measured(result, "contraction of differences between tokens")
    assert mean.value == pytest.approx(sum(row.value for row in rows) / len(rows))
    assert [null.kind for null in mean.nulls] == [EQUAL_SCALE, rows[0].nulls[1].kind, UNTRAINED]
    assert len(mean.null.draws) == 1
