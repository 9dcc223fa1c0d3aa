"""The reach of theories: every rung of their ladders, on several seeds.

:func:`reach` measures the cells (theory, rung, seed) in parallel. If it has a folder, each cell is stored
when it is done, and a later call with the same folder measures only the cells that are missing. The
:class:`~..core.result.Result` has one row of kind "rung" per quantity, rung and seed. Its settings describe
the rungs (``settings["ladders"]``), so that the reach map (:mod:`~..report.judged_figures`) is drawn from the
stored result alone. Means over seeds, intervals and p-values come from :meth:`.Table.summary`, as for a
comparison.
"""

import logging
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core import listeners, parallel, threads
from ..core.errors import Infeasible, NotConverged, nearest
from ..core.format import slug
from ..core.journal import UNFINISHED
from ..core.ladder import COLUMNS, MAPS, ORDER, PRETRAINED, PRETRAINED_COLUMN, Needs, Rung
from ..core.measurement import Measurement
from ..core.progress import Progress, shown
from ..core.result import Result, provenance
from ..core.statistics import fixed_generator, over_seeds
from ..core.table import Table
from ..core.theory import Theory
from ..core.validation import seed_numbers
from ..data import Images, image_sets
from ..data.text import Text
from ..theories import list_theories, objectives, theory
from ..training.image.checkpoint import digest
from ..training.image.evaluate import StoredNetwork, load_stored_networks
from ..training.image.saved import Saved
from ..training.trained_rungs import headline_in
from .cells import Cell, Key, Store, key_of
from .pretrained import Model, Pretrained, check, divided, headline_rows, measured
from .user_models import checksum_of

LOGGER = logging.getLogger("transformer_theory")
MAX_IMAGES = 5_000  # training and test images for the rungs that need images
# cells of one seed in this column measure the same networks, so one process measures them together
SHARED = COLUMNS[-1]


@dataclass(frozen=True)
class Inputs:
    """The data of rungs that need some.

    Attributes:
        images: training and test images.
        text: a text.
        file: the file of the text, which networks of others read with their own tokenizer.
    """

    images: tuple[Images, Images] | None = None
    text: Text | None = None
    file: Path | None = None

    @classmethod
    def read(
        cls,
        images: tuple[Images, Images] | str | Path | None,
        text: Text | str | Path | None,
    ) -> "Inputs":
        """Reads the data, and draws at most :data:`MAX_IMAGES` training and test images, the same for all
        seeds.

        Raises:
            ValueError: the data cannot be read.
        """
        if isinstance(images, str | Path):
            images = image_sets.images(images)
        if images is not None:
            train, test = (part.mixed(fixed_generator())[:MAX_IMAGES] for part in images)
            images = train, test
        if isinstance(text, str | Path):
            return cls(images, Text.read(text), Path(text))
        return cls(images, text)

    def of(self, rung: Rung) -> Any:
        """Returns the data that a rung needs; None if it needs none, or if they are missing."""
        return getattr(self, rung.needs) if rung.needs else None

    @property
    def names(self) -> dict[str, str]:
        """Name and size of the data, by kind."""
        names = {}
        if self.images is not None:
            train, test = self.images
            names["images"] = f"{train.name}, {len(train):,} and {len(test):,} images"
        if self.text is not None:
            names["text"] = f"{self.text.name}, {len(self.text):,} words"
        return names

    @property
    def checksums(self) -> dict[str, str]:
        """Checksums of the data, by kind."""
        found = {} if self.images is None else {"images": ", ".join(map(digest, self.images))}
        if self.text is not None:
            words = "\n".join(self.text.vocabulary.words).encode()
            found["text"] = f"{zlib.crc32(self.text.ids.contiguous().numpy().data, zlib.crc32(words)):08x}"
        return found


