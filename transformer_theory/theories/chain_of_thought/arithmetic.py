r"""Arithmetic modulo p, and linear equations modulo p.

**Arithmetic.** A question is an expression of k operations; brackets stand only where precedence and left
associativity need them, so expressions and trees correspond one to one and there are :math:`C_k\, o^k
p^{k+1}` of them, with o operators and the Catalan number :math:`C_k`. Each step of the chain computes the
leftmost operation that may be computed. Whether an operation may be computed depends on five symbols: the
operation, its operands, and the symbols beside them (:func:`reducible`).

**Equations.** A question is m equations with one solution, ``a b c | d e f`` for a x + b y = c and d x + e y
= f. Step i of the chain is the matrix after column i has been eliminated (Gauss and Jordan), the last one
shows the solution. There are :math:`p^m \prod_{i<m} (p^m - p^i)` questions.

Source: :cite:t:`feng2023towards`.
"""

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Generator

from ...core.validation import integers
from .tasks import THEN, Sample, Symbols, check_places, completed, draw, encode

OPEN, CLOSE, BAR = "(", ")", "|"
PRECEDENCE = {"+": 1, "-": 1, "*": 2}
Tree = str | tuple["Tree", str, "Tree"]


def operate(left: str, operator: str, right: str, modulus: int) -> str:
    """Returns the result of one operation modulo p."""
    a, b = int(left), int(right)
    return str((a + b if operator == "+" else a - b if operator == "-" else a * b) % modulus)


def written(tree: Tree, *, above: int = 0) -> Symbols:
    """Writes a tree with the brackets that it needs below an operator that binds operands of precedence
    ``above`` or more.
    """
    if isinstance(tree, str):
        return (tree,)
    left, operator, right = tree
    binds = PRECEDENCE[operator]
    # a - (b - c) needs brackets, (a - b) - c does not
    inside = (*written(left, above=binds), operator, *written(right, above=binds + 1))
    return (OPEN, *inside, CLOSE) if binds < above else inside


def parsed(expression: Symbols) -> ast.AST:
    """Returns the syntax tree that Python's parser makes of an expression."""
    return ast.parse(" ".join(expression), mode="eval").body


def value(node: ast.AST) -> int:
    """Evaluates a syntax tree of integers."""
    if isinstance(node, ast.BinOp):
        a, b = value(node.left), value(node.right)
        return a + b if isinstance(node.op, ast.Add) else a - b if isinstance(node.op, ast.Sub) else a * b
    return int(node.value)  # pyright: ignore[reportAttributeAccessIssue]  # numbers are constants


def reducible(before: str, operator: str, after: str) -> bool:
    """Whether an operation on two numbers may be computed, from the symbols beside it ("" at an end)."""
    binds = PRECEDENCE[operator]
    opens = before in ("", OPEN) or PRECEDENCE.get(before, 3) < binds
    return opens and (after in ("", CLOSE) or PRECEDENCE.get(after, 3) <= binds)


def handle(expression: Sequence[str]) -> tuple[int, int]:
    """Returns the first and last place of the leftmost operation that may be computed, with brackets that
    enclose nothing else.

    Raises:
        ValueError: no operation may be computed.
    """
    padded = ("", "", *expression, "", "")
    for place in range(2, len(padded) - 2):
        before, left, operator, right, after = padded[place - 2 : place + 3]
        if (
            operator in PRECEDENCE
            and left.isdigit()
            and right.isdigit()
            and reducible(before, operator, after)
        ):
            enclosed = before == OPEN and after == CLOSE
            return place - 3 - enclosed, place - 1 + enclosed
    raise ValueError(
        f"the expression must have an operation that may be computed, got {' '.join(expression)!r}; check "
        "its brackets"
    )


