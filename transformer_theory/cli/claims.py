"""The commands ``verify`` and ``cite``."""

import argparse
import contextlib
import json
import time

from .terminal import console, progress_line

FORMAT = 2  # version of the JSON document


def verify_claims(options: argparse.Namespace) -> int:
    """Verifies claims with their controls, prints a table or a JSON document, and stores the result if ``--out`` is given.

    Returns:
        The exit code: 1 if a claim is violated or a control does not fail, otherwise 0.
    Raises:
        ValueError: a claim or theory is unknown, no claim is selected, or ``--overwrite`` is given without ``--out``.
        OSError: the folder exists or cannot be written, or the dask scheduler does not answer.
    """
    from ..core import parallel
    from ..core.claims import verify_claims
    from ..core.files import atomic_directory
    from ..core.measurement import Table
    from ..core.result import Result, jsonable, provenance
    from ..report.terminal import verifications
    from ..theories import claims

    # The dictionary removes claims that several names have in common.
    selection = list({claim.id: claim for name in options.claims for claim in claims(name)}.values())
    if not selection:
        names = ", ".join(options.claims)
        raise ValueError(f"verify needs at least one claim, got none for {names}; `transformer-theory list` shows all claims")
    if options.overwrite and options.out is None:
        raise ValueError("--overwrite replaces the result in the folder of --out, got no --out; add --out, or drop --overwrite")
    started, seeds = time.perf_counter(), options.seeds
    per_claim = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(atomic_directory(options.out, overwrite=options.overwrite)) if options.out else None
        progress = stack.enter_context(progress_line())
        active = stack.enter_context(parallel.workers(options.workers))
        stack.enter_context(parallel.one_thread())
        outcomes = verify_claims(selection, seeds)  # an iterator of verifications, in the order of the selection
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
        document = {"format": FORMAT, "claims": [verification.to_json() for verification in verified], "provenance": result.provenance}
        print(json.dumps(jsonable(document), indent=2, allow_nan=False))
    else:
        console().print(verifications(verified, console()))
        if options.out is not None:
            print(f"result: {options.out}")
    return int(not all(verification.passed for verification in verified))


def cite_sources(options: argparse.Namespace) -> int:
    """Prints BibTeX entries for a theory, a claim, a key or a stored result; the entry of this library comes last.

    Raises:
        ValueError: the name is unknown, or the folder does not hold a result.
    """
    from ..theories import cite

    print(cite(options.name), end="")
    return 0
