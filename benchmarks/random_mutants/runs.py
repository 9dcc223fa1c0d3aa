"""Runs mutants in a copy of the package: first the theory's quick claims, then its tests.

Its tests are those in its folder, those of its claims among the tests of all claims, and the files of metrics
and of the core that name it. The tests of a part of the frame are those of the library without the theories,
metrics and models, and the files among those that name a part of the frame. A recording without any change
tells which functions each claim and each test executes and how long it takes. For a mutant only those run
that execute the changed function, and the quickest first. A test that does not execute it cannot see it, up
to results that a fixture or an object has kept: the other tests of the same files follow. What is outside of
functions concerns the functions that use its name.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import FRAME, Mutant, folder_of, modules
from .operators import DEFINITIONS, FUNCTIONS, qualified
from .recorder import CLAIMS

SEEDS = (0, 1)
START, FACTOR = (
    40,
    10,
)  # seconds of processor time for the start of a process, and per second of the recording
PLAN = "RANDOM_MUTANTS_PLAN"  # variable with the path of the plan of pytest
RECORDING = 1800  # seconds of processor time of a recording
SHARED = ("theories", "metrics", "core")  # folders of tests whose files may name a theory
ELSEWHERE = ("theories", "metrics", "models")  # folders of tests of other parts than the frame
PROGRAMS = (
    "test_mutants.py",
    "test_random_mutants.py",
    "test_same_numbers.py",
)  # tests of programs like this
BATCH = 8  # files of tests that one process records
HERE = Path(__file__).resolve().parent
Record = dict[str, dict[str, Any]]  # name -> seconds, functions, passed


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        outcome: "claims", "tests", "undecided" or "undetected".
        by: claim or test that detected it, or why no test could.
        claims: claims that execute the changed code.
        tests: tests that ran.
        left: tests that would have run if there had been more time.
    """

    outcome: str
    by: str = ""
    claims: int = 0
    tests: int = 0
    left: int = 0


