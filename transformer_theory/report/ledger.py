"""The ledger: a page in Markdown with every claim, its source, what was measured, and what its control did.

``python -m transformer_theory.report.ledger RESULT ... PAGE`` writes it from the verifications of stored results, and keeps them beside the
page as JSON; without a RESULT it writes the page again from that JSON. Sphinx reads the page (MyST), and people as it stands. A claim is
named by its heading, so that its address ends in ``#theory-name``.
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
from ..core.theory import Theory
from .format import clock, number, several, sign

Document = dict[str, Any]  # {"provenance": of one result, "verifications": those of its claims, as JSON values}
CORRECTIONS = "errors_in_the_literature.md"
UNDECIDED = ("inconclusive", "not covered")
_COMMANDS = {  # a backslash and a sign between dollars, where some readers of Markdown take the backslash away
    r"\|": r"\Vert",
    r"\,": r"\thinspace",
    r"\;": r"\thickspace",
    r"\!": r"\negthinspace",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
}


def document(result: Result) -> Document:
    """The verifications of a result with its provenance, as JSON values."""
    return {"provenance": result.provenance, "verifications": [one.to_json() for one in result.verifications]}


def ledger(documents: Sequence[Document], theories: Iterable[Theory]) -> str:
    """The whole page.

    Args:
        documents: of one or several results (:func:`document`), in which each claim was verified once.
        theories: give the order and the headings; a claim of theirs without verification is listed as not verified.
    Raises:
        ValueError: a claim was verified in several documents.
    """
    records = tuple(theories)
    verified = [Verification.from_json(stored) for one in documents for stored in one["verifications"]]
    if twice := sorted(id for id, count in Counter(one.id for one in verified).items() if count > 1):
        raise ValueError(f"each claim must be verified in one result, got several for {', '.join(twice)}; leave one out")
    seeds = _span(len(one.seeds) for one in verified)
    parts = [f"# Claims\n\n{_made(documents, seeds)}\n\n{_guide(seeds)}", "## Overview\n\n" + _overview(records, verified)]
    for theory in records:
        own = [one for one in verified if one.theory == theory.name]
        missing = [claim.id for claim in theory.claims if claim.id not in {one.id for one in own}]
        parts.append(f"## {theory.title}\n\n*{theory.question}*\n\n{_table(own)}")
        parts += [_section(one) for one in own]
        parts += [f"### {id}\n\n- **Verdict:** not verified yet." for id in missing]
    return "\n\n".join(parts) + "\n"


def _span(numbers: Iterable[int]) -> str:
    """A number, or the least and the most."""
    found = sorted(set(numbers) or {0})
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _section(one: Verification) -> str:
    """Statement, source, assumptions, correction, verdict, values and control of one claim."""
    assumptions = "\n".join(f"  - {_prose(text)}" for text in one.assumptions)
    lines = [f"- **Source:** {_source(one)}", f"- **Assumes:**\n{assumptions}"]
    if one.corrects:
        lines.append(f"- **Corrects:** {_prose(one.corrects)} See [corrections]({CORRECTIONS}#{one.theory}).")
    values = f"{number(one.worst.value)} on the worst seed, {number(one.median)} in the median; threshold: {_threshold(one)}"
    lines.append(f"- **Verdict:** {_verdict(one)}.")
    lines.append(f"- **Measured:** {_prose(one.measures)}: {values}.")
    control = _prose(one.control_description).strip().rstrip(".")
    lines.append(f"- **Control, which must fail:** {control[:1].upper()}{control[1:]}. {_control(one)}")
    return f"### {one.id}\n\n{_prose(one.statement)}\n\n" + "\n".join(lines)


def _verdict(one: Verification) -> str:
    if one.verdict in UNDECIDED:
        return f"{one.verdict} on all {len(one.seeds)} seeds"
    low, high = one.interval
    undecided = len(one.seeds) - one.decided
    rest = f"; {several(undecided, 'seed')} {'was' if undecided == 1 else 'were'} not decided" if undecided else ""
    violated = "violated; " if one.verdict == "violated" else ""
    return f"{violated}consistent on {one.consistent} of {one.decided} seeds, 95 % interval [{number(low)}, {number(high)}]{rest}"


def _control(one: Verification) -> str:
    """What the control did, and its value that comes nearest to passing."""
    nearest = f"nearest to the threshold: {number(one.worst_control.value)}"
    return {
        "fails": f"It fails on every seed ({nearest}).",
        "passes": f"**It passes on some seed, so the check has no power** ({nearest}).",
        "inconclusive": f"**It is inconclusive on some seed, so the power of the check is unknown** ({nearest}).",
    }[one.control]


def _made(documents: Iterable[Document], seeds: str) -> str:
    """Where the numbers come from: a line per verification."""
    lines = []
    for one in documents:
        made, count = one["provenance"], len(one["verifications"])
        versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("python", "torch", "numpy", "scipy"))
        commit = f" at commit {made['commit'][:10]}{' with changes' if made.get('dirty') else ''}" if "commit" in made else ""
        workers = made.get("workers") or 1
        lines.append(
            f"- {several(count, 'claim')} by `{made['command']}`: {made['date'][:10]}, {made['machine']}, "
            f"{workers} process{'es' if workers > 1 else ''}, {clock(made['seconds'])}; version {made['versions']['transformer-theory']}"
            f"{commit}; {versions}."
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
consistent with the instance if the number lies on the right side of the **threshold**. The interval is that of Clopper and Pearson
{{cite:p}}`clopper1934use` for the share of seeds on which the claim is consistent. It says how much {seeds} seeds leave open, and nothing
about instances of another size or kind.

A number on the right side proves nothing: theorems speak of limits and of all instances, a check of finitely many steps and of some. A
number on the other side refutes.

- *consistent*: on every seed that was decided; *violated*: the assumptions hold, and on some seed the number lies on the other side;
- *inconclusive*: not finite, or the iteration behind it did not converge; *not covered*: the instance does not meet the assumptions. Both
  are *undecided*;
- the **control** is the same check with one assumption removed or its target replaced. It must fail on every seed: a check that cannot fail
  has no power.
- **Corrects** says where a printed statement, a figure or a released number had to be corrected: [all corrections]({CORRECTIONS}).

To cite a claim, cite its source and this library: `transformer-theory cite NAME` prints both. To check it again, for a few seeds or many:
`transformer-theory verify NAME --seeds {seeds.split()[-1]}`. The address of a claim is that of this page with its name, in which hyphens
replace other signs: `claims.html#attention-svm-global-direction`."""