def reach(
    theories: str | Theory | Iterable[str | Theory] | None = None,
    *,
    seeds: int | Iterable[int] = 5,
    until: str | Sequence[str] = (),
    images: tuple[Images, Images] | str | Path | None = None,
    text: Text | str | Path | None = None,
    models: Sequence[Model] = (),
    minutes: float | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    workers: int | str | None = None,
    progress: Progress = None,
) -> Result:
    """Measures how far theories extend when their assumptions are relaxed one after another.

    Args:
        theories: a name or a record, or several; ``"theory/rung"`` selects single rungs. None selects all.
        seeds: a list, or a number n for the seeds 0 to n - 1. Intervals need at least two.
        until: last column to measure, an entry of :data:`~.core.ladder.COLUMNS` or
            :data:`~.core.ladder.CONSTRUCTION_COLUMNS`, or one of each. It limits the ladders with this column
            in their map. If omitted, all columns are measured.
        images: images for the rungs that need them: training and test images, or a name or path for
            :func:`data.images`.
        text: text for the rungs that need one, or the path of a text file.
        models: networks stored by ``train``, which are measured on the test images by the theories whose
            ladder measures their headline. Networks of one kind count as the seeds of one rung. Beside them
            networks of others, named as for :func:`.read_user_model`: each is a last rung of every theory,
            its headline in this network beside copies of the network, as ``measure`` gives it.
        minutes: time for each network of others, see ``measure``.
        folder: folder in which finished cells are stored; cells that it holds are not measured again. None:
            nothing is stored.
        overwrite: whether the cells in the folder are measured again. They are removed when all else has been
            checked.
        workers: number of processes, or the address of a dask scheduler (see
            :func:`~.core.parallel.workers`). Results do not depend on it.
        progress: function called with one line of text when a cell is done; True or False shows the lines or
            hides them. None shows them in a notebook and in an interactive interpreter.
    Returns:
        One result with the rows of all rungs. Rungs whose data are missing have a row with the reason.
    Raises:
        ValueError: a theory, rung or column is unknown, the data or models cannot be used, there is no seed,
            or the folder holds cells of another version or of other data.
        FileExistsError: another reach measures in the folder.
        ConnectionError: the dask scheduler does not answer, or no longer; the folder keeps the cells that are
            done.
    """
    started = time.perf_counter()
    until = [until] if isinstance(until, str) else list(until)
    chosen = _chosen(theories, until)
    seeds = seed_numbers("seeds", seeds)
    saved, others = divided(models)
    inputs = Inputs.read(images, text)
    names = inputs.names | {rung_name(network.name): network.size for network in others}
    checksums = inputs.checksums | {
        rung_name(network.name): checksum_of(network.user.network.state_dict()) for network in others
    }
    for network in others:
        check(network, images=None if inputs.images is None else inputs.images[1], text=inputs.file)
    store = None if folder is None else Store(Path(folder), names, checksums)
    stored = _stored_networks(saved, inputs)
    cells = [
        (theory, rung, seed)
        for seed in seeds
        for theory, rungs in chosen
        for rung in rungs
        if not rung.needs or inputs.of(rung)
    ]
    last = {
        (theory, network): pretrained_rung(
            theory, network.name, needs="text" if network.takes_ids else "images"
        )
        for network in others
        for theory, _ in chosen
    }
    with (
        torch.random.fork_rng(devices=[]),
        parallel.workers(workers),
        threads.one_thread(),
        shown(progress, "reach"),
        nullcontext({}) if store is None else store.begun(empty=overwrite) as done,
    ):
        missing = [cell for cell in cells if key_of(cell) not in done]
        cells += [(theory, rung, 0) for (theory, _), rung in last.items()]
        older = 0 if store is None else sum(key_of(cell) in store.older for cell in cells)
        if older:
            line = (
                "%d of %d stored cells in %s were measured by other sources of this library; --overwrite "
                "measures all again"
            )
            LOGGER.warning(line, older, sum(key_of(cell) in done for cell in cells), folder)
        jobs, count = _jobs(missing), sum(key_of(cell) in done for cell in cells)
        listeners.progress(f"{len(cells)} cells (theory, rung, seed), {count} of them stored")

        def keep(cell: Cell, rows: list[Measurement]) -> None:
            done[key_of(cell)] = rows
            if store is not None:
                store.append(cell, rows)
            finished = sum(key_of(cell) in done for cell in cells)
            listeners.progress(f"{cell[0].name}: {cell[1].name}, seed {cell[2]} ({finished} of {len(cells)})")

        # Only jobs that need data receive them: they are large, and are sent to other processes.
        arguments = (
            {"cells": job, "inputs": inputs if any(rung.needs for _, rung, _ in job) else Inputs()}
            for job in jobs
        )
        try:
            for index, measured in parallel.as_completed(_measure, arguments):
                for cell, rows in zip(jobs[index], measured):
                    keep(cell, rows)
            for network in others:
                own = [(theory, last[theory, network], 0) for theory, _ in chosen]
                for cell, rows in _in_pretrained(
                    network,
                    [cell for cell in own if key_of(cell) not in done],
                    inputs,
                    minutes=minutes,
                    folder=None if folder is None else Path(folder),
                ):
                    keep(cell, rows)
        except (ConnectionError, KeyboardInterrupt) as error:
            count = sum(key_of(cell) in done for cell in cells)
            kept = f"{count} of {len(cells)} cells are stored in {folder}, the same command goes on from them"
            kept = kept if store is not None else "without a folder nothing is kept"
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(kept) from error
            raise ConnectionError(f"{error}; {kept}") from error
        for number, (theory, rungs) in enumerate(chosen if stored else ()):
            extra = _stored_rungs(theory, stored, inputs)
            chosen[number] = theory, (*rungs, *extra)
            done |= {
                (theory.name, rung.name, seed): [replace(row, seed=seed)]
                for rung, rows in extra.items()
                for seed, row in rows
            }
        for number, (theory, rungs) in enumerate(chosen):
            chosen[number] = theory, (*rungs, *(last[theory, network] for network in others))
        record = provenance(started=started) | ({"cells_of_other_sources": older} if older else {})
    table = Table(row for theory, rungs in chosen for row in _rows(theory, rungs, seeds, done))
    settings = {
        "until": until,
        "seeds": list(seeds),
        "theories": [theory.name for theory, _ in chosen],
        "inputs": inputs.names,
        "ladders": {theory.name: described(theory, rungs) for theory, rungs in chosen},
        **({"models": {network.name: network.described for network in others}} if others else {}),
    }
    sources = tuple(dict.fromkeys(source for theory, _ in chosen for source in theory.sources))
    return Result("reach", settings, table, sources=sources, provenance=record)