@dataclass(frozen=True)
class Arithmetic:
    """Expressions of +, - and * modulo p, with brackets where precedence needs them; ``questions`` is exact.

    Args:
        operations: number k of operations.
        modulus: p.
    Raises:
        ValueError: there is no operation, or the modulus is below 2.
    """

    operations: int = 3
    modulus: int = 5

    def __post_init__(self):
        integers(operations=self.operations)
        integers(minimum=2, modulus=self.modulus)

    @property
    def symbols(self) -> Symbols:
        """Numbers, operators and brackets."""
        return (*map(str, range(self.modulus)), *PRECEDENCE, OPEN, CLOSE)

    @property
    def questions(self) -> int:
        """Number of expressions, Catalan number times operators times numbers."""
        k = self.operations
        return math.comb(2 * k, k) // (k + 1) * len(PRECEDENCE) ** k * self.modulus ** (k + 1)

    def sample(self, generator: Generator) -> Sample:
        """Draws a tree, whose subtrees have uniformly drawn sizes, with uniform operators and numbers."""
        k, operators = self.operations, list(PRECEDENCE)
        numbers, signs = iter(draw(generator, self.modulus, k + 1)), iter(draw(generator, len(operators), k))

        def tree(size: int) -> Tree:
            if size == 0:
                return str(next(numbers))
            left = draw(generator, size)[0] if size > 1 else 0
            return tree(left), operators[next(signs)], tree(size - 1 - left)

        return completed(self, written(tree(k)))

    def check(self, question: Symbols) -> None:
        """Raises ValueError for other symbols, another number of operations, or wrong brackets."""
        self.steps(question)

    def steps(self, question: Symbols) -> list[Symbols]:
        """Returns the expression after each step; raises ValueError as :meth:`check`."""
        encode(self, question)
        if (k := sum(symbol in PRECEDENCE for symbol in question)) != self.operations:
            raise ValueError(
                f"a question of {self} must have {self.operations} operations, got {k}; see "
                "task.sample(generator)"
            )
        found = [question]
        while len(found[-1]) > 1:
            first, last = handle(expression := found[-1])
            left, operator, right = (
                symbol for symbol in expression[first : last + 1] if symbol not in (OPEN, CLOSE)
            )
            found.append(
                (*expression[:first], operate(left, operator, right, self.modulus), *expression[last + 1 :])
            )
        return found[1:]

    def chain(self, question: Symbols) -> Symbols:
        """Returns the expressions after each step, separated by "="."""
        return joined(self.steps(question))

    def following(self, question: Symbols, chain: Symbols) -> Iterator[str]:
        """Computes the first operation on two numbers in the syntax tree that Python's parser makes of the
        given expression before.
        """
        while len(question) > 1:
            nodes = [node for node in ast.walk(parsed(question)) if isinstance(node, ast.BinOp)]
            node = min(
                (n for n in nodes if {type(n.left), type(n.right)} == {ast.Constant}),
                key=lambda node: node.col_offset,
            )
            place = len(" ".join(question)[: node.col_offset].split())
            enclosed = question[place - 1 : place] == (OPEN,) and question[place + 3 : place + 4] == (CLOSE,)
            step = (
                *question[: place - enclosed],
                str(value(node) % self.modulus),
                *question[place + 3 + enclosed :],
            )
            yield from (*step, THEN) if len(step) > 1 else step
            question, chain = chain[: len(step)], chain[len(step) + 1 :]

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns the last symbol."""
        return chain[-1:]

    def solve(self, question: Symbols) -> Symbols:
        """Evaluates the integer expression that Python's parser finds, and reduces the result."""
        return (str(value(parsed(question)) % self.modulus),)

    def chain_length(self, question: Symbols) -> int:
        """At most k^2 + (k - 1)^2: an expression of j > 0 operations has at most 2 j + 1 symbols and j - 1
        pairs of brackets.
        """
        return self.operations**2 + (self.operations - 1) ** 2


