"""Which numbers of the pages stand in no stored source? ``python -m benchmarks.untested_numbers [PAGE ...]``
prints one line for each page, and below it the numbers that were not found, with their lines.

A number is found if a stored number, rounded to the precision printed, equals it, whatever its sign. The
sources of the pages of a theory are its rows in the stored results (docs/reach, docs/atlas,
docs/interventions, docs/demo.json), with their means over seeds, its claims in docs/claims.json, and the
numbers in its code.
Those of all other pages are all stored results and all code, and the generated pages.

Not found is not wrong: the number may come from a paper, a measurement of other hardware or a derivation.
And found is not tested: short numbers match by chance. The column "by chance" is the share that would be
found if each number were larger by 3 to 9 of its last digits, so it is what a page of wrong numbers has.

Left out are headings, code, formulas, links, citations, dates, years, versions, and numbers of figures,
theorems and the like. Pages that a script writes (:data:`GENERATED`) are left out; tests compare them.
"""

import bisect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.result import Result
from transformer_theory.theories import list_theories

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = ("reach", "atlas", "interventions")  # folders of stored results
GENERATED = (
    "attention_svm_figures.md",
    "joma_figures.md",
    "scan_snap_figures.md",
    "atlas_findings.md",
    "atlas_networks.md",
    "atlas_numbers.md",
    "atlas_table.md",
    "attack_rows.md",
    "calibration.md",
    "claims.md",
    "frame_mutants.md",
    "intervention_tables.md",
    "length_sinks.md",
    "peers.md",
    "reach_findings.md",
    "reach_rungs.md",
)
PLACE = r"(?:Figs?|Tables?|Sections?|Theorems?|Lemmas?|Eqs?|Propositions?|Appendix|Corollary|Assumptions?|Ch)"
MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
LEFT_OUT = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)`*[ \t]*$"  # code blocks and directives
    r"|<!--.*?-->"
    r"|\$\$.*?\$\$"
    r"|(?<!\\)\$[^$]+\$"
    r"|`[^`]+`"
    r"|!\[[^\]]*\]\([^)]*\)"
    r"|(?<=\])\([^)\s]*\)"  # where a link leads
    r"|<[^<>\n]+>|https?://\S+|arXiv:\S+"
    r"|^[ \t]*#[^\n]*$"
    r"|^[ \t]*\d+\.(?=[ \t])"  # of a list
    rf"|\b{PLACE}\.?\s+\(?[A-Z]?\d[\d.]*\)?(?:(?:,| and| to|–)\s*\(?[A-Z]?\d[\d.]*\)?)*"
    rf"|\b(?:\d{{1,2}}\s+(?:and \d{{1,2}}\s+)?)?(?:{MONTH})\s+\d{{4}}|\b\d{{4}}-\d\d-\d\d\b"
    r"|(?<![\d.,])(?:19|20)\d\d(?![\d.,]\d|\d)"  # years
    r"|\b[vV]?\d+\.\d+\.\d+\b",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(
    r"(?<![\w.,/^_])(?<![A-Za-z]-)"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:e(?P<power>[-−]?\d{1,2}))?"
    r"(?![\w/^]|-[A-Za-z]|,\d|\.\d)"
    r"(?P<unit>\s*%|\s+million|(?=(?:(?:,| to| and| or|–)\s+[\d.]+)+\s*%))?"  # 16 to 26 %
)
UNITS = {"%": 0.01, "million": 1e6, "": 1.0}
IN_PERCENT = re.compile(r"%\s*[\[(][^\])%]*$")  # what stands before the bounds of 16 % [15, 17]
LITERAL = re.compile(r"(?<![\w.])(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:e-?\d+)?(?![\w.])")


@dataclass(frozen=True)
class Stated:
    """A number on a page: as it is printed, its size, half a unit of its last digit, and its line."""

    text: str
    value: float
    half: float
    line: int


def stated(page: str) -> Iterator[Stated]:
    """Yields the numbers that the prose and the tables of a page of Markdown state."""
    text = LEFT_OUT.sub(lambda found: "\n" * found[0].count("\n") or " ", page)
    for found in NUMBER.finditer(text):
        digits, unit = found["digits"].replace(",", ""), found["unit"]
        before = text[max(0, found.start() - 60) : found.start()]
        if (unit == "" and digits[0] != ".") or (unit is None and IN_PERCENT.search(before)):
            unit = "%"
        scale = UNITS[(unit or "").strip()] * 10.0 ** int((found["power"] or "0").replace("−", "-"))
        decimals = len(digits.partition(".")[2])
        line = text.count("\n", 0, found.start()) + 1
        yield Stated(found[0].strip(), float(digits) * scale, 0.5 * 10.0**-decimals * scale, line)


