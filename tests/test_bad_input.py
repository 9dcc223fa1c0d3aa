"""Every wrong input gets one clear line (expected, came, do), exit code 2, and nothing is written."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

import transformer_theory
from tests.stand_in import install
from transformer_theory.cli import main
from transformer_theory.core.result import Result

COMPARE = importlib.import_module("transformer_theory.comparison")

GOOD = {"tokens": np.random.default_rng(0).normal(size=(12, 3, 2)), "labels": np.arange(12) % 2}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch, unchecked):
    """One made-up theory in place of the others, and no training: whoever gets that far has passed all
    checks.
    """

    def reached(*args, **options):
        raise AssertionError("the work has begun")

    install(monkeypatch)
    monkeypatch.setattr(COMPARE, "completed", reached)


def refused(capsys, folder, *arguments) -> str:
    """The one line that the command prints; nothing else may have changed."""
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    assert main(list(map(str, arguments))) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if " s  " not in line]
    assert len(lines) == 1, captured.err
    assert captured.out == ""
    assert lines[0].startswith("transformer-theory: ")
    assert len(lines[0]) < 400
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    return lines[0].removeprefix("transformer-theory: ")


def array(**changes):
    return {name: value for name, value in (GOOD | changes).items() if value is not None}


NAN, INF = GOOD["tokens"].copy(), GOOD["tokens"].copy()
NAN[3, 1, 0], INF[0] = np.nan, np.inf


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            array(tokens=NAN),
            "mine.npz: tokens must be finite, got 1 NaN or infinite values of 72, the first in sequence 3 "
            "(counted from 0); drop or impute",
        ),
        (array(tokens=INF), "tokens must be finite, got 6 NaN or infinite values of 72"),
        (
            array(tokens=GOOD["tokens"] * 1e200),
            "mine.npz: tokens must stay within 1e+15 in magnitude for networks in float32, got largest",
        ),
        (array(tokens=GOOD["tokens"][0]), "got [3, 2]"),
        (array(tokens=GOOD["tokens"][None]), "got [1, 12, 3, 2]"),
        (array(tokens=GOOD["tokens"][:0], labels=None), "got [0, 3, 2]"),
        (array(labels=GOOD["labels"][:, None]), "got [12, 1]"),
        (array(labels=np.zeros(0, int)), "labels must have shape [12] to fit tokens [12, 3, 2], got [0]"),
        (
            array(labels=np.zeros(12, int)),
            "mine.npz: labels must name at least two classes, got only class 0",
        ),
        (array(labels=np.full(12, 3)), "got only class 3; add a class, or leave labels out"),
        (array(labels=np.arange(12) - 1), "labels must be 0, 1, ..., got -1; relabel from zero"),
        (array(labels=GOOD["labels"] * 1.5), "labels must be integers, got dtype float64"),
        (array(labels=np.array([b"a", b"b"] * 6)), "labels must be an array of numbers, got dtype |S1"),
        (
            array(labels=GOOD["labels"] * 10**6),
            "labels must be 0..k-1 for k classes, got label 1000000 with only 12 sequences; relabel",
        ),
        (
            array(ids=np.full((12, 3), 7), vocab_size=7),
            "ids must lie in [0, 7), got 7; pass vocab_size=8 or recode",
        ),
        (array(ids=np.full((12, 3), -1)), "ids must lie in [0, 0), got -1"),
        (array(ids=np.zeros((12, 2), int)), "ids must have shape [12, 3]"),
        (array(next_id=np.full(12, 9), vocab_size=9), "next_id must lie in [0, 9), got 9"),
        (array(tokens=None), "must hold an array 'tokens' [n, seq, dim], got labels"),
        (array(label=GOOD["labels"]), "unknown array 'label'; did you mean 'labels'?"),
        (
            array(tokens=np.array([{}, []], dtype=object)),
            "got tokens as an array of Python objects, which are never unpickled",
        ),
        (
            array(labels=np.array([None] * 12)),
            "got labels as an array of Python objects, which are never unpickled",
        ),
    ],
)
def test_files_whose_arrays_do_not_fit(tmp_path, capsys, arrays, words):
    np.savez(tmp_path / "mine.npz", **arrays)
    line = refused(
        capsys, tmp_path, "compare", "--data", tmp_path / "mine.npz", "--out", tmp_path / "runs" / "mine"
    )
    assert words in line


def test_the_stand_in_file_is_otherwise_fine(tmp_path):
    np.savez(tmp_path / "mine.npz", **GOOD)
    with pytest.raises(AssertionError, match="the work has begun"):
        main(
            [
                "compare",
                "--data",
                str(tmp_path / "mine.npz"),
                "--workers",
                "1",
                "--out",
                str(tmp_path / "run"),
            ]
        )
    np.savez(tmp_path / "unlabelled.npz", tokens=GOOD["tokens"])
    with pytest.raises(AssertionError, match="the work has begun"):
        main(
            [
                "compare",
                "--data",
                str(tmp_path / "unlabelled.npz"),
                "--workers",
                "1",
                "--out",
                str(tmp_path / "run"),
            ]
        )


def test_one_class_is_legal_data():
    import torch

    data = transformer_theory.data.TokenData(torch.zeros(3, 2, 2).double(), labels=torch.zeros(3).long())
    assert data.classes == 1


def test_files_that_are_no_archives(tmp_path, capsys):
    np.savez(tmp_path / "whole.npz", **GOOD)
    np.save(tmp_path / "single.npy", GOOD["tokens"])
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("1, 2, 3")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, words in {
        "missing.npz": "no such file: ",
        "single.npy": "single.npy must be an .npz of tokens, a .txt of plain text, a folder of images, an "
        "archive of CIFAR or graphs as .graphml, .edgelist or .edges, got '.npy'",
        "cut.npz": "got a file that is cut short or not a zip of arrays; write it with numpy.savez",
        "text.npz": "must be an .npz",
        "empty.npz": "must be an .npz",
        "": "must hold a folder of images for each of at least two classes, got only 'runs'",
    }.items():
        line = refused(
            capsys, tmp_path, "compare", "--data", f"{tmp_path}/{name}", "--out", tmp_path / "runs" / "mine"
        )
        assert words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--data", "digit"],
            "unknown data 'digit', neither a name nor a path to an .npz, a .txt or images; did you mean "
            "'digits'?",
        ),
        (
            ["--data", "cifar1O"],
            "unknown data 'cifar1O', neither a name nor a path to an .npz, a .txt or images; did you mean "
            "'cifar10'?",
        ),
        (
            ["--data", "digits", "--theories", "stand_im"],
            "unknown theory 'stand_im'; did you mean 'stand_in'?",
        ),
        (["--data", "digits", "--theories", "stand_in,zzz"], "unknown theory 'zzz'; there are: stand_in"),
        (["--data", "digits", "--theories", ","], "theories must name at least one, got none"),
        (["--data", "digits", "--networks", "Vit"], "unknown network 'Vit'; did you mean 'ViT'?"),
        (
            ["--data", "digits", "--networks", "ViT,CRATE (papr form)"],
            "unknown network 'CRATE (papr form)'; did you mean 'CRATE (paper form)'?",
        ),
        (
            ["--data", "digits", "--networks", "zzz"],
            "unknown network 'zzz'; there are: ViT, CRATE (released form), CRATE (paper form), none",
        ),
        (["--data", "digits", "--networks", "nome"], "unknown network 'nome'; did you mean 'none'?"),
        (
            ["--data", "digits", "--networks", "ViT,none"],
            "networks must be names or 'none', got both in 'ViT,none'",
        ),
        (["--data", "digits", "--networks", ","], "networks must name at least one, got none"),
        (["--data", "digits", "--steps", "0"], "--steps: must be a whole number of at least 1, got '0'"),
        (
            ["--data", "digits", "--steps", "many"],
            "--steps: must be a whole number of at least 1, got 'many'",
        ),
        (["--data", "digits", "--seeds", "-1"], "--seeds: must be a whole number of at least 1, got '-1'"),
        (["--data", "digits", "--seeds", "1" * 40 + ","], "--seeds: must be a whole number"),
        (
            ["--data", "digits", "--device", "gpu"],
            "device must be usable by torch on this machine, got 'gpu'",
        ),
        (["--data", "digits", "--thories", "a"], "unknown option '--thories'; did you mean '--theories'?"),
        (["--data", "digits", "extra"], "unknown argument 'extra'; see transformer-theory compare --help"),
        (["--data"], "argument --data: expected one argument"),
        ([], "the following arguments are required: --data"),
    ],
)
def test_compare_refuses_wrong_options(tmp_path, capsys, arguments, words):
    assert words in refused(capsys, tmp_path, "compare", "--out", tmp_path / "runs" / "digits", *arguments)


def test_out_is_refused_before_anything_else(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    Result("old").save(tmp_path / "old")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for out, words in (
        (tmp_path / "file", "exists already; choose another --out, or pass --overwrite"),
        (tmp_path / "file" / "run", "cannot write to"),
        (tmp_path / "file" / "deep" / "run", "cannot write to"),
        (tmp_path / "old", "exists already"),
        (tmp_path, "exists already"),
        ("", "--out: must be a path, got an empty string"),
    ):
        # the data do not exist: had they been looked for first, the line would speak of them
        assert words in refused(capsys, tmp_path, "compare", "--data", "nowhere.npz", "--out", out)
        assert words in refused(capsys, tmp_path, "run", "stand_in.coin", "--out", out)
    line = refused(
        capsys, tmp_path, "compare", "--data", "nowhere.npz", "--out", tmp_path / "mine", "--overwrite"
    )
    assert "is not a stored result, so it is not overwritten" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["verify", "stand_in/goood"],
            "unknown claim or theory 'stand_in/goood'; did you mean 'stand_in/good'?",
        ),
        (["verify", "qqq"], "unknown claim or theory 'qqq'; there are: all, quick, training, stand_in"),
        (["verify", "all", "--seeds", "0"], "--seeds: must be a whole number of at least 1, got '0'"),
        (["verify", "stand_in/good", "qqq"], "unknown claim or theory 'qqq'"),
        (["verify", "all", "--sedes", "3"], "unknown option '--sedes'; did you mean '--seeds'?"),
        (["verify", "all", "--foo", "3"], "unknown option '--foo'; the options are, most similar first: --"),
        (["verify"], "the following arguments are required: CLAIM|THEORY|all"),
        (
            ["cite", "tian2023scam"],
            "unknown theory, claim, key or folder 'tian2023scam'; did you mean 'tian2023scan'?",
        ),
        (["cite", "stand_in/god"], "did you mean 'stand_in/good'?"),
        (["cite"], "the following arguments are required: THEORY|CLAIM|KEY|DIR|software"),
        (
            ["run", "stand_in.coinn", "--out", "OUT"],
            "unknown experiment 'stand_in.coinn'; did you mean 'stand_in.coin'?",
        ),
        (["run", "stand_in.coinn"], "unknown experiment 'stand_in.coinn'; did you mean 'stand_in.coin'?"),
        (["run", "coin"], "unknown experiment 'coin'; did you mean 'stand_in.coin'?"),
        (["run", "stand_in.zzz"], "unknown experiment 'stand_in.zzz'; there are: stand_in.coin"),
        (["run", "--quick", "stand_in.coinn"], "unknown experiment 'stand_in.coinn'"),
        (["run", "--throws", "3", "stand_in.coinn"], "unknown experiment 'stand_in.coinn'"),
        (["run", "stand_in.coin", "--out", "OUT", "--throws", "x"], "--throws: invalid int value: 'x'"),
        (
            ["run", "stand_in.coin", "--out", "OUT", "--throw", "3"],
            "unknown option '--throw'; did you mean '--throws'?",
        ),
        (
            ["run", "stand_in.coin", "--out", "OUT", "--fair-only", "--bias", "0.3"],
            "bias must be 0.5 for a fair coin, got 0.3",
        ),
        (
            ["run", "stand_in.coin", "--out", "OUT", "--workers", "0"],
            "--workers: must be a whole number of at least 1, or the address of a dask",
        ),
        (
            ["run", "stand_in.coin", "--out", "OUT", "--workers", "two"],
            "or the address of a dask scheduler, got 'two'",
        ),
        (
            ["run", "stand_in.coin", "--out", "OUT", "--workers", "x://h:1"],
            "must be a number or an address such as tcp://host:8786, got 'x://h:1'",
        ),
        (
            ["run", "stand_in.coin", "--foo", "3"],
            "unknown option '--foo'; the options are, most similar first: --out, ",
        ),
        (["run", "stand_in.coin", "--foo=3", "--out", "OUT"], "--quick, --seed, --bias"),
        (
            ["run", "stand_in"],
            "run takes one experiment, got the theory 'stand_in'; its experiments are stand_in.coin",
        ),
        (["run", "stand_in.coin"], "the following arguments are required: --out"),
        (["run", "--out", "OUT"], "the following arguments are required: EXPERIMENT"),
        (
            ["report", "nowhere"],
            "there is no folder nowhere; name one that compare, verify, run or train has written",
        ),
        (["report"], "the following arguments are required: DIR"),
        (["comprae"], "unknown command 'comprae'; did you mean 'compare'?"),
        (["zzz"], "unknown command 'zzz'; the nearest of 12 are: list, compare, reach, measure, probe"),
        (["--verbose"], "unknown option '--verbose'; did you mean '--version'?"),
    ],
)
def test_other_commands_refuse_what_they_do_not_know(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, tmp_path, *arguments)


def test_report_refuses_a_damaged_result(tmp_path, capsys):
    Result("stand_in.coin").save(tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text('{"format": 99}')
    assert "expected format 3, got 99" in refused(capsys, tmp_path, "report", tmp_path / "run")


def test_a_process_of_its_own(tmp_path):
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "transformer_theory",
            "compare",
            "--data",
            "digit",
            "--out",
            str(tmp_path / "runs" / "x"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert (
        ran.stderr
        == "transformer-theory: unknown data 'digit', neither a name nor a path to an .npz, a .txt or "
        "images; did you mean 'digits'?\n"
    )
    assert list(tmp_path.iterdir()) == []
