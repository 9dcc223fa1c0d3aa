"""The ledger: a Markdown page with every claim, its source, the measured values and the outcome of its
control.

``python -m transformer_theory.report.ledger RESULT ... PAGE`` writes the page from the verifications of
stored results and stores these as JSON in the same folder. Claims that no RESULT has verified keep the
verification of that JSON, so one theory can be verified again alone; claims that no theory has any more are
dropped. The page is valid for Sphinx (MyST) and for plain Markdown. Each claim has a heading, so that links
can refer to it as ``#theory-name``. If the folder holds ``mutants.json`` and ``random_mutants.json``, as
``make mutants`` writes them, the page has their scores, and that of ``random_mutants_fresh.json``.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.claims import MARGIN, Verification
from ..core.files import write_together
from ..core.format import counted, duration, number, portable_command, sentence_case, sign
from ..core.math_text import rendered_parts
from ..core.reading import read_json
from ..core.result import Result
from ..core.sources import Source, Status
from ..core.table import grouped
from ..core.theory import Theory
from .html import TEMPLATES

# JSON values: {"provenance": record of one result, "verifications": list with one record per claim}
Document = dict[str, Any]
CORRECTIONS = "errors_in_the_literature.md"
USUAL = (("converged", True), ("covered", True))  # values of nearly all seeds, omitted from the JSON
UNDECIDED = ("inconclusive", "not covered")
MUTANTS, RANDOM, FRESH = "mutants.json", "random_mutants.json", "random_mutants_fresh.json"
# who makes the statement, and what was read of it
STATUS: dict[Status, tuple[str, str]] = {
    "confirmed": ("**Stated in:**", "read in the full text"),
    "second-hand": ("**Stated in:**", "second-hand: from a text that cites it"),
    "not found": ("**Attributed to:**", "no full text could be read, so number and wording are unknown"),
    "own": ("**This library's own statement**, in the setting of", ""),
    "": ("**Source:**", ""),
}
# some Markdown renderers remove the backslash before punctuation, even in formulas: use the command with
# letters
_COMMANDS = {
    r"\|": r"\Vert",
    r"\,": r"\thinspace",
    r"\;": r"\thickspace",
    r"\!": r"\negthinspace",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
}


def document(result: Result) -> Document:
    """Returns the verifications of a result with its provenance, as JSON values.

    Further numbers of a seed (``detail``) are included only for the worst seed and for seeds that are not
    consistent; the stored result has them for all seeds.
    """
    record = result.provenance | {"command": portable_command(result.provenance)}
    return {
        "provenance": record,
        "verifications": [_compact(verification) for verification in result.verifications],
    }


def _compact(verification: Verification) -> dict[str, Any]:
    """Returns one verification without the details of ordinary seeds and without fields that have the value
    in :data:`USUAL`.
    """
    stored = verification.to_json()
    for record, evidence in zip(stored["seeds"], verification.evidence):
        ordinary = evidence is not verification.worst and evidence.verdict == "consistent"
        for name in ("evidence", "control"):
            values = record[name]
            if ordinary:
                values.pop("detail", None)
            record[name] = {
                key: value
                for key, value in values.items()
                if value not in ({}, "") and (key, value) not in USUAL
            }
    return stored


def ledger(
    documents: Sequence[Document],
    theories: Iterable[Theory],
    *,
    mutants: Document | None = None,
    random: Document | None = None,
    fresh: Document | None = None,
) -> str:
    """Returns the whole page.

    Args:
        documents: documents of one or several results (:func:`document`); each claim must be verified in at
            most one of them.
        theories: theories in the order of the page. They provide the headings; their claims without a
            verification are listed as such.
        mutants: record of the mutants that were written by hand; None leaves its section out.
        random: record of the mutants that were drawn by a program; None leaves its section out.
        fresh: record of another sample, run before tests of its kind were written; None leaves it out.
    Raises:
        ValueError: a claim was verified in several documents.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    records = tuple(theories)
    verified = [Verification.from_json(stored) for item in documents for stored in item["verifications"]]
    if repeated := sorted(id for id, count in Counter(item.id for item in verified).items() if count > 1):
        raise ValueError(
            f"each claim must be verified in one result, got several for {', '.join(repeated)}; leave one out"
        )
    done = {verification.id for verification in verified}
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"prose": _prose, "cite": _cite, "origin": _origin_of_statement}
    environment.filters |= {"table": _table, "number": number}
    environment.filters |= {"verdict": _verdict, "threshold": _threshold, "control": _control}
    return environment.get_template("ledger.md.j2").render(
        seeds=_span(len(verification.seeds) for verification in verified),
        origins=list(map(_origin, documents)),
        corrections=CORRECTIONS,
        overview=_overview(records, verified),
        margins={claim.id: claim.margin for theory in records for claim in theory.claims},
        factor=number(MARGIN),
        locators=_locators(records),
        mutants=mutants and _mutants(mutants, records),
        random=random and random_mutants(random, {theory.name: theory.title for theory in records}),
        fresh=fresh and other_sample(fresh),
        sections=[
            (
                theory,
                [item for item in verified if item.theory == theory.name],
                [claim.id for claim in theory.claims if claim.id not in done],
            )
            for theory in records
        ],
    )


