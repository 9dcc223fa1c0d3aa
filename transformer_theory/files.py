"""Files written in one stroke: a reader sees the old file or the new one, never half of it."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a hidden draft beside ``path``, which takes its place once the block has written it; nothing stays if the block fails.

    Raises:
        OSError: the folder does not exist or cannot be written to. Source: none, this is machinery.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # of the draft, where it never came to be; what went wrong is on its way already
            draft.unlink()
