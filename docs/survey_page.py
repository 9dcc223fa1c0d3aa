"""Sets the example section of a survey and stores its pictures: ``python docs/survey_page.py`` writes
docs/figures/survey-1.png and survey-2.png, a page each.

The source is docs/survey/survey.tex. All of its numbers are macros made from the stored reach (docs/reach)
and the stored ledger (docs/claims.json). The pictures carry a fingerprint of the source and of the macros
that it uses, so a test finds outdated pictures.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from transformer_theory.comparison.pooling import Aggregate
from transformer_theory.report import aggregate, stored_results
from transformer_theory.report.figures import draw, for_paper
from transformer_theory.report.macros import Macro, definitions, macros
from transformer_theory.report.origins import references
from transformer_theory.report.paper import COLUMN

DOCS = Path(__file__).parent
SOURCE = DOCS / "survey" / "survey.tex"
PICTURES = tuple(DOCS / "figures" / f"survey-{page}.png" for page in (1, 2))
RESULTS = (DOCS / "reach", DOCS / "claims.json")
KEY = "fingerprint"  # field of the pictures' metadata
DPI = 110


def results() -> Aggregate:
    """Loads the results of the page."""
    return aggregate([stored.result for stored in stored_results(RESULTS)])


@cache
def defined(combined: Aggregate) -> list[Macro]:
    """Returns all macros of the results."""
    return macros(combined)


def used(combined: Aggregate) -> list[Macro]:
    """Returns the macros that the source uses, in the order of the list.

    Raises:
        ValueError: a macro is not defined.
    """
    names = set(re.findall(r"\\(TT[A-Za-z]+)", SOURCE.read_text(encoding="utf-8")))
    found = [macro for macro in defined(combined) if macro.name in names]
    if missing := sorted(names - {macro.name for macro in found}):
        raise ValueError(
            f"{SOURCE} uses macros that its results do not define: {', '.join(missing)}; look for their new "
            "names in macros.tex"
        )
    return found


def fingerprint(combined: Aggregate) -> str:
    """Returns the SHA-256 of the source and of what its macros print."""
    values = "".join(f"{macro.name} {macro.text}\n" for macro in used(combined))
    return hashlib.sha256(SOURCE.read_bytes() + values.encode()).hexdigest()


def compile_page(combined: Aggregate, folder: Path) -> Path:
    """Writes the source and the files of ``report --latex`` that it needs into a folder, and returns the PDF
    that LaTeX makes there.

    Raises:
        RuntimeError: LaTeX fails.
    """
    drawn = draw([picture for picture in for_paper(combined) if picture.name == COLUMN])
    if drawn.failed:
        raise RuntimeError(drawn.failed[0])
    texts = {"macros.tex": definitions(combined), "references.bib": references(combined.results)}
    files = {name: text.encode() for name, text in texts.items()} | {
        f"figures/{name}": data for name, data in drawn.files.items()
    }
    for name, data in files.items():
        path = folder / "tables" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / SOURCE.name).write_bytes(SOURCE.read_bytes())
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", SOURCE.stem]
    for command in (latex, ["bibtex", SOURCE.stem], latex, latex):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout[-1500:]}")
    return folder / f"{SOURCE.stem}.pdf"


def main() -> int:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    combined = results()
    with tempfile.TemporaryDirectory() as name:
        pdf = compile_page(combined, Path(name))
        subprocess.run(["pdftoppm", "-r", str(DPI), "-png", pdf.name, "page"], cwd=name, check=True)
        described = PngInfo()
        described.add_text(KEY, fingerprint(combined))
        for number, path in enumerate(PICTURES, 1):
            with Image.open(Path(name) / f"page-{number}.png") as page:
                page.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(
                    path, pnginfo=described, optimize=True
                )
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
