"""The pages of the documentation, their code blocks, and the arguments that a command line passes to this
library.
"""

import re
from pathlib import Path

from torch.distributed import run as torchrun

ROOT = Path(__file__).parents[1]
GENERATED = {"_build", "auto_examples", "generated"}  # by Sphinx
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not GENERATED & set(page.parts)),
]
FENCE = re.compile(r"^(`{3,})(\w*)[^\n]*\n(.*?)^\1", re.MULTILINE | re.DOTALL)
MODULE = ["-m", "transformer_theory"]


def blocks(*languages: str) -> list[tuple[str, str]]:
    """(page, text) of the code blocks in the given languages."""
    selected = []
    for page in PAGES:
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in languages:
                selected.append((str(page.relative_to(ROOT)), text))
    return selected


def ours(program: str, arguments: list[str]) -> list[str] | None:
    """The arguments of our command line, by its name, as a module, or in the processes of torchrun; None for
    another program.
    """
    if program.endswith("transformer-theory"):
        return arguments
    if program == "torchrun":
        start = next(index for index in range(len(arguments)) if arguments[index : index + 2] == MODULE)
        torchrun.parse_args(arguments[:start] + MODULE)
        return arguments[start + 2 :]
    return arguments[2:] if arguments[:2] == MODULE else None
