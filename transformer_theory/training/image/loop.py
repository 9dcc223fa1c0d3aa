"""Training on images: a network, an objective and an optimiser, with measurements and checkpoints at each
interval.

At each interval the network is measured on validation images. The best network so far and a checkpoint of the
training are stored. On the same machine, an interrupted training continues bit for bit, unless its length is
set in minutes. The test images are used only at the end, for the network that was best on the validation
images.
"""

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import NotConverged
from ...core.result import Result, provenance
from ...core.sources import Source
from ...core.statistics import with_interval
from ...core.table import Arrays, Table
from ...data.image_data import Images
from ...models.image_networks import Builder, Pixels, Sizes, builder, own_networks
from ..faults import finite
from ..fitting import HINT, State, fit
from ..monitor import Metrics, Monitor
from ..objectives import CrossEntropy, Objective
from ..optimisers import exponential_average, freeze_body, warm_up_cosine
from . import checkpoint, saved
from .batches import WEIGHTS, Batches, seed_of
from .checkpoint import Checkpoint, load_network, load_optimiser, network_state, optimiser_state
from .folder import LAST, TABLE, GrowingTable, check_replaceable, check_unused, claimed, clear, make, remove
from .loggers import Logs, check, present
from .machine import LoadWatch, available_threads, choose_threads, gradient_of
from .memory import check_memory
from .processes import Hardware, check_agreement, check_same_folder, is_lost_process, launched, set_up, shards
from .progress_update import ProgressUpdate, general_rows
from .samples import pictured, test_samples, validation_samples
from .settings import Settings
from .store import Store, is_incomplete_run, load_for_resume
from .task import ImageTask
from .transfer import Start, normalisation_of, read, start_from

PER_PASS = 512  # images per forward pass of a measurement
SOURCE = Source("loshchilov2019decoupled")
LOGGER = logging.getLogger("transformer_theory")


def train(
    data: tuple[Images, Images],
    settings: Settings,
    folder: str | Path,
    *,
    objective: Objective | None = None,
    metrics: Metrics = tuple,
    theories: Sequence[str] = (),
    sources: Sequence[Source] = (),
    hardware: Hardware | None = None,
    networks: Mapping[str, Builder] | None = None,
    weights: str | Path | None = None,
    weights_set: str | None = None,
    resume: bool = False,
    extend: bool = False,
    overwrite: bool = False,
    loggers: Sequence[str] = (),
    callback: Callable[[ProgressUpdate], None] = lambda update: None,
) -> Result:
    """Trains a network on images and stores it with all measurements.

    Args:
        data: training and test images.
        settings: settings of the network and its training.
        folder: folder for ``best.safetensors`` (see :mod:`.saved`), ``last.pt`` (see :mod:`.checkpoint`) and
            the result; empty or absent unless ``resume``, ``extend`` or ``overwrite`` is set.
        objective: objective of the training. None: cross-entropy.
        metrics: function that makes new metrics, which are computed at each interval together with the
            general ones.
        theories: names of the theories of these metrics, stored with the run; a resumed training must have
            the same names.
        sources: sources of these theories, stored with the run.
        hardware: device, precision and processes. None: chosen automatically.
        networks: builders of your networks by name; ``settings.network`` may be one of these names.
        weights: file with the initial weights of the same kind and sizes, stored or in a released layout, see
            :func:`.transfer.read`.
        weights_set: which set of weights, if that file holds several.
        resume: whether to continue from the folder's checkpoint, of the same training. Without one, a new
            training starts.
        extend: whether to continue a training that may have had fewer epochs or minutes; the folder must hold
            one.
        overwrite: whether a training in the folder is replaced. It is removed when the new one is ready to
            begin.
        loggers: "csv", "tensorboard" or both, see :mod:`.loggers`. A resumed training continues the logs in
            its folder.
        callback: called after each step and at each interval.
    Returns:
        The stored result: rows with ``step`` of kind "network" (loss, speed, learning rate, the objective's
        measurements) and rows of the metrics. Its settings also hold ``run_id``, ``score``,
        ``train_samples``, ``validation_samples``, ``test_samples``, the origin of initial ``weights``, and
        the earlier lengths of an extended training under ``extended``. Its arrays are those of
        :mod:`.samples`.
    Raises:
        ValueError: settings, data and folder are inconsistent, or the network does not fit into memory.
        FileExistsError, FileNotFoundError: the folder is in use, or there is no training to extend or no file
            of weights.
        NotConverged: the loss or its gradient is not finite. The error names the step and locates the fault;
            the last checkpoint remains.
        OSError: the folder cannot be written, or another process has ended; the last checkpoint remains.
    """
    folder, objective, networks = Path(folder), objective or CrossEntropy(), networks or {}
    logs = Logs(folder, [*loggers, *(present(folder) if resume or extend else ())])
    check(logs.kinds)
    stored = checkpoint.load(folder / LAST) if extend or (resume and (folder / LAST).exists()) else None
    if overwrite:
        check_replaceable(folder, weights=weights, continued=resume or extend)
    elif stored is None and not (resume and is_incomplete_run(folder)):
        check_unused(folder)
    hardware = (hardware or Hardware()).resolved()
    definition = {
        "settings": asdict(settings),
        "objective": {"name": objective.name, **asdict(objective)},  # pyright: ignore[reportArgumentType]
        "precision": hardware.precision,
        "data": data[0].name,
        **checkpoint.identity(*data),
        "theories": list(theories),
    }
    start = None if weights is None else read(weights, weights_set=weights_set)
    if origin := stored and stored.run.get("weights") if start is None else start.described():
        definition["weights"] = origin
    table, longer = (
        (GrowingTable(folder / TABLE), False)
        if stored is None
        else load_for_resume(folder, stored, definition, extend=extend)
    )
    if table.ended and not longer:
        return Result.load(folder)
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), own_networks(networks):
            start = start if stored is None else None
            run = _Run(
                data,
                settings,
                folder,
                objective,
                metrics,
                sources,
                hardware,
                definition,
                table,
                networks,
                start,
                logs,
                callback,
            )
            if stored is not None:
                run.resume_from(stored, longer=longer)
            if overwrite and run.first:
                clear(folder)
            return run.run()
    finally:
        torch.set_num_threads(threads)


