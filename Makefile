# Commands for people and CI. `make help` lists them.
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
# Two pytest workers. All tests of a file run in one of them; tests on the node take turns.
PYTEST := -m pytest -n 2 --dist loadfile

# Check for root before anything is built, which takes minutes.
.PHONY: .root
.root:
	@[ $$(id -u) = 0 ] || { echo "A Kubernetes node and its networks need root: run sudo make $(MAKECMDGOALS). CONTRIBUTING.md lists what works without root." >&2; exit 1; }

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+%?:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.made ## create the project's virtual environment (about 40 s the first time)

$(VENV)/.made: requirements-dev.txt
	@command -v python3 >/dev/null || { echo "python3 is missing; install it: apt-get install python3 python3-venv" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; put it first on the PATH" >&2; exit 1; }
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "venv is missing; install it: apt-get install python3-venv" >&2; exit 1; }
	@echo "setup: creating a virtual environment in $(VENV) (about 40 s)"
# The environment is created in place and never removed, because other runs may use it; pip skips what is installed already.
# --no-deps: the file names every package. Without it, an extra such as coverage[toml] makes pip install a newer one without a hash.
	@mkdir -p $(CACHE)/venv && exec 9>$(VENV).lock && flock 9 && { [ -e $@ ] || { python3 -m venv $(VENV) \
	  && $(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.txt; }; } && touch $@ \
	  || { echo "setup: pip could not install the packages of requirements-dev.txt; its message is above. Check that the network or pip's settings give access to a Python package index." >&2; exit 1; }

ruff: setup ## check style and format with ruff (a second; also run by pre-commit)
	@$(VENV)/bin/ruff check -q . && $(VENV)/bin/ruff format -q --check .

lint: ruff ## check style, types, layers and dependencies (ruff, mypy, import-linter, deptry)
	@echo "lint: mypy, import-linter, deptry"
	@$(PY) -m mypy --no-error-summary
	@PYTHONPATH=operator $(VENV)/bin/lint-imports --no-logo > $(VENV)/.layers.$$PPID 2>&1 || { cat $(VENV)/.layers.$$PPID; rm -f $(VENV)/.layers.$$PPID; exit 1; }; rm -f $(VENV)/.layers.$$PPID
	@$(VENV)/bin/deptry -v operator 2>&1 | tail -n 1; exit $${PIPESTATUS[0]}

check: setup lint ## run lint and the tests that need no root, broker or cluster (under 3 min on 2 cores; ARGS="-k word")
	@echo "check: tests without servers"
	@$(PY) $(PYTEST) -q -m "not server and not node and not kill" $(ARGS)

test: .root setup lint ## run lint and all tests except the long kill runs, on real servers (root; PROVIDER=kind, ARGS="-k word")
	@echo "test: starting Kafka, Redis and Kubernetes in a network namespace; the first run builds them (about 15 min on 2 cores)"
	@$(PY) $(PYTEST) -q tests/core --cov=deadletter.core --cov-branch --cov-fail-under=100 --cov-report=term:skip-covered
	@$(PY) -m tests.bed --provider $(PROVIDER) run -- $(VENV)/bin/python $(PYTEST) -m "not kill" --ignore=tests/core $(ARGS)

test-kill: .root setup ## run the long kill tests (minutes); make bench-faults stores the figures of those on three brokers
	@echo "test-kill: killing workers, brokers and pods repeatedly"
	@$(PY) -m tests.bed run -- $(VENV)/bin/python -m pytest -m kill --timeout 1800 $(ARGS)

test-sieve: .root setup ## kill the operator after every single write, and apply random specs (about 15 min)
	@echo "test-sieve: one run per write of the operator, 40 series of random specs, two minutes without an API server"
	@$(PY) -m tests.bed run -- $(VENV)/bin/python -m pytest -n 2 --dist load -m kill tests/controller $(ARGS)

crds: setup ## write generated files: CRDs, their copy in the chart, the reference pages, the chart's README
	@echo "crds: generating from the models"
	@$(PY) -m tools.crds
	@$(PY) -m tools.reference_docs
	@$(PY) -m tools.chart_readme

requirements: ## write the hashed requirements files from pyproject.toml (ARGS=--upgrade takes newer releases)
	@echo "requirements: resolving pyproject.toml with uv $(UV_VERSION)"
	@[ -x $(CACHE)/uv-$(UV_VERSION)/bin/uv ] || { python3 -m venv $(CACHE)/uv-$(UV_VERSION) \
	  && $(CACHE)/uv-$(UV_VERSION)/bin/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION); }
	@$(UV_COMPILE) pyproject.toml -o requirements.txt $(ARGS)
	@$(UV_COMPILE) pyproject.toml --group dev -o requirements-dev.txt $(ARGS)

image: setup ## build the image from the Dockerfile, without a registry (BASE=name uses a public base image)
	@$(PY) -m tests.bed image

bed-up: setup ## start Kafka, Redis and a cluster, and leave them running (PROVIDER=kind with Docker; PARTS="kafka-cluster redis-sentinel")
	@$(PY) -m tests.bed --provider $(PROVIDER) up $(PARTS)

bed-down: setup ## stop them and remove everything
	@$(PY) -m tests.bed --provider $(PROVIDER) down

bed-status: setup ## show what is left of any test bed, and remove what its owner left behind
	@$(PY) -m tests.bed --provider $(PROVIDER) status

demo: .root setup ## run the demo on a real cluster, and leave it running (BROKER=kafka or redis)
	@$(PY) -m tests.demo up --broker $(BROKER)

demo-picture: .root setup ## run the demo with Prometheus, and draw the README's picture of the dashboard
	@$(PY) -m tests.demo picture

demo-down: setup ## stop the demo
	@$(PY) -m tests.bed down

bench: setup ## run all benchmarks and write a table to bench/results (about an hour)
	@for part in $(BENCHES); do $(MAKE) --no-print-directory bench-$$part || exit 1; done

bench-%: setup ## run one benchmark, such as bench-core, and write the table again
	@set -o pipefail; $(PY) -m bench.$* $(ARGS) | tee bench/results/$*.part
	@mv bench/results/$*.part bench/results/$*.jsonl && $(PY) -m bench.table

soak: setup ## run all programs for an hour, idle and under load, and check that memory is stable (SECONDS_OF_SOAK=3600)
	@$(MAKE) --no-print-directory bench-soak ARGS="--seconds $(SECONDS_OF_SOAK)"
