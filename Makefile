# Every target except help and clean makes the virtual environment first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Python compiles a module when it is first imported, and keeps the result: pip need not compile them all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo quick test nightly wheel-test slurm-test check bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with the tested versions

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'import holdover.cli'
	touch $(STAMP)

demo: setup ## two pretrained twins read a novel, one with a memory
	$(BIN)/holdover demo

quick: setup ## does the core hold? (a minute on two cores)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m quick

test: setup ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

nightly: setup ## run the slow tests that `make test` leaves out, and record the result
	$(BIN)/python tests/support/nightly.py

wheel-test: setup ## build the wheel, install it cleanly, run a command of every verb
	$(BIN)/python tests/packaging/check_wheel.py

slurm-test: setup ## start a SLURM cluster of one node on this machine and send jobs to it
	$(BIN)/python -m pytest tests/slurm -m slurm

check: setup ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

bench: setup ## measure speed (means something on a GPU); DIR=folder for the records
	$(BIN)/python benchmarks/speed.py --output $(or $(DIR),runs/speed)

clean: ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .ruff_cache