def _span(numbers: Iterable[int]) -> str:
    """Formats a range: ``"5"`` if all numbers are 5, ``"3 to 5"`` if they range from 3 to 5."""
    distinct = sorted(set(numbers) or {0})
    return f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def _origin(document: Document) -> str:
    """Returns a list item with the command, date, machine and versions behind the numbers of one result."""
    record, count = document["provenance"], len(document["verifications"])
    versions = ", ".join(
        f"{name} {record['versions'][name]}" for name in ("python", "torch", "numpy", "scipy")
    )
    commit = (
        f" at commit {record['commit'][:10]}{' with changes' if record.get('dirty') else ''}"
        if "commit" in record
        else ""
    )
    workers = record.get("workers") or 1
    return (
        f"- {counted(count, 'claim')} by `{record['command']}`: {record['date'][:10]}, {record['machine']}, "
        f"{workers} process{'es' if workers > 1 else ''}, {duration(record['seconds'])}; version "
        f"{record['versions']['transformer-theory']}{commit}; {versions}."
    )


def _verdict(verification: Verification) -> str:
    """Describes a verdict with the counts of seeds and the interval of the consistent share."""
    if verification.verdict in UNDECIDED:
        return f"{verification.verdict} on all {len(verification.seeds)} seeds"
    low, high = verification.interval
    undecided = verification.undecided
    rest = (
        f"; {counted(undecided, 'seed')} {'was' if undecided == 1 else 'were'} not decided"
        if undecided
        else ""
    )
    violated = "violated; " if verification.verdict == "violated" else ""
    counts = f"{violated}consistent on {verification.consistent} of {verification.decided} seeds"
    return f"{counts}, 95 % interval [{number(low)}, {number(high)}]{rest}"


def _control(verification: Verification) -> str:
    """Describes the control: its change of the check, its outcome, and its value nearest to the threshold."""
    text = _prose(verification.control_description).strip().rstrip(".")
    nearest = f"nearest to the threshold: {number(verification.worst_control.value)}"
    outcome = {
        "fails": f"It fails on every seed ({nearest}).",
        "passes": f"**It passes on some seed, so the check has no power** ({nearest}).",
        "inconclusive": "**It is inconclusive on some seed, so the power of the check is unknown** "
        f"({nearest}).",
    }[verification.control]
    return f"{sentence_case(text)}. {outcome}"


