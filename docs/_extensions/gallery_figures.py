"""The figures of the examples, for the gallery: it looks for those of pyplot, and this library makes none of
these.
"""

from pathlib import Path
from typing import Any
from weakref import WeakSet

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

_shown: WeakSet = WeakSet()


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Every figure among the names of an example, below the block after which all of its panels are drawn."""
    paths = []
    for found in block_vars["example_globals"].values():
        if (
            isinstance(found, Figure)
            and found not in _shown
            and all(ax.has_data() or not ax.axison for ax in found.axes)
        ):
            _shown.add(found)
            paths.append(Path(next(block_vars["image_path_iterator"])))
            found.savefig(paths[-1], dpi=150)
    return figure_rst(paths, gallery_conf["src_dir"])


def _get_sg_image_scraper():
    """What the gallery calls; a name in its settings, so that these can be cached."""
    return scrape
