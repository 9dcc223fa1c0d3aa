"""What the benchmarks that draw a picture share: ``python -m benchmarks.NAME [FIGURE.svg]``."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.__main__ import header
from transformer_theory.core.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(path: Path, draw: Callable[[str], "Figure"], setting: str) -> None:
    """Draws with a caption that says the setting, and where and when the numbers were made."""
    from transformer_theory.core.plotting import svg

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(svg(draw(f"{setting}\n{header().replace(chr(10), ' · ')}")), encoding="utf-8")


def command_line(main: Callable[[Path | None], None], about: str | None) -> None:
    """The command line of one such benchmark, on one thread."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("figure", type=Path, nargs="?", help="where to draw it")
    torch.set_num_threads(1)
    main(parser.parse_args().figure)
