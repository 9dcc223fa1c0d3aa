"""The page in a real browser: sort, filter, slide; phones, dark colours, print, no script; nothing on the
console, nothing fetched.
"""

import re
from dataclasses import replace

import pytest

from tests.report.synthetic import MODELS, STEPS, violated
from transformer_theory.report import page as page_of

ROWS = "[...document.querySelectorAll('.claims > tbody > tr')]"
SHOWN = (
    f"return {ROWS}.filter((row) => row.checkVisibility()).map((row) => row.querySelector('th "
    "a').textContent)"
)
OWN = ["global direction", "local selection", "relative gain", "non negative"]  # the table's own order


def varied(result):
    """One claim violated on a seed, one whose control passes and whose threshold differs; the numbers of all
    four differ.
    """
    first, second, third, fourth = result.verifications
    evidence = tuple(replace(one, threshold=0.2) for one in third.evidence)
    third = replace(violated(third, value=1.0), evidence=evidence)
    # The theories' figures take seconds to draw, and axe and the slider some time per point: a sixth of the
    # points is enough.
    arrays = {name: array for name, array in result.arrays.items() if name.startswith("network/")}
    for name in ("network/labels", *(f"network/{model}/features" for model in MODELS)):
        arrays[name] = arrays[name][::6]
    for model in MODELS:
        arrays[f"network/{model}/features over training"] = arrays[f"network/{model}/features over training"][
            :, ::6
        ]
    return replace(result, verifications=(first, violated(second), third, fourth), arrays=arrays)