def _chosen(
    theories: str | Theory | Iterable[str | Theory] | None, until: Sequence[str]
) -> list[tuple[Theory, tuple[Rung, ...]]]:
    """Returns the selected theories, each with its selected rungs.

    Raises:
        ValueError: a theory, rung or column is unknown, or a theory has no ladder.
    """
    for column in until:
        if column not in ORDER:
            raise ValueError(f"unknown column {column!r}{nearest(column, ORDER)}")
    if theories is None:
        records = [record for record in list_theories() if record.ladder is not None and record.ladder.rungs]
        names: list[str | Theory] = list(records)
    else:
        names = [theories] if isinstance(theories, str | Theory) else list(theories)
    if not names:
        raise ValueError("theories must name at least one, got none")
    rungs: dict[Theory, list[Rung]] = {}
    for name in names:
        record, single = name, ""
        if not isinstance(record, Theory):
            before, _, single = record.partition("/")
            record = theory(before)
        if record.ladder is None or not record.ladder.rungs:
            raise ValueError(f"{record.name} has no ladder; leave it out")
        known = {rung.name: rung for rung in record.ladder.rungs}
        if single and single not in known:
            raise ValueError(f"unknown rung {single!r} of {record.name}{nearest(single, known)}")
        # The first rung is the reference of the others, so it always belongs to the selection.
        selected = [record.ladder.rungs[0], known[single]] if single else list(known.values())
        rungs.setdefault(record, []).extend(selected)
    last = {
        columns: min([ORDER.index(column) for column in until if column in columns], default=len(ORDER))
        for columns in MAPS
    }
    return [
        (
            record,
            tuple(
                rung
                for rung in record.ladder.rungs
                if rung in selected and ORDER.index(rung.column) <= last[rung.columns]
            ),
        )
        for record, selected in rungs.items()
        if record.ladder is not None
    ]


