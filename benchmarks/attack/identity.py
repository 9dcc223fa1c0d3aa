"""Work that is stopped, then continued after one thing that its numbers depend on has changed.

The command must refuse and name what differs, or give the numbers of the undisturbed run.
"""

import functools
import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from .common import NAME, ROOT, Before, Box, Case, complaints
from .fixtures import DATA, NET, QUICK, STOPPED, stop_halfway, write_images
from .results import compare

COUNT = 1  # each change is one case


def _other_image(path: Path) -> None:
    write_images(path.parent / "drawn", np.random.default_rng(99), 1)
    (path.parent / "drawn" / "0.png").replace(path)
    (path.parent / "drawn").rmdir()


def _all_other(folder: Path) -> None:
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        write_images(folder / f"drawn-{number}", np.random.default_rng(number + 100), 1)
        (folder / f"drawn-{number}" / "0.png").replace(path)
        (folder / f"drawn-{number}").rmdir()


def _fewer(folder: Path) -> None:
    for path in sorted(folder.rglob("*.png"))[::2]:
        path.unlink()


def _renamed(box: Box) -> None:
    for split in ("train", "test"):
        (box.work / "images" / split / "dog").rename(box.work / "images" / split / "wolf")


def _swapped(folder: Path) -> None:
    """Exchanges the labels of two images."""
    first, second = folder / "cat" / "0.png", folder / "dog" / "0.png"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


CHANGES: dict[str, Callable[[Box], object]] = {
    "nothing": lambda box: None,
    "a training image": lambda box: _other_image(box.work / "images/train/cat/3.png"),
    "a training image less": lambda box: (box.work / "images/train/cat/3.png").unlink(),
    "a test image": lambda box: _other_image(box.work / "images/test/cat/3.png"),
    "all test images": lambda box: _all_other(box.work / "images/test"),
    "half of the test images": lambda box: _fewer(box.work / "images/test"),
    "the name of a class": _renamed,
    "two training labels": lambda box: _swapped(box.work / "images/train"),
    "two test labels": lambda box: _swapped(box.work / "images/test"),
}
DIFFERS = ("image", "data", "class", "label", "thread", "source", "version")  # one is in a refusal
OPTIONS = (
    *("--learning-rate 0.1", "--batch-size 4", "--optimiser adamw", "--weight-decay 0.5", "--interval 3"),
    *("--seed 7", "--crop 1", "--flip 0.25", "--mixup 0.5", "--cutout 2", "--label-smoothing 0.3"),
    *("--validation-share 0.3", "--average 0.5", "--clip 0.01", "--warm-up 0.5", "--layer-decay 0.5"),
    *("--objective masked-autoencoding", "--theories none", "--precision bfloat16", "--recipe digits"),
    *("--weights trained", "--dim 16", "--depth 2", "--size 8", "--epochs 13", "--stem convolutions"),
)


def _threads() -> None:
    importlib.import_module("torch").set_num_threads(2)


def _older() -> None:
    importlib.import_module("transformer_theory").__version__ = "0.0.9"


PATCHES: dict[str, Before] = {"threads": _threads, "the version": _older, "the sources": None}
HALVED = """
import torch.nn.functional as _functional

_usual = _functional.cross_entropy
_functional.cross_entropy = lambda *given, **named: 0.5 * _usual(*given, **named)
"""


DOUBLED = """
import torch as _torch

_usual = _torch.randn
_torch.randn = lambda *given, **named: 2 * _usual(*given, **named)
"""


