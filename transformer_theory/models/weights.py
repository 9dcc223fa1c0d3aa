"""Weights: loading, saving and copying. Files are read without running code; names and shapes are compared
before anything is copied.

Tensors have the shapes of the model's ``state_dict()``.
"""

import errno
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..core.errors import nearest
from ..core.files import replacing

Model = TypeVar("Model", bound=nn.Module)

# keys under which training code stores the weights, next to the state of the optimiser
WRAPPERS = ("state_dict", "model", "model_state_dict")
# keys of moving averages of the weights
AVERAGES = re.compile(r"(^|[._])(ema|averag|shadow|swa)|(ema|average|averaged)$", re.IGNORECASE)
# Attributes in which wrappers hold the original module: torch.compile, Lightning Fabric, FSDP, activation
# checkpointing. State dicts have them in the names, at any depth.
INSIDE = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
MODULE = "module."  # prefix that torch's data-parallel modules and averages of models add to each name
AVERAGED = "n_averaged"  # the number of averaged models, beside the weights of torch's AveragedModel
MAX_DEPTH = 4  # largest number of mappings around a set of weights
WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")  # torch.save writes all but the last
NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # formats of weights that are read
# largest number of names in an error message; a name that occurs in several layers counts once
MAX_LISTED = 20


def load_weights(path: str | os.PathLike[str], *, weights: str | None = None) -> dict[str, Tensor]:
    """Reads the weights of a file, on the CPU, without running code from the file.

    Args:
        path: a ``.safetensors`` file, or a file of ``torch.save`` with any other suffix, that holds a state
            dict or a checkpoint.
        weights: which set, if the checkpoint holds several, such as a moving average; see :func:`unwrap`.
    Returns:
        Tensors by name, see :func:`unwrap`.
    Raises:
        FileNotFoundError: the file does not exist.
        ImportError: the suffix is ``.safetensors``, and the package safetensors is not installed.
        ValueError: the file is damaged, holds objects other than tensors and numbers, would run code, or
            holds several sets of weights and ``weights`` is None.
    """
    path = Path(path)
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no file of bytes" if path.exists() else "not there"
        raise FileNotFoundError(f"weights must be a file, got {path}, which is {kind}")
    content = read_safetensors(path)[0] if path.suffix == ".safetensors" else _read_torch(path)
    try:
        found = unwrap(content, weights=weights)
        if broken := [name for name, value in found.items() if not _is_whole(value)]:
            raise ValueError(
                "weights must be dense tensors with all their numbers in the file, got others for "
                f"{listed(broken)}"
            )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return found


