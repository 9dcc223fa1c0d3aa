"""Damaged, odd and hostile files, for every reader.

Stored results are sealed anew after a change, by the library's own function, so that the check of their
contents is what is tested.
"""

import contextlib
import copy
import functools
import importlib
import io
import json
import os
import random
import socket
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .common import Box, Case
from .fixtures import DATA, SIZES, STOPPED, STORES, stop_halfway

COUNT = 100
LIMIT = 30.0  # seconds
NOBODY = 65534
COMPARE = [
    "--theories",
    "collapse",
    "--networks",
    "none",
    "--seeds",
    "1",
    "--claim-seeds",
    "0",
    "--workers",
    "1",
]
GPT = ["measure", "gpt2", "--text", "ids.npy", "--networks", "0", "--theories", "collapse"]
TRAIN = ["train", "vit", "--data", "images", *SIZES, "--theories", "none", "--epochs", "1", "--out", "new"]


@dataclass(frozen=True)
class Reader:
    """A file, what it takes to read it, and the command that does; ``kind`` says how it is changed."""

    file: str
    take: tuple[str, ...]
    argv: list[str]
    kind: str = "bytes"
    stopped: str = ""  # the trace of the interrupted command that left the file
    sealed: bool = False


def _compared(data: str, theory: str = "collapse") -> list[str]:
    return ["compare", "--data", data, *COMPARE, "--theories", theory, "--out", "new"]


def _report(store: str) -> list[str]:
    return ["report", store, "--html", "page.html", "--latex", "tables", "--markdown", "page.md"]


READERS = {
    "npz": Reader("tokens.npz", ("tokens.npz",), _compared("tokens.npz")),
    "npy": Reader("ids.npy", ("ids.npy", "gpt2"), GPT),
    "txt": Reader("text.txt", ("text.txt",), _compared("text.txt")),
    "labels": Reader("labels.txt", ("labels.txt", "ids.npy", "gpt2"), [*GPT, "--labels", "labels.txt"]),
    "graphml": Reader(
        "graph.graphml", ("graph.graphml",), _compared("graph.graphml", "graph_tokens"), "text"
    ),
    "edgelist": Reader(
        "edges.edgelist", ("edges.edgelist",), _compared("edges.edgelist", "graph_tokens"), "text"
    ),
    "graphs": Reader("graphs/2.edgelist", ("graphs",), _compared("graphs", "graph_tokens"), "text"),
    "images": Reader("images/train/cat/3.png", ("images",), _compared("images")),
    "cifar": Reader("cifar/data_batch_2.bin", ("cifar",), _compared("cifar")),
    "network": Reader(
        "trained/best.safetensors", ("trained", "images"), ["evaluate", "trained", "--data", "images"]
    ),
    "weights": Reader("trained/last.pt", ("trained", "images"), [*TRAIN, "--weights", "trained/last.pt"]),
    "last": Reader("o/last.pt", ("images",), [], stopped="o/last.pt"),
    "stopped table": Reader("o/table.jsonl", ("images",), [], "json", stopped="o/last.pt"),
    "config": Reader("gpt2/config.json", ("gpt2", "ids.npy"), GPT, "json"),
    "transformer": Reader("gpt2/model.safetensors", ("gpt2", "ids.npy"), GPT),
    "result": Reader("compared/result.json", ("compared",), _report("compared"), "json", sealed=True),
    "result to cite": Reader(
        "compared/result.json", ("compared",), ["cite", "compared"], "json", sealed=True
    ),
    **{
        f"result of {command}": Reader(
            f"{folder}/result.json", (folder,), _report(folder), "json", sealed=True
        )
        for folder, command in STORES.items()
        if folder != "compared"
    },
    "table": Reader("compared/table.jsonl", ("compared",), _report("compared"), "json", sealed=True),
    "training table": Reader("trained/table.jsonl", ("trained",), _report("trained"), "json", sealed=True),
    "network table": Reader("measured/table.jsonl", ("measured",), _report("measured"), "json", sealed=True),
    "reach table": Reader("reached/table.jsonl", ("reached",), _report("reached"), "json", sealed=True),
    "arrays": Reader("trained/arrays.npz", ("trained",), _report("trained"), sealed=True),
    "verifications": Reader(
        "verified/verifications.json", ("verified",), _report("verified"), "json", sealed=True
    ),
    "cells": Reader("o/cells.jsonl", (), [], "json", stopped="o/cells.jsonl"),
    "unfinished": Reader("o.unfinished", (), [], "json", stopped="o.unfinished"),
    "unfinished measure": Reader("o.unfinished.jsonl", ("net.py",), [], "json", stopped="o.unfinished.jsonl"),
    "ledger": Reader(
        "claims.json", ("claims.json",), ["report", "claims.json", "--markdown", "page.md"], "json"
    ),
}


