"""The pages that people read, their code blocks, and which words of a command line are ours."""

import re
from pathlib import Path

from torch.distributed import run as torchrun

ROOT = Path(__file__).parents[1]
MADE = {"_build", "auto_examples", "generated"}  # by Sphinx
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not MADE & set(page.parts))]
FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1", re.MULTILINE | re.DOTALL)
MODULE = ["-m", "transformer_theory"]


def blocks(*languages: str) -> list[tuple[str, str]]:
    """(page, text) of the code blocks in the given languages."""
    found = []
    for page in PAGES:
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in languages:
                found.append((str(page.relative_to(ROOT)), text))
    return found


def ours(program: str, arguments: list[str]) -> list[str] | None:
    """What our command line gets: by its name, as a module, or in each process that torchrun starts; None if another program is meant."""
    if program.endswith("transformer-theory"):
        return arguments
    if program == "torchrun":
        at = next(at for at in range(len(arguments)) if arguments[at : at + 2] == MODULE)
        torchrun.parse_args(arguments[:at] + MODULE)
        return arguments[at + 2 :]
    return arguments[2:] if arguments[:2] == MODULE else None
