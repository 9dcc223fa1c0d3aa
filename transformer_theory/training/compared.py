"""Trained networks side by side: each with a name of its own, the run that it comes from, and what is read of it on test images.

A network's *run* is the result that ``train`` has left beside its file. Of several files of one run the first has it.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..core.measurement import Arrays, Row
from ..core.notes import common, is_share, joined, percent
from ..core.result import Result
from ..core.statistics import share_interval
from ..core.theory import Theory
from ..data.image_data import Images
from ..models import build
from ..probes import AttentionMaps, NoAttention, probe
from .evaluate import check_fits, is_run_of, learned_from, of_test
from .folder import network_file
from .networks import Pixels
from .objectives.masked_autoencoding import Completion
from .objectives.reading import scaled
from .observe import Observer, reader_of
from .saved import Saved, load

AT_A_TIME = 512  # images whose classes are told together
PICTURED = 6  # images whose attention maps are kept
MAPPED = 2**22  # numbers in them, 32 MiB in the arrays; larger maps are left out


@dataclass(frozen=True, eq=False)
class Compared:
    """A trained network that is compared with others.

    Attributes:
        name: of the network and, where that does not tell it, of the folder; no two are alike.
        saved: the network and where it comes from.
        file: it was read from; None if it was in memory.
        run: the result of its training; None if it is not beside the file, or another network has it already.
    """

    name: str
    saved: Saved
    file: Path | None = None
    run: Result | None = None

    @property
    def step(self) -> int:
        """Steps it was trained for."""
        return int(self.saved.origin.get("step", 0))

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self.saved.model.parameters() if parameter.requires_grad)

    @property
    def reader(self) -> nn.Module:
        """The network as theories read it, images in [0, 1] in: of a masked autoencoder the encoder, with nothing hidden."""
        return reader_of(self.saved.model)

    @property
    def last_block(self) -> int | str:
        """Which block of the reader is the last, for :func:`~..data.bridges.features`."""
        inner = self.saved.model.network
        if not isinstance(inner, Completion):
            return -1
        return f"network.autoencoder.blocks.{len(inner.autoencoder.blocks) - 1}"

    def tested(self, train: Images, test: Images) -> Iterator[Row]:
        """What the objective measures, on all test images, one row a quantity; a share with its Clopper-Pearson interval in the note.

        Args:
            train: from those of them that the network learned from, objectives without a classifier learn a simple one.
            test: neither trained nor chosen on.
        """
        known = train if self.file is None else learned_from(self.file, self.saved, train)
        pairs = ((images.pixels, images.labels) for images in (known, test))
        told = self.saved.origin.get("data", test.name)
        measured = self.saved.objective.measure(self.saved.model, *pairs, batch_size=AT_A_TIME)
        for name, value in of_test(measured).items():
            notes = [f"{len(test):,} test images"]
            if is_share(name):
                notes.append(interval(value, len(test)))
            notes.append(f"step {self.step:,}, {self.parameters:,} parameters")
            if told != test.name:
                notes.append(f"trained on {told}")
            yield Row(
                theory="network",
                quantity=name,
                value=value,
                model=self.name,
                note=", ".join(filter(None, notes)),
            )

    def observed(self, images: Images, theories: Sequence[Theory], *, seed: int) -> list[Row]:
        """What the theories read in it, layer by layer and head by head, beside their nulls; :class:`.Observer` says on how many images.

        Args:
            images: in random order.
            theories: with the order parameters.
            seed: of the untrained networks of the same sizes behind the null "random weights".
        """
        saved, generator = self.saved, torch.Generator().manual_seed(seed)
        own = next(saved.model.parameters())

        def untrained(number: int) -> nn.Module:
            fresh = build(lambda: saved.objective.network(saved.network, saved.sizes), generator)
            return Pixels(fresh, saved.model.mean.flatten().cpu(), saved.model.std.flatten().cpu()).to(own.device)

        return Observer(images, theories, name=self.name, untrained=untrained, kind="test").read(saved.model, self.step)

    def timeline(self) -> list[Row]:
        """What was read of it while it was trained, held-out images throughout; the test rows at the end of a run are left out."""
        table = [] if self.run is None else self.run.table
        return [row | {"model": self.name} for row in table if "step" in row and not row["quantity"].startswith("test ")]  # pyright: ignore

    def maps(self, images: Images) -> Arrays:
        """Attention on the first images, ``network/<name>/attention`` [1, layers, heads, images, queries, keys], with its step; nothing if
        the network has no such maps, or they differ in shape or are too large to be kept."""
        keeper, reader, shown = AttentionMaps(keep=PICTURED), self.reader, images[:PICTURED]
        try:
            with probe(reader, [keeper]) as p, torch.no_grad():
                reader(scaled(shown.pixels, next(reader.parameters())))
        except NoAttention:
            return Arrays()
        found = p.result().arrays
        kept = [found[name].swapaxes(0, 1).astype(np.float32) for name in sorted(found)]
        if len({maps.shape for maps in kept}) != 1 or sum(maps.size for maps in kept) > MAPPED:
            return Arrays()
        return Arrays({f"network/{self.name}/attention": np.stack(kept)[None], f"network/{self.name}/steps": np.array([self.step])})


def interval(share: float, n: int) -> str:
    """In words, the 95 % interval that n images leave a share open; empty where the share is of something else."""
    ends = share_interval(share, n)
    return "" if ends is None else f"95 % interval {percent(ends[0])} to {percent(ends[1])}"


def compared(models: Sequence[str | Path | Saved], images: Images, *, device: str = "cpu") -> list[Compared]:
    """Networks of files, of the folders of runs, or in memory, each once and with a name of its own.

    Args:
        models: files that ``train`` has saved, folders of runs, or what :func:`.saved.load` gave.
        images: they are to read.
        device: they are moved to.
    Raises:
        ValueError: a file is no trained network, or the images do not fit it.
        FileNotFoundError: there is none.
    """
    files = [given if isinstance(given, Saved) else network_file(os.path.abspath(given)) for given in models]
    files = [given for i, given in enumerate(files) if all(given is not other and given != other for other in files[:i])]
    read = [given if isinstance(given, Saved) else load(given) for given in files]
    names = _names([(one.network, () if isinstance(given, Saved) else _place(given)) for given, one in zip(files, read)])
    found: list[Compared] = []
    for given, name, one in zip(files, names, read):
        check_fits(one, images, name if isinstance(given, Saved) else str(given))
        one.model.to(device).eval()
        if isinstance(given, Saved):
            found.append(Compared(name, one))
        else:
            told = any(other.run is not None and other.file is not None and other.file.parent == given.parent for other in found)
            found.append(Compared(name, one, given, None if told else _run(given.parent, one)))
    return found


def _place(file: Path) -> tuple[str, ...]:
    """Folders of a file, the last with the file unless that is the best of its run."""
    *above, folder = file.parent.parts
    return (*above, folder if file.stem == "best" else f"{folder}/{file.stem}")


def _names(found: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """The networks' names with as many folders as tell them apart; those that nothing tells apart are numbered."""
    names = [network for network, _ in found]
    for length in range(1, 1 + max((len(place) for _, place in found), default=0)):
        names = [_name(network, place[-length:]) for network, place in found]
        if len(set(names)) == len(names):
            return names
    return [f"{name}, {names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _name(network: str, place: Sequence[str]) -> str:
    # names stand in figures, where $ begins a formula, and before "::" in names of arrays
    told = re.sub(r"[^\w .,+=@()/-]", "_", "/".join(place))
    return network if told in ("", network) else f"{network} ({told})"


def _run(folder: Path, saved: Saved) -> Result | None:
    """The training in a folder, if the network is of it.

    Raises:
        ValueError: what is there cannot be read.
    """
    if not (folder / "result.json").is_file():
        return None
    run = Result.load(folder)
    return run if is_run_of(saved, run.name, run.params) else None


def by_layer(theories: Sequence[Theory], readings: Sequence[Row]) -> Iterator[Row]:
    """The order parameters of one reading layer by layer, mean over heads, each beside the mean of its nulls.

    Args:
        readings: rows of :meth:`Compared.observed`.
    """
    for theory in theories:
        own = [row for row in readings if (row["theory"], row["quantity"]) == (theory.name, theory.order_parameter)]
        own = [row for row in own if row["value"] is not None and row.get("layer") is not None]
        for layer in sorted({row.get("layer", 0) for row in own}):
            heads = [row for row in own if row.get("layer") == layer]
            nulls = [null for row in heads if (null := row.get("null")) is not None]
            row = Row(
                theory=theory.name,
                quantity=f"{theory.order_parameter} in a trained layer",
                value=_mean([float(row["value"] or 0.0) for row in heads]),
                layer=layer,
                source=str(theory.sources[0]),
                note=joined(f"mean over {len(heads)} heads" if len(heads) > 1 else None, common(heads)),
            )
            yield row | {"null": _mean(nulls)} if nulls else row  # pyright: ignore[reportReturnType]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
