"""Checks of arguments, and lossless conversion of arrays.

Public numerical functions take tensors; decorated by :func:`converted` they also take numpy arrays, float32
and integers, and run in the precision of their arguments: autocast is off inside (:func:`full_precision`).
"""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

# largest distance of a sum of shares from 1; the rows of a float32 softmax sum to 1 within 1e-6
SHARES_ATOL = 1e-4
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")  # devices with an autocast of their own

MAX_SEEDS = 100_000  # largest number of seeds

# the label of a sequence without a class
UNLABELLED = -1

P = ParamSpec("P")
T = TypeVar("T")


def number(name: str, value: object) -> float:
    """Converts a number to a float.

    Raises:
        TypeError: the value is not a number; the message contains ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def positive(**values: object) -> None:
    """Checks that arguments such as step sizes and distortions are positive and finite.

    Raises:
        ValueError: an argument is zero, negative, infinite or NaN; the message names it.
        TypeError: an argument is not a number.
    """
    for name, value in values.items():
        if not 0 < number(name, value) < math.inf:
            hint = "; it is the distortion, squared inside" if name == "eps" else ""
            raise ValueError(f"{name} must be positive and finite, got {value}{hint}")


def integers(*, minimum: int = 1, **values: object) -> None:
    """Checks that arguments such as dimensions, steps and numbers of samples are integers of at least
    ``minimum``.

    Raises:
        ValueError: an argument is below ``minimum``; the message names it.
        TypeError: an argument is not an integer.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be an integer, got {type(value).__name__} {value!r}")
        if int(value) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


def seed_numbers(name: str, seeds: int | Iterable[int], *, minimum: int = 1) -> tuple[int, ...]:
    """Returns the seeds as a tuple. A number n means the seeds 0 to n - 1; repetitions in a list are dropped.

    Args:
        name: name of the argument, for error messages.
        seeds: list of seeds, or number of seeds.
        minimum: smallest number of seeds.
    Raises:
        ValueError: there are too few or too many seeds, or one lies outside [0, 2^32).
    """
    if isinstance(seeds, int):
        integers(minimum=minimum, **{name: seeds})
        if seeds > MAX_SEEDS:
            raise ValueError(f"{name} must be at most {MAX_SEEDS:,}, got {seeds}")
        return tuple(range(seeds))
    numbers = tuple(dict.fromkeys(int(seed) for seed in seeds))
    if len(numbers) < minimum or any(not 0 <= seed < 2**32 for seed in numbers):
        raise ValueError(
            f"{name} must be a number or a list of numbers in [0, 2**32), got {list(numbers)}; pass e.g. "
            f"{name}=3"
        )
    return numbers