def _overview(theories: Sequence[Theory], verified: Sequence[Verification]) -> str:
    """Returns a table of counts with one row per theory and one for the total."""
    heads = ["claims", "consistent", "violated", "undecided seeds", "controls fail", "corrected"]
    rows = []
    for theory in theories:
        counts = Counter({"claims": len(theory.claims)})
        for verification in verified:
            if verification.theory == theory.name:
                counts[verification.verdict] += 1
                counts["undecided seeds"] += verification.undecided
                counts["controls fail"] += verification.control == "fails"
                counts["corrected"] += verification.corrects_published
        rows.append((f"[{theory.title}](#{_slug(theory.title)})", counts))
    return _with_total(heads, rows, lambda counts: [str(counts[head]) for head in heads])


def _locators(theories: Sequence[Theory]) -> str:
    """Returns a table with the number of claims of each theory by the status of their source."""
    heads = [status for status in STATUS if status]
    rows = [(theory.title, Counter(claim.source.status for claim in theory.claims)) for theory in theories]
    return _with_total(heads, rows, lambda counts: [str(counts[head]) for head in heads])


def _with_total(
    heads: Sequence[str],
    rows: Sequence[tuple[str, Counter[str]]],
    cells: Callable[[Counter[str]], list[str]],
    first: str = "theory",
) -> str:
    """Returns a table with one row per theory, or another part, and one for the sum of all counts."""
    total = sum((counts for _, counts in rows), Counter[str]())
    return _markdown([first, *heads], [[name, *cells(counts)] for name, counts in [*rows, ("all", total)]])


def _mutants(record: Document, theories: Sequence[Theory]) -> dict[str, Any]:
    """Returns the parts of the section on mutants: scores by theory, mutants that were not detected, and the
    origin of the numbers.
    """
    heads = ["mutants", "equivalent", "detected", "undecided", "undetected", "score"]
    outcomes = grouped(record["mutants"], lambda one: one["theory"])
    rows = [
        (theory.title, Counter(one["outcome"] for one in outcomes.get(theory.name, ())))
        for theory in theories
    ]
    survivors = [one for one in record["mutants"] if one["outcome"] != "detected"]
    return {
        "table": _with_total(heads, rows, _score),
        "survivors": [
            f"{one['theory']}, {_prose(one['description'])}: "
            f"{one['outcome']}{': ' if one['by'] else ''}{_prose(one['by'])}"
            for one in survivors
        ],
        "origin": f"{' · '.join(record['made'])}; seeds {', '.join(map(str, record['seeds']))}; "
        f"{duration(record['seconds'])}",
    }


def random_mutants(record: Document, titles: Mapping[str, str], first: str = "theory") -> dict[str, Any]:
    """Returns the parts of a section on random mutants: "table" with the scores of the parts that were run,
    "survivors" that were not detected, those that are "equivalent", "seed", and "origin" of the numbers.

    Args:
        record: the stored outcomes.
        titles: title of each theory, or of another part of the library, by name.
        first: head of the column of titles.
    """
    heads = ["mutants", "equivalent", "by claims", "by tests", "undecided", "undetected", "score", "at first"]
    outcomes = grouped(record["mutants"], lambda one: one["theory"])
    counts = {
        name: Counter(one["outcome"] for one in mutants)
        + Counter("missed" for one in mutants if one.get("missed") and one["outcome"] in ("claims", "tests"))
        for name, mutants in outcomes.items()
    }
    rows = [(title, counts[name]) for name, title in titles.items() if name in counts]

    def lines(*names: str) -> list[str]:
        return [
            f"{_change(one)}{': ' if one['by'] else ''}{_prose(one['by'])}"
            + (f"; {one['left']} slower tests did not run" if one["left"] else "")
            for one in record["mutants"]
            if one["outcome"] in names
        ]

    return {
        "table": _with_total(heads, rows, _random_score, first),
        "survivors": lines("undecided", "undetected"),
        "equivalent": lines("equivalent"),
        "seed": record["seed"],
        "origin": f"{' · '.join(record['made'])}; seeds {', '.join(map(str, record['seeds']))}",
    }


