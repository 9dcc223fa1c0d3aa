"""The same training on several seeds, in worker processes, with the means of the results.

Each seed has a folder, ``seed-0``, ``seed-1``, ..., from which it can be resumed, evaluated and compared like
any other run. On a dask cluster the folders must lie on a file system that all machines share, which each
worker checks. If a worker dies, another one continues its training from the last checkpoint; if the scheduler
dies, all trainings can be resumed.
"""

import contextlib
import contextvars
import os
import platform
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...core import listeners, parallel
from ...core.errors import NotConverged
from ...core.measurement import Measurement
from ...core.result import Result, provenance
from ...core.statistics import over_seeds, student_interval
from ...core.table import Table
from ...core.validation import integers
from ...data.image_data import Images
from .folder import LAST, check_replaceable, check_unused, claimed, clear, make
from .loop import train
from .machine import available_threads
from .processes import Hardware
from .progress_update import ProgressUpdate
from .settings import Settings

NAME = "train-seeds"  # name of the result
# end one seed; any other error is a defect and ends all
FAILURES: tuple[type[Exception], ...] = (NotConverged, ValueError, OSError)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one seed.

    Attributes:
        seed: seed of the training.
        table: rows on the test images; empty if the training failed.
        failure: error message if the training failed; otherwise empty.
        settings, sources: settings and sources of the training's result.
    """

    seed: int
    table: Table
    failure: str = ""
    settings: dict[str, Any] | None = None
    sources: tuple = ()


def seed_folder(folder: Path, seed: int) -> Path:
    """Returns the folder of one seed."""
    return folder / f"seed-{seed}"


def train_seeds(
    data: tuple[Images, Images],
    settings: Settings,
    folder: str | Path,
    seeds: Sequence[int],
    *,
    workers: int | str | None = None,
    progress: Callable[[Outcome], None] = lambda outcome: None,
    **options: Any,
) -> Result:
    """Trains on several seeds, and stores each training and a summary of all.

    Args:
        data, settings: see :func:`.loop.train`; the seed of the settings is replaced.
        folder: folder of the summary and of one folder per seed.
        seeds: one or more different seeds.
        workers: number of processes, which share the cores, or the address of a dask scheduler (see
            :func:`~.core.parallel.workers`). None: one process per seed, but at most one per core.
        progress: called with the outcome of each seed, in the order of ``seeds``.
        options: further arguments of :func:`.loop.train`, except ``callback``; they must be picklable.
    Returns:
        The result that is stored in ``folder``. For each seed it has the rows on the test images, with
        ``seed``, or a row with the reason of the failure. For each quantity it has the mean over the seeds,
        with Student's interval and without ``seed``.
    Raises:
        ValueError: there is no seed, a seed occurs twice, ``workers`` is less than 1, or every seed failed;
            then the error quotes the first failure.
        FileExistsError: the folder of a seed is not empty and neither ``resume`` nor ``extend`` is set,
            ``folder`` holds another result, or another call trains there.
        ConnectionError: the dask scheduler does not answer, or no longer; the folders of the seeds keep their
            checkpoints.
    """
    folder = Path(os.path.abspath(folder))  # workers may have other working directories
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {list(seeds)}")
    if not isinstance(workers, str):
        integers(workers=1 if workers is None else workers)
    _check_summary(folder)
    cores, cluster = available_threads(), isinstance(workers, str)
    continued = bool(options.get("resume") or options.get("extend"))
    for path in [seed_folder(folder, seed) for seed in seeds]:
        if options.get("overwrite"):
            check_replaceable(path, weights=options.get("weights"), continued=continued)
        elif not continued:
            check_unused(path)
    # a call that is repeated must not remove what the first one stored
    if cluster and options.pop("overwrite", False):
        for seed in seeds:
            clear(seed_folder(folder, seed))
    workers = min(len(seeds), cores) if workers is None else workers
    threads = None if isinstance(workers, str) else max(1, cores // workers)
    if options.get("weights") is not None:
        options["weights"] = Path(os.path.abspath(options["weights"]))
    outcomes: list[Outcome] = []
    with (
        _reserved(folder),
        parallel.workers(workers) as active,
        _meeting(folder) if cluster else contextlib.nullcontext() as meeting,
    ):
        if active.cluster is not None:
            options["hardware"] = _common_hardware(
                active.cluster.client, options.get("hardware") or Hardware()
            )
        # A call that has lost its worker is repeated by another one, and then goes on from the checkpoint.
        # The folders of new trainings were found empty above.
        again = options | {"resume": True} if cluster and not options.get("extend") else options
        calls = [
            {
                "data": data,
                "settings": replace(settings, seed=seed),
                "folder": seed_folder(folder, seed),
                "threads": threads,
                "meeting": meeting,
                "options": again,
            }
            for seed in seeds
        ]
        try:
            for outcome in parallel.stream(_outcome, calls):
                outcomes.append(outcome)
                progress(outcome)
        except ConnectionError as error:
            kept = f"{folder} keeps the trainings up to their last checkpoints, --resume continues them"
            stored = any((seed_folder(folder, seed) / LAST).exists() for seed in seeds)
            raise ConnectionError(
                f"{error}; {kept if stored else 'no training had reached its first checkpoint'}"
            ) from error
    count = active.count
    completed = [outcome for outcome in outcomes if not outcome.failure]
    if not completed:
        raise ValueError(f"every seed failed; seed {outcomes[0].seed}: {outcomes[0].failure}")
    stored = {**(completed[0].settings or {}), "seeds": list(seeds)}
    stored["settings"] = {name: value for name, value in stored["settings"].items() if name != "seed"}
    result = Result(
        NAME,
        {name: value for name, value in stored.items() if name not in ("run_id", "extended")},
        Table([*_rows(outcomes), *_means(completed)]),
        sources=completed[0].sources,
        provenance=provenance(seed=None) | {"threads": threads, "workers": count},
    )
    result.write_into(folder)
    return result


def _check_summary(folder: Path) -> None:
    """Raises :class:`FileExistsError` if the summary would replace another result."""
    try:
        name = Result.load(folder).name if (folder / "result.json").exists() else NAME
    except ValueError:
        name = "one that cannot be read"
    if name != NAME or (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds another result; choose another --out")


def _common_hardware(client: Any, wanted: Hardware) -> Hardware:
    """Returns device and precision of the workers of a dask client, so that a worker that joins later trains
    on the same.

    Raises:
        ValueError: ``auto`` means different devices or precisions on two workers, or a worker lacks the
            device.
    """
    (first, found), *others = client.run(wanted.resolved).items()
    for worker, other in others:
        if other != found:
            texts = (
                f"{found.device} and {found.precision} on {first}, {other.device} and {other.precision} on "
                f"{worker}"
            )
            raise ValueError(
                f"all workers must train on one device in one precision, got {texts}; pass --device and "
                "--precision"
            )
    return found


@contextlib.contextmanager
def _reserved(folder: Path) -> Iterator[None]:
    """Makes the folder and locks it: two calls would share the seeds, and each would fail at the other's. A
    folder that stays empty is removed.
    """
    make(folder)
    try:
        with claimed(folder):
            yield
    finally:
        with contextlib.suppress(OSError):  # the folder is not empty
            folder.rmdir()


@contextlib.contextmanager
def _meeting(folder: Path) -> Iterator[Path]:
    """Yields the path of a new file in the folder, by which a worker recognises that it sees the
    same folder.
    """
    meeting = folder / f".meeting.{secrets.token_hex(8)}"
    try:
        meeting.touch()
        yield meeting
    finally:
        meeting.unlink(missing_ok=True)


def _outcome(
    data: tuple[Images, Images],
    settings: Settings,
    folder: Path,
    threads: int | None,
    meeting: Path | None,
    options: dict[str, Any],
) -> Outcome:
    """Runs one training in a worker."""
    if meeting is not None and not meeting.exists():
        text = (
            f"{meeting.parent} must lie on a file system that all machines share, {platform.node()} does not "
            "see it"
        )
        raise ValueError(f"{text}; choose another --out")
    # dask gives each of its workers one thread by this variable, unless it was set.
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1) if threads is None else threads

    def report(update: ProgressUpdate) -> None:
        if update.measured is not None:
            listeners.progress(f"seed {settings.seed}: {update}")

    def training() -> Result:
        torch.set_num_threads(threads)
        with listeners.progress_listener(listener):
            return train(data, settings, folder, callback=report, **options)

    listener = listeners.listener()

    # A worker limits each call to one thread and marks its context, so that limits inside the call are
    # ignored. In an empty context the training can set its number of threads, and its measurements are
    # limited to one thread as in any other training.
    threads_before, omp_before = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    # makes choose_threads keep this number: timing is misleading while workers share cores
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        result = contextvars.Context().run(training)
    except FAILURES as error:
        return Outcome(settings.seed, Table(), f"{error}" or type(error).__name__)
    finally:
        torch.set_num_threads(threads_before)
        os.environ.pop("OMP_NUM_THREADS") if omp_before is None else os.environ.update(
            OMP_NUM_THREADS=omp_before
        )
    return Outcome(
        settings.seed, result.select(theory="network", split="test"), "", result.settings, result.sources
    )


def _rows(outcomes: Sequence[Outcome]) -> Iterator[Measurement]:
    """Yields the rows of each seed."""
    for outcome in outcomes:
        if outcome.failure:
            yield Measurement(
                "network", "network", "training", None, reason=outcome.failure, seed=outcome.seed
            )
        yield from (replace(row, seed=outcome.seed) for row in outcome.table)


def _means(outcomes: Sequence[Outcome]) -> Iterator[Measurement]:
    """Yields the mean of each quantity over the seeds."""
    groups: dict[tuple, list[Measurement]] = {}
    for outcome in outcomes:
        for row in outcome.table:
            groups.setdefault((row.quantity, row.at, row.layer, row.head), []).append(
                replace(row, seed=outcome.seed, interval=None, interval_kind="")
            )
    for rows in groups.values():
        # The best networks belong to different steps, so the mean has no step. A seed's own interval says
        # nothing about other seeds. Equal values of different networks are a coincidence, so they have an
        # interval over seeds as well.
        values = [row.value for row in rows if row.value is not None]
        interval = student_interval(values)
        mean = replace(over_seeds(rows), step=None, seed=None, interval=interval)
        yield replace(mean, interval_kind="" if interval is None else "over seeds")
