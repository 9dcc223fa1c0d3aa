"""The options of each command, and the messages for wrong ones."""

import argparse
import difflib
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..core.errors import nearest, nearest_first
from . import catalogue, claims, commands, report, training
from .terminal import NAME

EXIT_CODES = (
    "exit codes: 0 done; 1 a claim is violated, its control does not fail, or a computation did not converge; 2 the input is wrong, and "
    "nothing is written; 130 interrupted"
)

VERIFY_JSON = (
    "the JSON document: format (2); claims, a list, each with id, statement (LaTeX), measures, source {key, locator, status}, assumptions, "
    "corrects, control_description, verdict, outcome, consistent, decided, share, interval (95 %), worst, threshold, op, median, "
    "control {verdict, value}, and seeds, a list with the evidence of check and control; provenance. Numbers that are not finite are null."
)

REPORT_MORE = (
    "Runs that differ only in their seed become one line, mean and interval. Without an output, one DIR gets its page "
    "(report.html) or figure (figure.svg) again. All outputs are written or, if a result cannot be read or a file exists, none. "
    "--overwrite replaces files of these names only; other files of a folder stay."
)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.needs: dict[str, str] = {}  # options that need another option, and which

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def parse(argv: list[str]) -> argparse.Namespace:
    """The options of one command, with the function that runs it as ``command`` and the option of each field as ``flags``.

    Raises:
        ValueError: an unknown command or option, a missing one, or an impossible value.
        SystemExit: help or version was asked for and has been printed.
    """
    parser, made = _parsers(argv)
    if argv and not argv[0].startswith("-") and argv[0] not in made:
        raise ValueError(f"unknown command {argv[0]!r}{nearest(argv[0], made)}")
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    chosen = made.get(argv[0], parser)
    if not {"-h", "--help"} & set(argv):
        _refuse_unknown(chosen, argv)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ValueError(f"unknown {'option' if unknown[0].startswith('-') else 'argument'} {unknown[0]!r}; see {chosen.prog} --help")
    options.flags = {action.dest: action.option_strings[-1] for action in chosen._actions if action.option_strings}
    return options


def _refuse_unknown(parser: _Parser, argv: list[str]) -> None:
    """Names the first unknown option and the likely ones, before argparse reports missing ones.

    Raises:
        ValueError: there is one.
    """
    known = {flag: action.help for action in parser._actions for flag in action.option_strings}
    unknown = next((word for word in argv if word.startswith("--") and word.partition("=")[0] not in known), None)
    if unknown is None:
        return
    if where := parser.needs.get(unknown.partition("=")[0]):
        raise ValueError(f"option {unknown.partition('=')[0]!r} goes with {where}; add that, or leave the option out")
    # compared without the dashes, which all of them share
    bare = unknown.partition("=")[0].removeprefix("--")
    flags = [flag for flag, help in known.items() if flag.startswith("--") and help != argparse.SUPPRESS]
    names = [flag.removeprefix("--") for flag in flags if flag != "--help"]
    if close := difflib.get_close_matches(bare, names, n=1, cutoff=0.5):
        raise ValueError(f"unknown option {unknown!r}; did you mean '--{close[0]}'?")
    ordered = ", ".join(f"--{name}" for name in nearest_first(bare, names))
    raise ValueError(f"unknown option {unknown!r}; there are, nearest first: {ordered}")


