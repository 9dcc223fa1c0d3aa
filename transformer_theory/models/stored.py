"""Stored networks: :func:`load` returns a network from a file or a folder in one line.

    model = models.load("runs/crate")          # a training of this library, or its best.safetensors
    logits = model(images)                     # images [batch, c, h, w] in [0, 1]
    model.settings["sizes"], model.settings["names"]

A ``.safetensors`` file of a training holds the weights under the network's parameter names, for CRATE those
of the released networks. Its metadata in JSON hold the sizes, objective, normalisation, class names and
origin of the network, and a checksum of weights and metadata. No file is executed.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import __version__
from ..core.reading import parse_json
from .crate.alpha import crate_alpha_from_published
from .crate.language_model import CRATELanguageModel
from .crate.masked_autoencoder import CRATEMAE
from .crate.network import CRATE, Pooling
from .crate.released import ALPHA, AUTOENCODER, CLASSIFIER, LANGUAGE
from .image_networks import NETWORKS, Builder, Pixels, Sizes, builder, own_networks
from .weights import (
    WEIGHT_FILES,
    empty_model,
    fill,
    in_float32,
    listed,
    load_weights,
    read_safetensors,
    without_prefix,
)

FORMAT = 2
WITHOUT_CHECKSUM = 1  # the previous format, which can still be read
KEY, CHECKSUM = "transformer_theory", "crc32"
BEST = "best.safetensors"  # the network in the folder of a training
# one row per output, in the networks of NETWORKS
HEADS = ("mlp_head.1.weight", "mlp_head.1.bias", "head.weight", "head.bias")
# mean and deviation with which the released networks read colour images
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DEFAULTS = {
    "heads": None,
    "eta": 0.1,
    "lam": 0.1,
    "pooling": "cls",
    "weights": None,
}  # of the released networks
# Layouts of released weights, by the names that only they have; a fine-tuned classifier has the names of a
# classifier.
LAYOUTS = {
    "crate": CLASSIFIER,
    "crate-alpha-published": ALPHA,
    "crate-mae": AUTOENCODER,
    "crate-lm": LANGUAGE,
}


class Pretrained(Pixels):
    """A stored network on images in [0, 1], with a normalisation of each channel before it.

    Args:
        network, mean, std: see :class:`.Pixels`.
        settings: what was stored beside the weights: ``network`` and ``sizes``; from a training also
            ``names`` of the classes, ``objective`` and ``origin`` (data, step, seed, run id and score).
    """

    def __init__(
        self,
        network: nn.Module,
        mean: Float[Tensor, " c"],
        std: Float[Tensor, " c"],
        settings: dict[str, Any],
    ):
        super().__init__(network, mean, std)
        self.settings = settings

    def __repr__(self) -> str:
        """Returns one line: kind, number of parameters and sizes; ``repr(model.network)`` shows
        the modules.
        """
        count = sum(parameter.numel() for parameter in self.parameters())
        sizes = ", ".join(
            f"{name}={value}" for name, value in self.settings["sizes"].items() if value is not None
        )
        return f"Pretrained({self.settings['network']}, {count:,} parameters, {sizes})"


def load(
    path: str | Path,
    *,
    heads: int | None = None,
    eta: float = 0.1,
    lam: float = 0.1,
    pooling: Pooling = "cls",
    weights: str | None = None,
    networks: Mapping[str, Builder] | None = None,
) -> nn.Module:
    """Loads a network, in evaluation mode on the CPU. Its kind is read from the file.

    Args:
        path: one of

            * the folder of a training of this library, or its ``best.safetensors``;
            * a file of weights in the layout of a released CRATE, CRATE-alpha, CRATE-MAE or causal CRATE,
              ``.safetensors`` or of ``torch.save``, in the precision float32;
            * a folder of ``transformers`` with a causal language model, see
              :func:`.transformers_folder.read_language_model`.
        heads, eta, lam, pooling: number of heads, step size and threshold of ISTA, and input of the head, for
            released layouts only: their weights do not determine them, see :meth:`.CRATE.from_released`.
            Networks of a training have their own.
        weights: which set of weights, if a file holds several, such as ``"model_ema"``; see
            :func:`.load_weights`.
        networks: builders of your networks by name, as they were passed to the training.
    Returns:
        A classifier of images as :class:`Pretrained`, on images ``[batch, c, h, w]`` in [0, 1]; released
        weights read them with the normalisation of ImageNet. Autoencoders and language models are returned as
        they are.
    Raises:
        ValueError: the file is damaged, would run code, or describes no network that this version can build;
            the message lists the weights that do not fit.
        FileNotFoundError: there is no such file or folder.
    """
    path = Path(path)
    if path.is_dir() and not (path / BEST).is_file() and (path / "config.json").is_file():
        from .transformers_folder import read_language_model

        return read_language_model(path).network
    path = network_file(path)
    if path.suffix == ".safetensors" and metadata(path) is not None:
        if given := [
            name
            for name, value in (
                ("heads", heads),
                ("eta", eta),
                ("lam", lam),
                ("pooling", pooling),
                ("weights", weights),
            )
            if value != DEFAULTS[name]
        ]:
            raise ValueError(
                f"{given[0]} must be left out, since {path} holds the settings of its training; pass "
                "released weights with it"
            )
        return _trained(path, networks or {})
    read = load_weights(path, weights=weights)
    try:
        return _released(read, heads=heads, eta=eta, lam=lam, pooling=pooling)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _trained(path: Path, networks: Mapping[str, Builder]) -> Pretrained:
    """Builds the network of a training. Raises ValueError if the file describes none."""
    weights, record = stored(path)
    hint = "load it with training.image.saved.load(path, objectives=...)"
    try:
        sizes, name = Sizes(**record["sizes"]), record["network"]
        if any(weight.startswith("autoencoder.") for weight in weights):
            raise ValueError(f"it is an autoencoder, which answers no images without masks; {hint}")
        # An objective may train features in place of one logit for each class.
        outputs = next(
            (len(value) for weight, value in weights.items() if weight in HEADS and name in NETWORKS),
            sizes.num_classes,
        )
        sizes = replace(sizes, num_classes=outputs)
        # otherwise a huge wrong depth would be built layer by layer before shapes are compared
        if sizes.depth > len(weights):
            raise ValueError(f"its depth {sizes.depth} exceeds its number of weights, {len(weights)}")
        with own_networks(networks):
            network = _built(name, sizes, weights, own=name in networks)
        settings = {
            **{key: record[key] for key in ("network", "objective", "names", "origin")},
            "sizes": asdict(sizes),
        }
        model = Pretrained(network, torch.tensor(record["mean"]), torch.tensor(record["std"]), settings)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        # the last two: torch cannot count so many numbers
        raise ValueError(
            f"{path} does not describe a network that this version can build ({error}); train it again, or "
            f"{hint}"
        ) from error
    return model.eval()  # pyright: ignore[reportReturnType]


def _built(name: str, sizes: Sizes, weights: Mapping[str, Tensor], *, own: bool) -> nn.Module:
    """Builds a network with these weights. Names and shapes are compared before memory is allocated, except
    for a network of the caller.
    """
    if own:
        with torch.random.fork_rng(devices=[]):
            network = builder(name)(sizes)
        fill(network, weights)
        return network
    with torch.device("meta"):
        shapes = builder(name)(sizes)
    if {key: value.shape for key, value in shapes.state_dict().items()} != {
        key: value.shape for key, value in weights.items()
    }:
        fill(shapes, weights)  # raises and names the differences
    network = empty_model(lambda: builder(name)(sizes), dtype=torch.float32)
    fill(network, weights)
    return network


def _released(
    weights: Mapping[str, Tensor], *, heads: int | None, eta: float, lam: float, pooling: Pooling
) -> nn.Module:
    """Builds a network with released weights, by their layout. Raises ValueError if they have none that is
    known.
    """
    weights = in_released_names(weights)
    name, weights = layout_of(weights), in_float32(weights)
    if name == "crate-mae":
        return CRATEMAE.from_released(weights, heads=heads).eval()
    if name == "crate-lm":
        return CRATELanguageModel.from_released(weights, heads=heads).eval()
    if name == "crate":
        shape = square_sizes(weights)
        network = CRATE.from_released(weights, **shape, heads=heads, eta=eta, lam=lam, pooling=pooling)
    else:
        network = crate_alpha_from_published(weights, eta=eta, lam=lam, pooling=pooling)
        patch = weights["conv1.weight"].shape[-1]
        shape = {"image_size": isqrt(weights["pos_embedding"].shape[1] - 1) * patch, "patch_size": patch}
    channels = network.to_patch_embedding[0].channels  # pyright: ignore[reportIndexIssue]
    mean, std = (
        (torch.tensor(values) for values in IMAGENET)
        if channels == 3
        else (torch.full((channels,), 0.5) for _ in range(2))
    )
    settings = {
        "network": name,
        "sizes": {**shape, "channels": channels, "eta": eta, "lam": lam, "pooling": pooling},
    }
    return Pretrained(network, mean, std, settings).eval()


def in_released_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights [...] without a common prefix, such as Lightning's ``model.``, if they have a
    released layout then; otherwise as they are.
    """
    plain = (without_prefix(weights, required) for required in LAYOUTS.values())
    whole = (one for one, required in zip(plain, LAYOUTS.values()) if all(name in one for name in required))
    return next(whole, dict(weights))


