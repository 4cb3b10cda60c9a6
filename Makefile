# make plan    price a whole model and say what to change, then one block (base dependencies only)
# make test    lint, types and tests
# make exhaustive  the tests with those that `make test` leaves out for time, and validate's full grid
# make docs    write the generated pages of docs/ anew
# make bench   start-up time, memory and warm calls against their budgets
# Each makes .venv when it is missing or out of date. Another interpreter: make PYTHON=python3.12 plan

PYTHON ?= python3
JOBS ?= 2
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TEST_EXTRAS := test,lint,reference,pandas,polars,arrow,plot,report,calibrate

.PHONY: plan test types executor exhaustive docs bench format constraints clean
.DELETE_ON_ERROR:

# $(call stage,NAME,COMMAND): runs it, then says how long it took.
stage = @echo "== $(1)"; start=$$SECONDS; $(2) || exit 1; echo "-- $(1): $$((SECONDS - start)) s"

plan: $(VENV)/base.stamp
	@$(BIN)/mla-cost plan moonlight-8-h100 --form laga --levers
	@echo
	@$(BIN)/mla-cost plan --scope attention

# A process that may not write bytecode compiles every module anew, and tests start many.
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS ?= 1

# pytest comes last and times itself: its closing line is the last that is printed.
test: $(VENV)/test.stamp
	$(call stage,ruff check,$(BIN)/ruff check .)
	$(call stage,ruff format,$(BIN)/ruff format --check .)
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target types executor
	@echo "== pytest"
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Each keeps one core busy, so they run side by side.
types: $(VENV)/test.stamp
	$(call stage,mypy,$(BIN)/mypy)

executor: $(VENV)/test.stamp
	$(call stage,validate,$(BIN)/mla-cost validate)

exhaustive: export MLA_COST_EXHAUSTIVE := 1
exhaustive: $(VENV)/test.stamp
	$(call stage,validate,$(BIN)/mla-cost validate --full)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Each page names the command that writes it; tests fail when one is stale.
docs: $(VENV)/base.stamp
	@$(BIN)/mla-cost evidence --format markdown > docs/evidence.md
	@$(BIN)/python docs/build.py
	@$(BIN)/python -m mla_cost.checks.schema

bench: $(VENV)/base.stamp
	@$(BIN)/python -m tests.benchmarks

format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The build backend is installed first so that building needs no second, unpinned environment.
$(VENV)/base.stamp: $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null) || found=missing; \
	  echo "mla-cost needs Python 3.11 or newer, and $(PYTHON) is $$found."; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; } >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(call stage,environment,$(INSTALL) hatchling && $(INSTALL) --no-build-isolation --editable .)
	@touch $@

# Only a part of what these bring is ever imported, and the first import compiles it.
$(VENV)/test.stamp: $(VENV)/base.stamp
	$(call stage,test environment,$(INSTALL) --no-compile --no-build-isolation --editable ".[$(TEST_EXTRAS)]")
	@touch $@

# Newest releases that pyproject.toml allows; torch stays at the pinned release, whose build is chosen by the index.
constraints:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(PYTHON) -m venv "$$dir" && \
	"$$dir/bin/python" -m pip install --quiet --disable-pip-version-check ".[$(TEST_EXTRAS)]" "$$(grep '^torch==' constraints.txt)" && \
	{ grep '^#' constraints.txt; "$$dir/bin/python" -m pip freeze --all --exclude pip --exclude mla-cost | sed 's/+cpu$$//'; } > "$$dir/new" && \
	cp "$$dir/new" constraints.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find mla_cost tests -name __pycache__ -prune -exec rm -rf {} +
