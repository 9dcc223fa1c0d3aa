r"""The mark-up of the report's texts, and its conversion to MathML, which browsers show without loading a
script.

LaTeX between dollars is a formula, and backticks enclose code; ``\$``, ``\^`` and a backtick after a
backslash are the signs themselves. A letter with an exponent of one letter or digit, as in ``R^c``, is a
formula even without dollars, because names of quantities contain such powers.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup, escape

# `code`, $$block$$, $inline$ (but not \$), and a power without dollars such as R^c
_SPAN = re.compile(
    r"(?<!\\)`(?P<code>[^`$\n]+)`|(?<!\\)\$\$(?P<block>.+?)(?<!\\)\$\$|(?<!\\)\$(?P<inline>.+?)(?<!\\)\$"
    r"|(?<![\w^\\])(?P<power>[A-Za-z]\^[A-Za-z0-9])(?![\w^])",
    re.DOTALL,
)
_LITERAL = re.compile(r"\\([$^`])")


def spans(text: str) -> Iterator[tuple[Literal["text", "code", "inline", "block"], str]]:
    """Yields the parts of a text with their kinds: plain text, code, inline formulas and displayed formulas,
    without delimiters.
    """
    end = 0
    for match in _SPAN.finditer(text):
        if match.start() > end:
            yield "text", _LITERAL.sub(r"\1", text[end : match.start()])
        end = match.end()
        if match["code"]:
            yield "code", match["code"]
        elif match["block"]:
            yield "block", match["block"]
        else:
            yield "inline", match["inline"] or match["power"]
    if end < len(text):
        yield "text", _LITERAL.sub(r"\1", text[end:])


def literal(name: str) -> str:
    r"""Escapes a name, in which no sign begins a formula or code: ``"a^2" -> r"a\^2"``."""
    return re.sub(r"\\*([$^`])", r"\\\1", name)


def mathml(text: str) -> Markup:
    """Converts text to HTML: escaped, with formulas as MathML and code in ``<code>``. A formula that cannot
    be converted stays LaTeX.
    """
    parts = []
    for kind, part in spans(text):
        if kind == "text":
            parts.append(escape(part))
        elif kind == "code":
            parts.append(Markup("<code>{}</code>").format(part))
        else:
            parts.append(formula(part, kind == "block"))
    return Markup("").join(parts)


def paragraphs(text: str) -> Markup:
    """Converts a text with empty lines between its paragraphs to HTML: one ``<p>`` per paragraph, converted
    by :func:`mathml`.
    """
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("\n").join(Markup("<p>{}</p>").format(mathml(part)) for part in parts)


@cache
def formula(latex: str, block: bool = False) -> Markup:
    """Converts a formula to MathML with the LaTeX in ``data-latex``; if latex2mathml cannot convert it,
    returns the LaTeX in ``<code>``.

    Commands that latex2mathml does not support are replaced first.
    """
    from latex2mathml.converter import convert

    latex = " ".join(latex.split())
    supported = _ARG.sub(r"\\operatorname{arg\\,\1}", latex)  # latex2mathml does not know \arg
    supported = _OPERATOR.sub(r"\\mathrm{\1}", supported)  # it reads the star of \operatorname* as a letter
    # it does not know names of delimiters after \big
    supported = _BIG.sub(lambda match: match["big"] + _SIGNS[match["name"]], supported)
    try:
        converted = convert(supported, display="block" if block else "inline")
    except Exception:  # the converter raises many kinds of errors
        return Markup("<code>{}</code>").format(latex)
    if not _plain(converted):
        return Markup("<code>{}</code>").format(latex)
    # HTML needs no namespace. Bars keep their size, as in \lVert x \rVert_F, and have no space around them,
    # unless \big enlarges them. A run of upright letters is one name.
    converted = converted.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    converted = _BARS.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', converted)
    converted = _TALLER.sub(r'<mo lspace="0" rspace="0"\1', converted)
    converted = _LETTERS.sub(lambda run: f"<mi>{''.join(re.findall(r'>(.)<', run[0]))}</mi>", converted)
    # The LaTeX stays with the formula: the page's script writes it to CSV files.
    return Markup(_space_functions(converted).replace("<math", f'<math data-latex="{escape(latex)}"', 1))


def _space_functions(converted: str) -> str:
    """Adds thin spaces around names of functions, as LaTeX does; browsers would show ``\\ln\\ln t`` as one
    word.
    """
    tree = ElementTree.fromstring(converted)
    for row in tree.iter():
        if row.tag not in ("math", "mrow", "mstyle", "mtd", "msqrt"):
            continue
        # Insert a space between two neighbours if one is a name, unless one is a space, text or an operator
        # (which has its own space).
        spaced: list[ElementTree.Element] = []
        for child in row:
            before = spaced[-1] if spaced else None
            if (
                before is not None
                and (_is_name(before) or _is_name(child))
                and not {before.tag, child.tag} & {"mo", "mspace", "mtext"}
            ):
                spaced.append(ElementTree.Element("mspace", width="0.167em"))
            spaced.append(child)
        row[:] = spaced
    return ElementTree.tostring(tree, encoding="unicode")


def _is_name(element: ElementTree.Element) -> bool:
    """Returns whether an element is the name of a function, with or without indices: ``log``, ``log_2``,
    ``arg min_W``.
    """
    if element.tag == "mi":
        return len(element.text or "") > 1
    if element.tag in ("msub", "msup", "msubsup", "munder", "mover"):
        return _is_name(element[0])
    return (
        element.tag == "mrow"
        and len(element) > 0
        and all(part.tag == "mspace" or _is_name(part) for part in element)
    )


_OPERATOR = re.compile(r"\\operatorname\*?\{([^{}]*)\}")  # \operatorname{tr}, \operatorname*{conv}
_ARG = re.compile(r"\\arg\s*\\(min|max)(?![A-Za-z])")  # \arg\min
# a vertical bar, single or double, as latex2mathml writes it: <mo>&#x02016;</mo>
_BARS = re.compile(r'<mo(?: fence="false" stretchy="false")?>(&#x02016;|&#x02225;|&#x0007C;)</mo>')
# an enlarged delimiter with a name: \big\|, \Bigl\langle
_BIG = re.compile(
    r"(?P<big>\\(?:big|Big|bigg|Bigg)[lrm]?)\s*\\(?P<name>\||[lr]?Vert(?![A-Za-z])|[lr]angle(?![A-Za-z]))"
)
# the characters for the delimiters that _BIG finds
_SIGNS = {"|": "‖", "Vert": "‖", "lVert": "‖", "rVert": "‖", "langle": "⟨", "rangle": "⟩"}
# bars that \big has enlarged
_TALLER = re.compile(r"<mo((?: [a-z]+=\"[^\"]*\")* minsize=\"[^\"]*\" maxsize=\"[^\"]*\">[‖|]</mo>)")
# a word in upright letters: one identifier
_LETTERS = re.compile(r'(?:<mi mathvariant="normal">[A-Za-z]</mi>){2,}')
# The elements and attributes of MathML that a converted formula may have; anything else is rejected by
# _plain.
_ELEMENTS = """math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts
mtable mtr mtd mstyle mpadded mphantom menclose mfenced none"""
_ATTRIBUTES = """display displaystyle scriptlevel stretchy mathvariant movablelimits fence form accent accentunder minsize maxsize symmetric
largeop columnalign rowspacing columnspacing columnlines rowlines linethickness separator lspace rspace width height depth mathcolor
notation open close"""


def _plain(converted: str) -> bool:
    """Returns whether the converted formula contains only MathML.

    latex2mathml does not escape mark-up inside ``\\text``, and it copies unknown commands as text, with their
    backslash.
    """
    try:
        tree = ElementTree.fromstring(converted)
    except ElementTree.ParseError:
        return False
    for element in tree.iter():
        if element.tag.rpartition("}")[2] not in _ELEMENTS.split() or set(element.attrib) - set(
            _ATTRIBUTES.split()
        ):
            return False
        if "\\" in (element.text or ""):
            return False
    return True
