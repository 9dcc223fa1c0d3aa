r"""Which formulas pdflatex sets without an error: a grammar of LaTeX's mathematics, narrower than LaTeX's own.

It knows commands by their kind: symbols, operators, those with arguments, those before a delimiter. What it does not know is no formula, so
a name from data that looks like one can neither run a command nor stop a document.
"""

import re
from collections.abc import Iterator

GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
_SIGNS = f"""{GREEK} {CAPITALS}
varepsilon vartheta varphi varrho varsigma ell hbar partial nabla infty emptyset varnothing forall exists neg prime cdot times div pm mp
ast star circ bullet odot oplus ominus otimes oslash circledast cup cap setminus smallsetminus wedge vee land lor lnot to gets mapsto
longmapsto rightarrow leftarrow Rightarrow Leftarrow Leftrightarrow leftrightarrow uparrow downarrow le leq ge geq ne neq ll gg sim
simeq approx equiv propto asymp mid nmid parallel perp in ni subset subseteq supset supseteq succ succeq prec preceq lesssim gtrsim top
bot dagger langle rangle lVert rVert lvert rvert Vert vert lfloor rfloor lceil rceil lbrace rbrace surd checkmark square blacksquare
triangle triangleq angle Re Im aleph"""
_WIDER = """arccos arcsin arctan arg bmod cdots colon cong cos cosh ddots deg dim doteq dots exp hom iff implies ker ldots ln log
longrightarrow notin qquad quad sin sinh tan tanh vdots"""  # as a script they need braces
_OPERATORS = "sum prod int oint bigcup bigcap bigoplus bigotimes min max sup inf lim limsup liminf det gcd Pr"
_SIZES = "big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr"
_STYLES = "displaystyle textstyle scriptstyle"
_FONTS = "mathrm mathbf mathcal mathbb mathsf mathit mathtt mathfrak"
_ONE = f"""{_FONTS} boldsymbol overline underline hat widehat tilde widetilde bar vec dot ddot check breve acute overbrace underbrace
phantom substack operatorname mathrel mathbin mathop mathord mod pmod sqrt"""
_TWO = "frac tfrac dfrac binom tbinom stackrel overset underset"
_TEXT = "text textrm textbf textit"
_DELIMITERS = """( ) [ ] / | . < > \\{ \\} \\| \\langle \\rangle \\lVert \\rVert \\lvert \\rvert \\Vert \\vert \\lfloor \\rfloor \\lceil
\\rceil \\lbrace \\rbrace \\uparrow \\downarrow"""


def _named(words: str) -> frozenset[str]:
    return frozenset(f"\\{word}" for word in words.split())


SIGNS = _named(_SIGNS) | {rf"\{sign}" for sign in "{}|%_#&"}
SYMBOLS = SIGNS | _named(_WIDER) | {rf"\{sign}" for sign in ",;:! "}
OPERATORS = _named(_OPERATORS)
SIZES, STYLES, FONTS, ONE, TWO, TEXT = map(_named, (_SIZES, _STYLES, _FONTS, _ONE, _TWO, _TEXT))
DELIMITERS = frozenset(_DELIMITERS.split())
DEEPEST = 20  # braces within braces
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.?|\S", re.DOTALL)
_WORDS = re.compile(r"\{([^{}\\_^$&%#~\x00-\x1f\x7f-\U0010ffff]|\\[ ,%&_#])*\}")


def is_mathematics(latex: str) -> bool:
    r"""Whether pdflatex sets a formula without an error: its commands are known and have their arguments, braces and ``\left`` ...
    ``\right`` are balanced, nothing has two superscripts or two subscripts, and text within it is plain."""
    try:
        formula = _Formula(latex)
        formula.row()
    except _NotMathematics:
        return False
    return not formula.tokens and bool(latex.strip())


class _NotMathematics(Exception):
    pass


class _Formula:
    """What is left of a formula, taken from its front."""

    def __init__(self, latex: str):
        self.tokens = list(_tokens(latex))[::-1]
        self.depth = 0

    def next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self) -> str:
        if not self.tokens:
            raise _NotMathematics
        return self.tokens.pop()

    def row(self) -> None:
        r"""Atoms with their scripts, up to what closes the row: ``}``, ``\middle``, ``\right``, or the end."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise _NotMathematics
        while self.tokens and self.next() not in ("}", "\\middle", "\\right"):
            self.atom()
            self.scripts()
        self.depth -= 1

    def atom(self) -> None:
        token = self.next()
        if token in ("_", "^", "'"):
            return  # scripts of nothing
        self.take()
        if token == "{":
            self.row()
            self.closed("}")
        elif token == "\\left":
            self.delimiter()
            self.row()
            while self.next() == "\\middle":
                self.take()
                self.delimiter()
                self.row()
            self.closed("\\right")
            self.delimiter()
        elif token in SIZES:
            self.delimiter()
        elif token in OPERATORS:
            while self.next() in ("\\limits", "\\nolimits"):
                self.take()
        elif token in ONE | TWO:
            self.arguments(token)
        elif not (token in SYMBOLS | STYLES or _is_words(token) or _is_sign(token)):
            raise _NotMathematics

    def arguments(self, command: str) -> None:
        if command == "\\operatorname" and self.next() == "*":
            self.take()
        if command == "\\sqrt" and self.next() == "[":
            while self.next() != "]":
                self.argument(SYMBOLS)
            self.take()
        for _ in range(2 if command in TWO else 1):
            self.argument(SYMBOLS)

    def argument(self, known: frozenset[str]) -> None:
        """A row in braces, or one sign."""
        token = self.take()
        if token == "{":
            self.row()
            self.closed("}")
        elif not (token in known or _is_sign(token)):
            raise _NotMathematics

    def scripts(self) -> None:
        """At most one superscript, which primes are too, and one subscript."""
        had: set[str] = set()
        while (token := self.next()) in ("_", "^", "'") and token:
            kind = "_" if token == "_" else "^"
            if kind in had:
                raise _NotMathematics
            had.add(kind)
            self.take()
            while token == "'" == self.next():
                self.take()
            if token == "'" and self.next() == "^":
                self.take()
            elif token == "'":
                continue
            self.script()

    def script(self) -> None:
        if self.next() in FONTS or self.next() == "\\frac":
            self.arguments(self.take())
        elif _is_words(self.next()):
            self.take()
        else:
            self.argument(SIGNS)

    def delimiter(self) -> None:
        self.closed(*DELIMITERS)

    def closed(self, *by: str) -> None:
        if self.take() not in by:
            raise _NotMathematics


def _tokens(latex: str) -> Iterator[str]:
    r"""Commands and signs; a command of words together with its words: ``\text{if so}``."""
    at = 0
    while found := _TOKEN.search(latex, at):
        at = found.end()
        token = found[0]
        if token in TEXT and (words := _WORDS.match(latex, at)):
            token, at = token + words[0], words.end()
        yield token


def _is_words(token: str) -> bool:
    return "{" in token[1:] and token[0] == "\\" and len(token) > 2


def _is_sign(token: str) -> bool:
    """A letter, digit or sign that stands for itself; what is not ASCII becomes a command later."""
    return len(token) == 1 and token not in "\\{}_^'$&%#~" and (token > "\x7f" or token.isprintable())
