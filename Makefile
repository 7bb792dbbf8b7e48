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

.PHONY: attack test slow nightly engines coverage lowest newest mutants fuzz lint types mypy pyright docs notebooks lock lock-check sbom clean

# LOCKED=1 installs exactly what requirements/ci.txt names, checked by hashes
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
ifdef LOCKED
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/ci.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install --quiet -e ".[dev]"
endif
	touch $@

attack: $(VENV)/installed
	$(BIN)/fdgsec attack

# a worker of pytest on every core: more threads would only wait for each other
test slow nightly: export OMP_NUM_THREADS = 1
# pytest keeps the tests that it has compiled, else every worker compiles all of them in every run
test slow nightly: export PYTHONDONTWRITEBYTECODE =

UNSET := tests/end_to_end/test_threads.py

# tests of less than a second each
test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not (medium or slow)"

# one worker more than cores, because Flower's processes wait for each other for seconds in every step
WAITING := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# tests of a second or more but for those that say nothing where the number of threads is set: CI runs all three
slow: $(VENV)/installed
	$(BIN)/python -m pytest -n $(WAITING) --dist worksteal -m "(medium or slow) and not nightly" --ignore $(UNSET)

# experiments that are repeated until a rate can be told: every night, and before a release
nightly: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m nightly

# lines and branches of four packages that unit tests reach, all but the slow ones
COVERED := federation privacy threats metrics
COVERING := $(COVERED:%=tests/unit/%) tests/unit/defenses tests/unit/attacks/test_poisoning.py \
	$(wildcard tests/unit/experiments/test_flower*.py)
coverage: export OMP_NUM_THREADS = 1
coverage: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(COVERING) $(COVERED:%=--cov=fdgsec.%) --cov-branch \
		--cov-report=term:skip-covered --cov-fail-under=90

# as users run it: no variable says how many threads
engines: $(VENV)/installed
	env -u OMP_NUM_THREADS $(BIN)/python -m pytest -n auto --dist worksteal $(UNSET) tests/unit/federation/test_engines.py \
		tests/unit/federation/test_engines_processes.py

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

# what requirements/*.txt are made from: pyproject.toml, for 64-bit Linux and the oldest Python
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 --custom-compile-command "make lock"

# newest versions: make lock UPGRADE=--upgrade
lock: $(VENV)/installed
	$(LOCK) $(UPGRADE) --extra dev pyproject.toml requirements/build.in -o requirements/ci.txt
	$(LOCK) $(UPGRADE) pyproject.toml requirements/build.in -o requirements/run.txt
	$(LOCK) $(UPGRADE) --resolution lowest-direct pyproject.toml -o requirements/lowest.txt

# asks the package index: is every lock what `make lock` would write? tests/unit/test_release.py asks pyproject.toml alone
lock-check: $(VENV)/installed
	mkdir -p build && rm -rf build/requirements && cp -r requirements build/requirements
	$(LOCK) --extra dev pyproject.toml requirements/build.in -o build/requirements/ci.txt
	$(LOCK) pyproject.toml requirements/build.in -o build/requirements/run.txt
	$(LOCK) --resolution lowest-direct pyproject.toml -o build/requirements/lowest.txt
	diff -r requirements build/requirements

# the fast tests of methods, attacks, defenses and metrics with the lowest versions that pyproject.toml allows
lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --require-hashes -r requirements/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet "pytest>=8.2" "pytest-xdist>=3.6" "hypothesis>=6.100"
	.venv-lowest/bin/python -m pip install --quiet --no-deps -e .
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n auto --dist worksteal -m "not slow" tests/golden tests/property tests/unit/attacks \
		tests/unit/defenses tests/unit/metrics tests/unit/privacy

# the same with the newest
newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e ".[dev]"
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -n auto --dist worksteal -m "not slow" tests/golden tests/property tests/unit/attacks \
		tests/unit/defenses tests/unit/metrics tests/unit/privacy

# CycloneDX: the packages of requirements/run.txt, with hashes
sbom: $(VENV)/installed
	mkdir -p build
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible --of JSON \
		-o build/sbom.json requirements/run.txt

clean:
	rm -rf $(VENV) build dist *.egg-info
