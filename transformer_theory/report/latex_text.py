r"""Text and formulas for pdflatex, in ASCII.

Names of data and networks are escaped character by character, so they cannot inject a command. Other texts
may contain formulas between dollars. These are copied unchanged unless they could read or write a file,
define a command or end the formula early; such a formula is escaped and shown as plain text.
"""

import re
import unicodedata

from .formulas import spans


def _pairs(table: str) -> dict[str, str]:
    """Converts a table to a dict. Each key in the table is followed by its replacement; white space separates
    them.
    """
    words = table.split()
    return dict(zip(words[::2], words[1::2]))


_IN_FORMULAS = _pairs(r"""
− -   → \to   ← \leftarrow   ≥ \ge   ≤ \le   ≠ \ne   ≈ \approx   ∈ \in   ∥ \Vert   ‖ \Vert   · \cdot   × \times   ᵀ ^{\top}   ᶜ ^c
∞ \infty   ✓ \checkmark   ± \pm   √ \surd   ° ^\circ   ε \varepsilon
""") | {
    sign: f"{script}{i}"
    for script, signs in zip("^_", ("⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉"))
    for i, sign in enumerate(signs)
}
_SPECIAL = (
    _pairs(r"""
\ \textbackslash{}   { \{   } \}   $ \$   & \&   % \%   # \#   _ \_   ~ \textasciitilde{}   ^ \textasciicircum{}   < \textless{}
> \textgreater{}   | \textbar{}   " \textquotedbl{}   ` \textasciigrave{}   — --   – --   … \ldots{}   “ ``   ” ''   ‘ `   ’ '
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
    r"\\(?:input|include|openin|openout|read|write|immediate|special|[egx]?def|let|newcommand|renewcommand|csname|catcode|"
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
    parts = []
    for kind, part in spans(text):
        if kind == "text":
            parts.append(escape(part))
        else:
            parts.append(rf"\texttt{{{escape(part)}}}" if kind == "code" else _formula(part))
    return "".join(parts)


def _formula(latex: str) -> str:
    """Returns the formula between dollars; escaped text if the formula is unsafe or its braces do not match."""
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
