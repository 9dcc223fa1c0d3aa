"""Training on images: a network, an objective and an optimiser, with measurements and checkpoints at each interval.

At each interval the network is measured on validation images and stored: the best one for exchange, the state of the training for its
continuation. An interrupted training continues bit for bit on the same machine, unless it runs by the clock. The test images are used once,
at the end, with the network that was best on the validation images.
"""

import contextlib
import copy
import math
import secrets
import time
from collections.abc import Callable, Sequence
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
from .batches import DRAWS, WEIGHTS, Batches, seed_of
from .checkpoint import full, load_network, load_optimiser, whole
from .faults import finite, where_not_finite
from .folder import BEST, LAST, TABLE, GrowingTable, check_unused, claimed, remove
from .monitor import Metrics, Moment, Monitor
from .networks import Pixels
from .objectives import LOSS, CrossEntropy, Objective
from .optimisers import exponential_average, optimiser, scale, warm_up_cosine
from .processes import Hardware, gathered, is_lost_process, launched, set_up, shards
from .settings import Settings

SPEED, SECONDS = "images per second", "seconds"
HINT = "begin again with a lower learning_rate, or a lower clip"
PER_PASS = 512  # images per forward pass of a measurement
SOURCE = Source("loshchilov2019decoupled")


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
    resume: bool = False,
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
        resume: continues from the checkpoint in the folder, which must belong to the same training; a finished training is only loaded.
        callback: is called after each step and at each interval.
    Returns:
        The result as it is stored: rows with ``step`` of kind "network" (loss, speed, the objective's measurements) and of the metrics.
        Its settings hold ``run_id``, ``score`` and the numbers ``train_samples``, ``validation_samples`` and ``test_samples`` as well.
    Raises:
        ValueError: settings, data and folder are inconsistent.
        FileExistsError: the folder is not empty, or another training runs there.
        NotConverged: the loss or its gradient is not finite; step and layer are named, the last checkpoint stays.
        OSError: the folder cannot be written, or another process of this training has ended; the last checkpoint stays.
    """
    folder, objective = Path(folder), objective or CrossEntropy()
    if not resume:
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
    table, stored = GrowingTable(folder / TABLE), None
    if resume:
        stored = checkpoint.load(folder / LAST, run=definition)
        table = GrowingTable.read(folder / TABLE, stored.rows)
        if table.ended:
            return Result.load(folder)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return _Training(data, settings, folder, objective, metrics, sources, hardware, definition, table, stored, callback).run()


class _Training:
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
        stored: checkpoint.Checkpoint | None,
        callback: Callable[[Moment], None],
    ):
        self.settings, self.folder, self.objective, self.callback = settings, folder, objective, callback
        self.definition, self.table = definition, table
        images, self.test = data
        self.train, self.validation = settings.split(images)
        self.sizes = settings.sizes(image_size=images.size, channels=images.channels, num_classes=images.classes)
        self.fabric = launched(hardware)
        self.raw = self._network(0)
        if shards(self.fabric) and settings.average:
            raise ValueError(f"strategy 'fsdp' has no moving average, got average {settings.average}; pass --average 0 or --strategy ddp")
        plain = copy.deepcopy(self.raw).to(self.fabric.device) if shards(self.fabric) else self.raw
        self.compiled = hardware.compile
        if self.compiled:
            self.raw.compile()
        self.model, self.optimiser = set_up(self.fabric, self.raw, self._optimiser)
        self.average = exponential_average(self.raw, decay=settings.average) if settings.average else None
        self.evaluated = plain if self.average is None else self.average.module  # the network that is measured and stored
        self.batches = Batches(
            self.train.pixels,
            self.train.labels,
            classes=images.classes,
            batch_size=settings.batch_size,
            augmentation=settings.augmentation,
            seed=settings.seed,
            fabric=self.fabric,
        )
        self.interval = settings.interval or self.batches.steps_per_epoch
        self.steps = settings.epochs * self.batches.steps_per_epoch
        self.monitor = Monitor(self.validation, metrics, name=settings.network, untrained=lambda number: self._network(1 + number))
        self.run_id = secrets.token_hex(8) if stored is None else stored.run_id
        self.provenance = provenance(seed=settings.seed, device=str(self.fabric.device)) | {
            "parameters": sum(parameter.numel() for parameter in plain.parameters() if parameter.requires_grad),
            "processes": self.fabric.world_size,
        }
        self.step, self.stored, self.before, self.best = 0, None, 0.0, None  # stored: the step of the last checkpoint
        self.sources = tuple(dict.fromkeys([SOURCE, *images.sources, *sources]))
        if stored is not None:
            self._continue(stored)

    def _network(self, number: int) -> Pixels:
        """A network with initial weights: number 0 is trained, the others are the untrained networks of the null."""
        torch.manual_seed(seed_of(self.settings.seed, WEIGHTS, number))
        network = self.objective.network(self.settings.network, self.sizes)
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

    def _continue(self, stored: checkpoint.Checkpoint) -> None:
        try:
            load_network(saved.network_of(self.raw), stored.network)
            load_optimiser(self.optimiser, stored.optimiser)
            if self.average is not None:
                load_network(self.average, stored.average or {})
        except ValueError as error:
            raise ValueError(f"{self.folder / LAST} contradicts its own settings: {error}; begin again without --resume") from error
        if (self.folder / BEST).exists():
            self._load_best()  # a damaged file raises now, not at the end
            self.best = stored.best
        self.monitor.remember(stored.memory)
        self.step, self.stored, self.before = stored.step, stored.step, stored.seconds

    def _load_best(self) -> saved.Saved:
        return saved.load(self.folder / BEST, objectives={self.objective.name: type(self.objective)})

    def run(self) -> Result:
        first = self.fabric.is_global_zero
        if first:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OSError(f"cannot make the folder {self.folder} ({error.strerror}); choose another --out") from error
        with claimed(self.folder) if first else contextlib.nullcontext():
            try:
                return self._run()
            except RuntimeError as error:
                if not is_lost_process(error):
                    raise
                raise ConnectionError(f"another process has ended; {self._last_state()}, --resume continues from it") from error
            finally:
                if first and self.stored is None:
                    remove(self.folder)

    def _run(self) -> Result:
        self.began = time.perf_counter()
        self._fresh()
        if self.stored is None:
            self._interval()
            if self.compiled:  # compile before the clock starts
                self.fabric.backward(self._loss(*self._draw()))
                self.optimiser.zero_grad()
            self.began, self.before = time.perf_counter(), 0.0  # the learning rate may follow the clock
        while (done := self._done()) < 1:
            self._step(done)
            if self.step % self.interval == 0:
                self._interval()
        if self.step != self.stored:
            self._interval()
        self._measure_test()
        return self._result()

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def _done(self) -> float:
        """Share of the training, the same in all processes."""
        done = self._share()
        if self.settings.minutes is None or self.fabric.world_size == 1:
            return done
        return float(self.fabric.all_reduce(torch.tensor(done, device=self.fabric.device), reduce_op="max"))  # pyright: ignore

    def _share(self) -> float:
        return self.step / self.steps if self.settings.minutes is None else min(1.0, self.seconds() / (60 * self.settings.minutes))

    def _fresh(self) -> None:
        """Resets the sums of the next interval."""
        self.total, self.counted, self.worked = 0.0, 0, 0.0

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Images and targets of the step, whose seed also determines the random numbers that follow."""
        torch.manual_seed(seed_of(self.settings.seed, DRAWS, self.step))
        return self.batches[self.step]

    def _loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(self.model, images, targets, lambda part: gathered(self.fabric, part))

    def _step(self, done: float) -> None:
        started = time.perf_counter()
        by_steps = self.settings.minutes is None
        scale(self.optimiser, warm_up_cosine((self.step + 1) / (self.steps + 1) if by_steps else done, warm_up=self.settings.warm_up))
        images, targets = self._draw()
        try:
            loss = self._loss(images, targets)
        except (ValueError, ArithmeticError, RuntimeError) as error:  # an objective may reject values that are not finite
            self._fail(str(error), images, error)
            raise
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(self.model, self.optimiser, max_norm=self.settings.clip, error_if_nonfinite=False)
        value, size = torch.stack([full(loss.detach()), full(norm)]).tolist()  # pyright: ignore  # waits for the device once per step
        if not (math.isfinite(value) and math.isfinite(size)):
            self._fail(f"the loss is {value}, the norm of its gradient {size}", images)
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.raw)
        self.step += 1
        self.total += value
        self.counted += 1
        self.worked += time.perf_counter() - started
        self.callback(self._moment(value))

    def _fail(self, what: str, images: Tensor, error: Exception | None = None) -> None:
        """Raises NotConverged, unless an error was raised and all values of the step are finite: then the error has another cause."""
        where = where_not_finite(self.raw, images, lambda: self.fabric.backward(self._loss(*self._draw())))
        if error is None or where is not None:
            where = where or "every output and gradient is finite"
            raise NotConverged(f"step {self.step + 1}: {what}; {where}; {self._last_state()}; {HINT}", state=self.raw) from error

    def _last_state(self) -> str:
        return f"{self.folder / LAST} holds the last good state, of step {self.stored}"

    def _moment(self, loss: float | None, measured: Table | None = None) -> Moment:
        speed = self.counted * self.batches.size / self.worked if self.counted else None
        return Moment(self.step, self.step / self.batches.steps_per_epoch, self._share(), self.seconds(), speed, loss, measured)

    def _interval(self) -> None:
        """Measures and stores."""
        loss = None
        if self.counted:
            mean = torch.tensor(self.total / self.counted, device=self.fabric.device)
            loss = float(self.fabric.all_reduce(mean, reduce_op="mean"))  # pyright: ignore[reportArgumentType]
        first = self.fabric.is_global_zero
        weights = whole(saved.network_of(self.raw).state_dict())
        state = whole(self.optimiser.state_dict()) if first or shards(self.fabric) else {}  # shards are gathered by all processes
        if wrong := [name for name, weight in weights.items() if not finite([weight])]:
            raise NotConverged(f"step {self.step}: {wrong[0]} is not finite after it; {self._last_state()}; {HINT}", state=self.raw)
        if shards(self.fabric):
            load_network(saved.network_of(self.evaluated), weights)
        measured = self._measure(self.validation, "validation", self.step)
        monitored = self.monitor.measure(self.evaluated, self.step)
        moment = self._moment(loss, measured)
        row = Measurement("network", "network", SECONDS, moment.seconds, unit="s", model=self.settings.network, step=self.step)
        if loss is not None:
            unit = next((one.unit for one in measured if one.quantity == LOSS), "")
            self.table.rows.append(replace(row, quantity=LOSS, value=loss, unit=unit, split="train"))
        if moment.speed is not None:
            self.table.rows.append(replace(row, quantity=SPEED, value=moment.speed, unit=""))
        self.table.rows += [row, *measured, *monitored]
        if first:
            self._store(weights, state, self._score(measured))
        self.stored = self.step
        self.callback(moment)
        self._fresh()

    def _score(self, measured: Table) -> float:
        value = measured.select(quantity=self.objective.score, setting="", layer=None).one().value
        return -math.inf if value is None else value

    def _store(self, weights: dict[str, Tensor], state: dict[str, Any], score: float) -> None:
        """Writes the network if it is the best so far, the table, and the checkpoint last."""
        try:
            if self.best is None or score >= self.best:  # of equal networks the later one, which has been trained longer
                self.best = score
                self._save_best(score)
            if self.stored is None:
                self._result().write_into(self.folder, growing=True)
            self.table.write()
            checkpoint.Checkpoint(
                run=self.definition,
                run_id=self.run_id,
                step=self.step,
                seconds=self.seconds(),
                best=self.best,
                rows=len(self.table.rows),
                network=weights,
                optimiser=state,
                average=None if self.average is None else whole(self.average.state_dict()),
                memory=self.monitor.memory(),
            ).save(self.folder / LAST)
        except OSError as error:
            state_text = "nothing was stored" if self.stored is None else f"{self._last_state()}, --resume continues from it"
            raise OSError(f"cannot write to {self.folder} ({error.strerror or error}); {state_text}") from error

    def _measure(self, images: Images, split: str, step: int) -> Table:
        """The objective's measurements."""
        pairs = ((part.pixels, part.labels) for part in (self.train, images))
        rows = self.objective.measure(self.evaluated, *pairs, batch_size=PER_PASS)
        return Table(rows).replace(split=split, model=self.settings.network, step=step)

    def _save_best(self, score: float) -> None:
        network = saved.network_of(self.evaluated)
        assert isinstance(self.raw, Pixels)
        saved.save(
            self.folder / BEST,
            network.state_dict(),
            network=self.settings.network,
            sizes=self.sizes,
            objective=self.objective,
            mean=self.raw.mean,
            std=self.raw.std,
            names=self.train.names,
            origin={
                "data": self.definition["data"],
                "step": self.step,
                "seed": self.settings.seed,
                "run_id": self.run_id,
                self.objective.score: score,
            },
        )

    def _measure_test(self) -> None:
        """Measures the best network on the test images."""
        self.fabric.barrier()
        best = self._load_best()
        self.evaluated = best.model.to(self.fabric.device)
        self.table.rows += map(with_interval, self._measure(self.test, "test", best.origin["step"]))
        self.provenance["seconds"] = round(self.seconds(), 3)
        if self.fabric.is_global_zero:
            self._result().write_into(self.folder)

    def _result(self) -> Result:
        settings = self.definition | {
            "run_id": self.run_id,
            "score": self.objective.score,
            "train_samples": len(self.train),
            "validation_samples": len(self.validation),
            "test_samples": len(self.test),
        }
        return Result("train", settings, Table(self.table.rows), {}, (), self.sources, self.provenance)
