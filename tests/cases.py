"""Many quick cases in one test. A test of its own for each takes a few milliseconds to collect, to set up and
to report, more than such a case itself.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

LONGEST = 60  # characters of a value in the name of a case


def each_case(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[Any] | Callable[[Any], Any] | None = None,
) -> Callable[[Callable], Callable]:
    """In place of ``pytest.mark.parametrize``: one test runs all cases. It fails with the errors of all cases
    that fail, each with its traceback and the name of its case. If cases are skipped, the others run, and the
    test counts as skipped.

    Each case has its own ``tmp_path``, ``monkeypatch`` and ``generator``, and an empty ``capsys``. It shares
    the other fixtures with the cases before it.
    """
    single = isinstance(names, str) and "," not in names
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [(value,) if single else tuple(value) for value in values]
    if ids is None or callable(ids):
        text = ids or _text
        labels = [", ".join(str(text(value)) for value in case) for case in cases]
    else:
        labels = [str(label) for label in ids]
    assert cases, "there must be a case"
    assert len(labels) == len(cases)
    assert all(len(case) == len(names) for case in cases)

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def together(**fixtures: Any) -> None:
            errors: list[tuple[str, Exception]] = []
            skipped: list[str] = []
            for number, (label, case) in enumerate(zip(labels, cases)):
                try:
                    with _own(fixtures, number) as own:
                        function(**own, **dict(zip(names, case)))
                except pytest.skip.Exception as skip:
                    skipped.append(f"{label}: {skip.msg}")
                except pytest.fail.Exception as error:  # no Exception, so that a group would not take it
                    errors.append((label, AssertionError(str(error)).with_traceback(error.__traceback__)))
                except Exception as error:
                    errors.append((label, error))
            if errors:
                for label, error in errors:
                    error.add_note(f"case: {label}")
                failed = "; ".join(label for label, _ in errors)
                raise ExceptionGroup(
                    f"{len(errors)} of {len(cases)} cases fail: {failed}", [error for _, error in errors]
                )
            if skipped:
                pytest.skip(f"{len(skipped)} of {len(cases)} cases: {'; '.join(skipped)}")

        signature = inspect.signature(function)
        left = [each for each in signature.parameters.values() if each.name not in names]
        together.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return together

    return decorate


@contextlib.contextmanager
def _own(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures of one case."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] /= f"case{number}"
        own["tmp_path"].mkdir()
    if "generator" in own:
        own["generator"].manual_seed(0)  # as the fixture
    if "capsys" in own:
        own["capsys"].readouterr()
    with contextlib.ExitStack() as stack:
        if "monkeypatch" in own:
            own["monkeypatch"] = stack.enter_context(own["monkeypatch"].context())
        yield own


def _text(value: Any) -> str:
    text = getattr(value, "__name__", None) or " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
