"""The ledger: a Markdown page with every claim, its source, the measured values and the outcome of its control.

``python -m transformer_theory.report.ledger RESULT ... PAGE`` writes the page from the verifications of stored results and stores these as
JSON beside it; without a RESULT it writes the page again from that JSON. The page is valid for Sphinx (MyST) and for plain Markdown. Each
claim has a heading, so that it can be linked to as ``#theory-name``.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core.claims import Verification
from ..core.files import write_together
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from .format import duration, number, several, sign
from .formulas import spans
from .html import TEMPLATES

Document = dict[str, Any]  # {"provenance": of one result, "verifications": of its claims, as JSON values}
CORRECTIONS = "errors_in_the_literature.md"
USUAL = (("converged", True), ("covered", True))  # values of nearly all seeds, omitted from the JSON
UNDECIDED = ("inconclusive", "not covered")
_COMMANDS = {  # some Markdown renderers remove the backslash before punctuation, even in formulas: use the command with letters
    r"\|": r"\Vert",
    r"\,": r"\thinspace",
    r"\;": r"\thickspace",
    r"\!": r"\negthinspace",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
}


def document(result: Result) -> Document:
    """The verifications of a result with its provenance, as JSON values.

    Further numbers of a seed (``detail``) are included only for the worst seed and for seeds that are not consistent; the stored result has
    those of all seeds.
    """
    return {"provenance": result.provenance, "verifications": [_compact(one) for one in result.verifications]}


def _compact(verification: Verification) -> dict[str, Any]:
    """One verification without the details of ordinary seeds and without fields that have their usual value."""
    stored = verification.to_json()
    for record, evidence in zip(stored["seeds"], verification.evidence):
        ordinary = evidence is not verification.worst and evidence.verdict == "consistent"
        for name in ("evidence", "control"):
            values = record[name]
            if ordinary:
                values.pop("detail", None)
            record[name] = {key: value for key, value in values.items() if value not in ({}, "") and (key, value) not in USUAL}
    return stored


def ledger(documents: Sequence[Document], theories: Iterable[Theory]) -> str:
    """The whole page.

    Args:
        documents: of one or several results (:func:`document`), in which each claim was verified once.
        theories: determine the order and the headings; their claims without a verification are listed as not verified.
    Raises:
        ValueError: a claim was verified in several documents.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    records = tuple(theories)
    verified = [Verification.from_json(stored) for one in documents for stored in one["verifications"]]
    if twice := sorted(id for id, count in Counter(one.id for one in verified).items() if count > 1):
        raise ValueError(f"each claim must be verified in one result, got several for {', '.join(twice)}; leave one out")
    done = {one.id for one in verified}
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"prose": _prose, "cite": _cite, "table": _table, "number": number}
    environment.filters |= {"verdict": _verdict, "threshold": _threshold, "control": _control}
    return environment.get_template("ledger.md.j2").render(
        seeds=_span(len(one.seeds) for one in verified),
        origins=list(map(_origin, documents)),
        corrections=CORRECTIONS,
        overview=_overview(records, verified),
        sections=[
            (theory, [one for one in verified if one.theory == theory.name], [one.id for one in theory.claims if one.id not in done])
            for theory in records
        ],
    )


def _span(numbers: Iterable[int]) -> str:
    """``"5"`` if all numbers are 5, ``"3 to 5"`` if they range from 3 to 5."""
    distinct = sorted(set(numbers) or {0})
    return f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def _origin(document: Document) -> str:
    """A list item with the command, date, machine and versions behind the numbers of one result."""
    record, count = document["provenance"], len(document["verifications"])
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("python", "torch", "numpy", "scipy"))
    commit = f" at commit {record['commit'][:10]}{' with changes' if record.get('dirty') else ''}" if "commit" in record else ""
    workers = record.get("workers") or 1
    return (
        f"- {several(count, 'claim')} by `{record['command']}`: {record['date'][:10]}, {record['machine']}, "
        f"{workers} process{'es' if workers > 1 else ''}, {duration(record['seconds'])}; "
        f"version {record['versions']['transformer-theory']}{commit}; {versions}."
    )


def _verdict(one: Verification) -> str:
    """The verdict with the counts behind it and the interval of the share."""
    if one.verdict in UNDECIDED:
        return f"{one.verdict} on all {len(one.seeds)} seeds"
    low, high = one.interval
    undecided = len(one.seeds) - one.decided
    rest = f"; {several(undecided, 'seed')} {'was' if undecided == 1 else 'were'} not decided" if undecided else ""
    violated = "violated; " if one.verdict == "violated" else ""
    return f"{violated}consistent on {one.consistent} of {one.decided} seeds, 95 % interval [{number(low)}, {number(high)}]{rest}"


def _control(one: Verification) -> str:
    """What the control changes, what it did, and its value nearest to the threshold."""
    text, nearest = _prose(one.control_description).strip().rstrip("."), f"nearest to the threshold: {number(one.worst_control.value)}"
    outcome = {
        "fails": f"It fails on every seed ({nearest}).",
        "passes": f"**It passes on some seed, so the check has no power** ({nearest}).",
        "inconclusive": f"**It is inconclusive on some seed, so the power of the check is unknown** ({nearest}).",
    }[one.control]
    return f"{text[:1].upper()}{text[1:]}. {outcome}"


