"""The wheel, installed away from the repository with every interpreter: ``make wheels``, or ``python
tests/wheels.py [PYTHON ...]``.

Builds the wheel once. For each interpreter a new environment in a temporary folder gets the wheel, and there
a command, an import and a comparison with its page run from another folder. If uv is installed, it installs
the wheel once more with the first interpreter. This is no part of ``make test``, since it downloads all
dependencies. The exit code is 1 if an interpreter fails, or if there is none.

    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make wheels # torch for CPUs, a tenth of the
    download python tests/wheels.py --extras notebook ~/.pyenv/versions/3.12.1/bin/python
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST = (3, 11), (3, 13)  # minor versions
VERSION = "import sys; print(*sys.version_info[:3])"
CHECK = """
import pathlib, sys
import transformer_theory as tt

here = pathlib.Path(tt.__file__)
assert pathlib.Path(sys.prefix) in here.parents, f"{here} is not that of the environment"
assert (here.parent / "py.typed").is_file() and (here.parent / "core" / "references.bib").is_file()
result = tt.compare(tt.data.load("digits")[:100], ["collapse"], networks=[], seeds=1, claim_seeds=0)
assert len(result.to_pandas()) and result.plot()
print(result.report())
"""


def interpreters() -> list[Path]:
    """One interpreter for each supported minor version: first those of the search path, then those of pyenv,
    the newest patch first.
    """
    names = [f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    found = [Path(path) for name in ["python3", *names] if (path := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(
        pyenv.glob("*/bin/python"),
        key=lambda path: [int(part) for part in path.parts[-3].split(".") if part.isdigit()],
    )[::-1]
    chosen: dict[tuple[int, ...], Path] = {}
    for path in found:
        done = subprocess.run([path, "-c", VERSION], capture_output=True, text=True, check=False)
        version = tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else ()
        if OLDEST <= version[:2] <= NEWEST:
            chosen.setdefault(version[:2], path)
    return [chosen[version] for version in sorted(chosen)]


def run(*command: str | Path, folder: Path) -> str:
    """The output of a command in a folder, without the settings that would let it find the repository;
    SystemExit with its last lines.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    settings = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=settings, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise SystemExit(f"{' '.join(map(str, command))[:200]} ended with {done.returncode}:\n{lines}")
    return done.stdout.strip()


def installed(python: Path, wheel: Path, folder: Path, *, extras: str, uv: str | None = None) -> str:
    """Installs the wheel into a new environment below the folder, checks it there, and returns a line about
    it.
    """
    environment, elsewhere = folder / "environment", folder / "elsewhere"
    elsewhere.mkdir(parents=True)
    started = time.perf_counter()
    package = f"{wheel}[{extras}]" if extras else str(wheel)
    constraints = ("-c", ROOT / "constraints.txt")
    if uv:
        run(uv, "venv", "--quiet", "--python", python, environment, folder=elsewhere)
        run(
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            environment / "bin" / "python",
            *constraints,
            package,
            folder=elsewhere,
        )
    else:
        run(python, "-m", "venv", environment, folder=elsewhere)
        run(
            environment / "bin" / "pip",
            "install",
            "--quiet",
            "--no-compile",
            *constraints,
            package,
            folder=elsewhere,
        )
    seconds = time.perf_counter() - started
    size = sum(
        path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink()
    )
    started = time.perf_counter()
    command = environment / "bin" / "transformer-theory"
    for words in (["cite", "crate"], ["list", "crate"]):
        assert run(command, *words, folder=elsewhere)
    page = run(environment / "bin" / "python", "-c", CHECK, folder=elsewhere).splitlines()[-1]
    assert (elsewhere / page).is_file()
    checked = time.perf_counter() - started
    version = run(environment / "bin" / "python", "--version", folder=elsewhere)
    tool = Path(uv).name if uv else "pip"
    return (
        f"{version:14} {tool:4} installed in {seconds:5.0f} s, {size / 1e9:.2f} GB, command, import and page "
        f"in {checked:4.0f} s"
    )


def main() -> int:
    """Builds, installs and checks; returns the exit code."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "python", nargs="*", type=Path, help="interpreters (default: every 3.11 to 3.13 that is found)"
    )
    options.add_argument("--extras", default="", help="extras of the package, e.g. notebook")
    options.add_argument("--uv", action="store_true", help="install with uv only")
    given = options.parse_args()
    missing = [path for path in given.python if not shutil.which(path)]
    if missing:
        raise SystemExit(f"no such interpreter: {missing[0]}")
    chosen = [Path(str(shutil.which(path))).absolute() for path in given.python] or interpreters()
    if not chosen:
        raise SystemExit(
            "no Python 3.11 to 3.13 was found; name one: python tests/wheels.py /path/to/python3.12"
        )
    uv, failed = shutil.which("uv"), 0
    if given.uv and uv is None:
        raise SystemExit("uv was not found; install it with pip install uv, or leave out --uv")
    jobs: list[tuple[Path, str | None]] = [] if given.uv else [(python, None) for python in chosen]
    jobs += [(python, uv) for python in (chosen if given.uv else chosen[:1]) if uv]
    with tempfile.TemporaryDirectory(prefix="wheels-") as name:
        folder = Path(name)
        # a copy: setuptools would take up old files from the repository's build folder
        source = folder / "source"
        shutil.copytree(
            ROOT / "transformer_theory",
            source / "transformer_theory",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for file in ("pyproject.toml", "LICENSE"):
            shutil.copy(ROOT / file, source)
        run(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            folder,
            source,
            folder=folder,
        )
        (wheel,) = folder.glob("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        for number, (python, tool) in enumerate(jobs):
            place = folder / str(number)
            try:
                print(installed(python, wheel, place, extras=given.extras, uv=tool), flush=True)
            except (SystemExit, AssertionError) as error:
                failed += 1
                print(f"{python}{' with uv' if tool else ''}: {error}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
