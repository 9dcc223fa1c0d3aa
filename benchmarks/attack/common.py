"""Sandboxes, processes, snapshots and judgements.

A command runs in a child that is forked from this process, which has imported the library; every tenth case
runs ``python -m transformer_theory`` itself. Either has a session, a home and a temporary folder of its own,
so whatever it leaves behind can be found.
"""

import atexit
import contextlib
import glob
import hashlib
import importlib
import importlib.util
import io
import os
import pkgutil
import random
import re
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.__main__ import header

NAME = "transformer_theory"
ROOT = Path(importlib.util.find_spec(NAME).origin).parents[1]  # of the library under attack
HANG = 60.0  # seconds after which a command that should be quick hangs
MEMORY = 3 << 30  # bytes that the processes of one command may hold together, beyond the library itself
PROCESSES = 40  # of one command
Snapshot = dict[bytes, tuple]
Before = Callable[[], object] | None
MADE: "dict[tuple[Path | None, str], Box]" = {}


def warm() -> None:
    """Imports the library and what it imports late, so that a forked child starts at once."""
    package = importlib.import_module(NAME)
    for module in pkgutil.walk_packages(package.__path__, f"{NAME}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for module in ("cvxpy", "matplotlib.pyplot", "lightning.fabric", "transformers", "networkx", "joblib"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


@dataclass
class Outcome:
    """How a command ended; ``stopped`` says why it was killed here: a hang, memory or too many processes."""

    argv: list[str]
    code: int
    out: str
    err: str
    seconds: float
    stopped: str = ""


@dataclass
class Running:
    """A command that runs in a session of its own."""

    argv: list[str]
    pid: int
    folder: Path
    started: float = field(default_factory=time.monotonic)
    code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the command runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def send(self, number: int) -> None:
        """Sends a signal to the first process alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def family(self) -> dict[int, int]:
        """Returns the living processes of the session, with the bytes that each holds."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(path).read_text(errors="replace")
                state, _, _, session, *rest = text[text.rindex(")") + 2 :].split()
                if int(session) == self.pid and state not in "ZX":
                    found[int(path.split("/")[2])] = int(rest[17]) * os.sysconf("SC_PAGESIZE")
        return found

    def end(self) -> None:
        """Kills what is left of the session."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def text(self, name: str) -> str:
        """Returns what was printed so far on ``out`` or ``err``."""
        return (self.folder / name).read_text(encoding="utf-8", errors="backslashreplace")

    def wait(self, limit: float = HANG, memory: int = MEMORY) -> Outcome:
        """Waits for the end. A command over its time that tells of its progress is interrupted, and has to
        obey; one that says nothing, or holds too much, is killed.
        """
        stopped, sampled = "", 0.0
        memory += sum(size for pid, size in self.family().items() if pid == self.pid)
        while self.poll() is None and not stopped:
            time.sleep(0.005)
            now = time.monotonic()
            if now - sampled > 0.05:
                sampled, sizes = now, self.family()
                stopped = f"holds over {MEMORY >> 30} GiB" if sum(sizes.values()) > memory else ""
                stopped = f"{len(sizes)} processes" if len(sizes) > PROCESSES else stopped
            if now - self.started > limit:
                stopped = self._interrupt(limit)
        if stopped:
            self.end()
        while self.poll() is None:
            time.sleep(0.005)
        seconds = time.monotonic() - self.started
        return Outcome(self.argv, self.code or 0, self.text("out"), self.text("err"), seconds, stopped)

    def _interrupt(self, limit: float) -> str:
        if not self.text("err") + self.text("out"):
            return f"no word in {limit:.0f} s"
        self.send(signal.SIGINT)
        until = time.monotonic() + 15
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        return "" if self.poll() is not None else "Ctrl-C is not obeyed within 15 s"


class Box:
    """A folder with ``work`` (where commands run), ``home`` and ``tmp``, and the story of what was done."""

    def __init__(self, path: Path, fixtures: "Path | None", chance: random.Random, real: bool):
        self.path, self.fixtures, self.random, self.real = path, fixtures, chance, real
        self.work, self.home, self.tmp = path / "work", path / "home", path / "tmp"
        self.story: list[str] = []
        self.commands: list[Running] = []
        self.library = ROOT  # what real commands import
        self.last: Outcome | None = None  # of :meth:`undisturbed`
        for folder in (self.work, self.home, self.tmp):
            folder.mkdir(parents=True)

    def take(self, name: str, copy: str | None = None) -> Path:
        """Copies a fixture into the working folder and returns the copy."""
        source, target = self.fixtures / name, self.work / (copy or name)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
        return target

    def note(self, text: str) -> None:
        """Adds a line to the story."""
        self.story.append(text)

    def environment(self) -> dict[str, str]:
        """Returns the scrubbed environment of a command."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "PYTHONPATH": str(self.library),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, argv: list[str], *, real: bool | None = None, before: Before = None) -> Running:
        """Starts a command. ``before`` is called in the child first; it may set limits or change functions of
        the library, which only a forked command keeps.
        """
        real = self.real if real is None else real
        folder = self.path / f"printed-{len(self.commands)}"
        folder.mkdir()
        for name in ("out", "err"):
            (folder / name).touch()
        self.note(f"transformer-theory {shlex.join(argv)}")
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            _child(self, argv, folder, real, before)
        self.commands.append(Running(argv, pid, folder))
        return self.commands[-1]

    def run(self, *argv: str, limit: float = HANG, memory: int = MEMORY, **options) -> Outcome:
        """Runs a command to its end."""
        return self.start(list(argv), **options).wait(limit, memory)

    def once(self, key: str, make: "Callable[[Box], object]") -> "Box":
        """Returns a box that ``make`` has filled, which is made with the first case that asks for its key."""
        if (self.fixtures, key) not in MADE:
            folder = Path(tempfile.mkdtemp(prefix="once-", dir=self.fixtures.parent))
            box = Box(folder, self.fixtures, random.Random(0), False)
            make(box)
            MADE[self.fixtures, key] = box
        return MADE[self.fixtures, key]

    def undisturbed(self, *argv: str) -> Outcome:
        """Runs a command that has to succeed.

        Raises:
            RuntimeError: it does not.
        """
        self.last = self.run(*argv, limit=180)
        if self.last.code:
            raise RuntimeError(f"{shlex.join(argv)} fails undisturbed: {self.last.err[-300:]}")
        return self.last

    def judged(self, *argv: str, **options) -> tuple[Outcome, list[str]]:
        """Runs a command; also returns what is wrong with its end (:func:`complaints`)."""
        before = snapshot(self.work)
        outcome = self.run(*argv, **options)
        return outcome, complaints(outcome, before, snapshot(self.work))

    def leftovers(self) -> list[str]:
        """Lists hidden drafts and temporary files, and the shared memory of joblib."""
        hidden = [path for path in self.work.rglob(".*") if "lock" not in path.name]
        temporary = [
            path for path in self.tmp.iterdir() if not path.name.startswith(("torchinductor", "matplotlib"))
        ]
        found = [str(path.relative_to(self.path)) for path in [*hidden, *temporary]]
        return found + self._shared()

    def _shared(self) -> list[str]:
        return [path for each in self.commands for path in glob.glob(f"/dev/shm/joblib_*_{each.pid}_*")]

    def close(self, keep: bool) -> None:
        """Ends all processes and removes the folder."""
        for command in self.commands:
            command.end()
            if command.code is None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(command.pid, 0)
        for path in self._shared():
            shutil.rmtree(path, ignore_errors=True)
        if not keep:
            shutil.rmtree(os.fsencode(self.path), ignore_errors=True)


def _child(box: Box, argv: list[str], folder: Path, real: bool, before: Before) -> None:
    """Becomes the command; never returns."""
    try:
        os.setsid()
        for number, path in enumerate(("/dev/null", folder / "out", folder / "err")):
            opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
            os.dup2(opened, number)
            os.close(opened)
        os.chdir(box.work)
        if real:
            if before is not None:
                before()
            os.execve(sys.executable, [sys.executable, "-m", NAME, *argv], box.environment())
        os.environ.clear()
        os.environ.update(box.environment())
        tempfile.tempdir = None
        sys.argv = ["transformer-theory", *argv]
        sys.modules["__main__"] = types.ModuleType("__main__")  # workers must not import the attack
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
        )
        code = 1
        try:
            if before is not None:
                before()
            code = importlib.import_module(f"{NAME}.cli").main()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        threading._shutdown()
        atexit._run_exitfuncs()
        os._exit(int(code or 0))
    finally:
        os._exit(70)


