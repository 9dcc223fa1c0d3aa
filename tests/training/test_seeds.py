"""Several seeds: each is the training of its own, one that fails leaves the others, and the summary is their
mean.
"""

from unittest.mock import patch

import pytest

from tests.problems.image_trainings import CPU, assert_same, noise, trained, with_
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import student_interval
from transformer_theory.probes import NoAttention
from transformer_theory.training.image import seeds
from transformer_theory.training.image.seeds import train_seeds
from transformer_theory.training.monitor import Monitor

DATA = noise(), noise(12, seed=1)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "out"
    ended = []
    # on one core, as the other trainings of the tests; without metrics, which saves time
    with (
        patch.object(seeds, "available_threads", return_value=1),
        patch.object(Monitor, "_measure", side_effect=NoAttention),
    ):
        result = train_seeds(
            DATA, with_(epochs=1), folder, (0, 3), workers=1, progress=ended.append, hardware=CPU
        )
    return folder, result, ended


def test_each_seed_is_the_training_with_that_seed(several, tmp_path):
    folder, _, ended = several
    assert [outcome.seed for outcome in ended] == [0, 3]
    trained(tmp_path / "alone", with_(epochs=1, seed=3))
    alone, seed = (Result.load(path) for path in (tmp_path / "alone", folder / "seed-3"))
    timed = ("seconds", "images per second")
    assert [row for row in alone.table if row.quantity not in timed] == [
        row for row in seed.table if row.quantity not in timed
    ]
    assert_same(tmp_path / "alone", folder / "seed-3")
    assert seed.provenance["threads"] >= 1


def test_the_summary_is_the_mean_with_students_interval(several):
    folder, result, _ = several
    rows = result.select(quantity="accuracy")
    assert [row.seed for row in rows] == [0, 3, None]
    values = [row.value for row in rows[:2]]
    assert rows[2].value == pytest.approx(sum(values) / 2)
    assert rows[2].interval == pytest.approx(student_interval(values))
    assert rows[2].n == 2
    assert Result.load(folder).table == result.table
    assert result.settings["seeds"] == [0, 3]
    assert "seed" not in result.settings["settings"]


def test_a_seed_that_fails_leaves_the_others(tmp_path):
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "last.pt").write_bytes(b"damaged")
    result = train_seeds(DATA, with_(epochs=1), tmp_path, (0, 1), workers=1, hardware=CPU, resume=True)
    (failed,) = result.select(quantity="training")
    assert failed.seed == 1
    assert "seed-1" in failed.reason
    assert [row.seed for row in result.select(quantity="accuracy")] == [0, None]
    with pytest.raises(ValueError, match="seed 1"):
        train_seeds(DATA, with_(epochs=1), tmp_path, (1,), workers=1, hardware=CPU, resume=True)


def test_a_second_call_does_not_share_the_seeds(tmp_path):
    def again(outcome):
        with pytest.raises(FileExistsError, match="out is in use by another training; wait for it"):
            train_seeds(DATA, with_(epochs=1), tmp_path / "out", (1,), workers=1, hardware=CPU)

    with patch.object(Monitor, "_measure", side_effect=NoAttention):
        train_seeds(DATA, with_(epochs=1), tmp_path / "out", (0,), workers=1, progress=again, hardware=CPU)
    assert sorted(path.name for path in (tmp_path / "out").glob("seed-*")) == ["seed-0"]
    with patch.object(seeds, "train", side_effect=OSError("no")), pytest.raises(ValueError, match="failed"):
        train_seeds(DATA, with_(epochs=1), tmp_path / "new" / "out", (0,), workers=1, hardware=CPU)
    assert not (tmp_path / "new" / "out").exists()


def test_folders_and_seeds_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\[1, 1\]"):
        train_seeds(DATA, with_(), tmp_path, (1, 1))
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        train_seeds(DATA, with_(), tmp_path, (1,), workers=0)
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2" / "note").write_text("mine")
    with pytest.raises(FileExistsError, match="seed-2"):
        train_seeds(DATA, with_(), tmp_path, (0, 2))
    trained(tmp_path / "one", with_(epochs=1))
    with pytest.raises(FileExistsError, match="one"):  # its summary would replace the result
        train_seeds(DATA, with_(), tmp_path / "one", (0,))
