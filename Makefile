# Everything a fresh clone needs: `make demo` trains, `make test` tests. Python 3.11+ and make are the only things assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-all lint docs clean

demo: $(VENV)/.installed
	$(BIN)/burnish demo

test: $(VENV)/.installed-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS) -m "not long"

test-all: $(VENV)/.installed-test-all
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS)

docs: $(VENV)/.installed
	$(BIN)/python -m burnish.config.keys_doc

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(VENV)/.installed-test-all: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test-all]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
