"""Mutants: fixed perturbations of the mathematics that the claims of a theory must detect.

A control tests one claim; mutants test the whole ledger. Each mutant changes one expression in one function
of a theory, for example a dropped factor or a flipped sign, and the theory's quick claims are then verified
on two seeds. A mutant is *detected* if at least one claim is violated, or if a claim cannot be computed at
all. An undetected mutant names a missing claim, unless no claim could detect it.

The mutants of a theory are in a file of its name in this folder.
``python -m benchmarks.mutants [THEORY ...]`` prints one line per mutant and the score, and stores both as
``docs/mutants.json``, from which the page of the claims is made.
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

from transformer_theory.core.claims import Claim
from transformer_theory.theories import list_theories

Kind = Literal[
    "dropped factor",
    "wrong factor",
    "flipped sign",
    "missing term",
    "missing projection",
    "swapped function",
    "wrong normaliser",
]
Outcome = Literal["detected", "undecided", "undetected", "equivalent"]
THEORIES = tuple(
    theory.name for theory in list_theories() if Path(__file__).with_name(f"{theory.name}.py").exists()
)
SEEDS = (0, 1)


@dataclass(frozen=True)
class Mutant:
    """One perturbation: a piece of the source text of a function is replaced.

    Attributes:
        function: the function or method, from the package on: ``"theories.joma.dynamics.velocity"``.
        old: text that occurs exactly once in the source of the function.
        new: text in its place.
        kind: kind of perturbation.
        description: the change in the words of the theory, e.g. "the exact flow without its projection".
        equivalent: reason why the perturbed theory is the same, so that no claim can detect the mutant; empty
            for all others.
    """

    function: str
    old: str
    new: str
    kind: Kind
    description: str
    equivalent: str = ""

    def apply(self) -> None:
        """Replaces the code of the function in this process, for all modules that refer to it.

        Raises:
            ValueError: there is no such function, ``old`` does not occur exactly once, or the new text is not
                a function with the same free variables.
        """
        target = resolve(self.function)
        target.__code__ = perturbed(target, self.old, self.new)


def mutants(theory: str) -> tuple[Mutant, ...]:
    """Returns the mutants of a theory."""
    return importlib.import_module(f"{__name__}.{theory}").MUTANTS


def resolve(path: str) -> FunctionType:
    """Returns the innermost function under a dotted path within the package, without its decorators.

    Raises:
        ValueError: there is no such function.
    """
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(("transformer_theory", *parts[:count])))
        except ModuleNotFoundError:
            continue
        try:
            for name in parts[count:]:
                found = inspect.getattr_static(found, name)
        except AttributeError:
            break
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        # cached_property stores it as ``func``
        found = inspect.unwrap(found if callable(found) else getattr(found, "func", found))
        if isinstance(found, FunctionType):
            return found
        break
    raise ValueError(f"a mutant must name a function of the package, got {path!r}")


def perturbed(function: FunctionType, old: str, new: str) -> CodeType:
    """Returns the code of a function after a replacement in its source text.

    Raises:
        ValueError: ``old`` does not occur exactly once, or the free variables change.
    """
    source = textwrap.dedent(inspect.getsource(function))
    if (count := source.count(old)) != 1:
        raise ValueError(f"the text {old!r} must occur once in {function.__qualname__}, got {count}")
    # A function around the text makes the names of an enclosing scope, such as __class__ of super(), free
    # variables as in the original. Type hints are not evaluated, and decorators are compiled but never run:
    # only the code object is taken.
    free = function.__code__.co_freevars
    text = (
        "from __future__ import annotations\n"
        + f"def _enclosing({', '.join(free)}):\n"
        + textwrap.indent(source.replace(old, new), "    ")
    )
    code = _named(compile(text, function.__code__.co_filename, "exec"), function.__name__)
    if code is None or code.co_freevars != free:
        raise ValueError(
            f"the replacement in {function.__qualname__} must leave a function with the same free variables"
        )
    return code


def _named(code: CodeType, name: str) -> CodeType | None:
    """Returns the first code object of a function with this name, outermost first."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    found = next((each for each in inner if each.co_name == name), None)
    return found or next((deeper for each in inner if (deeper := _named(each, name))), None)


def judge(mutant: Mutant, claims: Iterable[Claim]) -> tuple[Outcome, str]:
    """Applies a mutant and verifies claims until one detects it.

    Returns:
        The outcome, and the name of the claim that detected it, or the names of the claims that became
        undecided.
    """
    mutant.apply()
    undecided = []
    for claim in claims:
        for seed in SEEDS:
            try:
                evidence, control = claim.run(seed)
            except Exception as error:  # a claim that cannot be computed is seen by everyone who runs it
                return "detected", f"{claim.id} raises {type(error).__name__}"
            if evidence.verdict == "violated":
                return "detected", claim.id
            # A control drops an assumption, so ``covered`` is ignored, as in Verification.control.
            if evidence.verdict != "consistent" or replace(control, covered=True).verdict != "violated":
                undecided.append(claim.id)
    if mutant.equivalent:
        return "equivalent", mutant.equivalent
    return ("undecided", ", ".join(dict.fromkeys(undecided))) if undecided else ("undetected", "")
