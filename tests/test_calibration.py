"""Every test on data finds a planted effect and nothing in noise: a small version of ``python -m benchmarks
calibration``, and the page that comes from its stored numbers.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from benchmarks import calibration, network_calibration
from benchmarks._calibration_page import FAMILY, is_tested, judged, large_families, p_of, page, row_of
from benchmarks._network_page import found_in
from benchmarks._planted import (
    CORRELATED,
    CORRELATION,
    NOISE,
    PLANTED,
    class_means,
    marked_token,
    noise,
    shared_vector,
    subspaces,
    telling_words,
    twins,
    word_laws,
    words,
)
from benchmarks._planted_networks import PLANTED_IN_NETWORKS, WithContext, inputs, network, one_token
from benchmarks.calibration import counts, measured
from benchmarks.network_calibration import alone
from transformer_theory import compare
from transformer_theory.comparison.judged import Quantity, findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.judgement import judge
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.data import TokenData
from transformer_theory.data.synthetic import noise_like
from transformer_theory.theories import bottleneck, list_theories, router, theory
from transformer_theory.theories.scan_snap import minimal_model, on_data

DOCS = Path(__file__).parents[1] / "docs"
N, DRAWS = 160, 39
TESTED = ("scan_snap", "rate_reduction", "random_features", "router", "bottleneck", "vision", "particles")
STRONG = {
    "scan_snap": lambda seed: telling_words(0.5, seed, N),
    "rate_reduction": lambda seed: class_means(1.5, seed, N),
    "random_features": lambda seed: class_means(1.5, seed, N),
    "router": lambda seed: marked_token(3.0, seed, N),
    "bottleneck": lambda seed: class_means(1.5, seed, N),
    "vision": lambda seed: class_means(1.5, seed, N),
    "particles": lambda seed: shared_vector(0.2, seed, N),
    "attention_svm": lambda seed: class_means(1.5, seed, N),
    "crate": lambda seed: subspaces(10.0, seed, N),
    "joma": lambda seed: telling_words(0.5, seed, N),
    "graph_tokens": lambda seed: twins(0.5, seed),
}
# Along random subspaces exact steps leave less, since they compress all directions alike; the codes of deeper
# layers need not be sparser.
NOT_BEYOND = {
    ("crate", "R^c left by exact steps, lengths kept"),
    ("crate", "change of the share of non-zeros by compression"),
    ("rate_reduction", "share of ReduNet's layers that raise the rate reduction"),  # 1, with any labels
}


@pytest.fixture
def short_training(monkeypatch):
    """Fewer steps of the models and of the search for the onset, the same with data and with draws, and few
    models trained on shuffled next tokens.
    """
    monkeypatch.setattr(on_data, "RANGE_DRAWS", 3)
    monkeypatch.setattr(minimal_model, "MAX_STEPS", 50)
    monkeypatch.setattr(router.on_data, "STEPS", 100)
    monkeypatch.setattr(bottleneck.on_data, "STARTS", 4)
    monkeypatch.setattr(bottleneck.on_data, "STEPS", 30)


# ---- every theory


def test_the_theories_are_those_that_read_data():
    reading = {one.name for one in list_theories() if one.on_data is not None}
    assert reading == {*STRONG, *calibration.WITHOUT_NULL}
    assert len(list_theories()) - len(reading) == 5  # they measure networks
    assert {effect.theory for effect in PLANTED} == set(STRONG)


@pytest.mark.parametrize("name", STRONG)
def test_a_strong_effect_lies_beyond_all_draws_of_every_null(name, short_training):
    """A null on the wrong side, or one that equals the value, would have draws beyond or at the value."""
    found = measured(theory(name), STRONG[name](7), 0, DRAWS)
    beyond = {record["quantity"]: record for record in found if record["counts"] is not None}
    assert theory(name).on_data.headline in beyond
    for quantity, record in beyond.items():
        if (name, quantity) not in NOT_BEYOND:
            assert record["counts"] == (0, 0, record["draws"]), quantity
    headline = beyond[theory(name).on_data.headline]
    assert (headline["draws"] == DRAWS) == (name in TESTED)
    assert is_tested(headline) == (name in TESTED)


@pytest.mark.parametrize("name", TESTED)
def test_on_noise_a_headline_is_at_chance(name, short_training):
    """On six sets of noise three or more p-values of at most .05 have probability .0022, and the values do
    not all lie on one side of their nulls.
    """
    sets = words if name in calibration.ON_WORDS else noise
    kinds = [kind for kind in NOISE if (name, kind) != ("particles", CORRELATED)]
    ranks = []
    for seed in range(6):
        data = sets(kinds[seed % len(kinds)], 300 + seed, N)
        record = next(r for r in measured(theory(name), data, seed, DRAWS) if r["headline"])
        if record["counts"] is not None:
            ranks.append(record["counts"])
    assert len(ranks) == 6
    assert float(binom.sf(2, 6, 0.05)) < 0.0023
    assert sum(p_of(each) <= 0.05 for each in ranks) <= 2
    middle = [(beyond + equal / 2) / DRAWS for beyond, equal, _ in ranks]
    assert 0.2 < np.mean(middle) < 0.85
    if name != "random_features":  # one class for all held-out sequences: no draw differs from the value
        assert len(set(middle)) > 4


@pytest.mark.parametrize("name", calibration.WITHOUT_NULL)
def test_a_prediction_without_a_null_is_not_ranked(name):
    found = measured(theory(name), noise("Gaussian", 1, 40), 0, DRAWS)
    assert {record["counts"] for record in found} == {None}
    assert {record["scope"] for record in found} == {"any data"}


def test_on_noise_nothing_is_found(unchecked, short_training):
    """Comparisons of six data sets of noise, as a user calls them: the share of p <= .05 is at most .10, and
    at most one finding survives the adjustment.
    """

    def sequences(seed: int) -> TokenData:
        generator = torch.Generator().manual_seed(500 + seed)
        n, seq = 60, 6
        labels = torch.randint(4, (n,), generator=generator)
        tokens = torch.randn(n, seq, 5, generator=generator, dtype=torch.float64)
        ids = torch.randint(12, (n, seq), generator=generator)
        ids[:, -1] = 0  # one query
        return noise_like(TokenData(tokens, labels=labels, ids=ids, next_id=labels, vocab_size=12), generator)

    results = [
        compare(sequences(seed), ("scan_snap", "rate_reduction"), seeds=1, networks=(), claim_seeds=0)
        for seed in range(6)
    ]
    summaries = [
        result.table.summary().where(lambda row: row.scope == "these data" and row.p is not None)
        for result in results
    ]
    assert all(len(summary) >= 2 for summary in summaries)  # scan and snap, and rate reduction
    assert np.mean([np.mean([row.p <= 0.05 for row in summary]) for summary in summaries]) <= 0.10
    p = [row.p for summary in summaries for row in summary]
    assert max(p) > 0.5
    assert min(p) >= 1 / 1200
    found = [finding.judged.outcome for result in results for finding in findings(aggregate(result)).all]
    assert found.count("as predicted") <= 1


def test_a_single_effect_is_found_among_the_tests_of_a_comparison(unchecked):
    """Correlated tokens and random labels: one headline of six is true, and the draws suffice for it."""
    result = compare(
        shared_vector(0.2, 3, N),
        ("particles", "rate_reduction", "random_features", "vision"),
        seeds=1,
        networks=(),
        claim_seeds=0,
    )
    found = {finding.theory.name: finding.judged for finding in findings(aggregate(result)).all}
    assert found["particles"].outcome == "as predicted"
    assert found["particles"].row.p == 1 / 1200
    assert {one.outcome for name, one in found.items() if name != "particles"} <= {
        "not significant",
        "not tested",
    }


# ---- the data


def test_the_four_kinds_of_noise():
    """Moments by hand: the squares of normal numbers have mean 1, Student's t_2 has P(|x| > 2) = 1 - 2 /
    sqrt(6), the plane has rank 2, and tokens of a sequence have the correlation .9.
    """
    gaussian, student, plane, correlated = (noise(kind, 5, 4000).tokens for kind in NOISE)
    assert float(gaussian.square().mean()) == pytest.approx(1, abs=0.01)
    assert float((student.abs() > 2).double().mean()) == pytest.approx(1 - 2 / 6**0.5, abs=0.003)
    assert torch.linalg.matrix_rank(plane.flatten(0, 1)) == 2
    products = (correlated[:, 0] * correlated[:, 1]).mean()
    assert float(products / correlated.square().mean()) == pytest.approx(CORRELATION, abs=0.02)
    for kind in NOISE:
        data = words(kind, 5, 4000)
        assert set(data.ids[:, -1].tolist()) == {0}
        # next words are independent of the words: chi-square of 11 x 3 degrees of freedom
        table = torch.zeros(12, 4, dtype=torch.float64)
        table.index_put_(
            (data.ids[:, 0] - 1, data.next_id - 13), torch.ones(4000, dtype=torch.float64), accumulate=True
        )
        expected = table.sum(1, keepdim=True) * table.sum(0) / 4000
        assert float(((table - expected).square() / expected).sum()) < 60
    own = words(CORRELATED, 5, 1000).ids[:, :-1]
    assert np.mean([len(set(each)) for each in own.tolist()]) < 4  # of eight words; 6.0 if they were uniform


def test_the_planted_effects_have_the_stated_size():
    data = class_means(2.0, 1, 4000)
    means = torch.stack([data.tokens[data.labels == k].mean((0, 1)) for k in range(4)])
    assert means @ means.T == pytest.approx(4 * np.eye(4), abs=0.1)
    data = marked_token(3.0, 1, 4000)
    assert float(data.tokens[data.labels == 2, 2, 0].mean()) == pytest.approx(3, abs=0.1)
    assert float(data.tokens[data.labels == 2, 2, 3].mean()) == pytest.approx(3, abs=0.1)
    assert float(data.tokens[data.labels == 2, 1].mean()) == pytest.approx(0, abs=0.05)
    x = shared_vector(0.3, 1, 4000).tokens
    assert float((x[:, 0] * x[:, 1]).mean() / x.square().mean()) == pytest.approx(0.3, abs=0.02)
    data = telling_words(0.25, 1, 2000)
    assert float((data.ids[:, :-1] >= 12).double().mean()) == pytest.approx(0.25, abs=0.01)
    x = subspaces(4.0, 1, 4000).tokens
    assert float(x.square().sum(-1).mean()) == pytest.approx(1 + 1 / 4, abs=0.02)
    graphs = twins(0.5, 1).graphs
    assert len(graphs) == 12 + 6
    assert sorted(dict(graphs[0].degree).values()) == sorted(dict(graphs[1].degree).values())


# ---- counts and families


def test_counts_of_draws_by_hand():
    null = Null("n", (1.0, 2.0, 2.0, 3.0, 5.0))
    row = Measurement("crate", "on data", "q", 2.0, nulls=(null,), side=">=")
    assert counts(row) == (2, 2, 1)
    assert p_of((2, 2, 1)) == pytest.approx(5 / 6)
    assert p_of((2, 2, 1), other=True) == pytest.approx(4 / 6)
    below = Measurement("crate", "on data", "q", 2.0, nulls=(null,), side="<=")
    assert counts(below) == (1, 2, 2)
    # the distances from 4 are 3, 2, 2, 1 and 1; that of the value is 2
    near = Measurement("crate", "on data", "q", 2.0, nulls=(null,), side="==", predicted=4.0)
    assert counts(near) == (2, 2, 1)
    assert counts(Measurement("crate", "on data", "q", 2.0, nulls=(null,))) == (2, 2, 1)
    assert counts(Measurement("crate", "on data", "q", 2.0)) is None
    record = {"theory": "crate", "quantity": "q", "null": "n"}
    assert counts(row_of((2, 2, 1), record)) == (2, 2, 1)


def test_a_single_effect_in_a_family_of_the_demo():
    """Benjamini and Hochberg by hand: 22 / 1200 = .018 is a finding, 22 / 200 = .11 is undecided."""
    record = {"theory": "crate", "quantity": "q", "null": "n"}
    for draws, outcome in ((1199, "as predicted"), (199, "too few draws")):
        half = (draws // 2, 1, draws // 2)
        alone, *others = judged(
            [row_of((0, 0, draws), record), *(row_of(half, record) for _ in range(FAMILY - 1))]
        )
        assert alone.q == pytest.approx(FAMILY / (1 + draws))
        assert alone.outcome == outcome
        assert {one.outcome for one in others} == {"not significant"}


# ---- networks


def quantity_of(value: float, draws: tuple[float, ...], kind: str = "equal scale") -> Quantity:
    row = Measurement("length", "in network", "q", value, nulls=(Null(kind, draws),), side=">=")
    return Quantity("length", "t", "q", "", (row,), judge([(row, [row])])[0])


def test_the_first_nineteen_copies_decide_whether_a_headline_is_alone_beyond_them():
    """The distance from the mean of all twenty numbers, on either side; later copies do not count."""
    rng = np.random.default_rng(0)
    for value in (-9.0, -1.2, 0.1, 0.8, 2.0):
        draws = rng.standard_t(3, size=40)
        together = np.array([value, *draws[:19]])
        distance = np.abs(together - together.mean())
        expected = (distance[1:] >= distance[0]).sum() + 1
        assert alone(quantity_of(value, tuple(draws))) == pytest.approx(expected / 20)
    assert alone(quantity_of(1.0, tuple(draws[:18]))) is None
    assert alone(quantity_of(1.0, tuple(draws), "another null")) is None


def test_headlines_are_alone_beyond_their_copies_in_one_of_twenty():
    rng = np.random.default_rng(1)
    found = [alone(quantity_of(x[0], tuple(x[1:]))) for x in rng.standard_t(3, size=(2000, 20))]
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / 2000) ** 0.5)


def test_noise_of_ids_and_networks_of_noise():
    """The laws of words: uniform, one over the rank, mixed, and three of their own with nine in ten."""
    laws = [word_laws(kind, 500, torch.Generator().manual_seed(2)).double() for kind in NOISE]
    laws = [law / law.sum(1, keepdim=True) for law in laws]
    assert laws[0].numpy() == pytest.approx(np.full((500, 12), 1 / 12))
    assert laws[1][0].numpy() == pytest.approx(1 / np.arange(1, 13) / (1 / np.arange(1, 13)).sum())
    assert torch.linalg.matrix_rank(laws[2], rtol=1e-5) == 2
    assert laws[3].sort(1).values[:, -3:].sum(1).numpy() == pytest.approx(np.full(500, 0.9 / 0.975), abs=1e-6)
    for reader, shape in (("tokens", (48, 9, 8)), ("ids", (48, 40))):
        data, labels = inputs(reader, CORRELATED, 3)
        assert tuple(data.shape) == shape
        assert set(labels.tolist()) == {0, 1, 2, 3}
        one, again, other = (network(reader, seed) for seed in (4, 4, 5))
        weights = [
            torch.cat([p.detach().flatten() for p in each.parameters()]) for each in (one, again, other)
        ]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])
        one(data)


def test_effects_that_are_planted_in_networks():
    """Attention on the class token, logits of ids of the context, and keys that read the token before."""
    data, _ = inputs("tokens", NOISE[0], 6)
    masses = []
    for size in (0.0, 0.5, 2.0):
        one = one_token(size, 6)
        x = torch.cat([one.cls_token.expand(48, -1, -1), one.embed(data)], 1) + one.pos_embedding
        block = one.blocks[0]
        query, key, _ = block.attention.qkv(block.attention_norm(x)).split(16, -1)
        scores = query.unflatten(-1, (2, 8)).transpose(1, 2) @ key.unflatten(-1, (2, 8)).permute(0, 2, 3, 1)
        masses.append(float((scores / 8**0.5).softmax(-1)[..., 0].mean()))
    assert masses[0] == pytest.approx(0.1, abs=0.03)
    assert masses[0] < masses[1] < masses[2]
    assert masses[2] > 0.9
    ids, _ = inputs("ids", CORRELATED, 6)
    decoder = network("ids", 7)
    plain = decoder(ids)
    raised = WithContext(decoder, before=2.0, seen=0.5)(ids) - plain
    expected = torch.zeros_like(plain)
    for n, t in np.ndindex(48, 40):
        if t:
            expected[n, t, ids[n, t - 1]] += 2.0
        for earlier in range(t + 1):
            expected[n, t, ids[n, earlier]] += 0.5
    assert torch.allclose(raised, expected, atol=1e-4)
    effect = next(one for one in PLANTED_IN_NETWORKS if one.theory == "induction")
    untouched, strong = effect.make(0.0, 8), effect.make(1.0, 8)
    assert torch.allclose(untouched(ids), reference(untouched, ids), atol=1e-4)
    assert not torch.allclose(strong(ids), reference(strong, ids), atol=1e-2)


def reference(one: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The decoder with its own attention alone."""
    x = one.embedding(ids) * 4
    for block in one.blocks:
        x = x + block.attention.attention(block.attention_norm(x))
        x = x + block.mlp(block.mlp_norm(x))
    return one.head(one.norm(x))


