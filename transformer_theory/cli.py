"""The command line: ``transformer-theory`` = ``python -m transformer_theory``.

Exit codes: 0 done; 1 a claim is violated, its control does not fail, or a computation did not converge; 2 the input is wrong (one line says
what was expected, what came, what to do; nothing is written); 130 interrupted.
"""

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .errors import NotConverged, nearest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from .claims import Verdict

NAME = "transformer-theory"
WIDTH = 120  # columns where the output is no terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; never raises for what a user can mend."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parse(argv)
        return options.command(options)
    except SystemExit as leaving:  # --help and --version
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        return _say("interrupted; nothing was written", 130)
    except BrokenPipeError:  # the reader of our output has gone, as in `transformer-theory list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (ValueError, OSError) as error:
        return _fail(argv, error, 2)
    except NotConverged as error:
        return _fail(argv, error, 1)


def _fail(argv: list[str], error: Exception, code: int) -> int:
    if "--traceback" in argv:
        traceback.print_exc()
    return _say(str(error), code)


def _say(message: str, code: int) -> int:
    print(f"{NAME}: {' '.join(message.split())}", file=sys.stderr)
    return code


# ------------------------------------------------------------------------------------------------------------ commands


def _list(options: argparse.Namespace) -> int:
    from rich.table import Table

    from .theories import THEORIES

    table = Table("theory", "question", box=None, padding=(0, 2, 1, 0))
    for names in ("claims", "experiments"):
        table.add_column(names, no_wrap=True)  # names are there to be copied
    for theory in THEORIES:
        claims = "\n".join(claim.id for claim in theory.claims)
        table.add_row(theory.name, theory.question, claims, "\n".join(kind.name for kind in theory.experiments))
    _console().print(table)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from . import data, report
    from .compare import choose, compare
    from .experiment import Result, atomic_directory

    names = None if options.theories is None else [name.strip() for name in options.theories.split(",") if name.strip()]
    with atomic_directory(options.out, overwrite=options.overwrite) as folder:
        chosen = choose(names)
        given = {} if options.steps is None else {"steps": options.steps}
        if options.networks is not None:
            given["networks"] = _networks(options.networks)
        read = data.load(options.data)
        if read.labels is not None and len(read.labels.unique()) < 2:
            only = f"only class {int(read.labels[0])}"
            hint = "add a class, or leave labels out"
            raise ValueError(f"{options.data}: labels must name at least two classes to tell apart, got {only}; {hint}")
        with _progress() as progress:
            compare(read, chosen, seed=options.seed, device=options.device, progress=progress, **given).write_into(folder)
            progress("writing the report")
            result = Result.load(folder)  # what is reported is what is stored
            report.write(result, folder)
    _console().print(report.table(result))
    print(f"report: {options.out / 'report.html'}")
    return 0


def _networks(text: str) -> tuple[str, ...]:
    """The names between the commas, each once; none for ``"none"``."""
    from .training.recipes import RECIPES

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == ("none",):
        return ()
    if not names:
        raise ValueError(f"networks must name at least one, got none; there are: {', '.join(RECIPES)}, or 'none' for the raw tokens only")
    for name in names:
        if name == "none":
            raise ValueError(f"networks must be names or 'none', got both in {text!r}; leave 'none' out")
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, [*RECIPES, 'none'])}")
    return names


def _verify(options: argparse.Namespace) -> int:
    from rich.table import Table
    from rich.text import Text

    from .theories import claims

    chosen = claims(options.claim)
    verdicts = []
    with _progress() as progress:
        for number, claim in enumerate(chosen, 1):
            progress(f"{claim.id} ({number} of {len(chosen)}): {options.seeds} seeds, each with its control")
            verdicts.append(claim.verify(range(options.seeds)))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("claim", no_wrap=True)  # a name to be copied
    for name in ("verdict", "seeds", "95 % interval", "measured", "line", "control", "source"):
        table.add_column(name, overflow="fold")
    failed = False
    for verdict in verdicts:
        bad = verdict.verdict == "violated" or not verdict.control_fails
        failed |= bad
        counts = [e.verdict for e in verdict.evidence]
        low, high = verdict.interval
        values = [e.value for e in verdict.evidence]
        worst = max if verdict.evidence[0].op == "<=" else min
        table.add_row(
            verdict.claim.id,
            Text(verdict.verdict, style="red" if verdict.verdict == "violated" else ""),
            f"{counts.count('consistent')}/{len(counts)}",
            f"[{low:.2f}, {high:.2f}]".replace("[", r"\["),
            f"{worst(values):.3g}",
            f"{verdict.evidence[0].op} {verdict.evidence[0].bound:.3g}",
            _control(verdict),
            verdict.claim.source.label,
        )
    _console().print(table)
    return int(failed)