@dataclass(frozen=True)
class Equations:
    """Linear equations modulo a prime with exactly one solution; ``questions`` is exact.

    Args:
        variables: number m of variables and of equations.
        modulus: a prime p.
    Raises:
        ValueError: there is no variable, or the modulus is no prime.
    """

    variables: int = 2
    modulus: int = 5

    def __post_init__(self):
        integers(variables=self.variables)
        integers(minimum=2, modulus=self.modulus)
        if any(self.modulus % d == 0 for d in range(2, self.modulus)):
            raise ValueError(
                f"modulus must be a prime, so that pivots have inverses, got {self.modulus}; take 5 or 7"
            )

    @property
    def symbols(self) -> Symbols:
        """Numbers and the bar between equations."""
        return (*map(str, range(self.modulus)), BAR)

    @property
    def questions(self) -> int:
        """Number of invertible matrices times right-hand sides."""
        p, m = self.modulus, self.variables
        return p**m * math.prod(p**m - p**i for i in range(m))

    def sample(self, generator: Generator) -> Sample:
        """Draws uniformly: matrices until one is invertible, and a right-hand side."""
        m = self.variables
        while True:
            numbers = draw(generator, self.modulus, m * (m + 1))
            question = as_rows([numbers[i * (m + 1) : (i + 1) * (m + 1)] for i in range(m)])
            try:
                return completed(self, question)
            except ValueError:
                continue

    def check(self, question: Symbols) -> None:
        """Raises ValueError for other symbols, or equations without exactly one solution."""
        self.steps(question)

    def matrix(self, symbols: Symbols) -> list[list[int]]:
        """Reads m rows of m + 1 numbers."""
        m = self.variables
        return [[int(symbols[r * (m + 2) + c]) for c in range(m + 1)] for r in range(m)]

    def steps(self, question: Symbols) -> list[list[list[int]]]:
        """Returns the matrix after each step; raises ValueError as :meth:`check`."""
        p, m, found = self.modulus, self.variables, []
        row = [self.symbols[:-1]] * (m + 1)
        check_places(self, question, [*([*row, (BAR,)] * (m - 1)), *row])
        matrix = self.matrix(question)
        for i in range(m):
            row = next((r for r in range(i, m) if matrix[r][i]), None)
            if row is None:
                raise ValueError(
                    f"the equations must have exactly one solution, got {' '.join(question)!r}; change a "
                    "coefficient"
                )
            matrix[i], matrix[row] = matrix[row], matrix[i]
            inverse = pow(matrix[i][i], -1, p)
            matrix[i] = [x * inverse % p for x in matrix[i]]
            for r in range(m):
                if r != i:
                    matrix[r] = [(x - matrix[r][i] * y) % p for x, y in zip(matrix[r], matrix[i])]
            found.append([*matrix])
        return found

    def chain(self, question: Symbols) -> Symbols:
        """Returns the matrix after each step, separated by "="."""
        return joined([as_rows(matrix) for matrix in self.steps(question)])

    def following(self, question: Symbols, chain: Symbols) -> Iterator[str]:
        """An entry of the pivot's row times the pivot is the entry before; another one plus its factor times
        that of the pivot's row is.
        """
        p, m, given = self.modulus, self.variables, question
        for i in range(m):
            before = self.matrix(given)
            row = next(r for r in range(i, m) if before[r][i])
            before[i], before[row] = before[row], before[i]
            unit = [next(x for x in range(p) if (before[i][i] * x - y) % p == 0) for y in before[i]]
            after = [
                unit
                if r == i
                else [next(x for x in range(p) if (x + z[i] * u - y) % p == 0) for y, u in zip(z, unit)]
                for r, z in enumerate(before)
            ]
            yield from (*((THEN,) if i else ()), *as_rows(after))
            given = chain[i * m * (m + 2) :]

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Returns the last column of the last matrix."""
        m = self.variables
        size = m * (m + 2) - 1
        return chain[-size:][m :: m + 2]

    def solve(self, question: Symbols) -> Symbols:
        """Tries every value of the variables; the first solution is the only one."""
        p, m, rows = self.modulus, self.variables, self.matrix(question)
        for x in product(range(p), repeat=m):
            if all(sum(a * b for a, b in zip(row, x)) % p == row[m] for row in rows):
                return tuple(map(str, x))
        return ()

    def chain_length(self, question: Symbols) -> int:
        """Exactly m^2 (m + 2) - 1: m matrices of m (m + 2) - 1 symbols, with "=" between them."""
        return self.variables**2 * (self.variables + 2) - 1


def as_rows(matrix: Sequence[Sequence[int]]) -> Symbols:
    """Writes the rows of a matrix with bars between them."""
    return tuple(
        symbol for i, row in enumerate(matrix) for symbol in (*((BAR,) if i else ()), *map(str, row))
    )


def joined(steps: Sequence[Symbols]) -> Symbols:
    """Writes steps with "=" between them."""
    return tuple(symbol for i, step in enumerate(steps) for symbol in (*((THEN,) if i else ()), *step))
