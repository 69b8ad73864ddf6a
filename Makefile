# Every command that a person or CI runs. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup ruff lint check test test-kill test-sieve crds requirements image bed-up bed-down bed-status demo demo-picture demo-down bench soak

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dlq-operator
VENV := $(CACHE)/venv/$(shell sha256sum requirements-dev.txt | cut -c1-16)
PY := PYTHONPATH=operator:. $(VENV)/bin/python
UV_VERSION := 0.13.8
UV_COMPILE = $(CACHE)/uv-$(UV_VERSION)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --custom-compile-command "make requirements"
PROVIDER ?= processes
BROKER ?= kafka
SECONDS_OF_SOAK ?= 3600
BENCHES := core brokers redis_streams operator admission courier replay image
# Two workers; a file stays with one of them, and tests on the node take turns.
PYTEST := -m pytest -n 2 --dist loadfile

# Said before anything is made: minutes later is too late.
.PHONY: .root
.root:
	@[ $$(id -u) = 0 ] || { echo "Root is needed, for a node of Kubernetes and its networks: sudo make $(MAKECMDGOALS). What works without is in CONTRIBUTING.md." >&2; exit 1; }

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+%?:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.made ## make the project's own virtual environment (cold about 40 s)

$(VENV)/.made: requirements-dev.txt
	@command -v python3 >/dev/null || { echo "python3 is missing; install it: apt-get install python3 python3-venv" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; put one first on the PATH" >&2; exit 1; }
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "venv is missing; install it: apt-get install python3-venv" >&2; exit 1; }
	@echo "setup: a virtual environment in $(VENV) (about 40 s)"
# Made in place and never removed: other runs may be using it, and pip leaves alone what is already right. The file names
# every package, so pip looks for no others: an extra such as coverage[toml] would make it take a newer one, without a hash.
	@mkdir -p $(CACHE)/venv && exec 9>$(VENV).lock && flock 9 && { [ -e $@ ] || { python3 -m venv $(VENV) \
	  && $(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.txt; }; } && touch $@ \
	  || { echo "setup: pip did not get what requirements-dev.txt names (it says above why): is there a way to a Python package index, by the network or by pip's settings?" >&2; exit 1; }

ruff: setup ## style alone, a second; what pre-commit runs
	@$(VENV)/bin/ruff check -q . && $(VENV)/bin/ruff format -q --check .

lint: ruff ## style, types, layers and dependencies (ruff, mypy, import-linter, deptry)
	@echo "lint: mypy, import-linter, deptry"
	@$(PY) -m mypy --no-error-summary
	@PYTHONPATH=operator $(VENV)/bin/lint-imports --no-logo > $(VENV)/.layers.$$PPID 2>&1 || { cat $(VENV)/.layers.$$PPID; rm -f $(VENV)/.layers.$$PPID; exit 1; }; rm -f $(VENV)/.layers.$$PPID
	@$(VENV)/bin/deptry -v operator 2>&1 | tail -n 1; exit $${PIPESTATUS[0]}

check: setup lint ## lint and every test that needs no root, no broker and no cluster (under 3 min on 2 cores; ARGS="-k word")
	@echo "check: tests without servers"
	@$(PY) $(PYTEST) -q -m "not server and not node and not kill" $(ARGS)

test: .root setup lint ## lint and every test but the long kill runs, on real parts (root; PROVIDER=kind, ARGS="-k word")
	@echo "test: real Kafka, Redis and Kubernetes in a network of their own; programs are built at the first run (about 15 min on 2 cores)"
	@$(PY) $(PYTEST) -q tests/core --cov=deadletter.core --cov-branch --cov-fail-under=100 --cov-report=term:skip-covered
	@$(PY) -m tests.bed --provider $(PROVIDER) run -- $(VENV)/bin/python $(PYTEST) -m "not kill" --ignore=tests/core $(ARGS)

test-kill: .root setup ## the long kill runs (minutes); make bench-faults keeps the figures of those on three brokers
	@echo "test-kill: workers, brokers and pods are killed over and over"
	@$(PY) -m tests.bed run -- $(VENV)/bin/python -m pytest -m kill --timeout 1800 $(ARGS)

test-sieve: .root setup ## the operator is killed after every single write, and walks through random specs (about 15 min)
	@echo "test-sieve: one life per write of the operator, 40 random walks, two minutes without an API server"
	@$(PY) -m tests.bed run -- $(VENV)/bin/python -m pytest -n 2 --dist load -m kill tests/controller $(ARGS)

crds: setup ## write what is generated: CRDs, their copy in the chart, the reference, the chart's page of values
	@echo "crds: from the models"
	@$(PY) -m tools.crds
	@$(PY) -m tools.reference_docs
	@$(PY) -m tools.chart_readme

requirements: ## write the hashed requirements files from pyproject.toml (ARGS=--upgrade takes newer releases)
	@echo "requirements: uv $(UV_VERSION) resolves pyproject.toml"
	@[ -x $(CACHE)/uv-$(UV_VERSION)/bin/uv ] || { python3 -m venv $(CACHE)/uv-$(UV_VERSION) \
	  && $(CACHE)/uv-$(UV_VERSION)/bin/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION); }
	@$(UV_COMPILE) pyproject.toml -o requirements.txt $(ARGS)
	@$(UV_COMPILE) pyproject.toml --group dev -o requirements-dev.txt $(ARGS)

image: setup ## build the image from the Dockerfile, without a registry (BASE=name takes a public base image)
	@$(PY) -m tests.bed image

bed-up: setup ## start Kafka, Redis and a cluster that stay up (PROVIDER=kind with Docker; PARTS="kafka-cluster redis-sentinel")
	@$(PY) -m tests.bed --provider $(PROVIDER) up $(PARTS)

bed-down: setup ## take them down; nothing stays behind
	@$(PY) -m tests.bed --provider $(PROVIDER) down

bed-status: setup ## say what is left of any bed, and clear away what outlived its owner
	@$(PY) -m tests.bed --provider $(PROVIDER) status

demo: .root setup ## the whole story on a real cluster, which stays up (BROKER=kafka or redis)
	@$(PY) -m tests.demo up --broker $(BROKER)

demo-picture: .root setup ## the same before a Prometheus, and the README's picture of it drawn anew
	@$(PY) -m tests.demo picture

demo-down: setup ## take the demo down
	@$(PY) -m tests.bed down

bench: setup ## run every benchmark and write one table into bench/results (about an hour)
	@for part in $(BENCHES); do $(MAKE) --no-print-directory bench-$$part || exit 1; done

bench-%: setup ## run one benchmark, such as bench-core, and write the table anew
	@set -o pipefail; $(PY) -m bench.$* $(ARGS) | tee bench/results/$*.part
	@mv bench/results/$*.part bench/results/$*.jsonl && $(PY) -m bench.table

soak: setup ## an hour of our programs, idle and at work: does their memory stay (SECONDS_OF_SOAK=3600)
	@$(MAKE) --no-print-directory bench-soak ARGS="--seconds $(SECONDS_OF_SOAK)"
