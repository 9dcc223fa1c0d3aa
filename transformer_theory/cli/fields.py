"""Command-line options from the fields of an experiment: name, range, default and help text."""

import argparse
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..core.experiment import range_text


def add_fields(parser: Any, kind: Any, *, without: Sequence[str] = ()) -> None:
    """Adds ``--field-name`` for each field; options that are not given stay absent, so that ``quick()`` or a recipe can fill them.

    Args:
        parser: or a group of one.
        kind: an experiment or another dataclass, or an instance of one, whose values are then shown as the defaults.
        without: fields that get no option.

    Understood: int, float, str, bool (``--x``, ``--no-x``), Literal, ``tuple[int, ...]`` (several words), and each of them ``| None``.

    Raises:
        TypeError: a field of another type (a defect of the experiment, not of the user's input).
    """
    hints = get_type_hints(kind if isinstance(kind, type) else type(kind))
    for field in fields(kind):
        if field.name in without:
            continue
        default = (
            field.default if field.default is not MISSING else field.default_factory() if callable(field.default_factory) else "required"
        )
        default = default if isinstance(kind, type) else getattr(kind, field.name)
        reads = _reads(hints[field.name], field.name, default)
        text = "; ".join(part for part in (field.metadata.get("help"), range_text(field)) if part)
        reads["help"] = f"{text} {reads['help']}".strip().replace("%", "%%")  # argparse reads % as a format
        parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, default=argparse.SUPPRESS, **reads)
    if getattr(kind, "seed", 0) is None:
        parser.add_argument("--seed", action=_NoSeed, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message of the library with the names of options: ``"patch_size must"`` becomes ``"--patch-size must"``.

    A name of several words is replaced wherever it stands by itself; a single word, such as ``dim``, in front of a first "must" or where it
    gets a value, ``size=``.

    Args:
        flags: the option of each field.
    """
    for name, flag in flags.items():
        message = re.sub(rf"(?<![\w/.'\"-]){name}= ?", f"{flag} ", message)
        alone = rf"^{name}(?= must )|(?<![\w/.'\"-]){name}(?![\w/'\"]|\.\w)" if "_" in name else rf"^{name}(?= must )"
        message = re.sub(alone, flag, message)
    return message


def _reads(hint: Any, name: str, default: Any) -> dict[str, Any]:
    shown = " ".join(map(_shown, default)) if isinstance(default, tuple) else _shown(default)
    usual = {"help": "" if default is None else f"(default: {shown})"}  # the field's own text describes None
    if get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not type(None)]
        if len(inner) == 1:
            return _reads(inner[0], name, default)
    if hint is bool:
        return usual | {"action": argparse.BooleanOptionalAction}
    if hint in (int, float, str):
        return usual | {"type": hint, "metavar": hint.__name__.upper()}
    if get_origin(hint) is Literal:
        return usual | {"choices": get_args(hint), "type": type(get_args(hint)[0])}
    if get_origin(hint) is tuple and len(set(get_args(hint)) - {...}) == 1:
        return _reads(get_args(hint)[0], name, default) | {"nargs": "+", "action": _Tuple}
    raise TypeError(f"experiment field {name} must be int, float, str, bool, Literal or a tuple of one of them, got {hint}")


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class _NoSeed(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:
        raise argparse.ArgumentError(self, "this experiment draws no random numbers, so it takes no seed; leave it out")


class _Tuple(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, tuple(values or ()))