def furnish(box: Box, reader: Reader) -> list[str]:
    """Puts the files of a reader into the working folder and returns its command."""
    for name in reader.take:
        box.take(name)
    if not reader.stopped:
        return reader.argv

    def make(once: Box) -> None:
        for name in DATA:
            once.take(name)
        stop_halfway(once, reader.stopped)

    _copy_new(box.once(f"stopped {reader.stopped}", make).work, box.work)
    again = ["--resume"] if reader.stopped == "o/last.pt" else []
    return [*STOPPED[reader.stopped], *again]


def _copy_new(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        elif not place.exists():
            place.write_bytes(path.read_bytes())


def reseal(folder: Path) -> None:
    """Computes the checksums of a stored result anew, as far as its head still has some."""
    files = importlib.import_module("transformer_theory.core.files")
    path = folder / "result.json"
    with contextlib.suppress(ValueError, RecursionError):
        head = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(head, dict) and isinstance(head.get(files.FIELD), dict):
            names = [
                each.name for each in folder.iterdir() if each.is_file() and each.name in head[files.FIELD]
            ]
            path.write_text(json.dumps(files.sealed(head, folder, names), indent=2) + "\n", encoding="utf-8")


def change_bytes(content: bytes, chance: random.Random) -> bytes:
    """Flips, overwrites, removes, repeats or inserts a few bytes."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        size = chance.choice((1, 1, 4, 8, 64, 1024))
        middle = {
            0: chance.randbytes(size),
            1: b"",
            2: content[at : at + size] * 3,
            3: b"\0" * size,
            4: b"\xff" * size,
            5: struct.pack("<Q", chance.choice((0, 1 << 31, 1 << 50, (1 << 64) - 1))),
        }[chance.randrange(6)]
        end = at if chance.random() < 0.3 else at + max(size, len(middle))
        content = content[:at] + middle + content[end:]
        content = content[: chance.randrange(len(content) + 1)] if chance.random() < 0.1 else content
    return content


ODD_TEXT = [
    "",
    "\n",
    "\0",
    "é",
    "\udcff",
    "1e400",
    "nan",
    "-1",
    "9" * 5000,
    "&x;",
    "<a>",
    '"',
    "\t",
    "#",
    ",",
]


def change_text(content: bytes, chance: random.Random) -> bytes:
    """Replaces, removes or doubles words of a text."""
    words = content.decode().replace("<", " <").split(" ")
    for _ in range(chance.choice((1, 2, 5))):
        at = chance.randrange(len(words))
        words[at : at + 1] = chance.choice(
            ([], [words[at]] * 2, [chance.choice(ODD_TEXT)], chance.choices(words))
        )
    return " ".join(words).encode("utf-8", "surrogateescape")


ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x" * 9999,
    "\ud800",
    "é\n",
]
ODD_VALUES += [
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": []}},
    ["x"],
    [1, "2"],
    "1",
    "nan",
    0.5,
    [0.5] * 50,
]


def change_json(content: bytes, chance: random.Random) -> bytes:
    """Gives one or two values anywhere in a JSON document, or in lines of JSON, another type or name."""
    text = content.decode()
    try:
        documents, lines = [json.loads(text)], False
    except ValueError:
        documents, lines = [json.loads(line) for line in text.splitlines()], True
    for _ in range(chance.choice((1, 1, 2))):
        node: Any = documents
        key: Any = chance.randrange(len(documents))
        while isinstance(node[key], dict | list) and node[key] and chance.random() < 0.8:
            node = node[key]
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        kind = chance.random()
        if kind < 0.75 or node is documents:
            node[key] = copy.deepcopy(chance.choice(ODD_VALUES))
        elif kind < 0.9:
            del node[key]
        elif isinstance(node, dict):
            node[chance.choice(ODD_TEXT)] = node.pop(key)
        if not documents:
            break
    return "".join(json.dumps(each) + "\n" for each in (documents if lines else documents[:1])).encode()


def mutated(box: Box, reader: Reader) -> list[str]:
    """Changes the file at random and reads it."""
    argv = furnish(box, reader)
    path = box.work / reader.file
    content = path.read_bytes()
    change = {"bytes": change_bytes, "text": change_text, "json": change_json}[reader.kind]
    if reader.kind == "json" and box.random.random() < 0.15:
        change = change_bytes
    new = change(content, box.random)
    path.write_bytes(new)
    box.note(f"{reader.file}: {_difference(content, new)}")
    if reader.sealed:
        reseal(path.parent)
    outcome, wrong = box.judged(*argv, limit=LIMIT)
    box.note(f"outcome: code {outcome.code}")
    return _without_documented(reader, wrong)


def _difference(old: bytes, new: bytes) -> str:
    at = next((number for number, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    return (
        f"from byte {at} on {new[max(0, at - 20) : at + 40]!r} instead of {old[max(0, at - 20) : at + 40]!r}"
    )


def _without_documented(reader: Reader, wrong: list[str]) -> list[str]:
    """Leaves out that a command which goes on keeps its own unfinished file."""
    kept = ("exit code 2, but changed", "exit code 2, but left")
    return [each for each in wrong if not (reader.stopped and each.startswith(kept))]


def _deep(box: Box, path: Path) -> None:
    opening = box.random.choice(("[", '{"a":'))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    deep = opening * 100_000 + "1" + {"[": "]", "{": "}"}[opening[0]] * 100_000
    path.write_text("".join(lines[:1] if path.suffix == ".jsonl" else []) + deep + "\n", encoding="utf-8")


def _huge_array(path: Path) -> None:
    blob = io.BytesIO()
    np.lib.format.write_array_header_1_0(blob, {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)})
    if path.suffix == ".npy":
        path.write_bytes(blob.getvalue() + b"\0" * 64)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tokens.npy", blob.getvalue())


def _bomb(box: Box, path: Path) -> None:
    """Writes 4 GiB of zeros into an archive of a few megabytes; made once and copied."""
    store = box.fixtures.parent / "bomb.npz"
    if not store.exists():
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 32, 32)}
        with (
            zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open("tokens.npy", "w", force_zip64=True) as member,
        ):
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(256):
                member.write(bytes(1 << 24))
    path.write_bytes(store.read_bytes())


def _many_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50_000):
            archive.writestr(f"a{number}.npy", b"x")


def _deep_header(path: Path) -> None:
    header = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def _node(path: Path, device: int, name: str) -> None:
    """Makes a device of the sandbox's own if allowed, else a link to the system's."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, device))
    except PermissionError:
        path.symlink_to(f"/dev/{name}")


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


HOSTILE: dict[str, Callable[[Box, Path], object]] = {
    "empty": lambda box, path: path.touch(),
    "a folder": lambda box, path: path.mkdir(),
    "a pipe": lambda box, path: os.mkfifo(path),
    "a socket": lambda box, path: _socket(path),
    "zeros without end": lambda box, path: _node(path, 5, "zero"),
    "always full": lambda box, path: _node(path, 7, "full"),
    "a link to zeros": lambda box, path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda box, path: path.symlink_to(path.name),
    "a link to nothing": lambda box, path: path.symlink_to("nowhere"),
    "missing": lambda box, path: None,
    "an array of 2^50": lambda box, path: _huge_array(path),
    "an npz bomb": _bomb,
    "many members": lambda box, path: _many_members(path),
    "JSON in a header": lambda box, path: _deep_header(path),
    "a line of 64 MiB": lambda box, path: path.write_bytes(b"7" * (64 << 20)),
}
WRITABLE = (
    "last",
    "stopped table",
    "cells",
    "unfinished",
    "unfinished measure",
)  # a link would be written to


def hostile(box: Box, reader: Reader, name: str) -> list[str]:
    """Puts something hostile in the place of the file and reads it."""
    argv = furnish(box, reader)
    path = box.work / reader.file
    if name == "nested 100,000 deep":
        _deep(box, path)
    else:
        path.unlink()
        HOSTILE[name](box, path)
    box.note(f"{reader.file} is {name}")
    if reader.sealed and path.is_file():
        with contextlib.suppress(OSError):
            reseal(path.parent)
    return _without_documented(reader, box.judged(*argv, limit=LIMIT)[1])


def forbidden(box: Box, reader: Reader) -> list[str]:
    """Reads the file as a user who may not."""
    argv = furnish(box, reader)
    for path in (box.path.parent, box.path, *box.path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (box.work / reader.file).chmod(0)
    box.note(f"{reader.file} may not be read, user {NOBODY}")
    unprivileged = functools.partial(os.setuid, NOBODY) if os.getuid() == 0 else None
    return _without_documented(reader, box.judged(*argv, limit=LIMIT, before=unprivileged, real=False)[1])


NAMES = {
    "not UTF-8": b"\xff\xfe",
    "with a newline": b"a\nb",
    "with quotes": b"'\"<b>&amp;$x\\",
    "long": b"x" * 240,
}


def named(box: Box, reader: Reader, name: str) -> list[str]:
    """Renames the file, or the first folder of its path."""
    argv = furnish(box, reader)
    first = reader.file.split("/")[0]
    suffix = os.fsencode("".join(Path(first).suffixes))
    new = os.fsdecode(NAMES[name] + suffix)
    (box.work / first).rename(os.path.join(box.work, new))
    box.note(f"{first} renamed to {new!a}")
    return box.judged(*(word.replace(first, new) for word in argv), limit=LIMIT)[1]


def named_within(box: Box, name: str, place: str) -> list[str]:
    """Renames a class folder, or an image."""
    box.take("images")
    for split in ("train", "test"):
        path = box.work / "images" / split / place
        if path.exists():
            path.rename(os.path.join(path.parent, os.fsdecode(NAMES[name] + os.fsencode(path.suffix))))
    box.note(f"images/.../{place} has a name {name}")
    return [each for each in box.judged(*TRAIN, limit=LIMIT)[1] if each]


def traps_of(name: str, reader: Reader) -> list[str]:
    """Lists the hostile things that make sense for a reader."""
    suffix = Path(reader.file).suffix
    traps = [
        "empty",
        "a folder",
        "a pipe",
        "a socket",
        "zeros without end",
        "always full",
        "a link to itself",
    ]
    traps += ["a link to nothing", "missing", "a line of 64 MiB"]
    traps += [] if name in WRITABLE else ["a link to zeros"]
    traps += ["nested 100,000 deep"] if reader.kind == "json" else []
    traps += ["an array of 2^50"] if suffix in (".npy", ".npz") else []
    traps += ["an npz bomb", "many members"] if suffix == ".npz" else []
    return traps + (["JSON in a header"] if suffix == ".safetensors" else [])


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields for each reader ``count`` random changes, and every hostile thing once."""
    for name, reader in READERS.items():
        for trap in traps_of(name, reader):
            yield Case(f"{name}: {trap}", functools.partial(hostile, reader=reader, name=trap))
        yield Case(f"{name}: forbidden", functools.partial(forbidden, reader=reader))
        if not reader.stopped:
            for kind in NAMES:
                yield Case(f"{name}: a name {kind}", functools.partial(named, reader=reader, name=kind))
        for number in range(count):
            yield Case(f"{name} {number}", functools.partial(mutated, reader=reader))
    for kind in NAMES:
        for place in ("cat", "cat/3.png"):
            attack = functools.partial(named_within, name=kind, place=place)
            yield Case(f"{place}: a name {kind}", attack)
