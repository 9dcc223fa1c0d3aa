"""The parsers of the commands, and the error messages for invalid options."""

import argparse
import difflib
import math
from dataclasses import fields
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..core.errors import nearest, nearest_first
from .terminal import NAME
from .texts import EXIT_CODES, MEASURE_MORE, REPORT_MORE, VERIFY_JSON


class _Parser(argparse.ArgumentParser):
    """A parser that raises ValueError instead of printing its usage and exiting."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.needs: dict[str, str] = {}  # unknown option -> option without which it is not available

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the options of one command.

    Returns:
        The options; also ``command``, the function that runs the command, and ``flags``, a mapping from
        attribute names to options.
    Raises:
        ValueError: a command or option is unknown or missing, or a value is invalid.
        SystemExit: help or the version was printed.
    """
    parser, commands = _parsers(argv)
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        raise ValueError(f"unknown command {argv[0]!r}{nearest(argv[0], commands)}")
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    subparser = commands.get(argv[0], parser)
    if not {"-h", "--help"} & set(argv):
        _refuse_unknown(subparser, argv)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ValueError(
            f"unknown {'option' if unknown[0].startswith('-') else 'argument'} {unknown[0]!r}; see "
            f"{subparser.prog} --help"
        )
    options.flags = {
        action.dest: action.option_strings[-1] for action in subparser._actions if action.option_strings
    }
    return options


def _refuse_unknown(parser: _Parser, argv: list[str]) -> None:
    """Refuses the first unknown option and suggests similar ones, before argparse reports missing options.

    Raises:
        ValueError: an option is unknown.
    """
    known = {flag: action.help for action in parser._actions for flag in action.option_strings}
    unknown = next(
        (word for word in argv if word.startswith("--") and word.partition("=")[0] not in known), None
    )
    if unknown is None:
        return
    if required := parser.needs.get(unknown.partition("=")[0]):
        raise ValueError(
            f"option {unknown.partition('=')[0]!r} requires {required}; add that, or leave the option out"
        )
    # Compare without the leading dashes: all options share them, so they would raise every similarity.
    bare = unknown.partition("=")[0].removeprefix("--")
    flags = [flag for flag, help in known.items() if flag.startswith("--") and help != argparse.SUPPRESS]
    names = [flag.removeprefix("--") for flag in flags if flag != "--help"]
    if close := difflib.get_close_matches(bare, names, n=1, cutoff=0.5):
        raise ValueError(f"unknown option {unknown!r}; did you mean '--{close[0]}'?")
    ordered = ", ".join(f"--{name}" for name in nearest_first(bare, names))
    raise ValueError(f"unknown option {unknown!r}; the options are, most similar first: {ordered}")


