"""The theories, one folder each. To add a theory, write its folder and add its name to :data:`THEORIES`."""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ..core import sources
from ..core.claims import Claim, Cost, sources_of
from ..core.errors import CATALOGUE, abbreviated_list, named
from ..core.experiment import Experiment
from ..core.progress import Progress, shown
from ..core.result import Result
from ..core.theory import Theory
from ..core.validation import seed_numbers

if TYPE_CHECKING:
    from ..training.objectives import Objectives

THEORIES = (  # folders, in the order of the report
    "attention_svm",
    "scan_snap",
    "joma",
    "rate_reduction",
    "crate",
    "turing",
    "universal",
    "graph_tokens",
    "in_context",
    "induction",
    "chain_of_thought",
    "random_features",
    "router",
    "bottleneck",
    "vision",
    "collapse",
    "particles",
    "length",
)


@cache
def list_theories() -> tuple[Theory, ...]:
    """Returns all theories, in the order of the report. The first call imports their packages."""
    return tuple(map(_imported, THEORIES))


def _imported(name: str) -> Theory:
    """Imports the package of one theory, and returns its record."""
    return import_module(f".{name}", __name__).THEORY


def theory(name: str) -> Theory:
    """Returns the record of one theory.

    Raises:
        ValueError: the name is unknown; the message suggests the nearest one.
    """
    return named("theory", name, {record.name: record for record in list_theories()})


def claim(id: str) -> Claim:
    """Returns the claim with an id ``"theory/name"``.

    Raises:
        ValueError: the id is unknown; the message suggests the nearest one.
    """
    return named("claim", id, _claims())


def experiment(name: str) -> type[Experiment]:
    """Returns the class of the experiment with a name ``"theory.figure"``.

    Raises:
        ValueError: the name is unknown (the message suggests the nearest one), or is that of a theory (the
            message lists its experiments).
    """
    if record := {record.name: record for record in list_theories()}.get(name):
        experiments = abbreviated_list(kind.name for kind in record.experiments)
        hint = f"its experiments are {experiments}" if experiments else "it has no experiments"
        raise ValueError(f"run takes one experiment, got the theory {name!r}; {hint}")
    return named("experiment", name, _experiments())


def claims(name: str) -> tuple[Claim, ...]:
    """Returns the claims that a name selects; empty if the name is valid but no claim belongs to it.

    Args:
        name: id of a claim; name of a theory; ``"quick"`` or ``"training"`` for all claims of that cost; or
            ``"all"``.
    Raises:
        ValueError: the name is unknown; the message suggests the nearest one.
    """
    prefix = name.partition("/")[0]
    if prefix in THEORIES:  # one theory is imported sooner than all
        found = _imported(prefix).claims
        if name == prefix or (found := tuple(one for one in found if one.id == name)):
            return found
    all_claims = tuple(_claims().values())
    groups = {"all": all_claims} | {
        cost: tuple(one for one in all_claims if one.cost == cost) for cost in get_args(Cost)
    }
    groups |= {record.name: record.claims for record in list_theories()}
    groups |= {id: (one,) for id, one in _claims().items()}
    return named("claim or theory", name, groups)


def choose(theories: str | Theory | Iterable[str | Theory] | None) -> tuple[Theory, ...]:
    """Returns the records of theories, without repetitions and in the order of the argument; for None, all
    records.

    Args:
        theories: a name or a record, or several.
    Raises:
        ValueError: a name is unknown (the message suggests the nearest one), or there is no name.
    """
    if theories is None:
        return list_theories()
    entries = (theories,) if isinstance(theories, str | Theory) else theories
    records = tuple(dict.fromkeys(entry if isinstance(entry, Theory) else theory(entry) for entry in entries))
    if not records:
        raise ValueError(f"theories must name at least one, got none; there are: {', '.join(THEORIES)}")
    return records


def objectives() -> "Objectives":
    """Returns all training objectives (:class:`~transformer_theory.training.objectives.Objective`) by name,
    general ones first.
    """
    from ..training.objectives import OBJECTIVES

    return {**OBJECTIVES, **{kind.name: kind for record in list_theories() for kind in record.objectives}}


def verify(names: str | Iterable[str], seeds: int | Iterable[int] = 5, *, progress: Progress = None) -> Any:
    """Runs the check and the control of claims on each seed: ``verify("attention_svm/global-direction")``.

    Args:
        names: id of a claim, ``"theory/claim"``; or a selection of claims: the name of a theory, "quick",
            "training" or "all", or a list of ids and names.
        seeds: a list, or a number n for the seeds 0 to n - 1.
        progress: function called with one line of text for each seed; True or False shows the lines or hides
            them. None shows them in a notebook and in an interactive interpreter.
    Returns:
        The :class:`~.core.claims.Verification` of the claim with the id; for a selection, a tuple of them.
    Raises:
        ValueError: a name is unknown (the message suggests the nearest one), or there is no name or no seed.
    """
    seeds = seed_numbers("seeds", seeds)
    selection = (names,) if isinstance(names, str) else tuple(names)
    chosen = tuple(dict.fromkeys(one for name in selection for one in claims(name)))
    if not selection:
        raise ValueError(f"verify takes at least one claim or theory, got none; {CATALOGUE} shows all")
    with shown(progress, names if isinstance(names, str) else ", ".join(selection)):
        outcomes = tuple(one.verify(seeds) for one in chosen)
    return outcomes[0] if isinstance(names, str) and [one.id for one in chosen] == [names] else outcomes


def cite(name: str) -> str:
    """Returns the BibTeX entries that a name refers to, followed by the entry of this library.

    Args:
        name: name of a theory (its papers and all that its claims cite), id of a claim, key of the
            bibliography, folder of a stored result (all that it
            cites or uses), or ``"software"`` for this library
            alone.
    Raises:
        ValueError: the name is unknown (the message suggests the nearest one), or the folder does not hold a
            result.
    """
    keys: dict[str, tuple[str, ...]] = {key: (key,) for key in sources.entries()}
    keys |= {id: tuple(source.key for source in one.sources) for id, one in _claims().items()}
    keys |= {
        record.name: tuple(source.key for source in (*record.sources, *sources_of(record.claims)))
        for record in list_theories()
    }
    keys["software"] = ()
    if name not in keys and Path(name).is_dir():
        keys[name] = Result.load(name).citations
    selection = named("theory, claim, key or folder", name, keys, shown_by=f"{CATALOGUE} with references.bib")
    return "\n".join([*([sources.bibtex(selection)] if selection else []), sources.software()])


def _claims() -> dict[str, Claim]:
    return {one.id: one for record in list_theories() for one in record.claims}


def _experiments() -> dict[str, type[Experiment]]:
    return {kind.name: kind for record in list_theories() for kind in record.experiments}