def _overview(theories: Sequence[Theory], verified: Sequence[Verification]) -> str:
    """A table of counts with one row per theory and one for the total."""
    heads = ["theory", "claims", "consistent", "violated", "undecided", "controls fail", "corrected"]
    lines, total = [], Counter[str]()
    for theory in theories:
        counts = Counter({"claims": len(theory.claims)})
        for one in (one for one in verified if one.theory == theory.name):
            counts["undecided" if one.verdict in UNDECIDED else one.verdict] += 1
            counts["controls fail"] += one.control == "fails"
            counts["corrected"] += bool(one.corrects)
        total += counts
        lines.append([f"[{theory.title}](#{_slug(theory.title)})", *(str(counts[head]) for head in heads[1:])])
    return _markdown(heads, [*lines, ["all", *(str(total[head]) for head in heads[1:])]])


def _table(claims: Sequence[Verification]) -> str:
    """A table with one row per claim: a link to it, and its numbers."""
    lines = []
    for one in claims:
        control = number(one.worst_control.value) if one.control == "fails" else f"**{one.control}**"
        verdict = f"{one.verdict}\N{NO-BREAK SPACE}{one.consistent}/{len(one.seeds)}"
        name = f"[{one.id.partition('/')[2]}](#{_slug(one.id)})"
        lines.append([name, verdict, number(one.worst.value), _threshold(one), control, "yes" if one.corrects else ""])
    return _markdown(["claim", "verdict", "worst seed", "threshold", "control, nearest", "corrects"], lines)


def _threshold(one: Verification) -> str:
    """The threshold of the worst seed without trailing zeros: ``0.990 -> 0.99``, ``1.00·10⁻³ -> 10⁻³``."""
    digits = re.sub(r"(\.\d*?)0+(?!\d)", r"\1", number(one.worst.threshold)).replace(".·", "·")
    return f"{sign(one.worst.op)}\N{NO-BREAK SPACE}{digits.rstrip('.').removeprefix('1·')}"


def _markdown(heads: list[str], lines: Sequence[list[str]]) -> str:
    """A Markdown table; columns whose first cell is a number are right-aligned."""
    sides = ["---:" if re.match(r"−?\d", cell) else "---" for cell in (lines or [heads])[0]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, sides, *lines))


def _cite(source: Source) -> str:
    """The citation for MyST, with the place in the source and a link."""
    place = f", {source.locator}" if source.locator else ""
    shown = source.url.removeprefix("https://").removeprefix("arxiv.org/abs/")
    link = f" ([{'arXiv:' if 'arxiv.org' in source.url else ''}{shown}]({source.url}))" if source.url else ""
    return f"{{cite:t}}`{source.key}`{place}{link}"


def _prose(text: str) -> str:
    """Text for MyST: formulas contain only commands that Markdown does not change; in plain text Markdown's special characters are
    escaped."""
    parts = []
    for kind, part in spans(text):
        if kind == "text":
            parts.append(re.sub(r"([\\*<>\[\]$])", r"\\\1", part))
        else:
            parts.append(f"`{part}`" if kind == "code" else f"${_formula(part)}$")
    return "".join(parts)


def _formula(latex: str) -> str:
    # A command with letters needs a space if a letter follows: \|x becomes \Vert x.
    return re.sub(r"\\[|,;!{}](?=(.?))", lambda found: _COMMANDS[found[0]] + (" " if found[1].isalpha() else ""), latex).strip()


def _slug(heading: str) -> str:
    """The anchor that Markdown renderers assign to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _lines(documents: Sequence[Document]) -> str:
    """The documents as JSON with one claim per line, so that a diff shows which claims have changed."""
    parts = []
    for one in documents:
        claims = ",\n".join(json.dumps(claim, ensure_ascii=False, separators=(",", ":")) for claim in one["verifications"])
        parts.append(f'{{"provenance": {json.dumps(one["provenance"], ensure_ascii=False)},\n"verifications": [\n{claims}\n]}}')
    return "[" + ",\n".join(parts) + "]\n"


def main(arguments: Sequence[str]) -> int:
    """Writes the page and the JSON beside it. Prints one line and returns 2 if anything raises an error."""
    from ..theories import list_theories

    try:
        if not arguments:
            raise ValueError("the page must be named, got nothing; pass RESULT ... PAGE")
        *folders, page = map(Path, arguments)
        stored = page.with_suffix(".json")
        if folders:
            documents = [document(Result.load(folder)) for folder in folders]
        elif stored.exists():
            documents = json.loads(stored.read_text(encoding="utf-8"))
        else:
            raise ValueError(f"{stored} does not exist; name the results that the page is made from")
        texts = {stored: _lines(documents), page: ledger(documents, list_theories())}
        write_together({path: text.encode() for path, text in texts.items()})
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
