"""The program that writes random errors: what it changes, what it draws, and how it judges, on a package of
one theory.
"""

import ast
import json
import textwrap
from pathlib import Path
from types import CodeType

import pytest

from benchmarks.random_mutants import COUNT, Mutant, candidates, modules, sample
from benchmarks.random_mutants import __main__ as program
from benchmarks.random_mutants.operators import OPERATORS, Change, changes, possible, qualified
from benchmarks.random_mutants.runs import Copy, executing, ordered_tests, within
from tests.cases import each_case

THEORY = {
    "__init__.py": """
        from types import SimpleNamespace
        from .claims import CLAIMS

        THEORY = SimpleNamespace(claims=CLAIMS)
        """,
    "maths.py": """
        SCALE = 7

        def squares(x: list[float]) -> float:
            "The sum of 2 squares."
            return sum(each * each for each in x)

        def scaled(x: float) -> float:
            return SCALE * x

        def ordered(x: float, y: float) -> list[float]:
            low = min(x, y) - 1
            return [low + 1, max(x, y)]

        def endless(n: int) -> int:
            while n > 0:
                n = n - 1
            return n

        def doubled(function):
            return lambda x: 2 * function(x)

        @doubled
        def itself(x: float) -> float:
            return x

        def of_factor(factor: float):
            factor = 1.5 * factor
            return lambda function: lambda x: factor * function(x)

        @of_factor(2.0)
        def thrice(x: float) -> float:
            return x

        def never(x: float) -> float:
            return x + 1

        def of_metrics(x: float) -> float:
            return 3 * x

        def of_claims(x: float) -> float:
            return 5 * x
        """,
    "claims.py": """
        from dataclasses import dataclass
        from . import maths

        @dataclass(frozen=True)
        class Evidence:
            value: float
            covered: bool = True

            @property
            def verdict(self) -> str:
                return "consistent" if abs(self.value) < 0.5 else "violated"

        @dataclass(frozen=True)
        class Claim:
            id: str
            measured: object
            broken: object
            cost: str = "quick"

            def run(self, seed: int):
                return Evidence(self.measured(seed)), Evidence(self.broken(seed))

        CLAIMS = (
            Claim("toy/squares", lambda seed: maths.squares([3, 4]) - 25, lambda seed: maths.squares([5])),
            Claim("toy/slow", lambda seed: 1 / 0, lambda seed: 0, cost="training"),
        )
        """,
    "figures/curve.py": "WIDTH = 7 + 1\n",
}
TESTS = """
    from tiny.theories.toy import maths

    def test_of_order():
        assert maths.ordered(2.0, 2.0) == [2.0, 2.0]

    def test_of_scale():
        assert maths.scaled(2.0) == 14.0

    def test_of_factors():
        assert (maths.itself(2.0), maths.thrice(2.0)) == (4.0, 6.0)

    def test_of_end():
        assert maths.endless(3) == 0

    def test_that_fails_without_any_change():
        assert maths.ordered(1.0, 2.0) == []
    """

TESTS_OF_METRICS = """
    from tiny.theories.toy import maths

    def test_of_metrics():
        assert maths.of_metrics(2.0) == 6.0
    """
TESTS_OF_OTHERS = """
    from tiny.theories import toys
    """
