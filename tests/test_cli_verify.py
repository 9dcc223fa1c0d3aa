"""The commands ``verify`` and ``cite``: what they print, write and return."""

import importlib
import json
import re
from dataclasses import replace

import pytest

from tests.cases import each_case
from tests.stand_in import THEORY, install, replace_theories
from transformer_theory import data
from transformer_theory.cli import main
from transformer_theory.core import sources as citations
from transformer_theory.core.claims import Measured, but, verify_claims
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.parallel import workers
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Table


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """One made-up theory in place of the others."""
    install(monkeypatch)


def only(monkeypatch, **changes):
    """The stand-in's first claim, changed, in place of all claims."""
    claim = replace(THEORY.claims[0], **changes)
    replace_theories(monkeypatch, replace(THEORY, claims=(claim,)))
    return claim


@each_case(
    ("which", "code", "claims"),
    [
        ("stand_in/good", 0, 1),
        ("stand_in/violated", 1, 1),
        ("stand_in/powerless", 1, 1),
        ("stand_in", 1, 3),
        ("all", 1, 3),
        ("quick", 1, 3),
        ("stand_in/good stand_in/good", 0, 1),
        ("stand_in/good stand_in/violated", 1, 2),
        ("stand_in all", 1, 3),
    ],
)
def test_the_exit_code_of_verify(which, code, claims, capsys):
    assert main(["verify", *which.split(), "--seeds", "4"]) == code
    captured = capsys.readouterr()
    assert captured.out.count("stand_in/") == claims
    assert "4 seeds with its control" in captured.err
    if which == "stand_in/good":
        line = next(line for line in captured.out.splitlines() if which in line)
        assert (
            " ".join(line.split())
            == "stand_in/good ✓ consistent 4/4 [0.40, 1.00] 0.500 ≤ 1 fails as it must Tian et al. (2023), "
            "Sec. 2"
        )
    if which == "stand_in/powerless":
        assert "PASSES: no power" in captured.out


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((float("nan"), 2.0), "inconclusive: power unknown"),
        ((float("nan"), 0.5), "PASSES: no power"),
        ((2.0, 2.0), "fails as it must"),
    ],
)
def test_an_inconclusive_control_differs_from_one_that_passes(monkeypatch, capsys, values, words):
    control = iter(values)
    only(monkeypatch, change=but("v is replaced", lambda generator: Measured(next(control), covered=False)))
    assert main(["verify", "all", "--seeds", "2"]) == int(words != "fails as it must")
    out = " ".join(capsys.readouterr().out.split())
    assert [w for w in ("inconclusive", "PASSES", "fails") if w in out] == [words.split()[0].strip(":")]
    assert words.split(":")[0] in out


def test_verify_shows_long_names_whole(monkeypatch, capsys):
    long = only(monkeypatch, id="stand_in/a-name-as-long-as-any-that-a-careful-author-would-choose")
    assert main(["verify", "all", "--seeds", "1"]) == 0
    assert long.id in capsys.readouterr().out


def test_claims_that_train_are_a_group(monkeypatch, capsys):
    first, second, _ = THEORY.claims
    replace_theories(monkeypatch, replace(THEORY, claims=(replace(first, cost="training"), second)))
    assert main(["verify", "training", "--seeds", "1"]) == 0
    assert first.id in (out := capsys.readouterr().out)
    assert second.id not in out


@pytest.mark.parametrize("options", [[], ["--json"], ["--out", "result"]])
@pytest.mark.parametrize("names", [["training"], ["training", "empty"]])
def test_a_selection_without_claims_is_an_error(monkeypatch, tmp_path, capsys, names, options):
    monkeypatch.chdir(tmp_path)
    replace_theories(monkeypatch, THEORY, replace(THEORY, name="empty", claims=(), experiments=()))
    assert main(["verify", *names, *options]) == 2
    captured = capsys.readouterr()
    expected = (
        f"verify needs at least one claim, got none for {', '.join(names)}; `transformer-theory list` shows "
        "all claims"
    )
    assert (captured.out, captured.err) == ("", f"transformer-theory: {expected}\n")
    assert list(tmp_path.iterdir()) == []
    assert main(["verify", *names, "stand_in/good", "--seeds", "1"]) == 0