def _stored_networks(models: Sequence[str | Path | Saved], inputs: Inputs) -> list[StoredNetwork]:
    """Loads the stored networks.

    Raises:
        ValueError: a file is not a network, the images do not fit, or there are no images.
    """
    if not models:
        return []
    if inputs.images is None:
        raise ValueError("models are measured on images, got none; name the images, e.g. --data cifar10")
    return load_stored_networks(models, inputs.images[1], objectives=objectives())


def _stored_rungs(
    theory: Theory, networks: Sequence[StoredNetwork], inputs: Inputs
) -> dict[Rung, list[tuple[int, Measurement]]]:
    """Measures the stored networks: one rung per kind of network, with a row per network, if the theory
    measures its ladder in networks.
    """
    if (
        theory.in_networks is None
        or theory.ladder is None
        or theory.in_networks.headline != theory.ladder.quantity
    ):
        return {}
    assert inputs.images is not None
    rungs: dict[str, list[tuple[int, Measurement]]] = {}
    for network in networks:
        listeners.progress(f"{theory.name}: {network.name}")
        model, kind = network.saved.model, network.saved.network
        row = headline_in(
            model, inputs.images[1], theory.name, theory.in_networks, name=network.name, steps=network.step
        )
        rows = rungs.setdefault(f"stored {kind}", [])
        rows.append((len(rows), replace(row, rung=f"stored {kind}", model=kind, verdict="not covered")))
    relaxes = "the sizes and the data of the small networks"
    return {Rung(name, relaxes, lambda generator: (), column=SHARED): rows for name, rows in rungs.items()}


def rung_name(network: str) -> str:
    """Returns the name of the rung of a network of others."""
    return f"{PRETRAINED}{network}"


def pretrained_rung(theory: Theory, name: str, *, needs: Needs = "") -> Rung:
    """Returns the rung of a network of others, in the last column of a theory's map."""
    assert theory.ladder is not None
    headline = "" if theory.in_networks is None else theory.in_networks.headline
    return Rung(
        rung_name(name),
        "the sizes, the data and the training of the small networks",
        lambda generator: (),
        column=PRETRAINED_COLUMN,
        needs=needs,
        quantity=headline if headline != theory.ladder.quantity else "",
    )


def _in_pretrained(
    network: Pretrained, cells: Sequence[Cell], inputs: Inputs, *, minutes: float | None, folder: Path | None
) -> Iterator[tuple[Cell, list[Measurement]]]:
    """Measures a network of others once for all theories of the cells, and yields the row of each."""
    theories = [theory for theory, *_ in cells if theory.in_networks is not None]
    rows: dict[str, Measurement] = {}
    journal = None
    if theories:
        if folder is not None:  # of these theories: others may have been measured before
            known = zlib.crc32(" ".join(theory.name for theory in theories).encode())
            journal = folder / f"{slug(rung_name(network.name))}-{known:08x}{UNFINISHED}"
        result = measured(
            network,
            theories,
            images=None if inputs.images is None else inputs.images[1],
            text=inputs.file,
            minutes=minutes,
            journal=journal,
            progress=lambda line: listeners.progress(f"{network.name}: {line}"),
        )
        rows = headline_rows(result, theories)
    for cell in cells:
        theory, rung, seed = cell
        assert theory.ladder is not None
        row = rows.get(theory.name)
        if row is None:
            row = theory.ladder.row(None, reason="the theory has no quantity in networks of others")
        data = inputs.names[rung.needs].partition(",")[0]
        yield (
            cell,
            [
                replace(
                    row,
                    kind="rung",
                    rung=rung.name,
                    seed=seed,
                    model=network.name,
                    data=data,
                    at={},  # the test that a headline comes from, such as a prompt
                    verdict="not covered",
                )
            ],
        )
    if journal is not None:  # the cells are stored
        journal.unlink(missing_ok=True)