def _parsers(argv: list[str]) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser and its commands; ``run EXPERIMENT`` has the settings of that experiment as options."""
    parser = _Parser(
        prog=NAME,
        description="Theories of transformers: what each predicts, and what happens.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    adding = parser.add_subparsers(title="commands", metavar="COMMAND")
    parsers: dict[str, _Parser] = {}

    def command(name: str, function: Callable[[argparse.Namespace], int], help: str) -> _Parser:
        made = adding.add_parser(name, help=help, description=help, allow_abbrev=False)
        made.set_defaults(command=function)
        made.add_argument("--traceback", action="store_true", help="show the traceback of an error")
        parsers[name] = made
        return made

    def stored(made: argparse.ArgumentParser) -> None:
        made.add_argument("--out", type=_path, required=True, metavar="DIR", help="folder for the result; refused if it exists")
        made.add_argument("--overwrite", action="store_true", help="replace the result that DIR holds")

    def sized(made: argparse.ArgumentParser) -> None:
        text = "side in pixels to which the images of a folder are cropped and scaled (default: they must be square and of one size)"
        made.add_argument("--size", type=_count, metavar="N", help=text)

    def parallel(made: argparse.ArgumentParser, processes: str) -> None:
        text = f"{processes}, or the address of a dask scheduler, tcp://HOST:PORT (default: 1)"
        made.add_argument("--workers", type=_workers, default=1, metavar="N|ADDRESS", help=text)

    made = command("list", catalogue.list_theories, "theories with their claims and experiments, or the description of one of them")
    made.add_argument(
        "name", nargs="?", metavar="THEORY|CLAIM|EXPERIMENT", help="its statement, assumptions and measurements (default: all names)"
    )

    made = command("compare", commands.compare_theories, "every theory on the same data and the same trained networks")
    text = "digits, text, cifar10 or other images that train takes, or the path of an .npz with an array 'tokens', of a .txt or of images"
    made.add_argument("--data", required=True, metavar="NAME|PATH", help=text)
    sized(made)
    stored(made)
    made.add_argument("--theories", metavar="A,B", help="some theories only (default: all)")
    made.add_argument(
        "--seeds", type=_seeds, metavar="N|A,B", help="of the split, the networks and the theories: a number or a list (default: 1)"
    )
    steps = made.add_argument("--steps", type=_count, help="training steps of each network")
    networks = made.add_argument("--networks", metavar="A,B", help="some networks only, or none for the raw tokens alone (default: all)")
    text = "networks stored by train, folders of runs or their .safetensors, in place of small ones; --data then names images"
    made.add_argument("--model", nargs="+", type=_path, default=[], dest="models", metavar="RUN", help=text)
    text = "seeds that each claim is checked on, a number or a list; claims draw their own instances, so 0 saves their time (default: 3)"
    made.add_argument("--claim-seeds", type=_seeds_or_none, metavar="N|A,B", help=text)
    made.add_argument("--device", default="cpu", help="where the networks are trained and measured (default: cpu)")
    parallel(made, "processes that check claims in parallel")
    if argv[:1] == ["compare"]:
        _describe_networks(steps, networks)

    help = "checks claims, each with a control that must fail; exit code 1 if a claim is violated or a control does not fail"
    made = command("verify", claims.verify_claims, help)
    made.epilog = VERIFY_JSON
    text = (
        "claims, or groups of them: THEORY, all claims of a theory; quick, those that take about a second per seed; training, those "
        "that train a network; all (see list)"
    )
    made.add_argument("claims", nargs="+", metavar="CLAIM|THEORY|all", help=text)
    text = "number or list of seeds, each of which draws an instance (default: 5)"
    made.add_argument("--seeds", type=_seeds, default=range(5), metavar="N|A,B", help=text)
    parallel(made, "processes that check claims in parallel")
    made.add_argument("--json", action="store_true", help="print one JSON document in place of the table")
    text = "store the verification in this folder too; refused if it exists"
    made.add_argument("--out", type=_path, metavar="DIR", help=text)
    made.add_argument("--overwrite", action="store_true", help="replace the result that DIR holds")

    made = command("run", commands.run_experiment, "runs one experiment and plots its figure")
    made.add_argument("experiment", metavar="EXPERIMENT", help="its name (see list); then its settings as options")
    stored(made)
    made.add_argument("--quick", action="store_true", help="settings that take seconds; options given still count")
    parallel(made, "processes for a sweep over settings")
    if argv[:1] == ["run"]:
        _experiment_options(made, argv[1:])

    made = command("train", training.train_network, "trains a network on images while every theory measures it")
    made.add_argument("network", metavar="NETWORK", help="crate, crate-paper, crate-exact, crate-alpha, tost or vit")
    images = "cifar10, cifar100, digits, shapes, or a path: CIFAR's archive or files, or a folder of images with one folder per class"
    made.add_argument("--data", required=True, metavar="NAME|PATH", help=images)
    sized(made)
    made.add_argument("--out", type=_path, metavar="DIR", help="folder for the network and its page (default: runs/NETWORK)")
    made.add_argument("--overwrite", action="store_true", help="remove the training that DIR holds, and begin again")
    made.add_argument("--resume", action="store_true", help="continue the training that DIR holds, under the same options")
    if argv[:1] == ["train"]:
        _training_options(made, argv[1:])

    made = command("evaluate", training.evaluate_network, "test accuracy of a trained network, class by class")
    made.add_argument("network", type=_path, metavar="RUN", help="the folder of a training, or its best.safetensors")
    made.add_argument("--data", required=True, metavar="NAME|PATH", help=images)
    sized(made)

    made = command("report", report.write_report, "tables, figures, references and a page from stored results, also of several")
    made.epilog = REPORT_MORE
    text = "folders that compare, verify, run or train has written, or folders of such folders"
    made.add_argument("directories", nargs="+", type=_path, metavar="DIR", help=text)
    for name, what, where in (
        ("html", "one page of all results", "FILE"),
        ("latex", "tables to \\input, macros, figures, references, an appendix, and example.tex with all of them", "DIR"),
        ("markdown", "the same tables for notes", "FILE"),
        ("bibtex", "all sources, and this library", "FILE"),
        ("figures", "the figures alone, as PDF and SVG", "DIR"),
    ):
        made.add_argument(f"--{name}", type=_path, metavar=where, help=what)
    made.add_argument("--overwrite", action="store_true", help="replace files that exist")

    made = command("cite", claims.cite_sources, "BibTeX of a theory, a claim or a result, with that of this library last")
    text = "a theory, a claim, a key of the bibliography, the folder of a stored result, or software for the library alone"
    made.add_argument("name", metavar="THEORY|CLAIM|KEY|DIR|software", help=text)
    return parser, parsers


def _describe_networks(steps: argparse.Action, networks: argparse.Action) -> None:
    """Help that needs the library, imported for ``compare`` only."""
    import inspect

    from ..compare import compare
    from ..training.recipes import RECIPES

    names = ", ".join(f"'{name}'" for name in RECIPES)
    networks.help = f"small networks to train, of {names}; or none (default: all, or none with --model)"
    if default := inspect.signature(compare).parameters.get("steps"):
        steps.help = f"{steps.help} (default: {default.default})"


def _experiment_options(made: argparse.ArgumentParser, argv: list[str]) -> None:
    """Adds the settings of the experiment that argv names; a misspelt name is refused before missing or unknown options.

    Raises:
        ValueError: the only word that can be the experiment names none.
    """
    from ..theories import experiment, list_theories
    from .catalogue import summary
    from .fields import add_fields

    kinds = {kind.name: kind for theory in list_theories() for kind in theory.experiments}
    if named := next((kinds[word] for word in argv if word in kinds), None):
        made.description = summary(named).replace("%", "%%")
        add_fields(made.add_argument_group(f"settings of {named.name}"), named)
        return
    flags = ("--quick", "--overwrite", "--traceback")  # every other option takes the word that follows it
    for before, word in zip(["--quick", *argv], argv):
        if not word.startswith("-") and (before in flags or not before.startswith("-")):
            experiment(word)


def _training_options(made: _Parser, argv: list[str]) -> None:
    """Options of ``train``, which need the library, imported for it only.

    Raises:
        ValueError: an unknown network, recipe or objective.
    """
    from ..theories import objectives
    from ..training.networks import NETWORKS
    from ..training.recipes import IMAGE_RECIPES, SMALL, image_recipe
    from .fields import add_fields

    kinds = objectives()

    def named(option: str, usual: str) -> str:
        """The word after an option, in either form."""
        following = [word.partition("=")[2] for word in argv if word.startswith(f"{option}=")]
        following += [after for word, after in pairwise(argv) if word == option]
        return following[-1] if following else usual

    network = argv[0] if argv and not argv[0].startswith("-") else "crate"
    if network not in NETWORKS:
        raise ValueError(f"unknown network {network!r}{nearest(network, NETWORKS)}")
    objective = named("--objective", "cross-entropy")
    if objective not in kinds:
        raise ValueError(f"unknown objective {objective!r}{nearest(objective, kinds)}")
    shown = named("--recipe", "digits" if named("--data", "") == "digits" else "minutes")
    settings = image_recipe(network, name=shown)
    chosen = f"digits for images of at most {SMALL} pixels, else minutes"
    names = ", ".join(IMAGE_RECIPES)
    made.add_argument("--recipe", choices=IMAGE_RECIPES, metavar="NAME", help=f"of the values below: {names} (default: {chosen})")
    made.add_argument("--objective", choices=kinds, help="what the network is trained for (default: cross-entropy)")
    made.add_argument("--theories", metavar="A,B", help="whose metrics are computed at each interval, or none (default: all)")
    text = f"Defaults here and below are those of recipe {shown} for {network}; of another: {made.prog} NETWORK --recipe NAME --help"
    add_fields(made.add_argument_group("settings", text), settings, without=("network", "augmentation", "recipe"))
    add_fields(made.add_argument_group("augmentation of training images"), settings.augmentation)
    add_fields(made.add_argument_group(f"settings of {objective}"), kinds[objective])
    having: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        for field in fields(kind):  # pyright: ignore[reportArgumentType]
            having.setdefault(f"--{field.name.replace('_', '-')}", []).append(name)
    made.needs = {flag: f"--objective {' or '.join(names)}" for flag, names in having.items()}
    where = made.add_argument_group("hardware", "several processes: torchrun --nproc-per-node N -m transformer_theory train ...")
    where.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="(default: the best there is)")
    fast = "of products; weights are float32 (default: bfloat16 where the device is faster in it)"
    where.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto", help=fast)
    spread = "of several processes: all weights in each, or a share (default: ddp)"
    where.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help=spread)
    where.add_argument("--compile", action="store_true", help="compile the network first, which takes a minute")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a path, got nothing")
    return Path(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def _workers(text: str) -> int | str:
    if "://" in text:
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, or the address of a dask scheduler, got {text!r}")
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    """``"3"`` is the seeds 0, 1, 2; ``"0,4"`` and ``"7,"`` are lists."""
    if "," not in text:
        return tuple(range(_count(text)))
    return tuple(dict.fromkeys(_seed(part.strip()) for part in text.split(",") if part.strip())) or (_seed(text),)


def _seeds_or_none(text: str) -> tuple[int, ...]:
    return () if text == "0" else _seeds(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number in [0, 2**32), got {text!r}")
    return int(text)
