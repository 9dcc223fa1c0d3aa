"""Files are written atomically; missing permissions are named."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_theory.core.files import atomic_directory, check_targets, replacing, write_together
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table


def test_a_file_is_replaced_only_when_its_draft_is_whole(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("old")
    with replacing(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        assert draft.parent == path.parent
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as draft:
        draft.write_text("half \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_original_error_propagates_when_there_is_no_draft(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError), replacing(tmp_path / "file" / "numbers.txt") as draft:
        draft.write_text("new")


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_rename_that_fails_undoes_those_before_it(tmp_path, monkeypatch):
    (tmp_path / "old.txt").write_text("old")
    before = everything(tmp_path)
    files = {tmp_path / name: b"new" for name in ("old.txt", "new/first.txt", "last.txt")}
    replace = Path.replace

    def fails(self, target):
        if target.name == "last.txt":
            raise OSError(5, "the disk is gone")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(PermissionError, match=r"cannot write to .*last.txt \(the disk is gone\)"):
            write_together(files)
    assert everything(tmp_path) == before
    write_together(files)
    assert everything(tmp_path) == {"old.txt": "new", "new": None, "new/first.txt": "new", "last.txt": "new"}


def test_a_draft_that_fails_leaves_all_as_it_was(tmp_path):
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "file").write_text("x")
    before = everything(tmp_path)
    with pytest.raises(PermissionError, match=r"cannot write to .*numbers.txt"):
        write_together(
            {
                tmp_path / "old.txt": b"new",
                tmp_path / "new" / "a": b"",
                tmp_path / "file" / "numbers.txt": b"new",
            }
        )
    assert everything(tmp_path) == before


def test_targets_that_cannot_be_files_together_are_named(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError, match="folder is a folder where a file should be"):
        check_targets([tmp_path / "folder"])
    with pytest.raises(ValueError, match="x twice"):
        check_targets([tmp_path / "x", tmp_path / "y" / ".." / "x"])
    with pytest.raises(ValueError, match=r"x cannot be a file and the folder of .*all.tex"):
        check_targets([tmp_path / "x" / "all.tex", tmp_path / "x"])


def test_a_folder_that_may_not_be_written_to_is_named_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda folder, mode: folder != tmp_path)  # root may do anything
    with pytest.raises(
        PermissionError, match=r"cannot write to .*all.tex \(permission denied\); choose another place"
    ):
        check_targets([tmp_path / "new" / "all.tex"])
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_result_is_not_called_damaged(unchecked, tmp_path, monkeypatch):
    folder = Result("still", table=Table([Measurement("crate", "on data", "x", 1.0)])).save(
        tmp_path / "result"
    )
    usual = Path.open

    def forbidden(path, *arguments, **options):
        if path.name == "table.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(
        PermissionError, match=r"result cannot be read \(permission denied\); ask its owner, or copy it"
    ):
        Result.load(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from transformer_theory.core.files import atomic_directory, replacing

place, how = Path(sys.argv[1]), sys.argv[2]
end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if how == "file":
    with replacing(place) as draft:
        draft.write_text("half")
        end()
with atomic_directory(place, overwrite=True) as folder:
    (folder / "result.json").write_text("{}")
    if how == "folder":
        end()
    rename = Path.rename
    Path.rename = lambda self, target: (rename(self, target), end())  # between the two renames
"""


def killed(place: Path, how: str) -> list[Path]:
    """What a process that is killed leaves beside the place."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place), how], check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [path for path in place.parent.iterdir() if path.name.startswith(".")]
    assert len(left) in (1, 2)
    return left


@pytest.mark.parametrize("how", ["file", "folder"])
def test_the_next_start_removes_what_a_killed_process_left(tmp_path, how):
    place = tmp_path / "run"
    killed(place, how)
    (tmp_path / ".run.of-the-user").write_text("")  # not one of ours
    if how == "file":
        with replacing(place) as draft:
            draft.write_text("whole")
    else:
        with atomic_directory(place) as folder:
            (folder / "result.json").write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.of-the-user", "run"]


def test_a_folder_is_put_back_if_its_replacement_was_killed(tmp_path):
    place = tmp_path / "run"
    with atomic_directory(place) as folder:
        (folder / "result.json").write_text('{"old": 1}')
    killed(place, "between")
    assert not place.exists()
    with pytest.raises(FileExistsError, match="exists already"), atomic_directory(place):
        pass
    assert everything(tmp_path) == {"run": None, "run/result.json": '{"old": 1}'}


def test_the_draft_of_a_process_that_runs_is_kept(tmp_path):
    with atomic_directory(tmp_path / "run") as first:
        (first / "a").write_text("")
        with pytest.raises(
            FileExistsError, match=f"is being written by another command .process {os.getpid()}"
        ):
            atomic_directory(tmp_path / "run").__enter__()
        assert everything(first) == {"a": ""}
    assert everything(tmp_path / "run") == {"a": ""}
