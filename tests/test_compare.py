"""The main job: every theory on the same data and in the same networks."""

from dataclasses import replace

import jaxtyping
import pytest
import torch

import transformer_theory as tt
from tests.contract.instances import few_steps
from tests.problems.copies import few_draws
from transformer_theory.comparison import plan, small_networks
from transformer_theory.core.statistics import (
    BAND_DRAWS,
    DATA_DRAWS,
    EQUAL_SCALE,
    HEADLINE_DRAWS,
    PERMUTED_EQUAL_STEPS,
    PERMUTED_LABELS,
    UNTRAINED,
)
from transformer_theory.core.theory import InNetworks, Response
from transformer_theory.data import TokenData
from transformer_theory.metrics.responses import CHANGE, OutputChange
from transformer_theory.probes import permuted_tokens
from transformer_theory.training.monitor import checkpoints
from transformer_theory.training.objectives import ACCURACY
from transformer_theory.training.recipes import RECIPES

STEPS = 3
# the contract checks all claims
THEORIES = [replace(theory, claims=theory.claims[:1]) for theory in tt.list_theories()]


@pytest.fixture(scope="module")
def digits() -> TokenData:
    return tt.data.load("digits")[:140]


@pytest.fixture(scope="module")
def result(digits):
    with pytest.MonkeyPatch.context() as patch, few_steps():  # the contract checks shapes
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        few_draws(patch)
        for name in ("RANGE_DRAWS", "COPIES_DRAWN", "PERMUTED_NETWORKS"):
            patch.setattr(small_networks, name, 5)
        return tt.compare(digits, THEORIES, seeds=1, steps=STEPS, networks=("ViT",), claim_seeds=1)


@pytest.fixture
def few_untrained(monkeypatch):
    for name in ("RANGE_DRAWS", "COPIES_DRAWN", "PERMUTED_NETWORKS"):
        monkeypatch.setattr(small_networks, name, 2)


def test_every_theory_has_one_headline_on_every_view(result):
    for theory in (each for each in tt.list_theories() if each.on_data and each.on_data.reads is None):
        for model in ("", "ViT"):
            rows = result.select(
                theory=theory.name,
                kind="on data",
                quantity=theory.on_data.headline,
                model=model,
                at={"setting": ""},
            )
            assert len(rows) == 1, (theory.name, model)
            assert rows[0].data == "digits"
            assert rows[0].seed == 0


def test_every_claim_is_verified_with_its_control(result):
    assert [one.id for one in result.verifications] == [
        claim.id for theory in THEORIES for claim in theory.claims
    ]
    for one in result.verifications:
        assert (one.verdict, one.control) == ("consistent", "fails")
        assert result.select(kind="claim", quantity=one.id).column("value") == [one.evidence[0].value]


def test_headlines_are_measured_at_every_checkpoint_beside_a_null(result):
    for theory in (each for each in tt.list_theories() if each.in_networks and each.in_networks.metrics()):
        rows = result.select(
            theory=theory.name, kind="in network", quantity=theory.in_networks.headline, model="ViT"
        )
        timeline = [row for row in rows if row.step is not None and row.value is not None]
        assert {row.step for row in timeline} == set(checkpoints(STEPS))
        assert all(row.null is not None and row.null.draws for row in timeline)
        (last,) = [row for row in rows if row.step is None and not row.at]
        assert last.scope == "training"
        assert (last.side, last.layer, last.head) == (theory.in_networks.side, None, None)
        draws = {null.kind: len(null.draws) for null in last.nulls}
        # The router's information has no value in a network whose heads choose too many keys for the number
        # of samples.
        if theory.name != "router":
            assert last.null.kind == EQUAL_SCALE, theory.name
            assert draws[EQUAL_SCALE] == 5, theory.name
        assert draws[UNTRAINED] == 5 or (theory.name == "router" and draws[UNTRAINED] >= 2), theory.name
        ends = [row.value for row in timeline if row.step == STEPS]
        assert last.value == pytest.approx(sum(ends) / len(ends))
    assert tt.joma.THEORY.in_networks.side == "<="  # the one that expects less than chance
    assert len(result.select(quantity=ACCURACY, model="ViT", split="validation")) == len(checkpoints(STEPS))


