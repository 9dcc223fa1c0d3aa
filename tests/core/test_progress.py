"""Progress: silent in scripts, shown in a notebook and at a prompt, and never lost or doubled."""

import io
import sys
from types import SimpleNamespace

import pytest

import transformer_theory as tt
from transformer_theory.core import listeners, progress
from transformer_theory.core.progress import line, shown


class Handle:
    """What IPython's ``display(..., display_id=True)`` returns."""

    def __init__(self, texts):
        self.texts = texts

    def update(self, data, *, raw):
        assert raw
        self.texts.append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch) -> list[str]:
    """The texts that a notebook shows, one after another, in the place of one line."""
    texts: list[str] = []

    def display(data, *, raw, display_id):
        assert raw
        assert display_id
        texts.append(data["text/plain"])
        return Handle(texts)

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(progress, "INTERVAL", 0)
    return texts


def test_a_script_is_silent(capsys):
    with shown(None, "name"):
        listeners.progress("unseen")
    assert capsys.readouterr() == ("", "")


def test_a_prompt_shows_lines(monkeypatch, capsys):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with shown(None, "name"):
        listeners.progress("seen")
    assert capsys.readouterr().err.endswith("s  seen\n")


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    with line() as report:
        for seconds in range(12):
            clock[0] = float(seconds)
            report(f"stage {seconds}")
    lines = capsys.readouterr().err.splitlines()
    assert [text.split("s  ")[1] for text in lines] == ["stage 0", "stage 5", "stage 10"]


def test_a_terminal_shows_one_line_that_vanishes(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with line() as report:
        report("[b]stage[/b]")
    assert "\x1b" in stream.getvalue()


def test_a_notebook_updates_one_line(notebook):
    with shown(None, "compare"):
        listeners.progress("first")
        listeners.progress("second")
    assert [text.partition("  ")[2] for text in notebook[1:3]] == ["first", "second"]
    assert notebook[0] == "compare: starting"
    assert notebook[-1] == "compare: done in 0 s"


def test_an_error_ends_the_line(notebook):
    with pytest.raises(ZeroDivisionError), shown(None, "compare"):
        _ = 1 / 0
    assert notebook[-1] == "compare: stopped after 0 s"


def test_a_notebook_is_not_flooded(notebook, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 60)
    with shown(None, "compare"):
        for number in range(1000):
            listeners.progress(str(number))
    assert len(notebook) == 3


def test_the_outer_listener_keeps_the_lines(notebook):
    lines: list[str] = []
    with listeners.progress_listener(lines.append), shown(None, "inner"):
        listeners.progress("kept")
    assert (lines, notebook) == (["kept"], [])


def test_truth_values_and_functions(notebook, capsys):
    lines: list[str] = []
    for value in (False, lines.append):
        with shown(value, "name"):
            listeners.progress("line")
    assert (lines, notebook) == (["line"], [])
    with shown(True, "name"):
        listeners.progress("line")
    assert len(notebook) == 3
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("value", [3, "yes", []])
def test_other_values_are_refused(value):
    with (
        pytest.raises(
            TypeError, match="progress must be a function of one line of text, True, False or None, got"
        ),
        shown(value, "name"),
    ):
        pass


def test_long_calls_take_it(notebook):
    claim = "attention_svm/global-direction"
    assert tt.verify(claim, 1).seeds == (0,)
    assert [text.partition(" ")[0] for text in notebook] == [f"{claim}:"] * 3
    lines: list[str] = []
    tt.verify(claim, seeds=[0], progress=lines.append)
    assert lines == ["check and control on seed 0 (1 of 1)"]
    experiment = tt.scan_snap.THEORY.experiments[0].quick()
    experiment.run()
    assert notebook[-1].startswith(f"{experiment.name}: done in")
    assert tt.reach("length/written head, uniform keys", seeds=1, progress=lines.append).table
    assert len(lines) > 1
