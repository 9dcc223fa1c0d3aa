"""Graphs from files: lists of edges, and GraphML. A file that can be read in two ways is refused.

A line of a list of edges names two nodes, or one node without edges. Blanks, tabs, commas or semicolons
separate the columns; columns after the first two, such as weights, are ignored. With tabs, commas or
semicolons a name may contain blanks. Names may be quoted. "#", "%" or "//" begin a comment, at the start of a
line or after a blank. A first line such as "source,target,weight", or of words above numbers, is a header.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from xml.etree import ElementTree

from ..core.reading import check_file

if TYPE_CHECKING:
    import networkx as nx

QUOTED = r'"(?:[^"]|"")*"'
COMMENT = re.compile(rf"({QUOTED})|(?:^|(?<=\s))(?:#|%|//).*")
ATTRIBUTES = re.compile(r"[\s,;]\{.*\}$")  # the dictionary that networkx writes after the two nodes
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
NUMBERS = re.compile(rf"{NUMBER.pattern}(?:[\s,;]+{NUMBER.pattern})+")
# Words with which headers name the two nodes, without numbers and punctuation.
HEADER = frozenset(
    (
        "source",
        "target",
        "from",
        "to",
        "src",
        "dst",
        "dest",
        "destination",
        "tail",
        "head",
        "node",
        "nodes",
        "nodeid",
        "nodea",
        "nodeb",
        "vertex",
        "sender",
        "receiver",
        "start",
        "end",
        "origin",
        "fromnode",
        "tonode",
        "fromnodeid",
        "tonodeid",
        "sourceid",
        "targetid",
        "idfrom",
        "idto",
        "fromid",
        "toid",
        "id",
    )
)
MISSING = ("nan", "na", "none", "null", "inf")
OTHER_FORMATS = (
    (re.compile(r"%%MatrixMarket", re.IGNORECASE), "a Matrix Market file"),
    (re.compile(r"\*"), "a Pajek file"),
    (re.compile(r"<"), "XML"),
    (re.compile(r"p\s+(edges?|col|sp|max|tw|cep)\s"), "a DIMACS file"),
    (re.compile(r"dl\s+n\s*="), "a UCINET file"),
    (re.compile(r"[\[({]|.*[\[{]$|[\]}]"), "a file with brackets, such as JSON, GML or DOT"),
)
MAX_LINE = 10_000  # largest number of characters of a line
ARROWS = re.compile(r"[-=<>|:~/\\&]+")


@dataclass(frozen=True)
class _Line:
    """A line of a list of edges.

    Attributes:
        number: number of the line, from 1.
        fields: its columns without those that are empty at the end; names without quotes.
        bare: for each column, whether it stands without quotes.
        width: number of columns, with those that are empty at the end.
    """

    number: int
    fields: tuple[str, ...]
    bare: tuple[bool, ...]
    width: int


class _Doubt(ValueError):
    """What is wrong, or can be read in two ways, in a line."""

    def __init__(self, number: int, problem: str):
        super().__init__(f"line {number} {problem}")


def read_edge_list(file: Path) -> "nx.Graph":
    """Reads a list of edges.

    Raises:
        ValueError: the file is no text in UTF-8, or a line is no edge or can be read in two ways; the message
            names the file and the line.
    """
    import networkx as nx

    try:
        lines = _parsed(_text(file))
    except _Doubt as error:
        raise ValueError(f"{file}: {error}") from error
    graph = nx.Graph()
    for line in lines:
        graph.add_nodes_from(line.fields[:2])
        if len(line.fields) > 1:
            graph.add_edge(*line.fields[:2])
    return graph


def _text(file: Path) -> str:
    check_file(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be text in UTF-8 ({error}); store it again as UTF-8") from error
    if "\0" in text:
        raise ValueError(f"{file} must be text in UTF-8, got zero bytes; store it again as UTF-8")
    return text.replace("\ufeff", "")


def _parsed(text: str) -> list[_Line]:
    """Returns the lines that name nodes, without comments and without a header."""
    contents = list(_contents(text))
    outside = [re.sub(QUOTED, '""', content) for _, content in contents]
    several = [content for content in outside if re.search(r"[\s,;]", content)]
    separator = next((mark for mark in "\t;," if several and all(mark in one for one in several)), "")
    # Tabs beside blanks separate as blanks do. A comma in some lines alone may belong to a name.
    if not separator and (mark := next((mark for mark in ";," if any(mark in one for one in outside)), "")):
        number = next(
            number
            for (number, _), content in zip(contents, outside)
            if mark not in content and content in several
        )
        raise _Doubt(number, f"has no {mark!r}, which separates columns elsewhere; separate all in one way")
    lines = [_line(number, content, separator) for number, content in contents]
    lines = [line for line in lines if line.fields]
    if lines and _is_header(lines):
        lines = lines[1:]
    _check_lines(lines, blanks=not separator)
    return lines


def _contents(text: str) -> Iterator[tuple[int, str]]:
    """Yields number and content of each line that is not empty, without comments and attributes."""
    for number, raw in enumerate(text.splitlines(), start=1):
        if len(raw) > MAX_LINE:
            raise _Doubt(number, f"has {len(raw):,} characters; write one edge in each line")
        for pattern, kind in OTHER_FORMATS:
            if pattern.match(raw.strip()):
                raise _Doubt(number, f"belongs to {kind}; store the graph as GraphML or as pairs of nodes")
        content = COMMENT.sub(lambda found: found[1] or "", raw)
        if content != raw and content.rstrip().endswith((",", ";")):
            raise _Doubt(
                number, 'has a comment in place of a name; put a name that begins with "#" in quotes'
            )
        content = ATTRIBUTES.sub("", content.strip(" ").rstrip())
        if content.strip():
            yield number, content


def _line(number: int, content: str, separator: str) -> _Line:
    """Splits a line into columns.

    Args:
        number, content: the line.
        separator: the separating character; empty for any number of blanks and tabs.
    """
    fields, bare, rest = [], [], content
    while True:
        rest = rest.lstrip(" ") if separator else rest.lstrip()
        if quote := next((mark for mark in "\"'" if rest.startswith(mark)), ""):
            found = re.match(rf"{quote}((?:[^{quote}]|{quote}{quote})*){quote}", rest)
            if found is None:
                raise _Doubt(number, f"has a quote {quote} that is not closed; close it")
            field, rest = found[1].replace(quote * 2, quote), rest[found.end() :].lstrip(" ")
            if rest and not (rest.startswith(separator) if separator else content[-len(rest) - 1].isspace()):
                raise _Doubt(number, f"has text after the quoted {field!r}; separate them")
        else:
            found = re.match(f"[^{separator}]*" if separator else r"\S*", rest)
            assert found is not None
            field, rest = " ".join(found[0].split()), rest[found.end() :]
        fields.append(field)
        bare.append(not quote)
        if not rest.strip(" ") if separator else not rest.strip():
            break
        rest = rest.removeprefix(separator) if separator else rest
    width = len(fields)
    while fields and not fields[-1] and bare[-1]:
        fields.pop()
        bare.pop()
    return _Line(number, tuple(fields), tuple(bare), width)


def _is_header(lines: list[_Line]) -> bool:
    """Returns whether the first line names columns: its names occur in no other line, and they are words
    above numbers, or stand before the name of a column of numbers, or are words of headers. Raises _Doubt if
    the line may be a header.
    """
    first, rest = lines[0], lines[1:]
    names = first.fields[:2]
    if len(first.fields) > 2 and not names[0] and rest:
        raise _Doubt(first.number, "is a header whose first column has no name; leave out the column")
    others = {name for line in rest for name in line.fields[:2]}
    if len(names) < 2 or any(map(NUMBER.fullmatch, names)) or others & {*names} or not rest:
        return False
    third = {value for line in rest for value in line.fields[2:3]}
    column = "".join(first.fields[2:3])  # the name of the third column, if this is a header
    above_numbers = all(map(NUMBER.fullmatch, others)) or (
        bool(third)
        and all(map(NUMBER.fullmatch, third))
        and re.fullmatch(r"[^\W\d]{2,}", column) is not None
        and column.lower() not in MISSING
    )
    known = {*map(_word, names)} <= HEADER and not {*map(_word, others)} & HEADER
    if not (above_numbers or known):
        if _of_one_stem(names) and not any(_of_one_stem(line.fields[:2]) for line in rest):
            raise _Doubt(first.number, f"may be a header ({', '.join(names)}); write # before it, or move it")
        return False
    if nodes := [name for name in first.fields[2:] if _word(name) in HEADER - {"id"}]:
        raise _Doubt(
            first.number, f"is a header that names nodes in the column {nodes[0]!r}; move it to the front"
        )
    return True


def _word(name: str) -> str:
    return re.sub(r"[\W\d_]", "", name).lower()


def _of_one_stem(names: tuple[str, ...]) -> bool:
    """Returns whether two names differ in their last character alone, such as person_a and person_b."""
    return len(names) == 2 and len(names[0]) > 3 and names[0][:-1] == names[1][:-1]


def _check_lines(lines: list[_Line], *, blanks: bool) -> None:
    """Raises _Doubt for the first line that is no edge or can be read in two ways.

    Args:
        lines: lines without a header.
        blanks: whether blanks separate the columns.
    """
    numbers: dict[Decimal, str] = {}
    edges = [line for line in lines if len(line.fields) > 1]
    for line in lines:
        for name, bare in zip(line.fields[:2], line.bare):
            _check_name(line, name, bare=bare)
            if NUMBER.fullmatch(name) and (other := numbers.setdefault(Decimal(name), name)) != name:
                raise _Doubt(line.number, f"names the node {other} as {name}; write a number in one way")
        if len(line.fields) == 1 and line.width > 1 and " " in line.fields[0] and line.bare[0]:
            raise _Doubt(
                line.number, "has one name with a blank before a separator; quote it, or separate two"
            )
        if blanks and len(line.fields) > 3 and not any(map(NUMBER.fullmatch, line.fields[2:4])):
            raise _Doubt(
                line.number, "has four words; put names that contain blanks in quotes, or separate by commas"
            )
    if edges and len({len(line.fields) for line in edges}) > 1 and len({line.width for line in edges}) > 1:
        other = next(line for line in edges if len(line.fields) != len(edges[0].fields))
        raise _Doubt(
            other.number,
            f"has {len(other.fields)} columns and line {edges[0].number} has {len(edges[0].fields)}, as in a "
            "list of neighbours; write one edge in each line",
        )
    if not edges and (
        odd := [line for line in lines if re.search(r"\w\W+\w", line.fields[0]) and line.bare[0]]
    ):
        raise _Doubt(odd[0].number, "and all others name one node; separate two by a blank, a tab or a comma")
    if edges and (problem := _of_two_separators(edges, blanks=blanks)):
        raise _Doubt(edges[0].number, problem)
    _check_counts(lines)


def _of_two_separators(edges: list[_Line], *, blanks: bool) -> str:
    """Returns what is wrong if all lines have their nodes elsewhere than in the first two columns."""
    if blanks:
        letters = {line.fields[0] for line in edges}
        if letters in ({"e"}, {"a"}) and all(len(line.fields) > 2 for line in edges):
            return "begins as all lines of a DIMACS file do; leave out the letter"
        return ""
    words = [line.fields[0].split() for line in edges]
    if all(line.bare[0] and len(parts) > 1 for line, parts in zip(edges, words)) and (
        all(NUMBER.fullmatch(parts[0]) for parts in words)
        or all(len(line.fields) == 2 and NUMBER.fullmatch(line.fields[1]) for line in edges)
    ):
        return "has two words in its first column; separate all columns in one way"
    return ""


def _check_name(line: _Line, name: str, *, bare: bool) -> None:
    def wrong(problem: str) -> NoReturn:
        raise _Doubt(line.number, problem)

    if not name.strip():
        wrong("has an empty name; fill it, or leave out the line")
    if not bare:
        return
    if NUMBERS.fullmatch(name):
        wrong(f"has several numbers in one column ({name}); separate all columns in one way")
    if ARROWS.fullmatch(name):
        wrong(f"has {name} in place of a node; leave it out")
    if name[0] in "([{<“„«‘`" or name[-1] in ":":
        wrong(f"has the name {name}, as no list of edges has it; put it in double quotes if it is one")
    if "#" in name:
        wrong(f"has # inside of {name}; put the name in quotes, or a blank before a comment")


def _check_counts(lines: list[_Line]) -> None:
    """Raises _Doubt if the first line may hold the numbers of nodes and edges."""
    first, rest = lines[0] if lines else None, lines[1:]
    if first is None or len(first.fields) not in (2, 3) or not all(name.isdigit() for name in first.fields):
        return
    names = {name for line in rest for name in line.fields[:2]}
    if not rest or not all(name.isdigit() for name in names) or int(first.fields[-1]) != len(rest):
        return
    if len(names) <= int(first.fields[0]) and max(map(int, names)) <= int(first.fields[0]):
        raise _Doubt(
            first.number,
            "may hold the numbers of nodes and edges; write # before it, or write this edge further below",
        )


def read_graphml(file: Path) -> "list[tuple[str, nx.Graph]]":
    """Reads all graphs of a GraphML file with their ids. Nodes and edges of a graph inside a node (a group)
    belong to the graph around it, together with that node.

    Raises:
        ValueError: the file is not GraphML, holds no graph, or a graph has hyperedges, nodes of one id, or
            edges between unknown nodes.
    """
    check_file(file)
    try:
        # at once: expat reads a token without end again with each further part of a file
        root = ElementTree.fromstring(file.read_bytes())
        if _tag(root) != "graphml":
            raise ValueError(f"its outermost element is {_tag(root)}")
        graphs = [element for element in root if _tag(element) == "graph"]
        if not graphs:
            raise ValueError("it holds no graph")
        return [(element.get("id") or str(index), _graph_of(element)) for index, element in enumerate(graphs)]
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise ValueError(f"{file} is not GraphML that can be read ({error}); export it again") from error


def _graph_of(element: ElementTree.Element) -> "nx.Graph":
    """Returns a graph with the nodes and edges of an element and of the groups inside of it: directed if one
    edge is, a multigraph if edges are parallel.
    """
    import networkx as nx

    nodes: dict[str, None] = {}
    edges: list[tuple[str, str]] = []
    directed = False
    waiting: list[ElementTree.Element] = [element]
    while waiting:
        graph = waiting.pop(0)
        default = graph.get("edgedefault")
        for child in graph:
            if _tag(child) == "node":
                name = _attribute(child, "id")
                if name in nodes:
                    raise ValueError(f"two nodes have the id {name!r}")
                nodes[name] = None
                waiting += [inner for inner in child if _tag(inner) == "graph"]
            elif _tag(child) == "edge":
                edges.append((_attribute(child, "source"), _attribute(child, "target")))
                directed |= {"true": True, "false": False}.get(
                    child.get("directed", ""), default == "directed"
                )
                waiting += [inner for inner in child if _tag(inner) == "graph"]
            elif _tag(child) == "hyperedge":
                raise ValueError("it has a hyperedge")
        directed |= default == "directed"
    if unknown := [name for edge in edges for name in edge if name not in nodes]:
        raise ValueError(f"an edge ends at {unknown[0]!r}, which is no node")
    parallel = len({frozenset(edge) if not directed else edge for edge in edges}) < len(edges)
    graph_type: Any = nx.DiGraph if directed else nx.MultiGraph if parallel else nx.Graph
    plain = graph_type()
    plain.add_nodes_from(nodes)
    plain.add_edges_from(edges)
    return plain


def _tag(element: ElementTree.Element) -> str:
    """Returns the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _attribute(element: ElementTree.Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise ValueError(f"a {_tag(element)} has no {name}")
    return value