def snapshot(folder: Path) -> Snapshot:
    """Returns kind and contents of everything in a folder."""
    found: Snapshot = {}
    top = os.fsencode(folder)
    for parent, folders, names in os.walk(top):
        for path in (os.path.join(parent, name) for name in [*folders, *names]):
            status = os.lstat(path)
            kind, content = stat.S_IFMT(status.st_mode), b""
            if kind == stat.S_IFREG:
                with contextlib.suppress(PermissionError), open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            elif kind == stat.S_IFLNK:
                content = os.readlink(path)
            found[os.path.relpath(path, top)] = kind, content
    return found


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Names what has come, gone and changed between two snapshots."""
    words = [("left", after.keys() - before.keys()), ("removed", before.keys() - after.keys())]
    words.append(("changed", {path for path in before.keys() & after.keys() if before[path] != after[path]}))
    return [
        f"{word} {', '.join(sorted(os.fsdecode(path) for path in paths)[:3])!a}"
        for word, paths in words
        if paths
    ]


def complaints(
    outcome: Outcome, before: Snapshot | None = None, after: Snapshot | None = None, *, killed: bool = False
) -> list[str]:
    """Lists what is wrong with the end of a command, by what the documentation promises of every command."""
    if outcome.stopped:
        return [outcome.stopped]
    found, lines = [], outcome.err.splitlines()
    if "Traceback (most recent call last)" in outcome.err + outcome.out and "--traceback" not in outcome.argv:
        ignored = [line for line in lines if "Exception ignored" in line]
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Interrupt|Interrupted|Exit)\b", line)]
        found.append(f"traceback: {'; '.join([*ignored, *raised] or lines[-1:])[:400]}")
    elif outcome.code not in (0, 1, 2, 130) and not (killed and outcome.code < 0):
        found.append(f"exit code {outcome.code}: {' '.join(lines[-1:])[:200]}")
    errors = [number for number, line in enumerate(lines) if line.startswith(("transformer-theory: ", NAME))]
    # a model that cannot be measured is one line, and the results of the others stay
    several = outcome.argv[:1] == ["measure"] and bool(
        re.search(r"^report of \d+ network", outcome.out, re.M)
    )
    if outcome.code == 2 and not found and not several:
        if not errors:
            found.append("exit code 2 without a word")
        elif (len(errors) > 1 or errors[-1] < len(lines) - 1) and "--traceback" not in outcome.argv:
            found.append(f"an error of several lines: {lines[errors[0] :]!a:.200}")
    if "--traceback" not in outcome.argv and (bare := re.search(r".{0,60}\[Errno.*", outcome.err)):
        found.append(f"bare system error: {bare[0][:200]}")
    if outcome.code == 2 and before is not None and not several:
        found += [f"exit code 2, but {change}" for change in changes(before, after)]
    return found


@dataclass
class Case:
    """One attempt: ``attack`` does it in a box and returns what is wrong."""

    name: str
    attack: Callable[[Box], Iterable[str]]


@dataclass
class Tally:
    """What one kind of attack has tried, and what failed."""

    kind: str
    seed: int = 0
    made: list[str] = field(default_factory=list)
    tried: int = 0
    failed: int = 0
    seconds: float = 0.0
    failures: list[dict[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def row(self) -> str:
        """Returns the row of the table, followed by the failures."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        head = f"| {self.kind} | {self.tried} | {self.failed} | {self.seconds:.0f} s | {counts} |"
        return "\n".join([head, *(f"  - {each['what']}\n    {each['how']}" for each in self.failures)])


