"""The commands ``verify`` and ``cite``: what they print, write and return."""

import importlib
import json
import re
from dataclasses import replace

import pytest
from transformer_theory.core.verification import summaries, verification

from tests.stand_in import THEORY, install
from transformer_theory import data
from transformer_theory.cli import main
from transformer_theory.core import sources as citations
from transformer_theory.core.claims import Evidence
from transformer_theory.core.measurement import Row
from transformer_theory.core.result import Result

REGISTRY = importlib.import_module("transformer_theory.theories")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """One made-up theory instead of the rooms."""
    install(monkeypatch)


def only(monkeypatch, **changes):
    """The stand-in's first claim, changed, in the place of all claims."""
    claim = replace(THEORY.claims[0], **changes)
    monkeypatch.setattr(REGISTRY, "THEORIES", (replace(THEORY, claims=(claim,)),))
    return claim


@pytest.mark.parametrize(
    ("which", "code", "claims"),
    [
        ("stand_in/good", 0, 1),
        ("stand_in/violated", 1, 1),
        ("stand_in/powerless", 1, 1),
        ("stand_in", 1, 3),
        ("all", 1, 3),
        ("stand_in/good stand_in/good", 0, 1),
        ("stand_in/good stand_in/violated", 1, 2),
        ("stand_in all", 1, 3),
    ],
)
def test_verify_tells_by_its_exit_code(which, code, claims, capsys):
    assert main(["verify", *which.split(), "--seeds", "4"]) == code
    captured = capsys.readouterr()
    assert captured.out.count("stand_in/") == claims
    assert "4 seeds, each with its control" in captured.err
    if which == "stand_in/good":
        line = next(line for line in captured.out.splitlines() if which in line)
        assert " ".join(line.split()) == "stand_in/good ✓ consistent 4/4 [0.40, 1.00] 0.5 <= 1 fails as it must Tian et al. (2023), Sec. 2"
    if which == "stand_in/powerless":
        assert "PASSES: no power" in captured.out


@pytest.mark.parametrize(
    ("values", "words"),
    [((float("nan"), 2.0), "inconclusive: power unknown"), ((float("nan"), 0.5), "PASSES: no power"), ((2.0, 2.0), "fails as it must")],
)
def test_verify_tells_an_inconclusive_control_from_one_that_passes(monkeypatch, capsys, values, words):
    control = iter(values)
    only(monkeypatch, control=lambda generator: Evidence(next(control), 1.0, "<=", covered=False))
    assert main(["verify", "all", "--seeds", "2"]) == int(words != "fails as it must")
    out = " ".join(capsys.readouterr().out.split())
    assert [w for w in ("inconclusive", "PASSES", "fails") if w in out] == [words.split()[0].strip(":")]
    assert words.split(":")[0] in out


def test_verify_shows_long_names_whole(monkeypatch, capsys):
    long = only(monkeypatch, id="stand_in/a-name-as-long-as-any-that-a-careful-author-would-choose")
    assert main(["verify", "all", "--seeds", "1"]) == 0
    assert long.id in capsys.readouterr().out


def test_verify_counts_the_seeds(monkeypatch, capsys):
    assert main(["verify", "stand_in/good", "--seeds", "1"]) == 0
    captured = capsys.readouterr()
    assert "1/1" in captured.out
    assert "1 seed with its control" in captured.err


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_verify_as_json(monkeypatch, capsys):
    monkeypatch.setattr(REGISTRY, "THEORIES", (replace(THEORY, claims=(replace(THEORY.claims[0], corrects="a sign"), THEORY.claims[1])),))
    assert main(["verify", "all", "--seeds", "2", "--json"]) == 1
    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert list(told) == ["format", "claims", "provenance"]
    assert told["claims"][0] == {
        "id": "stand_in/good",
        "statement": "$v \\le 1$",
        "source": {
            "key": "tian2023scan",
            "locator": "Sec. 2",
            "label": "Tian et al. (2023), Sec. 2",
            "url": "https://arxiv.org/abs/2305.16380",
        },
        "assumptions": ["v is a number"],
        "corrects": "a sign",
        "verdict": "consistent",
        "seeds": 2,
        "consistent": 2,
        "decided": 2,
        "share": 1.0,
        "interval": [pytest.approx(0.025**0.5), 1.0],
        "value": 0.5,
        "median": 0.5,
        "bound": 1.0,
        "op": "<=",
        "control": {"verdict": "fails", "says": "v is replaced", "value": 2.0},
    }
    assert [claim["verdict"] for claim in told["claims"]] == ["consistent", "violated"]
    assert {"versions", "date", "machine", "seconds", "workers"} <= told["provenance"].keys()


def test_a_verification_without_a_number_is_json_too(monkeypatch, capsys):
    infinite, none = Evidence(float("inf"), 1.0, "<="), Evidence(float("nan"), 1.0, "<=")
    only(monkeypatch, check=lambda generator: infinite, control=lambda generator: none)
    assert main(["verify", "all", "--seeds", "2", "--json"]) == 1
    (claim,) = json.loads(capsys.readouterr().out, parse_constant=refuse)["claims"]
    assert (claim["verdict"], claim["decided"], claim["share"], claim["interval"]) == ("inconclusive", 0, None, [0, 1])
    assert (claim["value"], claim["median"], claim["bound"]) == (None, None, 1.0)
    assert claim["control"] == {"verdict": "inconclusive", "says": "v is replaced", "value": None}
    assert main(["verify", "all", "--seeds", "2"]) == 1
    assert "inconclusive 0/2 [0.00, 1.00] none <= 1" in " ".join(capsys.readouterr().out.split())