def test_verify_counts_the_seeds(monkeypatch, capsys):
    assert main(["verify", "stand_in/good", "--seeds", "1"]) == 0
    captured = capsys.readouterr()
    assert "1/1" in captured.out
    assert "1 seed with its control" in captured.err


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_verify_as_json(monkeypatch, capsys):
    replace_theories(
        monkeypatch,
        replace(
            THEORY,
            claims=(
                replace(THEORY.claims[0], corrects="a sign", corrected=Source("tian2024joma")),
                THEORY.claims[1],
            ),
        ),
    )
    assert main(["verify", "all", "--seeds", "2", "--json"]) == 1
    document = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert list(document) == ["format", "claims", "provenance"]
    first = document["claims"][0]
    assert [one["seed"] for one in first.pop("seeds")] == [0, 1]
    assert first == {
        "id": "stand_in/good",
        "statement": "$v \\le 1$",
        "measures": "v",
        "source": {"key": "tian2023scan", "locator": "Sec. 2"},
        "assumptions": ["v is a number"],
        "corrects": "a sign",
        "corrected": {"key": "tian2024joma"},
        "control_description": "v is replaced",
        "cost": "quick",
        "verdict": "consistent",
        "outcome": "consistent",
        "consistent": 2,
        "decided": 2,
        "share": 1.0,
        "interval": [pytest.approx(0.025**0.5), 1.0],
        "worst": 0.5,
        "median": 0.5,
        "threshold": 1.0,
        "op": "<=",
        "control": {"verdict": "fails", "value": 2.0},
    }
    assert [claim["verdict"] for claim in document["claims"]] == ["consistent", "violated"]
    assert {"versions", "date", "machine", "seconds", "workers"} <= document["provenance"].keys()


def test_a_verification_without_a_number_is_json_too(monkeypatch, capsys):
    missing = but("v is missing", lambda generator: float("nan"))
    only(monkeypatch, function=lambda generator: float("inf"), change=missing)
    assert main(["verify", "all", "--seeds", "2", "--json"]) == 1
    (claim,) = json.loads(capsys.readouterr().out, parse_constant=refuse)["claims"]
    assert (claim["verdict"], claim["decided"], claim["share"], claim["interval"]) == (
        "inconclusive",
        0,
        None,
        [0, 1],
    )
    assert (claim["worst"], claim["median"], claim["threshold"]) == (None, None, 1.0)
    assert claim["control"] == {"verdict": "inconclusive", "value": None}
    assert main(["verify", "all", "--seeds", "2"]) == 1
    assert "0/2 [0.00, 1.00]" in " ".join(capsys.readouterr().out.split())


