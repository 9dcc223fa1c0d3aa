"""A real network, measured by the library and by hand: ``python -m benchmarks.real_network FOLDER``.

The folder is one of ``transformers``: a BERT with its tokenizer, measured on the sentences of a text file, or
a DINOv2, measured on the images of a folder with one folder per class. The library measures one padded batch
with the attention mask, the special ids and the labels; by hand (:mod:`benchmarks._by_hand`), each sequence
runs by itself without padding. The table has one line per quantity: the means over layers and heads of both,
the number of places that were compared, and the largest difference. The exit status is 1 if a quantity
differs or is missing.

    python -m benchmarks.real_network minilm --text wikitext-2/valid.txt
    python -m benchmarks.real_network vit --images cifar10/test
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._by_hand import quantities, run_alone
from transformer_theory.core.table import Table
from transformer_theory.metrics import AttentionSelection
from transformer_theory.models.transformers_folder import read_network
from transformer_theory.probes import probe
from transformer_theory.probes.measure import metrics_of, with_general
from transformer_theory.theories import list_theories

SENTENCES, ARTICLES, SHORTEST, LONGEST = 32, 4, 8, 60  # of a text: number, classes, tokens
IMAGES, CLASSES, SIDE = 8, 4, 224  # images, classes, pixels
# Largest difference relative to the size of the quantity in this network: both routes are float32, and sums
# over padded and unpadded sequences round differently.
RTOL = 1e-4
# shares of queries in which a score may lie on either side of a threshold by rounding
COUNTS = {"close calls of attention in bfloat16": 5e-3}


class Batch(NamedTuple):
    """Inputs in both forms.

    Attributes:
        together: arguments of the network for all sequences, padded.
        alone: arguments for each sequence.
        labels: class of each sequence.
        ids: identity of the input of each token, see :class:`._by_hand.Passes`.
        content: True for tokens with contents.
        special: ids without contents; None for images.
        grid: rows and columns of the patches; None for texts.
    """

    together: dict[str, Tensor]
    alone: list[dict[str, Tensor]]
    labels: Tensor
    ids: list[Tensor]
    content: list[Tensor]
    special: list[int] | None
    grid: tuple[int, int] | None


def sentences(path: Path, tokenizer: Any, *, length: int | None) -> tuple[list[Tensor], Tensor]:
    """Returns the ids of sentences of the first long articles of a text in the format of WikiText, and the
    number of their article.

    Args:
        path: text in which the titles of articles stand between equal signs.
        tokenizer: tokenizer of the network.
        length: number of tokens of each sentence, which is cut there. None: sentences of all lengths.
    Raises:
        ValueError: the text has too few articles with enough sentences.
    """
    articles: list[list[list[int]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" = ") and not line.startswith(" = ="):
            articles.append([])
        elif articles and line.strip() and not line.startswith(" ="):
            for sentence in line.split(" . "):
                found = tokenizer(sentence.strip())["input_ids"]
                if length is not None and len(found) > length:
                    found = [*found[: length - 1], found[-1]]
                if SHORTEST <= len(found) <= LONGEST and length in (None, len(found)):
                    articles[-1].append(found)
    each = SENTENCES // ARTICLES
    chosen = [article for article in articles if len(article) >= each][:ARTICLES]
    if len(chosen) < ARTICLES:
        raise ValueError(
            f"{path} must have {ARTICLES} articles of {each} sentences, got {len(chosen)}; pass a longer text"
        )
    # evenly spaced, in turns, so that classes and lengths are mixed
    taken = [article[i * len(article) // each] for i in range(each) for article in chosen]
    return [torch.tensor(ids) for ids in taken], torch.arange(SENTENCES) % ARTICLES


def text_batch(folder: Path, path: Path, *, length: int | None) -> Batch:
    """Returns the batch of a text, padded by the tokenizer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = "right"
    ids, labels = sentences(path, tokenizer, length=length)
    padded = dict(tokenizer.pad([{"input_ids": each.tolist()} for each in ids], return_tensors="pt"))
    special = sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    size = len(tokenizer)
    return Batch(
        {name: padded[name] for name in ("input_ids", "attention_mask")},
        [{"input_ids": each[None]} for each in ids],
        labels,
        [each + size * torch.arange(len(each)) for each in ids],
        [~torch.isin(each, torch.tensor(special)) for each in ids],
        special,
        None,
    )


