r"""Texts with formulas, for three readers: HTML with MathML, Unicode for a terminal, and LaTeX for pdflatex.

LaTeX between dollars is a formula, and backticks enclose code; ``\$``, ``\^`` and a backtick after a
backslash are the signs themselves. A letter with an exponent of one letter or digit, as in ``R^c``, is a
formula even without dollars, because names of quantities contain such powers.

* :func:`mathml` makes HTML, whose formulas browsers show without loading a script;
* :func:`plain` makes a text in Unicode: ``$\lVert W \rVert_F \le \sqrt{n}$`` becomes ``‖W‖_F ≤ √n``;
* :func:`prose` makes LaTeX in ASCII, and :func:`escape` does so for names of data and networks, which are
  escaped character by character, so that they cannot inject a command.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup

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


def rendered_parts(
    text: str,
    words: Callable[[str], str],
    code: Callable[[str], str],
    inline: Callable[[str], str],
    block: Callable[[str], str] | None = None,
) -> Iterator[str]:
    """Yields the parts of a text, each rendered by the function of its kind. Without ``block``, displayed
    formulas are rendered by ``inline``.
    """
    by_kind = {"text": words, "code": code, "inline": inline, "block": block or inline}
    return (by_kind[kind](part) for kind, part in spans(text))


def literal(name: str) -> str:
    r"""Escapes a name, in which no sign begins a formula or code: ``"a^2" -> r"a\^2"``."""
    return re.sub(r"\\*([$^`])", r"\\\1", name)


# ---- HTML

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
# _is_mathml.
_ELEMENTS = """math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover
mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom menclose mfenced none"""
_ATTRIBUTES = """display displaystyle scriptlevel stretchy mathvariant movablelimits fence form accent
accentunder minsize maxsize symmetric largeop columnalign rowspacing columnspacing columnlines
rowlines linethickness separator lspace rspace width height depth mathcolor notation open close"""


def mathml(text: str) -> Markup:
    """Converts text to HTML: escaped, with formulas as MathML and code in ``<code>``. A formula that cannot
    be converted stays LaTeX.
    """
    code = Markup("<code>{}</code>").format
    return Markup("").join(rendered_parts(text, Markup.escape, code, formula, partial(formula, block=True)))


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
    if not _is_mathml(converted):
        return Markup("<code>{}</code>").format(latex)
    # HTML needs no namespace. Bars keep their size, as in \lVert x \rVert_F, and have no space around them,
    # unless \big enlarges them. A run of upright letters is one name.
    converted = converted.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    converted = _BARS.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', converted)
    converted = _TALLER.sub(r'<mo lspace="0" rspace="0"\1', converted)
    converted = _LETTERS.sub(lambda run: f"<mi>{''.join(re.findall(r'>(.)<', run[0]))}</mi>", converted)
    # The LaTeX stays with the formula: the page's script writes it to CSV files.
    start = Markup('<math data-latex="{}"').format(latex)
    return Markup(_space_functions(converted).replace("<math", start, 1))


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


def _is_mathml(converted: str) -> bool:
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


# ---- Unicode
# A formula is first converted to MathML, which is then read from left to right. An exponent or an index is
# raised or lowered if Unicode has all of its characters; otherwise it follows ^ or _.

_RAISED = dict(
    zip("0123456789+-−=()abcdefghijklmnoprstuvwxyzTV⊤′*", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀⱽᵀ′*")
)
_LOWERED = dict(zip("0123456789+-−=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"))
_OVER = {
    "^": "\u0302",
    "ˆ": "\u0302",
    "~": "\u0303",
    "˜": "\u0303",
    "¯": "\u0304",
    "‾": "\u0304",
    "―": "\u0304",
    "_": "\u0304",
}
_OVER |= {"˙": "\u0307", ".": "\u0307", "→": "\u20d7", "ˇ": "\u030c"}
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
    return "".join(rendered_parts(text, str, str, unicode_math))


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
                base + _OVER[accent]
                if accent in _OVER and len(base) == 1
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
    """Returns whether an element is an operator with a name of letters, such as max, perhaps with an
    index.
    """
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


# ---- LaTeX
# Formulas between dollars are copied unchanged unless they could read or write a file, define a command or
# end the formula early; such a formula is escaped and shown as plain text.


def _pairs(table: str) -> dict[str, str]:
    """Converts a table to a dict. Each key in the table is followed by its replacement; white space separates
    them.
    """
    words = table.split()
    return dict(zip(words[::2], words[1::2]))


_IN_FORMULAS = _pairs(r"""
− -   → \to   ← \leftarrow   ≥ \ge   ≤ \le   ≠ \ne   ≈ \approx   ∈ \in   ∥ \Vert   ‖ \Vert
· \cdot   × \times   ᵀ ^{\top}   ᶜ ^c
∞ \infty   ✓ \checkmark   ✗ \times   ± \pm   √ \surd   ° ^\circ   ε \varepsilon
""") | {
    sign: f"{script}{i}"
    for script, signs in zip("^_", ("⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉"))
    for i, sign in enumerate(signs)
}
_SPECIAL = (
    _pairs(r"""
