"""A small mathematical font inside the page, so that formulas look the same where no such font is installed.

Browsers place scripts, fractions and delimiters by the table ``MATH`` of the font, and many systems have no font with a good one. The
glyphs that the page needs are taken from the STIX font that comes with matplotlib (its licence lets documents embed it, and changed copies
go by another name); the table is made here: constants in thousandths of the font size, italic corrections from the outlines, and taller
delimiters by stretching.
"""

import base64
import io
import re
import warnings
from functools import cache

FAMILY = "report math"
DELIMITERS = "()[]{}|‖⟨⟩⌈⌉⌊⌋√"
_HEIGHTS = (1.25, 1.6, 2.1, 2.8)
_CONSTANTS = {
    "ScriptPercentScaleDown": 72,
    "ScriptScriptPercentScaleDown": 58,
    "DelimitedSubFormulaMinHeight": 1300,
    "DisplayOperatorMinHeight": 1300,
    "MathLeading": 150,
    "AxisHeight": 258,
    "AccentBaseHeight": 460,
    "FlattenedAccentBaseHeight": 662,
    "SubscriptShiftDown": 190,
    "SubscriptTopMax": 370,
    "SubscriptBaselineDropMin": 160,
    "SuperscriptShiftUp": 370,
    "SuperscriptShiftUpCramped": 300,
    "SuperscriptBottomMin": 120,
    "SuperscriptBaselineDropMax": 230,
    "SubSuperscriptGapMin": 150,
    "SuperscriptBottomMaxWithSubscript": 370,
    "SpaceAfterScript": 45,
    "UpperLimitGapMin": 120,
    "UpperLimitBaselineRiseMin": 250,
    "LowerLimitGapMin": 120,
    "LowerLimitBaselineDropMin": 600,
    "StackTopShiftUp": 440,
    "StackTopDisplayStyleShiftUp": 680,
    "StackBottomShiftDown": 345,
    "StackBottomDisplayStyleShiftDown": 690,
    "StackGapMin": 150,
    "StackDisplayStyleGapMin": 300,
    "StretchStackGapAboveMin": 120,
    "StretchStackGapBelowMin": 120,
    "FractionNumeratorShiftUp": 400,
    "FractionNumeratorDisplayStyleShiftUp": 680,
    "FractionDenominatorShiftDown": 350,
    "FractionDenominatorDisplayStyleShiftDown": 690,
    "FractionNumeratorGapMin": 60,
    "FractionNumDisplayStyleGapMin": 130,
    "FractionRuleThickness": 52,
    "FractionDenominatorGapMin": 60,
    "FractionDenomDisplayStyleGapMin": 130,
    "OverbarVerticalGap": 130,
    "OverbarRuleThickness": 52,
    "OverbarExtraAscender": 52,
    "UnderbarVerticalGap": 130,
    "UnderbarRuleThickness": 52,
    "UnderbarExtraDescender": 52,
    "RadicalVerticalGap": 70,
    "RadicalDisplayStyleVerticalGap": 150,
    "RadicalRuleThickness": 52,
    "RadicalExtraAscender": 52,
    "RadicalKernBeforeDegree": 65,
    "RadicalKernAfterDegree": -335,
    "RadicalDegreeBottomRaisePercent": 55,
}


def face(page: str) -> str:
    """An ``@font-face`` rule with the glyphs that the page's formulas need; empty without formulas, or if matplotlib has no STIX font."""
    shown = "".join(re.findall(r"<math.*?</math>", page, re.DOTALL))
    if not shown:
        return ""
    from html import unescape

    roots = "√" * ("<msqrt" in shown or "<mroot" in shown)  # which no element spells out
    data = _woff("".join(sorted({*unescape(re.sub(r"<[^>]*>", "", shown)), *roots})))
    return f'@font-face {{ font-family: "{FAMILY}"; src: url(data:font/woff;base64,{data}) format("woff"); }}' if data else ""


def _italic(character: str) -> str:
    """The mathematical italic that a browser shows for a single letter."""
    code = ord(character)
    if character == "h":
        return "\u210e"
    for start, end, italic in ((0x41, 0x5A, 0x1D434), (0x61, 0x7A, 0x1D44E), (0x391, 0x3A9, 0x1D6E2), (0x3B1, 0x3C9, 0x1D6FC)):
        if start <= code <= end:
            return chr(italic + code - start)
    return {"ϵ": "\U0001d716", "ϑ": "\U0001d717", "ϕ": "\U0001d719", "∂": "\U0001d715"}.get(character, character)


@cache
def _woff(characters: str) -> str:
    from fontTools import subset
    from fontTools.otlLib.builder import buildMathTable
    from fontTools.ttLib import TTFont
    from matplotlib import get_data_path

    try:
        font = TTFont(f"{get_data_path()}/fonts/ttf/STIXGeneral.ttf", recalcTimestamp=False)
    except OSError:
        return ""
    options = subset.Options(notdef_outline=True, name_IDs=[], layout_features=[], hinting=False, drop_tables=["FFTM", "PfEd", "BDF"])
    worker = subset.Subsetter(options)
    worker.populate(text=characters + "".join(map(_italic, characters)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worker.subset(font)
    names, glyphs = font.getBestCmap() or {}, font["glyf"]
    taller = {names[ord(c)]: _stretched(font, names[ord(c)]) for c in characters if c in DELIMITERS and ord(c) in names}
    overhang = {
        name: max(0, glyphs[name].xMax - font["hmtx"][name][0])
        for code, name in names.items()
        if 0x1D434 <= code <= 0x1D71B and hasattr(glyphs[name], "xMax")
    }
    for name in ("copyright", "family"):
        font["name"].setName(
            "Subset of the STIX fonts, renamed" if name == "copyright" else FAMILY, 0 if name == "copyright" else 1, 3, 1, 0x409
        )
    buildMathTable(
        font,
        constants=_CONSTANTS,
        italicsCorrections={name: value for name, value in overhang.items() if value},
        vertGlyphVariants=taller or None,
    )
    font.flavor = "woff"
    stream = io.BytesIO()
    font.save(stream)
    return base64.b64encode(stream.getvalue()).decode()


def _stretched(font, name: str) -> list[tuple[str, int]]:
    """Taller copies of a delimiter about the axis: (glyph, height), the delimiter itself first."""
    from copy import deepcopy

    glyphs, axis = font["glyf"], _CONSTANTS["AxisHeight"]
    base = glyphs[name]
    found = [(name, base.yMax - base.yMin)]
    for rank, factor in enumerate(_HEIGHTS):
        copy, wide = deepcopy(base), 1 + 0.12 * (factor - 1)
        copy.coordinates.transform(((wide, 0), (0, factor)))
        copy.coordinates.translate((0, axis * (1 - factor)))
        copy.coordinates.toInt()
        new = f"{name}.taller{rank}"
        glyphs[new] = copy
        copy.recalcBounds(glyphs)
        font["hmtx"][new] = (round(font["hmtx"][name][0] * wide), copy.xMin)
        found.append((new, copy.yMax - copy.yMin))
    font.setGlyphOrder([*font.getGlyphOrder(), *(new for new, _ in found[1:] if new not in font.getGlyphOrder())])
    return found