def _edit_sources(box: Box, text: str = HALVED) -> None:
    """Makes a copy of the library that computes something else."""
    box.library = box.path / "library"
    shutil.copytree(ROOT / NAME, box.library / NAME)
    with (box.library / NAME / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(text)
    box.note(f"the library ends with {text.splitlines()[-1]}")


def training(box: Box, way: str, change: str) -> list[str]:
    """Stops a training, or takes a finished one, changes one thing, and continues."""
    for name in ("images", "trained"):
        box.take(name)
    finished = way != "stopped"
    if finished:
        box.take("trained", "o")
        argv = (
            [*QUICK["train"], "--resume"]
            if way == "finished"
            else [*QUICK["train"], "--extend", "--epochs", "6"]
        )
    else:
        argv = [*stop_halfway(box, "o/last.pt"), "--resume"]
    if change in CHANGES:
        CHANGES[change](box)
    elif change == "the sources":
        _edit_sources(box)
    box.note(f"changed: {change}")
    more = change.split() if change in OPTIONS else []
    before: Before = PATCHES.get(change)
    return continued(box, [*argv, *more], "o", f"training-{way}", change, before)


def continued(box: Box, argv: list[str], place: str, key: str, change: str, before: Before) -> list[str]:
    """Runs the command that continues, and judges it."""
    usual = argv[: len(argv) - len(change.split())] if change in OPTIONS else argv

    def make(once: Box) -> None:
        for name in ("images", "trained"):
            once.take(name)
        if key != "training-stopped":
            once.take("trained", "o")
        once.undisturbed(*usual)

    other = box.once(key, make).work / place
    outcome = box.run(*argv, before=before, real=box.library != ROOT, limit=180)
    wrong = complaints(outcome)
    if outcome.code == 2:
        box.note("outcome: refused")
        line = outcome.err.splitlines()[-1]
        words = [*change.strip("-").split()[0].split("-"), *DIFFERS[:1]] if change in OPTIONS else DIFFERS
        return wrong + (
            [] if any(word in line for word in words) else [f"does not name what differs: {line}"]
        )
    different = compare(box.work / place, other)
    box.note(f"outcome: {'silent' if different else 'the same numbers'}")
    note = [line for line in outcome.err.splitlines() if "other sources" in line or "differ" in line]
    if different and not (note and change in PATCHES):
        wrong.append(f"goes on with other {change}, silently: {different}")
    elif not different and change in CHANGES and change != "nothing":
        wrong.append(f"takes the old numbers as if they belonged to other data ({change})")
    return wrong


def unchanged_name(
    box: Box, trace: str, change: str, edit: Callable[[Box], object], more: tuple[str, ...]
) -> list[str]:
    """Stops a measurement or a ladder, changes what it reads under the same name, and goes on."""
    for name in (*DATA, "gpt2"):
        if (box.fixtures / name).exists():
            box.take(name)
    argv = [*STOPPED[trace][:1], *more, "--out", "o"] if more else STOPPED[trace]
    stop_halfway(box, trace, argv)
    edit(box)
    box.note(f"changed: {change}")
    real = box.library != ROOT
    outcome = box.run(*argv, real=real, limit=180)
    wrong = complaints(outcome)
    if outcome.code == 2:
        box.note("outcome: refused")
        return wrong
    fresh = [*argv[: argv.index("--out")], "--out", "fresh"]
    check = box.run(*fresh, real=real, limit=180)
    different = compare(box.work / "o", box.work / "fresh")
    box.note(f"outcome: {'silent' if different else 'measured anew'}")
    silent = f"goes on with other {change}, silently: {different}"
    return wrong + complaints(check) + ([silent] if different else [])


GPT = ("gpt2", "--networks", "60", "--theories", "collapse")
UNDER_ONE_NAME: dict[str, tuple[str, Callable[[Box], object], tuple[str, ...]]] = {
    "weights of the function": (
        "o.unfinished.jsonl",
        lambda box: (box.work / "net.py").write_text(NET.replace("SEED", "1")),
        (),
    ),
    "inputs of the function": (
        "o.unfinished.jsonl",
        lambda box: (box.work / "net.py").write_text(NET.replace("SEED", "0").replace("seed(7)", "seed(8)")),
        (),
    ),
    "labels of the function": (
        "o.unfinished.jsonl",
        lambda box: (box.work / "net.py").write_text(NET.replace("SEED", "0").replace("% 3", "// 4")),
        (),
    ),
    "ids": (
        "o.unfinished.jsonl",
        lambda box: np.save(box.work / "ids.npy", np.load(box.work / "ids.npy")[::-1]),
        (*GPT, "--text", "ids.npy"),
    ),
    "configuration of the checkpoint": (
        "o.unfinished.jsonl",
        lambda box: _edit(box.work / "gpt2" / "config.json", "1e-05", "1e-01"),
        (*GPT, "--text", "ids.npy"),
    ),
    "vocabulary of the checkpoint": (
        "o.unfinished.jsonl",
        lambda box: _edit(box.work / "gpt2" / "tokenizer.json", '"cat"', '"cow"'),
        (*GPT, "--text", "text.txt"),
    ),
    "sources of the claims": ("o.unfinished", lambda box: _edit_sources(box, DOUBLED), ()),
    "text of the ladder": (
        "o/cells.jsonl",
        lambda box: _edit(box.work / "text.txt", "cat", "cow"),
        ("scan_snap", "--seeds", "3", "--workers", "1", "--data", "text.txt"),
    ),
}


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise ValueError(f"{path} has no {old}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields every change of every kind of work."""
    for way in ("stopped", "finished", "extended"):
        for change in (
            *CHANGES,
            *(PATCHES if way != "finished" else ()),
            *(OPTIONS if way != "extended" else ()),
        ):
            yield Case(f"{way}: {change}", functools.partial(training, way=way, change=change))
    for change, (trace, edit, more) in UNDER_ONE_NAME.items():
        attack = functools.partial(unchanged_name, trace=trace, change=change, edit=edit, more=more)
        yield Case(f"one name: {change}", attack)