def attempt(
    cases: Iterator[Case],
    kind: str,
    place: Path,
    fixtures: Path,
    *,
    seed: int,
    only: str,
    keep: bool,
    show: bool,
) -> Tally:
    """Runs the cases, each in a box of its own with random numbers of its own, so that one can be repeated
    alone; the tenth of each ten runs the real command.
    """
    tally, started = Tally(kind, seed, header(1).splitlines()), time.monotonic()
    for number, case in enumerate(cases):
        if only not in case.name:
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{number}-", dir=place))
        box = Box(folder, fixtures, random.Random(f"{seed}/{case.name}"), number % 10 == 9)
        try:
            wrong = list(case.attack(box))
        except Exception as error:
            wrong = [f"the attack itself failed: {type(error).__name__}: {error}"]
        finally:
            box.close(keep)
        tally.tried += 1
        tally.failed += bool(wrong)
        for word in box.story:
            if word.startswith("outcome: "):
                tally.counts[word[9:]] = tally.counts.get(word[9:], 0) + 1
        story = "; ".join(line for line in box.story if not line.startswith("outcome: "))
        how = f"{story:.900} [--seed {seed} --only {shlex.quote(case.name)}]".replace("\n", "\\n")
        tally.failures += [{"case": case.name, "what": f"{case.name}: {each}", "how": how} for each in wrong]
        if show:
            print(f"{kind} {case.name}: {'; '.join(wrong) or 'as promised'}", file=sys.stderr, flush=True)
    tally.seconds = time.monotonic() - started
    return tally