def _control(verdict: "Verdict") -> "Text":
    from dataclasses import replace

    from rich.text import Text

    if verdict.control_fails:
        return Text("fails as it must")
    # a control drops an assumption, so it is judged by its numbers alone
    passes = any(replace(evidence, in_assumptions=True).verdict == "consistent" for evidence in verdict.controls)
    return Text("PASSES: no power", style="red") if passes else Text("inconclusive: power unknown", style="red")


def _run(options: argparse.Namespace) -> int:
    from dataclasses import fields, replace

    from .experiment import Result, atomic_directory
    from .plotting import svg
    from .theories import experiment

    kind = experiment(options.experiment)
    given = {field.name: getattr(options, field.name) for field in fields(kind) if hasattr(options, field.name)}
    chosen = replace(kind.quick() if options.quick else kind(), **given)
    with atomic_directory(options.out, overwrite=options.overwrite) as folder, _progress() as progress:
        progress(f"{kind.name}: measuring")
        chosen.run().write_into(folder)
        progress(f"{kind.name}: drawing")
        result = Result.load(folder)
        (folder / "figure.svg").write_text(svg(chosen.draw(result)), encoding="utf-8")
    _console().print(f"{kind.name}: {len(result.table)} rows in {result.provenance['seconds']} s", highlight=False)
    print(f"figure: {options.out / 'figure.svg'}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from . import report
    from .experiment import Result
    from .plotting import svg
    from .theories import experiment

    result = Result.load(options.directory)
    if options.out is not None and options.out.exists() and not options.overwrite:
        raise FileExistsError(f"{options.out} exists already; choose another --out, or pass --overwrite to replace it")
    if result.name != "compare":
        kind = experiment(result.name)
        params: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in result.params.items()}
        written = _write(options.out or options.directory / "figure.svg", svg(kind(**params).draw(result)))
    elif options.out is not None:
        written = _write(options.out, report.html(result))
    else:
        written = report.write(result, options.directory)
    print(f"report: {written}")
    return 0


