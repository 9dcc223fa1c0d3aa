"""The reach of theories: cells, folders, outcomes, sentences, map and table."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.comparison import cells as stored_cells
from transformer_theory.comparison import reach as module
from transformer_theory.comparison.cells import CELLS
from transformer_theory.comparison.judged import rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.comparison.reach import reach
from transformer_theory.core import parallel
from transformer_theory.core.errors import NotConverged
from transformer_theory.core.files import checked_line, checked_record
from transformer_theory.core.ladder import COLUMNS, CONSTRUCTION_COLUMNS, Ladder, Rung
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import FILES, Result
from transformer_theory.core.theory import Theory
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.report.judged_figures import reach_map
from transformer_theory.report.sentences import reach_statements as statements
from transformer_theory.report.tables import reach as table
from transformer_theory.report.tex import latex

CALLS: list[int] = []


def draw(shift: float, predicted: float | None, draws: int, generator: torch.Generator):
    """A value near ``shift`` among normal draws around zero, and a second quantity."""
    CALLS.append(generator.initial_seed())
    value, *null = (0.1 * torch.randn(draws + 1, generator=generator, dtype=torch.float64)).tolist()
    yield LADDER.row(shift + value, nulls=(Null("normal draws", tuple(null)),), predicted=predicted)
    yield Measurement("toy", "rung", "draws", float(draws))


def count(generator: torch.Generator, text: Text):
    yield LADDER.row(float(len(text)))


def stop(generator: torch.Generator):
    raise NotConverged("the iteration stopped")


LADDER = Ladder(theory="toy", quantity="height", side=">=", null="normal draws")


def rung(
    name: str, column: str, shift: float, *, predicted: float | None = 1.0, draws: int = 199, **more
) -> Rung:
    return Rung(
        name,
        "" if column == COLUMNS[0] else "an assumption",
        partial(draw, shift, predicted, draws),
        column,
        **more,
    )


def toy(*rungs: Rung) -> Theory:
    ladder = replace(LADDER, rungs=rungs)
    return Theory(
        "toy", "Toy", "Which?", "None.", sources=(), assumptions=("none",), claims=(), ladder=ladder
    )


OWN, REAL = rung("own", COLUMNS[0], 1.0, covered=True), rung("real", COLUMNS[1], 0.6)
NOISE, BACK, UNDER = (
    rung("noise", COLUMNS[3], 0.0),
    rung("back", COLUMNS[4], 0.8),
    rung("under", COLUMNS[4], -0.9),
)
NOISE_FIRST = rung("noise first", COLUMNS[0], 0.0)
RANGE = rung("range", COLUMNS[4], 0.7, draws=19)


def cells(*rungs: Rung, seeds: int = 5):
    theory = toy(*rungs)
    return rung_results(aggregate(reach(theory, seeds=seeds), theories=[theory]))


def test_every_rung_has_a_row_per_seed_and_quantity():
    result = reach(toy(OWN, REAL), seeds=3)
    assert [(row.rung, row.seed, row.quantity) for row in result.table if row.quantity == "height"] == [
        (name, seed, "height") for name in ("own", "real") for seed in range(3)
    ]
    assert len(result.select(quantity="draws")) == 6
    assert {row.verdict for row in result.select(rung="own")} == {None}
    assert {row.verdict for row in result.select(rung="real", quantity="height")} == {"not covered"}
    assert result.settings["ladders"]["toy"]["rungs"][1] == {
        "name": "real",
        "relaxes": "an assumption",
        "column": COLUMNS[1],
        "covered": False,
        "needs": "",
    }
    seeds = [row.value for row in result.select(rung="own", quantity="height")]
    assert len(set(seeds)) == 3


def test_outcomes():
    found = {cell.name: cell for cell in cells(OWN, REAL, NOISE, BACK, UNDER, RANGE)}
    outcomes = {name: cell.judged.outcome for name, cell in found.items()}
    assert outcomes == {
        "own": "as predicted",
        "real": "as predicted",
        "noise": "not significant",
        "back": "as predicted",
        "under": "opposite",
        "range": "as predicted",
    }
    assert found["real"].judged.effect == pytest.approx(0.6, abs=0.15)
    low, high = found["real"].judged.effect_interval
    assert low < found["real"].judged.effect < high
    assert found["range"].judged.q is None
    assert found["noise"].judged.seeds == 5


def test_the_false_discovery_rate_is_controlled_over_all_rungs():
    border = rung("border", COLUMNS[1], 0.3)
    (alone,) = (cell for cell in cells(OWN, border) if cell.name == "border")
    assert alone.judged.row.p < 0.05
    assert alone.judged.outcome == "as predicted"
    others = [rung(f"noise {k}", COLUMNS[1], 0.0) for k in range(9)]
    (among,) = (cell for cell in cells(NOISE_FIRST, border, *others) if cell.name == "border")
    assert among.judged.row.p == alone.judged.row.p
    assert among.judged.outcome == "too few draws"  # of 11 tests, one finding needs p = .05 / 11
    assert among.judged.q == pytest.approx(11 * alone.judged.row.p)
    assert "one finding among 11 tests needs 219 draws" in among.judged.reason
    (split,) = (
        cell
        for cell in cells(OWN, replace(border, measure=partial(draw, 0.14, 1.0, 199)))
        if cell.name == "border"
    )
    assert split.judged.row.p < 0.05
    assert split.judged.outcome == "not significant"
    assert split.judged.remark == "seeds lie on both sides of the median of a null"


def test_without_a_prediction_the_first_rung_is_the_reference():
    own, real = rung("own", COLUMNS[0], 2.0, predicted=None), rung("real", COLUMNS[1], 1.0, predicted=None)
    result = reach(toy(own, real), seeds=4)
    first = [row.value for row in result.select(rung="own", quantity="height")]
    for row in result.select(quantity="height"):
        assert row.basis == "own setting"
        assert row.predicted == pytest.approx(sum(first) / 4)
    assert {row.predicted for row in result.select(quantity="draws")} == {None}
    found = {
        cell.name: cell.judged.effect for cell in rung_results(aggregate(result, theories=[toy(own, real)]))
    }
    assert found["own"] == pytest.approx(1)
    assert found["real"] == pytest.approx(0.5, abs=0.1)


def test_an_interrupted_reach_goes_on_where_it_stopped(tmp_path):
    theory, whole = toy(OWN, REAL), reach(toy(OWN, REAL), seeds=2)
    seen = []

    def interrupt(line: str) -> None:
        seen.append(line)
        if "(3 of 4)" in line:
            raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=f"3 of 4 cells are stored in {tmp_path}, the same command goes on from them"
    ):
        reach(theory, seeds=2, folder=tmp_path, progress=interrupt)
    with (tmp_path / CELLS).open("ab") as file:
        file.write(b'{"cell": ["toy", "re\xc3')  # the process was killed while it wrote
    CALLS.clear()
    assert reach(theory, seeds=2, folder=tmp_path).table == whole.table
    assert len(CALLS) == 1
    reach(theory, seeds=3, folder=tmp_path)
    assert CALLS[1:] == [2, 2]


def test_cells_of_other_sources_are_used_and_counted(tmp_path, monkeypatch, caplog):
    theory = toy(OWN, REAL)
    assert "cells_of_other_sources" not in reach(theory, seeds=1, folder=tmp_path).provenance
    monkeypatch.setattr(stored_cells, "sources", lambda: "1234abcd")
    assert reach(theory, seeds=2, folder=tmp_path).provenance["cells_of_other_sources"] == 2
    assert "2 of 2 stored cells" in caplog.text


def test_two_processes_give_the_same_rows():
    theory = toy(OWN, REAL)
    with parallel.workers(2):
        assert reach(theory, seeds=2).table == reach(theory, seeds=2, workers=1).table


def test_a_solver_that_stops_gives_a_reason_and_missing_data_are_named(tmp_path):
    stopping = Rung("stopping", "an assumption", stop, COLUMNS[2])
    counting = Rung("counting", "another", count, COLUMNS[6], needs="text")
    theory = toy(OWN, stopping, counting)
    result = reach(theory, seeds=1, folder=tmp_path)
    assert "stopped" in result.select(rung="stopping").one().reason
    assert result.select(rung="counting").one().reason == "needs text (--data FILE.txt)"
    text = Text(torch.arange(12) % 3, Vocabulary(("<unk>", "b", "c")), "letters")
    assert reach(theory, seeds=1, text=text, folder=tmp_path).select(rung="counting").one().value == 12
    longer = Text(torch.arange(15) % 3, text.vocabulary, "letters")
    with pytest.raises(
        ValueError,
        match=r"holds cells of text 'letters, 12 words', got 'letters, 15 words'; choose another --out",
    ):
        reach(theory, seeds=1, text=longer, folder=tmp_path)
    other = Text(torch.arange(12).flip(0) % 3, text.vocabulary, "letters")
    with pytest.raises(
        ValueError,
        match=r"holds cells of other text with the name and size 'letters, 12 words'; choose another --out",
    ):
        reach(theory, seeds=1, text=other, folder=tmp_path)


@each_case(
    ("arguments", "message"),
    [
        ({"theories": "crat"}, "unknown theory 'crat'; did you mean 'crate'"),
        ({"theories": "crate/exact step"}, "unknown rung 'exact step' of crate; did you mean"),
        ({"theories": []}, "theories must name at least one, got none"),
        (
            {"theories": "crate", "until": "full blok"},
            "unknown column 'full blok'; did you mean 'full block'",
        ),
        ({"theories": "crate", "seeds": 0}, "seeds"),
        ({"theories": "crate", "images": "no-such-images"}, "no-such-images"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        tt.reach(**arguments)


def test_folders_of_other_things_are_refused(tmp_path):
    theory = toy(OWN)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files, not a reach"):
        reach(theory, seeds=1, folder=tmp_path / "other")
    reach(theory, seeds=1, folder=tmp_path / "old")
    path = tmp_path / "old" / CELLS
    head, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(checked_line(checked_record(head) | {"version": "0.0.1"}) + "".join(lines))
    with pytest.raises(
        ValueError, match=r"holds cells of version 0.0.1, format 1, expected version .*; choose another --out"
    ):
        reach(theory, seeds=1, folder=tmp_path / "old")
    path.write_text("nonsense\n")
    with pytest.raises(ValueError, match="does not hold the cells of a reach"):
        reach(theory, seeds=1, folder=tmp_path / "old")


@pytest.mark.parametrize(
    "wrong",
    [
        ["typo"],
        ["scan_snap", "--until", "nowhere"],
        ["scan_snap", "--data", "nowhere"],
        ["scan_snap", "--model", "nowhere"],
        ["scan_snap", "--minutes", "3"],
        ["scan_snap", "--workers", "tcp://127.0.0.1:9"],
        ["scan_snap", "--seeds", "0"],
    ],
)
def test_a_command_that_is_refused_leaves_the_cells(tmp_path, wrong, capsys):
    reach(toy(OWN), seeds=2, folder=tmp_path)
    before = (tmp_path / CELLS).read_bytes()
    assert main(["reach", *wrong, "--overwrite", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {CELLS: before}


def test_cells_are_measured_again_if_they_are_to_be_overwritten(tmp_path):
    reach(toy(OWN, REAL), seeds=2, folder=tmp_path)
    CALLS.clear()
    reach(toy(OWN, REAL), seeds=1, folder=tmp_path, overwrite=True)
    assert len(CALLS) == 2
    reach(toy(OWN, REAL), seeds=1, folder=tmp_path)
    assert len(CALLS) == 2


def test_two_reaches_do_not_measure_in_one_folder(tmp_path):
    def second(line: str) -> None:
        with pytest.raises(FileExistsError, match="is in use by another reach; wait for it"):
            reach(toy(OWN), seeds=1, folder=tmp_path)

    reach(toy(OWN), seeds=1, folder=tmp_path, progress=second)


def test_a_cell_that_occurs_twice_with_other_values_is_refused(tmp_path):
    reach(toy(OWN), seeds=1, folder=tmp_path)
    _, line = (tmp_path / CELLS).read_text().splitlines()
    record = checked_record(line)
    with (tmp_path / CELLS).open("a") as file:
        file.write(checked_line(record))
    reach(toy(OWN), seeds=1, folder=tmp_path)
    record["rows"][0]["value"] += 1
    with (tmp_path / CELLS).open("a") as file:
        file.write(checked_line(record))
    with pytest.raises(ValueError, match="twice, with different values"):
        reach(toy(OWN), seeds=1, folder=tmp_path)


def test_a_rung_without_the_quantity_is_an_error():
    broken = Rung("broken", "", lambda generator: [Measurement("toy", "rung", "other", 1.0)], COLUMNS[0])
    with pytest.raises(ValueError, match=r"a rung must measure 'height' once, .* toy/broken gave"):
        reach(toy(broken), seeds=1)


def test_columns_are_in_order_and_names_are_unique():
    with pytest.raises(ValueError, match="order"):
        toy(REAL, OWN)
    with pytest.raises(ValueError, match="different names"):
        toy(OWN, replace(REAL, name="own"))
    with pytest.raises(ValueError, match="relaxes nothing"):
        toy(REAL)
    with pytest.raises(ValueError, match="column must be one of"):
        rung("own", "elsewhere", 1.0)
    with pytest.raises(ValueError, match="all of CONSTRUCTION_COLUMNS"):
        toy(OWN, rung("softmax", "softmax", 1.0))


def test_constructions_have_columns_of_their_own():
    """``until`` limits the ladders with this column."""
    exact, learnt = (
        replace(OWN, name=column, column=column)
        for column in (CONSTRUCTION_COLUMNS[0], CONSTRUCTION_COLUMNS[-1])
    )
    built = replace(toy(exact, replace(learnt, relaxes="written weights")), name="built")
    every, own, exact, both = (
        reach([toy(OWN, REAL), built], seeds=1, until=until).settings["ladders"]
        for until in ((), "own setting", "softmax", ("own setting", "softmax"))
    )
    counts = [[len(ladder["rungs"]) for ladder in ladders.values()] for ladders in (every, own, exact, both)]
    assert counts == [[2, 2], [1, 2], [2, 1], [1, 1]]


def test_the_map_has_a_block_of_rows_per_set_of_columns():
    (own,) = cells(OWN)
    exact = replace(
        own, theory=replace(own.theory, name="built"), name="exact", column=CONSTRUCTION_COLUMNS[0]
    )
    texts = {text.get_text(): text.get_position()[1] for text in reach_map([own, exact]).axes[0].texts}
    assert texts[COLUMNS[0]] < texts["own"] < texts["exact construction"] < texts["exact"]


def test_sentences_say_where_the_theory_ends():
    ((_, text),) = statements(cells(OWN, REAL, NOISE))
    assert text.startswith("the height is as predicted up to “real” (effect ")
    assert "at “own”, " in text
    assert text.endswith("at “real”); not significant at “noise”")
    ((_, text),) = statements(cells(OWN, NOISE, BACK))
    assert "as predicted at “own” only (effect " in text
    assert text.endswith("at “own”); not significant at “noise”; as predicted again at “back”")
    low = [rung(f"low {k}", COLUMNS[2], 0.3) for k in (1, 2)]
    ((_, text),) = statements(cells(OWN, *low, NOISE))
    assert "up to “low 2” (effect " in text
    assert ", below .50 from “low 1” on, " in text
    dip = rung("dip", COLUMNS[1], 0.3)
    ((_, text),) = statements(cells(OWN, dip, rung("high", COLUMNS[2], 0.9)))
    assert "on all 3 rungs (effect " in text
    assert ", below .50 at “dip”, " in text
    ((_, text),) = statements(cells(OWN, REAL))
    assert "on all 2 rungs (effect" in text
    ((_, text),) = statements(cells(NOISE_FIRST, BACK))
    assert text == "the height is not significant at “noise first”; as predicted at “back”"
    ((_, text),) = statements(cells(OWN, NOISE, rung("noise 2", COLUMNS[4], 0.0)))
    assert text.endswith("not significant from “noise” on")


def test_map_table_and_latex_hold_every_rung():
    found = cells(OWN, REAL, NOISE, UNDER)
    figure = reach_map(found)
    texts = [text.get_text() for text in figure.axes[0].texts]
    for name in ("own", "real", "noise", "under", *(COLUMNS[0], COLUMNS[1], "full block")):
        assert name in texts
    assert any(text.startswith("≈ ") for text in texts)
    assert any(text.startswith("✗ ") for text in texts)
    lines = table(found).lines
    assert [line.cells[0][0] for line in lines] == ["own", "real", "noise", "under"]
    outcomes = ["as predicted", "as predicted", "not significant", "opposite"]
    assert [line.cells[-1][0] for line in lines] == outcomes
    assert reach_map(()) is None
    assert table(()) is None


def test_the_page_merges_a_reach_with_a_comparison(tmp_path):
    theory = toy(OWN, NOISE)
    reach(theory, seeds=2).save(tmp_path / "reach")
    stored = Result.load(tmp_path / "reach")
    other = Result(
        "compare", {"data": "mine", "seeds": [0]}, [Measurement("toy", "on data", "depth", 1.0, seed=0)]
    )
    page = report.page([other, stored], theories=[theory])
    assert 'id="reach"' in page
    assert page.index('id="reach"') < page.index('id="results"')
    assert "as predicted" in page
    tex = latex([stored], theories=[theory])
    assert "own\\newline{\\scriptsize own setting; covered by the theorem}" in tex
    assert "as predicted" in tex
    assert 'id="reach"' not in report.page(other, theories=[theory])
    assert "How far" not in report.markdown(aggregate(other, theories=[theory]))
    assert "at “noise”" in report.markdown(aggregate([other, stored], theories=[theory]))


def test_jobs_measure_one_trained_network_together():
    theory = toy(OWN, rung("net", COLUMNS[6], 1.0))
    cells = [(theory, one, seed) for seed in (0, 1) for one in theory.ladder.rungs for _ in range(2)]
    jobs = module._jobs(cells)
    assert [len(job) for job in jobs] == [2, 2, 1, 1, 1, 1]
    assert {(one.name, seed) for _, one, seed in jobs[0]} == {("net", 0)}


def test_the_command_stores_the_page_the_map_and_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("transformer_theory.core.progress.LOGGED", 0.0)
    command = [
        "reach",
        "scan_snap/two classes",
        "--seeds",
        "2",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "Scan and snap: the rank agreement" in printed.out
    assert "two classes, seed 1 (2 of 2)" in printed.err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {CELLS, *FILES, "report.html", "references.bib", "table.tex", "reach.svg", "reach.pdf"}
    assert 'id="reach"' in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    tex = (tmp_path / "out" / "table.tex").read_text(encoding="utf-8")
    assert r"two classes\newline{" in tex
    assert "covered by the theorem" in tex
    first = (tmp_path / "out" / CELLS).read_bytes()
    assert main(command) == 0
    assert "2 of them stored" in capsys.readouterr().err
    assert (tmp_path / "out" / CELLS).read_bytes() == first
    assert main([*command, "--overwrite"]) == 0
    assert "0 of them stored" in capsys.readouterr().err
    assert (tmp_path / "out" / CELLS).read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["crat"], "unknown theory 'crat'; did you mean 'crate'"),
        (["crate", "--until", "blok"], "unknown column 'blok'"),
        (["crate", "--data", "a.txt", "b.txt"], "--data takes one text, got a.txt, b.txt"),
        (["crate", "--data", "missing.txt"], "missing.txt"),
        (["crate", "--model", "nowhere"], "nowhere"),
    ],
)
def test_the_command_names_what_is_wrong(arguments, message, tmp_path, capsys):
    assert main(["reach", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def second_null(shift: float, generator: torch.Generator):
    """A value near .9 with a first null around 0 and a second one around ``shift``."""
    rows = list(draw(0.9, 1.0, 199, generator))
    null = Null("other draws", tuple((shift + 0.4 * torch.randn(19, generator=generator)).tolist()))
    return [replace(rows[0], nulls=(*rows[0].nulls, null)), *rows[1:]]


def with_second(rows, **columns):
    """The rows with other columns of the second null."""
    first, second = rows[0].nulls
    return [replace(rows[0], nulls=(first, replace(second, **columns))), *rows[1:]]


def renamed_null(shift: float, generator: torch.Generator):
    return with_second(second_null(shift, generator), kind="shuffled draws")


def without_draws(shift: float, generator: torch.Generator):
    return with_second(second_null(shift, generator), draws=())


def test_a_value_that_a_second_null_explains_is_no_reach():
    explained = Rung("explained", "an assumption", partial(second_null, 0.9), COLUMNS[1])
    beyond = Rung("beyond both", "an assumption", partial(second_null, 0.2), COLUMNS[2])
    between = Rung("between", "an assumption", partial(second_null, 1.9), COLUMNS[3])
    missing = Rung("missing", "an assumption", partial(without_draws, 0.2), COLUMNS[4])
    found = {cell.name: cell for cell in cells(OWN, explained, beyond, between, missing)}
    assert {name: cell.judged.outcome for name, cell in found.items()} == {
        "own": "as predicted",
        "explained": "matched by a second null",
        "beyond both": "as predicted",
        "between": "nulls conflict",
        "missing": "too few draws",
    }
    assert found["explained"].judged.row.null.kind == "normal draws"
    ((_, text),) = statements(tuple(found.values()))
    assert (
        "; matched by other draws at “explained”; beyond normal draws but on the opposite side of other "
        "draws at “between”; " in text
    )
    assert text.endswith("as predicted again at “beyond both”")
    other = Rung("other", "an assumption", partial(renamed_null, 0.9), COLUMNS[2])
    ((_, text),) = statements(cells(OWN, explained, other))
    assert text.endswith("matched by other draws at “explained”; matched by shuffled draws at “other”")
    figure = reach_map(tuple(found.values()))
    assert any(text.get_text().startswith("~ ") for text in figure.axes[0].texts)
