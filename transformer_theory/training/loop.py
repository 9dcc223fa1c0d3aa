"""Training on images: a network, an objective and an optimiser, step after step, while every theory reads the network.

At each interval the network is measured on held-out images, read through every theory, and stored: the best one for exchange, the state of
the training to go on from. What is interrupted is continued bit for bit on the same machine, unless it is trained by the clock.
The test images are looked at once, at the end, with the network that was best on the held-out ones.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..citations import Source
from ..data.images import Images
from ..errors import NotConverged
from ..experiment import Result, provenance
from ..rows import Row
from ..theories import THEORIES
from ..theory import Theory
from ..threads import one_thread
from . import checkpoint, saved
from .average import exponential_average
from .batches import DRAWS, SPLIT, WEIGHTS, Batches, seed_of
from .faults import finite, where_not_finite
from .networks import Pixels
from .objectives import CrossEntropy, Objective
from .observe import Observer
from .optimisers import optimiser, scale
from .processes import Hardware, gathered, launched
from .schedule import warm_up_cosine
from .settings import Settings

BEST, LAST = "best.safetensors", "last.pt"
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
        resume: goes on from the checkpoint in the folder, which must be of the same training.
        tell: called after each step and at each interval.
    Returns:
        The result as it is stored: rows of theory "network" (loss, speed, measures) and of the theories, with ``step``.
    Raises:
        ValueError: settings, data and folder do not fit.
        FileExistsError: the folder holds something.
        NotConverged: the loss or its gradient is not finite; step and layer are named, the last checkpoint stays.
        OSError: the folder cannot be written.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return _Training(data, settings, Path(folder), objective or CrossEntropy(), theories, hardware or Hardware(), resume, tell).run()


class _Training:
    def __init__(
        self,
        data: tuple[Images, Images],
        settings: Settings,
        folder: Path,
        objective: Objective,
        theories: Sequence[Theory],
        hardware: Hardware,
        resume: bool,
        tell: Callable[[Moment], None],
    ):
        self.settings, self.folder, self.objective, self.tell = settings, folder, objective, tell
        _check_folder(folder, resume=resume)
        whole, self.test = data
        self.kept, self.held = whole.split(1 - settings.held_out, torch.Generator().manual_seed(seed_of(settings.seed, SPLIT)))
        self.sizes = settings.sizes(image_size=whole.size, channels=whole.channels, num_classes=whole.classes)
        hardware = hardware.resolved()
        self.fabric = launched(hardware)
        self.raw = self._network(0)
        stepping = optimiser(
            self.raw,
            name=settings.optimiser,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            layer_decay=settings.layer_decay,
        )
        if hardware.compile:
            self.raw.compile()
        self.model, self.optimiser = self.fabric.setup(self.raw, stepping)
        self.average = exponential_average(self.raw, decay=settings.average) if settings.average else None
        self.batches = Batches(
            self.kept.pixels,
            self.kept.labels,
            classes=whole.classes,
            batch_size=settings.batch_size,
            change=settings.changes,
            seed=settings.seed,
            fabric=self.fabric,
        )
        self.interval = settings.interval or self.batches.an_epoch
        self.steps = settings.epochs * self.batches.an_epoch
        self.observer = Observer(self.held, theories, name=settings.network, untrained=lambda number: self._network(1 + number))
        self.run_of = {
            "settings": asdict(settings),
            "objective": {"name": objective.name, **asdict(objective)},  # pyright: ignore[reportArgumentType]
            "precision": hardware.precision,
            "data": whole.name,
            "images": checkpoint.digest(whole),
        }
        self.rows: list[Row] = []
        self.step, self.before, self.best = 0, 0.0, None
        self.sources = tuple(dict.fromkeys([SOURCE, *whole.sources, *(source for theory in theories for source in theory.sources)]))
        if resume:
            self._go_on()

    def _network(self, number: int) -> Pixels:
        """A network with its first weights: number 0 is trained, the others are its nulls."""
        torch.manual_seed(seed_of(self.settings.seed, WEIGHTS, number))
        network = self.objective.network(self.settings.network, self.sizes)
        pixels = self.kept.pixels.double().div_(255).transpose(0, 1).flatten(1)
        return Pixels(network, pixels.mean(1), pixels.std(1).clamp(min=1 / 255))

    def _go_on(self) -> None:
        found = checkpoint.load(self.folder / LAST, run=self.run_of)
        saved.network_of(self.raw).load_state_dict(found.network)
        self.optimiser.load_state_dict(found.optimiser)
        if self.average is not None and found.average is not None:
            self.average.load_state_dict(found.average)
        self.rows = Result.load(self.folder).table[: found.rows]
        if len(self.rows) < found.rows:
            raise ValueError(f"{self.folder} must hold the {found.rows} rows of its checkpoint, got {len(self.rows)}; begin again")
        self.step, self.before, self.best = found.step, found.seconds, found.best

    def run(self) -> Result:
        self.began = time.perf_counter()
        self._fresh()
        if self.step == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._interval()
        while self.done() < 1:
            self._step()
            if self.step % self.interval == 0:
                self._interval()
        if self.step % self.interval:
            self._interval()
        self._test()
        return self._result()

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def done(self) -> float:
        """Share of the training; the processes agree on it."""
        if self.settings.minutes is None:
            return self.step / self.steps
        done = min(1.0, self.seconds() / (60 * self.settings.minutes))
        if self.fabric.world_size == 1:
            return done
        return float(self.fabric.all_reduce(torch.tensor(done, device=self.fabric.device), reduce_op="max"))  # pyright: ignore

    def _fresh(self) -> None:
        """Begins to count what is told at the next interval."""
        self.total, self.counted, self.worked = torch.zeros((), device=self.fabric.device), 0, 0.0

    def _step(self) -> None:
        started = time.perf_counter()
        done = (self.step + 1) / self.steps if self.settings.minutes is None else self.done()
        scale(self.optimiser, warm_up_cosine(done, warm_up=self.settings.warm_up))
        torch.manual_seed(seed_of(self.settings.seed, DRAWS, self.step))
        images, targets = self.batches[self.step]
        loss = self.objective.loss(self.model, images, targets, lambda own: gathered(self.fabric, own))
        if not finite([loss]):
            self._fail(f"the loss is {float(loss)}", images)
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(self.model, self.optimiser, max_norm=self.settings.clip, error_if_nonfinite=False)
        if norm is not None and not finite([norm]):
            self._fail(f"the norm of the gradient is {float(norm)}", images)
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.raw)
        self.step += 1
        self.total += loss.detach()
        self.counted += 1
        self.worked += time.perf_counter() - started
        self.tell(self._moment(float(loss.detach())))

    def _fail(self, what: str, images: Tensor) -> None:
        where = where_not_finite(self.raw, images)
        kept = f"{self.folder / LAST} holds the last good state, of step {self._stored}"
        raise NotConverged(f"step {self.step + 1}: {what}; {where}; {kept}: lower learning_rate, or clip", state=self.raw)

    def _moment(self, loss: float | None, measured: dict[str, float] | None = None) -> Moment:
        speed = self.counted * self.batches.size / self.worked if self.counted else None
        done = self.step / self.steps if self.settings.minutes is None else min(1.0, self.seconds() / (60 * self.settings.minutes))
        return Moment(self.step, self.step / self.batches.an_epoch, done, self.seconds(), speed, loss, measured)

    @property
    def evaluated(self) -> nn.Module:
        """The network that is measured, read and kept: the running mean if there is one."""
        return self.raw if self.average is None else self.average.module

    def _interval(self) -> None:
        """Measures, reads and stores."""
        loss = None
        if self.counted:
            loss = float(self.fabric.all_reduce(self.total / self.counted, reduce_op="mean"))  # pyright: ignore[reportArgumentType]
        with self.fabric.autocast():
            measured = self._measure(self.held)
        with one_thread():
            read = self.observer.read(self.evaluated, self.step)
        moment = self._moment(loss, measured)
        told = {"loss": loss, "images per second": moment.speed, "seconds": moment.seconds, **measured}
        self._note({quantity: value for quantity, value in told.items() if value is not None})
        self.rows += read
        score = measured[self.objective.score]
        better = self.best is None or score > self.best
        self.best = score if better else self.best
        if self.fabric.is_global_zero:
            if better:
                self._keep(score)
            self._result().write_into(self.folder)
            self._checkpoint().save(self.folder / LAST)
        self._stored = self.step
        self.tell(moment)
        self._fresh()

    def _measure(self, images: Images) -> dict[str, float]:
        pairs = ((part.pixels, part.labels) for part in (self.kept, images))
        return self.objective.measure(self.evaluated, *pairs, batch_size=MEASURED_AT_A_TIME)

    def _note(self, found: dict[str, float]) -> None:
        for quantity, value in found.items():
            self.rows.append(Row(theory="network", quantity=quantity, value=value, model=self.settings.network, step=self.step))

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

    def _checkpoint(self) -> checkpoint.Checkpoint:
        return checkpoint.Checkpoint(
            run=self.run_of,
            step=self.step,
            seconds=self.seconds(),
            best=self.best,
            rows=len(self.rows),
            network=saved.network_of(self.raw).state_dict(),
            optimiser=self.optimiser.state_dict(),
            average=None if self.average is None else self.average.state_dict(),
        )

    def _test(self) -> None:
        """What the best network makes of the test images, looked at once."""
        self.fabric.barrier()
        best = saved.load(self.folder / BEST)
        self.average, self.raw = None, best.model.to(self.fabric.device)
        self._note({name.replace("held-out", "test"): value for name, value in self._measure(self.test).items()})
        if self.fabric.is_global_zero:
            self._result().write_into(self.folder)

    def _result(self) -> Result:
        record = provenance(seed=self.settings.seed, device=str(self.fabric.device))
        record |= {"seconds": round(self.seconds(), 3), "processes": self.fabric.world_size}
        return Result("train", self.run_of, self.rows, {}, self.sources, record)


def _check_folder(folder: Path, *, resume: bool) -> None:
    if resume:
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not folder.is_dir() or any(folder.iterdir()):
            what = "holds a training" if (folder / LAST).exists() else "holds something else" if folder.is_dir() else "is no folder"
            hint = "--resume goes on with it, --overwrite begins again" if (folder / LAST).exists() else "choose another --out"
            if folder.exists():
                raise FileExistsError(f"{folder} {what}; {hint}")