def test_verify_stores_what_it_shows(tmp_path, capsys):
    out = tmp_path / "runs" / "verified"
    assert main(["verify", "stand_in/violated", "stand_in/good", "--seeds", "3", "--out", str(out)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"result: {out}"
    result = Result.load(out)
    assert (result.name, result.params) == ("verify", {"claims": ["stand_in/violated", "stand_in/good"], "seeds": 3})
    assert [(row["quantity"], row.get("seed")) for row in result.table] == [
        *(("claim: stand_in/violated", seed) for seed in range(3)),
        ("claim verdict: stand_in/violated", None),
        *(("claim: stand_in/good", seed) for seed in range(3)),
        ("claim verdict: stand_in/good", None),
    ]
    assert [(one.verdict, one.passed) for one in summaries(result)] == [("violated", False), ("consistent", True)]
    assert result.sources == (THEORY.claims[0].source,)
    before = (out / "result.json").read_bytes()
    assert main(["verify", "stand_in/good", "--out", str(out)]) == 2
    assert f"{out} exists already" in capsys.readouterr().err
    assert (out / "result.json").read_bytes() == before
    assert main(["verify", "stand_in/good", "--out", str(out), "--overwrite"]) == 0
    assert Result.load(out).params["claims"] == ["stand_in/good"]


def test_overwrite_needs_a_folder(capsys):
    assert main(["verify", "stand_in/good", "--overwrite"]) == 2
    assert "--overwrite replaces what --out names, got no --out" in capsys.readouterr().err


def test_a_solver_that_gives_up_is_inconclusive(monkeypatch, tmp_path, capsys):
    from transformer_theory.core.errors import NotConverged

    def gives_up(generator):
        if generator.initial_seed() == 1:
            raise NotConverged("the residual must fall below 1e-12,\ngot 1e-3")
        return Evidence(0.5, 1.0, ">=")

    only(monkeypatch, check=gives_up)
    assert main(["verify", "all", "--seeds", "3", "--out", str(tmp_path / "v")]) == 1
    assert "violated 0/3" in " ".join(capsys.readouterr().out.split())
    rows = Result.load(tmp_path / "v").select(quantity="claim: stand_in/good")
    assert [row["verdict"] for row in rows] == ["violated", "inconclusive", "violated"]
    assert (rows[1]["value"], rows[1]["note"]) == (None, "not converged: the residual must fall below 1e-12, got 1e-3")
    (found,) = summaries(Result.load(tmp_path / "v"))
    assert (found.seeds, found.decided, found.op, found.worst) == (3, 2, ">=", 0.5)


def test_workers_change_no_row():
    """With claims that the other processes must be handed: a room's checks are functions without a name."""
    claims = importlib.import_module("transformer_theory.theories.rate_reduction").THEORY.claims[:3]
    one, two = (verification(claims, range(3), workers=workers) for workers in (1, 2))
    assert one.table == two.table
    assert (one.params, one.sources) == (two.params, two.sources)
    assert (one.provenance["workers"], two.provenance["workers"]) == (1, 2)


def test_ctrl_c_leaves_nothing_behind(monkeypatch, tmp_path, capsys):
    def stop(generator):
        assert any(entry.name.startswith(".all.") for entry in (tmp_path / "runs").iterdir())
        raise KeyboardInterrupt

    only(monkeypatch, check=stop)
    assert main(["verify", "all", "--seeds", "3", "--out", str(tmp_path / "runs" / "all")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "transformer-theory: interrupted; nothing was written"
    assert list(tmp_path.iterdir()) == []


LAST = citations.software()


@pytest.mark.parametrize("name", ["stand_in", "stand_in/good", "tian2023scan"])
def test_cite(name, capsys):
    assert main(["cite", name]) == 0
    assert capsys.readouterr().out == f"{citations.entries()['tian2023scan']}\n\n{LAST}"


def test_cite_the_library(capsys):
    assert main(["cite", "software"]) == 0
    assert capsys.readouterr().out == LAST


def test_cite_a_stored_result(tmp_path, monkeypatch, capsys):
    rows = [
        Row(theory="stand_in", quantity="a", value=1.0, source="yu2020learning, Thm. 1"),
        Row(theory="stand_in", quantity="b", value=1.0, source="nobody1900nothing"),
        Row(theory="stand_in", quantity="c", value=1.0, source="tian2023scan"),
        Row(theory="stand_in", quantity="d", value=1.0),
    ]
    Result("compare", table=rows, sources=data.load("digits").sources).save(tmp_path / "tian2023scan")
    Result("verify", table=rows).save(tmp_path / "here")
    assert main(["cite", str(tmp_path / "tian2023scan")]) == 0
    cited = re.findall(r"^@\w+\{([^,]+),", capsys.readouterr().out, re.MULTILINE)
    assert cited == [*(source.key for source in data.load("digits").sources), "yu2020learning", "tian2023scan", "transformertheory2026"]
    monkeypatch.chdir(tmp_path)
    assert main(["cite", "here"]) == 0
    assert capsys.readouterr().out.startswith("@inproceedings{yu2020learning,")
    assert main(["cite", "tian2023scan"]) == 0  # a name is not taken away by a folder that is called so
    assert capsys.readouterr().out == f"{citations.entries()['tian2023scan']}\n\n{LAST}"
    (tmp_path / "empty").mkdir()
    assert main(["cite", "empty"]) == 2
    assert "empty must hold result.json" in capsys.readouterr().err
    assert main(["cite", "heer"]) == 2
    assert "unknown theory, claim, key or folder 'heer'" in capsys.readouterr().err
