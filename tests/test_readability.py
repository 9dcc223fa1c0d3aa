"""The first pages that a user reads stay readable, and the script counts as it says."""

import re
from pathlib import Path

import pytest

from benchmarks.readability import PAGES, main, readability, sentences

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = readability(text)
    long = [" ".join(words) for words in sentences(text) if len(words) > 30]
    assert found.sentences >= 5, "too few sentences to judge"
    assert found.mean <= 15, f"{page}: {found.mean:.1f} words per sentence"
    assert found.long <= 0.04, long


def test_the_definitions_of_the_glossary_are_short():
    """They stand in tables, which the script leaves out."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    meanings = re.findall(r"^\| (?!word |-).+? \| (.+) \|$", page, re.MULTILINE)
    assert len(meanings) > 60
    found = readability("\n\n".join(meanings))
    assert found.mean <= 15
    assert found.long <= 0.04


TEXT = """# A title. With two sentences.

One two three `four five`. You see [six seven](there.md "x"), of Tarzanagh et al. (2023), 8.5 times!

| a table. | with sentences. |
|---|---|

- an item without a full stop
- another item
  goes on

:::{container} door
Prose in a container.
:::

> A quotation. Of others.

```python
code = "is. not. prose."
```

<!-- Nor is a comment. -->
![Nor a picture. At all.](picture.svg)
*Its $x = 1.$ caption (is prose.) “And” quoted?* Terminal. Yes.
"""


def test_the_words_of_each_sentence():
    assert [" ".join(words) for words in sentences(TEXT)] == [
        "One two three code",
        "You see six seven of Tarzanagh et al 2023 8.5 times",
        "an item without a full stop",
        "another item goes on",
        "Prose in a container",
        "Its caption is prose",
        "And quoted",
        "Terminal",
        "Yes",
    ]


def test_the_numbers_by_hand():
    found = readability(f"Your {30 * 'word '}. One 2 three4.\n\n- Five, six.")
    assert (found.words, found.sentences, found.mean) == (36, 3, 12)
    assert (found.long, found.you, found.digits) == (1 / 3, 1 / 3, 2 / 36)
    assert readability(f"{30 * 'word '}.").long == 0


def test_a_page_without_prose_is_refused():
    with pytest.raises(ValueError, match="expected a page with sentences"):
        readability("# Title\n\n| a. |\n|---|\n")


def test_the_script_prints_a_line_for_each_page(capsys: pytest.CaptureFixture[str]):
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["page", *PAGES]
    assert len(PAGES) == 11
    main(["README.md"])
    assert capsys.readouterr().out.splitlines() == [lines[0], lines[1]]
