# `make demo` and `make test` need nothing but Python 3.11 to 3.13 and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .bench/peers-venv
PHOTOS ?=
WORKERS ?= 2
# Tests of one file stay together and share what they made. Files of long tests come first, those of unit tests last:
# no worker is left alone with a long one at the end.
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Bytecode of the tests is kept also where no bytecode is written otherwise: collecting them takes half as long.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(SHARED)

# make chaos CHAOS="--seed 7 --kills 200 --jobs 4"
CHAOS ?=

.PHONY: demo test test-all chaos check bench clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(PYTEST) -m "not slow"

test-all: $(READY)
	$(PYTEST)

chaos: $(READY)
	$(BIN)/python -m tests.process.chaos $(CHAOS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) $(PEERS)/.ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m bench $(if $(PHOTOS),--photos "$(PHOTOS)") $(BENCH)

# Compiled as pip leaves packages: where no bytecode is written, each process would compile all of src for a second.
$(READY): pyproject.toml constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	$(BIN)/python -m compileall -q src
	touch $@

$(PEERS)/.ready: bench/peers-requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/peers-requirements.txt
	touch $@

clean:
	rm -rf $(VENV) .bench .demo