def in_float32(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights ``[...]`` with all floating-point numbers in float32; other dtypes stay, and
    :func:`fill` reports them.
    """
    return {name: value.float() if value.dtype in NUMBERS else value for name, value in weights.items()}


def check_archive(path: Path) -> None:
    """Checks the checksums of a file of ``torch.save``, which torch does not: a flipped bit would change a
    weight without notice.

    Raises:
        ValueError: a checksum is wrong, or a part is compressed, which ``torch.save`` never does: unpacked,
            it may exceed the memory.
        zipfile.BadZipFile: the file is no archive.
    """
    with zipfile.ZipFile(path) as archive:
        if packed := next(
            (entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED),
            None,
        ):
            raise ValueError(f"{packed} is compressed")
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} is wrong")


def save_weights(weights: nn.Module | Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Writes weights atomically; an existing file is replaced.

    Args:
        weights: a model or its ``state_dict()``.
        path: a file with the suffix ``.safetensors``, or ``.pt``, ``.pth``, ``.bin`` or ``.ckpt`` for the
            format of ``torch.save``.
    Raises:
        FileNotFoundError: the folder does not exist.
        ImportError: the suffix is ``.safetensors``, and the package safetensors is not installed.
        ValueError: the weights are not a mapping from names to tensors, or the path has another suffix.
    """
    path = Path(path)
    if path.suffix not in WEIGHT_FILES:
        raise ValueError(
            f"weights must go into a file that ends in {', '.join(WEIGHT_FILES)}, got {path}; the suffix "
            "determines the format"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"weights must go into a folder that exists, got {path}; make {path.parent} first"
        )
    tensors = weights.state_dict() if isinstance(weights, nn.Module) else _tensors(weights)
    # Copy first: safetensors refuses tensors that share memory (a tied head), and torch.save would write the
    # whole storage of a view.
    copies = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    with replacing(path) as draft:
        if path.suffix == ".safetensors":
            _safetensors().save_file(copies, draft)
        else:
            torch.save(copies, draft)


def unwrap(
    checkpoint: Mapping[str, Any], *, weights: str | None = None, expected: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Returns the state dict inside a checkpoint.

    Names are those of the network itself: the attributes of wrappers (:data:`INSIDE`) are left out, and so is
    a prefix ``module.`` that all names share, also beside the counter of an AveragedModel.

    Args:
        checkpoint: tensors [...] by name, or such a mapping inside ``{"state_dict": ...}``,
            ``{"model": ...}`` or another key.
        weights: which set of weights, if the checkpoint holds several, such as ``"model_ema"`` or
            ``"model.teacher"``; or the first part of the names of the weights that are wanted.
        expected: some names of the network. Any other prefix that all names share, such as ``model.`` of
            Lightning, is removed if the names are then those expected.
    Raises:
        ValueError: the content is not a mapping from names to tensors, or it holds several sets of weights,
            or none of the name ``weights``.
    """
    found = _chosen(checkpoint, weights)
    return without_prefix(_names_of_network(found), expected)


def without_prefix(weights: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """Returns the weights [...] without a prefix that all names share, if at least half of the expected names
    are present then and none was before; otherwise as they are.
    """
    expected = set(expected)
    if not expected & weights.keys():
        first = next(iter(weights), "")
        places = [place + 1 for place, character in enumerate(first) if character == "."]
        for prefix in (first[:place] for place in places):
            if not all(name.startswith(prefix) for name in weights):
                break
            names = {name.removeprefix(prefix) for name in weights}
            if 2 * len(expected & names) >= len(expected) > 0:
                return {name.removeprefix(prefix): value for name, value in weights.items()}
    return dict(weights)


def _chosen(content: Any, choice: str | None) -> Any:
    """Returns the set of weights in a checkpoint that is meant. Raises ValueError if there are several, or
    none of the name ``choice``.
    """
    if not isinstance(content, Mapping):
        return content  # refused later
    sets = _sets(content)
    if choice is not None:
        if choice in sets:
            return sets[choice]
        alone = next(iter(sets.values())) if len(sets) == 1 else content
        inside = {name: value for name, value in alone.items() if str(name).startswith(f"{choice}.")}
        if not inside:
            available = f"the sets {', '.join(sets)}" if sets else "one set without a name"
            raise ValueError(
                f"weights must name a set of the checkpoint, got {choice!r}; it holds {available}"
            )
        return {name.removeprefix(f"{choice}."): value for name, value in inside.items()}
    usual = [key for key in sets if key.split(".")[0] in WRAPPERS]
    main = usual[0] if usual else next(iter(sets), None)
    if main is None:
        return content
    rivals = [
        key
        for key in sets
        if key != main
        and (key in usual or not usual or AVERAGES.search(key) or _alike(sets[main], sets[key]))
    ]
    if rivals:
        raise ValueError(
            f"the checkpoint must hold one set of weights, got {main}, {', '.join(rivals)}; choose one by "
            "its name, with the argument weights of load_weights, unwrap or load, or with --weights-set"
        )
    return sets[main]


def _sets(content: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    """Returns the sets of weights inside a mapping by their keys, joined by dots; also averages in another
    form, which cannot be read.
    """
    sets = {}
    for key, value in content.items():
        if not isinstance(value, Mapping | list | tuple) or "optim" in str(key).lower():
            continue
        entries = list(value.values()) if isinstance(value, Mapping) else list(value)
        tensors = [entry for entry in entries if isinstance(entry, Tensor)]
        if isinstance(value, Mapping):
            whole = len(tensors) == len(entries) and any(tensor.is_floating_point() for tensor in tensors)
            if whole or (tensors and str(key) in WRAPPERS):
                sets[str(key)] = value
                continue
            inner = _sets(value, depth + 1) if depth < MAX_DEPTH and "param_groups" not in value else {}
            sets |= {f"{key}.{name}": found for name, found in inner.items()}
        if AVERAGES.search(str(key)) and tensors:
            sets[str(key)] = value
    return sets


def _alike(first: Any, second: Any) -> bool:
    """Returns whether two sets share at least half of the names of the smaller one."""
    names = [set(_names_of_network(one)) if isinstance(one, Mapping) else set() for one in (first, second)]
    return 2 * len(names[0] & names[1]) >= min(map(len, names)) > 0


def _names_of_network(content: Any) -> dict[str, Tensor]:
    """Returns tensors by the names of the network itself, without wrappers; see :func:`unwrap`."""
    weights = _tensors(content)
    if any(part in name.split(".") for name in weights for part in INSIDE):
        names = {name: ".".join(part for part in name.split(".") if part not in INSIDE) for name in weights}
        if len({*names.values()}) < len(names):
            raise ValueError(
                "weights must have one name each, got the same with and without a wrapper's name"
            )
        weights = {names[name]: value for name, value in weights.items()}
    if AVERAGED in weights and all(name.startswith(MODULE) for name in weights if name != AVERAGED):
        del weights[AVERAGED]
    while weights and all(name.startswith(MODULE) for name in weights):
        weights = {name.removeprefix(MODULE): value for name, value in weights.items()}
    return weights


def empty_model(constructor: Callable[[], Model], *, dtype: torch.dtype) -> Model:
    """Builds a network on the CPU whose weights are allocated but not initialised; :func:`fill` overwrites
    them.

    Args:
        constructor: function without arguments that builds the network; it draws no random numbers here.
        dtype: dtype of the weights.
    """
    # On the meta device a tensor has a shape but no memory, and initialisation does nothing.
    with torch.device("meta"):
        model = constructor()
    return model.to(dtype).to_empty(device="cpu")


def renamed(weights: Mapping[str, Tensor], renames: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Renames weights by regular expressions, which are applied to each name in order.

    Args:
        weights: tensors [...] by name.
        renames: pairs of a pattern and its replacement, as in :func:`re.sub`.
    """
    names = {name: name for name in weights}
    for pattern, replacement in renames:
        names = {original: re.sub(pattern, replacement, name) for original, name in names.items()}
    return {names[name]: value for name, value in weights.items()}


def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copies weights into a model that has exactly the same names and shapes.

    Raises:
        ValueError: weights are missing, unknown, of another shape, no floating-point numbers where the model
            has some, or not finite in the model's precision. The message lists them all; nothing is copied.
    """
    expected = model.state_dict()
    problems = []
    unknown = [name for name in weights if name not in expected]
    if missing := [name for name in expected if name not in weights]:
        problems.append(f"{len(missing)} missing: {listed(missing)}")
    if unknown:
        hint = nearest(unknown[0], missing) if missing else ""
        problems.append(f"{len(unknown)} unknown: {listed(unknown)}{hint if 'did you mean' in hint else ''}")
    if misshapen := [
        name for name, value in expected.items() if name in weights and weights[name].shape != value.shape
    ]:
        shapes = (
            f"{name} {list(weights[name].shape)} for {list(expected[name].shape)}" for name in misshapen
        )
        problems.append(f"{len(misshapen)} of another shape: {_shortened(shapes)}")
    floating = {
        name: value for name, value in expected.items() if value.is_floating_point() and name in weights
    }
    if other := [name for name in floating if weights[name].dtype not in NUMBERS]:
        kinds = ", ".join(sorted({f"{weights[name].dtype}" for name in other}))
        problems.append(f"{len(other)} of {kinds} in place of floating-point numbers: {listed(other)}")
    # In the model's precision: a number of float64 may be infinite in float32.
    sound = [name for name in floating if name not in {*misshapen, *other}]
    if broken := [
        name for name in sound if not bool(torch.isfinite(weights[name].to(expected[name].dtype)).all())
    ]:
        problems.append(f"{len(broken)} with NaN or infinity: {listed(broken)}")
    if problems:
        raise ValueError(
            f"state_dict must hold the {len(expected)} weights of {type(model).__name__}, got "
            f"{'; '.join(problems)}"
        )
    model.load_state_dict(weights)


def listed(names: Iterable[str]) -> str:
    """Joins names into one line. Names that differ only in the layer number are written once, as in
    ``layers.{0-11}.0.norm.weight``.
    """
    layers: dict[str, list[int]] = {}
    for name in names:
        # The first number between two dots is the layer number.
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        pattern = f"{name[: number.start()]}{{}}{name[number.end() :]}" if number else name
        layers.setdefault(pattern, []).extend([int(number[0])] if number else [])
    return _shortened(
        pattern.replace("{}", _span(numbers)) if numbers else pattern for pattern, numbers in layers.items()
    )


def _span(numbers: list[int]) -> str:
    """Returns layer numbers as text: "3", "{0-11}" or "{0,2,5}"."""
    if len(numbers) == 1:
        return str(numbers[0])
    contiguous = numbers == list(range(numbers[0], numbers[-1] + 1))
    return "{" + (f"{numbers[0]}-{numbers[-1]}" if contiguous else ",".join(map(str, numbers))) + "}"


def _shortened(items: Iterable[str]) -> str:
    """Joins the first MAX_LISTED items, and adds the number of the others."""
    items = list(items)
    return ", ".join(items[:MAX_LISTED]) + (
        f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    )


def _tensors(content: Any) -> dict[str, Tensor]:
    """Returns the content as tensors by name. Raises ValueError if it is not a mapping or holds
    other values.
    """
    if not isinstance(content, Mapping):
        hint = (
            "read a file with load_weights(path)"
            if isinstance(content, str | os.PathLike)
            else "pass model.state_dict()"
        )
        raise ValueError(f"state_dict must map names to tensors, got {type(content).__name__}; {hint}")
    if wrong := [
        f"{name} ({type(value).__name__})" for name, value in content.items() if not isinstance(value, Tensor)
    ]:
        raise ValueError(
            f"state_dict must map names to tensors alone, got {_shortened(wrong)}; pass the part that holds "
            "the weights"
        )
    return {str(name): value for name, value in content.items()}


def _is_whole(value: Tensor) -> bool:
    """Returns whether a tensor is dense and the file holds all its numbers; a view of one number may claim
    any shape.
    """
    if value.layout != torch.strided or value.device.type == "meta" or value.is_quantized:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _read_torch(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):  # files of torch before 1.6 are no archives, and have no checksums
            check_archive(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's message contains e.g. "GLOBAL os.system", the function it refused
        name = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it asks for {name[1]}" if name else "it is not a file of tensors"
        raise ValueError(
            f"weights must be tensors alone, got {path}, which is not read because {reason}, and reading "
            "could run code; save model.state_dict() alone, or a .safetensors file"
        ) from error
    except Exception as error:
        # torch's reader raises many types for a damaged file, among them OSError with EINVAL
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        reason = f" ({error})" if isinstance(error, ValueError) else ""  # of the archive
        hint = "get it again, or save model.state_dict() alone"
        raise ValueError(
            f"weights must be a whole file of torch.save, got {path}, which cannot be read{reason}; {hint}"
        ) from error


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads the tensors and the metadata of a file, both from the same file even if it is replaced meanwhile.

    Raises:
        ValueError: the file is damaged.
    """
    _safetensors()
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118 no mapping
    except OSError:
        raise
    except Exception as error:  # safetensors raises its own error for every defect
        raise ValueError(
            f"weights must be a whole safetensors file, got {path}, which cannot be read; get it again"
        ) from error


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ImportError(
            "a .safetensors file needs the package safetensors; pip install safetensors, or use a .pt file"
        ) from error
    return safetensors.torch
