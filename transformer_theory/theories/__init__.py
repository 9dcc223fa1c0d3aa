"""The rooms, one a theory, and the plain tuple that lists them. To add a theory, write its room and name it here."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from ..core import sources as citations
from ..core.claims import Claim, Verification
from ..core.errors import nearest, some
from ..core.experiment import Experiment
from ..core.result import Result
from ..core.theory import Theory
from . import attention_svm, crate, joma, rate_reduction, scan_snap

T = TypeVar("T")
LIST = "`transformer-theory list`"  # shows theories, claims and experiments

THEORIES: tuple[Theory, ...] = (attention_svm.THEORY, scan_snap.THEORY, joma.THEORY, rate_reduction.THEORY, crate.THEORY)


def theories() -> tuple[Theory, ...]:
    """All theories, in the order of the report."""
    return THEORIES


def theory(name: str) -> Theory:
    """The record of one theory.

    Raises:
        ValueError: an unknown name; the nearest one is suggested.
    """
    return _named("theory", name, {record.name: record for record in THEORIES})


def claim(id: str) -> Claim:
    """One claim by its id, ``"room/name"``.

    Raises:
        ValueError: an unknown id; the nearest one is suggested.
    """
    return _named("claim", id, _claims())


def experiment(name: str) -> type[Experiment]:
    """The class of one experiment by its name, ``"room.name"``.

    Raises:
        ValueError: an unknown name (the nearest one is suggested), or that of a theory (its experiments are listed).
    """
    if room := {record.name: record for record in THEORIES}.get(name):
        there = some(kind.name for kind in room.experiments)
        raise ValueError(f"run takes one experiment, got the theory {name!r}; its experiments are {there}")
    return _named("experiment", name, _experiments())


def claims(id_or_room: str) -> tuple[Claim, ...]:
    """The claims that a name stands for: one by its id, those of a room by its name, or ``"all"``.

    Raises:
        ValueError: neither a claim nor a room; the nearest name is suggested.
    """
    groups = {"all": tuple(_claims().values())} | {record.name: record.claims for record in THEORIES}
    groups |= {id: (found,) for id, found in _claims().items()}
    return _named("claim or theory", id_or_room, groups)


def named(name: str) -> Theory | Claim | type[Experiment]:
    """The theory, the claim or the experiment of that name.

    Raises:
        ValueError: an unknown name; the nearest one is suggested.
    """
    return _named("theory, claim or experiment", name, {record.name: record for record in THEORIES} | _claims() | _experiments())


def verify(id: str, seeds: Iterable[int] = range(5)) -> Verification:
    """Runs the check of one claim and its control, once a seed: ``verify("attention_svm/global-direction")``.

    For the claims of a whole room: ``[verify(c.id) for c in theory("crate").claims]``.

    Raises:
        ValueError: an unknown id (the nearest one is suggested), or no seed.
    """
    if room := {record.name: record for record in THEORIES}.get(id):
        raise ValueError(f"verify takes one claim, got the theory {id!r}; its claims are {some(found.id for found in room.claims)}")
    return claim(id).verify(seeds)


def cite(name: str) -> str:
    """BibTeX of a theory (all its papers), a claim (by its id), a key of the bibliography or, by its folder, of all that a stored result
    cites; then that of this library, so that whoever pastes it cites both. ``cite("software")`` is that of the library alone.

    Raises:
        ValueError: an unknown name (the nearest one is suggested), or a folder that does not hold a result.
    """
    keys: dict[str, tuple[str, ...]] = {key: (key,) for key in citations.entries()}
    keys |= {id: (found.source.key,) for id, found in _claims().items()}
    keys |= {record.name: tuple(source.key for source in record.sources) for record in THEORIES}
    keys["software"] = ()
    if name not in keys and Path(name).is_dir():
        keys[name] = _cited(Result.load(name))
    found = _named("theory, claim, key or folder", name, keys, shown_by=f"{LIST} with references.bib")
    return "\n".join([*([citations.bibtex(found)] if found else []), citations.software()])


def _cited(result: Result) -> tuple[str, ...]:
    """Keys of its sources, then of its rows'; a row of another version may state a source that this bibliography does not hold."""
    stated = (row.get("source", "").partition(", ")[0] for row in result.table)
    return tuple(dict.fromkeys([*(source.key for source in result.sources), *(key for key in stated if key in citations.entries())]))


def _claims() -> dict[str, Claim]:
    return {found.id: found for record in THEORIES for found in record.claims}


def _experiments() -> dict[str, type[Experiment]]:
    return {kind.name: kind for record in THEORIES for kind in record.experiments}


def _named(kind: str, name: str, known: Mapping[str, T], *, shown_by: str = LIST) -> T:
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known, shown_by=shown_by)}")
    return known[name]