def test_verify_stores_what_it_shows(tmp_path, capsys):
    out = tmp_path / "runs" / "verified"
    assert main(["verify", "stand_in/violated", "stand_in/good", "--seeds", "3", "--out", str(out)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"result: {out}"
    result = Result.load(out)
    assert (result.name, result.settings) == (
        "verify",
        {"claims": ["stand_in/violated", "stand_in/good"], "seeds": [0, 1, 2]},
    )
    assert [(row.quantity, row.seed) for row in result.table] == [
        *(("stand_in/violated", seed) for seed in range(3)),
        *(("stand_in/good", seed) for seed in range(3)),
    ]
    assert [(one.verdict, one.passed) for one in result.verifications] == [
        ("violated", False),
        ("consistent", True),
    ]
    assert result.sources == (THEORY.claims[0].source,)
    before = (out / "result.json").read_bytes()
    assert main(["verify", "stand_in/good", "--out", str(out)]) == 2
    assert f"{out} exists already" in capsys.readouterr().err
    assert (out / "result.json").read_bytes() == before
    assert main(["verify", "stand_in/good", "--out", str(out), "--overwrite"]) == 0
    assert Result.load(out).settings["claims"] == ["stand_in/good"]


def test_overwrite_needs_a_folder(capsys):
    assert main(["verify", "stand_in/good", "--overwrite"]) == 2
    assert "--overwrite replaces the result in the folder of --out, got no --out" in capsys.readouterr().err


def test_a_solver_that_gives_up_is_inconclusive(monkeypatch, tmp_path, capsys):
    from transformer_theory.core.errors import NotConverged

    def gives_up(generator):
        if generator.initial_seed() == 1:
            raise NotConverged("the residual must fall below 1e-12,\ngot 1e-3")
        return 0.5

    only(monkeypatch, op=">=", function=gives_up, change=but("v is replaced", lambda generator: 0.2))
    assert main(["verify", "all", "--seeds", "3", "--out", str(tmp_path / "v")]) == 1
    assert "violated 0/3" in " ".join(capsys.readouterr().out.split())
    rows = Result.load(tmp_path / "v").select(quantity="stand_in/good")
    assert rows.column("verdict") == ["violated", "inconclusive", "violated"]
    assert (rows[1].value, rows[1].note) == (
        None,
        "not converged: the residual must fall below 1e-12, got 1e-3",
    )
    (stored,) = Result.load(tmp_path / "v").verifications
    assert (len(stored.seeds), stored.decided, stored.worst.op, stored.worst.value) == (3, 2, ">=", 0.5)


def test_workers_change_no_row():
    """Other processes get the names of the claims, whose functions they cannot be handed."""
    claims = importlib.import_module("transformer_theory.theories.rate_reduction").THEORY.claims[:2]
    results = []
    for number in (1, 2):
        with workers(number) as active:
            results.append([one.to_json() for one in verify_claims(claims, range(2))])
        assert active.count == number
    assert results[0] == results[1]


def test_ctrl_c_leaves_nothing_behind(monkeypatch, tmp_path, capsys):
    def stop(generator):
        assert any(entry.name.startswith(".all.") for entry in (tmp_path / "runs").iterdir())
        raise KeyboardInterrupt

    only(monkeypatch, function=stop)
    assert main(["verify", "all", "--seeds", "3", "--out", str(tmp_path / "runs" / "all")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "transformer-theory: interrupted; nothing was written"
    assert list(tmp_path.iterdir()) == []


LAST = citations.software()


@pytest.mark.parametrize("name", ["stand_in", "stand_in/good", "tian2023scan"])
def test_cite(name, capsys):
    assert main(["cite", name]) == 0
    assert capsys.readouterr().out == f"{citations.portable(citations.entries()['tian2023scan'])}\n\n{LAST}"


def test_cite_the_library(capsys):
    assert main(["cite", "software"]) == 0
    assert capsys.readouterr().out == LAST


def test_cite_a_stored_result(tmp_path, monkeypatch, capsys):
    rows = [
        Measurement("stand_in", "on data", "a", 1.0, source=Source("yu2020learning", "Thm. 1")),
        Measurement("stand_in", "on data", "b", 1.0, source=Source.from_json({"key": "nobody1900nothing"})),
        Measurement("stand_in", "on data", "c", 1.0, source=Source("tian2023scan")),
        Measurement("stand_in", "on data", "d", 1.0, data="WikiText-2", nulls=(Null("equal scale", (0.5,)),)),
    ]
    Result("compare", table=Table(rows), sources=data.load("digits").sources).save(tmp_path / "tian2023scan")
    Result("verify", table=Table(rows)).save(tmp_path / "here")
    assert main(["cite", str(tmp_path / "tian2023scan")]) == 0
    cited = re.findall(r"^@\w+\{([^,]+),", capsys.readouterr().out, re.MULTILINE)
    assert cited == [
        *(source.key for source in data.load("digits").sources),
        "yu2020learning",
        "tian2023scan",
        "merity2017pointer",
        "benjamini1995controlling",
        "westfall1993resampling",
        "transformertheory2026",
    ]
    monkeypatch.chdir(tmp_path)
    assert main(["cite", "here"]) == 0
    assert capsys.readouterr().out.startswith("@inproceedings{yu2020learning,")
    assert main(["cite", "tian2023scan"]) == 0  # a name is not taken away by a folder that is called so
    assert capsys.readouterr().out == f"{citations.portable(citations.entries()['tian2023scan'])}\n\n{LAST}"
    (tmp_path / "empty").mkdir()
    assert main(["cite", "empty"]) == 2
    assert "empty must hold result.json" in capsys.readouterr().err
    assert main(["cite", "heer"]) == 2
    assert "unknown theory, claim, key or folder 'heer'" in capsys.readouterr().err