def usable_device(device: str) -> None:
    """Checks that torch can use a device.

    Raises:
        ValueError: torch cannot use it; the message gives torch's reason.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: this build of torch lacks CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be usable by torch on this machine, got {device!r} ({reason}); use 'cpu'"
        ) from error


def finite(**tensors: Shaped[Tensor, "..."]) -> None:
    """Checks that tensors hold neither NaN nor infinity.

    Raises:
        ValueError: a tensor holds such values; the message names it and counts them.
    """
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and _is_finite(tensor)) and not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{name} must be finite, got {int((~torch.isfinite(tensor)).sum())} NaN or infinite values; "
                "drop them"
            )


def same_dtype(**tensors: Shaped[Tensor, "..."]) -> None:
    """Checks that tensors [...] share a dtype, so that they can be multiplied, and that none on a CPU is
    float16.

    Under autocast, which chooses the dtype of products, the dtypes may differ. Functions decorated by
    :func:`converted` run without it.

    Raises:
        ValueError: a tensor on a CPU is float16, or the dtypes differ.
    """
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float16 and tensor.device.type == "cpu":
            raise ValueError(f"{name} on a CPU must be float32 or float64, got float16; pass {name}.float()")
    (first, tensor), *others = tensors.items()
    for second, other in others:
        if tensor.dtype != other.dtype and not torch.is_autocast_enabled(tensor.device.type):
            raise ValueError(
                f"{first} and {second} must share a dtype, got {tensor.dtype} and {other.dtype}; convert "
                "one of them"
            )


def as_float64(name: str, value: Any) -> Tensor:
    """Converts a tensor, a numpy array, a number or nested lists to a float64 tensor ``[...]``, without loss.

    Raises:
        TypeError: the value has another type, or holds complex numbers or booleans.
        ValueError: the value holds integers above 2^53, which float64 does not represent exactly, or the
            lists are ragged.
    """
    tensor = as_tensor(name, value)
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    if not tensor.is_floating_point() and tensor.numel() and int(tensor.abs().max()) > 2**53:
        raise ValueError(
            f"{name} must hold integers up to 2^53, which float64 holds exactly, got "
            f"{int(tensor.abs().max())}"
        )
    return tensor.to(torch.float64)


def as_int64(name: str, value: Any) -> Tensor:
    """Converts a tensor, a numpy array, an integer or nested lists of integers to an int64 tensor ``[...]``.

    Raises:
        TypeError: the value has another type, or holds numbers that are not integers.
    """
    tensor = as_tensor(name, value)
    if tensor.dtype == torch.bool or tensor.is_complex() or tensor.is_floating_point():
        raise TypeError(
            f"{name} must hold integers, got {tensor.dtype}; convert with .long(), or .astype(int) in numpy"
        )
    return tensor.to(torch.int64)


def as_labels(
    name: str, value: Any, *, count: int | None = None, words: dict[str, int] | None = None
) -> Tensor:
    """Converts labels to classes, an int64 tensor ``[n]``.

    Integers stay as they are; booleans are the classes 0 and 1; words are numbered in alphabetical order. A
    negative integer, such as the -100 that torch's cross entropy ignores, means that the sequence has no
    label, and becomes :data:`UNLABELLED`. What needs labels leaves such sequences out.

    Args:
        name: name of the argument, for error messages.
        value: tensor, array or list of integers, booleans or words, ``[n]``.
        count: number of sequences, n. None: not checked.
        words: numbers of the words of earlier calls, to which those of new words are added.
    Raises:
        ValueError: the value holds something else, or has another shape.

    >>> as_labels("labels", ["cat", "ant", "cat"]), as_labels("labels", [2, -100, 0])
    (tensor([1, 0, 1]), tensor([ 2, -1,  0]))
    """
    texts = _texts(value)
    if texts is not None:
        words = {} if words is None else words
        for word in sorted(set(texts) - words.keys()):
            words[word] = len(words)
        tensor = torch.tensor([words[word] for word in texts], dtype=torch.int64)
    else:
        try:
            tensor = as_tensor(name, value)
        except (TypeError, ValueError) as error:
            if isinstance(value, Tensor):
                raise
            got = f"{type(value).__name__}; pass integers, booleans or words"
            raise ValueError(f"{name} must be one integer or word per sequence, got {got}") from error
    is_real = tensor.is_floating_point() or tensor.is_complex()
    if count is not None and (is_real or tuple(tensor.shape) != (count,)):
        got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise ValueError(f"{name} must be one integer for each of the {count} sequences, got {got}")
    if is_real:
        raise ValueError(
            f"{name} must be integers, got {tensor.dtype}; convert with .long(), or .astype(int) in numpy"
        )
    if tensor.ndim != 1:
        hint = "squeeze(1)" if tensor.shape[1:] == (1,) else "argmax(1) if the rows are one-hot"
        raise ValueError(f"{name} must have shape [n], got {list(tensor.shape)}; pass {name}.{hint}")
    return tensor.to(torch.int64).clamp(min=UNLABELLED)


def _texts(value: Any) -> list[str] | None:
    """Returns labels that are all words, as a list; None for other labels."""
    if isinstance(value, Tensor | str | bytes | dict) or not isinstance(value, Iterable):
        return None
    if isinstance(value, np.ndarray) and value.dtype.kind not in "UO":
        return None
    entries = list(value)
    return [str(entry) for entry in entries] if entries and all(isinstance(e, str) for e in entries) else None


def as_float(name: str, value: Any) -> Tensor:
    """Converts a value to a float32 or float64 tensor ``[...]``. Half precision becomes float32, integers
    become float64.
    """
    tensor = as_tensor(name, value)
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else as_float64(name, tensor)


def as_real(name: str, value: Any) -> Tensor:
    """Converts a value to a tensor ``[...]`` of real numbers. Floating-point numbers keep their precision,
    integers become float64.
    """
    tensor = as_tensor(name, value)
    return tensor if tensor.is_floating_point() else as_float64(name, tensor)


def as_mask(name: str, value: Any) -> Tensor:
    """Converts a tensor, a numpy array or nested lists of booleans to a boolean tensor ``[...]``.

    Raises:
        TypeError: the value holds other numbers.
    """
    tensor = as_tensor(name, value)
    if tensor.dtype != torch.bool:
        raise TypeError(
            f"{name} must hold booleans, got {tensor.dtype}; compare the numbers with 0, or convert with "
            ".bool()"
        )
    return tensor


def as_tensor(name: str, value: Any) -> Tensor:
    """Converts a tensor, a numpy array, a number or nested lists to a tensor ``[...]`` of the same dtype,
    unless torch lacks it.

    Raises:
        TypeError: the value has another type; the message contains ``name``.
        ValueError: the lists are ragged, unsigned integers are too large, entries of the array are masked, or
            the tensor is not an ordinary one (sparse, nested, quantised, or without values).
    """
    if isinstance(value, Tensor):
        _check_stored(name, value)
        return value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} must have no masked entries, got {int(np.ma.count_masked(value))}; drop or impute them"
        )
    if isinstance(value, np.ndarray | np.generic | Real) or (
        isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)
    ):
        try:
            return torch.as_tensor(_native(np.asarray(value)))
        except (TypeError, ValueError) as error:
            actual = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ValueError(
                f"{name} must be a tensor, an array or a list of numbers of one shape, got {actual}"
            ) from error
    raise TypeError(f"{name} must be a torch.Tensor or a numpy array, got {type(value).__name__}")


def _check_stored(name: str, tensor: Tensor) -> None:
    """Checks that a tensor holds one value per entry.

    Raises:
        ValueError: the tensor is on the meta device, nested, sparse or quantised.
    """
    if tensor.is_nested:
        what, remedy = (
            "a nested tensor",
            f"pad it: {name}.to_padded_tensor(0.0), with a mask of the real tokens",
        )
    elif tensor.device.type == "meta":
        what, remedy = (
            "a tensor on the meta device, which has none",
            "make it on a real device, such as 'cpu'",
        )
    elif tensor.layout != torch.strided:
        what, remedy = f"the layout {tensor.layout}", f"pass {name}.to_dense()"
    elif tensor.is_quantized:
        what, remedy = f"the quantised type {tensor.dtype}", f"pass {name}.dequantize()"
    else:
        return
    raise ValueError(f"{name} must be a tensor with a value for each entry, got {what}; {remedy}")


def _native(array: np.ndarray) -> np.ndarray:
    """Converts the array to a dtype that torch supports: native byte order, unsigned integers as int64."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and int(array.max()) >= 2**63:
            raise ValueError(f"unsigned integers must be below 2^63, got {int(array.max())}")
        return array.astype(np.int64)
    return array.astype(array.dtype.newbyteorder("="))


