"""Notebooks made from their text sources: ``python docs/notebook.py`` writes ``quickstart.ipynb`` from
``quickstart.py``.

The source is Python with comments (the format "py:percent" of jupytext). The notebook has no outputs: the
documentation executes it.
"""

from pathlib import Path

FOLDER = Path(__file__).with_name("notebooks")


def notebook(source: Path) -> str:
    """The notebook of a source as JSON. Cells are numbered, so that equal sources give equal bytes."""
    import jupytext

    made = jupytext.read(source)
    made.metadata = {"kernelspec": made.metadata["kernelspec"], "language_info": {"name": "python"}}
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
    return jupytext.writes(made, fmt="ipynb") + "\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")
