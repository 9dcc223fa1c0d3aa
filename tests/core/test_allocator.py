"""The allocator of the C library keeps freed memory for the commands that measure."""

import ctypes
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from transformer_theory import cli
from transformer_theory.core.allocator import VARIABLES, keep_freed_memory

FAULTS = """
import resource
import numpy as np
from transformer_theory.core.allocator import keep_freed_memory

print(keep_freed_memory())
for _ in range(3):
    np.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, int]]:
    """A system with glibc, whose ``mallopt`` records its calls."""
    made: list[tuple[int, int]] = []

    def mallopt(number: int, value: int) -> int:
        made.append((number, value))
        return 1

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    for name in (*VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    return made


def test_the_thresholds_are_set(calls):
    assert keep_freed_memory()
    # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of glibc's malloc.h
    assert calls == [(-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 1 << 26)]


def test_a_threshold_that_is_refused(calls, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *numbers: 0))
    assert not keep_freed_memory()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, "1000000") for name in VARIABLES] + [("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")],
)
def test_settings_of_the_user_stay(calls, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory()
    assert calls == []


def test_other_tunables_are_no_settings_of_the_allocator(calls, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
    assert keep_freed_memory()


@pytest.mark.parametrize("library", [("", ""), ("musl", "1.2")])
def test_other_libraries_are_left_alone(calls, monkeypatch, library):
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    assert not keep_freed_memory()
    assert calls == []


def test_a_library_without_mallopt(calls, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not keep_freed_memory()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_blocks_cause_no_new_page_faults(monkeypatch):
    def faults() -> tuple[bool, int]:
        words = subprocess.run(
            [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
        ).stdout.split()
        return words[0] == "True", int(words[1])

    for name in (*VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    kept, few = faults()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**20))
    plain, many = faults()
    assert kept
    assert not plain
    assert 10 * few < many


@pytest.mark.parametrize(("command", "wanted"), [("measure", True), ("compare", True), ("list", False)])
def test_commands_that_measure_keep_freed_memory(monkeypatch, command, wanted, tmp_path):
    asked: list[bool] = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: asked.append(True))
    missing = {"measure": [str(tmp_path / "missing")], "compare": ["--data", str(tmp_path / "missing")]}
    options = missing.get(command, [])
    out = ["--out", str(tmp_path / "out")] if command == "compare" else []
    assert cli.main([command, *options, *out]) == (2 if wanted else 0)
    assert asked == [True] * wanted