def layout_of(weights: Mapping[str, Tensor]) -> str:
    """Returns the network to which a released layout belongs, a key of :data:`LAYOUTS`.

    Raises:
        ValueError: the weights have no released layout.
    """
    if found := [name for name, required in LAYOUTS.items() if all(weight in weights for weight in required)]:
        return found[0]
    known = "; ".join(f"{name}: {', '.join(required)}" for name, required in LAYOUTS.items())
    present = f"{len(weights)} others, {listed(weights)}" if weights else "none"
    raise ValueError(
        f"weights must have the names of a released network ({known}), got {present}; rename them, or build "
        "the network itself"
    )


def square_sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns ``image_size`` and ``patch_size`` of a released classifier of square colour (else grey) images
    in square patches.

    Raises:
        ValueError: the patches or their grid are not square.
    """
    patch_dim, tokens = (
        weights["to_patch_embedding.2.weight"].shape[-1],
        weights["pos_embedding"].shape[1] - 1,
    )
    patch = next(
        (
            isqrt(patch_dim // c)
            for c in (3, 1)
            if patch_dim % c == 0 and isqrt(patch_dim // c) ** 2 == patch_dim // c
        ),
        0,
    )
    if not patch or isqrt(max(tokens, 0)) ** 2 != tokens or tokens < 1:
        raise ValueError(
            f"images must be square, in square patches of 3 channels or 1, got {tokens} patches of "
            f"{patch_dim} numbers; use models.CRATE.from_released(weights, image_size, patch_size)"
        )
    return {"image_size": isqrt(tokens) * patch, "patch_size": patch}


def network_file(path: str | Path) -> Path:
    """Returns the file of a trained network, given its path or the folder of its run.

    Raises:
        FileNotFoundError: the path does not exist, or the folder holds no trained network.
    """
    path = Path(path)
    hint = f"name the folder that train wrote, or the {BEST} in it"
    if not path.exists():
        raise FileNotFoundError(
            f"a trained network must be a file or a folder, {path} does not exist; {hint}"
        )
    if path.is_dir() and not (path / BEST).is_file():
        others = sorted(
            entry.name for entry in path.iterdir() if entry.suffix in WEIGHT_FILES or (entry / BEST).is_file()
        )
        raise FileNotFoundError(
            f"{path} must hold {BEST}, a trained network, got {', '.join(others) or 'none'}; {hint}"
        )
    return path / BEST if path.is_dir() else path


def stored(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the weights and the metadata of a file that a training wrote.

    Raises:
        ValueError: the file is damaged, or was written by another program or a newer version.
        FileNotFoundError: there is no such file.
    """
    if path.suffix != ".safetensors":
        raise ValueError(f"a trained network must be a .safetensors file or the folder of a run, got {path}")
    if not path.is_file():
        raise FileNotFoundError(f"a trained network must be a file, got {path}, which is not there")
    weights, about = read_safetensors(path)  # at once: a running training may replace the file
    record = _record(path, about)
    if record is None:
        hint = "models.load_weights reads weights alone"
        raise ValueError(
            f"{path} must be a network that `train` has stored, got weights without their origin; {hint}"
        )
    if record.get("format") not in (WITHOUT_CHECKSUM, FORMAT):
        other = f"format {record.get('format')} of version {record.get('version')}"
        raise ValueError(
            f"{path} must be of format {FORMAT} as this version ({__version__}) writes it, got {other}; "
            "install that version"
        )
    if record["format"] == FORMAT and record.pop(CHECKSUM, None) != checksum(weights, record):
        raise ValueError(
            f"{path} must be as it was stored, got another checksum: it is damaged or was edited; train it "
            "again, or copy it anew"
        )
    return weights, record


def checksum(weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> str:
    """Returns the CRC-32 of weights ``[...]``, with their names, types and shapes, and of the metadata."""
    crc = zlib.crc32(
        json.dumps(
            {name: record[name] for name in sorted(record) if name != CHECKSUM}, sort_keys=True
        ).encode()
    )
    for name in sorted(weights):
        value = weights[name].contiguous()
        crc = zlib.crc32(f"{name} {value.dtype} {list(value.shape)}".encode(), crc)
        crc = zlib.crc32(value.flatten().view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def metadata(path: Path) -> dict[str, Any] | None:
    """Reads the metadata that a training wrote into a .safetensors file; None if there are none.

    Raises:
        ValueError: the file is damaged, or its metadata are not JSON.
    """
    return _record(path, read_safetensors(path)[1])


def _record(path: Path, about: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns what a training wrote into the metadata of a file, None if it wrote none. Raises ValueError if
    it is not JSON.
    """
    if KEY not in about:
        return None
    try:
        record = parse_json(about[KEY])
        assert isinstance(record, dict)
    except (ValueError, AssertionError) as error:
        raise ValueError(
            f"{path} must describe its network in JSON, got something else ({error}); train it again"
        ) from error
    return record
