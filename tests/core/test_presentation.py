"""What an interpreter and a notebook show: a line or a small table, escaped."""

import importlib.util
from dataclasses import replace
from html.parser import HTMLParser

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory.core.claims import Claim, but
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.plotting import axes
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Table

HOSTILE = "<script>alert(1)</script> & <b>$x < y$</b>"
CLAIM = Claim(
    id="theory/claim",
    statement=HOSTILE,
    measures="a number",
    op="<=",
    threshold=0.1,
    source=Source("tian2023scan", "Thm. <2>"),
    assumptions=("none",),
    function=lambda generator: 0.02,
    change=but(HOSTILE, lambda generator: 1.0),
)
ROWS = [
    Measurement("theory", "on data", f"{HOSTILE} {i}", i / 7, nulls=(Null("k", (1.0,) * 99),), layer=i)
    for i in range(40)
]
TABLE = Table([*ROWS, Measurement("theory", "on data", "missing", None, reason=HOSTILE)])
RESULT = Result(
    "compare", {"data": HOSTILE, "seeds": list(range(99))}, TABLE, {"a": None}, (CLAIM.verify(range(2)),)
)


class Tags(HTMLParser):
    """The tags of a fragment, which must be balanced."""

    def __init__(self, fragment: str):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(fragment)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def shown(value) -> dict[str, str]:
    """What a notebook shows: by IPython's formatter if it is installed, otherwise by the methods that it
    calls.
    """
    if importlib.util.find_spec("IPython") is not None:
        from IPython.core.formatters import DisplayFormatter

        return DisplayFormatter().format(value)[0]
    methods = {"text/plain": "__repr__", "text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
    return {
        mime: text
        for mime, name in methods.items()
        if hasattr(value, name) and (text := getattr(value, name)()) is not None
    }


OBJECTS = [
    CLAIM,
    CLAIM.verify(range(2)),
    TABLE,
    RESULT,
    *tt.list_theories(),
    replace(RESULT, table=Table()),
    Table(),
    Result("empty"),
]


@each_case("value", OBJECTS, ids=lambda value: repr(value)[:30])
def test_a_notebook_shows_a_few_lines_of_escaped_html(value):
    bundle = shown(value)
    assert "\n" not in bundle["text/plain"]
    assert len(bundle["text/plain"]) < 160
    tags = Tags(bundle["text/html"])
    assert tags.seen <= {"p", "br", "strong", "em", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert bundle["text/html"].count("<tr>") <= 11
    assert len(bundle["text/html"]) < 6000


def test_the_html_holds_what_matters():
    assert "measures: a number; threshold: ≤\N{NO-BREAK SPACE}0.100" in CLAIM._repr_html_()
    html = CLAIM.verify(range(2))._repr_html_()
    for text in (
        "theory/claim",
        "2 of 2",
        "0.0200",
        "≤\N{NO-BREAK SPACE}0.100",
        "control fails as it must",
        "Tian et al. (2023), Thm. &lt;2&gt;",
    ):
        assert text in html
    html = RESULT._repr_html_()
    for text in (
        "41 measurements, 1 array, 1 claim",
        "plot()",
        "report()",
        "10 of 41 measurements",
        "1 (99 draws)",
        "0.143",
    ):
        assert text in html
    assert "prediction" not in html  # no row has one
    assert "<td" in replace(RESULT, table=Table())._repr_html_()  # the claims, if there is nothing else
    predicting = Table([ROWS[0], replace(ROWS[1], predicted=0.25), replace(ROWS[2], side=">=")])
    html = replace(RESULT, table=predicting)._repr_html_()
    for text in (">prediction<", 'left"></td>', ">→\u00a00.250<", ">≥\u00a0null<"):
        assert text in html


def test_reprs_show_what_is_set():
    assert repr(CLAIM) == "Claim('theory/claim', measures='a number', ≤ 0.100)"
    assert repr(CLAIM.verify(range(2))).startswith("Verification(theory/claim: consistent (2/2 seeds, ")
    assert repr(Measurement("t", "on data", "q", 1.0, layer=2)) == (
        "Measurement(theory='t', kind='on data', quantity='q', value=1.0, layer=2, scope='these data')"
    )
    assert repr(Null("permuted labels", (1.0, 2.0, 4.0))) == "Null('permuted labels', 3 draws, median 2)"
    assert repr(tt.crate.THEORY).startswith(f"Theory('crate', {len(tt.crate.THEORY.claims)} claims, ")


def test_a_figure_shows_itself():
    figure, (ax,) = axes()
    ax.plot([0, 1], [0, 1])
    assert shown(figure)["image/svg+xml"].startswith("<svg")
