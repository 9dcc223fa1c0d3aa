"""Networks that others trained, beside those that ``train`` has stored: what :mod:`.user_models` measures in
them becomes rows of a comparison, or cells of a reach.

They are named as for :func:`.read_user_model`. Those that take images are measured on the test images, at
their own side; those that take ids on a text, which their own tokenizer reads.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import COPIES, in_order, over_heads
from ..core.table import Arrays, grouped
from ..core.theory import Theory
from ..data import Images
from ..data.text import SHIPPED
from ..models.hub import is_name, origin
from ..models.stored import BEST, metadata
from ..models.text_windows import read_sequences
from ..models.transformers_folder import language_model
from ..models.user_model import FORMS, FUNCTION, UserModel, read_user_model
from ..probes.measure import mean_over_heads
from ..training.image.saved import Saved
from .checks import check_weights, first_pass
from .judged import headlines, quantities
from .language_models import probe_language_model
from .user_images import with_images
from .user_models import SEQUENCES, default_samples, measure

ANY = f"a network that train has stored, {FORMS}"
MEAN = "mean over layers and heads"


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A network that was not trained here.

    Attributes:
        user: the network.
        name: its name, unique among the networks of one command.
        described: where it comes from: its name in the hub with the commit, its folder or its function.
    """

    user: UserModel
    name: str
    described: str

    @property
    def size(self) -> str:
        """Its number of parameters in words."""
        return f"{sum(parameter.numel() for parameter in self.user.network.parameters()):,} parameters"

    @property
    def takes_ids(self) -> bool:
        """Whether it takes ids of a text, not images."""
        return getattr(self.user.network, "main_input_name", "") == "input_ids"


Model = str | Path | Saved | UserModel | Pretrained


def divided(models: Sequence[Model]) -> tuple[list[str | Path | Saved], list[Pretrained]]:
    """Divides models into those that ``train`` has stored and others, which are read.

    Raises:
        FileNotFoundError: there is no such file, folder or name.
        ImportError, ValueError: see :func:`.read_user_model`; or the model brings inputs of its own.
    """
    stored: list[str | Path | Saved] = []
    others: list[Pretrained] = []
    for model in models:
        if isinstance(model, Pretrained):
            others.append(model)
        elif isinstance(model, Saved) or (isinstance(model, str | Path) and _is_stored(str(model))):
            stored.append(model)
        else:
            others.append(_read(model))
    counts: dict[str, int] = {}
    for index, other in enumerate(others):
        counts[other.name] = counts.get(other.name, 0) + 1
        if counts[other.name] > 1:
            others[index] = replace(other, name=f"{other.name}, {counts[other.name]}")
    return stored, others


def _is_stored(text: str) -> bool:
    """Returns whether a text names a network that ``train`` has stored, or a file or folder that is none of
    the other forms.
    """
    path = Path(text)
    if FUNCTION.fullmatch(text) or path.suffix == ".py":
        return False
    if path.is_dir():
        return (path / BEST).is_file() or not (path / "config.json").is_file()
    if path.exists():
        beside = path.suffix == ".safetensors" and (path.parent / "config.json").is_file()
        return not beside or metadata(path) is not None
    if not is_name(text):
        raise FileNotFoundError(f"a model must be {ANY}, got {text!r}, which does not exist")
    return False


def _read(model: str | Path | UserModel) -> Pretrained:
    user = model if isinstance(model, UserModel) else read_user_model(str(model), forms=ANY)
    if user.inputs is not None:
        raise ValueError(
            f"{model if not isinstance(model, UserModel) else user.name} returns its own inputs, and here a "
            "network is measured on the given data; return the network alone, or use the command measure"
        )
    if getattr(getattr(user.network, "config", None), "is_encoder_decoder", False):
        raise ValueError(
            f"{user.name} has an encoder and a decoder, which take two inputs; use the command measure with "
            "FILE.py:FUNCTION"
        )
    known = None if user.folder is None else origin(user.folder)
    described = "@".join(known) if known else "in memory" if isinstance(model, UserModel) else str(model)
    # names occur in figures, where $ begins a formula, and before "::" in names of arrays
    name = re.sub(r"[^\w .,+=@()/-]", "_", user.name)
    return Pretrained(replace(user, name=name), name, described)


def text_for(data: Any, networks: Sequence[Pretrained]) -> Path | None:
    """Returns the path of the text that networks of ids read; None if no network takes ids.

    Raises:
        ValueError: some networks take ids and others images, or the data are no text.
    """
    ids = [network for network in networks if network.takes_ids]
    if not ids:
        return None
    path = SHIPPED if data == "text" else Path(data) if isinstance(data, str | Path) else None
    if path is None or path.suffix.lower() != ".txt":
        got = f"{data!r}" if isinstance(data, str) else str(getattr(data, "name", data))
        raise ValueError(
            f"{ids[0].name} takes ids of a text, got the data {got}; name a .txt file, or use the "
            "command measure"
        )
    if others := [network.name for network in networks if not network.takes_ids]:
        raise ValueError(
            f"the models must all take images or all take a text, got {others[0]} and {ids[0].name}; compare "
            "them one after another"
        )
    return path