TESTS_OF_CLAIMS = """
    import pytest
    import tiny.theories.toy.maths

    @pytest.mark.parametrize("number", [2.0, 3.0], ids=["toy/one", "toys/two"])
    def test_claim(number):
        assert tiny.theories.toy.maths.of_claims(2.0) == 10.0
    """


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A repository of one package with one theory."""
    root = tmp_path_factory.mktemp("source")
    files = {f"tiny/theories/toy/{name}": text for name, text in THEORY.items()}
    files |= {
        "tiny/__init__.py": "",
        "tiny/theories/__init__.py": "def theory(name):\n    from .toy import THEORY\n\n    return THEORY\n",
        "tests/theories/toy/test_toy.py": TESTS,
        "tests/metrics/test_metrics.py": TESTS_OF_METRICS,
        "tests/core/test_others.py": TESTS_OF_OTHERS,
        "tests/contract/test_claims.py": TESTS_OF_CLAIMS,
        "conftest.py": "",
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n',
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


@pytest.fixture(scope="module")
def copy(source, tmp_path_factory):
    made = Copy.of(source, tmp_path_factory.mktemp("copy"), "tiny")
    yield made
    made.close()


def found(text: str) -> set[tuple[str, str, str]]:
    """The changes of a text, as operator, old and new text."""
    source = textwrap.dedent(text).encode()
    return {(one.operator, one.old, one.new) for one in changes(source) if possible(source, one)}


@each_case(
    ("text", "expected"),
    [
        ("y = a * b", {("factor", "*", "/"), ("factor", "a * b", "(2 * (a * b))")}),
        ("y = a - b", {("sign", "-", "+")}),
        ("y = -a", {("sign", "-a", "(a)")}),
        ("y = x.amax(-1)", {("axis", "-1", "-2"), ("min and max", "amax", "amin")}),
        ("y = torch.flip(x, 0)", {("axis", "0", "1"), ("argument order", "x, 0", "0, x")}),
        ("y = f(x, dim=(1, 2))", {("axis", "(1, 2)", "(1,)"), ("keyword", ", dim=(1, 2)", "")}),
        ("y = f(dim=32)", {("constant", "32", "33"), ("constant", "32", "64"), ("keyword", "dim=32", "")}),
        ("y = x[1]", {("index", "1", "2"), ("index", "1", "0")}),
        ("y = x[:n]", {("index", "n", "(n) + 1"), ("index", "n", "(n) - 1")}),
        ("y = a < b", {("comparison", "<", "<="), ("comparison", "<", ">")}),
        ("y = a and not b", {("comparison", "and", "or"), ("comparison", "not b", "(b)")}),
        ("y = f(a, b)", {("argument order", "a, b", "b, a")}),
        ("y = max(a, b)", {("min and max", "max", "min")}),
        ("y = 5", {("constant", "5", "6"), ("constant", "5", "10")}),
        ("y = 0.5", {("constant", "0.5", "0.25"), ("constant", "0.5", "1.0")}),
        ("y = True", {("constant", "True", "False")}),
        (
            "y = x.clamp(min=a)",
            {("min and max", "min", "max"), ("keyword", "min=a", "")},
        ),
        ("y = x.mean()", {("mean and sum", "mean", "sum"), ("factor", "x.mean()", "(2 * x.mean())")}),
        ('y = f(side="<=")', {("comparison", '"<="', '">="'), ("keyword", 'side="<="', "")}),
        ("y += a", {("sign", "+=", "-=")}),
    ],
)
def test_what_each_operator_changes(text, expected):
    assert found(text) == expected


@each_case(
    "text",
    [
        '"A text of 2 words."',
        'y = f"{a * b} of {c + 1}"',
        'y = "a" + b',
        "y = 1e-7",
        "y = 1e12",
        "from a import b",
        "x: Literal[1, 2]",
        "def f(x: Float[Tensor, 3]) -> tuple[int, 2]:\n    return x",
        "def f(x):\n    raise ValueError(a * b)",
        "def plot(x) -> Figure:\n    return 2 * x",
        'def line(ax: "Axes", x) -> None:\n    ax.plot(2 * x)',
        "@style()\ndef f(x):\n    return 2 * x",
        '@claim(a, cost="training")\ndef f(x):\n    return 2 * x',
        "@lru_cache(maxsize=8)\ndef f(x):\n    return x",
        "@dataclass(frozen=True)\nclass A:\n    x: int",
        "y = f(note=a, source=b)",
        "if TYPE_CHECKING:\n    y = 2",
        "y = isinstance(a, b)",
    ],
)
def test_texts_types_figures_and_tolerances_stay(text):
    assert found(text) == set()


def test_a_change_knows_its_function_and_what_its_statement_binds():
    source = b"class A:\n    n: int = 3\n    def f(self):\n        def g():\n            return x[1]\n"
    one = {change.old: (change.function, change.bound, change.line) for change in changes(source)}
    assert one == {"3": ("", ("A", "n"), 2), "1": ("A.f.<locals>.g", (), 5)}
    with pytest.raises(ValueError, match="line 2 must hold '3'"):
        changes(source)[0].applied(source.replace(b"3", b"4"))


def test_qualified_names_are_those_of_python():
    """Also of functions in branches, loops and classes in functions."""
    source = """
