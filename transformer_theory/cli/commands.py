"""The commands ``compare``, ``measure`` and ``run``."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import nearest
from ..core.format import counted, slug
from .terminal import NAME, console, error_line, progress_line

if TYPE_CHECKING:
    from ..core.result import Result
    from ..core.theory import Theory
    from ..models.user_model import UserModel

MAX_ROWS = 20  # largest number of rows that run prints
RESULT = "result.json"  # the file that makes a folder a stored result


def compare_theories(options: argparse.Namespace) -> int:
    """Compares theories on the same data and in the same trained networks, and stores the result with its
    page.

    Raises:
        ValueError: data, theories or networks are unknown or do not fit.
        OSError: the folder exists or cannot be written, or a network does not exist.
    """
    from .. import report
    from ..comparison import compare, read
    from ..comparison.pretrained import divided, text_for
    from ..core.files import atomic_directory
    from ..core.parallel import workers
    from ..core.result import Result
    from ..data import TokenData
    from ..data.image_sets import image_tokens, images
    from ..report import terminal
    from ..theories import choose
    from ..training.image.machine import available_threads

    names = (
        None
        if options.theories is None
        else [name.strip() for name in options.theories.split(",") if name.strip()]
    )
    with atomic_directory(options.out, overwrite=options.overwrite) as folder:
        theories = choose(names)
        # Options that are omitted have the defaults of ``compare``.
        names_of_options = ("seeds", "steps", "claim_seeds")
        arguments = {
            name: value for name in names_of_options if (value := getattr(options, name)) is not None
        }
        if options.networks is not None:
            arguments["networks"] = _networks(options.networks)
        if options.models:
            if options.steps is not None and not arguments.get("networks"):
                raise ValueError(
                    "--steps applies to the small networks, which --model replaces; name them with "
                    "--networks, or drop --steps"
                )
            saved, others = divided([str(model) for model in options.models])
            arguments["models"] = [*saved, *others]
            arguments["minutes"] = options.minutes
            if saved or text_for(options.data, others) is None:
                inputs = images(options.data, size=options.size)
            elif options.size is None:
                inputs = options.data
            else:
                raise ValueError(f"--size applies to images, and {others[0].name} takes ids; leave it out")
        else:
            if options.minutes is not None:
                raise ValueError("--minutes applies to networks of --model; name one, or leave it out")
            inputs = (
                read(options.data)[0]
                if options.size is None
                else image_tokens(options.data, size=options.size)
            )
            if (
                isinstance(inputs, TokenData)
                and inputs.labels is not None
                and len(inputs.labels.unique()) < 2
            ):
                single = f"only class {int(inputs.labels[0])}"
                raise ValueError(
                    f"{options.data}: labels must name at least two classes, got {single}; add a class, or "
                    "leave labels out"
                )
        processes = available_threads() if options.workers is None else options.workers
        with progress_line() as progress:
            compare(
                inputs, theories, device=options.device, workers=processes, progress=progress, **arguments
            ).write_into(folder)
            progress("writing the report")
            result = Result.load(folder)  # from the stored files, as the command `report` does
            with workers(processes, "forked"):  # they share the result
                report.write(result, folder)
    console().print(terminal.summary(result))
    networks = terminal.networks(result)
    if options.models and networks.row_count:  # networks of others have no rows in it
        print()
        console().print(networks, highlight=False)
    print(f"report: {options.out / 'report.html'}")
    return 0


def _networks(text: str) -> tuple[str, ...]:
    """Returns the names in a comma-separated list without duplicates; none for ``"none"``.

    Raises:
        ValueError: a name is unknown, there is none, or ``"none"`` is combined with names.
    """
    from ..training.recipes import RECIPES

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == ("none",):
        return ()
    if not names:
        raise ValueError(
            f"networks must name at least one, got none; there are: {', '.join(RECIPES)}, or 'none' for the "
            "raw tokens only"
        )
    for name in names:
        if name == "none":
            raise ValueError(f"networks must be names or 'none', got both in {text!r}; leave 'none' out")
        if name not in RECIPES:
            raise ValueError(f"unknown network {name!r}{nearest(name, [*RECIPES, 'none'])}")
    return names


def measure_networks(options: argparse.Namespace) -> int:
    """Measures models of the user one after another. One model is printed, and with --out written with its
    page. Several are written into folders of --out, and a page of all networks in --out stands beside them;
    so is one model, if --out is an empty folder or one of networks.

    A folder that is complete is not measured again, except with --overwrite. A model that cannot be measured
    is said in one line, and the next one follows; the exit code is then 2.

    Raises:
        ValueError: a single model cannot be read or run, inputs, sizes or theories do not fit, two models
            have the same name, or several lack --out or have options of one.
        OSError: a file does not exist, or the folder of the result exists.
    """
    from .. import report
    from ..core.result import Result

    out = options.out
    of_networks = (
        out is not None and out.is_dir() and (any(out.glob(f"*/{RESULT}")) or not any(out.iterdir()))
    )
    if len(options.models) == 1 and not of_networks:
        return _measure_one(options, options.models[0])
    for flag in ("labels", "against"):
        if getattr(options, flag) is not None and len(options.models) > 1:
            raise ValueError(f"--{flag} applies to one model, got {len(options.models)}; name one")
    if out is None:
        raise ValueError(f"{len(options.models)} models need a folder for their results; name it with --out")
    names = [_folder_name(model) for model in options.models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"models must have different names, got {twice[0]} twice; measure one by itself")
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, model in zip(names, options.models):
        if options.overwrite or not (out / name).exists():
            try:
                _measure_one(options, model, out / name)
            except (ValueError, OSError, ImportError, RuntimeError) as error:
                failed += 1
                print(f"{NAME}: {model}: {error_line(error, options.flags)}", file=sys.stderr)
    stored = sorted(path.parent.name for path in out.glob(f"*/{RESULT}"))
    named = [name for name in names if name in stored]
    results = [Result.load(out / name) for name in dict.fromkeys([*named, *stored])]
    if results:
        report.write_networks(results, out)
        print(f"report of {counted(len(results), 'network')}: {out / 'report.html'}")
    return 2 if failed else 0


def _folder_name(model: str) -> str:
    """Returns the folder of a model: its name in the hub, its folder, or its function."""
    name = model.rpartition(":")[2] if ":" in model else model
    if Path(model).exists():
        name = Path(model).resolve().name
    return slug(name)


def _measure_one(options: argparse.Namespace, model: str, out: Path | None = None) -> int:
    """Measures a model, and prints which heads stand out; with a folder also writes the result and its page.
    ``out`` is the folder of one of several.

    Raises:
        ValueError: the model cannot be read or run, or inputs, sizes or theories do not fit.
        OSError: a file does not exist, or the result's folder exists.
    """
    from .. import report
    from ..core.files import atomic_directory
    from ..core.journal import UNFINISHED
    from ..core.result import Result
    from ..report import terminal
    from ..theories import choose

    names = (
        None
        if options.theories is None
        else [name.strip() for name in options.theories.split(",") if name.strip()]
    )
    theories = choose(names)
    with ExitStack() as stack:
        # Opened first, so that an existing folder is refused before the measurement.
        one_of_several, out = out is not None, out or options.out
        folder = (
            None if out is None else stack.enter_context(atomic_directory(out, overwrite=options.overwrite))
        )
        progress = stack.enter_context(progress_line())
        journal = None if out is None else out.with_name(f"{out.name}{UNFINISHED}")
        try:
            result = _measured(options, model, theories, journal, progress, one_of_several)
        except KeyboardInterrupt as error:
            if journal is None or not journal.exists():
                raise
            kept = f"the finished parts are kept in {journal}; the same command goes on from there"
            raise type(error)(kept) from error
        if folder is not None:
            progress("writing the report")
            result.write_into(folder)
            report.write(Result.load(folder), folder)  # from the stored files, as the command `report` does
    if journal is not None:  # the result is stored
        journal.unlink(missing_ok=True)
    console().print(terminal.heads(result, brief=folder is not None), highlight=False)
    if out is not None:
        print(f"report: {out / 'report.html'}")
    return 0


def _inputs_for(options: argparse.Namespace, user: "UserModel") -> argparse.Namespace:
    """Returns the options with the inputs that one of several models takes: images, a text, or its own."""
    from ..models.stored import Pretrained

    takes_ids = getattr(user.network, "main_input_name", "") == "input_ids"
    own = user.inputs is not None
    left_out = ["data", "size"] if takes_ids or own else []
    left_out += ["text", "length"] if not takes_ids or own else []
    left_out += ["size"] if isinstance(user.network, Pretrained) else []  # that of its training
    return argparse.Namespace(**vars(options) | dict.fromkeys(left_out))


def _measured(
    options: argparse.Namespace,
    name: str,
    theories: "Sequence[Theory]",
    journal: Path | None,
    progress: Callable[[str], None],
    one_of_several: bool,
) -> "Result":
    """Reads the model ``name`` and measures it on the inputs of its function, on images, on a text or on
    random ids. One of several takes those of the options that apply to it.

    Raises:
        ValueError, OSError: see :func:`measure`.
    """
    from ..comparison.language_models import probe_language_model
    from ..comparison.user_images import with_images
    from ..comparison.user_models import FEW_IMAGES, SEQUENCES, default_samples, measure
    from ..data.labels import read_labels
    from ..models.image_side import side_of
    from ..models.text_windows import ROWS, read_sequences
    from ..models.transformers_folder import language_model
    from ..models.user_model import checked, label_numbers, read_user_model

    progress(f"reading {name}")
    user = read_user_model(name)
    if one_of_several:
        options = _inputs_for(options, user)
    budget = {name: getattr(options, name) for name in ("memory", "minutes", "device")}
    if options.networks is not None:
        budget["networks"] = options.networks
    if options.against is not None:
        progress(f"reading {options.against}")
        budget["against"] = _other_network(options.against)
    if options.interventions:
        budget["interventions"] = None
    run = {"theories": theories, "journal": journal, "progress": progress, **budget}
    given = [f"--{name}" for name in ("data", "text", "size", "length") if getattr(options, name) is not None]
    if user.inputs is not None:
        if given:
            raise ValueError(f"{name} returns its own inputs, got {given[0]} as well; leave one of them out")
        if options.labels is not None:
            if user.labels is not None:
                raise ValueError(f"{name} returns its own labels, got --labels as well; leave it out")
            labels = read_labels(options.labels, numbers=label_numbers(user.network))
            user = checked(user.network, user.inputs, labels, name=user.name, where=f"{options.labels}: ")
        return measure(user, max_samples=options.sequences, **run)
    config = getattr(user.network, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{user.name} has an encoder and a decoder, which take two inputs; return (network, {{name: "
            f"inputs, ...}}) from FILE.py:FUNCTION"
        )
    takes_images = getattr(user.network, "main_input_name", "") == "pixel_values" or side_of(user.network)
    if options.data is not None or takes_images:
        if options.data is None:
            raise ValueError(
                f"{user.name} takes images; name them with --data: digits, shapes, cifar10 or a folder of "
                "images"
            )
        if others := [flag for flag in given if flag in ("--text", "--length")]:
            raise ValueError(
                f"{others[0]} applies to models of ids, got --data with images as well; leave one of them out"
            )
        samples = options.sequences or default_samples(user.network, ids=False)
        user, images, described = with_images(
            user, options.data, size=options.size, max_samples=samples, labels=options.labels
        )
        return measure(user, max_samples=len(images), described=described, images=images, **run)
    if options.size is not None:
        raise ValueError(f"--size applies to images, and {user.name} takes ids; leave it out")
    try:
        model = language_model(user.network, name=user.name, folder=user.folder)
    except ValueError as error:
        raise ValueError(
            f"{name} must return (network, inputs), got a network alone; or name images with --data"
        ) from error
    run["causal"] = False
    if options.text is None:
        if options.labels is not None:
            raise ValueError("--labels applies to a text or to images; name them with --text or --data")
        return probe_language_model(
            model, length=options.length, sequences=options.sequences or SEQUENCES, **run
        )
    labelled = options.labels is not None or options.text.suffix == ROWS
    found = read_sequences(
        options.text,
        model,
        length=options.length,
        sequences=options.sequences or (FEW_IMAGES if labelled else SEQUENCES),
        labels=options.labels,
    )
    return probe_language_model(
        model, found.inputs, found.labels, described=found.described, special_ids=found.special_ids, **run
    )


def _other_network(text: str) -> "UserModel":
    """Reads the second network of ``--against``.

    Raises:
        ValueError, OSError: see :func:`.read_user_model`; the message names the option.
    """
    from ..models.user_model import read_user_model

    try:
        return read_user_model(text)
    except (ValueError, OSError) as error:
        if "MODEL must" not in str(error):
            raise
        raise type(error)(str(error).replace("MODEL must", "--against must")) from error


def run_experiment(options: argparse.Namespace) -> int:
    """Runs one experiment and stores it with its figure. Prints violated rows first, then those with a
    prediction or a threshold.
    """
    from dataclasses import fields, replace

    from ..core.files import atomic_directory
    from ..core.parallel import progress_listener
    from ..core.plotting import svg
    from ..core.result import Result
    from ..report import terminal
    from ..theories import experiment

    kind = experiment(options.experiment)
    settings = {
        field.name: getattr(options, field.name) for field in fields(kind) if hasattr(options, field.name)
    }
    configured = replace(kind.quick() if options.quick else kind(), **settings)
    with atomic_directory(options.out, overwrite=options.overwrite) as folder, progress_line() as progress:
        progress(f"{kind.name}: measuring")
        with progress_listener(lambda text: progress(f"{kind.name}: {text}")):
            configured.run(workers=options.workers).write_into(folder)
        progress(f"{kind.name}: plotting")
        result = Result.load(folder)
        (folder / "figure.svg").write_text(svg(configured.plot(result)), encoding="utf-8")
    if options.workers != 1 and result.provenance["workers"] is None:
        print(
            f"{NAME}: {kind.name} has no sweep over settings: it ran in one process, and --workers had no "
            "effect",
            file=sys.stderr,
        )
    console().print(
        f"{kind.name}: {len(result.table)} rows in {result.provenance['seconds']} s", highlight=False
    )
    rows = sorted(
        result.table,
        key=lambda row: (row.verdict != "violated", row.predicted is None and row.threshold is None),
    )
    if rows:
        console().print(terminal.measurements(rows[:MAX_ROWS]), highlight=False)
    if more := rows[MAX_ROWS:]:
        violated = sum(row.verdict == "violated" for row in more)
        print(
            f"... and {len(more)} more{f' ({violated} violated)' if violated else ''} in "
            f"{options.out / 'table.jsonl'}"
        )
    print(f"figure: {options.out / 'figure.svg'}")
    return 0