@dataclass(frozen=True)
class Copy:
    """A copy of the package and its tests, in which mutants are written and run.

    Attributes:
        root: folder that holds the copy.
        server: process that starts the others (:mod:`.server`).
        package: name of the package.
        seconds: processor time of tests per mutant, as recorded; the remaining ones do not run.
    """

    root: Path
    server: "subprocess.Popen[str]"
    package: str = "transformer_theory"
    seconds: float = 300.0

    @classmethod
    def of(
        cls, source: Path, root: Path, package: str = "transformer_theory", seconds: float = 300.0
    ) -> "Copy":
        """Copies the package, its tests, what else they read, and this program."""
        skipped = shutil.ignore_patterns("__pycache__", ".*", "runs", "_build")
        shutil.copytree(source, root, ignore=skipped, dirs_exist_ok=True)
        shutil.copytree(HERE, root / "benchmarks" / "random_mutants", ignore=skipped, dirs_exist_ok=True)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        server = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.server"],
            cwd=root,
            env=os.environ | threads | {"PYTHONPATH": str(root), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return cls(root, server, package, seconds)

    def close(self) -> None:
        """Ends the server."""
        assert self.server.stdin
        self.server.stdin.close()
        self.server.wait()

    def tests_of(self, theory: str) -> list[str]:
        """Returns the files of a theory's tests, those of metrics and of the core that name the theory, and
        that of the tests of all claims; for a part of the frame, all files that may execute it.
        """
        folder = self.root / "tests"
        if theory in FRAME:
            named = re.compile(rf"\b{self.package}\.({'|'.join(FRAME)})\b")
            found = {path.relative_to(self.root): path for path in sorted(folder.rglob("test_*.py"))}
            return [
                file.as_posix()
                for file, path in found.items()
                if file.as_posix() != CLAIMS
                and file.name not in PROGRAMS
                and (file.parts[1] not in ELSEWHERE or named.search(path.read_text("utf-8")))
            ]
        named = re.compile(rf"\b{self.package}\.theories(\.| import ([\w, ]+, )?){theory}\b")
        shared = [path for part in SHARED for path in sorted((folder / part).glob("test_*.py"))]
        found = sorted((folder / "theories" / theory).rglob("test_*.py"))
        found += sorted((folder / "theories").glob(f"test_{theory}*.py"))
        found += [path for path in shared if path not in found and named.search(path.read_text("utf-8"))]
        found.append(self.root / CLAIMS)
        return [str(path.relative_to(self.root)) for path in found if path.exists()]

    def run(self, module: str, arguments: Sequence[str], seconds: float, *, compiled: bool = False) -> int:
        """Runs a job of :mod:`.server` and returns its exit status; a process that needs more than so many
        seconds of processor time is ended, with a negative status.
        """
        job = {"module": module, "arguments": list(arguments), "seconds": seconds, "compiled": compiled}
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(job | {"environment": {PLAN: self.path("tests")}}) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def path(self, name: str) -> str:
        """Returns the path of the plan of a process."""
        return str(self.root / f"{name}.plan.json")

    def pytest(self, plan: dict[str, Any], files: Iterable[str], seconds: float) -> int:
        """Runs pytest with the plugin of :mod:`.recorder`."""
        Path(self.path("tests")).write_text(json.dumps(plan), encoding="utf-8")
        options = ["-q", "-p", "no:cacheprovider", "-p", f"{__package__}.recorder"]
        first = [] if "record" in plan else ["-x"]
        return self.run("pytest", [*options, *first, *files], seconds, compiled="record" in plan)

    def claims(
        self, theory: str, names: Sequence[str] | None, seconds: float, *, record: bool = False
    ) -> Any:
        """Runs quick claims and returns what :mod:`.claims_process` does; None if the process ended early."""
        result = self.root / "claims.result.json"
        result.unlink(missing_ok=True)
        plan = {"package": self.package, "theory": theory, "seeds": list(SEEDS[:1] if record else SEEDS)}
        plan |= {"claims": names, "record": record, "result": str(result)}
        Path(self.path("claims")).write_text(json.dumps(plan), encoding="utf-8")
        self.run("claims", [self.path("claims")], seconds, compiled=record)
        return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None

    def recording(self, theory: str, stored: Path) -> tuple[Record, Record]:
        """Returns the recordings of the claims and of the tests of a theory, or of the tests of the frame.
        They come from a file if it belongs to the same code; files of tests that changed are run again.

        Raises:
            RuntimeError: the claims or the tests cannot be run.
        """
        folders = [
            folder_of(self.root, self.package, part) for part in (FRAME if theory in FRAME else [theory])
        ]
        code = _digest(path for folder in folders for path in folder.rglob("*.py"))
        found = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
        if found.get("code") != code:
            found = {"code": code, "claims": {}, "files": {}}
        if theory not in FRAME and not found["claims"]:
            found["claims"] = self.claims(theory, None, RECORDING, record=True)
            if found["claims"] is None or "by" in found["claims"]:
                raise RuntimeError(f"the claims of {theory} cannot be run")
        digests = {file: _digest([self.root / file]) for file in self.tests_of(theory)}
        files = found["files"] = {name: one for name, one in found["files"].items() if name in digests}
        new = [name for name, digest in digests.items() if files.get(name, {}).get("digest") != digest]
        stored.parent.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(new), BATCH):
            tests = self._recorded(theory, folders, new[first : first + BATCH])
            for name in new[first : first + BATCH]:
                own = {test: one for test, one in tests.items() if test.split("::")[0] == name}
                files[name] = {"digest": digests[name], "tests": own}
            stored.write_text(json.dumps(found), encoding="utf-8")
        if not (tests := {test: one for file in files.values() for test, one in file["tests"].items()}):
            raise RuntimeError(f"{theory} has no tests")
        return found["claims"], tests

    def _recorded(self, theory: str, folders: list[Path], files: list[str]) -> Record:
        """Runs files of tests and returns what they execute in the folders."""
        report = self.root / "tests.record.json"
        report.unlink(missing_ok=True)
        places = [folder.relative_to(self.root).as_posix() for folder in folders]
        plan = {"record": str(report), "folders": places, "theory": theory}
        self.pytest(plan, files, RECORDING)
        if not report.exists():
            raise RuntimeError(f"the tests of {theory} cannot be run: {', '.join(files)}")
        return json.loads(report.read_text(encoding="utf-8"))

    def judge(self, mutant: Mutant, recording: tuple[Record, Record]) -> Outcome:
        """Writes a mutant, runs claims and tests until one detects it, and writes the original again."""
        path = self.root / mutant.file
        original, times = path.read_bytes(), path.stat()
        path.write_bytes(mutant.change.applied(original))
        # Compiled modules are known by time and size, so a change within a second needs a time of its own.
        os.utime(path, (times.st_atime, times.st_mtime + 100))
        try:
            return self._judged(mutant, *recording)
        finally:
            path.write_bytes(original)
            os.utime(path, (times.st_atime, times.st_mtime))

    def _judged(self, mutant: Mutant, claims: Record, tests: Record) -> Outcome:
        executed = executing(self.root, self.package, mutant)
        if not any(executed & set(one.get("functions", ())) for one in (*claims.values(), *tests.values())):
            # perhaps it runs on import, such as a decorator
            name = mutant.change.function.rpartition(".")[2]
            executed = users(self.root, self.package, mutant.theory, {name})
        names = chosen(claims, executed, everywhere=not mutant.change.function)
        undecided = []
        if names:
            seconds = START + FACTOR * len(SEEDS) * sum(claims[name]["seconds"] for name in names)
            found = self.claims(mutant.theory, names, seconds)
            if found is None:
                return Outcome("claims", f"no end within {seconds:.0f} s", len(names))
            if found["by"]:
                return Outcome("claims", found["by"], len(names))
            undecided = found["undecided"]
        ordered = ordered_tests(tests, executed, everywhere=not mutant.change.function)
        selected = within(ordered, tests, self.seconds)
        left = len(ordered) - len(selected)
        if selected:
            result = self.tested(selected, tests, mutant.theory)
            if result["failed"]:
                return Outcome("tests", result["failed"], len(names), result["ran"], left)
        by = ", ".join(undecided) if undecided else "" if names or ordered else "nothing executes it"
        return Outcome("undecided" if undecided else "undetected", by, len(names), len(selected), left)

    def tested(self, selected: Sequence[str], tests: Record, theory: str) -> dict[str, Any]:
        """Runs tests until one fails; returns its name, or "", and how many ran."""
        report = self.root / "tests.report.json"
        report.unlink(missing_ok=True)
        plan = {"tests": list(selected), "known": list(tests), "report": str(report), "theory": theory}
        files = dict.fromkeys(name.split("::")[0] for name in selected)
        seconds = START + FACTOR * sum(tests[name]["seconds"] for name in selected)
        status = self.pytest(plan, files, seconds)
        if not report.exists():
            return {"failed": f"no end within {seconds:.0f} s" if status < 0 else "import", "ran": 0}
        result = json.loads(report.read_text(encoding="utf-8"))
        if not result["failed"] and status not in (0, 5):
            result["failed"] = f"pytest ends with status {status}"
        return result


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def chosen(claims: Record, executed: set[str], *, everywhere: bool) -> list[str]:
    """Returns the claims that execute one of the functions, the quickest first; all of them if none does and
    the change is outside of functions.
    """
    sound = sorted(
        (name for name in claims if claims[name]["passed"]), key=lambda name: claims[name]["seconds"]
    )
    found = [name for name in sound if executed & set(claims[name]["functions"])]
    return found or (sound if everywhere else [])


