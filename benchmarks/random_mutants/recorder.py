"""A pytest plugin that records which functions each test executes, or runs chosen tests in a given order.

The file that :data:`PLAN` names holds a JSON object. ``{"record": FILE}`` runs all tests and stores for each
its processor time, whether it passed and the functions in "folders" that it executes, those of its fixtures
included. ``{"tests": [...], "report": FILE}`` runs these tests in this order and stores the first that fails.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

PLAN = "RANDOM_MUTANTS_PLAN"
CLAIMS = "tests/contract/test_claims.py"  # tests of the claims of all theories


def of_theory(items: list, theory: str) -> list:
    """Returns the tests without those of the claims of other theories."""
    return [item for item in items if not item.nodeid.startswith(CLAIMS) or f"[{theory}/" in item.nodeid]


class Calls:
    """The code that is executed while it is switched on."""

    def __init__(self) -> None:
        self.codes = set[CodeType]()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes.add(frame.f_code)

    @contextmanager
    def on(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        threading.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)  # type: ignore

    def functions(self, root: Path, folders: Sequence[str] = ("",)) -> set[str]:
        """Returns the functions in files below folders of the root, as ``path::qualified name``; one that is
        written inside of another counts as both.
        """
        starts, found = tuple(f"{root}{os.sep}{folder}" for folder in folders), set()
        for code in self.codes:
            if code.co_filename.startswith(starts):
                file, parts = os.path.relpath(code.co_filename, root), code.co_qualname.split(".<locals>.")
                found |= {f"{file}::{'.<locals>.'.join(parts[: n + 1])}" for n in range(len(parts))}
        return found


def clear_caches(folders: Sequence[str]) -> None:
    """Forgets the stored results of functions of packages, so that the next caller executes them."""
    starts = tuple(f"{folder.replace('/', '.')}." for folder in folders)
    for name, module in list(sys.modules.items()):
        if module is not None and f"{name}.".startswith(starts):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


class Recording:
    """Plugin that records."""

    def __init__(self, plan: dict) -> None:
        self.plan, self.root = plan, Path.cwd()
        self.tests, self.fixtures = dict[str, dict](), dict[int, set[str]]()
        self.calls = Calls()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = of_theory(items, self.plan["theory"])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        clear_caches(self.plan["folders"])
        self.calls = Calls()
        started = sum(os.times()[:4])  # with the processes that it starts
        with self.calls.on():
            yield
        executed = self.calls.functions(self.root, self.plan["folders"])
        for name in getattr(item, "fixturenames", ()):
            for definition in item._fixtureinfo.name2fixturedefs.get(name, ()):
                executed |= self.fixtures.get(id(definition), set())
        record = self.tests.setdefault(item.nodeid, {"passed": True})
        record |= {"seconds": round(sum(os.times()[:4]) - started, 3), "functions": sorted(executed)}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        calls = Calls()
        with calls.on():
            yield
        self.fixtures[id(fixturedef)] = calls.functions(self.root, self.plan["folders"])

    def pytest_runtest_logreport(self, report):
        record = self.tests.setdefault(report.nodeid, {"passed": True})
        record["passed"] = record["passed"] and not report.failed

    def pytest_sessionfinish(self):
        Path(self.plan["record"]).write_text(json.dumps(self.tests), encoding="utf-8")


class Chosen:
    """Plugin that runs chosen tests."""

    def __init__(self, plan: dict) -> None:
        self.plan, self.failed, self.ran = plan, "", 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        place = {name: number for number, name in enumerate(self.plan["tests"])}
        # names of parameters may depend on what is changed
        for name, number in list(place.items()):
            place.setdefault(name.split("[")[0], number)
        chosen = []
        for item in of_theory(items, self.plan["theory"]):
            name = item.nodeid if item.nodeid in self.plan["known"] else item.nodeid.split("[")[0]
            if name in place:
                chosen.append((place[name], item))
        items[:] = [item for _, item in sorted(chosen, key=lambda pair: pair[0])]

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed and not self.failed:
            self.failed = f"import of {report.nodeid}"

    def pytest_sessionfinish(self):
        found = {"failed": self.failed, "ran": self.ran}
        Path(self.plan["report"]).write_text(json.dumps(found), encoding="utf-8")


def pytest_configure(config):
    plan = json.loads(Path(os.environ[PLAN]).read_text(encoding="utf-8"))
    config.pluginmanager.register(Recording(plan) if "record" in plan else Chosen(plan))