def test_a_headline_with_permuted_labels_has_both_nulls(result):
    rate = tt.rate_reduction.THEORY
    rows = result.select(
        theory=rate.name, kind="in network", quantity=rate.in_networks.headline, model="ViT", step=None
    )
    mean = rows.one()
    tested, own, permuted, untrained = mean.nulls
    assert (tested.kind, mean.scope) == (EQUAL_SCALE, "training")
    # in so few steps permuted labels are fitted less well than the labels
    assert (permuted.kind, untrained.kind) == (PERMUTED_EQUAL_STEPS, UNTRAINED)
    assert "equal steps, not equal loss" in mean.note
    assert (own.kind, len(own.draws)) == ("permuted labels", HEADLINE_DRAWS)
    ends = result.select(theory=rate.name, kind="in network", quantity=rate.in_networks.headline, step=0)
    assert {len(row.null.draws) for row in ends} == {BAND_DRAWS}


def test_every_view_is_measured_on_noise_of_its_shape_too(result):
    for model in ("", "ViT"):
        rows = result.select(kind="on data", model=model)
        assert len([row for row in rows if row.on_noise is not None]) > 0.8 * len(
            [row for row in rows if row.value is not None]
        )
    svm = tt.attention_svm.THEORY.on_data.headline
    row = result.select(theory="attention_svm", kind="on data", quantity=svm, model="").one()
    assert row.scope == "any data"
    assert row.on_noise > 0.9  # a theorem about descent holds on noise as well


def test_all_seeds_share_the_split_and_the_permutations(digits, unchecked, few_untrained):
    result = tt.compare(digits, ["rate_reduction"], seeds=2, networks=("ViT",), steps=1, claim_seeds=0)
    raw = result.select(kind="on data", quantity=tt.rate_reduction.THEORY.on_data.headline, model="")
    assert raw[0].null == raw[1].null
    assert raw[0].value == raw[1].value
    summary = raw.summary().one()
    assert (summary.interval_kind, summary.p) == ("over samples", 1 / (1 + DATA_DRAWS))
    inside = result.select(kind="in network", model="ViT", step=None, at={"setting": ""})
    assert inside[0].value != inside[1].value
    first, second = ({null.kind: null for null in row.nulls} for row in inside)
    assert next(iter(first)) == EQUAL_SCALE
    assert first[EQUAL_SCALE] != second[EQUAL_SCALE]  # copies of each network
    assert first[UNTRAINED] == second[UNTRAINED]  # the same networks for all seeds


def test_arrays_hold_what_the_pictures_show(result, digits):
    steps, maps = result.arrays["network/ViT/steps"], result.arrays["network/ViT/attention"]
    assert maps.shape == (len(steps), 2, 4, 6, 17, 17)
    assert tuple(steps) == checkpoints(STEPS)
    torch.testing.assert_close(torch.from_numpy(maps.sum(-1)), torch.ones(maps.shape[:-1]))
    ends, moving = result.arrays["network/ViT/features"], result.arrays["network/ViT/features over training"]
    assert len(ends) == len(result.arrays["network/labels"])
    assert moving.shape == (len(steps), len(ends), 2)
    # the plane is that of the end
    torch.testing.assert_close(torch.from_numpy(moving[-1]).double(), torch.from_numpy(ends))
    assert not torch.allclose(torch.from_numpy(moving[0]), torch.from_numpy(moving[-1]))
    assert any(name.startswith("ViT::attention_svm/") for name in result.arrays)
    assert result.arrays["network/images"].shape[1:] == digits.images.shape[1:]


def test_the_seeds_decide(digits, unchecked, few_untrained):
    few = {"theories": ["crate"], "networks": ("CRATE (released form)",), "steps": 1, "claim_seeds": 0}
    before = torch.random.get_rng_state()
    both = tt.compare(digits[:30], seeds=2, **few)
    again = tt.compare(digits[:30], seeds=[1], **few)
    assert both.settings["seeds"] == [0, 1]
    # Only the first seed has interventions, and of features the control on noise.
    assert list(both.select(seed=1).replace(on_noise=None)) == [
        row for row in again.table.replace(on_noise=None) if row.kind != "intervention"
    ]
    assert both.select(seed=0).replace(seed=1, on_noise=None) != again.table.replace(on_noise=None)
    headline = tt.crate.THEORY.on_data.headline
    assert set(again.select(quantity=headline, kind="on data").column("model")) == {
        "",
        "CRATE (released form)",
    }
    assert not both.verifications
    assert len(both.select(kind="claim")) == 0
    summary = both.table.summary().select(quantity=headline, kind="on data", model="").one()
    assert summary.n == 2
    assert torch.equal(before, torch.random.get_rng_state())


