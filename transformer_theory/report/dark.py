"""The colours of figures on a dark page: a style sheet that overrides the colours in inline SVG; the SVG
itself keeps its light colours.

Neutral colours take the page's variables for paper, ink and rules. All other colours are mapped in the colour
space OKLab (Ottosson, 2020), which separates lightness L from hue. Greys are inverted. Data colours keep
their hue and become light enough to read: L' = 0.6 + 0.2 L for L < 0.75. The map is monotone, so that a scale
from dark to light stays one.
"""

import re

import numpy as np

from ..core.plotting import COLOURS, STYLE

PAPER = "#15181c"  # --paper of page.css on a dark page
# The neutral colours of figures, and the variables of page.css that replace them.
NEUTRAL = {
    "#ffffff": "--paper",
    "#000000": "--ink",
    "#15181c": "--ink",
    STYLE["xtick.color"].lower(): "--soft",
    STYLE["grid.color"].lower(): "--rule",
    COLOURS["network"].lower(): "--soft",
    COLOURS["null"].lower(): "--edge",
}
GREY = 0.03  # chroma below which a colour is a grey
DARKEST, LIGHTEST = 0.21, 0.92  # lightness of the paper and of the ink on a dark page

_SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
_COLOUR = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})")
# Linear sRGB to the responses of the cones, and their cube roots to OKLab.
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def sheet(page: str) -> str:
    """Returns the style sheet for all colours in the figures of a page, one rule per property and colour."""
    used = sorted({match for svg in _SVG.findall(page) for match in _COLOUR.findall(svg)})
    # No class of an ancestor: browsers do not see ancestors of a copy that <use> makes, such as a marker.
    rules = "\n".join(
        f'[style*="{name}: {colour}"] {{ {name}: {on_dark(colour)} !important; }}' for name, colour in used
    )
    return f"@media screen and (prefers-color-scheme: dark) {{\n{rules}\n}}\n" if rules else ""


def on_dark(colour: str) -> str:
    """Returns the colour that replaces ``#rrggbb`` on a dark page: a variable of the page's style, or another
    ``#rrggbb``.
    """
    if colour in NEUTRAL:
        return f"var({NEUTRAL[colour]})"
    lightness, *ab = _LAB @ np.cbrt(_CONES @ _linear(colour))
    if np.hypot(*ab) < GREY:
        lightness = DARKEST + (LIGHTEST - DARKEST) * (1 - lightness) ** 0.7
    elif lightness < 0.75:
        lightness = 0.6 + 0.2 * lightness
    # A light colour may leave sRGB; reduce its chroma until it does not.
    for chroma in np.linspace(1, 0, 21):
        rgb = np.linalg.solve(
            _CONES, np.linalg.solve(_LAB, [lightness, *(chroma * part for part in ab)]) ** 3
        )
        if rgb.min() >= -1e-4 and rgb.max() <= 1 + 1e-4:
            break
    rgb = np.clip(rgb, 0, 1)
    encoded = np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{int(part):02x}" for part in np.round(255 * encoded))


def contrast(first: str, second: str) -> float:
    """Returns the contrast of two colours ``#rrggbb`` as the Web Content Accessibility Guidelines define it,
    from 1 to 21.
    """
    light, dark = sorted(
        (float(_linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (first, second)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def _linear(colour: str) -> np.ndarray:
    """Decodes ``#rrggbb`` to linear sRGB, three numbers in [0, 1]."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
