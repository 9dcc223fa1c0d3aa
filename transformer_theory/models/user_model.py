"""The model of a user, with the inputs on which it is measured: from a folder of ``transformers``, from the
folder of a training of this library, from the local cache of the hub, or from a Python function.

A folder is only read: nothing is downloaded, no code of it is executed, and pickled weights are refused
(:mod:`.transformers_folder`). A Python file is the user's own program and is executed like one.
"""

import copy
import importlib
import importlib.util
import inspect
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import first_line, nearest
from ..core.validation import as_labels, as_tensor
from .hub import cached, is_name, origin
from .image_side import interpolate_positions, interpolates
from .stored import BEST, load
from .transformers_folder import LanguageModel, read_network

FUNCTION = re.compile(r"(?P<module>.+?\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
COMMIT = re.compile(r"[0-9a-f]{40}")
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
FORMS = (
    "a folder of transformers, its .safetensors file, the folder of a training of this library, a name in "
    "the local cache of the hub, or FILE.py:FUNCTION"
)


@dataclass(frozen=True, eq=False)
class UserModel:
    """A network of a user.

    Attributes:
        network: the network.
        name: name of its folder or function.
        inputs: inputs ``[n, ...]``, ids, images or tokens; or several of them by the name of the argument.
            None: the caller makes them.
        labels: class of each sequence, ``[n]``, -1 for a sequence without label; None if there are none.
        folder: folder that it was read from; None for a network that a function returned.
    """

    network: nn.Module
    name: str
    inputs: Tensor | Mapping[str, Tensor] | None = None
    labels: Tensor | None = None
    folder: Path | None = None


def read_user_model(text: str, *, forms: str = FORMS) -> UserModel:
    """Reads a model from a folder, from a ``.safetensors`` file beside its ``config.json``, by its name
    from the local cache of the hub (:func:`.hub.cached`), or from ``FILE.py:FUNCTION``. The folder is one of
    ``transformers`` or of a training of this library (:func:`.stored.load`).

    A path that exists is not looked up in the cache. The function takes no arguments. It returns the network,
    ``(network, inputs)`` or ``(network, inputs, labels)``. ``module:function`` names a function of a module
    that can be imported.

    Args:
        text: path, name or function.
        forms: what it may be, in words, for the error messages.
    Raises:
        FileNotFoundError: there is no such file or folder, and no such name in the cache.
        ImportError: transformers is not installed, or huggingface_hub for a name of the hub.
        ValueError: the text names none of these, the folder cannot be read (:func:`.read_network`), the
            function is missing, raises or returns something else.
    """
    if found := FUNCTION.fullmatch(text):
        return _of_function(found["module"], found["name"])
    path = Path(text)
    if path.suffix == ".py":
        raise ValueError(
            f"MODEL must name the function that returns the network, got {text}; write {text}:FUNCTION"
        )
    if path.suffix in PICKLED:
        raise ValueError(
            f"MODEL must be {forms}, got {text}, a pickle, which is not read since it could run code; "
            "load it in a function of your own with torch.load(..., weights_only=True), or store it with "
            "save_pretrained"
        )
    if not text or not path.exists():
        if not is_name(text):
            raise FileNotFoundError(f"MODEL must be {forms}, got {text!r}, which does not exist")
        path = cached(text, forms)
    folder = path.parent if path.suffix == ".safetensors" else path
    if not folder.is_dir():
        raise ValueError(f"MODEL must be {forms}, got the file {text}")
    if not (folder / "config.json").is_file() and (folder / BEST).is_file():
        return UserModel(load(folder), _name_of_run(folder.resolve()))
    known = origin(folder)
    name = folder.resolve().name
    if known is not None:  # the revision distinguishes the checkpoints of one network
        _, at, revision = text.partition("@")
        name = known[0].rpartition("/")[2] + at + (revision[:8] if COMMIT.fullmatch(revision) else revision)
    return UserModel(read_network(folder), name, folder=folder)


def _name_of_run(folder: Path) -> str:
    """Returns the name of a training: that of its folder, with the parent's for one of several seeds."""
    return f"{folder.parent.name}, {folder.name}" if folder.name.startswith("seed-") else folder.name


def _of_function(module: str, name: str) -> UserModel:
    """Calls a function of the user and checks what it returns."""
    text = f"{module}:{name}"
    loaded = _imported(module)
    if not hasattr(loaded, name):
        names = [
            known for known, value in vars(loaded).items() if callable(value) and not known.startswith("_")
        ]
        raise ValueError(
            f"{module} has no function {name!r}{nearest(name, names) if names else '; it defines none'}"
        )
    made = getattr(loaded, name)
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise ValueError(f"{text} must be a function that returns a network, got {type(made).__name__}")
        if needed := _required(made):
            raise ValueError(
                f"{text} must take no arguments, got {name}({', '.join(needed)}); give them defaults"
            )
        made = _called(made, text)
    parts = made if isinstance(made, tuple) else (made,)
    network, inputs, labels = (*parts, None, None)[:3]
    if not isinstance(network, nn.Module) or len(parts) > 3:
        types = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"{text} must return a torch.nn.Module, (module, inputs) or (module, inputs, labels), got "
            f"{types or 'nothing'}"
        )
    return checked(network, inputs, labels, name=name, where=f"{text}: ")


