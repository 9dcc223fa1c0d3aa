"""Models in the local cache of the Hugging Face hub, by their name. Nothing is downloaded."""

import importlib
import re
from pathlib import Path
from typing import Any

from ..core.reading import read_json

NAME = re.compile(r"(?P<name>\w[\w.-]*(?:/\w[\w.-]*)?)(?:@(?P<revision>[\w./-]+))?")
WEIGHTS = ("*.safetensors", "*.bin", "*.h5", "*.msgpack")  # files of weights, those that are read first


def is_name(text: str) -> bool:
    """Returns whether a text can be a name of the hub, ``name`` or ``org/name``, with or without
    ``@revision``.
    """
    return NAME.fullmatch(text) is not None


def cached(text: str, forms: str) -> Path:
    """Returns the folder of a model in the local cache of the hub, whose place ``HF_HUB_CACHE`` or
    ``HF_HOME`` states.

    Args:
        text: name, ``org/name`` or ``org/name@revision``; without a revision that of the branch "main".
        forms: what the text may be, in words, for the error messages.
    Raises:
        FileNotFoundError: the cache does not hold the model.
        ImportError: the package huggingface_hub is not installed.
        ValueError: the cache holds the model without its configuration, or without weights in safetensors.
    """
    found = NAME.fullmatch(text)
    assert found is not None
    name, revision = found["name"], found["revision"]
    hub = _hub(text, forms)
    download = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    try:
        # Other files of the repository may be missing, such as weights of other libraries.
        folder = Path(
            hub.snapshot_download(
                name, revision=revision, local_files_only=True, allow_patterns=["config.json"]
            )
        )
    except (OSError, ValueError) as error:  # not there, and no name of the hub such as "a..b"
        raise FileNotFoundError(
            f"MODEL must be {forms}, got {text!r}, which does not exist and is not in the cache "
            f"{hub.constants.HF_HUB_CACHE}; {download}, then again"
        ) from error
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{text} must have config.json in the cache of the hub, got {_files(folder)}; {download}, then "
            "again"
        )
    if not any(folder.glob("*.safetensors")):
        others = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
        todo = (
            "convert them with save_pretrained, or load them in FILE.py:FUNCTION"
            if others
            else f"{download}, then again"
        )
        raise ValueError(
            f"{text} must have weights in .safetensors files in the cache of the hub, got {_files(folder)}; "
            f"{todo}"
        )
    if missing := _missing_parts(folder):
        raise ValueError(
            f"{text} must have all parts of its weights in the cache of the hub, {missing[0]} "
            f"{f'and {len(missing) - 1} more are' if missing[1:] else 'is'} missing; {download}, then again"
        )
    return folder


def origin(folder: Path) -> tuple[str, str] | None:
    """Returns the name in the hub, ``org/name``, and the commit of a folder in its cache; None for another
    folder.
    """
    parts = folder.absolute().parts[-3:]
    if len(parts) < 3 or parts[1] != "snapshots" or not parts[0].startswith("models--"):
        return None
    return "/".join(parts[0].split("--")[1:]), parts[2]


def _missing_parts(folder: Path) -> list[str]:
    """Returns the files that an index of the weights names and the folder lacks."""
    index = folder / "model.safetensors.index.json"
    try:
        named = set(read_json(index)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no index, or transformers refuses it
        return []
    return sorted(name for name in map(str, named) if not (folder / name).is_file())


def _files(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:4]) or "no file"


def _hub(text: str, forms: str) -> Any:
    """Imports ``huggingface_hub``, which is optional."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            f"MODEL must be {forms}, got {text!r}, which does not exist; a name in the cache of the hub "
            "needs huggingface_hub: pip install 'transformer-theory[hub]'"
        ) from error
