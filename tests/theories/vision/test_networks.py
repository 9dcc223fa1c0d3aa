"""The metrics of vision transformers and the label-relevant patches of data."""

from dataclasses import replace

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import NO_IMAGES, WORDS, Activations, Grid
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.models.vit import ViT
from transformer_theory.probes import probe
from transformer_theory.theories import vision
from transformer_theory.theories.vision import on_data
from transformer_theory.theories.vision.in_networks import DISTANCE, NEIGHBOURS, grid_distances


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention(
    weights: torch.Tensor,
    labels: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
    layer: int = 0,
    *,
    rows: int = 0,
    leading: int = 0,
    places: torch.Tensor | None = None,
) -> Activations:
    """Attention among patches in rows, behind ``leading`` tokens of which the first is read."""
    n, T = len(weights), weights.shape[-1]
    if tokens is None:
        tokens = torch.randn(n, T, 3, generator=generator(9))
    content = (torch.arange(T) >= leading).expand(n, T) if leading else None
    grid = NO_IMAGES
    if rows:
        at = (torch.arange(T) - leading).clamp(min=-1).expand(n, T) if places is None else places
        grid = Grid(rows, 16 // rows if places is not None else (T - leading) // rows, at)
    read = (torch.arange(T) == 0).expand(n, T) if leading else None
    return Activations(
        "attention",
        layer,
        "attention",
        tokens,
        tokens,
        weights=weights,
        labels=labels,
        content=content,
        read=read,
        grid=grid,
    )


def features(output: torch.Tensor, layer: int) -> Activations:
    return Activations(f"block {layer}", layer, "features", output, output)


def test_uniform_attention_and_attention_to_neighbours():
    near, distance = grid_distances(4, 4)
    for weights, mass, far in (
        (torch.full((16, 16), 1 / 16), float(near.sum()) / 240, float(distance.sum()) / 240),
        ((near / near.sum(1, keepdim=True)).float(), 1.0, 1.0),
        ((near + torch.eye(16)) / (1 + near.sum(1, keepdim=True)), 1.0, 1.0),
    ):
        metric = vision.PatchAttention()
        metric.update(attention(weights.float().expand(5, 1, 16, 16), rows=4))
        rows = {row.quantity: row.value for row in metric.compute()}
        assert rows[NEIGHBOURS] == pytest.approx(mass, abs=1e-6)
        assert rows[DISTANCE] == pytest.approx(far, abs=1e-6)


@pytest.mark.parametrize("kind", [vision.PatchAttention, vision.RelevantMass, vision.LayerSimilarity])
def test_halves_merge_to_the_whole(kind: type):
    n = 64
    weights = torch.softmax(torch.randn(n, 2, 17, 17, generator=generator()), -1)
    tokens, labels = (
        torch.randn(n, 17, 12, generator=generator(1)),
        torch.randint(2, (n,), generator=generator(2)),
    )
    whole, halves = kind(), [kind(), kind()]
    for metric, parts in (
        (whole, (slice(0, 32), slice(32, 64))),
        (halves[0], (slice(0, 32),)),
        (halves[1], (slice(32, 64),)),
    ):
        for part in parts:
            for layer in range(2):
                seen = tokens[part] + layer * tokens[part].square()
                metric.update(attention(weights[part], labels[part], seen, layer, rows=4, leading=1))
                metric.update(
                    features(tokens[part] + layer * tokens[part].square(), layer)
                ) if kind is vision.LayerSimilarity else None
    halves[0].merge(halves[1])
    restored = kind()
    restored.load_state_dict(whole.state_dict())
    found = whole.compute(draws=3)
    assert found == halves[0].compute(draws=3) == restored.compute(draws=3)
    assert all(row.value is not None for row in found)


def test_similar_layers_have_cka_1_and_independent_ones_0():
    metric = vision.LayerSimilarity()
    for batch in range(20):
        x, noise = torch.randn(2, 32, 4, 8, generator=generator(batch))
        rotation = torch.linalg.qr(torch.randn(32, 32, generator=generator(99))).Q
        rotated = (3 * x.flatten(1) @ rotation).reshape(x.shape) + 7
        for layer, output in enumerate((x, rotated, noise)):
            metric.update(features(output, layer))
    same, independent = metric.compute()
    assert same.value == pytest.approx(1, abs=1e-5)
    assert abs(independent.value) < 0.1


def relevant_network(attended: bool) -> tuple[vision.RelevantMass, torch.Tensor]:
    """Patches of noise; the patch at place k of 16 is large, and its sign is the label. The class token
    attends to it, or to another.
    """
    n = 300
    labels, place = (
        torch.randint(2, (n,), generator=generator()),
        torch.randint(16, (n,), generator=generator(1)),
    )
    tokens = 0.1 * torch.randn(n, 17, 2, generator=generator(2))
    tokens[torch.arange(n), 1 + place, 0] = 4.0 * (2 * labels - 1)
    chosen = place if attended else torch.randint(16, (n,), generator=generator(3))
    weights = torch.nn.functional.one_hot(1 + chosen, 17).float()[:, None, None].expand(n, 1, 17, 17)
    metric = vision.RelevantMass()
    metric.update(attention(weights, labels, tokens, leading=1))
    return metric, labels


def test_attention_to_the_relevant_patch_exceeds_the_maps_of_other_images():
    (row,) = relevant_network(True)[0].compute(draws=19)
    assert row.value > 0.75
    assert row.null.high < 0.4
    (row,) = relevant_network(False)[0].compute(draws=19)
    assert row.null.low <= row.value <= row.null.high


def test_attention_to_rare_words_is_no_finding_if_labels_are_random():
    """Posteriors of rare words are uncertain, so a map of relevance has them in front even for labels that
    mean nothing.
    """
    found = []
    for seed in range(10):
        n, draws = 400, generator(seed)
        rare = torch.rand(n, 16, generator=draws) < 0.05
        words = torch.where(rare, 8, torch.randint(8, (n, 16), generator=draws))
        patches = (3 * torch.randn(9, 6, generator=draws))[words] + 0.3 * torch.randn(
            n, 16, 6, generator=draws
        )
        weights = torch.softmax(2.0 * rare, -1)[:, None, None].expand(n, 1, 16, 16)
        metric = vision.RelevantMass()
        metric.update(attention(weights, torch.randint(5, (n,), generator=draws), patches))
        (row,) = metric.compute(draws=39)
        found.append(row.null.p(row.value, ">="))
    assert sum(p <= 0.05 for p in found) <= 3


@each_case(
    ("metric", "activations", "reason"),
    [
        (vision.PatchAttention, attention(torch.full((4, 1, 9, 9), 1 / 9)), "no images"),
        (vision.PatchAttention, attention(torch.ones(4, 1, 1, 1), rows=1), "a single place"),
        (vision.PatchAttention, attention(torch.eye(9).expand(4, 1, 9, 9), rows=3), "the patch itself"),
        (vision.PatchAttention, attention(torch.full((4, 1, 9, 9), torch.nan), rows=3), "not finite"),
        (vision.RelevantMass, attention(torch.full((4, 1, 9, 9), 1 / 9)), "no labels"),
        (
            vision.RelevantMass,
            attention(torch.full((8, 1, 9, 9), 1 / 9), torch.zeros(8, dtype=torch.long)),
            "one label",
        ),
        (
            vision.RelevantMass,
            attention(torch.full((8, 1, 9, 9), 1 / 9), torch.arange(8)),
            "expected at least 32 images",
        ),
        (
            vision.RelevantMass,
            attention(torch.full((8, 1, 9, 9), torch.nan), torch.arange(8) % 2),
            "not finite",
        ),
        (
            vision.RelevantMass,
            attention(torch.full((16, 1, 4, 4), 1 / 4), torch.arange(8), torch.zeros(8, 8, 3)),
            "sequences in windows",
        ),
        (vision.LayerSimilarity, features(torch.zeros(8, 4, 3), 0), "only one block"),
    ],
)
def test_inputs_that_do_not_fit_give_one_row_with_the_reason(
    metric: type, activations: Activations, reason: str
):
    measured = metric()
    measured.update(activations)
    rows = measured.compute(draws=2)
    assert len({row.quantity for row in rows}) == len(rows)
    for row in rows:
        assert row.value is None
        assert reason in row.reason


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("labels", [None, torch.full((8,), -1), torch.zeros(4, dtype=torch.long)])
def test_missing_labels_have_a_reason(labels: torch.Tensor | None):
    metric = vision.RelevantMass()
    metric.update(attention(torch.full((8, 1, 9, 9), 1 / 9), labels))
    (row,) = metric.compute(draws=2)
    assert row.value is None
    assert "no labels" in row.reason


def test_constant_features_have_a_reason():
    metric = vision.LayerSimilarity()
    for layer in range(2):
        metric.update(features(torch.ones(8, 4, 3), layer))
    (row,) = metric.compute()
    assert row.value is None
    assert "constant" in row.reason


def test_class_and_register_tokens_are_left_out_of_the_grid():
    weights = torch.rand(6, 2, 8 + 3, 8 + 3, generator=generator()).softmax(-1)
    plain = vision.PatchAttention()
    plain.update(attention(weights[..., 3:, 3:], rows=2))
    for count in (1, 3):
        metric = vision.PatchAttention()
        metric.update(attention(weights[..., 3 - count :, 3 - count :], rows=2, leading=count))
        assert [row.value for row in metric.compute()] == pytest.approx(
            [row.value for row in plain.compute()], rel=1e-6
        )


def test_each_image_may_have_other_patches():
    """Of the 16 places of a grid each image has six; the places are known."""
    weights = torch.rand(5, 2, 6, 6, generator=generator()).softmax(-1).double()
    places = torch.rand(5, 16, generator=generator(1)).argsort(1)[:, :6]
    metric = vision.PatchAttention()
    metric.update(attention(weights, rows=4, places=places))
    shares, spans = [], []
    for image in range(5):
        at = torch.stack([places[image] // 4, places[image] % 4], 1).double()
        distance = (at[:, None] - at).square().sum(-1).sqrt()
        W = weights[image, 0].clone().fill_diagonal_(0.0)
        W = W / W.sum(1, keepdim=True)
        shares.append((W * (distance == 1)).sum(1).mean())
        spans.append((W * distance).sum(1).mean())
    rows = {row.quantity: row.value for row in metric.compute() if row.head == 0}
    assert rows[NEIGHBOURS] == pytest.approx(float(torch.stack(shares).mean()), rel=1e-12)
    assert rows[DISTANCE] == pytest.approx(float(torch.stack(spans).mean()), rel=1e-12)


def test_words_are_no_patches():
    labels = torch.arange(40) % 2
    seen = replace(attention(torch.full((40, 1, 9, 9), 1 / 9), labels), grid=WORDS)
    for metric in (vision.PatchAttention(), vision.RelevantMass()):
        metric.update(seen)
        assert all(row.value is None and "words" in row.reason for row in metric.compute(draws=2))


def test_a_probe_measures_a_vit():
    model = ViT.for_tokens(9, 4, 3, dim=16, depth=2, heads=2)
    with probe(model, vision.THEORY.in_networks.metrics(), draws=2, grid=(3, 3)) as p, p.accumulate(0):
        model(torch.randn(16, 9, 4, generator=generator()))
    rows = [row for row in p.result().table if row.quantity == NEIGHBOURS]
    assert len(rows) == 4
    assert all(0 < row.value < 1 for row in rows)


def informative(n: int = 300, *, noise: bool = False) -> TokenData:
    """Tokens of noise; the token at place 1 shows the class."""
    labels = torch.randint(3, (n,), generator=generator(4))
    tokens = torch.randn(n, 4, 2, generator=generator(5), dtype=torch.float64)
    if not noise:
        tokens[:, 1] += 10.0 * torch.nn.functional.one_hot(labels, 3)[:, :2]
    return TokenData(tokens=tokens, labels=labels, name="informative")


def rows_on(data: TokenData, draws: int = 39) -> dict[str, Measurement]:
    table, _ = collect(on_data.measure(on_data.read(data), generator(), draws=draws))
    return {row.quantity: row for row in table}


def test_one_of_four_patches_is_relevant():
    row = rows_on(informative(1200))[on_data.SHARE]
    assert row.value == pytest.approx(0.25, abs=0.06)
    assert row.null.high < 0.15


def test_on_noise_the_share_is_inside_its_null():
    found = 0
    for seed in range(20):
        tokens = torch.randn(200, 6, 3, generator=generator(seed), dtype=torch.float64)
        data = TokenData(tokens=tokens, labels=torch.randint(3, (200,), generator=generator(100 + seed)))
        row = rows_on(data)[on_data.SHARE]
        found += (1 + sum(draw >= row.value for draw in row.null.draws)) / 40 <= 0.05
    assert found <= 4


@each_case(
    ("data", "reason"),
    [
        (replace(informative(), labels=None), "needs labels"),
        (replace(informative(), labels=torch.zeros(300, dtype=torch.long)), "needs at least two classes"),
        (replace(informative(), labels=torch.arange(300)), "needs at least 1200 images"),
        (replace(informative(), labels=(torch.arange(300) == 0).long()), "two classes with two images each"),
        (TokenData(tokens=torch.zeros(20, 300, 1), labels=torch.arange(20) % 2), "needs at most 256 patches"),
    ],
)
def test_data_that_do_not_fit_have_a_reason(data: TokenData, reason: str):
    found = on_data.read(data)
    assert isinstance(found, Unsupported)
    assert reason in found.reason
