"""The ledger: a page in Markdown that says of every claim what is stated, by whom, what was measured, and what its control did.

``python -m transformer_theory.report.ledger RESULT ... PAGE`` writes it from stored verifications; ``make ledger`` verifies first. The
numbers are kept beside it as JSON, a list of documents, so a claim can be verified again alone, and words can change without any. Sphinx
reads the page (MyST), and people as it stands. A claim is named by its heading, so that its address ends in ``#room-name``.

Source: none, this is machinery.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core.claims import Claim
from ..core.files import write_together
from ..core.result import Result
from ..core.theory import Theory
from ..core.verification import Summary, document, reworded
from .wording import clock, formulas, number

Document = dict[str, Any]  # as :func:`~transformer_theory.core.verification.document` makes it
CORRECTIONS = "errors_in_the_literature.md"
UNDECIDED = ("inconclusive", "outside assumptions")
_BARE = {  # what a backslash and a sign mean in LaTeX; between dollars some readers of Markdown take the backslash away
    r"\|": r"\Vert",
    r"\,": r"\thinspace",
    r"\;": r"\thickspace",
    r"\!": r"\negthinspace",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
}


def merged(documents: Iterable[Document], claims: Iterable[Claim]) -> list[Document]:
    """The documents with each claim in the last one only that holds it, in the words of today; without claims that are no more.

    So a claim can be verified again without the others, and every number stays beside the provenance it has.
    """
    known, given = {claim.id: claim for claim in claims}, list(documents)
    last = {told["id"]: place for place, one in enumerate(given) for told in one["claims"]}
    kept = []
    for place, one in enumerate(given):
        if own := [reworded(told, known[told["id"]]) for told in one["claims"] if told["id"] in known and last[told["id"]] == place]:
            kept.append({**one, "claims": own})
    return kept


def ledger(documents: Sequence[Document], theories: Iterable[Theory]) -> str:
    """The whole page.

    Args:
        documents: verifications (:func:`~transformer_theory.core.verification.document`), :func:`merged`.
        theories: the records whose claims are shown; a claim without a verification is said to have none.
    """
    records = tuple(theories)
    found = {told["id"]: Summary.of(told) for one in documents for told in one["claims"]}
    head = f"# Claims\n\n{_made(documents, _seeds(found.values()))}\n\n{_guide(_seeds(found.values()))}"
    parts = [head, "## Overview\n\n" + _overview(records, found)]
    for theory in records:
        parts.append(f"## {theory.title}\n\n*{theory.question}*\n\n{_table(theory.claims, found)}")
        parts += [f"{words(claim)}\n{measured(claim, found.get(claim.id))}" for claim in theory.claims]
    return "\n\n".join(parts) + "\n"


def _seeds(found: Iterable[Summary]) -> str:
    """How many seeds each claim was checked on: a number, or the least and the most."""
    numbers = sorted({one.seeds for one in found} or {0})
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def words(claim: Claim) -> str:
    """What does not depend on a measurement: name, statement, source, assumptions and correction."""
    assumed = "\n".join(f"  - {_prose(text)}" for text in claim.assumptions)
    lines = [f"- **Source:** {_source(claim)}", f"- **Assumes:**\n{assumed}"]
    if claim.corrects:
        room = claim.id.split("/")[0]
        lines.append(f"- **Corrects:** {_prose(claim.corrects)} See [corrections]({CORRECTIONS}#{room}).")
    return f"### {claim.id}\n\n{_prose(claim.statement)}\n\n" + "\n".join(lines)


def control_words(claim: Claim) -> str:
    """What the control changes, as a sentence."""
    text = _prose(claim.control_says).strip()
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def measured(claim: Claim, found: Summary | None) -> str:
    """Verdict, measurement and control of one claim."""
    control = f"- **Control, which must fail:** {control_words(claim)}"
    if found is None:
        return f"- **Verdict:** not verified yet.\n{control}"
    low, high = found.interval
    rest = found.seeds - found.decided
    undecided = f"; {rest} seed{'s were' if rest > 1 else ' was'} not decided" if rest else ""
    verdict = f"{found.verdict} on {found.consistent} of {found.decided} seeds, 95 % interval [{number(low)}, {number(high)}]{undecided}"
    if found.verdict in UNDECIDED:
        verdict = f"{found.verdict} on all {found.seeds} seeds"
    elif found.verdict == "violated":
        verdict = f"violated; consistent on {verdict.removeprefix('violated on ')}"
    values = f"{number(found.worst)} on the worst seed, {number(found.median)} in the median; line: {_line(found)}"
    return f"- **Verdict:** {verdict}.\n- **Measured:** {values}.\n{control} {_did(found)}"


def _did(found: Summary) -> str:
    """What the control did, and its number that comes nearest to passing."""
    nearest = f"nearest to the line: {number(found.control_value)}"
    match found.control:
        case "fails":
            return f"It fails on every seed ({nearest})."
        case "passes":
            return f"**It passes on some seed, so the check has no power** ({nearest})."
        case _:
            return f"**It is inconclusive on some seed, so the power of the check is unknown** ({nearest})."


def _made(documents: Iterable[Document], seeds: str) -> str:
    """Where the numbers come from: a line for each verification."""
    lines = []
    for told in documents:
        made, count = told["provenance"], len(told["claims"])
        versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("python", "torch", "numpy", "scipy"))
        commit = f" at commit {made['commit'][:10]}{' with changes' if made.get('dirty') else ''}" if "commit" in made else ""
        processes = f"{made['workers']} process{'es' if made['workers'] > 1 else ''}"
        lines.append(
            f"- {count} claim{'s' * (count > 1)} by `{made['command']}`: {made['date'][:10]}, {made['machine']}, {processes}, "
            f"{clock(made['seconds'])}; version {made['versions']['transformer-theory']}{commit}; {versions}."
        )
    return (
        f"Every claim of every theory in this library, checked on {seeds} seeds, each beside a control that must fail. `make ledger` "
        "writes this page from stored verifications; it is not edited by hand. The same for machines: [claims.json](claims.json).\n\n"
        + "\n".join(lines)
    )


def _guide(seeds: str) -> str:
    return f"""## How to read it

