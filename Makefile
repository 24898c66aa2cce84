# make demo   small federations on made-up images, in a few minutes, without data and without a network
# make test   everything that must hold before a change lands, with JOBS test files at a time
#
# Both set up what they need in $(VENV). torch comes first and is pinned; name another index where you like, e.g.
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu     (a machine without a GPU need not download CUDA)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
JOBS ?= 2
DEMO ?= demo
DEMO_OPTIONS ?=
BIN = $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/.ready
	$(BIN)/medfl demo --out $(DEMO) $(DEMO_OPTIONS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install -q -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo build *.egg-info .mypy_cache .ruff_cache .import_linter_cache
