"""Size of the package in statements and syntax nodes, per theory and per part: ``python -m benchmarks.size``.

Lines measure the layout; statements measure what a reader has to understand. A docstring is no statement.
The numbers are a report and no limit.
"""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "transformer_theory"


def size(path: Path) -> Counter[str]:
    """Counts files, lines, statements without docstrings, and syntax nodes of one file."""
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    texts = sum(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for node in nodes
    )
    statements = sum(isinstance(node, ast.stmt) for node in nodes) - texts
    return Counter(files=1, lines=text.count("\n"), statements=statements, nodes=len(nodes))


def part(path: Path) -> str:
    """Returns the part of the package to which a file belongs: ``"core"``, ``"theories/crate"``."""
    parts = path.relative_to(PACKAGE).parts
    return "/".join(parts[: 2 if parts[0] == "theories" and len(parts) > 2 else 1]).removesuffix(".py")


def main() -> None:
    """Prints one line per part and the sum."""
    sizes: dict[str, Counter[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        sizes.setdefault(part(path), Counter()).update(size(path))
    columns = ("files", "lines", "statements", "nodes")
    print(f"{'part':28}" + "".join(f"{name:>12}" for name in columns))
    total = sum(sizes.values(), Counter())
    for name, counts in [*sizes.items(), ("sum", total)]:
        print(f"{name:28}" + "".join(f"{counts[column]:>12,}" for column in columns))


if __name__ == "__main__":
    main()