A **claim** is a statement of the literature, or one of ours where it says so, in the notation of this library ([notation](notation.md)).
Each of {seeds} **seeds** draws a random instance, or several, that meet the assumptions, and one number is **measured**. The claim is
consistent with what the seed drew if the number lies on the right side of the **line**. The interval is that of Clopper and Pearson
{{cite:p}}`clopper1934use` for the share of seeds on which the claim is consistent. It says how much {seeds} seeds leave open, and nothing
about instances of another size or kind.

A number on the right side proves nothing: theorems speak of limits and of all instances, a check of finitely many steps and of some. A
number on the other side refutes.

- *consistent*: on every seed that was decided; *violated*: the assumptions hold, and on some seed the number lies on the other side;
- *inconclusive*: not finite, or the iteration behind it has not converged; *outside assumptions*: what was drawn does not meet them. Both
  are *undecided*;
- the **control** is the same check with one assumption removed or its target replaced. It must fail on every seed: a check that cannot fail
  says nothing.
- **Corrects** says where a printed statement, a figure or a released number had to be corrected: [all corrections]({CORRECTIONS}).

To cite a claim, cite its source and this library: `transformer-theory cite NAME` prints both. To check it again, for a few seeds or many:
`transformer-theory verify NAME --seeds {seeds.split()[-1]}`. A claim's address is that of this page with its name behind, hyphens in the
place of other signs: `claims.html#attention-svm-global-direction`."""


def _overview(theories: Sequence[Theory], found: dict[str, Summary]) -> str:
    """A line a theory, and one for all."""
    lines = [[f"[{theory.title}](#{_slug(theory.title)})", *_counts(theory.claims, found)] for theory in theories]
    total = ["all", *_counts([claim for theory in theories for claim in theory.claims], found)]
    return _markdown(["theory", "claims", "consistent", "violated", "undecided", "controls fail", "corrected"], [*lines, total])


def _counts(claims: Sequence[Claim], found: dict[str, Summary]) -> list[str]:
    there = [found[claim.id] for claim in claims if claim.id in found]
    verdicts = [sum(one.verdict in names for one in there) for names in (("consistent",), ("violated",), UNDECIDED)]
    controls = sum(one.control == "fails" for one in there)
    return [str(count) for count in (len(claims), *verdicts, controls, sum(bool(claim.corrects) for claim in claims))]


def _table(claims: Sequence[Claim], found: dict[str, Summary]) -> str:
    """A line a claim: where it is, and its numbers."""
    lines = []
    for claim in claims:
        link, one = f"[{claim.id.split('/')[1]}](#{_slug(claim.id)})", found.get(claim.id)
        if one is None:
            lines.append([link, "not verified", *[""] * 4])
            continue
        control = number(one.control_value) if one.control == "fails" else f"**{one.control}**"
        corrected = "yes" if claim.corrects else ""
        verdict = f"{one.verdict}\N{NO-BREAK SPACE}{one.consistent}/{one.seeds}"
        lines.append([link, verdict, number(one.worst), _line(one), control, corrected])
    return _markdown(["claim", "verdict", "worst seed", "line", "control, nearest", "corrects"], lines)


def _line(found: Summary) -> str:
    """The line that decides, in as few digits as it has."""
    digits = re.sub(r"(\.\d*?)0+(?!\d)", r"\1", number(found.bound)).replace(".·", "·")
    return f"{'≤' if found.op == '<=' else '≥'}\N{NO-BREAK SPACE}{digits.rstrip('.').removeprefix('1·')}"


def _markdown(heads: list[str], lines: Iterable[list[str]]) -> str:
    """A table; where the first line has a number the column stands to the right."""
    lines = list(lines)
    sides = ["---:" if re.match(r"−?\d", cell) else "---" for cell in (lines or [heads])[0]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, sides, *lines))


def _source(claim: Claim) -> str:
    source = claim.source
    place = f", {source.locator}" if source.locator else ""
    shown = source.url.removeprefix("https://").removeprefix("arxiv.org/abs/")
    link = f" ([{'arXiv:' if 'arxiv.org' in source.url else ''}{shown}]({source.url}))" if source.url else ""
    return f"{{cite:t}}`{source.key}`{place}{link}"


def _prose(text: str) -> str:
    """Text with LaTeX between dollars, the plain mathematics in it as LaTeX too, in commands that Markdown leaves alone."""
    parts = formulas(text).split("$")
    return "$".join(_formula(part) if i % 2 else _plain(part) for i, part in enumerate(parts))


def _plain(text: str) -> str:
    return re.sub(r"([\\*<>\[\]])", r"\\\1", text)


def _formula(text: str) -> str:
    return re.sub(r"\\[|,;!{}](?=(.?))", lambda sign: _BARE[sign[0]] + (" " if sign[1].isalpha() else ""), text).strip()


def _slug(heading: str) -> str:
    """The anchor that readers of Markdown give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main(arguments: Sequence[str]) -> int:
    """Writes the page and what it is made from; an error that is raised on the way becomes one line, and 2 is returned."""
    from ..theories import THEORIES

    try:
        if not arguments:
            raise ValueError("the page must be named, got nothing; pass RESULT ... PAGE")
        *folders, page = map(Path, arguments)
        stored = page.with_suffix(".json")
        claims = [claim for theory in THEORIES for claim in theory.claims]
        before = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else []
        documents = merged([*before, *(document(Result.load(folder), claims) for folder in folders)], claims)
        texts = {stored: json.dumps(documents, indent=1, ensure_ascii=False) + "\n", page: ledger(documents, THEORIES)}
        write_together({path: text.encode() for path, text in texts.items()})
    except (ValueError, OSError) as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
