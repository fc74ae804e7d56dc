# Every target does its own set-up. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
STAMP := $(VENV)/.set-up

.PHONY: help setup demo up down smoke test test-contract test-system test-system-packages sim \
	mutants test-chaos lint type fmt bench bench-peer soak docs chart clean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "%-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml uv.lock
	@echo "Setting up $(VENV) from uv.lock (about a minute the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/$(VENV) $(BIN)/uv sync --frozen --inexact
	@touch $@

setup: $(STAMP)  ## Make the virtual environment from the lock file

demo: $(STAMP)  ## Start everything with the local model and print how to talk to it
	@$(BIN)/turnwire demo

up: $(STAMP)  ## The same as demo, for people who know it
	@$(BIN)/turnwire up

down: $(STAMP)  ## Stop what `make up` or `make demo` started
	@$(BIN)/turnwire down

smoke: $(STAMP)  ## Start everything on free ports, have two turns answered, stop
	@$(BIN)/turnwire smoke

# Two files at a time: most of a test's seconds are spent waiting for servers. A file's tests stay
# together, so what they share is started once or twice.
test: $(STAMP)  ## Every lane that needs no system package
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not browser and not promtool"

test-contract: $(STAMP)  ## Only twins and real parts through one suite
	@$(BIN)/python -m pytest tests/contract tests/schemas

test-system: $(STAMP)  ## Only the lane of real processes and kills
	@$(BIN)/python -m pytest tests/system

test-system-packages: $(STAMP)  ## Lanes that need Debian's packages (chromium, prometheus)
	@$(BIN)/python -m tests.rig.system_packages
	@$(BIN)/python -m pytest -m "browser or promtool"

sim: $(STAMP)  ## Play SEEDS (600) simulated runs under faults, or replay SEED
	@$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),600))

mutants: $(STAMP)  ## Break the house on purpose, one fault at a time; LANE=full for all of them
	@$(BIN)/python -m tests.mutants --lane $(or $(LANE),ci)

# The gate plays one seed, so that two runs of one commit meet the same faults.
test-chaos: $(STAMP)  ## Kill, cut and starve the real house under load; LANE=full, SEED=n, WRITE=1
	@$(BIN)/python -m tests.chaos --lane $(or $(LANE),ci) --seed $(or $(SEED),2) $(if $(WRITE),--write)

lint: $(STAMP)  ## ruff, formatting, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

type: $(STAMP)  ## mypy --strict
	@$(BIN)/mypy

fmt: $(STAMP)  ## Format and sort imports
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## Measure speed beside a direct call of the provider; QUICK=1 takes two minutes
	@$(BIN)/python -m tests.bench $(if $(QUICK),--quick)

bench-peer: $(STAMP)  ## Measure beside LangGraph behind FastAPI, in an environment of its own
	@$(BIN)/python -m tests.bench.peer

soak: $(STAMP)  ## The same load for MINUTES (10); tells what grows
	@$(BIN)/python -m tests.bench.soak --minutes $(or $(MINUTES),10)

docs: $(STAMP)  ## Write the generated pages and schemas again, and build the site
	@$(BIN)/python -m schemas.export
	@$(BIN)/python -m deploy.docs_settings
	@$(BIN)/python -m deploy.docs_reference
	@$(BIN)/python -m deploy.dashboards
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

chart: $(STAMP)  ## Render the Helm chart again; builds helm with Go where it is not there
	@$(BIN)/python -m deploy.chart

clean:  ## Remove the virtual environment and caches (data folders stay)
	rm -rf $(VENV) .bench-peer site .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
