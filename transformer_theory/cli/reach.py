"""The command ``reach``."""

import argparse
from pathlib import Path

from .terminal import console, progress_line

QUICK_SEEDS, QUICK_UNTIL = range(2), ("full block", "relaxed encoding")


def reach_of_theories(options: argparse.Namespace) -> int:
    """Measures the ladders of theories, stores each cell when it is done, and finally the result with its
    page and the reach map.

    An interrupted run goes on where it stopped if the command is repeated with the same folder.

    Raises:
        ValueError: a theory, rung, column or data set is unknown, or the folder holds something else.
        OSError: the folder cannot be written.
    """
    from .. import report
    from ..comparison.judged import rung_results
    from ..comparison.pooling import aggregate
    from ..comparison.reach import reach
    from ..core.files import write_together
    from ..core.parallel import workers
    from ..core.plotting import pdf, svg
    from ..core.result import Result
    from ..report import terminal
    from ..report.judged_figures import reach_map
    from ..training.image.machine import available_threads

    images, text = _data(options.data)
    if options.minutes is not None and not options.models:
        raise ValueError("--minutes applies to networks of --model; name one, or leave it out")
    seeds = options.seeds if options.seeds is not None else QUICK_SEEDS if options.quick else range(5)
    until = options.until or (QUICK_UNTIL if options.quick else ())
    processes = available_threads() if options.workers is None else options.workers
    with progress_line() as progress:
        result = reach(
            options.theories or None,
            seeds=seeds,
            until=until,
            images=images,
            text=text,
            models=[str(model) for model in options.models],
            minutes=options.minutes,
            folder=options.out,
            overwrite=options.overwrite,
            workers=processes,
            progress=progress,
        )
        progress("writing the report")
        result.write_into(options.out)
        result = Result.load(options.out)  # from the stored files, as the command `report` does
        with workers(processes):
            report.write(result, options.out)
        figure = reach_map(rung_results(aggregate(result)))
        if figure is not None:
            write_together(
                {options.out / "reach.svg": svg(figure).encode(), options.out / "reach.pdf": pdf(figure)}
            )
    console().print(terminal.reach(result))
    print(f"report: {options.out / 'report.html'}")
    return 0


def _data(names: list[str]) -> tuple[str | None, str | None]:
    """Divides the data into images and a text, the path of a file that ends in .txt.

    Raises:
        ValueError: there are two texts or two sets of images.
    """
    texts = [name for name in names if Path(name).suffix.lower() == ".txt"]
    images = [name for name in names if name not in texts]
    for kind, found in (("text", texts), ("set of images", images)):
        if len(found) > 1:
            raise ValueError(f"--data takes one {kind}, got {', '.join(found)}")
    return next(iter(images), None), next(iter(texts), None)
