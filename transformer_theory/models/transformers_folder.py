"""Models of ``transformers`` in a local folder: configuration, weights in safetensors, and optionally a
tokenizer.

Nothing is downloaded, no code of the folder is executed, and pickled weights are refused.
"""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..core.reading import read_json
from ..data.ids import integer_tensor, read_integers

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
# names of the longest sequence in configurations
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")

DEPTHS = ("num_hidden_layers", "n_layer", "num_layers")  # names of the number of layers in configurations
MANY = 1000  # layers beyond which the depth is compared with the number of weights


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model with its limits.

    Attributes:
        network: module that maps ids ``[n, seq]`` to logits ``[n, seq, vocabulary]``.
        name: name of the folder.
        vocabulary: number of ids.
        length: longest sequence; None if the configuration names none.
        folder: folder that it was read from; None for a network that was passed as an object.
    """

    network: nn.Module
    name: str
    vocabulary: int
    length: int | None = None
    folder: Path | None = None

    def untrained(self, seed: int) -> nn.Module:
        """Returns a network of the same configuration with random weights.

        Raises:
            ValueError: the network has no configuration of ``transformers``.
        """
        config = getattr(self.network, "config", None)
        if config is None or not hasattr(type(self.network), "_from_config"):
            raise ValueError(
                f"{self.name} must be a model of transformers to be drawn again, got "
                f"{type(self.network).__name__}"
            )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return type(self.network)(config).eval()

    def tokenizer(self) -> Any:
        """Returns the tokenizer in the folder, of ``transformers``.

        Raises:
            ValueError: the folder holds no tokenizer.
        """
        library, place = _transformers(), self.folder or self.name
        missing = f"{place} must hold a tokenizer to read a text, got none; pass ids as a .npy file instead"
        # Without its files some tokenizers are made nevertheless, with an empty vocabulary.
        if self.folder is None or not any((self.folder / name).exists() for name in TOKENIZERS):
            raise ValueError(missing)
        try:
            with quiet():
                return library.AutoTokenizer.from_pretrained(
                    self.folder, local_files_only=True, trust_remote_code=False
                )
        except Exception as error:  # a missing tokenizer raises errors of many kinds
            raise ValueError(missing) from error


def _transformers() -> Any:
    """Imports ``transformers``. Its types are not checked: a type checker would read thousands of files for
    three names.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "a folder of transformers needs the package transformers; pip install transformers"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences progress bars and warnings of ``transformers``."""
    logging = _transformers().utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_language_model(folder: str | Path) -> LanguageModel:
    """Reads a causal language model.

    Args:
        folder: folder with ``config.json`` and weights that end in ``.safetensors``, as ``save_pretrained``
            writes it.
    Raises:
        FileNotFoundError: the folder does not exist.
        ImportError: the package transformers is not installed.
        ValueError: the folder holds no configuration or no safetensors, not those of a causal language model,
            or not all of its weights.
    """
    folder = Path(folder)
    described = configuration(folder)
    network = _network(folder, described, _transformers().AutoModelForCausalLM, "a causal language model")
    return language_model(network, name=folder.resolve().name, folder=folder)


def read_network(folder: str | Path) -> nn.Module:
    """Reads a model of any kind: the class of ``transformers`` that ``config.json`` names, in evaluation
    mode.

    Raises:
        FileNotFoundError, ImportError: see :func:`read_language_model`.
        ValueError: the folder holds no configuration or no safetensors, its class is unknown, or not all
            weights are there.
    """
    folder = Path(folder)
    described, library = configuration(folder), _transformers()
    name = next(iter(described.get("architectures") or []), "AutoModel")
    kind = getattr(library, name, None) if str(name).isidentifier() else None
    if not hasattr(kind, "from_pretrained"):
        raise ValueError(
            f"{folder / 'config.json'} must name a class of transformers {library.__version__}, got "
            f"{name!r}; update transformers"
        )
    return _network(folder, described, kind, f"weights of {name}")


def configuration(folder: Path) -> dict[str, Any]:
    """Reads ``config.json`` of a folder that ``save_pretrained`` wrote.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: it holds no configuration, or no weights in safetensors.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} must be a folder with config.json and .safetensors files; there is none"
        )
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} must hold config.json, got none; write the model with save_pretrained({str(folder)!r})"
        )
    try:
        described = read_json(folder / "config.json")
        if not isinstance(described, dict):
            raise ValueError(f"a {type(described).__name__}, not an object")
        names = described.get("architectures") or []
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"architectures must be a list of names, got {str(names)[:40]}")
    except ValueError as error:
        raise ValueError(
            f"{folder / 'config.json'} must be JSON that describes a network ({error}); write the model "
            "again with save_pretrained"
        ) from error
    if not any(folder.glob("*.safetensors")):
        others = (
            ", ".join(
                sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
            )
            or "no weights"
        )
        raise ValueError(
            f"{folder} must hold weights in .safetensors files, got {others}; save_pretrained writes them"
        )
    depth = max((value for key in DEPTHS if isinstance(value := described.get(key), int)), default=0)
    # it would be built layer by layer before shapes are compared
    if depth > MANY and depth > (tensors := len(_shapes(folder))):
        raise ValueError(
            f"{folder / 'config.json'} must state the depth of the weights, got {depth:,} layers for "
            f"{tensors:,} tensors"
        )
    return described


