# SPDX-License-Identifier: Apache-2.0
# Every target sets up .venv by itself from the lock file. `make PYTHON=python3.12 test` picks another Python.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
PYTEST_ARGS ?=
CORE_TIERS := tests/pure tests/torch tests/verilator tests/yosys tests/formal tests/e2e tests/opencl

# One thread a test process: two processes share the machine. Byte code is kept, whatever the shell
# says: tests start many programs, and each would compile the package anew.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: demo test test-long test-all proofs lint format docs references setup clean

demo: $(STAMP)
	$(BIN)/bitwright build digits

test: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist=loadgroup -m "not slow and not long" $(PYTEST_ARGS)

# Whole flows beside those of the default run: other boards, families, recipes.
test-long: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist=loadgroup -m "long and not slow" $(PYTEST_ARGS)

test-all: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist=loadgroup $(PYTEST_ARGS)

# Of the hardware library, with the faults that each proof must find.
proofs: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) -m "" tests/formal $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# Pages that are made from the code; a test holds that they are current.
references: $(STAMP)
	$(BIN)/python -m bitwright.hw > docs/dialects.md
	$(BIN)/python -m bitwright.engine
	$(BIN)/python tools/references.py

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@sh tools/check_system.sh "$(PYTHON)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
