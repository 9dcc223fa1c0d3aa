"""Frozen records: their pickles, and checks of the types of those that were read from files."""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")


class Record:
    """Base of frozen dataclasses with slots, which pickles them as the tuple of their fields.

    Python's own way looks up the fields of the class for each record, which takes longer than all the rest.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), _values(type(self))(self))


def restored(cls: type[T], values: Iterable[Any]) -> T:
    """Returns a frozen dataclass with these values of its fields, in order; nothing is validated."""
    record, set_field = object.__new__(cls), object.__setattr__
    for name, value in zip(_names(cls), values, strict=True):
        set_field(record, name, value)
    return record


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@cache
def _values(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*_names(cls))


def typed(record: T) -> T:
    """Returns a dataclass whose fields have the types of their annotations.

    Raises:
        ValueError: a field has another type.
    """
    check_types(type(record), {name: getattr(record, name) for name, _, _ in _fields(type(record))})
    return record


def check_types(cls: type, values: Mapping[str, Any]) -> None:
    """Checks values for fields of a dataclass or of a ``TypedDict``; a field may be missing, and there may be
    others.

    Raises:
        ValueError: a value has another type than the annotation of its field.
    """
    for name, hint, holds in _fields(cls):
        if name in values and not holds(value := values[name]):
            kind = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
            raise ValueError(f"{name} must be {kind}, got {type(value).__name__} {str(value)[:40]!r}")


@cache
def _fields(cls: type) -> list[tuple[str, Any, Callable[[Any], bool]]]:
    hints = get_type_hints(cls)
    names = hints if is_typeddict(cls) else [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    return [(name, hints[name], _check(hints[name])) for name in names]


def _check(hint: Any) -> Callable[[Any], bool]:
    """Returns a function that says whether a value has a type. An integer is a float; a truth value is no
    number; a ``TypedDict`` has all of its required fields.
    """
    origin: Any = get_origin(hint)
    arguments = get_args(hint)
    parts = [_check(part) for part in arguments if part is not Ellipsis and origin is not Literal]
    if hint is Any:
        return lambda value: True
    if hint in (int, float):
        kinds = (int, float) if hint is float else int
        return lambda value: isinstance(value, kinds) and not isinstance(value, bool)
    if origin is Literal:
        return lambda value: any(value == word for word in arguments)
    if origin in (Union, types.UnionType):
        return lambda value: any(part(value) for part in parts)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return lambda value: isinstance(value, tuple) and all(map(parts[0], value))
    if origin is tuple:
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(part(each) for part, each in zip(parts, value))
        )
    if origin in (dict, Mapping):
        key, item = parts
        return lambda value: isinstance(value, origin) and all(key(k) and item(v) for k, v in value.items())
    if origin is list:
        return lambda value: isinstance(value, list) and all(map(parts[0], value))
    if is_typeddict(hint):
        checks = {name: check for name, _, check in _fields(hint)}
        return lambda value: (
            isinstance(value, dict)
            and hint.__required_keys__ <= value.keys()
            and all(check(value[name]) for name, check in checks.items() if name in value)
        )
    return lambda value: isinstance(value, origin or hint)
