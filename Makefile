# Everything a fresh clone needs: `make demo` trains, `make test` tests. Python 3.11+ and make are the only things assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile

.PHONY: demo test test-all lint format docs clean

demo: $(VENV)/.installed
	$(BIN)/burnish demo

test: lint
	$(PYTEST) -m "not long"

test-all: lint $(VENV)/.installed-test-all
	$(PYTEST)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	$(BIN)/python -m burnish.config.keys_doc

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Burnish needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Type: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(VENV)/.installed-test-all: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test-all]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
