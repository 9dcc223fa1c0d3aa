r"""Text and formulas for pdflatex, in ASCII.

Names are escaped letter by letter, so that nothing that comes from data or networks can become a command. In other texts the formulas
between dollars stay as they are, except those that could read or write a file, define a command, or leave their dollars: these are shown as
text.
"""

import re
import unicodedata

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "\u00a0": "~",
    "\u202f": "~",
    # what format and the theories write in Unicode
    "—": "--",
    "–": "--",
    "−": r"\ensuremath{-}",
    "→": r"\ensuremath{\to}",
    "←": r"\ensuremath{\leftarrow}",
    "≥": r"\ensuremath{\ge}",
    "≤": r"\ensuremath{\le}",
    "≠": r"\ensuremath{\ne}",
    "≈": r"\ensuremath{\approx}",
    "∈": r"\ensuremath{\in}",
    "∥": r"\ensuremath{\Vert}",
    "‖": r"\ensuremath{\Vert}",
    "·": r"\ensuremath{\cdot}",
    "×": r"\ensuremath{\times}",
    "…": r"\ldots{}",
    "ᵀ": r"\ensuremath{^{\top}}",
    "ᶜ": r"\ensuremath{^c}",
    "∞": r"\ensuremath{\infty}",
    "✓": r"\ensuremath{\checkmark}",
    "±": r"\ensuremath{\pm}",
    "√": r"\ensuremath{\surd}",
    "°": r"\ensuremath{^\circ}",
    "ε": r"\ensuremath{\varepsilon}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "ß": r"\ss{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    **{digit: rf"\ensuremath{{^{i}}}" for i, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{digit: rf"\ensuremath{{_{i}}}" for i, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}
_ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0323\u0327\u0328\u0331", "`'^~=u.\"rHvdckb"))
_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
_LOOKALIKES = "Alpha=A Beta=B Epsilon=E Zeta=Z Eta=H Iota=I Kappa=K Mu=M Nu=N Omicron=O Rho=P Tau=T Chi=X omicron=o"
_LATIN = dict(pair.split("=") for pair in re.findall(r"\S+", _LOOKALIKES))
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
FORMULA = re.compile(r"(?<!\\)\$\$?(.+?)(?<!\\)\$\$?", re.DOTALL)
CODE = re.compile(r"`([^`$\n]+)`")
_UNSAFE = re.compile(
    r"\\(?:input|include|openin|openout|read|write|immediate|special|[egx]?def|let|newcommand|renewcommand|csname|catcode|"
    r"begin|end|usepackage|loop|expandafter|the|show|tt|verb)(?![a-z])|\^\^|(?<!\\)[%#&]|\\\\"
)


def escape(text: str) -> str:
    r"""Plain text for LaTeX: its special characters, and the Unicode symbols of the report, as commands; a letter that pdflatex does not
    have by its code point, ``"中" -> \texttt{U+4E2D}``."""
    text = re.sub(r"ΔR\b", "\2", _printable(text))
    text = re.sub("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10\0{''.join(_SUPERSCRIPTS[c] for c in m[1])}\1", text)
    text = re.sub(r"([-,'])(?=\1)", "\\1\3", text)  # two of these would become one sign
    text = "".join(c if c.isascii() and c not in _SPECIAL else _command(c) for c in text)
    text = text.replace("\2", r"\ensuremath{\Delta R}").replace("\3", "{}")
    return re.sub("\0(.*?)\1", r"\\ensuremath{^{\1}}", text)


def _printable(text: str) -> str:
    """One line, composed, without control characters."""
    text = re.sub(r"[\t\n\r\v\f\x1c-\x1f\x85\u2028\u2029]+", " ", unicodedata.normalize("NFC", text))
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def _command(character: str) -> str:
    """What stands for a character that is special to LaTeX, or is not ASCII."""
    if found := _SPECIAL.get(character):
        return found
    first, *marks = unicodedata.normalize("NFD", character)
    if marks and first.isascii() and all(mark in _ACCENTS for mark in marks):
        for mark in marks:
            first = f"\\{_ACCENTS[mark]}{{{first}}}"
        return first
    plain = unicodedata.normalize("NFKD", character)
    if plain != character and plain.isascii() and plain.isalnum():
        return plain
    if greek := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(plain[0], "")):
        letter = greek[2].replace("LAMDA", "LAMBDA").lower()
        letter = letter.title() if greek[1] == "CAPITAL" else letter
        if letter in _LATIN:
            return _LATIN[letter]
        if letter in f"{_GREEK} {_CAPITALS}".split():
            return rf"\ensuremath{{\{letter}}}"
    return rf"\texttt{{U+{ord(character):04X}}}"


def prose(text: str) -> str:
    r"""Text with formulas between dollars, which stay, and code between backticks, which is set in typewriter type; the rest is escaped.
    ``\$`` is a dollar."""
    parts = CODE.split(text)
    return "".join(rf"\texttt{{{escape(part)}}}" if i % 2 else _without_code(part) for i, part in enumerate(parts))


def _without_code(text: str) -> str:
    parts = FORMULA.split(text)
    return "".join(_formula(part) if i % 2 else escape(part.replace(r"\$", "$")) for i, part in enumerate(parts))


def _formula(latex: str) -> str:
    latex = " ".join(latex.split())
    if _UNSAFE.search(latex) or not _balanced(latex):
        return escape(f"${latex}$")
    return f"${''.join(c if c.isascii() else _in_formula(c) for c in latex)}$"


def _balanced(latex: str) -> bool:
    """Whether every brace is closed by one that belongs to it."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", latex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def _in_formula(character: str) -> str:
    found = _command(character)
    return re.sub(r"\\ensuremath\{(.*)\}", r"{\1}", found) if found.startswith(r"\ensuremath") else rf"{{\text{{{found}}}}}"


def typewriter(name: str) -> str:
    """A path, a command or a checksum in typewriter type, which may break anywhere after a sign, and after eight letters."""
    pieces = re.findall(r"\\?[A-Za-z0-9]{1,8}|[^A-Za-z0-9]", name)
    breakable = r"\allowbreak{}".join(map(escape, pieces))
    return rf"\texttt{{{breakable}}}" if pieces else ""