def ordered_tests(tests: Record, executed: set[str], *, everywhere: bool) -> list[str]:
    """Returns the tests that execute one of the functions, file by file, the quickest first, and then the
    other tests of these files, or of all files if the change is outside of functions.
    """
    sound = [name for name in tests if tests[name]["passed"] and "functions" in tests[name]]
    direct = [name for name in sound if executed & set(tests[name]["functions"])]
    files = {name.split("::")[0] for name in direct}
    others = [name for name in sound if name not in set(direct)]
    others = [name for name in others if everywhere or name.split("::")[0] in files]
    return [name for part in (direct, others) for name in _by_file(part, tests)]


def _by_file(names: Iterable[str], tests: Record) -> list[str]:
    """Sorts tests by the time of their file and then by their own, so that fixtures of a file are made
    once.
    """
    files = dict[str, list[str]]()
    for name in names:
        files.setdefault(name.split("::")[0], []).append(name)
    parts = [sorted(part, key=lambda name: tests[name]["seconds"]) for part in files.values()]
    parts.sort(key=lambda part: sum(tests[name]["seconds"] for name in part))
    return [name for part in parts for name in part]


def within(names: Sequence[str], tests: Record, seconds: float) -> list[str]:
    """Returns the first tests that take so many seconds together, and at least one."""
    found, total = [], 0.0
    for name in names:
        total += tests[name]["seconds"]
        if found and total > seconds:
            break
        found.append(name)
    return found


def executing(root: Path, package: str, mutant: Mutant) -> set[str]:
    """Returns the functions that a change concerns, as ``path::qualified name``: the one around it, or those
    that use what the changed statement binds.
    """
    if mutant.change.function:
        return {f"{mutant.file}::{mutant.change.function}"}
    return users(root, package, mutant.theory, set(mutant.change.bound))


def users(root: Path, package: str, theory: str, names: set[str]) -> set[str]:
    """Returns the functions of a theory, or of the frame, that use one of the names, directly or by way of
    names that other statements bind.
    """
    uses = list[tuple[str, set[str], set[str]]]()
    for part in FRAME if theory in FRAME else (theory,):
        for path in modules(folder_of(root, package, part)):
            uses += _uses(path.relative_to(root).as_posix(), ast.parse(path.read_bytes()))
    while True:
        more = {name for place, bound, used in uses if not place and names & used for name in bound} - names
        if not more:
            return {place for place, _, used in uses if place and names & used}
        names = names | more


def _uses(file: str, tree: ast.AST) -> list[tuple[str, set[str], set[str]]]:
    """Returns for each function of a module the names that it uses, and for each statement outside of
    functions ("") the names that it binds and uses.
    """
    found = [
        (f"{file}::{name}", set[str](), _used(node))
        for node, name in qualified(tree).items()
        if isinstance(node, FUNCTIONS)
    ]

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and not isinstance(child, DEFINITIONS):
                found.append(("", _stored(child), _used(child)))
            if not isinstance(child, FUNCTIONS):
                visit(child)

    visit(tree)
    return found


def _stored(node: ast.AST) -> set[str]:
    """Returns the names that a statement binds, in its parts too."""
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _used(node: ast.AST) -> set[str]:
    """Returns the names and attributes in an expression or a statement."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
