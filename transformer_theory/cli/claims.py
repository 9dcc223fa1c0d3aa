"""What is done with claims: they are verified, and their sources are cited."""

import argparse
import contextlib
import json

from .terminal import console, progress_line


def verify_claims(options: argparse.Namespace) -> int:
    """Claims with their controls as a table or as JSON (:func:`~transformer_theory.core.verification.document`), stored if a folder is named.

    Returns:
        1 if a claim is violated or a control does not fail, else 0.
    Raises:
        ValueError: an unknown claim or theory, or ``--overwrite`` without a folder.
        OSError: the folder exists or cannot be written, or no scheduler answers.
    """
    from ..core.files import atomic_directory
    from ..core.verification import document, summaries, verification
    from ..theories import claims
    from .tables import verdicts

    chosen = {claim.id: claim for name in options.claims for claim in claims(name)}  # each once
    if options.overwrite and options.out is None:
        raise ValueError("--overwrite replaces what --out names, got no --out; add it, or leave --overwrite out")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(atomic_directory(options.out, overwrite=options.overwrite)) if options.out else None
        progress = stack.enter_context(progress_line())
        result = verification(chosen.values(), range(options.seeds), workers=options.workers, progress=progress)
        if folder is not None:
            result.write_into(folder)
    found = summaries(result)
    if options.json:
        print(json.dumps(document(result, chosen.values()), indent=2, allow_nan=False))
    else:
        console().print(verdicts(found, console()))
        if options.out is not None:
            print(f"result: {options.out}")
    return int(not all(one.passed for one in found))


def cite_sources(options: argparse.Namespace) -> int:
    """BibTeX of a theory, a claim, a key, a stored result or the library, with that of the library last.

    Raises:
        ValueError: an unknown name, or a folder that does not hold a result.
    """
    from ..theories import cite

    print(cite(options.name), end="")
    return 0
