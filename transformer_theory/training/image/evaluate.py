"""Evaluation of stored networks on test images: the objective's measurements, scores per class, and metrics.

Metrics are compared with their values in copies of equal scale and in untrained networks. A network's *run*
is the result that ``train`` wrote into the folder of its file. If several files of one folder are loaded,
only the first gets the run.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ...core.measurement import Measurement
from ...core.result import Result
from ...core.statistics import EQUAL_SCALE, HEADLINE_DRAWS, RANGE_DRAWS, fixed_generator, with_interval
from ...core.table import Arrays, Table
from ...data.image_data import Images
from ...models import build
from ...models.copies import Copies
from ...models.image_networks import Builder
from ...models.stored import network_file
from ...probes.attention_maps import attention_maps, first_samples
from ..monitor import MAP_NUMBERS, PICTURED, SAMPLES, Metrics, Monitor, measured_network
from ..objectives import ACCURACY, OBJECTIVES, Objectives
from ..objectives.masked_autoencoding import Completion
from ..objectives.protocol import outputs, scaled
from .saved import Saved, load
from .settings import Settings

PER_PASS = 512  # images per forward pass
SMALL = 2**20  # parameters up to which a network has all copies
SMALL_COPIES, LARGE_COPIES = 99, 39  # copies of equal scale of small and of larger networks
# settings that comparisons of runs need
RUN = ("settings", "images", "data", "score", "precision", "train_samples", "validation_samples")


@dataclass(frozen=True, eq=False)
class StoredNetwork:
    """A trained network, with a name that is unique among the networks loaded with it.

    Attributes:
        name: name of the network, with its folder if the name alone is ambiguous.
        saved: network and its origin.
        file: file of the network; None for a network in memory.
        run: result of the training; None if the file's folder has no result, or if another network of the
            folder has it.
    """

    name: str
    saved: Saved
    file: Path | None = None
    run: Result | None = None

    @property
    def step(self) -> int:
        """Number of steps that the network was trained for."""
        return int(self.saved.origin.get("step", 0))

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(
            parameter.numel() for parameter in self.saved.model.parameters() if parameter.requires_grad
        )

    @property
    def measured(self) -> nn.Module:
        """The network whose activations are measured, see :func:`.monitor.measured_network`."""
        return measured_network(self.saved.model)

    @property
    def last_block(self) -> int | str:
        """The last block of :attr:`measured`, for :func:`~transformer_theory.probes.features.features`."""
        network = self.saved.model.network
        if not isinstance(network, Completion):
            return -1
        return f"network.autoencoder.blocks.{len(network.autoencoder.blocks) - 1}"


def load_stored_networks(
    models: Sequence[str | Path | Saved],
    images: Images,
    *,
    objectives: Objectives = OBJECTIVES,
    networks: Mapping[str, Builder] | None = None,
    device: str = "cpu",
) -> list[StoredNetwork]:
    """Loads networks, each once and with a unique name.

    Args:
        models: files that ``train`` wrote, folders of runs, or results of :func:`.saved.load`.
        images: images on which the networks will be measured.
        objectives: classes of objectives by name; those of theories must be passed.
        networks: builders of your networks by name, as they were passed to the training.
        device: torch device of the networks.
    Raises:
        ValueError: a file is not a trained network, or the images differ from those of its training in shape
            or classes.
        FileNotFoundError: there is no such file.
    """
    files = [model if isinstance(model, Saved) else network_file(os.path.abspath(model)) for model in models]
    # Keep the first of several equal paths or networks.
    files = [file for i, file in enumerate(files) if file not in files[:i]]
    loaded = [
        file if isinstance(file, Saved) else load(file, objectives=objectives, networks=networks)
        for file in files
    ]
    names = _unique_names(
        [
            (saved.network, () if isinstance(file, Saved) else _folders(file))
            for file, saved in zip(files, loaded)
        ]
    )
    results: list[StoredNetwork] = []
    for file, name, saved in zip(files, names, loaded):
        check_images(saved, images, name if isinstance(file, Saved) else str(file))
        saved.model.to(device).eval()
        if isinstance(file, Saved):
            results.append(StoredNetwork(name, saved))
        else:
            has_owner = any(
                other.run is not None and other.file is not None and other.file.parent == file.parent
                for other in results
            )
            results.append(StoredNetwork(name, saved, file, None if has_owner else _run(file.parent, saved)))
    return results


def _folders(file: Path) -> tuple[str, ...]:
    """Returns the folders of a file, outermost first. The last includes the file's name unless it is the best
    network of its run.
    """
    *above, folder = file.parent.parts
    return (*above, folder if file.stem == "best" else f"{folder}/{file.stem}")


def _unique_names(networks: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Returns the networks' names with as few folders as make them unique; if all folders do not suffice,
    names are numbered.
    """
    names = [network for network, _ in networks]
    for length in range(1, 1 + max((len(folders) for _, folders in networks), default=0)):
        names = [_full_name(network, folders[-length:]) for network, folders in networks]
        if len(set(names)) == len(names):
            return names
    return [
        f"{name}, {names[: i + 1].count(name)}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def _full_name(network: str, folders: Sequence[str]) -> str:
    """Returns a network's name with its folders, in which special characters are replaced."""
    # Names occur in figures, where $ begins a formula, and before "::" in names of arrays.
    text = re.sub(r"[^\w .,+=@()/-]", "_", "/".join(folders))
    return network if text in ("", network) else f"{network} ({text})"


def _run(folder: Path, saved: Saved) -> Result | None:
    """Returns the result in a folder if it is the training of the network; otherwise None.

    Raises:
        ValueError: the result cannot be read, or lacks settings of a training.
    """
    if not (folder / "result.json").is_file():
        return None
    run = Result.load(folder)
    if not is_run_of(saved, run):
        return None
    if missing := [name for name in RUN if name not in run.settings]:
        raise ValueError(
            f"{folder} must hold the settings of a training, {missing[0]} is missing in result.json; train "
            "it again"
        )
    return run


def is_run_of(saved: Saved, result: Result) -> bool:
    """Returns whether a result is the training that produced a network."""
    return result.name == "train" and result.settings.get("run_id") == saved.origin.get("run_id", "")


def check_images(saved: Saved, images: Images, where: str) -> None:
    """Checks that images have the size, channels and classes of the network's training.

    Raises:
        ValueError: size, channels or classes differ; the message begins with ``where``.
    """
    expected = (saved.sizes.channels, saved.sizes.image_size, saved.sizes.image_size)
    if tuple(images.pixels.shape[1:]) != expected:
        shape = f"{list(images.pixels.shape[1:])} of {images.name}"
        hint = f"choose the data of its training; a folder of images takes size={saved.sizes.image_size}"
        raise ValueError(f"{where} needs images {list(expected)}, got {shape}; {hint}")
    if images.names != saved.names:
        names, others = ", ".join(saved.names[:3]), ", ".join(images.names[:3])
        raise ValueError(
            f"{where} classifies {names}, ..., got {others}, ...; choose the data of its training"
        )


def training_images(network: StoredNetwork, train: Images) -> Images:
    """Returns the images that the network was trained on, without validation images; all of ``train`` if the
    network has no run.

    Args:
        network: network whose training split is reproduced.
        train: all training images.
    """
    folder = None if network.file is None else network.file.parent
    try:
        run = network.run or (None if folder is None else _run(folder, network.saved))
        return train if run is None else Settings.from_stored(run.settings["settings"]).split(train)[0]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return train


def measure_objective(network: StoredNetwork, train: Images, test: Images) -> list[Measurement]:
    """Returns the objective's measurements on the test images, with split "test"; shares have a
    Clopper-Pearson interval.

    Args:
        network: network to measure.
        train: all training images; objectives without a classifier fit a simple one to the images that the
            network was trained on.
        test: images that were used neither for the training nor for the selection of the network.
    """
    pairs = ((images.pixels, images.labels) for images in (training_images(network, train), test))
    rows = network.saved.objective.measure(network.saved.model, *pairs, batch_size=PER_PASS)
    data = network.saved.origin.get("data", test.name)
    note = f"step {network.step:,}, {network.parameters:,} parameters" + (
        f", trained on {data}" if data != test.name else ""
    )
    return [with_interval(replace(row, split="test", model=network.name, note=note)) for row in rows]


def measure_metrics(
    network: StoredNetwork, images: Images, *, metrics: Metrics, split: str = "test"
) -> tuple[list[Measurement], list[list[Measurement]]]:
    """Measures metrics of a network per layer and head, and in untrained networks of the same sizes.

    Returns the rows, with null distributions (see :class:`.Monitor`), and the rows of each untrained network.

    Args:
        network: network to measure.
        images: images in random order.
        metrics: function that makes new metrics.
        split: column ``split`` of the rows.
    """
    saved, generator = network.saved, fixed_generator()

    def untrained(number: int) -> nn.Module:
        return saved.model.around(build(saved.untrained, generator))

    monitor = Monitor(
        images, metrics, name=network.name, untrained=untrained, split=split, networks=RANGE_DRAWS
    )
    return monitor.measure(saved.model, network.step, draws=HEADLINE_DRAWS), monitor.untrained


def measure_copies(
    network: StoredNetwork, images: Images, *, metrics: Metrics, split: str = "test"
) -> tuple[list[Measurement], list[list[Measurement]]]:
    """Measures metrics of a network and of its copies of equal scale on the same images, the first
    :data:`~..monitor.SAMPLES`; returns the rows of the network and those of each copy.

    Args:
        network, images, metrics, split: see :func:`measure_metrics`.
    """
    drawn, number = Copies(network.saved.model), SMALL_COPIES if network.parameters <= SMALL else LARGE_COPIES

    def measured(model: nn.Module) -> list[Measurement]:
        monitor = Monitor(images[:SAMPLES], metrics, name=network.name, untrained=None, split=split)
        return monitor.measure(model, network.step, draws=0)

    copies = [measured(drawn.draw(EQUAL_SCALE, index)) for index in range(number)]
    return measured(network.saved.model), copies


def timeline(network: StoredNetwork) -> Table:
    """Returns the measurements during the training of a network, without those on test images."""
    table = Table() if network.run is None else network.run.table
    return table.where(lambda row: row.step is not None and row.split != "test").replace(model=network.name)


def maps(network: StoredNetwork, images: Images) -> Arrays:
    """Returns attention maps on the first images, and the network's step; empty if the network has no
    attention maps.

    The maps are ``network/<name>/attention``, [1, layers, heads, images, queries, keys].
    """
    model = network.measured
    pixels = scaled(images.pixels[:PICTURED], next(model.parameters()))
    attention = attention_maps(model, pixels, keep=PICTURED)
    attention = None if attention is None else first_samples(attention, MAP_NUMBERS)
    if attention is None or not attention.size:
        return Arrays()
    return Arrays(
        {
            f"network/{network.name}/attention": attention[None],
            f"network/{network.name}/steps": np.array([network.step]),
        }
    )


@dataclass(frozen=True)
class ClassScore:
    """Scores of a classifier on one class.

    Attributes:
        name: name of the class.
        images: number of images of the class.
        recall: share of these images that are assigned to the class.
        precision: share of the images assigned to the class that belong to it.
        confused: most frequent wrong prediction for images of the class; None if all predictions are right.
    """

    name: str
    images: int
    recall: float
    precision: float
    confused: str | None


def evaluate(
    network: str | Path,
    train: Images,
    test: Images,
    *,
    objectives: Objectives = OBJECTIVES,
    networks: Mapping[str, Builder] | None = None,
) -> tuple[list[Measurement], list[ClassScore]]:
    """Measures a stored network on test images.

    Args:
        network: path of a file or a run, see :func:`.saved.load`.
        train: training images; objectives without a classifier fit a simple one to the images that the
            network was trained on.
        test: images with the size and the classes of the training.
        objectives: classes of objectives by name; those of theories must be passed.
        networks: builders of your networks by name, as they were passed to the training.
    Returns:
        The rows of :func:`measure_objective`, and the scores per class, which are empty unless the network is
        a classifier.
    Raises:
        ValueError: the file is not a trained network, or the images differ from those of its training in
            shape or classes.
        FileNotFoundError: there is no such file.
    """
    file = network_file(network)
    saved = load(file, objectives=objectives, networks=networks)
    check_images(saved, test, str(network))
    stored = StoredNetwork(saved.network, saved, file)
    rows = measure_objective(stored, train, test)
    if not Table(rows).select(quantity=ACCURACY) or stored.saved.sizes.num_classes != test.classes:
        return rows, []
    return rows, class_scores(outputs(stored.saved.model, test.pixels, batch_size=PER_PASS).argmax(1), test)


def class_scores(predicted: torch.Tensor, images: Images) -> list[ClassScore]:
    """Returns the scores per class; ``predicted`` holds the predicted class of each image, ``[n]``."""
    return list(_class_scores(predicted, images))


def _class_scores(predicted: torch.Tensor, images: Images) -> Iterator[ClassScore]:
    # Confusion matrix: rows are true classes, columns predicted ones.
    counts = torch.zeros(images.classes, images.classes, dtype=torch.int64)
    counts.index_put_((images.labels, predicted), torch.ones((), dtype=torch.int64), accumulate=True)
    for number, name in enumerate(images.names):
        row, count = counts[number].clone(), int(counts[number].sum())
        right = int(row[number])
        row[number] = 0
        confused = images.names[int(row.argmax())] if int(row.sum()) else None
        yield ClassScore(
            name, count, right / max(1, count), right / max(1, int(counts[:, number].sum())), confused
        )