def test_other_processes_measure_the_same(digits, unchecked):
    theory = replace(tt.crate.THEORY, claims=tt.crate.THEORY.claims[:2])
    few = {"theories": [theory], "seeds": 1, "networks": ("ViT",), "steps": 1, "claim_seeds": 2}
    distributed, local = (tt.compare(digits[:30], workers=workers, **few) for workers in (2, None))
    assert distributed.table == local.table
    assert distributed.arrays.keys() == local.arrays.keys()
    assert all((distributed.arrays[name] == array).all() for name, array in local.arrays.items())
    assert [len(one.seeds) for one in distributed.verifications] == [2, 2]


def test_results_are_found_by_key_whatever_their_order(digits, unchecked, few_untrained, monkeypatch):
    theory = replace(tt.crate.THEORY, claims=tt.crate.THEORY.claims[:2])
    few = {"theories": [theory], "seeds": 2, "networks": ("ViT",), "steps": 1, "claim_seeds": 2}
    lines: list[str] = []
    expected = tt.compare(digits[:30], **few)
    as_completed = plan.parallel.as_completed
    monkeypatch.setattr(plan.parallel, "as_completed", lambda *args: reversed([*as_completed(*args)]))
    reordered = tt.compare(digits[:30], progress=lines.append, **few)
    assert reordered.table == expected.table
    assert reordered.arrays.keys() == expected.arrays.keys()
    assert [one.to_json() for one in reordered.verifications] == [
        one.to_json() for one in expected.verifications
    ]
    assert sum("2 claims with controls" in line for line in lines) == 1
    assert sum("trained and measured" in line for line in lines) == 2


def test_jobs_have_keys(digits):
    claims = tt.crate.THEORY.claims[:1]
    parts = (digits, None, (digits, digits), (tt.crate.THEORY,), (RECIPES["ViT"],), (), claims)
    jobs = plan.Plan(*parts, steps=1, seeds=(0, 4), claim_seeds=(7,), device="cpu").jobs()
    assert list(jobs) == [
        ("network", "ViT", 0),
        ("network", "ViT", 4),
        ("permuted", "ViT", None),
        ("data", "", 0),
        ("data", "", 4),
        ("untrained", "ViT", None),
        ("claim", claims[0].id, 7),
    ]
    assert jobs[plan.Key("claim", claims[0].id, 7)]()[0].verdict == "consistent"


def test_permuted_labels_test_the_task_only_at_equal_training_loss():
    permuted = small_networks.Permuted(rows=[], losses=[0.5, 0.7])
    assert permuted.kind(0.66) == PERMUTED_LABELS  # .7 lies within .05
    assert permuted.note(0.66) == ""
    assert permuted.kind(0.64) == PERMUTED_EQUAL_STEPS
    assert permuted.note(0.1).endswith("equal steps, not equal loss: 0.600 against 0.100 nats")


def test_missing_inputs_are_reported(generator, monkeypatch, unchecked):
    few_draws(monkeypatch)
    data = TokenData(torch.randn(30, 5, 6, generator=generator, dtype=torch.float64))
    result = tt.compare(data, seeds=1, claim_seeds=0)
    networks = result.select(theory="network").one()
    assert networks.value is None
    assert "labels" in networks.reason
    unsupported = result.select(theory="scan_snap", kind="on data").one()
    assert "ids" in unsupported.reason
    assert result.select(theory="crate", kind="on data")[0].value is not None


def test_a_theory_without_data_or_networks_is_absent(digits, unchecked, few_untrained):
    theory = replace(tt.crate.THEORY, on_data=None, in_networks=None, claims=())
    result = tt.compare(digits[:30], [theory], seeds=1, networks=("ViT",), steps=1, claim_seeds=1)
    assert set(result.table.column("theory")) == {"network"}