def other_sample(record: Document) -> str:
    """Returns a sentence about a sample of random mutants that was run before tests were written against it.

    Args:
        record: the stored outcomes.
    """
    counts = Counter(one["outcome"] for one in record["mutants"])
    detected, total, equivalent = counts["claims"] + counts["tests"], counts.total(), counts["equivalent"]
    former = "".join(
        f" Of {one['mutants']} of a former sample (seed {one['seed']}) "
        f"{_share(one['detected'], one['mutants'])} were detected, before tests of their kind were written."
        for one in record.get("former", ())
    )
    return (
        f"Of {total} others (seed {record['seed']}), run before tests of their kind were written, claims "
        f"detect {counts['claims']} and tests {counts['tests']}: {_share(detected, total - equivalent)}"
        + (f", not counting equivalent ones ({equivalent})." if equivalent else ", equivalent ones included.")
        + former
    )


def _change(mutant: Document) -> str:
    """Returns the place of a random mutant and its old and new text."""
    file = mutant["file"].removeprefix("transformer_theory/").removeprefix("theories/")
    place = f"{file}, line {mutant['line']}"
    old, new = (_code(mutant[name]) for name in ("old", "new"))
    return f"{place}: {old} {f'becomes {new}' if new else 'left out'}, in {_code(mutant['text'])}"


def _code(text: str) -> str:
    """Returns a text on one line as code, "" if it is empty."""
    text = " ".join(text.split())
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def _random_score(counts: Counter[str]) -> list[str]:
    """Returns the numbers of one row of random mutants: the counts, the score, and the score at first."""
    names = ("equivalent", "claims", "tests", "undecided", "undetected")
    total, detected = sum(counts[name] for name in names), counts["claims"] + counts["tests"]
    shares = [_share(each, total - counts["equivalent"]) for each in (detected, detected - counts["missed"])]
    return [str(total), *(str(counts[name]) for name in names), *shares]


def _score(counts: Counter[str]) -> list[str]:
    """Returns the numbers of one row: all mutants, the outcomes, and the share of detected ones among those
    that are not equivalent.
    """
    names = ("equivalent", "detected", "undecided", "undetected")
    share = _share(counts["detected"], counts.total() - counts["equivalent"])
    return [str(counts.total()), *(str(counts[name]) for name in names), share]


def _share(detected: int, different: int) -> str:
    """Returns the share of detected mutants in percent."""
    return f"{100 * detected / different:.0f}\N{NO-BREAK SPACE}%" if different else "–"


def _table(claims: Sequence[Verification]) -> str:
    """Returns a table with one row per claim: a link to the claim, and its numbers."""
    lines = []
    for claim in claims:
        control = number(claim.worst_control.value) if claim.control == "fails" else f"**{claim.control}**"
        verdict = f"{claim.verdict}\N{NO-BREAK SPACE}{claim.consistent}/{len(claim.seeds)}"
        name = f"[{claim.id.partition('/')[2]}](#{_slug(claim.id)})"
        lines.append(
            [
                name,
                verdict,
                number(claim.worst.value),
                _threshold(claim),
                control,
                claim.source.status,
                "yes" if claim.corrects_published else "",
            ]
        )
    heads = ["claim", "verdict", "worst seed", "threshold", "control, nearest", "source", "corrects"]
    return _markdown(heads, lines)


def _threshold(verification: Verification) -> str:
    """Formats the threshold of the worst seed without trailing zeros: ``0.990 -> 0.99``, ``1.00·10⁻³ ->
    10⁻³``.
    """
    # Remove zeros at the end of the decimals, then a decimal point at the end, then a mantissa of 1 before a
    # power of ten.
    digits = re.sub(r"(\.\d*?)0+(?!\d)", r"\1", number(verification.worst.threshold)).replace(".·", "·")
    return f"{sign(verification.worst.op)}\N{NO-BREAK SPACE}{digits.rstrip('.').removeprefix('1·')}"


def _markdown(heads: list[str], lines: Sequence[list[str]]) -> str:
    """Formats a Markdown table; columns whose first cell is a number are right-aligned."""
    sides = ["---:" if re.match(r"−?\d", cell) else "---" for cell in (lines or [heads])[0]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, sides, *lines))


