"""The commands ``verify`` and ``cite``."""

import argparse
import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import console, progress_line

if TYPE_CHECKING:
    from ..core.claims import Claim, Outcome

FORMAT = 2  # version of the JSON document


def verify_claims(options: argparse.Namespace) -> int:
    """Verifies claims with their controls, prints a table or a JSON document, and stores the result if
    ``--out`` is given.

    With ``--out`` each finished seed is stored beside the folder (:class:`Unfinished`) until the result is
    complete, so that an interrupted run goes on where it stopped if the command is repeated.

    Returns:
        The exit code: 1 if a claim is violated or a control does not fail, otherwise 0; 130 if seeds were
        stored before an interruption.
    Raises:
        ValueError: a claim or theory is unknown, no claim is selected, or ``--overwrite`` is given without
            ``--out``.
        OSError: the folder exists or cannot be written, or the dask scheduler does not answer.
    """
    from ..core import parallel, threads
    from ..core.claim_table import verifications
    from ..core.claims import verify_claims
    from ..core.files import atomic_directory
    from ..core.result import Result, jsonable, provenance
    from ..core.table import Table
    from ..theories import claims

    # The dictionary removes claims that several names have in common.
    selection = list({claim.id: claim for name in options.claims for claim in claims(name)}.values())
    if not selection:
        names = ", ".join(options.claims)
        raise ValueError(
            f"verify needs at least one claim, got none for {names}; `transformer-theory list` shows all "
            "claims"
        )
    if options.overwrite and options.out is None:
        raise ValueError(
            "--overwrite replaces the result in the folder of --out, got no --out; add --out, or drop "
            "--overwrite"
        )
    started, seeds = time.perf_counter(), options.seeds
    per_claim = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    with contextlib.ExitStack() as stack:
        unfinished = stack.enter_context(Unfinished.of(options.out))
        folder = (
            stack.enter_context(atomic_directory(options.out, overwrite=options.overwrite))
            if options.out
            else None
        )
        progress = stack.enter_context(progress_line())
        active = stack.enter_context(parallel.workers(options.workers))
        stack.enter_context(threads.one_thread())
        unfinished.read()  # only now: a command that is refused changes nothing
        # An iterator of verifications, in the order of the selection.
        outcomes = verify_claims(selection, seeds, done=unfinished.done, finished=unfinished.add)
        verified = []
        for number, claim in enumerate(selection, 1):
            progress(f"{claim.id} ({number} of {len(selection)}): {per_claim} with its control")
            verified.append(next(outcomes))
        result = Result(
            "verify",
            {"claims": [claim.id for claim in selection], "seeds": list(seeds)},
            Table(row for verification in verified for row in verification.measurements()),
            verifications=tuple(verified),
            sources=tuple(dict.fromkeys(claim.source for claim in selection)),
            provenance=provenance(started=started) | {"workers": active.count},
        )
        if folder is not None:
            result.write_into(folder)
    if options.json:
        document = {
            "format": FORMAT,
            "claims": [verification.to_json() for verification in verified],
            "provenance": result.provenance,
        }
        print(json.dumps(jsonable(document), indent=2, allow_nan=False))
    else:
        console().print(verifications(verified, console()))
        if options.out is not None:
            print(f"result: {options.out}")
    return int(not all(verification.passed for verification in verified))


class Unfinished:
    """The finished seeds of an unfinished ledger, in the file DIR.unfinished beside the folder DIR of the
    result.

    The file belongs to the sources that wrote it: seeds of other sources are dropped with a warning, since a
    check may have changed.

    Attributes:
        done: outcomes by claim and seed.
    """

    def __init__(self, path: Path):
        from ..core.cluster import versions
        from ..core.journal import Journal

        self.journal = Journal(path, versions())
        self.done: dict[tuple[str, int], Outcome] = {}

    def read(self) -> None:
        """Reads the seeds that an interrupted command has left.

        Raises:
            ValueError: the file has another content.
        """
        from ..core.claims import Evidence
        from ..core.journal import by_key

        path = self.journal.path
        try:
            head, lines = self.journal.read()
            self.done = by_key(
                (
                    (line["claim"], line["seed"]),
                    (Evidence.from_json(line["check"]), Evidence.from_json(line["control"])),
                )
                for line in lines
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} must hold the finished seeds of verify, got another file ({error}); move it away"
            ) from error
        if head != self.journal.head:
            if self.done:
                line = "%d finished seeds in %s are of other versions; all seeds are verified anew"
                logging.getLogger("transformer_theory").warning(line, len(self.done), path)
            self.journal.remove()
            self.done = {}

    def add(self, claim: "Claim", seed: int, outcome: "Outcome") -> None:
        """Stores an outcome."""
        self.done[claim.id, seed] = outcome
        check, control = (evidence.to_json() for evidence in outcome)
        self.journal.append({"claim": claim.id, "seed": seed, "check": check, "control": control})

    @classmethod
    @contextlib.contextmanager
    def of(cls, out: Path | None) -> "Iterator[Unfinished | _Nothing]":
        """Yields the seeds of a result; the file is removed if the block ends without an error."""
        if out is None:
            yield _Nothing()
            return
        out = Path(os.path.abspath(out))
        unfinished = cls(out.with_name(f"{out.name}.unfinished"))
        path = unfinished.journal.path
        try:
            yield unfinished
        except (KeyboardInterrupt, ConnectionError) as error:
            if not path.exists():
                raise
            text = (
                f"{len(unfinished.done)} finished seeds are stored in {path}, the same command goes on from "
                "them"
            )
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(text) from error
            raise ConnectionError(f"{error}; {text}") from error
        unfinished.journal.remove()


class _Nothing:
    """Stores nothing: without ``--out`` there is no place for it."""

    done: "Mapping[tuple[str, int], Outcome]" = {}  # noqa: RUF012 - never changed

    def read(self) -> None:
        pass

    def add(self, claim: "Claim", seed: int, outcome: "Outcome") -> None:
        pass


def cite_sources(options: argparse.Namespace) -> int:
    """Prints BibTeX entries for a theory, a claim, a key or a stored result; the entry of this library comes
    last.

    Raises:
        ValueError: the name is unknown, or the folder does not hold a result.
    """
    from ..theories import cite

    print(cite(options.name), end="")
    return 0