def _shapes(folder: Path) -> dict[str, list[int]]:
    """Reads the shapes of all weights of a folder; of a damaged file, none."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(SafetensorError), safe_open(path, framework="pt") as opened:
            names = opened.keys()
            shapes |= {name: opened.get_slice(name).get_shape() for name in names}
    return shapes


def _of_other_shape(folder: Path, described: dict[str, Any], kind: Any) -> str:
    """Names weights whose shapes differ from those of the configuration, without memory for the weights."""
    library, stored = _transformers(), _shapes(folder)
    try:
        with torch.device("meta"):
            config = library.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
        expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    except Exception:  # the message then names no tensor
        return ", ".join(map(str, described.get("architectures") or []))
    differing = [name for name, shape in stored.items() if expected.get(name, shape) != shape]
    first = ", ".join(f"{name} {stored[name]} for {expected[name]}" for name in differing[:2])
    return first + (f" and {len(differing) - 2} others" if len(differing) > 2 else "")


def _network(folder: Path, described: dict[str, Any], kind: Any, expected: str) -> nn.Module:
    """Reads a network of a class of ``transformers`` from a folder that holds safetensors."""
    options: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": False,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    try:
        with quiet():  # what does not fit is said in one line below
            network, loaded = kind.from_pretrained(folder, **options)
    except Exception as error:  # wrong types, shapes and damaged files raise errors of many kinds
        actual = ", ".join(
            map(str, described.get("architectures") or [described.get("model_type", "no type")])
        )
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        if "ignore_mismatched_sizes" in first:  # its list of tensors went to the log
            first = "weights of other shapes than config.json states: " + _of_other_shape(
                folder, described, kind
            )
        raise ValueError(f"{folder} must hold {expected}, got {actual} ({first})") from error
    # transformers draws missing weights at random; a head that is tied to the embedding is not missing.
    if missing := sorted(loaded["missing_keys"]):
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} others" if len(missing) > 3 else "")
        raise ValueError(
            f"{folder} must hold all weights of {type(network).__name__}, {names} missing; write the model "
            "again"
        )
    return network.eval()


def language_model(
    network: nn.Module, *, name: str | None = None, folder: Path | None = None
) -> LanguageModel:
    """Describes a network of ``transformers`` by its configuration.

    Raises:
        ValueError: the configuration names no vocabulary.
    """
    config = getattr(network, "config", None)
    vocabulary = getattr(config, "vocab_size", getattr(getattr(network, "cfg", None), "d_vocab", None))
    if not isinstance(vocabulary, int):
        raise ValueError(
            f"{type(network).__name__} must have a config with vocab_size, got none; pass "
            "LanguageModel(network, name, ...)"
        )
    return LanguageModel(
        network, name or type(network).__name__, vocabulary, longest_sequence(network), folder
    )


def longest_sequence(network: nn.Module) -> int | None:
    """Returns the largest number of tokens that a network accepts, from its configuration; None if it states
    none, or -1 as that of XLNet does.
    """
    places = [config for name in ("config", "cfg") if (config := getattr(network, name, None)) is not None]
    stated = (getattr(config, key, None) for config in places for key in LENGTHS)
    return min((value for value in stated if isinstance(value, int) and value > 0), default=None)


def read_ids(path: str | Path, *, length: int, sequences: int | None) -> Int[Tensor, "n seq"]:
    """Reads sequences of ids: windows of a .npy file of integers ``[n]``.

    The first rows of a .npy file of integers ``[n, seq]`` are the sequences themselves; their length is that
    of the file. If ``sequences`` is None, all are read.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is no array of integers, or holds fewer than one window.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected a text, or ids in a .npy file")
    array = read_integers(path)
    if array.ndim == 2:
        return integer_tensor(array[:sequences], str(path), shape="[n, seq]")
    return windows(integer_tensor(array, str(path), shape="[n]"), length=length, sequences=sequences)


def windows(ids: Sequence[int] | Tensor, *, length: int, sequences: int | None) -> Int[Tensor, "n length"]:
    """Cuts a stream of ids ``[n]`` into windows that are evenly spaced over it and do not overlap,
    ``[sequences, length]`` or fewer; all windows if ``sequences`` is None.

    Raises:
        ValueError: the stream is shorter than one window.
    """
    ids = torch.as_tensor(ids, dtype=torch.long)
    count = len(ids) // length
    if not count:
        raise ValueError(
            f"the text must have at least {length} tokens, got {len(ids)}; pass a longer text or a smaller "
            "length"
        )
    chosen = torch.linspace(0, count - 1, min(sequences or count, count)).long()
    return ids[: count * length].view(count, length)[chosen]
