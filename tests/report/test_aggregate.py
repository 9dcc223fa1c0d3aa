"""Several results as one: what is averaged, what stays apart, and the warnings."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report import synthetic
from tests.report.synthetic import HEADLINE, on_data, trained
from transformer_theory.comparison.pooling import pooled
from transformer_theory.core.measurement import CORRELATION, Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import bounded_interval
from transformer_theory.core.table import Table
from transformer_theory.report import aggregate, stored_results

SVM = "attention_svm"
CLAIM = synthetic.THEORIES[0].claims[0]


def row(value, **columns):
    reason = "" if value is not None else "it did not converge"
    return on_data(value, **{"threshold": 0.9, "predicted": 1.0, "reason": reason, **columns})


def compared(*rows, seed=0, **settings):
    return Result(
        "compare", {"data": "tiny", "n": 9, "theories": [SVM], "seed": seed, **settings}, Table(rows)
    )


def together(*results):
    return aggregate(results, theories=synthetic.THEORIES)


def only(*results):
    (entry,) = together(*results).entries
    return entry


def test_results_that_differ_in_their_seed_are_one_entry():
    runs = [
        compared(
            row(value, verdict="consistent", nulls=(Null("n", (0.1, index)),), bounds=CORRELATION), seed=index
        )
        for index, value in enumerate((0.91, 0.95, 0.99))
    ]
    entry = only(*runs)
    assert (entry.row.theory, entry.row.quantity, entry.on, entry.note) == (SVM, HEADLINE, "raw tokens", "")
    assert (len(entry.rows), entry.seeds, entry.results) == (3, 3, (0, 1, 2))
    assert entry.row.value == pytest.approx(0.95)
    # Student's interval, 0.95 ± 0.099, would end beyond 1, the largest cosine
    assert entry.row.interval == pytest.approx(bounded_interval((0.91, 0.95, 0.99), (-1.0, 1.0)))
    assert 0.6 < entry.row.interval[0] < entry.row.interval[1] < 1
    assert entry.row.null.draws == pytest.approx((0.1, 1.0))  # averaged draw by draw
    assert (entry.row.predicted, entry.row.threshold, entry.row.op) == (1.0, 0.9, ">=")
    assert entry.verdicts == {"consistent": 3}
    alone = only(runs[0])
    assert (alone.seeds, replace(alone.row, agreement=None)) == (1, runs[0].table[0])


def test_seeds_within_a_result_are_one_entry():
    entry = only(compared(*(row(value, seed=seed) for seed, value in enumerate((0.5, 0.7)))))
    assert (entry.row.value, entry.seeds) == (pytest.approx(0.6), 2)
    more = only(
        compared(row(0.5, seed=0), row(0.7, seed=1), seed=None),
        compared(row(0.7, seed=1), row(0.9, seed=2), seed=None),
    )
    assert (more.row.value, more.seeds) == (pytest.approx(0.7), 3)


def test_date_machine_and_choice_of_theories_keep_no_results_apart():
    other = replace(
        compared(row(0.5), seed=1, theories=[SVM, "crate"], networks=["ViT"]),
        provenance={"date": "x", "machine": "y"},
    )
    assert only(compared(row(0.7)), other).seeds == 2


def test_other_settings_keep_results_apart_and_are_named():
    entries = together(
        compared(row(0.7, model="ViT"), steps=600), compared(row(0.8, model="ViT"), steps=200, seed=1)
    ).entries
    assert [entry.on for entry in entries] == ["features of ViT, steps 600", "features of ViT, steps 200"]
    # no network, so steps do not matter
    raw = only(compared(row(0.7), steps=600), compared(row(0.7), steps=200))
    assert (raw.on, raw.seeds) == ("raw tokens", 1)
    data = together(
        compared(row(0.7)), Result("compare", {"data": "other", "n": 9, "seed": 1}, Table([row(0.8)]))
    ).entries
    assert [entry.on for entry in data] == ["tiny: raw tokens", "other: raw tokens"]


def test_splits_of_a_network_are_named_where_they_differ():
    inside = Measurement("crate", "in network", "rate", 0.5, model="ViT", split="validation")
    assert only(compared(inside)).on == "trained ViT"
    entries = together(compared(inside, replace(inside, split="test"))).entries
    assert [entry.on for entry in entries] == ["trained ViT, validation data", "trained ViT, test data"]


def test_a_remark_follows_the_sentence_of_the_measurement():
    heads = [
        Measurement(
            "crate",
            "in network",
            "rate",
            float(head),
            model="ViT",
            step=3,
            head=head,
            note="A property of the weights.",
        )
        for head in range(2)
    ]
    entry = only(compared(*heads))
    assert (entry.row.value, entry.note) == (
        0.5,
        "A property of the weights; mean over layers and heads, step 3",
    )


def test_a_network_of_another_file_is_another_network():
    tested = Measurement("network", "network", "accuracy", 0.5, model="crate", split="test")
    entries = together(
        *(
            compared(tested, row(0.7), models={"crate": f"{name}/best"}, seed=seed)
            for seed, name in enumerate("ab")
        )
    ).entries
    assert [(entry.on, entry.seeds) for entry in entries] == [
        ("raw tokens", 2),
        ("crate, file a/best", 1),
        ("crate, file b/best", 1),
    ]


def test_a_seed_counts_once():
    assert only(compared(row(0.7)), compared(row(0.7 * (1 + 1e-12)))).note == ""
    again = only(compared(row(0.97, verdict="consistent")), compared(row(0.7, verdict="violated")))
    assert (again.seeds, again.row.value, again.results) == (1, 0.7, (1,))
    assert "R1, R2" in again.note


def test_rows_of_one_result_that_no_column_tells_apart_are_not_seeds_of_each_other():
    result = Result(
        "crate.made", {"seed": 0}, Table([Measurement("crate", "figure", "q", value) for value in (1.0, 5.0)])
    )
    other = replace(result, settings={"seed": 1}, table=result.table.replace(value=3.0))
    assert [(entry.row.value, entry.seeds) for entry in together(result, other).entries] == [
        (2.0, 2),
        (4.0, 2),
    ]


def test_missing_values_are_not_averaged_and_their_reason_is_kept():
    entry = only(*(compared(row(value), seed=seed) for seed, value in enumerate((0.5, None, 0.7))))
    assert (entry.seeds, entry.row.value, len(entry.rows)) == (2, pytest.approx(0.6), 3)
    silent = only(compared(on_data(None, reason="needs ids")))
    assert (silent.missing, silent.row.reason, silent.seeds) == (True, "needs ids", 0)


def test_verdicts_that_differ_are_counted_those_that_need_a_look_first():
    verdicts = ("consistent", "violated", "consistent")
    entry = only(*(compared(row(0.7, verdict=verdict), seed=seed) for seed, verdict in enumerate(verdicts)))
    assert list(entry.verdicts.items()) == [("violated", 1), ("consistent", 2)]


def test_rows_with_another_threshold_side_or_basis_stay_apart():
    assert len(together(compared(row(0.7)), compared(row(0.7, op="<="), seed=1)).entries) == 2
    assert (
        len(together(compared(row(0.7, basis="limit")), compared(row(0.7, basis="printed"), seed=1)).entries)
        == 2
    )


def test_trainings_of_several_seeds_are_one_entry_of_the_last_step():
    entries = together(trained(tested=0.6), trained(tested=0.7, run_id="b2", seed=1)).select(theory="network")
    reached = {(entry.row.split, entry.row.quantity): entry for entry in entries}
    tested = reached["test", "accuracy"]
    assert (tested.seeds, tested.row.value, tested.on) == (2, pytest.approx(0.65), "crate, in its training")
    entropy = reached["validation", "attention entropy"]
    # mean over heads at the last step
    assert entropy.row.value == pytest.approx(2.5 - 4 * 1.5 / 10, abs=0.01)
    assert "mean over layers and heads, step 40" in entropy.note
    apart = together(trained(epochs=5), trained(epochs=30, run_id="b2")).select(
        split="test", quantity="accuracy"
    )
    assert [entry.on for entry in apart] == [
        f"crate, in its training, settings: epochs {epochs}" for epochs in (5, 30)
    ]


def test_everything_of_a_comparison_is_there_once():
    result = synthetic.comparison()
    found = together(result, replace(result, settings={**result.settings, "seed": 1}))
    assert [theory.name for theory in found.theories] == [theory.name for theory in synthetic.THEORIES]
    assert [entry.on for entry in found.select(theory=SVM, quantity=HEADLINE)] == [
        "raw tokens",
        "features of ViT",
        "features of CRATE (paper form)",
    ]
    layers = found.select(theory="crate", quantity="loss of the minimal model")
    assert [entry.on for entry in layers[:2]] == [f"raw tokens, layer {layer}" for layer in range(2)]
    inside = found.select(theory="crate", kind="in network")
    assert [(entry.on, entry.row.scope) for entry in inside] == [
        (f"trained {model}", "training") for model in synthetic.MODELS
    ]
    assert all(entry.seeds == 2 for entry in [*layers, *inside])


def verified(seeds, claim=CLAIM, **changes):
    return Result("verify", {"seeds": list(seeds)}, verifications=(replace(claim.verify(seeds), **changes),))


def test_seeds_of_a_claim_are_together_and_count_once():
    (checked,) = together(verified(range(3)), verified(range(5))).claims
    one = checked.verification
    assert (one.seeds, one.consistent, one.control, checked.note) == ((0, 1, 2, 3, 4), 5, "fails", "")
    assert one.interval == pytest.approx((0.4782, 1.0), abs=1e-4)
    mixed = pooled([CLAIM.verify(range(3)), synthetic.violated(CLAIM.verify([7]), seed=7)])
    assert (mixed.verdict, mixed.worst.value, mixed.share) == ("violated", 0.5, 0.75)


def test_claims_in_other_words_are_not_pooled():
    found = together(verified(range(3)), verified(range(3), statement="$v < 2$")).claims
    assert [(checked.number, len(checked.verification.seeds)) for checked in found] == [(1, 3), (2, 3)]
    assert [checked.anchor for checked in found] == [
        "claim-attention-svm-global-direction",
        "claim-attention-svm-global-direction-2",
    ]
    assert found[1].note.startswith("of R2")


def test_notes_name_the_results():
    first, second = (
        replace(compared(row(0.7), seed=seed), provenance={"commit": c * 40, "dirty": c == "b"})
        for seed, c in enumerate("ab")
    )
    versions, changed = together(first, second).notes
    assert "aaaaaaaa: R1; bbbbbbbb: R2" in versions
    assert changed.startswith("R2 was")
    assert "R1" in together(trained(tested=None)).notes[0]


def test_no_result_is_an_error():
    with pytest.raises(ValueError, match="at least one, got none"):
        aggregate([])


def test_stored_results_are_found_below_a_folder(tmp_path):
    for name in ("b", "a"):
        compared(row(0.7)).save(tmp_path / name)
    (tmp_path / "notes").mkdir()
    found = stored_results([tmp_path, tmp_path / "a"])
    assert [one.folder.name for one in found] == ["a", "b"]
    assert set(found[0].checksums) == {"result.json", "table.jsonl", "arrays.npz", "verifications.json"}
    with pytest.raises(ValueError, match="notes"):
        stored_results([tmp_path / "notes"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        stored_results([tmp_path / "nowhere"])


def test_a_ledger_is_several_stored_results(tmp_path):
    path = Path(__file__).parents[2] / "docs" / "claims.json"
    found = stored_results([path, path])
    documents = json.loads(path.read_text(encoding="utf-8"))
    assert [len(one.result.verifications) for one in found] == [
        len(document["verifications"]) for document in documents
    ]
    assert [one.result.provenance for one in found] == [document["provenance"] for document in documents]
    assert found[0].checksums == {"claims.json": hashlib.sha256(path.read_bytes()).hexdigest()}
    few = [document | {"verifications": document["verifications"][:2]} for document in documents]
    damaged = [json.loads(json.dumps(few)) for _ in range(3)]
    damaged[0][0]["provenance"]["versions"] = ["0.1.0"]
    damaged[1][1]["provenance"]["date"] = {}
    damaged[2][0]["provenance"] = [1]
    texts = (
        "",
        "{}",
        "[1]",
        '[{"verifications": [{}], "provenance": {}}]',
        "[[]]",
        *map(json.dumps, damaged),
    )
    for number, text in enumerate(texts):
        other = tmp_path / f"{number}.json"
        other.write_text(text)
        with pytest.raises(
            ValueError,
            match=rf"a file must be a ledger such as docs/claims.json, .* got .*{number}\.json; name one",
        ):
            stored_results([other])
