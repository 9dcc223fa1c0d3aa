"""The main job: every theory on the same data and the same networks."""

from dataclasses import replace

import jaxtyping
import pytest
import torch
from transformer_theory.training.watch import checkpoints

import transformer_theory as tt
from transformer_theory.core.parallel import one_thread
from transformer_theory.data import TokenData
from transformer_theory.training.recipes import RECIPES

STEPS = 3
THEORIES = [replace(theory, claims=theory.claims[:1]) for theory in tt.theories()]  # the ledger and the contract ask all claims


@pytest.fixture(scope="module")
def digits() -> TokenData:
    return tt.data.load("digits")[:80]


@pytest.fixture(scope="module")
def result(digits):
    with pytest.MonkeyPatch.context() as patch:  # the contract checks shapes
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return tt.compare(digits, THEORIES, steps=STEPS, networks=("ViT",), claim_seeds=1)


def test_every_theory_answers_once_on_every_view(result):
    for theory in tt.theories():
        for view in ("raw", "ViT"):
            answers = [row for row in result.select(theory=theory.name, quantity=theory.answer, model=view) if "step" not in row]
            assert len(answers) == 1, (theory.name, view)


def test_every_claim_has_a_verdict_and_a_control_that_failed(result):
    for theory in THEORIES:
        for claim in theory.claims:
            (row,) = result.select(quantity=f"claim verdict: {claim.id}")
            assert row["verdict"] == "consistent"
            assert row["control"] == "fails"
            assert len(result.select(quantity=f"claim: {claim.id}")) == 1


def test_order_parameters_are_read_at_every_checkpoint_beside_a_null(result):
    for theory in tt.theories():
        rows = [row for row in result.select(theory=theory.name, quantity=theory.order_parameter, model="ViT") if row["value"] is not None]
        assert {row["step"] for row in rows} == set(checkpoints(STEPS))
        assert all(row.get("null") is not None for row in rows)
        (last,) = result.select(quantity=f"{theory.order_parameter} in the trained network", model="ViT")
        assert last["op"] == theory.order_relation
    assert tt.joma.THEORY.order_relation == "<="  # the one that expects less than chance
    assert len(result.select(quantity="held-out accuracy", model="ViT")) == len(checkpoints(STEPS))


def test_arrays_hold_what_the_pictures_show(result, digits):
    steps, maps = result.arrays["network/ViT/steps"], result.arrays["network/ViT/attention"]
    assert maps.shape == (len(steps), 2, 4, 6, 17, 17)
    assert tuple(steps) == checkpoints(STEPS)
    torch.testing.assert_close(torch.from_numpy(maps.sum(-1)), torch.ones(maps.shape[:-1]))
    ends, moving = result.arrays["network/ViT/features"], result.arrays["network/ViT/features over training"]
    assert len(ends) == len(result.arrays["network/labels"])
    assert moving.shape == (len(steps), len(ends), 2)
    torch.testing.assert_close(torch.from_numpy(moving[-1]).double(), torch.from_numpy(ends))  # the plane is that of the end
    assert not torch.allclose(torch.from_numpy(moving[0]), torch.from_numpy(moving[-1]))
    assert any(name.startswith("ViT::attention_svm/") for name in result.arrays)
    assert result.arrays["network/images"].shape[1:] == digits.images.shape[1:]


def test_the_same_seed_gives_the_same_rows(digits, unchecked):
    few = {"theories": ["crate"], "networks": ("CRATE (released form)",), "steps": 1, "claim_seeds": 0}
    before = torch.random.get_rng_state()
    first, second, other = (tt.compare(digits[:30], seed=seed, **few).table for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert {row["model"] for row in first if row["quantity"] == tt.crate.THEORY.answer} == {"raw", "CRATE (released form)"}
    assert not any(row["quantity"].startswith("claim") for row in first)
    assert torch.equal(before, torch.random.get_rng_state())


def test_claims_checked_by_other_processes_are_the_same(digits, unchecked):
    theory = replace(tt.crate.THEORY, claims=tuple(claim for claim in tt.crate.THEORY.claims if claim.id.endswith("rates")))
    assert theory.claims
    few = {"theories": [theory], "networks": (), "claim_seeds": 2}
    there, here = (tt.compare(digits[:30], workers=workers, **few) for workers in (2, None))
    assert there.table == here.table
    assert len([row for row in there.table if row["quantity"].startswith("claim: ")]) == 2 * len(theory.claims)


def test_tokens_alone_are_enough_to_be_told_what_is_missing(generator):
    data = TokenData(torch.randn(30, 5, 6, generator=generator, dtype=torch.float64))
    result = tt.compare(data, claim_seeds=0)
    (networks,) = result.select(theory="network")
    assert networks["verdict"].startswith("not applicable: training needs labels")
    assert result.select(theory="scan_snap", model="raw")[0]["verdict"] == "not applicable: needs ids, next_id"
    assert result.select(theory="crate", model="raw")[0]["value"] is not None


def test_stored_and_read_back_it_is_the_same(result, tmp_path):
    stored = tt.Result.load(result.save(tmp_path / "out"))
    assert stored.table == result.table
    assert stored.arrays.keys() == result.arrays.keys()
    assert stored.params == result.params
    assert stored.provenance["threads"] == 1
    assert stored.provenance["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"theories": ["atention_svm"]}, "did you mean 'attention_svm'"),
        ({"theories": []}, "at least one"),
        ({"networks": ("VIT",)}, "unknown network 'VIT'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"claim_seeds": -1}, "claim_seeds must be at least 0, which leaves the claims out, got -1"),
        ({"workers": 0}, "workers must be a number from 1 on"),
        ({"device": "nowhere"}, "got 'nowhere'"),
    ],
)
def test_bad_arguments_are_named_before_any_work(digits, arguments, words):
    with pytest.raises(ValueError, match=words):
        tt.compare(digits, **arguments)


def test_checkpoints_start_and_end_with_the_training():
    assert checkpoints(100, 5) == (0, 6, 25, 56, 100)
    assert checkpoints(1) == (0, 1)
    assert len(checkpoints(600)) == 14


def test_threads_are_given_back_also_after_an_error():
    before = torch.get_num_threads()

    def fail():
        with one_thread():
            assert torch.get_num_threads() == 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == before


def test_recipes_build_networks_for_the_data_at_hand(digits):
    for recipe in RECIPES.values():
        assert recipe.build(digits)(digits.tokens[:3].float()).shape == (3, 10)
        assert recipe.about
