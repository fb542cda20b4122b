# Every target but help and clean makes the virtual environment first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# What is compiled when it is first imported is kept, so that not all that is installed need be compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test slurm-test check bench clean

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

test: setup ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

slurm-test: setup ## send jobs to a SLURM cluster of one node that is started on this machine
	$(BIN)/python -m pytest tests/slurm -m slurm

check: setup ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

bench: setup ## measure speed (means something on a GPU); DIR=folder for the records
	$(BIN)/python benchmarks/speed.py --output $(or $(DIR),runs/speed)

clean: ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .ruff_cache
