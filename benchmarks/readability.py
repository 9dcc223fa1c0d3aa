"""How readable are the pages? ``python -m benchmarks.readability [PAGE ...]`` prints one line for each page.

The columns are the words, the sentences, the mean words per sentence, and three shares: of sentences with
more than 30 words, of sentences that address the reader as "you", and of words that contain a digit. If no
PAGE is given, the pages are :data:`PAGES`.

Only prose counts: headings, tables, code blocks, quotations, directives, formulas, pictures and comments are
left out. Code within a sentence counts as one word. A paragraph or list item ends its last sentence.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = 30  # words; a sentence with more is a long one
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/start.md",
    "docs/which_theory.md",
    "docs/own_models/overview.md",
    "docs/glossary.md",
    "docs/comparing.md",
    "docs/training.md",
    "docs/statistics.md",
    "docs/atlas.md",
    "docs/interventions.md",
)
LEFT_OUT = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)`*[ \t]*$"  # code blocks, and directives without prose
    r"|<!--.*?-->"
    r"|\$\$.*?\$\$"
    r"|(?<!\\)\$[^$]+\$"  # a formula within a sentence
    r"|!\[[^\]]*\]\([^)]*\)"  # a picture; its caption is prose
    r"|^[ \t]*(?:\||#|>|:::)[^\n]*$",  # rows of tables, headings, quotations, the ends of containers
    re.MULTILINE | re.DOTALL,
)
SHOWN = (  # what is replaced by the text that a reader sees
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\{\w+\}`([^<`]*)[^`]*`"), r"\1"),
    (re.compile(r"`[^`]+`"), "code"),
    (re.compile(r"<[^<>]+>|\*"), ""),
)
ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d+\.)[ \t]+", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[)\"”’]*\s+(?=[(\"“‘]*\w)")
ABBREVIATION = re.compile(r"\b(?:al|ch|e\.g|i\.e|vs|Fig|no)\.$")  # its full stop ends no sentence
WORD = re.compile(r"\w+(?:[-'’.,/:]\w+)*")
YOU = {"you", "your", "yours", "yourself"}


@dataclass(frozen=True)
class Readability:
    """The numbers of a page; shares lie between 0 and 1."""

    words: int
    sentences: int
    mean: float
    long: float
    you: float
    digits: float


def sentences(page: str) -> Iterator[list[str]]:
    """Yields the words of each sentence in the prose of a page of Markdown."""
    text = ITEM.sub("\n\n", LEFT_OUT.sub("", page))
    for pattern, shown in SHOWN:
        text = pattern.sub(shown, text)
    for block in re.split(r"\n\s*\n", text):
        unfinished: list[str] = []
        for part in END.split(" ".join(block.split())):
            unfinished += WORD.findall(part)
            if unfinished and not ABBREVIATION.search(part):
                yield unfinished
                unfinished = []
        if unfinished:
            yield unfinished


def readability(page: str) -> Readability:
    """Returns the numbers of a page of Markdown.

    Raises:
        ValueError: the page has no prose.
    """
    found = list(sentences(page))
    if not found:
        raise ValueError("expected a page with sentences outside of tables and code, got none")
    words = [word for sentence in found for word in sentence]
    addressed = [not YOU.isdisjoint(word.lower() for word in sentence) for sentence in found]
    return Readability(
        words=len(words),
        sentences=len(found),
        mean=len(words) / len(found),
        long=sum(len(sentence) > LONG for sentence in found) / len(found),
        you=sum(addressed) / len(found),
        digits=sum(bool(re.search(r"\d", word)) for word in words) / len(words),
    )


def main(pages: Sequence[str]) -> None:
    """Prints one line per page."""
    print(f"{'page':30}{'words':>8}{'sentences':>11}{'mean':>7}{'> 30':>8}{'you':>8}{'digits':>8}")
    for name in pages or PAGES:
        one = readability((ROOT / name).read_text(encoding="utf-8"))
        shares = "".join(f"{share:8.1%}" for share in (one.long, one.you, one.digits))
        print(f"{name:30}{one.words:8,}{one.sentences:11,}{one.mean:7.1f}{shares}")


if __name__ == "__main__":
    main(sys.argv[1:])