def _overview(theories: Sequence[Theory], verified: Sequence[Verification]) -> str:
    """A line per theory, and one for all."""
    names = {theory.name for theory in theories}
    lines = [
        [f"[{theory.title}](#{_slug(theory.title)})", *_counts(len(theory.claims), [one for one in verified if one.theory == theory.name])]
        for theory in theories
    ]
    total = _counts(sum(len(theory.claims) for theory in theories), [one for one in verified if one.theory in names])
    heads = ["theory", "claims", "consistent", "violated", "undecided", "controls fail", "corrected"]
    return _markdown(heads, [*lines, ["all", *total]])


def _counts(claims: int, own: Sequence[Verification]) -> list[str]:
    verdicts = [sum(one.verdict in names for one in own) for names in (("consistent",), ("violated",), UNDECIDED)]
    return [str(count) for count in (claims, *verdicts, sum(one.control == "fails" for one in own), sum(bool(one.corrects) for one in own))]


def _table(own: Sequence[Verification]) -> str:
    """A line per claim: where it is, and its numbers."""
    lines = []
    for one in own:
        control = number(one.worst_control.value) if one.control == "fails" else f"**{one.control}**"
        verdict = f"{one.verdict}\N{NO-BREAK SPACE}{one.consistent}/{len(one.seeds)}"
        name = f"[{one.id.partition('/')[2]}](#{_slug(one.id)})"
        lines.append([name, verdict, number(one.worst.value), _threshold(one), control, "yes" if one.corrects else ""])
    return _markdown(["claim", "verdict", "worst seed", "threshold", "control, nearest", "corrects"], lines)


def _threshold(one: Verification) -> str:
    """The threshold of the worst seed in as few digits as it has."""
    digits = re.sub(r"(\.\d*?)0+(?!\d)", r"\1", number(one.worst.threshold)).replace(".·", "·")
    return f"{sign(one.worst.op)}\N{NO-BREAK SPACE}{digits.rstrip('.').removeprefix('1·')}"


def _markdown(heads: list[str], lines: Sequence[list[str]]) -> str:
    """A table; a column whose first cell is a number is set to the right."""
    sides = ["---:" if re.match(r"−?\d", cell) else "---" for cell in (lines or [heads])[0]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, sides, *lines))


def _source(one: Verification) -> str:
    source = one.source
    place = f", {source.locator}" if source.locator else ""
    shown = source.url.removeprefix("https://").removeprefix("arxiv.org/abs/")
    link = f" ([{'arXiv:' if 'arxiv.org' in source.url else ''}{shown}]({source.url}))" if source.url else ""
    return f"{{cite:t}}`{source.key}`{place}{link}"


def _prose(text: str) -> str:
    """Text with LaTeX between dollars, in commands that Markdown leaves alone."""
    parts = text.split("$")
    return "$".join(_formula(part) if i % 2 else re.sub(r"([\\*<>\[\]])", r"\\\1", part) for i, part in enumerate(parts))


def _formula(text: str) -> str:
    return re.sub(r"\\[|,;!{}](?=(.?))", lambda found: _COMMANDS[found[0]] + (" " if found[1].isalpha() else ""), text).strip()


def _slug(heading: str) -> str:
    """The anchor that readers of Markdown give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main(arguments: Sequence[str]) -> int:
    """Writes the page and the JSON beside it; whatever raises an error becomes one line, and 2 is returned."""
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
        texts = {stored: json.dumps(documents, indent=1, ensure_ascii=False) + "\n", page: ledger(documents, list_theories())}
        write_together({path: text.encode() for path, text in texts.items()})
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
