"""Training on images: a network, an objective and an optimiser, step after step, while every theory reads the network.

At each interval the network is measured on held-out images, read through every theory, and stored: the best one for exchange, the state of
the training to go on from. What is interrupted is continued bit for bit on the same machine, unless it is trained by the clock.
The test images are looked at once, at the end, with the network that was best on the held-out ones.
"""

import contextlib
import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import NotConverged
from ..core.measurement import Row
from ..core.result import Result, provenance
from ..core.sources import Source
from ..core.theory import Theory
from ..data.image_data import Images
from ..theories import THEORIES
from . import checkpoint, saved
from .average import exponential_average
from .batches import DRAWS, WEIGHTS, Batches, seed_of
from .evaluate import of_test
from .faults import finite, where_not_finite
from .folder import BEST, LAST, TABLE, check_unused, claimed, remove
from .networks import Pixels
from .objectives import CrossEntropy, Objective
from .observe import Observer
from .optimisers import optimiser, scale
from .processes import Hardware, cuts, gathered, launched, set_up, tells_of_loss
from .schedule import warm_up_cosine
from .settings import Settings
from .states import full, load_network, load_optimiser, whole
from .table import Table

HINT = "begin again with a lower learning_rate, or a lower clip"
MEASURED_AT_A_TIME = 512  # held-out images
SOURCE = Source("loshchilov2019decoupled")


@dataclass(frozen=True)
class Moment:
    """Where a training is, for whoever watches it.

    Attributes:
        step, epoch: taken so far, the last in part.
        done: share of the training, in [0, 1].
        seconds: since it began, interruptions left out.
        speed: images a second since the last interval, readings left out; None before the first step.
        loss: of the last step, or at an interval the mean since the one before; None before the first step.
        measured: on the held-out images, at an interval; else None.
    """

    step: int
    epoch: float
    done: float
    seconds: float
    speed: float | None
    loss: float | None
    measured: dict[str, float] | None = None

    @property
    def left(self) -> float | None:
        """Seconds that it will take yet, at the pace so far."""
        return self.seconds * (1 - self.done) / self.done if self.done else None


def train(
    data: tuple[Images, Images],
    settings: Settings,
    folder: str | Path,
    *,
    objective: Objective | None = None,
    theories: Sequence[Theory] = THEORIES,
    hardware: Hardware | None = None,
    resume: bool = False,
    tell: Callable[[Moment], None] = lambda moment: None,
) -> Result:
    """Trains a network on images and stores it with all that was read.

    Args:
        data: training and test images.
        settings: what is trained, and how.
        folder: gets ``best.safetensors`` (see :mod:`.saved`), ``last.pt`` (see :mod:`.checkpoint`) and the result; it may hold no
            training yet, unless ``resume``.
        objective: cross-entropy if not given.
        theories: that read the network at each interval.
        hardware: chosen by what there is if not given.
        resume: goes on from the checkpoint in the folder, which must be of the same training; one that has ended is left as it is.
        tell: called after each step and at each interval.
    Returns:
        The result as it is stored: rows of theory "network" (loss, speed, measures) and of the theories, with ``step``.
    Raises:
        ValueError: settings, data and folder do not fit.
        FileExistsError: the folder holds something, or another training is at work there.
        NotConverged: the loss or its gradient is not finite; step and layer are named, the last checkpoint stays.
        OSError: the folder cannot be written, or another process of this training has gone; the last checkpoint stays.
    """
    folder, objective = Path(folder), objective or CrossEntropy()
    if not resume:
        check_unused(folder)
    hardware = (hardware or Hardware()).resolved()
    run = {
        "settings": asdict(settings),
        "objective": {"name": objective.name, **asdict(objective)},  # pyright: ignore[reportArgumentType]
        "precision": hardware.precision,
        "data": data[0].name,
        "images": checkpoint.digest(data[0]),
        "theories": [theory.name for theory in theories],
    }
    table, found = Table(folder / TABLE), None
    if resume:
        found = checkpoint.load(folder / LAST, run=run)
        table = Table.read(folder / TABLE, found.rows)
        if table.ended:
            return Result.load(folder)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return _Training(data, settings, folder, objective, theories, hardware, run, table, found, tell).run()


