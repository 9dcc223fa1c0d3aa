r"""Formulas in Unicode, for a terminal: ``$\lVert W \rVert_F \le \sqrt{n}$`` becomes ``‖W‖_F ≤ √n``.

A formula is first converted to MathML (:mod:`.formulas`), which is then read from left to right. An exponent
or an index is raised or lowered if Unicode has all of its characters; otherwise it follows ``^`` or ``_``.
"""

import re
import unicodedata
from functools import cache
from xml.etree import ElementTree

from .formulas import formula, spans

_RAISED = dict(
    zip("0123456789+-−=()abcdefghijklmnoprstuvwxyzTV⊤′*", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀⱽᵀ′*")
)
_LOWERED = dict(zip("0123456789+-−=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"))
_ACCENTS = {
    "^": "\u0302",
    "ˆ": "\u0302",
    "~": "\u0303",
    "˜": "\u0303",
    "¯": "\u0304",
    "‾": "\u0304",
    "―": "\u0304",
    "_": "\u0304",
}
_ACCENTS |= {"˙": "\u0307", ".": "\u0307", "→": "\u20d7", "ˇ": "\u030c"}
_FRACTIONS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/8": "⅛"}
_BINARY = set("+-−±·×⋅∘⊗⊙⊕∩∪∖:/")  # spaces around them unless they are signs; of these, / and · stay close
_CLOSE = set("/·×⋅∘")
_RELATIONS = set("=<>≤≥≈≡≠≪≫≲≳∼≃≅∝→←↔⇒⇐⇔↦∈∉⊂⊆⊃⊇⟶⟹↓↑⪯⪰≺≻∣⊥")
# after these a minus is a sign, not a difference
_BEFORE_A_SIGN = {*_RELATIONS, *_BINARY, "(", "[", ",", "{"}


@cache
def plain(text: str) -> str:
    """Returns a text with its formulas in Unicode and without the marks of code; a formula that cannot be
    converted loses its backslashes.

    >>> plain(r"for $t \\to \\infty$ the norm $\\lVert W_t \\rVert_F$ exceeds $\\frac{1}{2}\\sqrt{n}$")
    'for t → ∞ the norm ‖Wₜ‖_F exceeds ½√n'
    """
    return "".join(part if kind in ("text", "code") else unicode_math(part) for kind, part in spans(text))


def unicode_math(latex: str) -> str:
    """Returns one formula, without dollars, in Unicode."""
    markup = str(formula(latex))
    if not markup.startswith("<math"):
        return re.sub(r"[\\{}]", "", latex)
    return unicodedata.normalize("NFC", re.sub(r"\s+", " ", _of(ElementTree.fromstring(markup))).strip())


def _of(element: ElementTree.Element) -> str:
    """Returns an element and all inside it as text."""
    parts = list(element)
    match element.tag:
        case "mi" | "mn" | "mo" | "ms" | "mtext":
            # NFKC turns the letters of mathematical alphabets into plain ones: a bold x is an x here.
            return (
                unicodedata.normalize("NFKC", text)
                if len(text := element.text or "") == 1 and ord(text) > 0xFFFF
                else text
            )
        case "mspace":
            return " "
        case "msup":
            return _base(parts[0]) + _script(parts[1], _RAISED, "^")
        case "msub" | "munder":
            return _base(parts[0]) + _script(parts[1], _LOWERED, "_")
        case "msubsup" | "munderover":
            return _base(parts[0]) + _script(parts[1], _LOWERED, "_") + _script(parts[2], _RAISED, "^")
        case "mover":
            base, accent = _of(parts[0]), _of(parts[1])
            return (
                base + _ACCENTS[accent]
                if accent in _ACCENTS and len(base) == 1
                else _base(parts[0]) + _script(parts[1], _RAISED, "^")
            )
        case "mfrac" if _is_binomial(element):
            return ", ".join(map(_of, parts))  # a binomial coefficient, see _row
        case "mfrac":
            text = f"{_grouped(_of(parts[0]))}/{_divisor(parts[1])}"
            return _FRACTIONS.get(text, text)
        case "msqrt":
            return f"√{_grouped(_row(parts))}"
        case "mtr":
            return ", ".join(map(_of, parts))
        case "mtable":
            return "; ".join(map(_of, parts))
        case _:
            return _row(parts)


def _row(parts: list[ElementTree.Element]) -> str:
    """Joins the elements of a row, with spaces around relations and between terms."""
    text = ""
    for part, after in zip(parts, [*parts[1:], None]):
        piece = _of(part)
        sign = piece.strip()
        factor = after is not None and (
            after.tag not in ("mo", "mspace", "mtext") or after.text in ("(", "[")
        )
        if _is_binomial(part):
            # C(n, k): without the C, (n, k) in parentheses is a pair.
            before = text[:-1]
            text = f"{before} C({piece}" if before[-1:].isalnum() else f"{before}C({piece}"
            continue
        if _is_operator(part):
            # The name of an operator, such as mod or max, must not run into its neighbours.
            opens = after is not None and after.tag == "mo" and after.text in ("(", "[", "{")
            text += (
                (" " if text[-1:].isalnum() or text[-1:] in tuple(")]}") else "")
                + piece
                + ("" if opens or after is None else " ")
            )
            continue
        if part.tag == "mfrac" and len(piece) > 1 and factor:
            piece = f"({piece})"  # (a/b)c, since a/bc could be read as a/(bc)
        if part.tag != "mo":
            # An index that Unicode cannot lower must not run into the next symbol.
            text += f" {piece}" if piece[:1].isalnum() and re.search(r"[_^]\w+$", text) else piece
        elif sign in _RELATIONS or (
            sign in _BINARY - _CLOSE and text and text.rstrip()[-1:] not in _BEFORE_A_SIGN
        ):
            text = f"{text.rstrip()} {sign} "
        elif sign in (",", ";"):
            text = f"{text.rstrip()}{sign} "
        else:
            text += sign
    return text


def _is_binomial(element: ElementTree.Element) -> bool:
    """Returns whether an element is the fraction without a line that a binomial coefficient has in its
    parentheses.
    """
    return element.tag == "mfrac" and element.get("linethickness") == "0"


def _is_operator(element: ElementTree.Element) -> bool:
    """Returns whether an element is an operator with a name of letters, such as max, perhaps with an index."""
    element = _inner(element)
    if element.tag in ("msub", "munder"):
        element = _inner(element[0])
    text = element.text or ""
    return element.tag == "mo" and len(text) > 1 and text.isalpha()


def _base(element: ElementTree.Element) -> str:
    """Returns the base of an index or exponent, in parentheses if it is more than one symbol or name."""
    element = _inner(element)
    text = _of(element)
    single = (
        len(text) == 1 or element.tag in ("mi", "mo", "mn", "mtext", "msub", "mover") or text[-1:] in ")‖]|"
    )
    return text if single or text.replace(" ", "").isalpha() else f"({text})"


def _script(element: ElementTree.Element, characters: dict[str, str], mark: str) -> str:
    """Returns an exponent or an index: raised or lowered if Unicode has all of its characters."""
    element = _inner(element)
    text = _of(element).strip()
    bare = text.replace(" ", "")
    if bare and all(character in characters for character in bare):
        return "".join(characters[character] for character in bare)
    clear = (
        len(bare) == 1
        or _single(element)
        or (mark == "_" and bare.isalnum())
        or re.fullmatch(r"\[[^\[\]]*\]", bare)
    )
    return f"{mark}{text}" if clear else f"{mark}({text})"


def _single(element: ElementTree.Element) -> bool:
    """Returns whether an element is one name or number."""
    return element.tag in ("mi", "mn", "mtext")


def _inner(element: ElementTree.Element) -> ElementTree.Element:
    """Returns the only element of a row, or the row if it has several."""
    while element.tag in ("mrow", "mstyle") and len(element) == 1:
        element = element[0]
    return element


def _divisor(element: ElementTree.Element) -> str:
    """Returns the denominator of a fraction, in parentheses if it is a product or a sum."""
    element = _inner(element)
    text = _of(element).strip()
    simple = _single(element) or element.tag in ("msub", "msup", "msubsup", "msqrt") or _grouped(text) != text
    return _grouped(text) if simple or len(text) == 1 or re.fullmatch(r"‖[^‖]*‖\S?", text) else f"({text})"


def _grouped(text: str) -> str:
    """Returns a text in parentheses unless it is one symbol, name or number, or is in brackets already."""
    text = text.strip()
    return (
        text
        if not re.search(r"[\s+−=,/-]", text) or re.fullmatch(r"\([^()]*\)|‖[^‖]*‖", text)
        else f"({text})"
    )
