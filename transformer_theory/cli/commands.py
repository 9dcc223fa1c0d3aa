"""What each command does: options in, exit code out."""

import argparse
import sys

from ..core.errors import nearest
from .terminal import NAME, console, progress_line

SHOWN = 20  # rows that a run prints


def list_theories(options: argparse.Namespace) -> int:
    """Theories with their claims and experiments, or what one of them is.

    Raises:
        ValueError: an unknown name.
    """
    from ..theories import THEORIES, named
    from .tables import about, catalogue

    console().print(catalogue(THEORIES) if options.name is None else about(named(options.name)), highlight=False)
    return 0


def compare_theories(options: argparse.Namespace) -> int:
    """Every theory on the same data, and in the same trained networks, stored with its page.

    Raises:
        ValueError: data, theories or networks that cannot be.
        OSError: the folder exists or cannot be written, or there is no such network.
    """
    from .. import data, report
    from ..compare import choose, compare
    from ..core.files import atomic_directory
    from ..core.result import Result
    from ..data.image_sets import image_tokens, images
    from ..training.folder import network_file
    from .side_by_side import measured_networks

    names = None if options.theories is None else [name.strip() for name in options.theories.split(",") if name.strip()]
    with atomic_directory(options.out, overwrite=options.overwrite) as folder:
        chosen = choose(names)
        told = {"steps": options.steps, "claim_seeds": options.claim_seeds, "workers": options.workers}
        given = {name: number for name, number in told.items() if number is not None}
        if options.networks is not None:
            given["networks"] = _networks(options.networks)
        if options.models:
            if options.steps is not None and not given.get("networks"):
                raise ValueError("--steps is of the small networks, which --model leaves out; name them with --networks, or leave it out")
            given["models"] = [network_file(path) for path in options.models]
            read = images(options.data, size=options.size)
        else:
            read = data.load(options.data) if options.size is None else image_tokens(options.data, size=options.size)
            if read.labels is not None and len(read.labels.unique()) < 2:
                only = f"only class {int(read.labels[0])}"
                hint = "add a class, or leave labels out"
                raise ValueError(f"{options.data}: labels must name at least two classes to tell apart, got {only}; {hint}")
        with progress_line() as progress:
            compare(read, chosen, seed=options.seed, device=options.device, progress=progress, **given).write_into(folder)
            progress("writing the report")
            result = Result.load(folder)  # what is reported is what is stored
            report.write(result, folder)
    console().print(report.table(result))
    if options.models:
        console().print(measured_networks(result), highlight=False)
    print(f"report: {options.out / 'report.html'}")
    return 0


def _networks(text: str) -> tuple[str, ...]:
    """The names between the commas, each once; none for ``"none"``."""
    from ..training.recipes import RECIPES

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


def run_experiment(options: argparse.Namespace) -> int:
    """One experiment, stored with its figure; rows that are violated are printed first, then those that stand beside something."""
    from dataclasses import fields, replace

    from ..core.files import atomic_directory
    from ..core.parallel import progress_listener
    from ..core.plotting import svg
    from ..core.result import Result
    from ..theories import experiment
    from .tables import measurements, stands_beside

    kind = experiment(options.experiment)
    given = {field.name: getattr(options, field.name) for field in fields(kind) if hasattr(options, field.name)}
    chosen = replace(kind.quick() if options.quick else kind(), **given)
    with atomic_directory(options.out, overwrite=options.overwrite) as folder, progress_line() as progress:
        progress(f"{kind.name}: measuring")
        with progress_listener(lambda text: progress(f"{kind.name}: {text}")):
            chosen.run(workers=options.workers).write_into(folder)
        progress(f"{kind.name}: drawing")
        result = Result.load(folder)
        (folder / "figure.svg").write_text(svg(chosen.draw(result)), encoding="utf-8")
    if options.workers != 1 and result.provenance["workers"] is None:
        print(f"{NAME}: {kind.name} sweeps over no settings: it ran in one process, --workers changed nothing", file=sys.stderr)
    console().print(f"{kind.name}: {len(result.table)} rows in {result.provenance['seconds']} s", highlight=False)
    told = sorted(result.table, key=lambda row: (row.get("verdict") != "violated", not stands_beside(row)))
    if told:
        console().print(measurements(told[:SHOWN]), highlight=False)
    if more := told[SHOWN:]:
        violated = sum(row.get("verdict") == "violated" for row in more)
        print(f"... and {len(more)} more{f' ({violated} violated)' if violated else ''} in {options.out / 'table.jsonl'}")
    print(f"figure: {options.out / 'figure.svg'}")
    return 0
