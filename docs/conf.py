"""Sphinx: MyST pages, the examples as a gallery, and the bibliography that the code cites."""

from transformer_theory import __version__

project = "transformer_theory"
author = "The transformer_theory developers"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinxcontrib.bibtex", "sphinx_gallery.gen_gallery"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
bibtex_bibfiles = ["../transformer_theory/references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "abort_on_example_error": True,
    "show_memory": False,
    "show_signature": False,
}
suppress_warnings = ["config.cache"]  # the gallery's settings cannot be cached, which changes nothing in the pages
exclude_patterns = ["_build", "auto_examples/*.ipynb"]

html_theme = "furo"
html_title = "Theories of transformers"
