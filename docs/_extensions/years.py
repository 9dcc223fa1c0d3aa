"""A letter after the year where several papers share it and their authors, as everywhere in the library:
"Tarzanagh et al. (2023a)".
"""

from typing import Any

from transformer_theory.core import sources as citations


def lettered(app: Any, env: Any, *_: Any) -> None:
    for key, entry in env.get_domain("cite").bibdata.data.entries.items():
        entry.fields["year"] = citations.year(key)


def setup(app: Any) -> dict[str, bool]:
    app.connect("env-before-read-docs", lettered)
    return {"parallel_read_safe": True}
