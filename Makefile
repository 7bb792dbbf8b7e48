# Two commands on a fresh machine: `make attack` and `make test`. Real PACS is used where FDGSEC_DATA points to it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ifneq ($(wildcard ../shared/data),)
export FDGSEC_DATA ?= $(abspath ../shared/data)
endif
ifneq ($(wildcard ../shared/weights),)
export FDGSEC_WEIGHTS ?= $(abspath ../shared/weights)
endif

.PHONY: attack test slow engines mutants fuzz lint types mypy pyright docs notebooks clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

attack: $(VENV)/installed
	$(BIN)/fdgsec attack

# a worker of pytest on every core: more threads would only wait for each other
test slow: export OMP_NUM_THREADS = 1
# pytest keeps the tests that it has compiled, else every worker compiles all of them in every run
test slow: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto -m "not slow"

slow: $(VENV)/installed
	$(BIN)/python -m pytest -n auto -m slow

# as users run it: no variable says how many threads
engines: $(VENV)/installed
	env -u OMP_NUM_THREADS $(BIN)/python -m pytest tests/end_to_end/test_threads.py tests/unit/federation/test_engines.py

# hours, and no part of CI: docs/testing.md
mutants: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -e ".[mutants]"
	OMP_NUM_THREADS=1 nice $(BIN)/python -m benchmarks.mutants

# an hour; crashes are written to tests/fuzz/corpus
fuzz: $(VENV)/installed
	OMP_NUM_THREADS=1 nice $(BIN)/python -m benchmarks.fuzz_table --seconds 3600

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: mypy pyright

mypy: $(VENV)/installed
	$(BIN)/mypy

pyright: $(VENV)/installed
	$(BIN)/pyright --pythonpath $(BIN)/python

# into build/site; every warning is an error. The variable silences an advertisement of the theme's.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/installed
	$(BIN)/python -m mkdocs --quiet build --strict

notebooks: $(VENV)/installed
	$(BIN)/python notebooks/build.py

clean:
	rm -rf $(VENV) build dist *.egg-info
