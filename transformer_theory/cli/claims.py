"""``verify`` and ``cite``."""

import argparse
import contextlib
import json
import time

from .terminal import console, progress_line

FORMAT = 2  # of the JSON document


def verify_claims(options: argparse.Namespace) -> int:
    """Claims with their controls as a table or as a JSON document, stored if a folder is named.

    Returns:
        1 if a claim is violated or a control does not fail, else 0.
    Raises:
        ValueError: an unknown claim or theory, or ``--overwrite`` without a folder.
        OSError: the folder exists or cannot be written, or no scheduler answers.
    """
    from ..core import parallel
    from ..core.claims import verify_claims
    from ..core.files import atomic_directory
    from ..core.measurement import Table
    from ..core.result import Result, jsonable, provenance
    from ..report.terminal import verifications
    from ..theories import claims

    chosen = list({claim.id: claim for name in options.claims for claim in claims(name)}.values())  # each once
    if options.overwrite and options.out is None:
        raise ValueError("--overwrite replaces what --out names, got no --out; add it, or leave --overwrite out")
    started, seeds = time.perf_counter(), options.seeds
    per_claim = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(atomic_directory(options.out, overwrite=options.overwrite)) if options.out else None
        progress = stack.enter_context(progress_line())
        active = stack.enter_context(parallel.workers(options.workers))
        stack.enter_context(parallel.one_thread())
        outcomes, verified = verify_claims(chosen, seeds), []
        for number, claim in enumerate(chosen, 1):
            progress(f"{claim.id} ({number} of {len(chosen)}): {per_claim} with its control")
            verified.append(next(outcomes))
        result = Result(
            "verify",
            {"claims": [claim.id for claim in chosen], "seeds": list(seeds)},
            Table(row for one in verified for row in one.measurements()),
            verifications=tuple(verified),
            sources=tuple(dict.fromkeys(claim.source for claim in chosen)),
            provenance=provenance(started=started) | {"workers": active.count},
        )
        if folder is not None:
            result.write_into(folder)
    if options.json:
        document = {"format": FORMAT, "claims": [one.to_json() for one in verified], "provenance": result.provenance}
        print(json.dumps(jsonable(document), indent=2, allow_nan=False))
    else:
        console().print(verifications(verified, console()))
        if options.out is not None:
            print(f"result: {options.out}")
    return int(not all(one.passed for one in verified))


def cite_sources(options: argparse.Namespace) -> int:
    """BibTeX of a theory, a claim, a key, a stored result or the library, with that of the library last.

    Raises:
        ValueError: an unknown name, or a folder that does not hold a result.
    """
    from ..theories import cite

    print(cite(options.name), end="")
    return 0
