"""Several results as one: what is pooled, what stays apart, and what has to be said of it."""

import math
from dataclasses import replace

import pytest

from tests.report import synthetic
from transformer_theory.core.measurement import Row, not_applicable
from transformer_theory.core.result import Result
from transformer_theory.report.merged import merged

SVM, ANSWER = "attention_svm", "cosine of W to the max-margin direction"
CLAIM = "attention_svm/global-direction"


def row(value, **further):
    return Row(**{"theory": SVM, "quantity": ANSWER, "value": value, "model": "raw", "op": ">=", "bound": 0.9, "predicted": 1.0, **further})


def compared(*rows, seed=0, **params):
    return Result("compare", {"data": "tiny", "n": 9, "theories": [SVM], "seed": seed, **params}, list(rows))


def together(*results):
    return merged(results, theories=synthetic.THEORIES)


def only(*results):
    (entry,) = together(*results).entries
    return entry


def test_runs_that_differ_in_their_seed_are_one_line():
    runs = [compared(row(value, verdict="consistent", null=0.1), seed=seed) for seed, value in enumerate((0.91, 0.95, 0.99))]
    entry = only(*runs)
    assert (entry.theory, entry.kind, entry.quantity, entry.subject) == (SVM, "prediction", ANSWER, "tiny: raw tokens")
    assert entry.n == len(entry.rows) == 3
    assert entry.runs == (0, 1, 2)
    assert entry.value == pytest.approx(0.95)
    assert entry.spread == pytest.approx(0.04)
    assert (entry.null, entry.predicted, entry.bound, entry.op) == (0.1, 1.0, 0.9, ">=")
    assert (entry.verdict, entry.told, entry.note) == ("consistent", "consistent", "")
    alone = only(runs[0])
    assert (alone.n, alone.value, alone.spread) == (1, 0.91, None)


def test_date_machine_and_choice_of_theories_do_not_keep_runs_apart():
    other = replace(compared(row(0.5), seed=1, theories=[SVM, "crate"], networks=["ViT"]), provenance={"date": "x", "machine": "y"})
    assert only(compared(row(0.7)), other).n == 2


def test_other_settings_keep_runs_apart_and_are_named():
    found = together(compared(row(0.7, model="ViT"), steps=600), compared(row(0.8, model="ViT"), steps=200, seed=1)).entries
    assert [entry.subject for entry in found] == ["tiny: features of ViT, steps 600", "tiny: features of ViT, steps 200"]
    assert [entry.n for entry in found] == [1, 1]
    raw = only(compared(row(0.7), steps=600), compared(row(0.7), steps=200))  # no network, so steps are nothing to it
    assert (raw.subject, raw.n) == ("tiny: raw tokens", 1)
    data = together(compared(row(0.7)), Result("compare", {"data": "other", "n": 9, "seed": 1}, [row(0.8)])).entries
    assert [entry.subject for entry in data] == ["tiny: raw tokens", "other: raw tokens"]


def test_a_seed_counts_once():
    assert only(compared(row(0.7)), compared(row(0.7 * (1 + 1e-12)))).note == ""
    again = only(compared(row(0.97, verdict="consistent")), compared(row(0.7, verdict="violated")))
    assert (again.n, again.value, again.verdict, again.runs) == (1, 0.7, "violated", (1,))
    assert "gave other numbers when measured again (0.97 and 0.7, results R1, R2)" in again.note


def test_differing_predictions_and_lines_are_said():
    entry = only(*(compared(row(0.7, predicted=predicted, bound=predicted - 0.1), seed=seed) for seed, predicted in enumerate((0.8, 1.0))))
    assert "predicted 0.800 to 1 over the runs" in entry.note
    assert "line 0.700 to 0.900 over the runs" in entry.note
    assert len(together(compared(row(0.7)), compared(row(0.7, op="<="), seed=1)).entries) == 2
    assert len(together(compared(row(0.7, basis="limit")), compared(row(0.7, basis="printed"), seed=1)).entries) == 2


def test_what_is_no_number_is_not_averaged():
    entry = only(*(compared(row(value), seed=seed) for seed, value in enumerate((0.5, None, math.nan, 0.7))))
    assert (entry.n, entry.value, len(entry.rows)) == (2, pytest.approx(0.6), 4)
    assert entry.note == "a number in 2 of 4 runs"
    silent = only(compared({**not_applicable(SVM, "needs ids"), "model": "raw"}))
    assert (silent.kind, silent.value, silent.n, silent.verdict) == ("absent", None, 0, "not applicable: needs ids")