def image_batch(folder: Path, images: Path, patch: int) -> Batch:
    """Returns the batch of the first images of the first classes, normalised as the folder says.

    Raises:
        ValueError: the folder has too few classes or images.
    """
    from PIL import Image

    names = sorted(path for path in images.iterdir() if path.is_dir())[:CLASSES]
    files = [sorted(name.iterdir())[: IMAGES // CLASSES] for name in names]
    if sum(map(len, files)) < IMAGES:
        raise ValueError(
            f"{images} must hold {CLASSES} folders of {IMAGES // CLASSES} images, got {sum(map(len, files))} "
            f"images in {len(names)}; pass a folder with one folder per class"
        )
    described = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    mean, std = (torch.tensor(described[name])[:, None, None] for name in ("image_mean", "image_std"))
    pixels, labels = [], []
    for number in range(IMAGES // CLASSES):
        for label, found in enumerate(files):
            with Image.open(found[number]) as image:
                large = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            pixels.append((torch.from_numpy(np.array(large)).permute(2, 0, 1) / 255 - mean) / std)
            labels.append(label)
    side = SIDE // patch
    T = 1 + side * side
    # the class token is the same input in every image; patches do not repeat
    ids = [torch.arange(T) + number * T for number in range(IMAGES)]
    for each in ids:
        each[0] = 0
    content = torch.arange(T) > 0
    return Batch(
        {"pixel_values": torch.stack(pixels)},
        [{"pixel_values": each[None]} for each in pixels],
        torch.tensor(labels),
        ids,
        [content] * IMAGES,
        None,
        (side, side),
    )


def measured(model: nn.Module, batch: Batch) -> Table:
    """Returns the rows of the library: all theories' metrics and the general ones, in one pass without
    nulls.
    """
    metrics = [*with_general(metrics_of(list_theories())), AttentionSelection()]
    with torch.no_grad(), probe(model, metrics, special_ids=batch.special, draws=0) as p:
        p.labels = batch.labels
        model(**batch.together)
    return p.result().table


def values_of(table: Table) -> dict[str, dict[tuple[int, int], float]]:
    """Returns the values of all quantities by layer and head (0 for those of a layer)."""
    found: dict[str, dict[tuple[int, int], float]] = {}
    for row in table:
        if row.layer is None or (row.at and row.at.get("keys over n") != 2):
            continue
        name = f"{row.quantity}, {row.at['case']}" if row.at else row.quantity
        value = math.nan if row.value is None else row.value
        found.setdefault(name, {})[row.layer, row.head or 0] = value
    return found


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        quantity: name of the quantity.
        library, by_hand: means over all places that have a value.
        places: number of places that were compared.
        difference: largest difference at a place; infinite if only one of the two has a value there.
        equal: whether it is within the tolerance.
    """

    quantity: str
    library: float
    by_hand: float
    places: int
    difference: float
    equal: bool


def compared(found: Mapping[str, Mapping[tuple[int, int], float]], right: Mapping[str, Tensor]) -> list[Line]:
    """Compares the values of the library with those by hand, in the order of the latter."""
    lines = []
    for name, values in right.items():
        table = values[:, None] if values.ndim == 1 else values
        first = 1 if name == "CKA with the first block" else 0  # it has no value at the first block
        own = found.get(name, {})
        pairs = [
            (own.get((layer + first, head), math.nan), float(value))
            for layer, row in enumerate(table)
            for head, value in enumerate(row)
        ]
        known = [pair for pair in pairs if not any(map(math.isnan, pair))]
        alone = sum(math.isnan(a) != math.isnan(b) for a, b in pairs)
        difference = math.inf if alone or not known else max(abs(a - b) for a, b in known)
        size = max((abs(b) for _, b in known), default=0.0)
        means = [
            sum(part) / len(known) if known else math.nan for part in (zip(*known) if known else ((), ()))
        ]
        tolerance = COUNTS.get(name, RTOL * size)
        lines.append(Line(name, *means, len(known), difference, difference <= tolerance))
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table, and returns the exit status: 1 if a quantity differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_network")
    parser.add_argument("folder", type=Path, help="folder of transformers with weights in safetensors")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--text", type=Path, metavar="FILE", help="text in the format of WikiText")
    given.add_argument("--images", type=Path, metavar="FOLDER", help="images, one folder per class")
    parser.add_argument(
        "--length", type=int, help="cut all sentences to this number of tokens, so that nothing is padded"
    )
    options = parser.parse_args(words)
    model = read_network(options.folder)
    if options.text:
        batch = text_batch(options.folder, options.text, length=options.length)
    else:
        batch = image_batch(options.folder, options.images, int(model.config.patch_size))
    lengths = [len(each) for each in batch.content]
    print(
        f"{type(model).__name__}, {len(batch.labels)} sequences of {min(lengths)} to {max(lengths)} tokens, "
        f"{1 - sum(lengths) / (len(lengths) * max(lengths)):.0%} padding, "
        f"{len(batch.labels.unique())} classes"
    )
    found = values_of(measured(model, batch))
    model.set_attn_implementation("eager")
    shape = {"ids": batch.ids, "content": batch.content, "grid": batch.grid}
    lines = compared(found, quantities(run_alone(model, batch.alone, batch.labels, **shape)))
    width = max(len(line.quantity) for line in lines)
    print(f"{'quantity':{width}}  {'library':>12}  {'by hand':>12}  places  largest difference")
    for line in lines:
        print(
            f"{line.quantity:{width}}  {line.library:12.6g}  {line.by_hand:12.6g}  {line.places:6}  "
            f"{line.difference:8.1e}  {'equal' if line.equal else 'NOT EQUAL'}"
        )
    equal = sum(line.equal for line in lines)
    print(f"{equal} of {len(lines)} quantities are equal")
    return int(equal < len(lines))


if __name__ == "__main__":
    sys.exit(main())