def test_a_network_is_tested_on_the_inputs_of_a_theory(digits, unchecked, few_untrained):
    """Other patches change the logits; the same patches do not, and the targets are the outputs for the
    reference.
    """

    def inputs(tokens, limits, generator):
        assert limits == {"sequences": len(tokens), "length": 16}
        return {
            "value": tokens.clone(),
            "null": [tokens.flip(0), permuted_tokens(tokens, generator)],
            "reference": tokens,
        }

    test = Response("the same patches", inputs, lambda: (OutputChange(),), null_kind="other patches")
    in_networks = InNetworks(metrics=lambda: (), headline="", responses=(test,))
    theory = replace(tt.joma.THEORY, on_data=None, in_networks=in_networks, claims=())
    row = (
        tt.compare(digits[:80], [theory], seeds=1, networks=("ViT",), steps=1, claim_seeds=0)
        .select(quantity=CHANGE)
        .one()
    )
    assert (row.theory, row.model, row.kind, row.setting) == ("joma", "ViT", "in network", "the same patches")
    assert row.value < 1e-6 < min(row.null.draws)
    assert (row.null.kind, len(row.null.draws)) == ("other patches", 2)


def test_a_stored_comparison_is_the_same(result, tmp_path):
    stored = tt.Result.load(result.save(tmp_path / "out"))
    assert stored.table == result.table
    assert stored.arrays.keys() == result.arrays.keys()
    assert stored.settings == result.settings
    assert [one.to_json() for one in stored.verifications] == [one.to_json() for one in result.verifications]
    assert stored.provenance["threads"] == 1
    assert stored.provenance["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"theories": ["atention_svm"]}, "did you mean 'attention_svm'"),
        ({"theories": []}, "at least one"),
        ({"networks": ("VIT",)}, "'VIT'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": [-1]}, r"got \[-1\]"),
        ({"claim_seeds": -1}, "claim_seeds must be at least 0, got -1"),
        ({"workers": 0}, "got 0"),
        ({"device": "nowhere"}, "'nowhere'"),
    ],
)
def test_bad_arguments_are_named_before_any_work(digits, arguments, words):
    with pytest.raises(ValueError, match=words):
        tt.compare(digits, **arguments)


def test_checkpoints_start_and_end_with_the_training():
    assert checkpoints(100, 5) == (0, 6, 25, 56, 100)
    assert checkpoints(1) == (0, 1)
    assert len(checkpoints(600)) == 14


def test_recipes_build_networks_for_the_data(digits):
    for recipe in RECIPES.values():
        assert recipe.build(digits)(digits.tokens[:3].float()).shape == (3, 10)
        assert recipe.about


def test_a_headline_has_the_null_of_a_test_on_synthetic_inputs_if_there_is_one(result):
    theory = tt.theories.theory("particles")
    headline = theory.in_networks.headline
    rows = result.select(
        theory=theory.name, kind="in network", quantity=headline, model="ViT", step=None, layer=None
    )
    tested, own, *_ = rows.select(at={"test": ""}).one().nulls
    assert (tested.kind, own.kind) == (EQUAL_SCALE, "inputs with tokens of other sequences")
    layers = result.select(
        theory=theory.name, quantity=headline, model="ViT", at={"test": "exchanged tokens"}
    )
    assert len(layers) == 2
    assert own.draws[0] == pytest.approx(sum(row.null.draws[0] for row in layers) / 2)


def test_a_theory_may_refuse_the_features_of_networks(result):
    theory = tt.theories.theory("particles")
    rows = result.select(theory=theory.name, kind="on data", quantity=theory.on_data.headline)
    assert rows.select(model="").one().value is not None
    assert rows.select(model="ViT").one().reason == theory.on_data.not_features


def test_interventions_are_measured_in_the_networks_of_the_first_seed(result, digits):
    rows = result.select(kind="intervention", at={"attention": ""})
    present = {
        (theory.name, one.name)
        for theory in tt.list_theories()
        for one in theory.interventions
        if one.inputs is None
    }
    assert {(row.theory, row.quantity) for row in rows} == present
    assert {row.model for row in rows} == {"ViT"}
    assert {row.seed for row in rows} == {0}
    # three steps leave the network at chance, which has nothing to lose
    measured = [row for row in rows if row.value is not None]
    assert {row.n for row in measured} <= {42, 21}  # validation digits, or the half that is scored
    assert all(not row.nulls and "not tested" in row.note for row in measured)