\ \textbackslash{}   { \{   } \}   $ \$   & \&   % \%   # \#   _ \_
~ \textasciitilde{}   ^ \textasciicircum{}   < \textless{}   > \textgreater{}   | \textbar{}
" \textquotedbl{}   ` \textasciigrave{}   — --   – --   … \ldots{}   “ ``   ” ''   ‘ `   ’ '
ß \ss{}   ø \o{}   Ø \O{}   ł \l{}   Ł \L{}   æ \ae{}   Æ \AE{}
""")
    | {"\u00a0": "~", "\u202f": "~"}
    | {sign: rf"\ensuremath{{{command}}}" for sign, command in _IN_FORMULAS.items()}
)
# Combining Unicode accents and the letter or sign of the LaTeX command for each, e.g. U+0301 (acute) -> \'
_ACCENTS = dict(
    zip(
        "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0323\u0327\u0328\u0331",
        "`'^~=u.\"rHvdckb",
    )
)
_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
# Greek letters that look like Latin ones have no command in LaTeX; the Latin letter is printed instead.
_LOOKALIKES = (
    "Alpha=A Beta=B Epsilon=E Zeta=Z Eta=H Iota=I Kappa=K Mu=M Nu=N Omicron=O Rho=P Tau=T Chi=X omicron=o"
)
_LATIN = dict(pair.split("=") for pair in re.findall(r"\S+", _LOOKALIKES))
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi "
    "chi psi omega"
)
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
# Unsafe parts of a formula: commands that access files or define other commands, ^^ (TeX's notation for
# arbitrary characters), the unescaped signs %, # and & (comment, parameter, alignment), and the line break
# \\.
_UNSAFE = re.compile(
    r"\\(?:input|include|openin|openout|read|write|immediate|special|[egx]?def|let|newcommand|renewcommand|"
    r"csname|catcode|"
    r"begin|end|usepackage|loop|expandafter|the|show|tt|verb)(?![a-z])|\^\^|(?<!\\)[%#&]|\\\\"
)


def escape(text: str) -> str:
    r"""Escapes plain text for LaTeX. Special characters and the report's Unicode symbols become commands.

    A character that pdflatex cannot print is replaced by its code point: ``"中" -> \texttt{U+4E2D}``.
    """
    # Constructs of several characters are marked first, then each character is escaped, then the marks become
    # LaTeX. The marks are control characters, because _printable has removed these from the text: \0 and \1
    # enclose an exponent, \2 is "ΔR", \3 is an empty group.
    text = re.sub(r"ΔR\b", "\2", _printable(text))
    text = re.sub("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10\0{''.join(_SUPERSCRIPTS[c] for c in m[1])}\1", text)
    text = re.sub(r"([-,'])(?=\1)", "\\1\3", text)  # LaTeX would join --, ,, and '' into one sign
    text = "".join(c if c.isascii() and c not in _SPECIAL else _command(c) for c in text)
    text = text.replace("\2", r"\ensuremath{\Delta R}").replace("\3", "{}")
    return re.sub("\0(.*?)\1", r"\\ensuremath{^{\1}}", text)


def _printable(text: str) -> str:
    """Returns the text on one line, in Unicode's composed form (NFC), without control characters."""
    text = re.sub(r"[\t\n\r\v\f\x1c-\x1f\x85\u2028\u2029]+", " ", unicodedata.normalize("NFC", text))
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def _command(character: str) -> str:
    """Returns the commands for a character that is special to LaTeX or is not ASCII."""
    if command := _SPECIAL.get(character):
        return command
    # An accented Latin letter: decompose it (NFD) and wrap the base letter in one command per accent.
    base, *marks = unicodedata.normalize("NFD", character)
    if marks and base.isascii() and all(mark in _ACCENTS for mark in marks):
        for mark in marks:
            base = f"\\{_ACCENTS[mark]}{{{base}}}"
        return base
    # A variant of ASCII letters or digits, such as a ligature or a full-width letter: print the plain ones
    # (NFKD).
    plain = unicodedata.normalize("NFKD", character)
    if plain != character and plain.isascii() and plain.isalnum():
        return plain
    # A Greek letter, without its accents. Unicode spells lambda as "lamda".
    if greek := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(plain[0], "")):
        letter = greek[2].replace("LAMDA", "LAMBDA").lower()
        letter = letter.title() if greek[1] == "CAPITAL" else letter
        if letter in _LATIN:
            return _LATIN[letter]
        if letter in f"{_GREEK} {_CAPITALS}".split():
            return rf"\ensuremath{{\{letter}}}"
    return rf"\texttt{{U+{ord(character):04X}}}"


def prose(text: str) -> str:
    r"""Converts text to LaTeX: formulas between dollars are kept, code between backticks is set in typewriter
    type, the rest is escaped.

    ``\$`` is a literal dollar.
    """
    return "".join(rendered_parts(text, escape, lambda code: rf"\texttt{{{escape(code)}}}", _formula))


def _formula(latex: str) -> str:
    """Returns the formula between dollars; escaped text if the formula is unsafe or its braces do not
    match.
    """
    latex = " ".join(latex.split())
    if _UNSAFE.search(latex) or not _balanced(latex):
        return escape(f"${latex}$")
    return f"${''.join(c if c.isascii() else _in_formula(c) for c in latex)}$"


def _balanced(latex: str) -> bool:
    """Returns whether the unescaped braces match."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", latex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def _in_formula(character: str) -> str:
    """Returns the commands for a character inside a formula: a symbol without its \\ensuremath, any other
    character in \\text.
    """
    command = _command(character)
    return (
        re.sub(r"\\ensuremath\{(.*)\}", r"{\1}", command)
        if command.startswith(r"\ensuremath")
        else rf"{{\text{{{command}}}}}"
    )


def typewriter(name: str) -> str:
    """Sets a path, a command or a checksum in typewriter type.

    LaTeX may break the line after any punctuation and after every eight letters or digits.
    """
    pieces = re.findall(r"\\?[A-Za-z0-9]{1,8}|[^A-Za-z0-9]", name)
    breakable = r"\allowbreak{}".join(map(escape, pieces))
    return rf"\texttt{{{breakable}}}" if pieces else ""