def test_verdicts_that_differ_are_counted_and_the_gravest_is_told():
    verdicts = ("consistent", "violated", "consistent")
    entry = only(*(compared(row(0.7, verdict=verdict), seed=seed) for seed, verdict in enumerate(verdicts)))
    assert entry.verdict == "violated"
    assert entry.told == "violated (1 of 3 runs), consistent (2)"


def claimed(seeds, bound=0.99, value=1.0, control=0.4, said="fails", name="verify"):
    verdict = "consistent" if value >= bound else "violated"
    shared = {"theory": SVM, "quantity": f"claim: {CLAIM}", "op": ">=", "bound": bound, "source": str(synthetic.SVM)}
    rows = [Row(**shared, value=value, null=control, control=said, verdict=verdict, seed=seed) for seed in seeds]
    return Result(name, {"claims": [CLAIM], "seeds": len(rows)}, rows)


def test_seeds_of_a_claim_are_pooled():
    entry = only(claimed(range(3), name="compare"), claimed(range(5)))
    assert (entry.kind, entry.quantity, entry.subject, entry.n) == ("claim", CLAIM, "", 5)
    assert entry.runs == (0, 0, 0, 1, 1)
    assert (entry.claim.seeds, entry.claim.consistent, entry.claim.control) == (5, 5, "fails")
    assert entry.claim.interval == pytest.approx((0.4782, 1.0), abs=1e-4)
    assert entry.holds
    mixed = only(claimed(range(3)), claimed([7], value=0.5))
    assert (mixed.verdict, mixed.claim.worst, mixed.claim.share) == ("violated", 0.5, 0.75)
    assert not mixed.holds


def test_a_seed_with_another_value_and_a_control_that_passes_are_said():
    entry = only(claimed([0, 1]), claimed([1], value=0.995, control=1.0, said="passes"))
    assert entry.claim.seeds == 2
    assert "1 of 2 seeds gave other numbers" in entry.note
    assert only(claimed([0]), claimed([1], said="passes")).verdict == "control PASSES: no power"


def test_another_line_is_another_check():
    found = together(claimed(range(3)), claimed(range(3, 5), bound=0.9)).entries
    told = [(entry.claim.seeds, entry.subject, entry.note) for entry in found]
    assert told == [(3, "line ≥ 0.99", "of result R1"), (2, "line ≥ 0.9", "of result R2")]


def test_everything_of_a_comparison_is_there_once():
    result = synthetic.result()
    found = together(result, replace(result, params={**result.params, "seed": 1}))
    assert [theory.name for theory in found.theories] == [theory.name for theory in synthetic.THEORIES]
    assert {entry.kind for entry in found.entries} == {"claim", "prediction", "assumption", "reading", "absent"}
    subjects = [entry.subject for entry in found.select(theory=SVM, quantity=ANSWER)]
    data = result.params["data"]
    assert subjects == [f"{data}: raw tokens", f"{data}: features of ViT", f"{data}: features of CRATE (paper form)"]
    layers = found.select(theory="crate", quantity="loss of the minimal model", kind="prediction")
    assert [entry.subject for entry in layers[:2]] == [f"{data}: raw tokens, layer {layer}" for layer in range(2)]
    inside = found.select(theory="crate", kind="reading")
    assert [entry.subject for entry in inside] == [f"{data}: trained ViT", f"{data}: trained CRATE (paper form)"]
    assert all(entry.n == 2 and entry.spread == 0 for entry in [*layers, *inside])


def test_a_network_of_another_file_is_another_network():
    tested = Row(theory="network", quantity="test accuracy", value=0.5, model="crate")
    found = together(*(compared(tested, row(0.7), models={"crate": f"{name}/best"}, seed=seed) for seed, name in enumerate("ab"))).entries
    told = [(entry.kind, entry.subject, entry.n) for entry in found]
    assert told == [
        ("prediction", "tiny: raw tokens", 2),
        ("network", "tiny: crate, network a/best", 1),
        ("network", "tiny: crate, network b/best", 1),
    ]


def trained(seed, accuracy, **settings):
    rows = [
        Row(theory="network", quantity="held-out accuracy", value=value, model="vit", step=step)
        for step, value in ((0, 0.1), (5, 0.8), (9, 0.7))
    ]
    rows += [
        Row(theory=SVM, quantity="cosine to the max-margin direction", value=0.5, null=0.25, model="vit", layer=layer, step=9)
        for layer in (0, 1)
    ]
    rows.append(Row(theory="network", quantity="test accuracy", value=accuracy, model="vit", step=5))
    origin = {"test_images": 100, "held_out_images": 50}
    return Result("train", {"settings": {"network": "vit", "seed": seed, **settings}, "data": "tiny"}, rows, provenance=origin)


