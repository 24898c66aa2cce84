# make demo   small federations on made-up images, in a few minutes, without data and without a network
# make test   everything that must hold before a change lands, with JOBS test files at a time
# make results   of that, the check that recomputes every number of the results pages from the raw results
# make test-all   the same with the tests marked as slow: before a release
# make test-flare   of that, a federation of NVIDIA FLARE's processes on this machine
# make tutorials   of those, the tutorials of the documentation
# make docs   the documentation as a site, in site/: no link may be broken, nothing may come from elsewhere
# make dist   wheel and sdist in dist/, checked for PyPI
# make mutants   put known faults into a copy, one at a time: each must be noticed by a test (some minutes; it goes on
#                where it was stopped; FAULTS='SCAFFOLD pFedMe' names some of them)
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

# pip compiles none of the thousands of modules that nobody imports. What the tests import, and the tests themselves, are
# compiled once for a new environment, for all processes; errors are those of the tests.
PIP = $(BIN)/python -m pip install -q --no-compile
export PYTHONDONTWRITEBYTECODE =
# glibc keeps freed memory. A run of medfl sets this itself; most tests train, score and read images outside of a run.
KEEP = MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4000000000

.PHONY: demo test test-all results suite test-flare tutorials docs dist mutants lint style types clean

demo: $(VENV)/.ready
	$(BIN)/medfl demo --out $(DEMO) $(DEMO_OPTIONS)

test: $(VENV)/.ready-dev
	$(MAKE) -j 2 types results suite SLOW='-m "not slow"'

test-all: $(VENV)/.ready-dev
	$(MAKE) -j 2 types results suite

results: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(KEEP) $(BIN)/medfl results check

suite: $(VENV)/.compiled style
	OMP_NUM_THREADS=1 $(KEEP) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(SLOW)

test-flare: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(KEEP) $(BIN)/python -m pytest -m flare tests/medfl_flare/processes

tutorials: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(KEEP) $(BIN)/python -m pytest -n 0 tests/test_tutorials.py tests/test_docs.py

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.ready-release
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

mutants: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(KEEP) $(BIN)/python tests/mutants/run.py $(if $(FAULTS),--only $(FAULTS))

lint: style types

types: $(VENV)/.ready-dev
	$(BIN)/mypy

style: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell medfl plugins data_prep bundles benchmarks studies docs *.md
	$(BIN)/lint-imports

$(VENV)/.compiled: $(VENV)/.ready-dev
	-@$(BIN)/python -m pytest --collect-only -q > /dev/null 2>&1
	touch $@

$(VENV)/.ready: pyproject.toml
	$(call install,.)
	touch $@

$(VENV)/.ready-dev: pyproject.toml
	$(call install,.[dev])
	touch $(VENV)/.ready $@

$(VENV)/.ready-docs: pyproject.toml
	$(call install,.[docs])
	touch $@

$(VENV)/.ready-release: pyproject.toml
	$(call install,.[release])
	touch $@

define install
$(PYTHON) -m venv $(VENV)
$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
$(PIP) -e "$(1)"
endef

clean:
	rm -rf $(VENV) demo dist site .mypy_cache .ruff_cache .import_linter_cache
