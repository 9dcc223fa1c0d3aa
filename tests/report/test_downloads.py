"""What the page saves in a browser: figures as SVG and PNG in light colours, tables as CSV; and its figures
on a dark page.
"""

import csv
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.report.markup import well_formed
from tests.report.synthetic import SVM, THEORIES, on_data, small
from transformer_theory.core.plotting import axes, line
from transformer_theory.report import page as page_of

CRATE = THEORIES[3]
BUTTON = (
    "return [...document.querySelectorAll('.save button')].find((one) => "
    "one.closest(arguments[0])?.matches(arguments[0])"
)
BUTTON += " && one.textContent === arguments[1]).click()"


def plot(result):
    """A curve with ticks and words on a transparent figure; all glyphs of the page's second figure are
    defined in the first.
    """
    figure, (ax,) = axes(height=1.5)
    figure.patch.set_visible(False)
    line(ax, [0, 1], [0, 1], name="crate", label="rise")
    ax.set_title("Rise")
    return figure


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    theories = [replace(CRATE, on_data=replace(CRATE.on_data, plot=plot))]
    headline = {
        "theory": "crate",
        "quantity": CRATE.on_data.headline,
        "side": ">=",
        "threshold": 0.4,
        "source": SVM,
    }
    rows = [
        on_data(0.5, **headline, verdict="consistent"),
        on_data(0.5, **headline, model="ViT"),
        on_data(-1797.0, theory="crate", quantity=r'norm "two", $\lVert X \rVert$', unit="nats"),
        on_data(1.2e-13, theory="crate", quantity="drift", note="the first note"),
        on_data(0.6579, theory="crate", quantity="share", unit="share"),
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(small(rows), theories=theories), encoding="utf-8")
    return path


@pytest.fixture
def saved(browser, page, tmp_path):
    """A function that presses a button within a selector and returns the saved file."""
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )

    def press(selector: str, form: str, *, dark: bool = False):
        browser.show(page, dark=dark)
        browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true;")
        browser.run(BUTTON, selector, form)
        for _ in range(600):
            files = [file for file in tmp_path.iterdir() if file.suffix == f".{form.lower()}"]
            if files and files[0].stat().st_size:
                return files[0]
            time.sleep(0.1)
        raise AssertionError(f"{form} was not saved within a minute: {browser.said()}")

    yield press
    assert browser.said() == []
    assert {address.partition(":")[0] for address in browser.fetched()} <= {"file", "data", "about", "blob"}


def test_every_figure_and_every_table_can_be_saved(browser, page):
    browser.show(page)
    counts = (
        "return ['figure', 'table', '.save'].map((name) => document.querySelectorAll('main ' + name).length)"
    )
    figures, tables, bars = browser.run(counts)
    assert (figures, bars) == (3, figures + tables)
    forms = browser.run("return [...document.querySelectorAll('.save button')].map((one) => one.textContent)")
    assert [forms.count(form) for form in ("SVG", "PNG", "CSV")] == [figures, figures, tables]
    labels = browser.run("return [...document.querySelectorAll('.save button')].map((one) => one.ariaLabel)")
    assert len(set(labels)) == len(labels)


def test_a_table_is_saved_with_numbers_that_programs_read(saved):
    file = saved("#crate", "CSV")
    assert file.name == "crate-raw-tokens.csv"
    text = file.read_bytes().decode()
    assert not re.search("[−⁻\u00a0]", text)
    assert text.endswith("\r\n")
    head, *lines = list(csv.reader(text.splitlines()))
    assert {len(line) for line in lines} == {len(head)}
    column = head.index("measured")
    values = {line[0]: line[column] for line in lines}
    assert values == {
        CRATE.on_data.headline: "0.500",
        r'norm "two", $\lVert X \rVert$': "-1797 nats",
        "drift; the first note": "1.20e-13",
        "share": "65.79 %",
    }
    assert lines[0][head.index("verdict")] == "consistent"


def test_each_line_of_a_saved_table_stands_alone(saved):
    """The page omits a quantity, its prediction and its source if they repeat the line above; the file does
    not.
    """
    file = saved("#summary", "CSV")
    assert file.name == "headlines.csv"
    first, second = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    assert (first["on"], second["on"]) == ("raw tokens", "features of ViT")
    assert first["theory"] == second["theory"] == CRATE.title
    for name in ("quantity", "prediction (threshold)", "source"):
        assert first[name]
        assert first[name] == second[name]
    assert (first["verdict"], second["verdict"]) == ("consistent", "")


@pytest.mark.parametrize("dark", [False, True])
def test_a_figure_is_saved_whole_and_in_light_colours(saved, dark):
    file = saved("#crate details figure", "SVG", dark=dark)
    assert file.name == "crate-features-of-vit-r1.svg"
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert 'xmlns="http://www.w3.org/2000/svg"' in text
    well_formed(text)  # all glyphs are inside
    assert "fill: #ffffff" in text
    assert "var(" not in text


def test_a_png_has_three_pixels_per_css_pixel_on_white(saved):
    from matplotlib.image import imread

    image = imread(saved("#crate figure", "PNG", dark=True))
    height, width = image.shape[:2]
    assert width == pytest.approx(7 * 96 * 3, rel=0.1)
    assert height == pytest.approx(1.5 * 96 * 3, rel=0.1)
    np.testing.assert_array_equal(image[0, 0, :3], 1.0)
    assert (image[..., :3].min(axis=2) < 0.5).mean() > 0.005  # the curve and the words are there


COLOURS = """
const style = (name, property) => getComputedStyle(document.querySelector('#crate .card svg ' + name))[property];
const paper = getComputedStyle(document.body).backgroundColor;
return [paper, style('[id$=patch_1] path', 'fill'), style('[id$=xtick_1] [id*=text] > g', 'fill')];
"""  # noqa: E501


def test_figures_have_the_colours_of_a_dark_page(browser, page):
    browser.show(page)
    assert browser.run(COLOURS)[1:] == ["rgb(255, 255, 255)", "rgb(63, 71, 81)"]
    browser.show(page, dark=True)
    paper, patch, text = browser.run(COLOURS)
    assert patch == paper == "rgb(21, 24, 28)"
    assert text == "rgb(160, 168, 178)"
    browser.media("print", dark=True)
    assert browser.run(COLOURS)[1:] == ["rgb(255, 255, 255)", "rgb(63, 71, 81)"]


HEIGHT = "return document.documentElement.scrollHeight"


def test_a_link_opens_the_fold_that_holds_its_target(browser, page):
    browser.show(page, "#sources")
    closed = browser.run(HEIGHT)
    assert (
        browser.run("return document.querySelectorAll('main section:not(#summary) details[open]').length")
        == 0
    )
    browser.show(page, "#r1-provenance")
    assert browser.run("return document.querySelector('#r1-provenance').open")
    assert browser.run(HEIGHT) > closed
