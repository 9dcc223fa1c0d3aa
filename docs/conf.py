"""Sphinx: MyST pages, the examples as a gallery, the API from the docstrings, and the bibliography that the
code cites.
"""

import sys
from pathlib import Path

from transformer_theory import __version__

sys.path.insert(0, str(Path(__file__).with_name("_extensions")))

project = "transformer_theory"
author = "The transformer_theory developers"
copyright = author
release = version = __version__

extensions = [
    "myst_nb",  # MyST pages, and notebooks, which are executed
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.bibtex",
    "sphinx_gallery.gen_gallery",
    "formulas",
    "namespaces",
    "years",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # the code of the package may have changed
nb_execution_in_temp = True
nb_execution_timeout = 300  # seconds per cell
nb_execution_raise_on_error = True
bibtex_bibfiles = ["../transformer_theory/core/references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"
# the gallery's settings cannot be cached, which changes nothing in the pages
suppress_warnings = ["config.cache"]
exclude_patterns = [
    "_build",
    "_templates",
    "_extensions",
    "auto_examples/*.ipynb",
    "atlas_networks.md",
    "attack_rows.md",
    "atlas_table.md",
    "atlas_findings.md",
    "atlas_numbers.md",
    "length_sinks.md",
    "frame_mutants.md",
    "intervention_tables.md",
    "reach_findings.md",
    "reach_rungs.md",
    "notebooks/*.py",
]
templates_path = ["_templates"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "abort_on_example_error": True,
    "parallel": 2,  # examples at a time
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "image_scrapers": ("gallery_figures",),
    "capture_repr": (),
    "thumbnail_size": (640, 256),  # the shape of most figures
    "within_subsection_order": "FileNameSortKey",
}

autosummary_generate = True
autosummary_ignore_module_all = False  # what a namespace exports is what it documents
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # shapes stand in the text

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "Theories of transformers"
html_static_path = ["_static"]
# the page of the demo; `make docs` copies it
html_extra_path = ["_demo"] if Path(__file__).with_name("_demo").is_dir() else []
html_css_files = ["wide.css"]
