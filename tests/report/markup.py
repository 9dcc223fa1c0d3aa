"""Reading a page: its tags, ids and words, and whether its markup is whole."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input", "path", "use", "rect", "circle", "image"}


class Reader(HTMLParser):
    """Collects text, tags with attributes and ids, and notices tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text, self.crossed = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open[-1] != tag:
            self.crossed.append((tag, self.open[-3:], self.getpos()))
        else:
            self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


def words(page: str) -> str:
    return " ".join(" ".join(Reader(page).text).split())


def well_formed(page: str) -> Reader:
    """What was read of a page whose tags match, whose ids are unique, and whose references within it lead
    somewhere.
    """
    reader = Reader(page)
    assert (reader.crossed, reader.open) == ([], [])
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {
        attributes[name][1:]
        for _, attributes in reader.tags
        for name in ("href", "xlink:href")
        if attributes.get(name, "")[:1] == "#"
    }
    assert targets | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    return reader