@pytest.fixture(scope="module")
def page(compared, theories, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(varied(compared), theories=theories), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def quiet(browser):
    """No test may leave a word on the console or ask for anything but files of this machine."""
    yield
    assert browser.said() == []
    assert {address.partition(":")[0] for address in browser.fetched()} <= {"file", "data", "about"}


OPEN = "for (const fold of document.querySelectorAll(arguments[0])) fold.open = true;"
SETTLED = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"  # the observer of sizes has run


def show_open(browser, page, folds: str = "#claims details", **options) -> None:
    """Shows the page with some of its folds open."""
    browser.show(page, **options)
    browser.run(OPEN, folds)
    browser.driver.execute_async_script(SETTLED)


def status(browser) -> str:
    return browser.run("return document.querySelector('#claims [role=status]').textContent")


def press(browser, name: str) -> str | None:
    """Presses the header of a column; returns which way it is sorted then."""
    head = browser.driver.find_element("css selector", f"#claims th[data-name={name}]")
    head.find_element("css selector", "button").click()
    return head.get_attribute("aria-sort")


def test_columns_sort_up_and_down_and_keep_the_order_of_equals(browser, page):
    show_open(browser, page)
    assert browser.run(SHOWN) == OWN
    assert press(browser, "measured") == "ascending"
    assert browser.run(SHOWN) == ["local selection", "global direction", "relative gain", "non negative"]
    assert press(browser, "measured") == "descending"
    assert browser.run(SHOWN) == ["global direction", "relative gain", "non negative", "local selection"]
    assert press(browser, "claim") == "ascending"
    assert browser.run(SHOWN) == ["global direction", "local selection", "non negative", "relative gain"]
    assert browser.run("return document.querySelectorAll('#claims [aria-sort]').length") == 1
    assert status(browser) == "4 claims, sorted by claim, ascending"
    press(browser, "verdict")  # those that need a look first
    assert browser.run(SHOWN) == ["local selection", "relative gain", "global direction", "non negative"]
    for name in ("theory", "seeds", "threshold", "source"):
        assert press(browser, name) == "ascending"
    # by the number that the column shows, not by its words
    for way, sign in (("ascending", 1), ("descending", -1)):
        assert press(browser, "control") == way
        controls = browser.run(
            f"return {ROWS}.map((row) => Number(row.querySelector('[data-label=control]').dataset.key))"
        )
        assert len(set(controls)) > 1
        assert controls == sorted(controls, key=lambda value: sign * value)


def test_filters_work_together_and_are_cleared_and_sent(browser, page):
    show_open(browser, page)
    choose = (
        "const form = document.querySelector('#claims form'); form.elements[arguments[0]].value = "
        "arguments[1];"
    )
    choose += "form.elements[arguments[0]].dispatchEvent(new Event('input', { bubbles: true }))"
    browser.run(choose, "theory", "attention_svm")
    assert browser.run(SHOWN) == OWN[:2]
    browser.run(choose, "verdict", "violated")
    assert browser.run(SHOWN) == ["local selection"]
    assert status(browser) == "1 of 4 claims"
    browser.run(choose, "source", "yu2020learning")
    assert browser.run(SHOWN) == []
    assert status(browser) == "No claim matches. Press Clear to see all 4 claims."
    browser.driver.find_element("css selector", "#claims form button").click()
    assert browser.run(SHOWN) == OWN
    words = browser.driver.find_element("css selector", "#claims [type=search]")
    words.send_keys("TARZANAGH  stays")  # in any order, in any case, of what the line shows
    assert browser.run(SHOWN) == ["local selection"]
    words.clear()
    words.send_keys("support")
    press(browser, "claim")
    press(browser, "claim")
    fragment = browser.run("return location.hash")  # the driver's address may lag behind
    assert fragment == "#claims?text=support&sort=-claim"
    browser.show(page, fragment)
    assert browser.run(SHOWN) == ["local selection", "global direction"]
    browser.driver.find_element("link text", "local selection").click()
    browser.until("document.querySelector(':target h4')?.textContent.trim().endsWith('local selection')")
    browser.show(page, "#claims?verdict=nothing&sort=nothing")  # of another page
    assert browser.run(SHOWN) == OWN


def test_the_slider_shows_every_step_by_keys_and_buttons(browser, page):
    from selenium.webdriver.common.keys import Keys

    browser.show(page)
    sliders = browser.driver.find_elements("css selector", ".slider")
    assert len(sliders) == len(MODELS)
    figure = sliders[0]
    range_, output = (figure.find_element("css selector", name) for name in ("input", "output"))
    assert figure.find_element("css selector", "label").get_attribute("for") == range_.get_attribute("id")
    seen = "const figure = document.querySelector('.slider'); "
    seen += "return [...figure.querySelectorAll('canvas')].map((one) => one.toDataURL()).join()"
    placed = " + [...figure.querySelectorAll('circle')].map((one) => one.style.transform).join()"
    last = browser.run(seen + placed)
    assert output.text.startswith("step 600 of 600, validation accuracy ")
    range_.send_keys(Keys.ARROW_LEFT)
    assert output.text.startswith(f"step {STEPS[-2]} of 600")
    assert range_.get_attribute("aria-valuetext").replace("\u00a0", " ") == output.text
    assert output.get_attribute("aria-live") == "off"  # the slider has announced it
    assert browser.run(seen + placed) != last
    range_.send_keys(Keys.HOME)
    back, on, play = figure.find_elements("css selector", ".turn button")
    assert back.get_attribute("aria-disabled") == "true"
    on.click()
    assert output.text.startswith(f"step {STEPS[1]} of 600")
    assert output.get_attribute("aria-live") == "polite"
    range_.send_keys(Keys.END)
    on.click()  # beyond the end
    assert browser.run(seen + placed) == last
    assert not play.is_displayed()  # the reader prefers that nothing moves
    browser.show(page, still=False)
    play = browser.driver.find_element("css selector", ".slider [data-play]")
    output = browser.driver.find_element("css selector", ".slider output")
    # steps come when the test wants them: on a slow machine they would come between any two commands
    browser.run("window.setInterval = (step) => ((window.next = step), -1); arguments[0].click()", play)
    assert play.text == "Pause"
    assert output.text.startswith("step 0 of 600")
    browser.run("next()")
    assert output.text.startswith(f"step {STEPS[1]} of 600")
    play.send_keys(Keys.ENTER)
    assert play.text == "Play"


WIDER = """
const inside = (element) => element.closest('.scroll, .card, .text, math, .hidden, .skip') !== null;
return [...document.body.querySelectorAll('*')]
  .filter((element) => !inside(element) && element.getBoundingClientRect().right > 361)
  .map((element) => element.outerHTML.slice(0, 120));
"""


def test_a_phone_shows_all_of_it(browser, page):
    for folds in ("nothing", "details"):
        show_open(browser, page, folds, width=360, height=740)
        assert browser.run("return document.documentElement.scrollWidth") == 360
        assert browser.run(WIDER) == []
    # lines are cards here
    assert browser.run("return document.querySelector('.claims').getBoundingClientRect().right") <= 360
    assert press(browser, "claim") == "ascending"


SEEN = "return arguments[0].map((name) => document.querySelector(name).checkVisibility())"


def test_print_has_figures_in_place_of_sliders_no_controls_and_no_fold_but_the_sources(browser, page):
    names = [".slider", ".still", "#claims form", "nav", ".save", ".bibliography", "#attention-svm table"]
    show_open(browser, page)
    assert browser.run(SEEN, names) == [True, False, True, True, True, False, False]
    browser.media("print")
    assert browser.run(SEEN, names) == [False, True, False, False, False, True, False]


def test_without_script_the_page_is_whole(browser, page, tmp_path):
    bare = tmp_path / "bare.html"
    bare.write_text(
        re.sub(r"<script>.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL),
        encoding="utf-8",
    )
    browser.show(bare)
    assert browser.run("return document.querySelectorAll('.save, [tabindex=\"0\"]').length") == 0
    for fold in browser.driver.find_elements("css selector", "#claims summary"):
        fold.click()
    assert browser.run(SHOWN) == OWN
    assert status(browser) == "4 claims"
    assert not browser.driver.find_element("css selector", "#claims form").is_displayed()
    assert not browser.driver.find_elements("css selector", "#claims th button")
    assert not any(one.is_displayed() for one in browser.driver.find_elements("css selector", ".slider"))
    stills = browser.driver.find_elements("css selector", ".still")
    assert len(stills) == len(MODELS) + 1
    assert all(still.is_displayed() for still in stills)


STOPS = """
const style = (box) => getComputedStyle(box);
const scrolls = (box) => /auto|scroll/.test(style(box).overflowX) && box.scrollWidth > box.clientWidth;
const tall = (box) => box.matches(".tall") && box.scrollHeight > box.clientHeight;
const shown = (box) => box.checkVisibility();
const boxes = [...document.querySelectorAll(".scroll, .card, .text, math")].filter(shown);
return [boxes.length, boxes.filter((box) => (box.tabIndex === 0) !== (scrolls(box) || tall(box))).length];
"""


@pytest.mark.parametrize("width", [1200, 360])
def test_only_boxes_that_scroll_are_tab_stops(browser, page, width):
    show_open(browser, page, "details", width=width)
    boxes, wrong = browser.run(STOPS)
    assert boxes > 50
    assert wrong == 0
    formulas = browser.run(
        "return [...document.querySelectorAll('math')].filter((one) => one.tabIndex === 0).length"
    )
    assert formulas == 0 or width == 360


FOCUSED = """
const one = document.activeElement;
return [one === document.body, one.tagName, one.matches(":is(a, button, input, select, summary)") || one.tabIndex === 0];
"""  # noqa: E501


def test_the_tab_key_reaches_the_end(browser, page):
    """Every stop is a control, or a box that scrolls; in a window of this width no formula is one."""
    show_open(browser, page, "nothing")
    browser.run(
        "document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')"
    )
    controls = browser.run(
        "return document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]').length"
    )
    names = []
    for _ in range(controls + 1):
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", event)
        at_end, name, focusable = browser.run(FOCUSED)
        if at_end:
            break
        assert focusable
        names.append(name)
    else:
        raise AssertionError(f"{controls + 1} tabs did not reach the end of the page")
    assert len(names) > 20
    assert "math" not in names


@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 360)], ids=["light", "dark on a phone"])
def test_axe_finds_nothing(browser, page, dark, width):
    show_open(browser, page, "details", dark=dark, width=width)
    assert browser.violations() == []