class _Run:
    """A training and its folder. The constructor sets up the network; as a callback of :func:`.fit` it
    measures and stores at intervals.
    """

    def __init__(
        self,
        data: tuple[Images, Images],
        settings: Settings,
        folder: Path,
        objective: Objective,
        metrics: Metrics,
        sources: Sequence[Source],
        hardware: Hardware,
        definition: dict[str, Any],
        table: GrowingTable,
        networks: Mapping[str, Builder],
        weights: Start | None,
        logs: Logs,
        callback: Callable[[ProgressUpdate], None],
    ):
        builder(settings.network)  # raises if the name is unknown
        self.compiled, self.settings, self.folder, self.objective, self.callback = (
            hardware.compile,
            settings,
            folder,
            objective,
            callback,
        )
        images, self.test = data
        self.train, self.validation = settings.split(images)
        self.sizes = settings.sizes(
            image_size=images.size, channels=images.channels, num_classes=images.classes
        )
        self.normalisation = normalisation_of(definition.get("weights"))
        needs = {
            "batch_size": min(settings.batch_size, len(self.train)),
            "own": settings.network in networks,
            "device": hardware.device,
        }
        check_memory(self._build, self.sizes, **needs, frozen=not settings.layer_decay)
        self.fabric = launched(hardware)
        check_agreement(self.fabric, definition)
        self.first = self.fabric.is_global_zero
        self.logs = logs if self.first else Logs(folder, ())
        self.warn: Callable[[str], None] = LOGGER.warning if self.first else lambda line: None
        self.raw = self._network(0)
        if weights is not None:
            about = {
                "name": settings.network,
                "sizes": self.sizes,
                "names": self.train.names,
                "build": self._build,
            }
            start_from(weights, saved.network_of(self.raw), **about, note=self.warn)
        parameters = sum(parameter.numel() for parameter in self.raw.parameters() if parameter.requires_grad)
        if not settings.layer_decay:
            freeze_body(self.raw)
        if shards(self.fabric) and settings.average:
            raise ValueError(
                f"strategy 'fsdp' has no moving average, got average {settings.average}; pass --average 0 "
                "or --strategy ddp"
            )
        plain = copy.deepcopy(self.raw).to(self.fabric.device) if shards(self.fabric) else self.raw
        if hardware.compile:
            self.raw.compile()
        self.model, self.optimiser = set_up(self.fabric, self.raw, settings.new_optimiser)
        self.average = exponential_average(self.raw, decay=settings.average) if settings.average else None
        # The network that is measured and stored. A sharded network is copied, since each process holds only
        # a part of its weights.
        self.evaluated: Pixels = plain if self.average is None else self.average.module  # pyright: ignore[reportAttributeAccessIssue]
        self.batches = Batches(
            self.train.pixels,
            self.train.labels,
            classes=images.classes,
            batch_size=settings.batch_size,
            augmentation=settings.augmentation,
            seed=settings.seed,
            fabric=self.fabric,
        )
        self.task = ImageTask(objective, self.batches)
        self.interval = settings.interval or self.batches.steps_per_epoch
        self.steps = settings.epochs * self.batches.steps_per_epoch
        self.monitor = Monitor(
            self.validation,
            metrics,
            name=settings.network,
            untrained=lambda number: self._network(1 + number),
        )
        self.store = Store(
            folder,
            definition,
            table,
            objective,
            networks,
            self.sizes,
            self.train.names,
            counts={f"{name}_samples": len(getattr(self, name)) for name in ("train", "validation", "test")},
            sources=tuple(dict.fromkeys([SOURCE, *images.sources, *sources])),
            provenance=provenance(seed=settings.seed, device=str(self.fabric.device))
            | {"parameters": parameters, "processes": self.fabric.world_size},
        )
        self.start, self.seconds, self.longer, self.best_lost = 0, 0.0, False, False  # set by resume_from
        # losses, steps and their seconds since the last interval
        self.loss_sum, self.count, self.step_seconds = 0.0, 0, 0.0

    def _build(self, sizes: Sizes) -> nn.Module:
        return self.objective.network(self.settings.network, sizes)

    def _network(self, number: int) -> Pixels:
        """Returns a network with initial weights: number 0 will be trained, the others give the null
        distributions of the metrics.
        """
        torch.manual_seed(seed_of(self.settings.seed, WEIGHTS, number))
        network = self._build(self.sizes)
        if number:
            return self.raw.around(network)
        return (
            Pixels(network, *self.normalisation)
            if self.normalisation
            else Pixels.centring(network, self.train.pixels)
        )

    def resume_from(self, stored: Checkpoint, *, longer: bool) -> None:
        """Continues from a checkpoint; ``longer``: whether this training is longer than that of the
        checkpoint.
        """
        try:
            load_network(saved.network_of(self.raw), stored.network)
            if stored.step:
                load_optimiser(self.raw, self.optimiser, stored.optimiser)
            if self.average is not None:
                load_network(self.average, stored.average or {})
        except ValueError as error:
            raise ValueError(
                f"{self.folder / LAST} contradicts its own settings: {error}; begin again without --resume"
            ) from error
        self.best_lost = not self.store.remember(stored, self.warn)
        self.monitor.load_persistent_state(stored.memory)
        self.start, self.seconds, self.longer = stored.step, stored.seconds, longer
        # The order of sums, and so the last bits, depend on the number of threads.
        present, alone = torch.get_num_threads(), self.fabric.world_size == 1
        if alone and stored.threads <= available_threads():
            torch.set_num_threads(stored.threads)
        elif stored.threads != present:
            self.warn(
                f"the training ran on {stored.threads} threads and continues on {present}: its last bits "
                "will differ"
            )

    def run(self) -> Result:
        if self.first:
            make(self.folder)
        with claimed(self.folder) if self.first else contextlib.nullcontext():
            try:
                return self._run()
            except NotConverged as error:
                raise NotConverged(
                    f"{error}; {self.store.last_state()}", state=self.raw, residuals=error.residuals
                ) from error
            except RuntimeError as error:
                if not is_lost_process(error):
                    raise
                raise ConnectionError(
                    f"another process has ended; {self.store.last_state(resumed=True)}"
                ) from error
            finally:
                with contextlib.suppress(OSError):  # the error that ends the training has been raised
                    self.logs.close()
                if self.first and self.store.step is None:
                    remove(self.folder)

    def _run(self) -> Result:
        check_same_folder(self.fabric, self.folder)
        generator, on_cpu = (
            torch.Generator().manual_seed(self.settings.seed),
            self.fabric.device.type == "cpu",
        )
        if self.compiled:  # compile before the clock starts, since the learning rate may follow it
            self._gradient()
        elif on_cpu and self.fabric.world_size == 1 and self.store.step is None:
            choose_threads(self._gradient)
        self.store.provenance["threads"] = torch.get_num_threads()
        if self.longer and self.first:
            self.store.begin()
        self.logs.begin(self.store.table.rows, self.store.step)
        by_steps = self.settings.minutes is None

        def schedule(state: State) -> float:
            progress = (state.step + 1) / (self.steps + 1) if by_steps else state.done
            return warm_up_cosine(progress, warm_up=self.settings.warm_up)

        averaging, watch = [] if self.average is None else [self._update_average], LoadWatch(self.warn)
        callbacks = [watch.after, *averaging, self, watch.before] if on_cpu else [*averaging, self]
        fit(
            self.model,
            self.task,
            optimiser=self.optimiser,
            steps=self.steps if by_steps else None,
            minutes=self.settings.minutes,
            callbacks=callbacks,
            schedule=schedule,
            clip=self.settings.clip,
            generator=generator,
            fabric=self.fabric,
            start=self.start,
            seconds=self.seconds,
        )
        if self.state.step != self.store.step:  # the steps are no multiple of the interval
            self._interval(self.state)
        return self._end()

    def _gradient(self) -> None:
        """Computes loss and gradient of the first batch, without an effect on the training."""
        first = next(self.task.batches(torch.Generator(), self.start))
        gradient_of(lambda: self.task.loss(self.model, first), self.raw, self.optimiser, self.fabric.backward)

    def _update_average(self, state: State) -> None:
        if state.loss is not None:
            assert self.average is not None
            self.average.update_parameters(self.raw)

    def __call__(self, state: State) -> None:
        """Measures and stores at intervals. Called before the first step and after each step."""
        self.state, self.seconds = state, state.seconds
        if state.loss is None:
            if self.store.step is None:
                self._interval(state)
            else:  # resumed: the page shows what was measured before
                self.callback(replace(self._progress(state, None), so_far=self.store.result))
            return
        self.loss_sum, self.count, self.step_seconds = (
            self.loss_sum + state.loss,
            self.count + 1,
            self.step_seconds + state.step_seconds,
        )
        self.logs.step(state.step, state.loss)
        self.callback(self._progress(state, state.loss))
        if state.step % self.interval == 0:
            self._interval(state)

    def _progress(self, state: State, loss: float | None, measured: Table | None = None) -> ProgressUpdate:
        speed = self.count * self.batches.size / self.step_seconds if self.count else None
        so_far = None if measured is None else self.store.result
        return ProgressUpdate(
            state.step,
            state.step / self.batches.steps_per_epoch,
            state.done,
            state.seconds,
            speed,
            loss,
            measured,
            so_far,
        )

    def _interval(self, state: State) -> None:
        """Measures the network and stores network, rows and checkpoint."""
        loss = self.loss_sum / self.count if self.count else None
        weights = self._gather_weights(state.step)
        moments = optimiser_state(self.raw, self.optimiser)
        measured = self._measure(self.validation, "validation", state.step)
        monitored = self.monitor.measure(self.evaluated, state.step)
        update = self._progress(state, loss, measured)
        # rate of the last step; smaller in groups with layer decay
        rate = max(group["lr"] for group in self.optimiser.param_groups)
        rows = [*general_rows(update, rate, model=self.settings.network), *measured, *monitored]
        self.store.table.rows += rows
        self._picture(self.validation, state.step)
        self.logs.interval(rows)  # before the checkpoint, so that a resumed training never lacks a record
        if self.first:
            self.store.write(
                self.evaluated,
                self.store.score(measured),
                step=state.step,
                seconds=state.seconds,
                network=weights,
                optimiser=moments,
                average=None if self.average is None else network_state(self.average),
                memory=self.monitor.persistent_state(),
            )
        self.store.step, self.best_lost = state.step, False
        self.callback(update)
        self.loss_sum, self.count, self.step_seconds = 0.0, 0, 0.0

    def _gather_weights(self, step: int) -> dict[str, Tensor]:
        """Returns the weights, gathered from all processes, and copies them into the network that is measured
        if they are sharded.

        Raises:
            NotConverged: a weight is not finite.
        """
        weights = network_state(saved.network_of(self.raw))
        if invalid := [name for name, weight in weights.items() if not finite([weight])]:
            raise NotConverged(f"step {step}: {invalid[0]} is not finite after it; {HINT}", state=self.raw)
        if shards(self.fabric):
            load_network(saved.network_of(self.evaluated), weights)
        return weights

    def _measure(self, images: Images, split: str, step: int) -> Table:
        """Returns the objective's measurements."""
        pairs = ((part.pixels, part.labels) for part in (self.train, images))
        rows = self.objective.measure(self.evaluated, *pairs, batch_size=PER_PASS)
        return Table(rows).replace(split=split, model=self.settings.network, step=step)

    def _picture(self, images: Images, step: int) -> None:
        """Shows the network sample images."""
        maps = pictured(self.evaluated, self.validation, step, self.store.arrays, name=self.settings.network)
        samples = validation_samples if images is self.validation else test_samples
        self.store.arrays = Arrays({**maps, **samples(self.evaluated, images)})

    def _end(self) -> Result:
        """Measures the best network on the test images, and stores the result."""
        if self.best_lost:  # the file of the best network was damaged, and no interval has replaced it
            self._gather_weights(self.state.step)
            score = self.store.score(self._measure(self.validation, "validation", self.state.step))
            if self.first:
                self.store.write_best(self.evaluated, score, self.state.step)
        self.fabric.barrier()
        best = self.store.load_best()
        self.evaluated = best.model.to(self.fabric.device)
        tests = [*map(with_interval, self._measure(self.test, "test", best.origin["step"]))]
        self.store.table.rows += tests
        self._picture(self.test, best.origin["step"])
        self.logs.end(tests, asdict(self.settings))
        self.store.provenance["seconds"] = round(self.seconds, 3)
        result = self.store.result()
        if self.first:
            result.write_into(self.folder)
        return result
