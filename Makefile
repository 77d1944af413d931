# Two commands: `make run` simulates a peptide in water, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint types clean

run: .venv/installed
	$(BIN)/mlff-triton md alanine-dipeptide-water --minimize --temperature 300 --timestep 1 --every 10 \
	  --ensemble nvt --steps 1000 --ensemble nve --steps 1000 --out runs/alanine-dipeptide-water --overwrite

test: .venv/tested lint types
	$(BIN)/python -m pytest -n auto

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/tested
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