class _Training:
    def __init__(
        self,
        data: tuple[Images, Images],
        settings: Settings,
        folder: Path,
        objective: Objective,
        theories: Sequence[Theory],
        hardware: Hardware,
        run: dict[str, Any],
        table: Table,
        found: checkpoint.Checkpoint | None,
        tell: Callable[[Moment], None],
    ):
        self.settings, self.folder, self.objective, self.tell = settings, folder, objective, tell
        self.run_of, self.table = run, table
        images, self.test = data
        self.kept, self.held = settings.split(images)
        self.sizes = settings.sizes(image_size=images.size, channels=images.channels, num_classes=images.classes)
        self.fabric = launched(hardware)
        self.raw = self._network(0)
        if cuts(self.fabric) and settings.average:
            raise ValueError(f"strategy 'fsdp' keeps no running mean, got average {settings.average}; pass --average 0 or --strategy ddp")
        plain = copy.deepcopy(self.raw).to(self.fabric.device) if cuts(self.fabric) else self.raw
        self.compiled = hardware.compile
        if self.compiled:
            self.raw.compile()
        self.model, self.optimiser = set_up(self.fabric, self.raw, self._optimiser)
        self.average = exponential_average(self.raw, decay=settings.average) if settings.average else None
        self.evaluated = plain if self.average is None else self.average.module  # what is measured, read and kept
        self.batches = Batches(
            self.kept.pixels,
            self.kept.labels,
            classes=images.classes,
            batch_size=settings.batch_size,
            change=settings.changes,
            seed=settings.seed,
            fabric=self.fabric,
        )
        self.interval = settings.interval or self.batches.an_epoch
        self.steps = settings.epochs * self.batches.an_epoch
        self.observer = Observer(self.held, theories, name=settings.network, untrained=lambda number: self._network(1 + number))
        self.provenance = provenance(seed=settings.seed, device=str(self.fabric.device)) | {
            "parameters": sum(parameter.numel() for parameter in plain.parameters() if parameter.requires_grad),
            "held_out_images": len(self.held),
            "test_images": len(self.test),
            "processes": self.fabric.world_size,
        }
        self.step, self.stored, self.before, self.best = 0, None, 0.0, None
        self.sources = tuple(dict.fromkeys([SOURCE, *images.sources, *(source for theory in theories for source in theory.sources)]))
        if found is not None:
            self._go_on(found)

    def _network(self, number: int) -> Pixels:
        """A network with its first weights: number 0 is trained, the others are its nulls."""
        torch.manual_seed(seed_of(self.settings.seed, WEIGHTS, number))
        network = self.objective.network(self.settings.network, self.sizes)
        if number:
            return Pixels(network, self.raw.mean.flatten(), self.raw.std.flatten())
        return Pixels.centring(network, self.kept.pixels)

    def _optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        own = self.settings
        return optimiser(
            network,
            name=own.optimiser,
            learning_rate=own.learning_rate,
            weight_decay=own.weight_decay,
            layer_decay=own.layer_decay,
        )

    def _go_on(self, found: checkpoint.Checkpoint) -> None:
        try:
            load_network(saved.network_of(self.raw), found.network)
            load_optimiser(self.optimiser, found.optimiser)
            if self.average is not None:
                load_network(self.average, found.average or {})
        except ValueError as error:
            raise ValueError(f"{self.folder / LAST} does not fit its own settings: {error}; begin again without --resume") from error
        if (self.folder / BEST).exists():
            saved.load(self.folder / BEST)  # a damaged one is told of now, not at the end
            self.best = found.best
        self.observer.remember(found.memory)
        self.step, self.stored, self.before = found.step, found.step, found.seconds

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
                if not tells_of_loss(error):
                    raise
                raise ConnectionError(f"another process of this training has gone; {self._kept()}, --resume goes on from it") from error
            finally:
                if first and self.stored is None:
                    remove(self.folder)

    def _run(self) -> Result:
        self.began = time.perf_counter()
        self._fresh()
        if self.stored is None:
            self._interval()
            if self.compiled:  # which the first step would else wait for
                self.fabric.backward(self._loss(*self._draw()))
                self.optimiser.zero_grad()
            self.began, self.before = time.perf_counter(), 0.0  # the clock, which the learning rate may follow, starts with the first step
        while (done := self._done()) < 1:
            self._step(done)
            if self.step % self.interval == 0:
                self._interval()
        if self.step != self.stored:
            self._interval()
        self._test()
        return self._result()

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def _done(self) -> float:
        """Share of the training; the processes agree on it."""
        done = self._share()
        if self.settings.minutes is None or self.fabric.world_size == 1:
            return done
        return float(self.fabric.all_reduce(torch.tensor(done, device=self.fabric.device), reduce_op="max"))  # pyright: ignore

    def _share(self) -> float:
        return self.step / self.steps if self.settings.minutes is None else min(1.0, self.seconds() / (60 * self.settings.minutes))

    def _fresh(self) -> None:
        """Begins to count what is told at the next interval."""
        self.total, self.counted, self.worked = 0.0, 0, 0.0

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Images and targets of the step; the random numbers that follow are the step's own too."""
        torch.manual_seed(seed_of(self.settings.seed, DRAWS, self.step))
        return self.batches[self.step]

    def _loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(self.model, images, targets, lambda own: gathered(self.fabric, own))

    def _step(self, done: float) -> None:
        started = time.perf_counter()
        by_steps = self.settings.minutes is None
        scale(self.optimiser, warm_up_cosine((self.step + 1) / (self.steps + 1) if by_steps else done, warm_up=self.settings.warm_up))
        images, targets = self._draw()
        try:
            loss = self._loss(images, targets)
        except (ValueError, ArithmeticError, RuntimeError) as error:  # an objective may refuse what is not finite
            self._fail(str(error), images, error)
            raise
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(self.model, self.optimiser, max_norm=self.settings.clip, error_if_nonfinite=False)
        value, size = torch.stack([full(loss.detach()), full(norm)]).tolist()  # pyright: ignore  # waits for the device, once a step
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
        self.tell(self._moment(value))

    def _fail(self, what: str, images: Tensor, error: Exception | None = None) -> None:
        """Raises NotConverged, unless there was an error and all that the step computes is finite: then the error has another cause."""
        where = where_not_finite(self.raw, images, lambda: self.fabric.backward(self._loss(*self._draw())))
        if error is None or where is not None:
            where = where or "every output and gradient is finite"
            raise NotConverged(f"step {self.step + 1}: {what}; {where}; {self._kept()}; {HINT}", state=self.raw) from error

    def _kept(self) -> str:
        return f"{self.folder / LAST} holds the last good state, of step {self.stored}"

    def _moment(self, loss: float | None, measured: dict[str, float] | None = None) -> Moment:
        speed = self.counted * self.batches.size / self.worked if self.counted else None
        return Moment(self.step, self.step / self.batches.an_epoch, self._share(), self.seconds(), speed, loss, measured)

    def _interval(self) -> None:
        """Measures, reads and stores."""
        loss = None
        if self.counted:
            mean = torch.tensor(self.total / self.counted, device=self.fabric.device)
            loss = float(self.fabric.all_reduce(mean, reduce_op="mean"))  # pyright: ignore[reportArgumentType]
        first = self.fabric.is_global_zero
        weights = whole(saved.network_of(self.raw).state_dict())
        stepped = whole(self.optimiser.state_dict()) if first or cuts(self.fabric) else {}  # all take part where each holds a share
        if wrong := [name for name, weight in weights.items() if not finite([weight])]:
            raise NotConverged(f"step {self.step}: {wrong[0]} is not finite after it; {self._kept()}; {HINT}", state=self.raw)
        if cuts(self.fabric):
            load_network(saved.network_of(self.evaluated), weights)
        measured = self._measure(self.held)
        read = self.observer.read(self.evaluated, self.step)
        moment = self._moment(loss, measured)
        told = {"loss": loss, "images per second": moment.speed, "seconds": moment.seconds, **measured}
        self._note({quantity: value for quantity, value in told.items() if value is not None}, self.step)
        self.table.rows += read
        if first:
            self._store(weights, stepped, measured[self.objective.score])
        self.stored = self.step
        self.tell(moment)
        self._fresh()

    def _store(self, weights: dict[str, Tensor], stepped: dict[str, Any], score: float) -> None:
        """Writes the network if it is the best so far, the table, and last what a resumed training goes on from."""
        try:
            if self.best is None or score >= self.best:  # of equals the later, which has learned more
                self.best = score
                self._keep(score)
            if self.stored is None:
                self._result().write_into(self.folder, growing=True)
            self.table.write()
            checkpoint.Checkpoint(
                run=self.run_of,
                step=self.step,
                seconds=self.seconds(),
                best=self.best,
                rows=len(self.table.rows),
                network=weights,
                optimiser=stepped,
                average=None if self.average is None else whole(self.average.state_dict()),
                memory=self.observer.memory(),
            ).save(self.folder / LAST)
        except OSError as error:
            kept = "nothing was stored" if self.stored is None else f"{self._kept()}, --resume goes on from it"
            raise OSError(f"cannot write to {self.folder} ({error.strerror or error}); {kept}") from error

    def _measure(self, images: Images) -> dict[str, float]:
        pairs = ((part.pixels, part.labels) for part in (self.kept, images))
        return self.objective.measure(self.evaluated, *pairs, batch_size=MEASURED_AT_A_TIME)

    def _note(self, found: dict[str, float], step: int) -> None:
        for quantity, value in found.items():
            self.table.rows.append(Row(theory="network", quantity=quantity, value=value, model=self.settings.network, step=step))

    def _keep(self, score: float) -> None:
        inner = saved.network_of(self.evaluated)
        assert isinstance(self.raw, Pixels)
        saved.save(
            self.folder / BEST,
            inner.state_dict(),
            network=self.settings.network,
            sizes=self.sizes,
            objective=self.objective,
            mean=self.raw.mean,
            std=self.raw.std,
            names=self.kept.names,
            origin={"data": self.run_of["data"], "step": self.step, "seed": self.settings.seed, self.objective.score: score},
        )

    def _test(self) -> None:
        """What the best network makes of the test images, looked at once."""
        self.fabric.barrier()
        best = saved.load(self.folder / BEST)
        self.evaluated = best.model.to(self.fabric.device)
        self._note(of_test(self._measure(self.test)), best.origin["step"])
        self.provenance["seconds"] = round(self.seconds(), 3)
        if self.fabric.is_global_zero:
            self._result().write_into(self.folder)

    def _result(self) -> Result:
        return Result("train", self.run_of, self.table.rows, {}, self.sources, self.provenance)
