r"""Text and formulas for pdflatex, in ASCII.

Names are escaped letter by letter, so that nothing that comes from data or networks can become a command. In other texts the formulas
between dollars stay as they are, except those that could read or write a file, define a command, or leave their dollars: these are shown as
text.
"""

import re
import unicodedata

from .formulas import spans


def _pairs(table: str) -> dict[str, str]:
    """Characters and what stands for them, which alternate in a table of words."""
    words = table.split()
    return dict(zip(words[::2], words[1::2]))


_IN_FORMULAS = _pairs(r"""
− -   → \to   ← \leftarrow   ≥ \ge   ≤ \le   ≠ \ne   ≈ \approx   ∈ \in   ∥ \Vert   ‖ \Vert   · \cdot   × \times   ᵀ ^{\top}   ᶜ ^c
∞ \infty   ✓ \checkmark   ± \pm   √ \surd   ° ^\circ   ε \varepsilon
""") | {sign: f"{script}{i}" for script, signs in zip("^_", ("⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉")) for i, sign in enumerate(signs)}
_SPECIAL = (
    _pairs(r"""
\ \textbackslash{}   { \{   } \}   $ \$   & \&   % \%   # \#   _ \_   ~ \textasciitilde{}   ^ \textasciicircum{}   < \textless{}
> \textgreater{}   | \textbar{}   " \textquotedbl{}   ` \textasciigrave{}   — --   – --   … \ldots{}   “ ``   ” ''   ‘ `   ’ '
ß \ss{}   ø \o{}   Ø \O{}   ł \l{}   Ł \L{}   æ \ae{}   Æ \AE{}
""")
    | {"\u00a0": "~", "\u202f": "~"}
    | {sign: rf"\ensuremath{{{command}}}" for sign, command in _IN_FORMULAS.items()}
)
_ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0323\u0327\u0328\u0331", "`'^~=u.\"rHvdckb"))
_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
_LOOKALIKES = "Alpha=A Beta=B Epsilon=E Zeta=Z Eta=H Iota=I Kappa=K Mu=M Nu=N Omicron=O Rho=P Tau=T Chi=X omicron=o"
_LATIN = dict(pair.split("=") for pair in re.findall(r"\S+", _LOOKALIKES))
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
_UNSAFE = re.compile(
    r"\\(?:input|include|openin|openout|read|write|immediate|special|[egx]?def|let|newcommand|renewcommand|csname|catcode|"
    r"begin|end|usepackage|loop|expandafter|the|show|tt|verb)(?![a-z])|\^\^|(?<!\\)[%#&]|\\\\"
)


def escape(text: str) -> str:
    r"""Plain text for LaTeX: its special characters, and the Unicode symbols of the report, as commands; a letter that pdflatex does not
    have by its code point, ``"中" -> \texttt{U+4E2D}``."""
    # Control characters, which no printable text contains, mark what must survive the escaping of single characters.
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
    """The commands for a character that is special to LaTeX or is not ASCII."""
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
    parts = []
    for kind, part in spans(text):
        if kind == "text":
            parts.append(escape(part))
        else:
            parts.append(rf"\texttt{{{escape(part)}}}" if kind == "code" else _formula(part))
    return "".join(parts)


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
