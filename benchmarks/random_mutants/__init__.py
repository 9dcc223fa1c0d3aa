"""Random mutants: small errors that a program writes into the theories and into the parts that they stand on,
and which of them the claims and the tests detect.

The mutants of :mod:`benchmarks.mutants` were written with the claims in mind. Here :mod:`.operators` lists
every place of a theory's modules where one of ten kinds of change can be made on the syntax tree, and
:func:`sample` draws from that list. :mod:`.runs` writes each drawn change into a copy of the package and runs
the theory's quick claims and then its tests, in fresh processes. ``python -m benchmarks.random_mutants``
stores the outcomes as they come in ``docs/random_mutants.json``, from which the page of the claims is made.
The subpackages of :data:`FRAME` have no claims, and the tests of the whole library judge their mutants.

Cosmic Ray 8.7 and mutmut 3.8 have no operators for axes, minimum and maximum, mean and sum or the order of
arguments, draw no sample per theory, and know tests but no claims, so they would replace little of this.
"""

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from .operators import OPERATORS, Change, changes, possible

SEED, COUNT = 47, 15
FRAME = ("core", "data", "probes", "report", "training")  # subpackages that the theories stand on
PICTURES = ("figure", "plot")  # modules and folders with one of these in their name draw


@dataclass(frozen=True)
class Mutant:
    """One change in one file.

    Attributes:
        name: fixed by the text around the change, so that it stays when other lines change.
        theory: name of the theory, or of one of :data:`FRAME`.
        file: path from the root of the repository.
        change: what is changed, and where.
    """

    name: str
    theory: str
    file: str
    change: Change


def folder_of(root: Path, package: str, part: str) -> Path:
    """Returns the folder of a theory, or of one of :data:`FRAME`."""
    return root / package / (part if part in FRAME else f"theories/{part}")


def modules(folder: Path) -> list[Path]:
    """Returns the modules of a folder that do more than draw, sorted."""
    found = folder.rglob("*.py")
    return sorted(
        path
        for path in found
        if not any(word in part for part in path.relative_to(folder).parts for word in PICTURES)
    )


def candidates(root: Path, package: str, theory: str) -> list[Mutant]:
    """Returns all mutants of a theory, or of one of :data:`FRAME`, in the order of the text.

    Args:
        root: folder that holds the package.
        package: name of the package.
        theory: name of the theory or of the subpackage.
    """
    found, seen = [], dict[tuple[str, ...], int]()
    for path in modules(folder_of(root, package, theory)):
        file = path.relative_to(root).as_posix()
        for change in changes(path.read_bytes()):
            key = (file, change.function, change.operator, change.text, change.old, change.new)
            seen[key] = seen.get(key, 0) + 1  # the same change twice in a line
            name = hashlib.sha256("\0".join((*key, str(seen[key]))).encode()).hexdigest()[:12]
            found.append(Mutant(name, theory, file, change))
    return found


def sample(root: Path, package: str, theory: str, count: int = COUNT, *, seed: int = SEED) -> list[Mutant]:
    """Draws mutants: the operators take turns in a random order, and each takes one of its changes that are
    left, all with the same probability and at most one change per place.

    The draw depends on the names alone. After an edit, the mutants of other lines stay in the sample, up to
    those that new ones displace.
    """
    queues = {operator: list[Mutant]() for operator in OPERATORS}
    for mutant in candidates(root, package, theory):
        queues[mutant.change.operator].append(mutant)
    for queue in queues.values():
        queue.sort(key=lambda one: hashlib.sha256(f"{seed} {one.name}".encode()).digest())
    order = random.Random(f"{seed} {theory}").sample(OPERATORS, len(OPERATORS))
    drawn, places = list[Mutant](), set[tuple[str, int]]()
    while len(drawn) < count and any(queues.values()):
        for operator in order:
            while queues[operator] and len(drawn) < count:
                mutant = queues[operator].pop(0)
                place = (mutant.file, mutant.change.start)
                if place not in places and possible((root / mutant.file).read_bytes(), mutant.change):
                    places.add(place)
                    drawn.append(mutant)
                    break
    return drawn