def test_a_network_with_a_planted_effect():
    """A large effect is found, and the quantity is that of its theory."""
    for theory_name in ("chain_of_thought", "induction", "in_context"):
        effect = next(one for one in PLANTED_IN_NETWORKS if one.theory == theory_name)
        record = network_calibration.on_planted(effect, effect.sizes[0], 3)
        assert record["theory"] == theory_name
        assert found_in(record), theory_name
        assert record["draws"] == (19 if theory_name == "induction" else 1199)


def test_an_interrupted_run_of_networks_goes_on(tmp_path, monkeypatch):
    done = []
    blank = {"headlines": [], "others": [], "heads and layers": [], "tokens": []}

    def parts(*sizes):
        for kind in NOISE:
            yield f"noise/ids/{kind}/0", lambda kind=kind: done.append(kind) or blank

    monkeypatch.setattr(network_calibration, "parts", parts)
    journal = tmp_path / "run.jsonl"
    sizes = {"networks": 1, "planted": 1, "cheap": 1, "say": lambda text: None}
    network_calibration.run(journal, **sizes)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:2]) + "\n")
    found = network_calibration.run(journal, **sizes)
    assert done == [*NOISE, *NOISE[1:]]
    assert {kind: len(records) for kind, records in found["noise"]["ids"].items()} == dict.fromkeys(NOISE, 1)
    with pytest.raises(ValueError, match="other settings"):
        network_calibration.run(journal, **sizes | {"networks": 2})