def _parsers(argv: list[str]) -> tuple[_Parser, dict[str, _Parser]]:
    """Returns the parser and the parsers of its commands.

    Options that need a slow import are added only for the command that ``argv`` names: ``train`` has the
    settings of a network, and ``run EXPERIMENT`` those of the experiment.
    """
    parser = _Parser(
        prog=NAME,
        description="Theories of transformers: their predictions, and measurements that test them.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    parsers: dict[str, _Parser] = {}

    def command(name: str, function: str, help: str, *, former: str = "") -> _Parser:
        """Adds a command.

        Args:
            name: name of the command.
            function: module and name of the function that runs it; the module is imported then.
            help: what it does.
            former: its name before this release, which still works.
        """
        subparser = subparsers.add_parser(
            name, help=help, description=help, allow_abbrev=False, aliases=[former] if former else []
        )
        subparser.set_defaults(command=partial(_run, function))
        subparser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
        parsers.update({known: subparser for known in (name, former) if known})
        return subparser

    def add_out(subparser: argparse.ArgumentParser, *, required: bool = True) -> None:
        text = "folder for the result; it must not exist, except with --overwrite"
        text += "" if required else " (default: the result is only printed)"
        subparser.add_argument("--out", type=_path, required=required, metavar="DIR", help=text)
        subparser.add_argument("--overwrite", action="store_true", help="replace the result in DIR")

    def add_size(subparser: argparse.ArgumentParser) -> None:
        text = (
            "side in pixels to which images from a folder are cropped and scaled (default: no scaling; the "
            "images must be square and of one size)"
        )
        subparser.add_argument("--size", type=_count, metavar="N", help=text)

    def add_workers(subparser: argparse.ArgumentParser, processes: str, default: int | None = 1) -> None:
        text = (
            f"{processes}, or the address of a dask scheduler, tcp://HOST:PORT (default: "
            f"{default or 'one per core'})"
        )
        subparser.add_argument("--workers", type=_workers, default=default, metavar="N|ADDRESS", help=text)

    subparser = command(
        "list",
        "catalogue.list_theories",
        "list all theories with their claims and experiments, or describe one of them",
    )
    subparser.add_argument(
        "name",
        nargs="?",
        metavar="THEORY|CLAIM|EXPERIMENT",
        help="name to describe (default: list all names)",
    )

    subparser = command(
        "compare",
        "commands.compare_theories",
        "evaluate every theory on the same data and in the same trained networks",
    )
    text = (
        "digits, text, or a data set of images as in train; or a path: an .npz file with an array "
        "'tokens', a .txt file, a folder of images, or graphs (a .graphml or .edgelist file, or a folder)"
    )
    subparser.add_argument("--data", required=True, metavar="NAME|PATH", help=text)
    add_size(subparser)
    add_out(subparser)
    subparser.add_argument("--theories", metavar="A,B", help="theories to evaluate (default: all)")
    subparser.add_argument(
        "--seeds",
        type=_seeds,
        metavar="N|A,B",
        help="number or list of seeds of the networks and the theories' models (default: 3)",
    )
    steps = subparser.add_argument("--steps", type=_count, help="training steps of each small network")
    networks = subparser.add_argument(
        "--networks", metavar="A,B", help="small networks to train (default: all)"
    )
    text = (
        "networks that replace the small networks: folders of runs of train or their .safetensors files, for "
        "which --data must be a data set of images; or what measure takes: a folder of transformers, a name "
        "in the local cache of the hub, or FILE.py:FUNCTION, for images or, if they take ids, a .txt file"
    )
    subparser.add_argument(
        "--model", nargs="+", type=_path, default=[], dest="models", metavar="RUN|MODEL", help=text
    )
    text = "minutes for each --model that train has not stored (default: 10)"
    subparser.add_argument("--minutes", type=_positive, metavar="M", help=text)
    text = (
        "number or list of seeds of each quick claim; claims do not depend on --data, so 0 skips them to "
        "save time (default: 3)"
    )
    subparser.add_argument("--claim-seeds", type=_seeds_or_none, metavar="N|A,B", help=text)
    subparser.add_argument(
        "--device", default="cpu", help="device that trains and measures the networks (default: cpu)"
    )
    add_workers(
        subparser, "number of processes that train networks, measure and check claims in parallel", None
    )
    if argv[:1] == ["compare"]:
        _describe_networks(steps, networks)

    subparser = command(
        "reach",
        "reach.reach_of_theories",
        "measure how far theories extend when their assumptions are relaxed one by one",
    )
    text = "theories to measure, or single rungs as THEORY/RUNG (default: all theories that have a ladder)"
    subparser.add_argument("theories", nargs="*", metavar="THEORY", help=text)
    subparser.add_argument(
        "--seeds", type=_seeds, metavar="N|A,B", help="number or list of seeds of each rung (default: 5)"
    )
    text = "folder for the cells and the result; the cells that it holds already are not measured again"
    subparser.add_argument("--out", type=_path, required=True, metavar="DIR", help=text)
    subparser.add_argument("--overwrite", action="store_true", help="measure all cells again")
    subparser.add_argument(
        "--quick",
        action="store_true",
        help="two seeds, up to the column 'full block'; other options take precedence",
    )
    subparser.add_argument(
        "--until",
        metavar="COLUMN",
        help="last column to measure, such as 'full block' (default: all columns)",
    )
    text = (
        "data for the rungs that need some: images (cifar10, a path) and a text (a .txt file); without them "
        "these rungs say what they need"
    )
    subparser.add_argument("--data", nargs="+", default=[], metavar="NAME|PATH", help=text)
    text = (
        "networks that are measured on --data: folders of runs of train or their .safetensors files; or what "
        "measure takes: a folder of transformers, a name in the local cache of the hub, or FILE.py:FUNCTION"
    )
    subparser.add_argument(
        "--model", nargs="+", type=_path, default=[], dest="models", metavar="RUN|MODEL", help=text
    )
    text = "minutes for each --model that train has not stored (default: 10)"
    subparser.add_argument("--minutes", type=_positive, metavar="M", help=text)
    add_workers(subparser, "number of processes that measure cells in parallel", None)

    subparser = command(
        "measure",
        "commands.measure_networks",
        "measure your own model, or several, with every theory, and write a page about it",
        former="probe",
    )
    subparser.epilog = MEASURE_MORE
    text = (
        "folder of a model of transformers, its .safetensors file beside config.json, the folder of a "
        "training of this library, a name in the local cache of the hub such as "
        "google-bert/bert-base-uncased (NAME@REVISION), or FILE.py:FUNCTION or module:function"
    )
    subparser.add_argument("models", metavar="MODEL", nargs="+", help=text)
    text = (
        "images for a model that takes images: a data set as in train, or a folder of images; the test "
        "images are used"
    )
    subparser.add_argument("--data", metavar="NAME|PATH", help=text)
    text = (
        "side in pixels to which the images are scaled, if the model accepts it (default: the side in the "
        "configuration of the model for images in a folder)"
    )
    subparser.add_argument("--size", type=_count, metavar="N", help=text)
    text = (
        "a text for the metrics, read with the model's tokenizer in windows of whole sentences; a .tsv file "
        "with lines of a label, a tab and a text; or ids in a .npy file, [n] or [n, seq] (default: random "
        "ids)"
    )
    subparser.add_argument("--text", type=_path, metavar="FILE", help=text)
    text = (
        "labels, one integer or word per line: of the lines of --text, each of which is then a sequence, of "
        "the images of a folder --data without subfolders, by name, or of the inputs of FUNCTION"
    )
    subparser.add_argument("--labels", type=_path, metavar="FILE", help=text)
    text = (
        "a second network in one of the forms of MODEL, such as another checkpoint: it is measured on the "
        "same inputs, and the page says which quantities differ"
    )
    subparser.add_argument("--against", metavar="OTHER", help=text)
    subparser.add_argument("--theories", metavar="A,B", help="theories to measure (default: all)")
    subparser.add_argument(
        "--length",
        type=_count,
        metavar="N",
        help="largest number of ids per sequence (default: 64, or the longest of the model); a .npy file [n, "
        "seq] has its own",
    )
    text = (
        "largest number of sequences (default: 8 of ids, 64 with labels, 128 images or sequences of tokens, "
        "64 for more than 5 million weights)"
    )
    subparser.add_argument("--sequences", type=_count, metavar="N", help=text)
    text = (
        "time in minutes: sizes are chosen so that it suffices, and no further copy of the network is begun "
        "afterwards (default: 10)"
    )
    subparser.add_argument("--minutes", type=_positive, metavar="M", help=text)
    text = "memory in GiB for activations and metrics (default: half of what is free)"
    subparser.add_argument("--memory", type=_positive, metavar="G", help=text)
    text = (
        "number of randomised copies of the network, its chance level; 0: no copies and no test (default: 99)"
    )
    subparser.add_argument("--networks", type=_count_or_none, metavar="N", help=text)
    text = "also change the forward pass as theories say, in a quarter of the time at least; see intervene"
    subparser.add_argument("--interventions", action="store_true", help=text)
    subparser.add_argument("--device", metavar="D", help="device of the measurement, such as cuda")
    add_out(subparser, required=False)

    help = "change attention in your own model as theories say, and measure what its outputs lose"
    subparser = command("intervene", "interventions.intervene_in_network", help)
    subparser.epilog = MEASURE_MORE
    subparser.add_argument("model", metavar="MODEL", help="model in one of the forms that measure takes")
    text = "images with their classes for a model that takes images, see measure"
    subparser.add_argument("--data", metavar="NAME|PATH", help=text)
    text = "side in pixels to which the images are scaled, if the model accepts it"
    subparser.add_argument("--size", type=_count, metavar="N", help=text)
    text = "a text for a model that takes ids, see measure; the measure is its next-token loss"
    subparser.add_argument("--text", type=_path, metavar="FILE", help=text)
    text = "theories, or single interventions as THEORY/NAME (default: all interventions)"
    subparser.add_argument("--only", metavar="A,B", help=text)
    text = "largest number of sequences (default: 512 images or sequences of tokens, 64 of ids)"
    subparser.add_argument("--sequences", type=_count, metavar="N", help=text)
    text = "largest number of matched random changes of each control (default: 99, or 9 for every sequence)"
    subparser.add_argument("--draws", type=_count, metavar="N", help=text)
    text = "time in minutes: controls are drawn on as many sequences as it allows (default: 5)"
    subparser.add_argument("--minutes", type=_positive, metavar="M", help=text)
    subparser.add_argument("--device", metavar="D", help="device of the network, such as cuda")
    add_out(subparser, required=False)

    help = (
        "check claims, each with a control that must fail; the exit code is 1 if a claim is violated or a "
        "control does not fail"
    )
    subparser = command("verify", "claims.verify_claims", help)
    subparser.epilog = VERIFY_JSON
    text = (
        "claims to check (see list): a single claim, all claims of a theory, quick (claims that take about "
        "a second per seed), training (claims that train a network), or all"
    )
    subparser.add_argument("claims", nargs="+", metavar="CLAIM|THEORY|all", help=text)
    text = "number or list of seeds; each seed draws one instance per claim (default: 5)"
    subparser.add_argument("--seeds", type=_seeds, default=range(5), metavar="N|A,B", help=text)
    add_workers(subparser, "number of processes that check claims in parallel")
    subparser.add_argument("--json", action="store_true", help="print a JSON document instead of the table")
    add_out(subparser, required=False)

    subparser = command("run", "commands.run_experiment", "run one experiment and plot its figure")
    subparser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="name of the experiment (see list); its settings become options",
    )
    add_out(subparser)
    subparser.add_argument(
        "--quick",
        action="store_true",
        help="use settings that take at most a minute; other options take precedence",
    )
    add_workers(subparser, "number of processes for a sweep over settings")
    if argv[:1] == ["run"]:
        _experiment_options(subparser, argv[1:])

    subparser = command(
        "train",
        "training.train_network",
        "train a network on images and compute the metrics of every theory during training",
    )
    text = "crate, crate-paper, crate-exact, crate-alpha, crate-alpha-published, tost or vit"
    subparser.add_argument("network", metavar="NETWORK", help=text)
    images = (
        "cifar10, cifar100, digits, shapes, or a path: the archive or files of CIFAR, or a folder with one "
        "folder of images per class"
    )
    subparser.add_argument("--data", required=True, metavar="NAME|PATH", help=images)
    add_size(subparser)
    subparser.add_argument(
        "--out", type=_path, metavar="DIR", help="folder for the network and its page (default: runs/NETWORK)"
    )
    subparser.add_argument(
        "--overwrite", action="store_true", help="remove the training in DIR, and start again"
    )
    text = "continue the training in DIR with the same options; start if DIR holds none"
    subparser.add_argument("--resume", action="store_true", help=text)
    text = "continue the training in DIR with more --epochs or --minutes, even if it has ended"
    subparser.add_argument("--extend", action="store_true", help=text)
    text = (
        "start from given weights: the folder of a run, its .safetensors file, or a file in the layout of "
        "a released CRATE or CRATE-alpha; sizes that are omitted are those of the weights"
    )
    subparser.add_argument("--weights", type=_path, metavar="FILE|RUN", help=text)
    text = "which set of weights, if that file holds several, such as model_ema"
    subparser.add_argument("--weights-set", metavar="NAME", help=text)
    text = (
        "train on several seeds in parallel, a number or a list, each in a folder DIR/seed-N, and print "
        "their mean"
    )
    subparser.add_argument("--seeds", type=_seeds, metavar="N|A,B", help=text)
    add_workers(subparser, "number of processes that train the seeds of --seeds", None)
    text = "log every interval for TensorBoard, into DIR/tensorboard; a resumed training continues its logs"
    subparser.add_argument("--tensorboard", action="store_true", help=text)
    text = "log every interval as a line of DIR/metrics.csv"
    subparser.add_argument("--csv", action="store_true", help=text)
    if argv[:1] == ["train"]:
        _training_options(subparser, argv[1:])

    subparser = command(
        "evaluate",
        "training.evaluate_network",
        "print the test accuracy of a trained network, overall and per class",
    )
    subparser.add_argument(
        "network", type=_path, metavar="RUN", help="folder of a training, or its best.safetensors"
    )
    subparser.add_argument("--data", required=True, metavar="NAME|PATH", help=images)
    add_size(subparser)

    subparser = command(
        "report",
        "report.write_report",
        "write a page, tables, figures and references from one or several stored results",
    )
    subparser.epilog = REPORT_MORE
    text = (
        "folders written by compare, verify, run or train, folders that contain them, or a ledger "
        "(docs/claims.json)"
    )
    subparser.add_argument("directories", nargs="+", type=_path, metavar="DIR", help=text)
    for name, content, kind in (
        ("html", "write one page with all results", "FILE"),
        (
            "latex",
            "write LaTeX files: a table, a figure and sentences for a column and for a page, macros, "
            "references, and example.tex, a page that includes them",
            "DIR",
        ),
        ("markdown", "write the tables in Markdown", "FILE"),
        ("bibtex", "write BibTeX entries for all sources and this library", "FILE"),
        ("figures", "write only the figures, as PDF and SVG", "DIR"),
    ):
        subparser.add_argument(f"--{name}", type=_path, metavar=kind, help=content)
    text = "write all tables and figures and the provenance into the folder of --latex, as appendix.tex"
    subparser.add_argument("--appendix", action="store_true", help=text)
    subparser.add_argument("--overwrite", action="store_true", help="replace existing files")

    subparser = command(
        "cite",
        "claims.cite_sources",
        "print BibTeX entries for a theory, a claim or a result, and for this library",
    )
    text = "theory, claim, BibTeX key, folder of a stored result, or software (this library only)"
    subparser.add_argument("name", metavar="THEORY|CLAIM|KEY|DIR|software", help=text)
    return parser, parsers


