"""The changes that can be made in a module, found on its syntax tree.

Docstrings, texts, messages of errors, type annotations, imports, caches, options of dataclasses, functions
that draw and claims that train networks for minutes are left out, and so are numbers below 1e-5 or from 1e9
on, which are tolerances and stand-ins for infinity.
"""

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

OPERATORS = (
    "factor",
    "sign",
    "axis",
    "index",
    "comparison",
    "argument order",
    "constant",
    "min and max",
    "mean and sum",
    "keyword",
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# methods whose first argument, and functions of torch and numpy whose second argument, is an axis
REDUCTIONS = _words(
    "all amax amin any argmax argmin argsort cat concatenate cummax cummin cumsum diff flip log_softmax "
    "logsumexp max mean median min norm prod roll select size softmax sort squeeze stack std sum unbind "
    "unsqueeze var"
)
NUMBERS = frozenset(["exp", "log", "mean", "median", "norm", "square", "sqrt", "std", "sum", "var"])
COMMUTATIVE = _words("add dot equal gcd hypot isdisjoint logaddexp max maximum min minimum mul")
INSPECTING = frozenset(["cast", "delattr", "getattr", "hasattr", "isinstance", "issubclass", "setattr"])
# keywords with texts and sources
TEXTS = frozenset(("assumptions", "corrects", "label", "note", "null_kind", "reason", "source", "title"))
LIBRARIES = frozenset(("torch", "np", "math", "F", "functional", "linalg"))
TYPES = _words(
    "Annotated Any Arrays Bool Callable ClassVar Complex Counter Final Float Generator Generic Int "
    "Integer Iterable Iterator Literal Mapping Num Optional Sequence Shaped Tensor Union dict frozenset "
    "list set tuple type"
)
TURNED = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
EXTREMES = {
    "min": "max",
    "amin": "amax",
    "argmin": "argmax",
    "minimum": "maximum",
    "cummin": "cummax",
    "nanmin": "nanmax",
    "floor": "ceil",
}
EXTREMES |= {second: first for first, second in EXTREMES.items()}
TOTALS = {"mean": "sum", "sum": "mean", "nanmean": "nansum", "nansum": "nanmean"}
SMALLEST, LARGEST = 1e-5, 1e9
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


@dataclass(frozen=True)
class Change:
    """A replacement of the bytes ``start`` to ``end`` of a module.

    Attributes:
        operator: one of :data:`OPERATORS`.
        function: qualified name of the innermost function around it, or "" outside of functions.
        bound: names that the statement binds, if it is outside of functions.
        line: number of the line, from 1.
        text: this line, without indentation.
        old: text that is replaced.
        new: text in its place.
        start: first byte.
        end: byte after the last one.
    """

    operator: str
    function: str
    bound: tuple[str, ...]
    line: int
    text: str
    old: str
    new: str
    start: int
    end: int

    def applied(self, source: bytes) -> bytes:
        """Returns the changed module.

        Raises:
            ValueError: the module is another one.
        """
        if source[self.start : self.end].decode() != self.old:
            raise ValueError(f"line {self.line} must hold {self.old!r} at byte {self.start}")
        return source[: self.start] + self.new.encode() + source[self.end :]


def qualified(tree: ast.AST) -> dict[ast.AST, str]:
    """Returns the qualified names of all functions and classes of a module, as Python gives them."""
    found = dict[ast.AST, str]()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, DEFINITIONS):
                found[child] = prefix + child.name
                visit(child, found[child] + (".<locals>." if isinstance(child, FUNCTIONS) else "."))
            else:
                visit(child, prefix)

    visit(tree, "")
    return found


def names_bound(node: ast.AST) -> tuple[str, ...]:
    """Returns the names that a definition or an assignment binds."""
    if isinstance(node, DEFINITIONS):
        return (node.name,)
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    found = [each for target in targets if target is not None for each in ast.walk(target)]
    return tuple(each.id for each in found if isinstance(each, ast.Name))


