# Every target first makes .venv if .venv is missing or older than its requirements.
PYTHON ?= python3
PORT ?= 8000
ROUNDS ?= 1
VENV := .venv
RUN := $(VENV)/bin/python
COMPILE := $(VENV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet

.PHONY: help venv demo test test-slow faults lint docs screenshots rush bench refresh lock clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.runtime  ## install what the shop needs into .venv, and start nothing

demo: $(VENV)/.runtime  ## send the same burst through flawed and sound strategies, then serve the shop
	$(RUN) manage.py demo --port $(PORT) $(ARGS)

rush: $(VENV)/.runtime  ## run one burst and give a verdict: make rush ARGS="--strategy lua --clients 50"
	$(RUN) manage.py rush $(ARGS)

bench: $(VENV)/.development  ## compare strategies or locks, or measure a curve, as ratios: make bench ARGS=locks
	$(RUN) -m loadtest.bench $(ARGS)

test: $(VENV)/.development  ## run the tests in random order, without the slow ones: make test ARGS="-k lease"
	$(RUN) -m pytest -m "not slow" $(ARGS)

test-slow: $(VENV)/.development  ## run the slow tests: whole shops and commands, browsers, long searches, other servers
	$(RUN) -m pytest -m slow $(ARGS)

faults: $(VENV)/.development  ## kill parts of the shop in the middle of bursts: make faults ROUNDS=20
	$(RUN) -m pytest tests/faults/test_faults*.py --dist load -v --rounds $(ROUNDS) $(ARGS)

lint: $(VENV)/.development  ## check style, spelling, types, and which room imports which
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --strict locking inventory servers tools
	$(VENV)/bin/lint-imports

docs: $(VENV)/.development  ## build the documentation into site/; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

screenshots: $(VENV)/.development  ## store pictures of all pages in screenshots/, and renew that of the README
	mkdir -p screenshots
	SCREENSHOTS=$(CURDIR)/screenshots $(RUN) -m pytest -m slow tests/shop/*_in_browser.py $(ARGS)
	$(RUN) tools/screenshots.py screenshots

refresh: $(VENV)/.development  ## measure again which stored results are out of date; takes up where it stopped
	$(RUN) manage.py lab refresh $(ARGS)
	$(RUN) tools/performance_table.py
	$(RUN) manage.py lab table

lock: $(VENV)/.development  ## compile the requirements again, with hashes
	$(COMPILE) requirements.in --output-file requirements.txt
	$(COMPILE) --constraint requirements.txt requirements-image.in --output-file requirements-image.txt
	$(COMPILE) --constraint requirements.txt requirements-trace.in --output-file requirements-trace.txt
	$(COMPILE) --constraint requirements.txt requirements-dev.in --output-file requirements-dev.txt

clean: $(VENV)/.runtime  ## stop the project's servers and remove their data (not a RUN_FOLDER that you set), .venv and caches
	env -u DATABASE_URL -u REDIS_URL $(RUN) manage.py servers stop $(if $(RUN_FOLDER),,--delete)
	@$(if $(RUN_FOLDER),echo "$(RUN_FOLDER) stays: delete its data yourself.")
	rm -rf $(VENV) site screenshots celerybeat-schedule* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.runtime: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Last Unit needs Python 3.11 or newer. Name one: make PYTHON=python3.12 ...")'
	@echo "Installing 400 MB into $(VENV). This takes a minute or two, and prints nothing."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	touch $@

$(VENV)/.development: $(VENV)/.runtime requirements-dev.txt
	@echo "Installing the tools of developers takes another minute, and prints nothing."
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	touch $@
