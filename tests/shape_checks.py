"""Run-time checks of the shapes in annotations, for the tests: of functions that state a shape, once for
arguments of the same shapes.

The root ``conftest.py`` puts :func:`shapes_only` in place of ``jaxtyping.jaxtyped`` before the package is
imported.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped
_readings: dict[type, Callable[[Any], Any]] = {}


def shapes_only(*, typechecker: Any) -> Callable[[Any], Any]:
    """In place of ``jaxtyping.jaxtyped``, which the import hook applies to every function and class: checks
    those that state a shape.

    One in five functions does. Checking the others too would double the time of the imports and slow down
    every small function; basedpyright checks their types.
    """

    def decorate(checked: Any) -> Any:
        if not _states_a_shape(checked):
            return checked
        if not isinstance(checked, type):
            return _once_per_shape(checked, typechecker)
        if dataclasses.is_dataclass(checked):
            checked.__init__ = _once_per_shape(checked.__init__, typechecker)
        return checked

    return decorate


def _once_per_shape(function: Callable, typechecker: Any) -> Callable:
    """Checks a call, unless arguments and a result of the same kinds have passed before: a check takes a
    tenth of a millisecond.

    The check itself is made at the first call, which makes the imports faster. It sees nothing of the
    arguments but their kinds; only a shape such as ``"{size}"`` would need the value of a number.
    """
    assert not any("{" in str(hint) for hint in function.__annotations__.values())
    passed: set[Any] = set()
    known: dict[int, Any] = {}  # by thread, the result of a call that is checked afterwards

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = known.pop(threading.get_ident(), known)
        return function(*args, **kwargs) if result is known else result

    @functools.cache
    def checked() -> Callable:
        return _jaxtyped(called, typechecker=typechecker)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        given = _kind([args, kwargs] if kwargs else args)
        if given not in passed:
            result = checked()(*args, **kwargs)
        else:
            result = function(*args, **kwargs)
            if (given, _kind(result)) in passed:
                return result
            known[threading.get_ident()] = result
            try:
                checked()(*args, **kwargs)
            finally:
                known.pop(threading.get_ident(), None)
        returned = _kind(result)
        if given is not None and returned is not None:
            passed.update((given, (given, returned)))
        return result

    return wrapper


def _kind(value: Any) -> Any:
    """All that a check of shapes and types sees of a value, or None if that is not known."""
    kind = type(value)
    reading = _readings.get(kind)
    if reading is None:
        reading = _readings[kind] = _reading(kind)
    return reading(value)


def _reading(kind: type) -> Callable[[Any], Any]:
    """How the values of a class are read."""
    if kind.__module__ in ("torch", "torch.nn.parameter", "numpy") and hasattr(kind, "shape"):
        return lambda value: (kind, value.dtype, value.shape)
    if issubclass(kind, str | type):
        return lambda value: (kind, value)
    if issubclass(kind, list | tuple):
        return lambda value: _kinds(kind, value)
    if issubclass(kind, dict):
        return lambda value: _kinds(kind, [*value, *value.values()])
    # a size may be a symbol while torch compiles
    if (hasattr(kind, "shape") and hasattr(kind, "dtype")) or issubclass(kind, Collection):
        return lambda value: None
    return lambda value: kind


def _kinds(kind: type, values: Sequence) -> Any:
    kinds = [kind, *map(_kind, values)] if len(values) <= 16 else [None]
    return None if None in kinds else tuple(kinds)


def _states_a_shape(checked: Any) -> bool:
    # a dataclass gives its __init__ the types of the fields
    function = checked.__init__ if isinstance(checked, type) else checked
    return any(_is_a_shape(hint) for hint in getattr(function, "__annotations__", {}).values())


def _is_a_shape(hint: Any) -> bool:
    """Whether an annotation is a shape or contains one, as in ``tuple[Float[Tensor, "n d"], ...] | None``."""
    if isinstance(hint, str):  # not evaluated
        return "Tensor, " in hint
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(_is_a_shape(part) for part in (hint if isinstance(hint, list | tuple) else get_args(hint)))