def test_trainings_of_several_seeds_are_one_line():
    found = together(trained(0, 0.6), trained(1, 0.7))
    reached = {entry.quantity: entry for entry in found.select(theory="network", kind="network")}
    assert (reached["test accuracy"].n, reached["test accuracy"].value) == (2, pytest.approx(0.65))
    assert reached["test accuracy"].subject == "tiny: vit in its training"
    assert reached["test accuracy"].note == "100 test images; best network, of step 5"  # each has an interval of its own
    assert reached["held-out accuracy"].value == 0.8  # of the network that was kept, not of the last
    assert "50 held-out images; 95 % interval" in reached["held-out accuracy"].note
    (reading,) = found.select(kind="reading")
    assert (reading.subject, reading.value, reading.null, reading.row["op"]) == ("tiny: vit in its training", 0.5, 0.25, ">=")
    assert (reading.n, reading.verdict) == (2, "outside assumptions")
    apart = together(trained(0, 0.6, minutes=5), trained(1, 0.7, minutes=30)).select(quantity="test accuracy")
    assert [entry.subject for entry in apart] == ["tiny: vit in its training, minutes 5", "tiny: vit in its training, minutes 30"]
    assert "95 % interval 49.72 % to 69.67 %" in apart[0].note.replace("\u00a0", " ")


def test_warnings_name_the_results():
    first, second = (
        replace(compared(row(0.7), seed=seed), provenance={"commit": c * 40, "dirty": c == "b"}) for seed, c in enumerate("ab")
    )
    versions, changed = together(first, second).notes
    assert versions == "The results were measured by different versions of the library (aaaaaaaa: result R1; bbbbbbbb: result R2)."
    assert changed.startswith("Result R2 ")
    running = Result(
        "train", {"settings": {"network": "vit", "seed": 0}, "data": "tiny"}, [Row(theory="network", quantity="loss", value=1.0, step=0)]
    )
    assert together(running).notes[0].startswith("The training of result R1 has not come to its end")


def test_no_result_is_an_error():
    with pytest.raises(ValueError, match="at least one, got none"):
        merged([])


GAVE_UP = {"op": "<=", "bound": math.nan, "value": math.nan, "verdict": "inconclusive"}  # as Verdict.rows has it


def given_up(result, *seeds):
    return replace(result, table=[row | GAVE_UP if row["seed"] in seeds else row for row in result.table])


@pytest.mark.parametrize("first", [[0], [], [0, 1, 2]])
def test_a_seed_that_gave_up_makes_no_other_check(first):
    entry = only(given_up(claimed(range(3)), *first), given_up(claimed(range(3, 6)), 4))
    assert (entry.op, entry.claim.op, entry.claim.bound) == (">=", ">=", 0.99)
    assert (entry.claim.seeds, entry.claim.decided, entry.claim.worst) == (6, 5 - len(first), 1.0)


def test_rows_that_only_their_notes_tell_apart_are_not_paired_where_one_is_missing():
    def noted(seed, **classes):
        rows = [Row(theory="crate", quantity="q", value=value, note=name) for name, value in classes.items()]
        return Result("crate.made", {"seed": seed}, rows)

    equally = together(noted(0, first=1.0, second=5.0), noted(1, first=2.0, second=6.0)).entries
    assert [(entry.value, entry.n, entry.again) for entry in equally] == [(1.5, 2, 1), (5.5, 2, 2)]
    apart = together(noted(0, first=1.0, second=5.0), noted(1, second=6.0)).entries
    assert [(entry.value, entry.n, entry.again) for entry in apart] == [(1.0, 1, 0), (5.0, 1, 0), (6.0, 1, 0)]
    assert apart[2].note.startswith("second; of result R2, not merged")


def test_means_of_the_largest_numbers_and_of_what_only_some_runs_state():
    big = only(*(compared(row(value), seed=seed) for seed, value in enumerate((1.7e308, 1.5e308))))
    assert big.value == pytest.approx(1.6e308)
    assert only(*(compared(row(value), seed=seed) for seed, value in enumerate((1.7e308, -1.7e308)))).spread is None
    partly = only(compared(row(0.5, null=0.1)), compared(row(0.7), seed=1))
    assert (partly.null, partly.note) == (0.1, "null stated by 1 of 2 runs")
