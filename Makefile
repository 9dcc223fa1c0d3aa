# make demo: the main job.  make test: all tests.  Both install what they need into .venv first.
PYTHON ?= python3
BIN := .venv/bin
THEORY ?= attention_svm
WORKERS ?= 2
# Compiled modules are kept even if the environment says otherwise: a start is twice as fast. They are compiled when they are first used
# (--no-compile below), which halves the time of the installation.
export PYTHONDONTWRITEBYTECODE :=
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench figures ledger reach atlas mutants docs notebook wheels clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-7s %s\n", $$1, $$2}'

demo: .venv/.installed  ## all theories on the same real data; the page is runs/digits/report.html
	@$(BIN)/transformer-theory compare --data digits --claim-seeds 1 --workers $(WORKERS) --out runs/digits --overwrite

test: .venv/.installed  ## all tests
	@$(BIN)/pytest -n 2 --dist worksteal

lint: .venv/.installed  ## style and types, and the size in statements of each part
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@$(BIN)/python -m benchmarks.size

bench: .venv/.installed  ## speed and memory, ours against the textbook version
	@$(BIN)/python -m benchmarks

figures: .venv/.installed  ## all experiments of THEORY in WORKERS processes, stored in runs/figures, and their page in docs/theories
	@names=$$($(BIN)/python -c "from transformer_theory.theories import theory; print(*(kind.name for kind in theory('$(THEORY)').experiments))"); \
		for name in $$names; do $(BIN)/transformer-theory run $$name --workers $(WORKERS) --out runs/figures/$$name --overwrite; done
	@$(BIN)/python docs/figure_table.py $(THEORY)

ledger: .venv/.installed  ## every claim, quick ones on 100 seeds and trainings on 5, in WORKERS processes; the page is docs/claims.md
	@$(BIN)/transformer-theory verify quick --seeds 100 --workers $(WORKERS) --out runs/ledger/quick --overwrite || test $$? -eq 1
	@$(BIN)/transformer-theory verify training --seeds 5 --workers $(WORKERS) --out runs/ledger/training --overwrite || test $$? -eq 1
	@$(BIN)/python -m transformer_theory.report.ledger runs/ledger/quick runs/ledger/training docs/claims.md

reach: .venv/.installed  ## the ladders of all theories on 5 seeds, in WORKERS processes; the page is docs/reach.md
	@$(BIN)/transformer-theory reach --workers $(WORKERS) --out runs/reach
	@$(BIN)/python docs/reach_pages.py docs runs/reach

atlas: .venv/.installed  ## networks MODELS on the text TEXT and the images IMAGES, with interventions; the page is runs/atlas/report.html
	@mkdir -p runs/atlas
	@$(BIN)/transformer-theory measure $(MODELS) --interventions $(if $(TEXT),--text $(TEXT)) $(if $(IMAGES),--data $(IMAGES)) \
		$(if $(MINUTES),--minutes $(MINUTES)) --out runs/atlas

mutants: .venv/.installed  ## errors in the mathematics that claims and tests must detect, by hand and at random; the scores are in docs/claims.md
	@$(BIN)/python -m benchmarks.mutants --workers $(WORKERS)
	@$(BIN)/python -m benchmarks.random_mutants --workers $(WORKERS)
	@$(BIN)/python -m benchmarks.random_mutants core data probes report training --count 30 --workers $(WORKERS) \
		--page docs/random_mutants_frame.json
	@$(BIN)/python -m benchmarks.random_mutants.frame_page
	@$(BIN)/python -m transformer_theory.report.ledger docs/claims.md

docs: .venv/.docs  ## the documentation with the page of the demo, as docs/_build/html/index.html
	@test -f runs/digits/report.html || $(MAKE) --no-print-directory demo
	@$(BIN)/python docs/demo_rows.py
	@mkdir -p docs/_demo && cp runs/digits/report.html docs/_demo/demo.html
	@OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@$(BIN)/pytest -q tests/test_docs_search.py
	@echo "docs/_build/html/index.html"

notebook: .venv/.notebook  ## the quickstart in Jupyter
	@$(BIN)/jupyter lab docs/notebooks/quickstart.ipynb

wheels:  ## the wheel, installed elsewhere with every Python 3.11 to 3.13 that is found, and with uv; downloads all dependencies
	@"$(PYTHON)" tests/wheels.py

clean:  ## remove .venv, runs and all other generated files
	rm -rf .venv runs build docs/_build docs/_demo docs/auto_examples docs/api/generated .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt
	@command -v "$(PYTHON)" > /dev/null || { echo "no $(PYTHON) here: install Python 3.11 or later, or run make PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2> /dev/null \
		|| { echo "Python 3.11 or later is needed, $(PYTHON) is $$("$(PYTHON)" --version 2>&1 | head -n 1); run make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2> /dev/null \
		|| { echo "$(PYTHON) comes without venv: install it (Debian, Ubuntu: sudo apt install python3-venv) and run make again"; exit 1; }
	@echo "installing into .venv (once; torch is large, so this may take minutes)"
	@"$(PYTHON)" -m venv .venv
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

.venv/.notebook: .venv/.installed
	@echo "installing Jupyter into .venv (once)"
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[notebook]"
	@touch $@

.venv/.docs: .venv/.installed
	@echo "installing the documentation tools into .venv (once)"
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@