def _jobs(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Divides cells into jobs, the longest first: trained networks of one seed together, every other cell by
    itself.
    """
    together: dict[Any, list[Cell]] = {}
    for number, cell in enumerate(cells):
        _, rung, seed = cell
        together.setdefault((seed, rung.name) if rung.column == SHARED else number, []).append(cell)
    return sorted(
        together.values(), key=lambda job: -max(rung.columns.index(rung.column) for _, rung, _ in job)
    )


def _measure(*, cells: Sequence[Cell], inputs: Inputs) -> list[list[Measurement]]:
    """Measures the cells of one job."""
    return [_measured(theory, rung, seed, inputs) for theory, rung, seed in cells]


def _measured(theory: Theory, rung: Rung, seed: int, inputs: Inputs) -> list[Measurement]:
    """Measures one cell. A solver that finds no solution gives a row with the reason.

    Raises:
        ValueError: the rows are not of kind "rung", or none has the ladder's quantity.
    """
    assert theory.ladder is not None
    arguments = (inputs.of(rung),) if rung.needs else ()
    generator = torch.Generator().manual_seed(seed)
    try:
        rows = list(rung.measure(generator, *arguments))
    except (Infeasible, NotConverged) as error:
        rows = [theory.ladder.row(None, reason=" ".join(str(error).split()))]
    quantity = theory.ladder.quantity
    if sum(row.quantity == quantity and not row.at for row in rows) != 1 or any(
        row.kind != "rung" for row in rows
    ):
        found = sorted({f"{row.kind}: {row.quantity}" for row in rows})
        raise ValueError(
            f"a rung must measure {quantity!r} once, in rows of kind 'rung'; {theory.name}/{rung.name} gave "
            f"{found}"
        )
    verdict = None if rung.covered else "not covered"
    return [replace(row, rung=rung.name, seed=seed, verdict=row.verdict or verdict) for row in rows]


def _rows(
    theory: Theory, rungs: Sequence[Rung], seeds: Sequence[int], done: Mapping[Key, list[Measurement]]
) -> Iterator[Measurement]:
    """Yields the rows of one theory. If the theory predicts no number, the mean on the first rung is the
    reference of the headline.
    """
    ladder = theory.ladder
    assert ladder is not None

    def rows_of(rung: Rung) -> list[Measurement]:
        """Returns the rows of the seeds, or of all networks if they were stored."""
        numbers = (
            seeds if rung in ladder.rungs else [key[2] for key in done if key[:2] == (theory.name, rung.name)]
        )
        return [row for number in numbers for row in done.get((theory.name, rung.name, number), [])]

    first = [row for row in rows_of(rungs[0]) if row.quantity == ladder.quantity and not row.at]
    reference = over_seeds(first).value if first and rungs[0] is ladder.rungs[0] else None
    for rung in rungs:
        rows = rows_of(rung)
        if not rows:
            option = {"images": "--data cifar10", "text": "--data FILE.txt"}.get(rung.needs, "")
            yield ladder.row(
                None,
                rung=rung.name,
                reason=f"needs {rung.needs} ({option})",
                verdict="not covered",
            )
        for row in rows:
            own = row.quantity == ladder.quantity and row.predicted is None and reference is not None
            yield replace(row, predicted=reference, basis="own setting") if own else row


def described(theory: Theory, rungs: Sequence[Rung]) -> dict[str, Any]:
    """Returns the description of a ladder as JSON values, from which the reach map is drawn."""
    assert theory.ladder is not None
    return {
        "quantity": theory.ladder.quantity,
        "null": theory.ladder.null,
        "rungs": [
            {
                "name": rung.name,
                "relaxes": rung.relaxes,
                "column": rung.column,
                "covered": rung.covered,
                "needs": rung.needs,
                **({"quantity": rung.quantity} if rung.quantity else {}),
            }
            for rung in rungs
        ],
    }
