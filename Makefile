# Every target makes .venv first when it is missing or older than its requirements.
PYTHON ?= python3
PORT ?= 8000
ROUNDS ?= 1
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: help venv demo test test-slow faults lint rush bench lock clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.runtime  ## .venv with what the shop needs, and nothing started

demo: $(VENV)/.runtime  ## the same burst through flawed and sound strategies; then a shop to look at
	$(RUN) manage.py demo --port $(PORT) $(ARGS)

rush: $(VENV)/.runtime  ## one burst, one verdict: make rush ARGS="--strategy lua --clients 50"
	$(RUN) manage.py rush $(ARGS)

bench: $(VENV)/.development  ## strategies or locks and their peers, as ratios: make bench ARGS=locks
	$(RUN) -m loadtest.bench $(ARGS)

test: $(VENV)/.development  ## the tests, in random order, but for the slow ones: make test ARGS="-k lease"
	$(RUN) -m pytest -m "not slow" $(ARGS)

test-slow: $(VENV)/.development  ## the slow ones: whole shops and commands, browsers, long searches, other servers
	$(RUN) -m pytest -m slow $(ARGS)

faults: $(VENV)/.development  ## parts of the shop are killed in the middle of bursts: make faults ROUNDS=20
	$(RUN) -m pytest tests/faults/test_faults*.py --dist load -v --rounds $(ROUNDS) $(ARGS)

lint: $(VENV)/.development  ## style, types, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --strict locking inventory servers
	$(VENV)/bin/lint-imports

lock: $(VENV)/.development  ## compile the requirements again, with hashes
	$(VENV)/bin/pip install --quiet uv
	$(VENV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet requirements.in --output-file requirements.txt
	$(VENV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet requirements-dev.in --output-file requirements-dev.txt

clean: $(VENV)/.runtime  ## stop the project's servers; remove their data (but not a RUN_FOLDER of yours), .venv and caches
	env -u DATABASE_URL -u REDIS_URL $(RUN) manage.py servers stop $(if $(RUN_FOLDER),,--delete)
	@$(if $(RUN_FOLDER),echo "$(RUN_FOLDER) stays: its data is yours to delete.")
	rm -rf $(VENV) celerybeat-schedule* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.runtime: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Last Unit needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	@echo "Installing into $(VENV): half a minute or so."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	touch $@

$(VENV)/.development: $(VENV)/.runtime requirements-dev.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	touch $@
