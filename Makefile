# Every command a person or CI runs. `make help` lists them.
SHELL := /bin/bash
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dlq-operator
VENV := $(CACHE)/venv/$(shell sha256sum requirements-dev.txt | cut -c1-16)
PY := PYTHONPATH=operator:. $(VENV)/bin/python

.PHONY: help setup lint test
help: ## list the targets
	@grep -E '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## (.*)/  \1\t\2/' | expand -t 18

setup: $(VENV)/.complete ## make the project's own virtual environment

$(VENV)/.complete: requirements-dev.txt
	@echo "Making a virtual environment in $(VENV) (about a minute)"
	@python3 -m venv --clear $(VENV)
	@$(VENV)/bin/pip install --quiet --require-hashes --requirement requirements-dev.txt
	@touch $@

lint: setup ## style, types, floors, dependencies
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet .
	@PYTHONPATH=operator $(VENV)/bin/mypy
	@PYTHONPATH=operator $(VENV)/bin/lint-imports
	@$(VENV)/bin/deptry operator

test: lint ## everything but the long kill runs
	@$(PY) -m pytest -m "not kill"
