# `make run` simulates a peptide in water and aligns proteins, `make test` checks everything,
# `make docs` builds the documentation.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test test-bio-4 lint types docs clean

run: .venv/installed
	$(BIN)/mlff-triton md alanine-dipeptide-water --minimize --temperature 300 --timestep 1 --every 10 \
	  --ensemble nvt --steps 1000 --ensemble nve --steps 1000 --out runs/alanine-dipeptide-water --overwrite
	$(BIN)/python examples/07_align.py

test: .venv/tested lint types
	$(BIN)/python -m pytest -n auto

# Tests of `bio` with transformers 4, installed over the version that `make test` uses.
test-bio-4: .venv/transformers-4/installed
	PYTHONPATH=.venv/transformers-4 $(BIN)/python -m pytest -n auto tests/bio

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/tested
	$(BIN)/mypy

# Written to `site`; `.venv/bin/python -m mkdocs serve` shows pages while you edit them.
docs: .venv/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[align]'
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/documented: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv/transformers-4/installed: .venv/tested
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/transformers-4 \
	  huggingface_hub==0.36.2 tokenizers==0.22.2 transformers==4.57.1
	touch $@

clean:
	rm -rf .venv runs site