def _write(path: Path, text: str) -> Path:
    """The whole file or none of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True) if draft.parent.is_dir() else None
        raise PermissionError(f"cannot write to {path} ({error.strerror}); choose another --out") from error
    return path


def _cite(options: argparse.Namespace) -> int:
    from .theories import cite

    print(cite(options.name), end="")
    return 0


# ------------------------------------------------------------------------------------------------------------- options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser, commands = _parsers(argv)
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        raise ValueError(f"unknown command {argv[0]!r}{nearest(argv[0], commands)}")
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        known = [flag for action in commands[argv[0]]._actions for flag in action.option_strings] if argv[0] in commands else []
        hint = nearest(unknown[0], known) if unknown[0].startswith("-") else f"; see {NAME} {argv[0]} --help"
        raise ValueError(f"unknown {'option' if unknown[0].startswith('-') else 'argument'} {unknown[0]!r}{hint}")
    return options


def _parsers(argv: list[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser and its commands; ``run EXPERIMENT`` has the fields of that experiment as options."""
    parser = _Parser(prog=NAME, description="Theories of transformers, side by side, on the same data.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    adding = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands: dict[str, argparse.ArgumentParser] = {}

    def command(name: str, function: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        made = adding.add_parser(name, help=help, description=help, allow_abbrev=False)
        made.set_defaults(command=function)
        made.add_argument("--traceback", action="store_true", help="show where an error comes from")
        commands[name] = made
        return made

    def stored(made: argparse.ArgumentParser) -> None:
        made.add_argument("--out", type=_path, required=True, metavar="DIR", help="folder for the result; refused if it exists")
        made.add_argument("--overwrite", action="store_true", help="replace the result that DIR holds")

    command("list", _list, "theories with their claims and experiments")

    made = command("compare", _compare, "every theory on the same data and the same trained networks")
    made.add_argument("--data", required=True, metavar="NAME|PATH", help="digits, or the path of an .npz with an array 'tokens'")
    stored(made)
    made.add_argument("--theories", metavar="A,B", help="some theories only (default: all)")
    made.add_argument("--seed", type=_seed, default=0, help="of the split, the networks and the theories (default: 0)")
    steps = made.add_argument("--steps", type=_count, help="training steps of each network")
    networks = made.add_argument("--networks", metavar="A,B", help="some networks only, or none for the raw tokens alone (default: all)")
    made.add_argument("--device", default="cpu", help="where the networks train (default: cpu)")
    if argv[:1] == ["compare"]:
        _tell_about_networks(steps, networks)

    help = "checks claims, each with a control that must fail; exit code 1 if a claim is violated or a control does not fail"
    made = command("verify", _verify, help)
    made.add_argument("claim", metavar="CLAIM|THEORY|all", help="a claim, all claims of a theory, or all there are (see list)")
    made.add_argument("--seeds", type=_count, default=5, help="number of seeds (default: 5)")

    made = command("run", _run, "runs one experiment and draws its figure")
    made.add_argument("experiment", metavar="EXPERIMENT", help="its name (see list); then its own parameters as options")
    stored(made)
    made.add_argument("--quick", action="store_true", help="a setting of seconds; options given still count")
    if argv[:1] == ["run"]:
        _experiment_options(made, argv[1:])

    made = command("report", _report, "writes the report of a stored result again")
    made.add_argument("directory", type=_path, metavar="DIR", help="a folder that compare or run has written")
    made.add_argument("--out", type=_path, metavar="FILE", help="write the page there instead of into DIR")
    made.add_argument("--overwrite", action="store_true", help="replace FILE")

    made = command("cite", _cite, "BibTeX of a theory, a claim, or a key of the bibliography")
    made.add_argument("name", metavar="NAME")
    return parser, commands


def _tell_about_networks(steps: argparse.Action, networks: argparse.Action) -> None:
    """Help that has to look into the library, so only ``compare`` pays for it."""
    import inspect

    from .compare import compare
    from .training.recipes import RECIPES

    names = ", ".join(f"'{name}'" for name in RECIPES)
    networks.help = f"some networks only, of {names}; or none: the raw tokens alone, nothing is trained (default: all)"
    if default := inspect.signature(compare).parameters.get("steps"):
        steps.help = f"{steps.help} (default: {default.default})"


def _experiment_options(made: argparse.ArgumentParser, argv: list[str]) -> None:
    """Adds the fields of the experiment that argv names; a misspelt name is refused before anything that may be missing or unknown.

    Raises:
        ValueError: the only word that can be meant as the experiment names none.
    """
    from .options import add_fields
    from .theories import THEORIES, experiment

    kinds = {kind.name: kind for theory in THEORIES for kind in theory.experiments}
    if named := next((kinds[word] for word in argv if word in kinds), None):
        add_fields(made.add_argument_group(f"parameters of {named.name}"), named)
        return
    flags = ("--quick", "--overwrite", "--traceback")  # every other option takes the word that follows it
    for before, word in zip(["--quick", *argv], argv):
        if not word.startswith("-") and (before in flags or not before.startswith("-")):
            experiment(word)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a path, got nothing")
    return Path(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number in [0, 2**32), got {text!r}")
    return int(text)


# ------------------------------------------------------------------------------------------------------------ terminal


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A function that shows one line of progress: a moving line with the time on a terminal, a line each in a log (both on stderr)."""
    from rich.console import Console

    started = time.perf_counter()
    if not sys.stderr.isatty():
        yield lambda text: print(f"{time.perf_counter() - started:6.1f} s  {text}", file=sys.stderr, flush=True)
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)
