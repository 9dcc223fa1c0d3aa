"""Small data, networks and stored results, made once and copied into each sandbox."""

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from .common import ROOT, Box

NET = """import torch
from torch import nn


def small():
    torch.manual_seed(SEED)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    network = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    torch.manual_seed(7)
    return network, torch.randn(12, 5, 8), torch.arange(12) % 3
"""
CLAIM = "attention_svm/feasibility"
RUNG = "collapse/one block of a ViT"
SIZES = ["--dim", "8", "--depth", "1", "--heads", "1", "--patch-size", "8", "--batch-size", "8"]
TRAIN = ["train", "vit", "--data", "images", *SIZES, "--device", "cpu", "--precision", "float32"]
# the quickest command line of each command; those that store a result end with its folder
QUICK = {
    "list": ["list", CLAIM],
    "cite": ["cite", "compared"],
    "evaluate": ["evaluate", "trained", "--data", "images"],
    "report": ["report", "compared", "reached", "trained", "--html", "page.html", "--latex", "tables"],
    "train": [*TRAIN, "--theories", "scan_snap", "--epochs", "4", "--interval", "2", "--out", "o"],
    "verify": ["verify", CLAIM, "--seeds", "2", "--out", "o"],
    "run": ["run", "attention_svm.trajectories", "--quick", "--out", "o"],
    "reach": ["reach", RUNG, "--seeds", "2", "--workers", "1", "--out", "o"],
    "compare": [
        *("compare", "--data", "tokens.npz", "--theories", "collapse", "--networks", "none", "--seeds", "1"),
        *("--claim-seeds", "0", "--workers", "1", "--out", "o"),
    ],
    "measure": ["measure", "net.py:small", "--networks", "2", "--theories", "collapse", "--out", "o"],
    "intervene": [
        *(
            "intervene",
            "net.py:small",
            "--only",
            "collapse",
            "--draws",
            "2",
            "--sequences",
            "6",
            "--out",
            "o",
        ),
    ],
}
STORES = {
    "trained": "train",
    "verified": "verify",
    "ran": "run",
    "reached": "reach",
    "compared": "compare",
    "measured": "measure",
    "intervened": "intervene",
}
STOPPED = {  # commands that an interruption stops halfway, and what they have left by then
    "o.unfinished": ["verify", CLAIM, "rate_reduction/equal-moments", "--seeds", "20", "--out", "o"],
    "o.unfinished.jsonl": [*QUICK["measure"][:3], "60", *QUICK["measure"][4:]],
    "o/cells.jsonl": ["reach", RUNG, "--seeds", "4", "--workers", "1", "--out", "o"],
    "o/last.pt": [*QUICK["train"][:-5], "12", "--interval", "2", "--out", "o"],
}
WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "one", "dog", "ran", "and", "nobody", "saw"]
DATA = ("images", "photos", "tokens.npz", "text.txt", "ids.npy", "edges.edgelist", "graph.graphml")
DATA += ("graphs", "net.py", "labels.txt")


def furnish(box: Box) -> None:
    """Puts data and stores for the commands of :data:`QUICK` into the working folder."""
    for name in ("images", "tokens.npz", "net.py", "compared", "reached", "trained"):
        box.take(name)


def write_data(folder: Path) -> None:
    """Writes a small file or folder of every kind that a command reads."""
    chance = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 6)):
        for name in ("cat", "dog"):
            write_images(folder / "images" / split / name, chance, count)
    write_images(folder / "photos", chance, 8)
    tokens = chance.standard_normal((24, 5, 8)).astype("float32")
    np.savez(folder / "tokens.npz", tokens=tokens, labels=np.arange(24) % 3)
    lines = (" ".join(random.Random(number).choices(WORDS, k=12)) + "." for number in range(60))
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    np.save(folder / "ids.npy", chance.integers(0, 20, (8, 6)))
    edges = "".join(f"{number} {(number * 3 + 1) % 12}\n" for number in range(12))
    (folder / "edges.edgelist").write_text(edges)
    nodes = "".join(f'<node id="n{number}"/>' for number in range(8))
    links = "".join(f'<edge source="n{number}" target="n{(number + 1) % 8}"/>' for number in range(8))
    head = '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    graph = f'{head}<graph edgedefault="undirected">{nodes}{links}</graph></graphml>'
    (folder / "graph.graphml").write_text(graph)
    (folder / "graphs").mkdir()
    for number in range(4):
        (folder / "graphs" / f"{number}.edgelist").write_text(edges.replace("11 10", f"11 {number}"))
    (folder / "net.py").write_text(NET.replace("SEED", "0"))
    (folder / "labels.txt").write_text("cat\ndog\n" * 4)
    records = chance.integers(0, 255, (20, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    (folder / "cifar").mkdir()
    (folder / "cifar" / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / "cifar" / f"{name}.bin").write_bytes(records.tobytes())


def write_images(folder: Path, chance: np.random.Generator, count: int) -> None:
    """Writes PNG files of 16 by 16 random pixels."""
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = chance.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def stop_halfway(box: Box, trace: str, argv: list[str] | None = None) -> list[str]:
    """Interrupts a command, by default that of ``STOPPED``, when it has left some work, and returns it.

    Raises:
        RuntimeError: it ended otherwise, or has left nothing.
    """
    argv, place, sizes = argv or STOPPED[trace], box.work / trace, set()
    running = box.start(argv, real=False)
    while running.poll() is None and len(sizes) < 4:
        with contextlib.suppress(FileNotFoundError):
            status = place.stat()
            sizes.add((status.st_size, status.st_mtime_ns))
        time.sleep(0.001)
    running.send(signal.SIGINT)
    outcome = running.wait()
    if outcome.code != 130 or not place.exists():
        raise RuntimeError(f"could not be stopped halfway: {outcome.code}, {outcome.err[-200:]}")
    return argv


def _write_transformer() -> None:
    """Writes a folder of transformers, ``gpt2``, with a vocabulary of words; called in a child."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, WORDS[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=WORDS[-1]).save_pretrained("gpt2")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained("gpt2")
    os._exit(0)


def build(place: Path) -> Path:
    """Makes all fixtures with the library under attack and returns their folder.

    Raises:
        RuntimeError: a command that should succeed did not.
    """
    box = Box(place / "fixtures", None, random.Random(0), False)
    write_data(box.work)
    modules = box.path / "modules"

    def record() -> None:
        atexit.register(lambda: modules.write_text("\n".join(sys.modules)))

    for name, command in STORES.items():
        argv = (name if word == "o" else word for word in QUICK[command])
        outcome = box.run(*argv, limit=120, before=record)
        if outcome.code:
            raise RuntimeError(f"{command} must succeed before it is attacked: {outcome.err[-300:]}")
        # what the command imported late is imported here, so that the next one need not
        for module in set(modules.read_text().split()) - {"net", "__main__"} - set(sys.modules):
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    if importlib.util.find_spec("transformers"):
        box.run("list", before=_write_transformer)
    ledger = ROOT / "docs" / "claims.json"
    if ledger.is_file():
        entries = json.loads(ledger.read_text(encoding="utf-8"))
        (box.work / "claims.json").write_text(json.dumps(entries[:3]))
    for name in ("tmp", "home"):
        shutil.rmtree(box.path / name)
    return box.work
