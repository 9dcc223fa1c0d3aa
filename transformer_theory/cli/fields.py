"""Derives command-line options from the fields of a dataclass: name, range, default and help text."""

import argparse
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def add_fields(parser: Any, kind: Any, *, without: Sequence[str] = ()) -> None:
    """Adds an option ``--field-name`` for each field.

    The parsed namespace has no entry for an omitted option, so that ``quick()`` or a recipe can supply the
    value. Fields may be int, float, str, bool (``--x``, ``--no-x``), Literal or a tuple such as ``tuple[int,
    ...]`` (several words), each also with ``| None``.

    Args:
        parser: parser, or a group of options of a parser.
        kind: an experiment or another dataclass, or an instance of one. The help texts show the values of an
            instance as defaults.
        without: names of fields that get no option.

    Raises:
        TypeError: a field has another type, which is a bug in the dataclass, not an error of the user.
    """
    from ..core.experiment import range_text  # imports torch, which error messages do not wait for

    hints = get_type_hints(kind if isinstance(kind, type) else type(kind))
    for field in fields(kind):
        if field.name in without:
            continue
        default = (
            field.default
            if field.default is not MISSING
            else field.default_factory()
            if callable(field.default_factory)
            else "required"
        )
        default = default if isinstance(kind, type) else getattr(kind, field.name)
        argument = _argument(hints[field.name], field.name, default)
        text = "; ".join(part for part in (field.metadata.get("help"), range_text(field)) if part)
        # argparse formats help texts with %
        argument["help"] = f"{text} {argument['help']}".strip().replace("%", "%%")
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", dest=field.name, default=argparse.SUPPRESS, **argument
        )
    if getattr(kind, "seed", 0) is None:
        parser.add_argument("--seed", action=_NoSeed, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """Replaces names of fields in an error message by their options: ``"patch_size must"`` becomes
    ``"--patch-size must"``.

    A name with an underscore is replaced wherever it is a word of its own. A name without one, such as
    ``dim``, may be an English word, so it is replaced only before "must" at the start of the message and in
    assignments, ``size=``.

    Args:
        message: an error message of the library.
        flags: options by the names of their fields.
    """
    # The characters before and after a match exclude parts of longer words, paths, attributes (x.size) and
    # quoted names.
    for name, flag in flags.items():
        message = re.sub(rf"(?<![\w/.'\"-]){name}= ?", f"{flag} ", message)
        alone = (
            rf"^{name}(?= must )|(?<![\w/.'\"-]){name}(?![\w/'\"]|\.\w)"
            if "_" in name
            else rf"^{name}(?= must )"
        )
        message = re.sub(alone, flag, message)
    return message


def _argument(hint: Any, name: str, default: Any) -> dict[str, Any]:
    """Returns the arguments of ``add_argument`` for a field of this type."""
    default_text = " ".join(map(_value_text, default)) if isinstance(default, tuple) else _value_text(default)
    # the help text of a field explains a default of None
    common = {"help": "" if default is None else f"(default: {default_text})"}
    if get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not type(None)]
        if len(inner) == 1:
            return _argument(inner[0], name, default)
    if hint is bool:
        return common | {"action": argparse.BooleanOptionalAction}
    if hint in (int, float, str):
        return common | {"type": hint, "metavar": hint.__name__.upper()}
    if get_origin(hint) is Literal:
        return common | {"choices": get_args(hint), "type": type(get_args(hint)[0])}
    if get_origin(hint) is tuple and len(set(get_args(hint)) - {...}) == 1:
        return _argument(get_args(hint)[0], name, default) | {"nargs": "+", "action": _Tuple}
    raise TypeError(
        f"experiment field {name} must be int, float, str, bool, Literal or a tuple of one of them, got "
        f"{hint}"
    )


def _value_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class _NoSeed(argparse.Action):
    """A hidden option ``--seed`` whose error explains that the experiment has no seed; argparse would only
    call it unknown.
    """

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        raise argparse.ArgumentError(
            self, "this experiment draws no random numbers, so it takes no seed; leave it out"
        )


class _Tuple(argparse.Action):
    """Stores several words as a tuple, as the fields of a frozen dataclass require."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, tuple(values or ()))