def checked(network: nn.Module, inputs: Any, labels: Any, *, name: str, where: str = "") -> UserModel:
    """Checks inputs and labels of a network and converts them to tensors.

    Args:
        network: the network.
        inputs: tensor or array ``[n, ...]``, several of them by the name of the argument, or None.
        labels: integers, booleans or words ``[n]``, see :func:`.as_labels`, or None.
        name: name of the network.
        where: beginning of the error messages.
    Raises:
        ValueError: inputs are empty, not finite, or differ in length; labels are not one integer per
            sequence.
    """
    if isinstance(inputs, Mapping):
        inputs = {str(key): _batch(f"{where}inputs {key!r}", value) for key, value in inputs.items()}
        if not inputs or len({len(value) for value in inputs.values()}) > 1:
            lengths = ", ".join(f"{key} {len(value)}" for key, value in inputs.items()) or "none"
            raise ValueError(f"{where}inputs must have one entry per sequence in each array, got {lengths}")
    elif inputs is not None:
        inputs = _batch(f"{where}inputs", inputs)
    count = (
        None
        if inputs is None
        else len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
    )
    if labels is not None:
        labels = as_labels(f"{where}labels", labels, count=count)
    return UserModel(network, name, inputs, labels)


def label_numbers(network: nn.Module) -> dict[str, int]:
    """Returns the classes that the configuration of a model of ``transformers`` names; none for others."""
    numbers = getattr(getattr(network, "config", None), "label2id", None)
    return dict(numbers) if isinstance(numbers, Mapping) else {}


def _required(function: Any) -> list[str]:
    """Returns the names of the arguments that a function requires."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name for each in parameters if each.default is inspect.Parameter.empty and each.kind not in kinds
    ]


def _imported(module: str) -> ModuleType:
    """Imports a module of the user; a file is executed with its folder on the path, as Python executes a
    script.
    """
    if not module.endswith(".py"):
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        return _called(lambda: importlib.import_module(module), module)
    path = Path(module)
    if not path.is_file():
        raise FileNotFoundError(f"MODEL must be {FORMS}, got {module}, which does not exist")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise ValueError(f"MODEL must be {FORMS}, got {module}, which Python cannot import")
    loaded, loader = importlib.util.module_from_spec(specification), specification.loader
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = loaded  # dataclasses and pickles look their module up
    _called(lambda: loader.exec_module(loaded), module)
    return loaded


def _called(function: Any, text: str) -> Any:
    """Calls a function of the user; an error names the line of the user's code.

    Raises:
        ValueError: the function raised.
    """
    try:
        return function()
    except (Exception, SystemExit) as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename) != Path(__file__)
        ]
        library = ("<", sysconfig.get_path("stdlib"), *site.getsitepackages())
        own = [frame for frame in frames if not frame.filename.startswith(library)]
        where = f" at line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""
        raise ValueError(
            f"{text} raised {type(error).__name__}{where}: {first_line(error)}; --traceback shows more"
        ) from error


def _batch(name: str, values: Any) -> Tensor:
    """Converts inputs to a tensor ``[n, ...]`` of finite numbers.

    Raises:
        ValueError: they are none, have no axis of sequences, or hold NaN or infinity.
    """
    try:
        tensor = as_tensor(name, values)
    except (TypeError, ValueError) as error:
        if isinstance(values, Tensor):
            raise
        raise ValueError(
            f"{name} must be a tensor [n, ...] of ids, images or tokens, got {type(values).__name__}"
        ) from error
    if tensor.ndim < 2 or not tensor.numel():
        raise ValueError(f"{name} must be a tensor [n, ...] of ids, images or tokens, got {_shape(tensor)}")
    tensor = tensor.detach()
    tensor = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got {int((~tensor.isfinite()).sum())} NaN or infinite values; drop them"
        )
    return tensor


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def untrained_network(network: nn.Module, seed: int) -> nn.Module:
    """Returns a network of the same kind with random weights, in evaluation mode.

    A model of ``transformers`` is built anew from its configuration. Of any other network a copy is made, in
    which every module draws its parameters by its own ``reset_parameters``. Parameters of modules without
    this method (class tokens, positions, scales) keep their entries in random order.

    Raises:
        ValueError: the network cannot be copied or drawn again.
    """
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if hasattr(type(network), "_from_config"):
                fresh = LanguageModel(network, type(network).__name__, 1).untrained(seed)
                if interpolates(network):
                    interpolate_positions(fresh)
                return fresh
            fresh = copy.deepcopy(network)
            _reset(fresh)
    except Exception as error:  # constructors and copies of networks of users raise errors of many kinds
        raise ValueError(
            f"{type(network).__name__} cannot be drawn again ({type(error).__name__}: {str(error)[:120]})"
        ) from error
    return fresh.eval()


@torch.no_grad()
def _reset(network: nn.Module) -> None:
    for module in network.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
            continue
        for parameter in module.parameters(recurse=False):
            parameter.copy_(
                parameter.flatten()[torch.randperm(parameter.numel(), device=parameter.device)].view_as(
                    parameter
                )
            )