def _run(function: str, options: argparse.Namespace) -> int:
    """Imports the module of a command, and runs the command."""
    module, _, name = function.partition(".")
    return getattr(import_module(f".{module}", __package__), name)(options)


def _describe_networks(steps: argparse.Action, networks: argparse.Action) -> None:
    """Adds defaults of the library to the help texts of ``compare``. The import is slow, so only this command
    calls the function.
    """
    import inspect

    from ..comparison import compare
    from ..training.recipes import RECIPES

    names = ", ".join(f"'{name}'" for name in RECIPES)
    networks.help = f"small networks to train, out of {names}; or none (default: all, or none with --model)"
    if default := inspect.signature(compare).parameters.get("steps"):
        steps.help = f"{steps.help} (default: {default.default})"


def _experiment_options(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    """Adds the settings of the experiment that ``argv`` names. A misspelt name is reported before missing or
    unknown options.

    Raises:
        ValueError: the experiment is unknown.
    """
    from ..theories import experiment, list_theories
    from .catalogue import summary
    from .fields import add_fields

    kinds = {kind.name: kind for theory in list_theories() for kind in theory.experiments}
    if kind := next((kinds[word] for word in argv if word in kinds), None):
        parser.description = summary(kind).replace("%", "%%")
        add_fields(parser.add_argument_group(f"settings of {kind.name}"), kind)
        return
    # No word is the name of an experiment. A word that is not an option and not the value of one must be a
    # misspelt name.
    flags = ("--quick", "--overwrite", "--traceback")  # options without a value
    # the first word has no word before it; a flag gives it no special role
    for before, word in zip(["--quick", *argv], argv):
        if not word.startswith("-") and (before in flags or not before.startswith("-")):
            experiment(word)  # raises the error, which suggests similar names


def _training_options(parser: _Parser, argv: list[str]) -> None:
    """Adds the options of ``train``. They and their defaults depend on the network, the recipe and the
    objective that ``argv`` names.

    Raises:
        ValueError: the network, the recipe or the objective is unknown.
    """
    from ..models.image_networks import NETWORKS
    from ..theories import objectives
    from ..training.image.recipes import IMAGE_RECIPES, SMALL, image_recipe
    from .fields import add_fields

    kinds = objectives()

    def value_of(option: str, default: str) -> str:
        """Returns the value of an option, given as ``--option=value`` or ``--option value``."""
        values = [word.partition("=")[2] for word in argv if word.startswith(f"{option}=")]
        values += [after for word, after in pairwise(argv) if word == option]
        return values[-1] if values else default

    network = argv[0] if argv and not argv[0].startswith("-") else "crate"
    if network not in NETWORKS:
        raise ValueError(f"unknown network {network!r}{nearest(network, NETWORKS)}")
    objective = value_of("--objective", "cross-entropy")
    if objective not in kinds:
        raise ValueError(f"unknown objective {objective!r}{nearest(objective, kinds)}")
    recipe = value_of("--recipe", "digits" if value_of("--data", "") == "digits" else "minutes")
    settings = image_recipe(network, name=recipe)
    default = f"digits for images of at most {SMALL} pixels, otherwise minutes"
    text = f"recipe that sets the defaults below: {', '.join(IMAGE_RECIPES)} (default: {default})"
    parser.add_argument("--recipe", choices=IMAGE_RECIPES, metavar="NAME", help=text)
    parser.add_argument("--objective", choices=kinds, help="training objective (default: cross-entropy)")
    text = "theories whose metrics are computed at each interval, or none (default: all)"
    parser.add_argument("--theories", metavar="A,B", help=text)
    text = (
        f"The defaults here and below belong to the recipe {recipe} for {network}; to see those of another "
        f"recipe: {parser.prog} NETWORK --recipe NAME --help"
    )
    add_fields(
        parser.add_argument_group("settings", text), settings, without=("network", "augmentation", "recipe")
    )
    add_fields(parser.add_argument_group("augmentation of training images"), settings.augmentation)
    add_fields(parser.add_argument_group(f"settings of {objective}"), kinds[objective])
    # The parser has the settings of one objective. An error for a setting of another objective names the
    # objectives that have it.
    objectives_of: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        for field in fields(kind):  # pyright: ignore[reportArgumentType]
            objectives_of.setdefault(f"--{field.name.replace('_', '-')}", []).append(name)
    parser.needs = {flag: f"--objective {' or '.join(names)}" for flag, names in objectives_of.items()}
    text = "To train in several processes: torchrun --nproc-per-node N -m transformer_theory train ..."
    group = parser.add_argument_group("hardware", text)
    text = "device that trains the network (default: auto, the fastest available)"
    group.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help=text)
    text = (
        "number format of matrix products; weights stay in float32 (default: auto, bfloat16 on devices where "
        "it is faster)"
    )
    group.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto", help=text)
    text = (
        "distribution of the weights over processes: a copy in each (ddp), or a share in each (fsdp) "
        "(default: ddp)"
    )
    group.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help=text)
    group.add_argument(
        "--compile", action="store_true", help="compile the network first, which takes about a minute"
    )


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a path, got an empty string")
    return Path(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def _workers(text: str) -> int | str:
    if "://" in text:
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 1, or the address of a dask scheduler, got {text!r}"
        )
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    """Reads a number of seeds, ``"3" -> (0, 1, 2)``, or a list, which has a comma: ``"0,4" -> (0, 4)``,
    ``"7," -> (7,)``.
    """
    from ..core.validation import MAX_SEEDS  # imports torch, which --help does not wait for

    if "," not in text:
        if (number := _count(text)) > MAX_SEEDS:
            raise argparse.ArgumentTypeError(f"must be at most {MAX_SEEDS:,} seeds, got {text!r}")
        return tuple(range(number))
    return tuple(dict.fromkeys(_seed(part.strip()) for part in text.split(",") if part.strip())) or (
        _seed(text),
    )


def _seeds_or_none(text: str) -> tuple[int, ...]:
    """Reads seeds as :func:`_seeds` does; 0 means none."""
    return () if text == "0" else _seeds(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number in [0, 2**32), got {text!r}")
    return int(text)
