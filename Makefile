# Every target sets itself up: a machine needs make and one Python from 3.11 to 3.13.
# Another interpreter or folder: make test PYTHON=python3.13 VENV=.venv-313

PYTHON ?= python3
VENV ?= .venv
# A script of benchmarks/ alone: make bench BENCHMARKS=benchmarks.NAME
BENCHMARKS ?= $(patsubst benchmarks/%.py,benchmarks.%,$(filter-out benchmarks/_% benchmarks/common.py,$(wildcard benchmarks/*.py)))

EXTRAS := test,plot,arviz,progress,bench,docs
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# Tests and examples draw to files, never to a screen.
export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench docs clean

help:
	@echo "make demo       fit, predict and plot on a small data set"
	@echo "make test       all quick tests and the examples in docstrings"
	@echo "make test-slow  the tests marked slow"
	@echo "make lint       ruff"
	@echo "make bench      the measurements in benchmarks/"
	@echo "make docs       build docs/ and run the examples in it and in README.md"
	@echo "make clean      remove $(VENV) and everything built"

setup: $(STAMP)

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "$(PYTHON) is not a Python from 3.11 to 3.13; choose one with PYTHON=..." >&2; exit 1; }
	@# A half-made environment would look finished to the next call.
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The interpreter is order-only: its date is that of the system's Python.
$(STAMP): pyproject.toml constraints.txt | $(RUN)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)
	$(RUN) -m skbayes_shard.demo

test: $(STAMP)
	$(RUN) -m pytest -q -m "not slow"

test-slow: $(STAMP)
	$(RUN) -m pytest -q -m slow

lint: $(STAMP)
	$(RUN) -m ruff check .

bench: $(STAMP)
	@set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(RUN) -m $$name; done

docs: $(STAMP)
	$(RUN) -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(RUN) docs/run_examples.py README.md docs/*.md

clean:
	rm -rf $(VENV) build dist demo_output docs/_build docs/generated
	rm -rf *.egg-info .pytest_cache .ruff_cache
	find skbayes_shard tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
