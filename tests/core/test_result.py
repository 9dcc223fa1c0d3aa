"""Results come back as they were stored, appear whole or not at all, and say where their numbers
come from.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from transformer_theory.core import files
from transformer_theory.core.claims import Evidence, Verification
from transformer_theory.core.experiment import Experiment, RandomExperiment
from transformer_theory.core.files import atomic_directory
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import FILES, Result, provenance
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Arrays, Table


@dataclass(frozen=True)
class Walk(RandomExperiment):
    """A random walk."""

    steps: int = 10
    scales: tuple[float, ...] = (1.0, 2.0)

    name = "test.walk"
    sources = (Source("tian2023scan", "Sec. 2"),)

    def measure(self) -> Iterator[Measurement | Arrays]:
        path = torch.randn(self.steps, generator=self.generator(), dtype=torch.float64).cumsum(0)
        for step, value in enumerate(path):
            yield Measurement("test", "figure", "position", float(value), step=step)
        yield Measurement("test", "figure", "global noise", float(torch.rand(())))
        yield Arrays({"test/path": path.numpy()})


def row(value: float | None = 1.0, **columns) -> Measurement:
    return Measurement("t", "on data", "q", value, **columns)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_result_comes_back_as_it_was_stored(tmp_path):
    result = Walk(seed=3).run()
    assert result.save(tmp_path / "deep" / "run") == tmp_path / "deep" / "run"
    assert names(tmp_path / "deep") == ["run"]
    assert names(tmp_path / "deep" / "run") == sorted(FILES)
    read = Result.load(tmp_path / "deep" / "run")
    assert read.name == "test.walk"
    assert repr(read) == "Result('test.walk', rows=11, arrays=1, verifications=0)"
    assert read.settings == {"seed": 3, "steps": 10, "scales": [1.0, 2.0]} == result.settings
    assert read.table == result.table
    assert read.sources == (Source("tian2023scan", "Sec. 2"),)
    assert read.provenance == result.provenance
    assert read.arrays.keys() == {"test/path"}
    assert np.array_equal(read.arrays["test/path"], result.arrays["test/path"])


VALUES = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.text(max_size=20), VALUES, st.integers(0, 10**9), st.text(max_size=40)), max_size=5
    ),
    arrays=st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}(::[a-z]{1,4})?/[a-zA-Z0-9 _]{1,10}", fullmatch=True),
        st.integers(0, 4),
        max_size=3,
    ),
)
def test_any_row_and_array_name_survives(tmp_path_factory, rows, arrays):
    table = Table(
        Measurement(
            "t", "on data", text, value, step=step, note=note, reason="" if value is not None else "none"
        )
        for text, value, step, note in rows
    )
    result = Result("any", table=table, arrays={name: np.arange(size) for name, size in arrays.items()})
    folder = tmp_path_factory.mktemp("any") / "run"
    result.save(folder)
    read = Result.load(folder)
    assert read.table == table
    assert {name: array.tolist() for name, array in read.arrays.items()} == {
        name: list(range(size)) for name, size in arrays.items()
    }


def test_numbers_of_torch_and_numpy_become_json(unchecked, tmp_path):
    null = Null("shuffled labels", (np.float32(0.5), float("nan"), 0.25))
    given = row(
        np.float64(2.5),
        predicted=float("nan"),
        nulls=(null,),
        step=np.int64(3),
        threshold=torch.tensor(1.5),
        interval=(1, 2),
        n=4,
    )
    Result("numbers", table=Table([given])).save(tmp_path / "run")
    (read,) = Result.load(tmp_path / "run").table
    assert (read.value, read.predicted, read.threshold, read.step, read.n, read.interval) == (
        2.5,
        None,
        1.5,
        3,
        4,
        (1.0, 2.0),
    )
    assert read.null == Null("shuffled labels", (0.5, 0.25))
    assert read == given
    assert "NaN" not in (tmp_path / "run" / "table.jsonl").read_text()


def test_verifications_are_stored_whole(tmp_path):
    evidence = (
        Evidence(0.5, 1.0, "<=", detail={"slope": 2.0}),
        Evidence(float("nan"), 1.0, "<=", converged=False, note="stopped"),
    )
    claim = Verification(
        "t/c",
        "$a$",
        "a",
        Source("tian2023scan"),
        ("b",),
        "c",
        "d",
        Source("yun2020transformers", locator="Lemma 1"),
        "quick",
        (0, 7),
        evidence,
        evidence[:1] * 2,
    )
    Result("verify", verifications=(claim,)).save(tmp_path / "run")
    (read,) = Result.load(tmp_path / "run").verifications
    assert read.to_json() == claim.to_json()
    assert read.evidence[0].detail == {"slope": 2.0}
    assert read.seeds == (0, 7)


def test_a_source_of_another_bibliography_is_kept(tmp_path):
    unknown = Source.from_json({"key": "nobody1900nothing", "locator": "p. 1"})
    Result("x", table=Table([row(source=unknown)]), sources=(unknown,)).save(tmp_path / "run")
    read = Result.load(tmp_path / "run")
    assert read.sources == (unknown,)
    assert read.table[0].source.label == "nobody1900nothing, p. 1"
    assert not unknown.known


def reseal(folder):
    """Checksums that fit what was done to the files, as if a program had stored them so."""
    head = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(files.sealed(head, folder, FILES[1:])))


@each_case(
    ("part", "value"),
    [
        ("provenance", {"versions": {"torch": [2]}}),
        ("provenance", {"dirty": "no"}),
        ("settings", {"grid": ["a", 2]}),
        ("settings", {"copies": {"equal scale": True}}),
        ("settings", {"ladders": {"crate": {"quantity": "q", "null": "n", "rungs": [{"name": "r"}]}}}),
        ("settings", {"measured": {"crate": {"commit": 3}}}),
    ],
)
def test_values_that_pages_read_have_their_types(tmp_path, part, value):
    Result("probe", **{part: value}).save(tmp_path / "run")
    with pytest.raises(ValueError, match=f"{next(iter(value))} must be"):
        Result.load(tmp_path / "run")


@pytest.mark.parametrize(("name", "missing"), [("reach", "ladders"), ("probe", "model")])
def test_settings_without_which_no_page_is_written_are_there(tmp_path, name, missing):
    Result(name, {"n": 1}).save(tmp_path / "run")
    with pytest.raises(ValueError, match=f"lacks '{missing}'"):
        Result.load(tmp_path / "run")


def test_provenance_with_other_keys_than_words_is_read_back(tmp_path):
    Result("x", provenance={"counts": {2: 1, 10: np.int64(3)}}).save(tmp_path / "run")
    assert Result.load(tmp_path / "run").provenance == {"counts": {"2": 1, "10": 3}}


@each_case("name", ["../secret", "/etc/hostname", "..", "sub/file", ""])
def test_a_checksum_of_a_file_elsewhere_is_refused(tmp_path, name):
    Result("x").save(tmp_path / "run")
    (tmp_path / "secret").write_text("not to be read")
    head = json.loads((tmp_path / "run" / "result.json").read_text())
    head["sha256"][name] = "0" * 64
    (tmp_path / "run" / "result.json").write_text(json.dumps(head))
    with pytest.raises(ValueError, match="checksums must be of files in the folder"):
        Result.load(tmp_path / "run")


def test_object_arrays_are_neither_written_nor_read(tmp_path):
    harmful = np.array([{"a": 1}], dtype=object)
    with pytest.raises(ValueError, match="Object arrays"):
        Result("x", arrays={"a": harmful}).save(tmp_path / "run")
    assert names(tmp_path) == []
    Result("x").save(tmp_path / "run")
    np.savez(tmp_path / "run" / "arrays.npz", a=harmful)
    reseal(tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"run does not hold a readable result .*never unpickled.* run it again"
    ):
        Result.load(tmp_path / "run")


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new"), [("table.jsonl", "0.25", "0.75"), ("result.json", '"rate": 3', '"rate": 4')]
)
def test_a_number_that_was_edited_is_noticed(tmp_path, name, old, new):
    result = Result("x", settings={"rate": 3}, table=Table([row(0.25)]), arrays={"t/a": np.arange(3)})
    result.save(tmp_path / "run")
    edit(tmp_path / "run" / name, old, new)
    with pytest.raises(
        ValueError, match=rf"readable result \({name} is not as it was stored: it was edited.*run it again"
    ):
        Result.load(tmp_path / "run")
    edit(tmp_path / "run" / name, new, old)
    assert Result.load(tmp_path / "run").table == result.table


def test_arrays_of_another_result_are_noticed(tmp_path):
    for name, size in (("run", 3), ("other", 4)):
        Result("x", arrays={"t/a": np.arange(size)}).save(tmp_path / name)
    (tmp_path / "other" / "arrays.npz").replace(tmp_path / "run" / "arrays.npz")
    with pytest.raises(
        ValueError, match=r"arrays\.npz is not as it was stored: .* copied from another result"
    ):
        Result.load(tmp_path / "run")


def test_a_table_that_grows_has_no_checksum_until_it_is_whole(tmp_path):
    result = Result("x", table=Table([row()]))
    result.write_into(tmp_path, growing=True)
    with (tmp_path / "table.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"theory": "t", "kind": "on data", "quantity": "q", "value": 2.0}\n')
    assert len(Result.load(tmp_path).table) == 2
    result.write_into(tmp_path)
    edit(tmp_path / "table.jsonl", "1.0", "2.0")
    with pytest.raises(ValueError, match="was edited"):
        Result.load(tmp_path)


@each_case("missing", FILES)
def test_load_names_the_missing_file(tmp_path, missing):
    Result("x").save(tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        Result.load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"result\.json is missing"):
        Result.load(tmp_path / "nowhere")


@each_case(
    ("name", "content"),
    [
        ("result.json", "{"),
        ("result.json", "[1]"),
        ("result.json", "3"),
        ("result.json", "{}"),
        ("result.json", '{"format": 99}'),
        ("result.json", '{"format": 2, "name": "x"}'),
        ("result.json", '{"format": 3, "name": "x"}'),
        ("verifications.json", '[{"id": "a/b"}]'),
        ("verifications.json", "{"),
        ("table.jsonl", '{"theory": "a"}\n'),
        ("table.jsonl", '{"theory": "a", "kind": "on data", "quantity": "q", "value": 1, "colour": "red"}\n'),
        ("table.jsonl", '{"theory": "a", "kind": "hearsay", "quantity": "q", "value": 1}\n'),
        ("table.jsonl", '{"theory": "a", "kind": "on data", "quantity": "q", "value": null}\n'),
        ("table.jsonl", "[]\n"),
        ("table.jsonl", "3\n"),
        ("table.jsonl", "\xff\n"),
        ("arrays.npz", ""),
        ("arrays.npz", "PK\x03\x04"),
        ("arrays.npz", "text"),
    ],
)
def test_load_refuses_a_damaged_result_in_one_line(unchecked, tmp_path, name, content):
    Result("x", table=Table([row()])).save(tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content.encode("latin-1"))
    if name != "result.json":
        reseal(tmp_path / "run")
    with pytest.raises(ValueError, match=r"run does not hold a readable result \(.*\); run it again"):
        Result.load(tmp_path / "run")


def _fails_halfway(place, error, meanwhile=None):
    with atomic_directory(place) as folder:
        (folder / "half").write_text("written")
        if meanwhile is not None:
            meanwhile.write_text("someone else's")
        raise error


def test_an_exception_in_the_middle_leaves_nothing(tmp_path):
    for error in (RuntimeError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            _fails_halfway(tmp_path / "a" / "b" / "run", error)
        assert names(tmp_path) == []


def test_parents_that_were_there_stay(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "a" / "b" / "run"):
        raise RuntimeError
    assert names(tmp_path) == ["a"]
    with pytest.raises(RuntimeError):
        _fails_halfway(tmp_path / "c" / "run", RuntimeError, meanwhile=tmp_path / "c" / "note")
    assert names(tmp_path / "c") == ["note"]


def test_the_target_is_invisible_until_the_end(tmp_path):
    with atomic_directory(tmp_path / "run") as folder:
        (folder / "x").write_text("1")
        assert not (tmp_path / "run").exists()
    assert names(tmp_path / "run") == ["x"]
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755


def test_what_exists_is_refused_before_any_work(tmp_path):
    Result("old").save(tmp_path / "run")
    with pytest.raises(
        FileExistsError, match="run exists already; choose another --out, or pass --overwrite"
    ):
        Result("new").save(tmp_path / "run")
    assert Result.load(tmp_path / "run").name == "old"
    Result("new").save(tmp_path / "run", overwrite=True)
    assert Result.load(tmp_path / "run").name == "new"
    assert names(tmp_path) == ["run"]


def test_a_failed_replacement_keeps_the_old_result(tmp_path):
    Result("old").save(tmp_path / "run")
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "run", overwrite=True):
        raise RuntimeError
    assert Result.load(tmp_path / "run").name == "old"
    assert names(tmp_path) == ["run"]


def test_overwrite_takes_results_and_empty_folders_only(tmp_path):
    (tmp_path / "empty").mkdir()
    Result("new").save(tmp_path / "empty", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "file", "dangling"):
        with pytest.raises(FileExistsError, match="is not a stored result, so it is not overwritten"):
            Result("new").save(tmp_path / name, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_the_present_folder_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match=r"\. exists already"):
        Result("x").save(".")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "run", tmp_path / "file" / "deep" / "run", tmp_path / ("n" * 300)):
        with pytest.raises(PermissionError, match=r"cannot write to .* choose another --out"):
            Result("x").save(place)
    assert names(tmp_path) == ["file"]


def test_a_target_that_appears_during_the_work_costs_nothing(tmp_path):
    writing = atomic_directory(tmp_path / "run")
    folder = writing.__enter__()
    (folder / "x").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "y").write_text("theirs")
    with pytest.raises(
        FileExistsError, match=r"run changed during the work; the result lies in .*run-2 instead"
    ):
        writing.__exit__(None, None, None)
    assert names(tmp_path / "run") == ["y"]
    # a visible name, which no later command clears
    with atomic_directory(tmp_path / "other"):
        pass
    assert (tmp_path / "run-2" / "x").read_text() == "precious"


def test_run_forks_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = Walk(seed=1).run(), Walk(seed=1).run()
    assert torch.equal(torch.get_rng_state(), before)
    assert first.table == second.table  # the global noise too
    assert Walk(seed=2).run().table != first.table


@dataclass(frozen=True)
class Still(Experiment):
    """Nothing is drawn by a seed."""

    steps: int = 3
    scales: tuple[float, ...] = (1.0, 2.0)

    name = "test.still"

    def measure(self) -> Iterator[Measurement | Arrays]:
        yield Measurement("test", "figure", "global noise", float(torch.rand(())))


def test_what_draws_nothing_has_no_seed():
    first, second = Still().run(), Still().run()
    assert first.settings == {"steps": 3, "scales": [1.0, 2.0]}
    assert first.provenance["seed"] is None
    assert first.table == second.table
    with pytest.raises(TypeError, match="seed"):
        Still(seed=1)  # pyright: ignore[reportCallIssue]


def test_an_experiment_knows_whether_its_settings_are_the_default_ones():
    assert Still().at_defaults()
    changed = Still(steps=4)
    assert not changed.at_defaults()
    assert not changed.at_defaults("scales", "steps")
    assert changed.at_defaults("scales")
    assert Walk(seed=1).at_defaults("steps")
    assert not Walk(seed=1).at_defaults()
    with pytest.raises(AttributeError, match="step"):
        changed.at_defaults("step")


def test_provenance_says_where_a_number_comes_from(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/transformer-theory", "compare", "--out", "my runs"])
    record = provenance(seed=4, device="cpu")
    assert record["seed"] == 4
    assert (
        record["versions"]["torch"] == torch.__version__.split("+")[0]
        or record["versions"]["torch"] == torch.__version__
    )
    assert record["threads"] == torch.get_num_threads()
    assert record["command"] == "transformer-theory compare --out 'my runs'"
    assert "seconds" not in record
    json.dumps(record)
    ran = Walk().run().provenance
    assert 0 <= ran["seconds"] < 5


def test_select_by_columns_and_choices():
    result = Walk().run()
    assert len(result.select(quantity="position")) == 10
    assert [one.step for one in result.select(quantity="position", step=(2, 5))] == [2, 5]
    assert len(result.select(quantity="nothing")) == 0


def test_an_experiment_says_what_its_author_owes():
    with pytest.raises(NotImplementedError, match=r"must define measure\(\)"):
        Experiment().run()
    with pytest.raises(NotImplementedError, match=r"must define a view or plot\(\)"):
        Walk().plot(Result("x"))


def test_no_stray_files(tmp_path):
    Walk().run().save(tmp_path / "run")
    assert all(not name.startswith(".") for name in os.listdir(tmp_path))