def changes(source: bytes) -> list[Change]:
    """Returns all changes of a module, sorted by place; a few of them are not possible (:func:`possible`)."""
    found = set(_Finder(source).module(ast.parse(source)))
    return sorted(found, key=lambda one: (one.start, one.end, one.new))


def possible(source: bytes, change: Change) -> bool:
    """Returns whether the changed module can be parsed and has another syntax tree."""
    try:
        return ast.dump(ast.parse(change.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Finder:
    def __init__(self, source: bytes):
        self.source = source
        self.lines = source.split(b"\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.names = dict[ast.AST, str]()
        self.function, self.bound = (
            "",
            tuple[str, ...](),
        )  # function around a place, or else names bound there

    def module(self, tree: ast.Module) -> Iterator[Change]:
        self.names = qualified(tree)
        for statement in tree.body:
            yield from self.statement(statement)

    # Places and texts.

    def span(self, node: ast.AST) -> tuple[int, int]:
        first, last = self.starts[node.lineno - 1], self.starts[node.end_lineno - 1]  # type: ignore
        return first + node.col_offset, last + node.end_col_offset  # type: ignore

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def change(self, operator: str, start: int, end: int, new: str) -> Change:
        line = bisect_right(self.starts, start)
        return Change(
            operator,
            self.function,
            () if self.function else self.bound,
            line,
            self.lines[line - 1].decode().strip(),
            self.source[start:end].decode(),
            new,
            start,
            end,
        )

    def replaced(self, operator: str, node: ast.AST, *texts: str) -> Iterator[Change]:
        for text in texts:
            yield self.change(operator, *self.span(node), text)

    def between(
        self, operator: str, left: ast.AST, right: ast.AST, old: str, *texts: str
    ) -> Iterator[Change]:
        """Replaces a word or a sign between two expressions."""
        start, end = self.span(left)[1], self.span(right)[0]
        pattern = r"\s+".join(map(re.escape, old.split()))
        if found := re.search(pattern.encode(), self.source[start:end]):
            for text in texts:
                yield self.change(operator, start + found.start(), start + found.end(), text)

    # Statements.

    def statement(self, node: ast.AST) -> Iterator[Change]:
        if isinstance(node, FUNCTIONS):
            yield from self.definition(node)
        elif isinstance(node, ast.ClassDef):
            yield from self.class_of(node)
        elif not self.skipped(node):
            kept = self.bound
            self.bound = (*kept, *names_bound(node))
            if "__all__" not in self.bound:
                yield from self.parts(node)
            self.bound = kept

    def skipped(self, node: ast.AST) -> bool:
        """Returns whether a statement is an import, an error with its message, or a docstring."""
        if isinstance(node, ast.If):
            return "TYPE_CHECKING" in self.text(node.test)
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant)
        return isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise))

    def definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
        decorators = [self.text(each) for each in node.decorator_list]
        types = [node.returns, *(each.annotation for each in node.args.args)]
        draws = any(word in self.text(each) for each in types if each for word in ("Figure", "Axes"))
        trains = any(each.startswith("claim(") and '"training"' in each for each in decorators)
        if draws or trains or any(each.split("(")[0] == "style" for each in decorators):
            return
        function, kept = self.function, self.bound
        self.bound = (*kept, node.name)
        for each in node.decorator_list:
            if "cache" not in self.text(each):
                yield from self.expression(each)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from self.expression(default)
        self.function, self.bound = self.names[node], kept
        for statement in node.body:
            yield from self.statement(statement)
        self.function = function

    def class_of(self, node: ast.ClassDef) -> Iterator[Change]:
        function, kept = self.function, self.bound
        self.bound = (*kept, node.name)
        for each in node.decorator_list:
            if "dataclass" not in self.text(each):
                yield from self.expression(each)
        self.function = ""
        for statement in node.body:
            yield from self.statement(statement)
        self.function, self.bound = function, kept

    def parts(self, node: ast.AST) -> Iterator[Change]:
        """Goes on with the parts of a node, without its annotations."""
        if isinstance(node, ast.AugAssign):
            signs = {ast.Add: ("sign", "+=", "-="), ast.Sub: ("sign", "-=", "+=")}
            signs |= {ast.Mult: ("factor", "*=", "/="), ast.Div: ("factor", "/=", "*=")}
            if (kind := signs.get(type(node.op))) and not _is_text(node.value):
                yield from self.between(kind[0], node.target, node.value, kind[1], kind[2])
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            for each in field if isinstance(field, list) else [field]:
                if isinstance(each, ast.stmt):
                    yield from self.statement(each)
                elif isinstance(each, ast.AST):
                    yield from self.expression(each)

    # Expressions.

    def expression(self, node: ast.AST) -> Iterator[Change]:
        if isinstance(node, ast.JoinedStr):
            return  # a text
        if isinstance(node, ast.Call):
            yield from self.call(node)
        elif isinstance(node, ast.Subscript):
            if not _is_type(node.value):
                yield from self.expression(node.value)
                yield from self.index(node.slice)
        elif isinstance(node, ast.BinOp):
            yield from self.operation(node)
            yield from self.parts(node)
        elif isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                old, texts = TURNED[type(op)]
                yield from self.between("comparison", left, right, old, *texts)
            yield from self.parts(node)
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in pairwise(node.values):
                yield from self.between("comparison", left, right, old, new)
            yield from self.parts(node)
        elif isinstance(node, ast.UnaryOp):
            inner = f"({self.text(node.operand)})"
            if isinstance(node.op, ast.Not):
                yield from self.replaced("comparison", node, inner)
            elif isinstance(node.op, ast.USub) and _integer(node) is None:
                yield from self.replaced("sign", node, inner)
            elif isinstance(node.op, ast.Invert):
                yield from self.replaced("comparison", node, inner)
            yield from self.parts(node)
        elif isinstance(node, ast.Constant):
            yield from self.constant(node)
        else:
            yield from self.parts(node)

    def constant(self, node: ast.Constant) -> Iterator[Change]:
        value = node.value
        if isinstance(value, bool):
            yield from self.replaced("constant", node, str(not value))
        elif isinstance(value, (int, float)):
            if value == 0:
                yield from self.replaced("constant", node, "1" if isinstance(value, int) else "1.0")
            elif SMALLEST <= abs(value) < LARGEST:
                more = str(value + 1) if isinstance(value, int) else repr(value / 2)
                yield from self.replaced("constant", node, more, repr(2 * value))
        elif value in ("<=", ">="):
            yield from self.replaced("comparison", node, '"<="' if value == ">=" else '">="')

    def operation(self, node: ast.BinOp) -> Iterator[Change]:
        if _is_text(node.left) or _is_text(node.right):
            return
        signs = {ast.Add: ("sign", "+", "-"), ast.Sub: ("sign", "-", "+")}
        signs |= {ast.Mult: ("factor", "*", "/"), ast.Div: ("factor", "/", "*")}
        if kind := signs.get(type(node.op)):
            yield from self.between(kind[0], node.left, node.right, kind[1], kind[2])
        if isinstance(node.op, (ast.Mult, ast.Div, ast.MatMult, ast.Pow)):
            yield from self.replaced("factor", node, f"(2 * ({self.text(node)}))")

    def call(self, node: ast.Call) -> Iterator[Change]:
        name = _last_name(node.func)
        method = isinstance(node.func, ast.Attribute) and _last_name(node.func.value) not in LIBRARIES
        if name in NUMBERS and isinstance(node.func, ast.Attribute):
            yield from self.replaced("factor", node, f"(2 * {self.text(node)})")
        for operator, names in (("min and max", EXTREMES), ("mean and sum", TOTALS)):
            if name in names and (isinstance(node.func, ast.Attribute) or operator == "min and max"):
                end = self.span(node.func)[1]
                yield self.change(operator, end - len(name), end, names[name])
        if name not in COMMUTATIVE and name not in INSPECTING:
            for left, right in pairwise(node.args):
                yield from self.exchanged(left, right)
        yield from self.expression(node.func)
        place = 0 if method else 1
        for number, argument in enumerate(node.args):
            if number == place and name in REDUCTIONS and _axes(argument):
                yield from self.axis(argument)
            else:
                yield from self.expression(argument)
        for keyword in node.keywords:
            yield from self.keyword(node, keyword)

    def exchanged(self, left: ast.expr, right: ast.expr) -> Iterator[Change]:
        """Two arguments in the other order."""
        if (
            isinstance(left, ast.Starred)
            or isinstance(right, ast.Starred)
            or _is_text(left)
            or _is_text(right)
        ):
            return
        (start, first), (second, end) = self.span(left), self.span(right)
        middle = self.source[first:second].decode()
        yield self.change("argument order", start, end, self.text(right) + middle + self.text(left))

    def keyword(self, call: ast.Call, keyword: ast.keyword) -> Iterator[Change]:
        if keyword.arg in ("dim", "axis", "dims") and _axes(keyword.value):
            yield from self.axis(keyword.value)
        else:
            yield from self.expression(keyword.value)
        if keyword.arg in ("min", "max"):
            start = self.span(keyword)[0]
            yield self.change("min and max", start, start + 3, EXTREMES[keyword.arg])
        if (
            keyword.arg is None
            or keyword.arg in TEXTS
            or (_is_text(keyword.value) and _side(keyword.value) is None)
        ):
            return
        others = sorted(self.span(each) for each in (*call.args, *call.keywords))
        place = others.index(self.span(keyword))
        start, end = others[place]
        if place:
            start = self.source.rindex(b",", 0, start)
        elif len(others) > 1:
            end = others[1][0]
        yield self.change("keyword", start, end, "")

    def axis(self, node: ast.expr) -> Iterator[Change]:
        if isinstance(node, ast.Tuple):
            if len(node.elts) > 1:
                yield from self.replaced("axis", node, f"({self.text(node.elts[0])},)")
            return
        value = _integer(node)
        other = {-1: -2, -2: -1, 0: 1, 1: 0}.get(value, value - 1)  # type: ignore
        yield from self.replaced("axis", node, str(other))

    def index(self, node: ast.expr) -> Iterator[Change]:
        value = _integer(node)
        if value is not None:
            yield from self.replaced("index", node, str(value + 1), str(value - 1))
        elif isinstance(node, ast.Tuple):
            for each in node.elts:
                yield from self.index(each)
        elif isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper, node.step):
                if bound is None:
                    continue
                if _integer(bound) is not None:
                    yield from self.index(bound)
                elif bound is not node.step:
                    texts = (f"({self.text(bound)}) {sign} 1" for sign in "+-")
                    yield from self.replaced("index", bound, *texts)
                    yield from self.expression(bound)
        else:
            yield from self.expression(node)


def _last_name(node: ast.expr) -> str:
    """Returns the last part of a dotted name, "" for other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _integer(node: ast.AST | None) -> int | None:
    """Returns the value of a written integer with or without a minus sign, None for other expressions."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _axes(node: ast.expr) -> bool:
    """Returns whether an argument is a written axis, from -4 to 4, or a tuple of them."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_axes, node.elts))
    value = _integer(node)
    return value is not None and abs(value) <= 4


def _side(node: ast.AST) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if value in ("<=", ">=") else None


def _is_text(node: ast.AST) -> bool:
    """Returns whether an expression is a written text, or several that are joined."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def _is_type(node: ast.expr) -> bool:
    """Returns whether a subscripted name is a type, such as ``tuple[int, ...]``."""
    return _last_name(node) in TYPES
