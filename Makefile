# Two commands need nothing but Python 3.11+, make and the package index: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Tests that run at the same time, each run with servers of its own: most of them wait for something.
AT_ONCE ?= 4

.PHONY: demo test lint wheel bench bench-quick soak soak-upkeep forty-kills clean help

help:
	@echo "make demo         20,000 messages through a real worker that is killed midway"
	@echo "make test         the whole test suite on real servers"
	@echo "make lint         ruff and strict mypy"
	@echo "make wheel        build the wheel, install it into a clean environment, run it once"
	@echo "make bench        against a loop by hand, FastStream, procrastinate, pgqueuer and PostgreSQL itself: some 40 minutes"
	@echo "make bench-quick  the same in two minutes: one round, small sizes"
	@echo "make soak         five minutes of kills, stops and cut connections, then a count from outside"
	@echo "make soak-upkeep  three minutes of a real scheduler, twice over, and a real worker"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Switchboard needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/switchboard demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest tests --ignore tests/concurrency --numprocesses $(AT_ONCE) --dist worksteal
	$(BIN)/python -X dev -m pytest tests/concurrency

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(VENV)/.installed
	rm -rf dist build/wheel-check
	$(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	build/wheel-check/bin/switchboard --help > /dev/null
	cd build && wheel-check/bin/python -c 'import switchboard.ledger.migrator as m; assert list(m.shipped_migrations()), "the wheel has no migrations"'

soak: $(VENV)/.installed
	$(BIN)/python -m soak.run

soak-upkeep: $(VENV)/.installed
	$(BIN)/python -m soak.upkeep

forty-kills: $(VENV)/.installed
	$(BIN)/python -m soak.forty_kills

$(VENV)/.bench-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

bench: $(VENV)/.bench-installed
	$(BIN)/python -m bench.run

bench-quick: $(VENV)/.bench-installed
	$(BIN)/python -m bench.run --quick

clean:
	rm -rf $(VENV) build dist
