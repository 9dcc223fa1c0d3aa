"""The command ``intervene``."""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .terminal import console, progress_line

if TYPE_CHECKING:
    from ..models.user_model import UserModel


def intervene_in_network(options: argparse.Namespace) -> int:
    """Changes the attention of a model as theories say, and prints what its outputs lose; with --out also
    writes the result and its page.

    Raises:
        ValueError: the model cannot be read or run, or inputs, sizes or interventions do not fit.
        OSError: a file does not exist, or the result's folder exists.
    """
    from .. import report
    from ..comparison.interventions import chosen_interventions, intervene
    from ..core.files import atomic_directory
    from ..core.result import Result
    from ..report import terminal

    names = [name.strip() for name in (options.only or "").split(",") if name.strip()] or None
    chosen_interventions(names)  # unknown names are refused before the model is read
    with ExitStack() as stack:
        folder = (
            None
            if options.out is None
            else stack.enter_context(atomic_directory(options.out, overwrite=options.overwrite))
        )
        progress = stack.enter_context(progress_line())
        progress(f"reading {options.model}")
        user, more = _with_inputs(options)
        given = {name: getattr(options, name) for name in ("minutes", "device")}
        if options.draws is not None:
            given["draws"] = options.draws
        result = intervene(
            user, interventions=names, max_samples=options.sequences, progress=progress, **given, **more
        )
        if folder is not None:
            progress("writing the report")
            result.write_into(folder)
            report.write(Result.load(folder), folder)  # from the stored files, as the command `report` does
    console().print(terminal.effects(result), highlight=False)
    if options.out is not None:
        print(f"report: {options.out / 'report.html'}")
    return 0


def _with_inputs(options: argparse.Namespace) -> "tuple[UserModel, dict[str, Any]]":
    """Reads the model with the inputs of its function, with images, or with a text; and further arguments of
    ``intervene``.

    Raises:
        ValueError, OSError: see :func:`intervene_in_network`.
    """
    from ..comparison.interventions import SAMPLES, SEQUENCES
    from ..comparison.user_images import with_images
    from ..models.text_windows import read_sequences
    from ..models.transformers_folder import language_model
    from ..models.user_model import checked, read_user_model

    user = read_user_model(options.model)
    if user.inputs is not None:
        if options.data is not None or options.text is not None:
            raise ValueError(
                f"{options.model} returns its own inputs, got --data or --text as well; leave them out"
            )
        return user, {}
    if options.data is not None:
        user, _, _ = with_images(
            user, options.data, size=options.size, max_samples=options.sequences or SAMPLES
        )
        return user, {}
    if options.text is None:
        raise ValueError(
            f"{options.model} must have inputs; name images with --data or a text with --text, or return "
            "them from FILE.py:FUNCTION"
        )
    model = language_model(user.network, name=user.name, folder=user.folder)
    found = read_sequences(options.text, model, length=None, sequences=options.sequences or SEQUENCES)
    known = replace(checked(user.network, found.inputs, found.labels, name=user.name), folder=user.folder)
    return known, {"special_ids": found.special_ids}