# ---- the page


@pytest.fixture(scope="module")
def stored() -> dict:
    return json.loads((DOCS / "calibration.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text(stored) -> str:
    return page(stored)


def test_the_page_is_that_of_the_stored_numbers(text):
    stored = (DOCS / "calibration.md").read_text(encoding="utf-8")
    assert text == stored, "run python -m benchmarks.calibration"
    assert all(one.title in text for one in list_theories())


def test_the_stored_run_is_complete(stored):
    settings = stored["settings"]
    assert settings["draws"] == 1199
    headlines = [record for record in stored["noise"] if is_tested(record)]
    assert [record["theory"] for record in headlines] == [
        one.name for one in list_theories() if one.name in TESTED
    ]
    for record in headlines:
        sets = settings["word_sets" if record["theory"] in calibration.ON_WORDS else "sets"]
        assert {kind: len(found) for kind, found in record["counts"].items()} == dict.fromkeys(NOISE, sets)
    for record in (*stored["noise"], *stored["planted"]):
        for every in (record.get("counts") or record["sizes"]).values():
            assert all(each is None or sum(each) <= record["draws"] for each in every)
    assert [record["theory"] for record in stored["planted"]] == [effect.theory for effect in PLANTED]
    for record, effect in zip(stored["planted"], PLANTED):
        assert list(record["sizes"]) == [f"{size:g}" for size in effect.sizes]
        assert {len(found) for found in record["sizes"].values()} == {settings["planted_sets"]}


def test_the_numbers_of_the_page_by_hand(stored, text):
    """The share of p <= .05 of all headlines on noise, and its interval, recomputed from the counts."""
    found, n = 0, 0
    for record in stored["noise"]:
        if record["headline"] and record["theory"] in TESTED:
            for kind, every in record["counts"].items():
                if (record["theory"], kind) != ("particles", "correlated within sequences"):
                    known = [each for each in every if each is not None]
                    n += len(known)
                    found += sum((1 + a + e) / (1 + a + e + b) <= 0.05 for a, e, b in known)
    low = float(beta.ppf(0.025, found, n - found + 1)) if found else 0.0
    high = float(beta.ppf(0.975, found + 1, n - found))
    share = f"{found} of {n} ({f'{low:.2f}'[1:]} to {f'{high:.2f}'[1:]})"
    line = next(line for line in text.splitlines() if line.startswith("| all |"))
    assert share in line
    assert low <= 0.05


def test_the_stored_run_of_networks_is_complete(stored):
    found = stored["networks"]
    settings = found["settings"]
    assert settings["copies"] == 99
    records = [each for by_kind in found["noise"].values() for each in by_kind.values()]
    assert {len(each) for each in records} == {settings["networks"]}
    assert len(records) * settings["networks"] >= 40
    assert [effect["theory"] for effect in found["planted"]] == [each.theory for each in PLANTED_IN_NETWORKS]
    without_data = {one.name for one in list_theories() if one.on_data is None}
    assert without_data <= {each.theory for each in PLANTED_IN_NETWORKS}
    for effect, planted in zip(found["planted"], PLANTED_IN_NETWORKS):
        assert list(effect["sizes"]) == [f"{size:g}" for size in planted.sizes]
        number = settings["planted" if planted.copies else "cheap"]
        assert {len(each) for each in effect["sizes"].values()} == {number}


def test_the_numbers_of_networks_by_hand(stored, text):
    """In how many networks a headline is called different from chance, and how many lie beyond 19 copies."""
    networks = [
        each
        for by_kind in stored["networks"]["noise"].values()
        for every in by_kind.values()
        for each in every
    ]
    called = sum(
        any(
            one["outcome"] in ("as predicted", "opposite") and one["null"] == "equal scale"
            for one in each["headlines"]
        )
        for each in networks
    )
    line = next(line for line in text.splitlines() if line.startswith("| headlines against copies"))
    assert f"| {called} of {len(networks)} (" in line
    untested = ("not tested", "not measured", "too few draws")
    tested = [one for each in networks for one in each["headlines"] if one["outcome"] not in untested]
    ranks = [one["alone"] for one in tested if one["alone"] is not None]
    beyond = sum(rank <= 0.0501 for rank in ranks)
    total = [line for line in text.splitlines() if line.startswith("| all |")][-1]
    assert f"{beyond} of {len(ranks)} (" in total
    assert float(beta.ppf(0.025, beyond, len(ranks) - beyond + 1)) <= 0.05


def test_families_are_disjoint_and_of_equal_size(stored):
    families = [family for kind in NOISE for family in large_families(stored, kind, FAMILY)]
    assert families
    assert {len(family) for family in families} == {FAMILY}
    rows = [id(row) for family in families for row in family]
    assert len(set(rows)) == len(rows)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    """The second call measures only what is missing, and other settings are refused."""
    done = []

    def parts(*sizes):
        record = {
            "theory": "crate",
            "quantity": "q",
            "setting": "",
            "scope": "these data",
            "headline": False,
            "side": ">=",
            "null": "n",
            "draws": 3,
            "counts": (1, 0, 2),
        }
        for kind in NOISE:
            yield f"noise/{kind}/0", lambda kind=kind: done.append(kind) or [record]

    monkeypatch.setattr(calibration, "parts", parts)
    journal = tmp_path / "new" / "run.jsonl"
    sizes = {"sets": 1, "word_sets": 1, "planted_sets": 1, "say": lambda text: None}
    first = calibration.run(journal, **sizes)
    assert done == list(NOISE)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:3]) + "\n")
    second = calibration.run(journal, **sizes)
    assert done == [*NOISE, *NOISE[2:]]
    assert (
        second["noise"][0]["counts"] == {kind: [[1, 0, 2]] for kind in NOISE}
        or [list(each[0]) for each in second["noise"][0]["counts"].values()] == [[1, 0, 2]] * 4
    )
    assert first["settings"] == second["settings"]
    with pytest.raises(ValueError, match="other settings"):
        calibration.run(journal, **sizes | {"sets": 2})