def _cite(source: Source) -> str:
    """Formats the citation for MyST, with the place in the source and a link."""
    place = f", {source.locator}" if source.locator else ""
    target = source.url.removeprefix("https://").removeprefix("arxiv.org/abs/")
    link = f" ([{'arXiv:' if 'arxiv.org' in source.url else ''}{target}]({source.url}))" if source.url else ""
    return f"{{cite:t}}`{source.key}`{place}{link}"


def _origin_of_statement(source: Source) -> str:
    """States who makes the statement, with the citation and what was read of it."""
    who, read = STATUS[source.status]
    return f"{who} {_cite(source)}{'; ' if read else ''}{read}"


def _prose(text: str) -> str:
    """Converts text to MyST. Its formulas contain only commands that Markdown does not change; plain text is
    escaped for Markdown.
    """
    return "".join(rendered_parts(text, _escape, "`{}`".format, _formula))


def _escape(text: str) -> str:
    return re.sub(r"([\\*<>\[\]$])", r"\\\1", text)


def _formula(latex: str) -> str:
    # A command with letters needs a space if a letter follows: \|x becomes \Vert x.
    letters = re.sub(
        r"\\[|,;!{}](?=(.?))", lambda match: _COMMANDS[match[0]] + (" " if match[1].isalpha() else ""), latex
    )
    return f"${letters.strip()}$"


def _slug(heading: str) -> str:
    """Returns the anchor that Markdown renderers assign to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def updated(stored: Sequence[Document], new: Sequence[Document], claims: Iterable[str]) -> list[Document]:
    """Returns the stored documents with the claims that the new ones do not have, then the new ones;
    documents without claims are left out.

    Args:
        stored, new: documents, see :func:`document`.
        claims: ids of all claims that exist; others are dropped.
    """
    kept = set(claims) - {claim["id"] for item in new for claim in item["verifications"]}
    old = [
        item | {"verifications": [claim for claim in item["verifications"] if claim["id"] in kept]}
        for item in stored
    ]
    return [item for item in old if item["verifications"]] + list(new)


def _lines(documents: Sequence[Document]) -> str:
    """Formats the documents as JSON with one claim per line, so that a diff shows which claims have
    changed.
    """
    parts = []
    for item in documents:
        claims = ",\n".join(
            json.dumps(claim, ensure_ascii=False, separators=(",", ":")) for claim in item["verifications"]
        )
        parts.append(
            f'{{"provenance": {json.dumps(item["provenance"], ensure_ascii=False)},\n"verifications": '
            f"[\n{claims}\n]}}"
        )
    return "[" + ",\n".join(parts) + "]\n"


def _stored(file: Path) -> Document | None:
    """Reads a JSON file; None if there is none."""
    return read_json(file) if file.exists() else None


def main(arguments: Sequence[str]) -> int:
    """Writes the page and the JSON, and returns the exit status: 0, or 2 after printing one line if an error
    is raised.
    """
    from ..theories import list_theories

    try:
        if not arguments:
            raise ValueError("the page must be named, got nothing; pass RESULT ... PAGE")
        *folders, page = map(Path, arguments)
        stored, theories = page.with_suffix(".json"), list_theories()
        if not folders and not stored.exists():
            raise ValueError(f"{stored} does not exist; name the results that the page is made from")
        before = read_json(stored) if stored.exists() else []
        claims = [claim.id for theory in theories for claim in theory.claims]
        documents = updated(before, [document(Result.load(folder)) for folder in folders], claims)
        mutants, random, fresh = (_stored(page.with_name(name)) for name in (MUTANTS, RANDOM, FRESH))
        text = ledger(documents, theories, mutants=mutants, random=random, fresh=fresh)
        texts = {stored: _lines(documents), page: text}
        write_together({path: text.encode() for path, text in texts.items()})
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
