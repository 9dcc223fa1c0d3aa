"""The command line: what each command prints, writes and returns."""

import importlib
import json
import os
import subprocess
import sys

import networkx
import pytest

from tests.cases import each_case
from tests.stand_in import THEORY, install, process
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.cli.terminal import console
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.data import Graphs
from transformer_theory.report import terminal

COMPARE = importlib.import_module("transformer_theory.comparison")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """One made-up theory in place of the others."""
    install(monkeypatch)


@pytest.fixture
def written(monkeypatch):
    """compare and the report replaced by quick ones; the list holds what compare was called with."""
    calls = []

    def compare(data, theories, **options):
        calls.append((data, theories, options))
        options["progress"]("half way")
        return Result(
            "compare",
            {"data": data.name},
            Table([Measurement("stand_in", "on data", "largest token", float("nan"))]),
        )

    def write(result, folder, **_):
        (folder / "report.html").write_text(f"{result.table[0].value}")
        return folder / "report.html"

    monkeypatch.setattr(COMPARE, "compare", compare)
    monkeypatch.setattr(report, "write", write)
    monkeypatch.setattr(terminal, "summary", lambda result, **_: "THE TABLE")
    return calls


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("list", "compare", "verify", "run", "report", "cite"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "transformer-theory 0.1.0\n"
    assert main([]) == 2
    assert "usage: transformer-theory" in capsys.readouterr().out


@each_case("command", ["list", "compare", "verify", "run", "report", "cite"])
def test_every_command_explains_itself(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: transformer-theory {command}" in capsys.readouterr().out


def test_list_shows_theories_claims_and_experiments(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for word in ("stand_in", "Are tokens small?", "stand_in/good", "stand_in/violated", "stand_in.coin"):
        assert word in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stand_in", ("Are tokens small?", "assumptions", "stand_in/good", "stand_in.coin", "sources: ")),
        (
            "stand_in/good",
            (
                "assumptions",
                "control, which must fail",
                "measures v; threshold: ≤ 1",
                "sources: Tian et al. (2023), Sec. 2",
            ),
        ),
        ("stand_in.coin", ("stand_in.coin", "sources: ")),
    ],
)
def test_list_describes_one_of_them(name, words, capsys):
    assert main(["list", name]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(word in out for word in words), out


def test_the_stored_texts_are_those_of_the_records(monkeypatch):
    from transformer_theory.cli import catalogue

    monkeypatch.undo()
    assert catalogue.STORED.read_text(encoding="utf-8") == catalogue.stored_text(), (
        "the texts of a theory have changed; run python -m transformer_theory.cli.catalogue"
    )


# What a command imports before it does anything: --help must not wait for torch, nor list for the theories.
WITHOUT = """
import sys
from transformer_theory.cli import main
sys.stdout = open(__import__("os").devnull, "w")
sys.argv[1:] = {words!r}.split()
main()
heavy = {{"torch", "scipy", "matplotlib", "numpy"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""


@pytest.mark.parametrize(
    "words", ["--help", "--version", "verify --help", "measure --help", "list", "list joma", "list nobody"]
)
def test_the_first_commands_import_neither_torch_nor_numpy(words):
    program = [sys.executable, "-c", WITHOUT.format(words=words)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_a_claim_imports_its_own_theory_alone():
    program = (
        "import gc, sys\n"
        "from transformer_theory.cli import main\n"
        "sys.argv[1:] = ['verify', 'joma/gradient', '--seeds', '1']\n"
        "main()\n"
        "import transformer_theory.theories as all\n"
        "others = [name for name in all.THEORIES if f'transformer_theory.theories.{name}' in sys.modules]\n"
        # neither processes, figures nor reports
        "others += {'joblib', 'matplotlib', 'transformer_theory.report'} & set(sys.modules)\n"
        # the objects of torch, and not those of the command, are out of the collections
        "seen = {id(one) for one in gc.get_objects()}\n"
        "frozen = id(vars(sys.modules['torch'])) not in seen and id(vars(all)) in seen\n"
        "sys.exit(0 if others == ['joma'] and frozen else f'imported {others}, frozen: {frozen}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_help_of_an_experiment_describes_it(capsys):
    from tests.stand_in import THEORY
    from transformer_theory.cli.catalogue import summary

    (kind,) = THEORY.experiments
    assert main(["run", kind.name, "--help"]) == 0
    assert summary(kind) in " ".join(capsys.readouterr().out.split())


def test_compare_writes_one_folder(written, tmp_path, capsys):
    out = tmp_path / "runs" / "digits"
    assert (
        main(
            [
                "compare",
                "--data",
                "digits",
                "--out",
                str(out),
                "--steps",
                "7",
                "--seeds",
                "3,",
                "--theories",
                "stand_in",
            ]
        )
        == 0
    )
    assert names(tmp_path / "runs") == ["digits"]
    assert names(out) == ["arrays.npz", "report.html", "result.json", "table.jsonl", "verifications.json"]
    (data, theories, options) = written[0]
    assert data.name == "digits"
    assert theories == (THEORY,)
    assert (options["steps"], options["seeds"], options["device"]) == (7, (3,), "cpu")
    captured = capsys.readouterr()
    assert "THE TABLE" in captured.out
    assert f"report: {out / 'report.html'}" in captured.out
    assert "half way" in captured.err  # progress is no part of the output


def test_the_report_is_made_from_what_is_stored(written, tmp_path):
    assert main(["compare", "--data", "digits", "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").read_text() == "None"  # the NaN of the fresh result, as stored
    assert "steps" not in written[0][2]  # compare's own default


@pytest.mark.parametrize(
    ("given", "names"),
    [("none", ()), ("ViT", ("ViT",)), ("CRATE (paper form), ViT,ViT", ("CRATE (paper form)", "ViT"))],
)
def test_compare_takes_names_of_networks(written, tmp_path, given, names):
    assert main(["compare", "--data", "digits", "--out", str(tmp_path / "run"), "--networks", given]) == 0
    assert written[0][2]["networks"] == names


def test_compare_trains_nothing_for_none(tmp_path, capsys):
    assert main(["compare", "--data", "digits", "--out", str(tmp_path / "run"), "--networks", "none"]) == 0
    result = Result.load(tmp_path / "run")
    assert result.settings["networks"] == []
    assert set(result.table.column("model")) == {""}
    assert set(result.table.column("step")) == {None}
    assert {row.reason for row in result.select(theory="network")} == {"no network was asked for"}
    assert "training" not in capsys.readouterr().err


def test_compare_help_shows_networks_and_steps(capsys):
    assert main(["compare", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(default: 600)" in out
    assert "'ViT', 'CRATE (released form)', 'CRATE (paper form)'; or none" in out


def test_compare_reads_the_users_file(written, tmp_path):
    import numpy as np

    np.savez(tmp_path / "mine.npz", tokens=np.zeros((4, 3, 2)))
    assert main(["compare", "--data", str(tmp_path / "mine.npz"), "--out", str(tmp_path / "run")]) == 0
    assert written[0][0].name == "mine.npz"


def test_compare_refuses_what_exists_before_any_work(written, tmp_path, capsys):
    arguments = ["compare", "--data", "digits", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert len(written) == 1
    assert capsys.readouterr().err.endswith(
        "exists already; choose another --out, or pass --overwrite to replace it\n"
    )
    assert main([*arguments, "--overwrite"]) == 0
    assert len(written) == 2
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ValueError("of a theory"), 2)])
def test_compare_leaves_nothing_when_it_stops(written, monkeypatch, tmp_path, capsys, error, code):
    def stop(*args, **options):
        raise error

    monkeypatch.setattr(COMPARE, "compare", stop)
    assert main(["compare", "--data", "digits", "--out", str(tmp_path / "a" / "run")]) == code
    assert names(tmp_path) == []
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_computation_that_does_not_converge_is_not_the_users_mistake(monkeypatch, tmp_path, capsys):
    from transformer_theory.core.errors import NotConverged

    def stop(self):
        raise NotConverged("the residual must fall below 1e-12, got 1e-3;\n raise steps")

    monkeypatch.setattr(THEORY.experiments[0], "measure", stop)
    assert main(["run", "stand_in.coin", "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "transformer-theory: the residual must fall below 1e-12, got 1e-3; raise steps"
    )
    assert names(tmp_path) == []


def test_traceback_on_request(capsys):
    assert main(["cite", "nobody", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["cite", "nobody"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_piped_output_is_wide_enough(capsys):
    assert console().width >= 100
    main(["verify", "stand_in/good"])
    assert max(map(len, capsys.readouterr().out.splitlines())) >= 100


# most of them import no torch, which would take seconds
@pytest.mark.parametrize(
    ("command", "closed", "buffering"),
    [
        (("cite", "yu2020learning"), "stdout", {}),
        (("list",), "stdout", {}),
        (("list",), "stdout", {"PYTHONUNBUFFERED": "1"}),
        (("list", "nobody"), "stderr", {}),  # its only output is an error
        (("list", "nobody"), "stderr", {"PYTHONUNBUFFERED": "1"}),
    ],
)
def test_a_reader_that_leaves_early_is_no_error(command, closed, buffering):
    environment = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    running = process(*command, env=environment | buffering)
    getattr(running, closed).close()
    assert (running.stderr if closed == "stdout" else running.stdout).read() == ""
    assert running.wait(timeout=600) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device of a full disk")
@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_full_disk_is_reported_in_one_line(buffering):
    with open("/dev/full", "w") as full:
        running = process("list", env={**os.environ, "PYTHONUNBUFFERED": ""} | buffering, stdout=full)
        _, text = running.communicate(timeout=600)
    line = "cannot write (no space left on device); free some space, or choose another --out"
    assert text == f"transformer-theory: {line}\n"
    assert running.returncode == 2


def test_provenance_of_a_run_is_json(tmp_path):
    main(["run", "stand_in.coin", "--quick", "--out", str(tmp_path / "coin")])
    head = json.loads((tmp_path / "coin" / "result.json").read_text())
    assert head["sources"] == [{"key": "tian2023scan", "locator": "Sec. 2"}]
    assert head["provenance"]["seed"] == 0


def test_compare_reads_graphs(written, tmp_path):
    networkx.write_edgelist(networkx.path_graph(4), tmp_path / "mine.edgelist")
    for number, path in enumerate((tmp_path / "mine.edgelist", tmp_path)):
        assert main(["compare", "--data", str(path), "--out", str(tmp_path / f"run{number}")]) == 0
        graphs = written[number][0]
        assert isinstance(graphs, Graphs)
        assert (len(graphs), graphs.names) == (1, ("mine",))