def pages() -> list[str]:
    """The pages that are written by hand."""
    found = [page for page in DOCS.rglob("*.md") if not {"_build", "auto_examples"} & set(page.parts)]
    names = sorted(str(page.relative_to(ROOT)) for page in found if page.name not in GENERATED)
    return ["README.md", *names]


def theory_of(page: str) -> str | None:
    """The theory of a page below docs/theories, of which one theory may have several."""
    stem = Path(page).stem
    names = [each.name for each in list_theories() if stem == each.name or stem.startswith(f"{each.name}_")]
    return max(names, key=len) if "theories/" in page and names else None


def missing(numbers: Sequence[Stated], sources: Sequence[float], *, shift: int = 0) -> list[Stated]:
    """Returns the numbers without a source.

    Args:
        numbers: the numbers of a page.
        sources: stored sizes in ascending order.
        shift: by how many units of the last digit each number is made larger.
    """
    found = []
    for number in numbers:
        value, slack = number.value + 2 * shift * number.half, number.half * (1 + 1e-9)
        place = bisect.bisect_left(sources, value - slack)
        if place == len(sources) or sources[place] > value + slack:
            found.append(number)
    return found


@cache
def sources(theory: str | None) -> tuple[float, ...]:
    """The stored sizes of a theory, or of all theories and the generated pages, in ascending order."""
    found = [abs(number) for number in [*_stored(theory), *_code(theory)] if np.isfinite(number)]
    if theory is None:
        for page in (page for name in GENERATED for page in DOCS.rglob(name)):
            found += [each.value for each in stated(page.read_text(encoding="utf-8"))]
    return tuple(sorted(set(found)))


def _stored(theory: str | None) -> Iterator[float]:
    for row in _rows():
        if theory in (None, row["theory"]):
            yield from sizes({name: each for name, each in row.items() if name != "source"})
    for part in json.loads((DOCS / "claims.json").read_text(encoding="utf-8")):
        for claim in part["verifications"]:
            if theory is None or claim["id"].startswith(f"{theory}/"):
                yield from sizes(claim)
    for row in json.loads((DOCS / "demo.json").read_text(encoding="utf-8"))["rows"]:
        if theory in (None, row["theory"]):
            yield from sizes(row)
    if theory is None:
        for path in sorted(DOCS.glob("*.json")):
            yield from sizes(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(DOCS.rglob("*_curve.jsonl")):
            yield from (
                number for line in path.read_text().splitlines() for number in sizes(json.loads(line))
            )


@cache
def _rows() -> list[dict[str, Any]]:
    """The rows of the stored results, by network or by seed, and their means over seeds."""
    rows = []
    for folder in RESULTS:
        for path in sorted((DOCS / folder).rglob("result.json")):
            result = Result.load(path.parent)
            rows += [row.to_json() for row in result.table]
            rows += [entry.row.to_json() for entry in aggregate(result).entries]
    return rows


def sizes(stored: Any) -> Iterator[float]:
    """The numbers of something stored; of the draws of a null their number, median and range."""
    if isinstance(stored, dict):
        for name, each in stored.items():
            if name == "draws" and isinstance(each, list) and each:
                yield from (len(each), float(np.median(each)), min(each), max(each))
            elif name != "provenance":
                yield from sizes(each)
    elif isinstance(stored, list):
        for each in stored:
            yield from sizes(each)
    elif isinstance(stored, str):
        yield from (each.value for each in stated(stored))
    elif isinstance(stored, int | float) and not isinstance(stored, bool):
        yield float(stored)


def _code(theory: str | None) -> Iterator[float]:
    package = ROOT / "transformer_theory"
    folders = [package / "theories" / theory] if theory else [package, ROOT / "benchmarks", ROOT / "examples"]
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for found in LITERAL.findall(path.read_text(encoding="utf-8")):
                yield float(found)


def main(names: Sequence[str]) -> None:
    """Prints the numbers of the pages that were not found in a stored source."""
    print(f"{'page':48}{'numbers':>9}{'not found':>11}{'by chance':>11}")
    for name in names or pages():
        known = sources(theory_of(name))
        numbers = list(stated((ROOT / name).read_text(encoding="utf-8")))
        lost = missing(numbers, known)
        shifted = [len(numbers) - len(missing(numbers, known, shift=shift)) for shift in range(3, 10)]
        chance = f"{np.mean(shifted) / len(numbers):11.0%}" if numbers else ""
        print(f"{name:48}{len(numbers):9,}{len(lost):11,}{chance}")
        for line, group in groupby(lost, key=lambda number: number.line):
            print(f"    {line:5}: {'; '.join(number.text for number in group)}")


if __name__ == "__main__":
    main(sys.argv[1:])
