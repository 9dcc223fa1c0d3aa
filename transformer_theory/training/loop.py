"""Training on images: a network, an objective and an optimiser, with measurements and checkpoints at each interval.

At each interval the network is measured on validation images and stored: the best one for exchange, the state of the training for its
continuation. An interrupted training continues bit for bit on the same machine, unless it runs by the clock. The test images are used at
the end only, with the network that was best on the validation images.
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

from ..core.errors import NotConverged
from ..core.measurement import Measurement, Table
from ..core.result import Result, provenance
from ..core.sources import Source
from ..core.statistics import with_interval
from ..data.image_data import Images
from . import checkpoint, saved
from .batches import WEIGHTS, Batches, seed_of
from .checkpoint import Checkpoint, load_network, load_optimiser, network_state, optimiser_state
from .faults import finite
from .fitting import HINT, State, fit
from .folder import LAST, TABLE, GrowingTable, check_unused, claimed, make, remove
from .machine import LoadWatch, Uncountable, available_threads, check_memory, choose_threads
from .monitor import Metrics, Moment, Monitor
from .networks import Builder, Pixels, Sizes, builder, own_networks
from .objectives import LOSS, CrossEntropy, Objective
from .optimisers import exponential_average, optimiser, warm_up_cosine
from .processes import Hardware, is_lost_process, launched, set_up, shards
from .settings import Settings
from .store import Store, continued, is_killed_start
from .tasks import ImageTask
from .transfer import origin_of, start_from

SPEED, SECONDS, LEARNING_RATE = "images per second", "seconds", "learning rate"
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
    resume: bool = False,
    extend: bool = False,
    callback: Callable[[Moment], None] = lambda moment: None,
) -> Result:
    """Trains a network on images and stores it with all measurements.

    Args:
        data: training and test images.
        settings: of the network and its training.
        folder: gets ``best.safetensors`` (see :mod:`.saved`), ``last.pt`` (see :mod:`.checkpoint`) and the result; it must not hold a
            training, unless ``resume``.
        objective: cross-entropy if None.
        metrics: makes fresh metrics, which are computed at each interval beside the general ones.
        theories: names of the theories of these metrics, stored with the run; a resumed training must have the same.
        sources: of these theories, stored with the run.
        hardware: chosen automatically if None.
        networks: of your own, by name; ``settings.network`` may be one of them.
        weights: a stored network of the same kind and sizes whose weights the training starts from, see :mod:`.transfer`.
        resume: continues from the checkpoint in the folder, which must belong to the same training; a finished training is only loaded,
            and without a checkpoint the training starts.
        extend: resumes a training that may have had fewer epochs or minutes; there must be one.
        callback: is called after each step and at each interval; attach a logger here.
    Returns:
        The result as it is stored: rows with ``step`` of kind "network" (loss, speed, learning rate, the objective's measurements) and of
        the metrics. Its settings hold ``run_id``, ``score`` and the numbers ``train_samples``, ``validation_samples`` and
        ``test_samples`` as well, ``weights`` if it started from some, and ``extended``, the earlier lengths of an extended training.
    Raises:
        ValueError: settings, data and folder are inconsistent, or the network does not fit the memory.
        FileExistsError: the folder is not empty, or another training runs there.
        FileNotFoundError: there is nothing to extend, or no file of weights.
        NotConverged: the loss or its gradient is not finite; step and layer are named, the last checkpoint stays.
        OSError: the folder cannot be written, or another process of this training has ended; the last checkpoint stays.
    """
    folder, objective, networks = Path(folder), objective or CrossEntropy(), networks or {}
    stored = checkpoint.load(folder / LAST) if extend or (resume and (folder / LAST).exists()) else None
    if stored is None and not (resume and is_killed_start(folder)):
        check_unused(folder)
    hardware = (hardware or Hardware()).resolved()
    definition = {
        "settings": asdict(settings),
        "objective": {"name": objective.name, **asdict(objective)},  # pyright: ignore[reportArgumentType]
        "precision": hardware.precision,
        "data": data[0].name,
        "images": checkpoint.digest(data[0]),
        "theories": list(theories),
    }
    if origin := origin_of(weights) if weights is not None else stored and stored.run.get("weights"):
        definition["weights"] = origin
    table, longer = (GrowingTable(folder / TABLE), False) if stored is None else continued(folder, stored, definition, extend=extend)
    if table.ended and not longer:
        return Result.load(folder)
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), own_networks(networks):
            start = weights if stored is None else None
            run = _Run(data, settings, folder, objective, metrics, sources, hardware, definition, table, networks, start, callback)
            if stored is not None:
                run.go_on(stored, longer=longer)
            return run.run()
    finally:
        torch.set_num_threads(threads)


class _Run:
    """A training with its folder: sets up the network, and as a callback of :func:`.fit` measures and stores at intervals."""

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
        weights: str | Path | None,
        callback: Callable[[Moment], None],
    ):
        builder(settings.network)  # raises if it is unknown
        self.compiled, self.settings, self.folder, self.objective, self.callback = hardware.compile, settings, folder, objective, callback
        images, self.test = data
        self.train, self.validation = settings.split(images)
        self.sizes = settings.sizes(image_size=images.size, channels=images.channels, num_classes=images.classes)
        try:
            check_memory(lambda: self._build(self.sizes))
        except Uncountable:
            if settings.network not in networks:
                raise
        self.fabric = launched(hardware)
        self.first = self.fabric.is_global_zero
        self.warn: Callable[[str], None] = LOGGER.warning if self.first else lambda line: None
        self.raw = self._network(0)
        if weights is not None:
            network = saved.network_of(self.raw)
            start_from(weights, network, name=settings.network, sizes=self.sizes, build=self._build, note=self.warn)
        if shards(self.fabric) and settings.average:
            raise ValueError(f"strategy 'fsdp' has no moving average, got average {settings.average}; pass --average 0 or --strategy ddp")
        plain = copy.deepcopy(self.raw).to(self.fabric.device) if shards(self.fabric) else self.raw
        if hardware.compile:
            self.raw.compile()
        self.model, self.optimiser = set_up(self.fabric, self.raw, self._optimiser)
        self.average = exponential_average(self.raw, decay=settings.average) if settings.average else None
        # the network that is measured and stored
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
        self.monitor = Monitor(self.validation, metrics, name=settings.network, untrained=lambda number: self._network(1 + number))
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        self.store = Store(
            folder,
            definition,
            table,
            objective,
            networks,
            self.sizes,
            self.train.names,
            counts={f"{name}_samples": len(part) for name, part in parts.items()},
            sources=tuple(dict.fromkeys([SOURCE, *images.sources, *sources])),
            provenance=provenance(seed=settings.seed, device=str(self.fabric.device))
            | {
                "parameters": sum(parameter.numel() for parameter in plain.parameters() if parameter.requires_grad),
                "processes": self.fabric.world_size,
            },
        )
        self.start, self.seconds, self.longer, self.best_lost = 0, 0.0, False, False  # filled in by go_on
        self.total, self.counted, self.worked = 0.0, 0, 0.0  # sums of losses, steps and their seconds since the last interval

    def _build(self, sizes: Sizes) -> nn.Module:
        return self.objective.network(self.settings.network, sizes)

    def _network(self, number: int) -> Pixels:
        """A network with initial weights: number 0 is trained, the others are the untrained networks of the null."""
        torch.manual_seed(seed_of(self.settings.seed, WEIGHTS, number))
        network = self._build(self.sizes)
        if number:
            return Pixels(network, self.raw.mean.flatten(), self.raw.std.flatten())
        return Pixels.centring(network, self.train.pixels)

    def _optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        return optimiser(
            network,
            name=self.settings.optimiser,
            learning_rate=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            layer_decay=self.settings.layer_decay,
        )

    def go_on(self, stored: Checkpoint, *, longer: bool) -> None:
        """Continues from a checkpoint.

        Args:
            stored: the checkpoint.
            longer: whether it is of a shorter training, which is extended.
        """
        try:
            load_network(saved.network_of(self.raw), stored.network)
            if stored.step:
                load_optimiser(self.raw, self.optimiser, stored.optimiser)
            if self.average is not None:
                load_network(self.average, stored.average or {})
        except ValueError as error:
            raise ValueError(f"{self.folder / LAST} contradicts its own settings: {error}; begin again without --resume") from error
        self.best_lost = not self.store.remember(stored, self.warn)
        self.monitor.remember(stored.memory)
        self.start, self.seconds, self.longer = stored.step, stored.seconds, longer
        # The order of sums, and so the last bits, depend on the number of threads.
        present, alone = torch.get_num_threads(), self.fabric.world_size == 1
        if alone and stored.threads <= available_threads():
            torch.set_num_threads(stored.threads)
        elif stored.threads != present:
            self.warn(f"the training ran on {stored.threads} threads and continues on {present}: its last bits will differ")

    def run(self) -> Result:
        if self.first:
            make(self.folder)
        with claimed(self.folder) if self.first else contextlib.nullcontext():
            try:
                return self._run()
            except NotConverged as error:
                raise NotConverged(f"{error}; {self.store.last_state}", state=self.raw, residuals=error.residuals) from error
            except RuntimeError as error:
                if not is_lost_process(error):
                    raise
                raise ConnectionError(f"another process has ended; {self.store.last_state}, --resume continues from it") from error
            finally:
                if self.first and self.store.step is None:
                    remove(self.folder)

    def _run(self) -> Result:
        generator, on_cpu = torch.Generator().manual_seed(self.settings.seed), self.fabric.device.type == "cpu"
        if self.compiled:  # compile before the clock starts: the learning rate may follow it
            self._gradient()
        elif on_cpu and self.fabric.world_size == 1 and self.store.step is None:
            choose_threads(self._gradient)
        self.store.provenance["threads"] = torch.get_num_threads()
        if self.longer and self.first:
            self.store.begin()
        by_steps = self.settings.minutes is None

        def schedule(state: State) -> float:
            progress = (state.step + 1) / (self.steps + 1) if by_steps else state.done
            return warm_up_cosine(progress, warm_up=self.settings.warm_up)

        averaging = [] if self.average is None else [self._update_average]
        watch = LoadWatch(self.warn)
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
        if self.state.step != self.store.step:  # the last interval is shorter
            self._interval(self.state)
        return self._end()

    def _gradient(self) -> None:
        """Loss and gradient of the first batch, without effect on the training: no step is taken, and all states are put back."""
        buffers = [(buffer, buffer.clone()) for buffer in self.raw.buffers()]  # running means of a BatchNorm
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            self.model.train()
            self.fabric.backward(self.task.loss(self.model, next(self.task.batches(torch.Generator(), self.start))))
        self.optimiser.zero_grad(set_to_none=True)
        for buffer, before in buffers:
            buffer.copy_(before)

    def _update_average(self, state: State) -> None:
        if state.loss is not None:
            assert self.average is not None
            self.average.update_parameters(self.raw)

    def __call__(self, state: State) -> None:
        """After each step, and before the first: measures and stores at intervals and at the end."""
        self.state, self.seconds = state, state.seconds
        if state.loss is None:
            if self.store.step is None:
                self._interval(state)
            return
        self.total, self.counted, self.worked = self.total + state.loss, self.counted + 1, self.worked + state.step_seconds
        self.callback(self._moment(state, state.loss))
        if state.step % self.interval == 0:
            self._interval(state)

    def _moment(self, state: State, loss: float | None, measured: Table | None = None) -> Moment:
        speed = self.counted * self.batches.size / self.worked if self.counted else None
        return Moment(state.step, state.step / self.batches.steps_per_epoch, state.done, state.seconds, speed, loss, measured)

    def _interval(self, state: State) -> None:
        """Measures and stores."""
        loss = None
        if self.counted:
            mean = torch.tensor(self.total / self.counted, device=self.fabric.device)
            loss = float(self.fabric.all_reduce(mean, reduce_op="mean"))  # pyright: ignore[reportArgumentType]
        weights = self._whole_weights(state.step)
        moments = optimiser_state(self.raw, self.optimiser)
        measured = self._measure(self.validation, "validation", state.step)
        monitored = self.monitor.measure(self.evaluated, state.step)
        moment = self._moment(state, loss, measured)
        row = Measurement("network", "network", SECONDS, moment.seconds, unit="s", model=self.settings.network, step=state.step)
        rows = self.store.table.rows
        if loss is not None:
            unit = next((one.unit for one in measured if one.quantity == LOSS), "")
            rate = max(group["lr"] for group in self.optimiser.param_groups)  # of the last step; lower in groups with layer decay
            rows += [
                replace(row, quantity=LOSS, value=loss, unit=unit, split="train"),
                replace(row, quantity=LEARNING_RATE, value=rate, unit=""),
            ]
        if moment.speed is not None:
            rows.append(replace(row, quantity=SPEED, value=moment.speed, unit=""))
        rows += [row, *measured, *monitored]
        if self.first:
            self.store.write(
                self.evaluated,
                self.store.score(measured),
                step=state.step,
                seconds=state.seconds,
                network=weights,
                optimiser=moments,
                average=None if self.average is None else network_state(self.average),
                memory=self.monitor.memory(),
            )
        self.store.step, self.best_lost = state.step, False
        self.callback(moment)
        self.total, self.counted, self.worked = 0.0, 0, 0.0

    def _whole_weights(self, step: int) -> dict[str, Tensor]:
        """The weights that the processes hold together; the network that is measured gets them too.

        Raises:
            NotConverged: one is not finite.
        """
        weights = network_state(saved.network_of(self.raw))
        if wrong := [name for name, weight in weights.items() if not finite([weight])]:
            raise NotConverged(f"step {step}: {wrong[0]} is not finite after it; {HINT}", state=self.raw)
        if shards(self.fabric):
            load_network(saved.network_of(self.evaluated), weights)
        return weights

    def _measure(self, images: Images, split: str, step: int) -> Table:
        """The objective's measurements."""
        pairs = ((part.pixels, part.labels) for part in (self.train, images))
        rows = self.objective.measure(self.evaluated, *pairs, batch_size=PER_PASS)
        return Table(rows).replace(split=split, model=self.settings.network, step=step)

    def _end(self) -> Result:
        """Measures the best network on the test images, and stores the result."""
        if self.best_lost:  # and no interval has come since
            self._whole_weights(self.state.step)
            score = self.store.score(self._measure(self.validation, "validation", self.state.step))
            if self.first:
                self.store.write_best(self.evaluated, score, self.state.step)
        self.fabric.barrier()
        best = self.store.load_best()
        self.evaluated = best.model.to(self.fabric.device)
        self.store.table.rows += map(with_interval, self._measure(self.test, "test", best.origin["step"]))
        self.store.provenance["seconds"] = round(self.seconds, 3)
        result = self.store.result()
        if self.first:
            result.write_into(self.folder)
        return result