def full_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Returns the function with autocast switched off while it runs, so that products have the precision of
    its arguments.

    >>> @full_precision
    ... def square(x):
    ...     return x @ x
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     square(torch.eye(2)).dtype
    torch.float32
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        active = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
        if not active:
            return function(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            for device in active:
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return call


def in_range(function: Callable[P, T]) -> Callable[P, T]:
    """Returns the function with a check of its numbers: NaN, infinity and empty arguments are refused, and so
    are numbers that leave the range of floating point on the way.

    The result is examined, which costs less than an examination of all arguments. The arguments are examined
    only to find the reason of a result that is not finite, or of a failure.

    Raises:
        ValueError: the function is called and its result is not finite, or it fails on such arguments.

    >>> @in_range
    ... def inverse(x):
    ...     return 1 / x
    >>> inverse(0.0)
    Traceback (most recent call last):
    ValueError: the result of inverse must be finite, got NaN or infinity; leave out arguments that are ...
    >>> inverse(torch.tensor([math.nan]))
    Traceback (most recent call last):
    ValueError: x must be finite, got 1 NaN or infinite values; drop them
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result = function(*args, **kwargs)
        except (ArithmeticError, LookupError, RuntimeError) as error:  # LinAlgError is a RuntimeError
            _refuse_unusual(function, args, kwargs)
            # torch raises a RuntimeError if a number does not fit into the dtype of a tensor
            if isinstance(error, ArithmeticError) or "without overflow" in str(error):
                raise _out_of_range(function) from error
            raise
        if torch.compiler.is_compiling() or _is_finite(result):
            return result
        _refuse_unusual(function, args, kwargs)
        raise _out_of_range(function)

    return call


def _is_finite(value: Any) -> bool:
    """Returns whether all floating-point numbers of a result are finite."""
    if isinstance(value, Tensor):
        # One pass without an array of booleans; the sum of large numbers may overflow, and is no proof then.
        value = value.detach()
        return (
            not value.is_floating_point()
            or math.isfinite(float(value.sum()))
            or bool(torch.isfinite(value).all())
        )
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    if isinstance(value, tuple | list):
        return all(_is_finite(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return all(_is_finite(getattr(value, field.name)) for field in fields(value))
    return not isinstance(value, float) or math.isfinite(value)


def _refuse_unusual(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises a ValueError if an argument of a call is empty, NaN or infinite; the message names it."""
    for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items():
        if isinstance(value, Tensor | np.ndarray | list | tuple):
            try:
                tensor = as_tensor(name, value)
            except (TypeError, ValueError, RuntimeError):
                continue
            if not tensor.numel():
                raise ValueError(f"{name} must hold at least one number, got the shape {list(tensor.shape)}")
            if tensor.is_floating_point():
                finite(**{name: tensor})
        elif isinstance(value, float | np.floating) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")


def _out_of_range(function: Callable[..., Any]) -> ValueError:
    return ValueError(
        f"the result of {function.__name__} must be finite, got NaN or infinity; leave out arguments that "
        "are degenerate, such as zeros, and rescale those that are too large or too small"
    )


def converted(
    *,
    float64: tuple[str, ...] = (),
    floats: tuple[str, ...] = (),
    int64: tuple[str, ...] = (),
    reals: tuple[str, ...] = (),
    masks: tuple[str, ...] = (),
    labels: tuple[str, ...] = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator that converts the named arguments, and switches autocast off
    (:func:`full_precision`).

    The conversions are :func:`as_float64`, :func:`as_float`, :func:`as_int64`, :func:`as_real`,
    :func:`as_mask` and :func:`as_labels`.

    An argument that is None stays None, unless the function requires it. Numbers of numpy among the keyword
    arguments become numbers of Python.

    Args:
        float64, floats, int64, reals, masks, labels: names of the arguments to convert.
    Raises:
        TypeError: the function lacks one of the arguments.

    >>> @converted(float64=("x",))
    ... def double(x):
    ...     return 2 * x
    >>> double(np.ones(2, dtype="float32"))
    tensor([2., 2.], dtype=torch.float64)
    """
    conversions: dict[str, Callable[[str, Any], Tensor]] = dict.fromkeys(float64, as_float64) | dict.fromkeys(
        floats, as_float
    )
    conversions |= (
        dict.fromkeys(int64, as_int64)
        | dict.fromkeys(reals, as_real)
        | dict.fromkeys(masks, as_mask)
        | dict.fromkeys(labels, as_labels)
    )

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters
        names = list(parameters)
        optional = {name for name, one in parameters.items() if one.default is not inspect.Parameter.empty}
        if unknown := conversions.keys() - set(names):
            raise TypeError(f"{function.__name__} has no arguments {sorted(unknown)}")
        positions = [(names.index(name), name, convert) for name, convert in conversions.items()]
        exact = full_precision(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            positional = list(args)
            for name, value in kwargs.items():
                if isinstance(value, np.generic):
                    kwargs[name] = value.item()
            for position, name, convert in positions:
                stored, key = (positional, position) if position < len(positional) else (kwargs, name)
                if stored is kwargs and name not in kwargs:
                    continue
                if stored[key] is not None or name not in optional:  # pyright: ignore[reportCallIssue, reportArgumentType]
                    stored[key] = convert(name, stored[key])  # pyright: ignore[reportCallIssue, reportArgumentType]
            return exact(*positional, **kwargs)  # pyright: ignore[reportCallIssue]

        return call

    return decorate