class A:
    def f(self):
        if self:
            def g(): pass
        class B:
            async def h(self): pass
for each in []:
    def k(): pass
"""

    def names(code: CodeType) -> set[str]:
        inner = [each for each in code.co_consts if isinstance(each, CodeType)]
        return {each.co_qualname for each in inner}.union(*map(names, inner))

    expected = {"A", "A.f", "A.f.<locals>.g", "A.f.<locals>.B", "A.f.<locals>.B.h", "k"}
    assert names(compile(source, "", "exec")) == expected
    assert set(qualified(ast.parse(source)).values()) == expected


def test_the_sample_takes_turns_and_stays_when_other_lines_change(source, tmp_path):
    folder = tmp_path / "tiny" / "theories" / "toy"
    folder.mkdir(parents=True)
    lines = [f"y{k} = x[{k}] + a.mean(0) * f(b, c{k}) < 7" for k in range(20)]
    (folder / "maths.py").write_text("\n".join(lines))
    (folder / "plots.py").write_text("y = 3 * x")
    (folder / "figures").mkdir()
    (folder / "figures" / "one.py").write_text("y = 3 * x")
    assert [path.name for path in modules(folder)] == ["maths.py"]
    drawn = sample(tmp_path, "tiny", "toy")
    assert len({one.name for one in drawn}) == len(drawn) == COUNT
    numbers = [sum(one.change.operator == operator for one in drawn) for operator in OPERATORS]
    assert (
        numbers == [2, 2, 2, 2, 2, 2, 1, 0, 2, 0] or max(numbers) - min(each for each in numbers if each) <= 1
    )
    assert drawn == sample(tmp_path, "tiny", "toy")
    assert {one.name for one in drawn} != {one.name for one in sample(tmp_path, "tiny", "toy", seed=48)}
    (folder / "maths.py").write_text("\n".join(["", "# moved", *lines]))
    assert {one.name for one in sample(tmp_path, "tiny", "toy")} == {one.name for one in drawn}


def mutant(source: Path, old: str, new: str, function: str, number: int = 0) -> Mutant:
    """The mutant of the theory with these texts."""
    every = [
        one
        for one in candidates(source, "tiny", "toy")
        if (one.change.old, one.change.new, one.change.function) == (old, new, function)
    ]
    return every[number]


def test_claims_tests_and_survivors(copy, source, tmp_path):
    recording = claims, tests = copy.recording("toy", tmp_path / "toy.json")
    assert list(claims) == ["toy/squares"]
    assert "tiny/theories/toy/maths.py::squares" in claims["toy/squares"]["functions"]
    name = "tests/theories/toy/test_toy.py::test_"
    assert not tests[f"{name}that_fails_without_any_change"]["passed"]
    assert "tiny/theories/toy/maths.py::scaled" in tests[f"{name}of_scale"]["functions"]
    # of other files those that name the theory, and the tests of its claims
    others = {each for each in tests if not each.startswith(name)}
    of_metrics, of_claims = "tests/metrics/test_metrics.py::test_of_metrics", "tests/contract/test_claims.py"
    assert others == {of_metrics, f"{of_claims}::test_claim[toy/one]"}
    module = copy.root / "tiny/theories/toy/maths.py"
    before = module.read_bytes(), module.stat().st_mtime

    def judged(*change) -> tuple[str, str]:
        outcome = copy.judge(mutant(source, *change), recording)
        return outcome.outcome, outcome.by

    assert judged("*", "/", "squares") == ("claims", "toy/squares")
    assert judged("-", "+", "ordered") == ("tests", f"{name}of_order")
    # of two equal numbers both are the smallest, and the test with two others fails without any change
    assert judged("min", "max", "ordered") == ("undetected", "")
    assert judged("+", "-", "never") == ("undetected", "nothing executes it")
    assert judged("*", "/", "doubled") == ("tests", f"{name}of_factors")
    # it runs on import only, so whatever uses its name is run
    assert judged("*", "/", "of_factor") == ("tests", f"{name}of_factors")
    assert judged("*", "/", "of_metrics") == ("tests", of_metrics)
    assert judged("*", "/", "of_claims") == ("tests", f"{of_claims}::test_claim[toy/one]")
    assert judged("7", "8", "") == ("tests", f"{name}of_scale")
    assert (module.read_bytes(), module.stat().st_mtime) == before
    # the recording is read again, and made again if a test has changed
    assert copy.recording("toy", tmp_path / "toy.json") == recording
    stored = json.loads((tmp_path / "toy.json").read_text())
    (tmp_path / "toy.json").write_text(json.dumps({**stored, "code": "another"}))
    assert copy.recording("toy", tmp_path / "toy.json")[1].keys() == tests.keys()


def test_a_process_without_end_is_detected(copy, source, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.random_mutants.runs.START", 2)
    recording = copy.recording("toy", tmp_path / "toy.json")
    outcome = copy.judge(mutant(source, "-", "+", "endless"), recording)
    assert (outcome.outcome, outcome.by) == ("tests", "no end within 2 s")


def test_what_uses_a_name_is_what_a_statement_concerns(source):
    found = executing(source, "tiny", mutant(source, "7", "8", ""))
    assert found == {"tiny/theories/toy/maths.py::scaled"}


def test_tests_that_execute_the_function_come_first_and_the_quickest_of_them():
    tests = {
        "a::slow": {"passed": True, "seconds": 5.0, "functions": ["f"]},
        "a::other": {"passed": True, "seconds": 0.1, "functions": []},
        "b::fast": {"passed": True, "seconds": 1.0, "functions": ["f"]},
        "b::broken": {"passed": False, "seconds": 0.1, "functions": ["f"]},
        "c::third": {"passed": True, "seconds": 0.1, "functions": ["g"]},
    }
    assert ordered_tests(tests, {"f"}, everywhere=False) == ["b::fast", "a::slow", "a::other"]
    assert ordered_tests(tests, {"f"}, everywhere=True)[2:] == ["a::other", "c::third"]
    assert within(["b::fast", "a::slow", "a::other"], tests, 3.0) == ["b::fast"]
    assert within(["a::slow", "a::other"], tests, 3.0) == ["a::slow"]


def test_mutants_of_a_file(tmp_path, capsys):
    (tmp_path / "m.py").write_text("def f(x):\n    return x.sum(\n        0)\n\nN = 3\n")
    listed = [
        {
            "name": "a",
            "theory": "toy",
            "file": "m.py",
            "old": "sum(\n        0)",
            "new": "sum(1)",
            "what": "axis",
        },
        {"name": "b", "theory": "toy", "file": "m.py", "old": "N = 3", "new": "N = 4", "what": "number"},
        {"name": "c", "theory": "toy", "file": "m.py", "old": "absent", "new": "", "what": "none"},
    ]
    (tmp_path / "list.json").write_text(json.dumps(listed))
    first, second = program.read(tmp_path / "list.json", tmp_path)
    assert (first.change.function, first.change.line) == ("f", 2)
    assert second.change.bound == ("N",)
    assert first.change.applied((tmp_path / "m.py").read_bytes()).startswith(
        b"def f(x):\n    return x.sum(1)\n"
    )
    assert "left out: c" in capsys.readouterr().out


def test_outcomes_are_stored_with_the_proofs_of_the_equivalent_ones(tmp_path, monkeypatch):
    change = Change("sign", "f", (), 1, "a + b", "+", "-", 2, 3)
    mutants = [Mutant(name, "turing", f"{name}.py", change) for name in ("one", "two", "three", "four")]
    proofs = [
        {"file": file, "function": "f", "text": "a + b", "old": "+", "new": "-"}
        for file in ("one.py", "two.py")
    ]
    (tmp_path / "equivalent.json").write_text(json.dumps([one | {"proof": "b is 0"} for one in proofs]))
    monkeypatch.setattr(program, "EQUIVALENT", tmp_path / "equivalent.json")
    # the proof of the fourth was taken back
    outcomes = {"one": "undetected", "two": "tests", "three": "undetected", "four": "equivalent"}
    records = [
        record | {"outcome": outcomes[name], "by": ""} for name, record in program.records_of(mutants).items()
    ]
    program.store(tmp_path / "page.json", records, 47)
    stored = json.loads((tmp_path / "page.json").read_text())
    assert stored["seed"] == 47
    found = {one["name"]: (one["outcome"], one["by"]) for one in stored["mutants"]}
    missed = ("undetected", "")
    assert found == {"one": ("equivalent", "b is 0"), "two": ("tests", ""), "three": missed, "four": missed}


def test_a_mutant_that_is_detected_when_it_is_run_again_was_missed_at_first(tmp_path, monkeypatch):
    """A new one of the sample was not; one that had been detected is not run."""

    class Runner:
        def __init__(self, *_):
            self.judged = []

        def close(self):
            assert self.judged == ["two", "new"]

        def recording(self, _):
            return {}, {}

        def judge(self, mutants, _):
            self.judged += [one.name for one in mutants]
            for _ in mutants:
                yield {"outcome": "tests", "by": "a"}

    change = Change("sign", "f", (), 1, "a + b", "+", "-", 2, 3)
    mutants = [Mutant(name, "turing", f"{name}.py", change) for name in ("one", "two", "new")]
    outcomes = {"one": "claims", "two": "undetected"}
    records = program.records_of(mutants)
    stored = [records[name] | {"outcome": outcome, "by": ""} for name, outcome in outcomes.items()]
    page = tmp_path / "page.json"
    former = [{"seed": 46, "mutants": 8, "detected": 6}]
    page.write_text(json.dumps({"seed": 47, "mutants": stored, "former": former}))
    for name, value in {"PAGE": page, "sample": lambda *_, **__: mutants, "Runner": Runner}.items():
        monkeypatch.setattr(program, name, value)
    assert program.main(["turing", "--again"]) == 0
    again = json.loads(page.read_text())
    assert again["former"] == former
    found = {one["name"]: one for one in again["mutants"]}
    assert {name: one["outcome"] for name, one in found.items()} == {
        "one": "claims",
        "two": "tests",
        "new": "tests",
    }
    assert [name for name, one in found.items() if one.get("missed")] == ["two"]


def test_the_stored_sample_has_one_outcome_each_and_every_proof_belongs_to_it():
    stored = json.loads(program.PAGE.read_text(encoding="utf-8"))["mutants"]
    assert len({one["name"] for one in stored}) == len(stored)
    assert {one["outcome"] for one in stored} <= {*program.DETECTED, "undecided", "undetected", "equivalent"}
    for theory in {one["theory"] for one in stored}:
        assert sum(one["theory"] == theory for one in stored) >= COUNT, theory
    proofs = json.loads(program.EQUIVALENT.read_text(encoding="utf-8"))
    others = (
        program.PAGE.with_name(f"random_mutants_{name}.json") for name in ("fresh", "frame", "frame_fresh")
    )
    every = [*stored, *(one for page in others for one in json.loads(page.read_text("utf-8"))["mutants"])]
    equivalent = {program.key(one): one["by"] for one in every if one["outcome"] == "equivalent"}
    assert equivalent == {program.key(one): one["proof"] for one in proofs}
