# Everything works from a fresh clone with Python 3.11 or newer, pip and make: what a target needs, it installs
# into .venv first. PYTHON chooses another interpreter, VENV another folder.

PYTHON ?= python3
VENV ?= .venv
INPUT ?= samples/one_row.json
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: run test check format lint types fuzz bench bench-gpu clean help

run: $(VENV)/.installed ## verify one input: make run, or make run INPUT=path
	@$(BIN)/specdec run "$(INPUT)"

test: $(VENV)/.dev ## run all tests
	@$(BIN)/python -m pytest -n auto

check: lint types test ## format, lint, types and tests, as in CI; changes nothing

format: $(VENV)/.dev ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

lint: $(VENV)/.dev ## check the format, and the code for common faults
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .

types: $(VENV)/.dev ## check the types
	@$(BIN)/mypy

fuzz: $(VENV)/.dev ## 20,000 damaged files, 100,000 random rows, 60 kills, and a minute of coverage-guided fuzzing
	@SPECDEC_MUTANTS=20000 SPECDEC_EXAMPLES=300 SPECDEC_KILLS=60 \
	  $(BIN)/python -m pytest -n auto tests/test_fuzz.py tests/test_oracle.py tests/test_folder.py
	@if $(PIP) atheris 2>/dev/null; then $(BIN)/python tests/fuzz_coverage.py 60; \
	  else echo "atheris does not install here: no coverage-guided fuzzing"; fi

bench: $(VENV)/.dev ## measure exactness, files, growth, the kernel, many inputs, float32 sums, processes, into .bench/
	@$(BIN)/python tests/benchmarks/exactness.py
	@$(BIN)/python tests/benchmarks/files.py
	@$(BIN)/python tests/benchmarks/growth.py
	@$(BIN)/python tests/benchmarks/kernel.py
	@$(BIN)/python tests/benchmarks/many.py
	@$(BIN)/python tests/benchmarks/near_ties.py
	@$(BIN)/python tests/benchmarks/processes.py

bench-gpu: $(VENV)/.dev ## the kernel's table on a GPU, if there is one
	@$(BIN)/python tests/benchmarks/kernel.py --device gpu

clean: ## remove what the targets made
	rm -rf .venv* .bench build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(MAKEFILE_LIST) | column -t -s '#' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' $(MAKEFILE_LIST)

# A stamp is written last, so that an interrupted installation is done again.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "specdec needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@echo "Installing into $(VENV), once; this can take a minute ..." >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@$(PIP) --editable '.[dev]'
	@touch $@