def check(network: Pretrained, *, images: Images | None = None, text: Path | None = None) -> None:
    """Runs a network on one of the inputs that :func:`measured` takes, before a long computation begins.

    Raises:
        ValueError: the network lacks its data, refuses them, or has weights that are not finite.
    """
    user = replace(network.user, name=network.name)
    check_weights(user.network, user.name)
    if network.takes_ids:
        if text is None:
            raise ValueError(f"{user.name} takes ids of a text, got none; name a text, e.g. --data FILE.txt")
        model = language_model(user.network, name=user.name, folder=user.folder)
        first_pass(user, read_sequences(text, model, sequences=1).inputs)
        return
    if images is None:
        raise ValueError(f"{user.name} takes images, got none; name the images, e.g. --data cifar10")
    inputs = with_images(user, images, max_samples=1)[0].inputs
    assert inputs is not None
    first_pass(user, inputs)


def measured(
    network: Pretrained,
    theories: Sequence[Theory],
    *,
    images: Images | None = None,
    text: Path | None = None,
    **run: Any,
) -> Result:
    """Measures a network as the command ``measure`` does.

    Args:
        network: the network.
        theories: theories of which at least one has quantities in networks.
        images: test images in random order, for networks that take images.
        text: path of a text, for networks of ids. :func:`check` says whether the network takes the data.
        run: networks, minutes, memory, device, seed, journal and progress, see :func:`.user_models.measure`.
    Raises:
        ValueError: see :func:`.user_models.measure`.
    """
    user = replace(network.user, name=network.name)
    if network.takes_ids:
        assert text is not None
        model = language_model(user.network, name=network.name, folder=user.folder)
        found = read_sequences(text, model, sequences=SEQUENCES)
        return probe_language_model(
            model,
            found.inputs,
            described=found.described,
            special_ids=found.special_ids,
            causal=False,
            theories=theories,
            **run,
        )
    assert images is not None
    count = default_samples(user.network, ids=False)
    user, shown, described = with_images(user, images, max_samples=count)
    return measure(user, max_samples=len(shown), described=described, images=shown, theories=theories, **run)


def headline_rows(result: Result, theories: Sequence[Theory]) -> dict[str, Measurement]:
    """Returns the headline of each theory with quantities in networks, averaged over layers and heads, with
    the nulls that :func:`measure` gave it; without a value if it was not measured, with the reason.
    """
    rows: dict[str, Measurement] = {}
    for quantity in headlines(quantities(result, theories), theories):
        mean = quantity.mean
        rows[quantity.theory] = replace(
            mean,
            **dict.fromkeys(("layer", "head", "p", "agreement")),
            model=str(result.settings["model"]),
            note=mean.note or (MEAN if mean.value is not None else ""),
            scope="training",
        )
    return rows


def rows_of(result: Result, theories: Sequence[Theory]) -> Iterator[Measurement]:
    """Yields the rows of a comparison for one network that was measured: the headline of each theory, the
    headlines layer by layer, and every other quantity of the theories, averaged over layers and heads.
    """
    found = headline_rows(result, theories)
    missing = [row for row in result.table if row.quantity in COPIES and row.value is None]
    note = "; ".join(f"{row.quantity}: {row.reason}" for row in missing)
    for row in found.values():
        yield replace(row, note="; ".join(filter(None, (row.note, note))))
    names = {theory.name for theory in theories}
    rows = [row for row in result.table if row.theory in names]
    is_headline = {
        id(row): row.theory in found and row.quantity == found[row.theory].quantity and not row.at
        for row in rows
    }
    yield from mean_over_heads([row for row in rows if is_headline[id(row)] and row.layer is not None])
    others = [row for row in rows if not is_headline[id(row)]]
    for group in grouped(others, lambda row: (row.theory, row.quantity, row.at)).values():
        places = [row for row in group if row.value is not None]
        if len(places) > 1:
            mean = over_heads(places)
            yield replace(mean, layer=None, nulls=in_order(mean.nulls), note=mean.note or MEAN)
        else:
            yield replace((places or group)[0], layer=None, head=None)


def compared(
    networks: Sequence[Pretrained],
    theories: Sequence[Theory],
    *,
    images: Images | None,
    text: Path | None,
    copies: int,
    minutes: float | None,
    device: str,
    seed: int,
    progress: Callable[[str], None],
) -> Iterator[Measurement | Arrays]:
    """Yields the rows and the attention maps of networks in a comparison; see :func:`rows_of`."""
    if not any(theory.in_networks is not None for theory in theories):
        return
    for network in networks:
        result = measured(
            network,
            theories,
            images=images,
            text=text,
            networks=copies,
            minutes=minutes,
            device=device,
            seed=seed,
            progress=lambda line, name=network.name: progress(f"{name}: {line}"),
        )
        yield from rows_of(result, theories)
        if images is not None:
            kept = f"network/{network.name}/"
            yield Arrays({name: array for name, array in result.arrays.items() if name.startswith(kept)})
