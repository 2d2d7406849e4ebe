# What a person runs. `make demo` and `make test` set up everything they need; CI runs `.ci/run`.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
RECGRAPH := $(BIN)/recgraph
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -P -m pytest
# Elsewhere, PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" takes torch's CPU build.
PIP_ARGS ?=
HOME_DIR ?= .recgraph
MOVIETWEETINGS ?= ../shared/data/movietweetings

.DEFAULT_GOAL := help

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "recgraph needs Python 3.11: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[serving,jobs,local,cluster,dev]"
	touch $@

.PHONY: help setup demo movietweetings test check chart images kind-up kind-down format bench lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.installed ## Make the virtual environment with everything pinned

demo: setup ## The main job: world, features, training, graph, recommendations
	$(RECGRAPH) demo --home $(HOME_DIR)/demo

movietweetings: setup ## The same on real ratings, with a report
	$(RECGRAPH) demo --home $(HOME_DIR)/movietweetings --ratings $(MOVIETWEETINGS)/ratings.dat \
	  --items $(MOVIETWEETINGS)/movies.dat --report $(HOME_DIR)/movietweetings/report.json

test: setup ## All tests
	$(PYTEST)

check: setup ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

chart: ## Every check of the charts that needs no cluster (helm, helm-unittest, helm-docs)
	helm/check

images: ## The serving and the jobs image, with Docker
	docker build -f docker/serving.Dockerfile -t recgraph/serving:0.1.0 .
	docker build -f docker/jobs.Dockerfile -t recgraph/jobs:0.1.0 .

kind-up: ## A kind cluster with KServe and the images
	kind-cluster/up.sh

kind-down: ## Delete it
	kind-cluster/down.sh

format: setup ## Let ruff mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup demo ## The figures of the hot path
	OMP_NUM_THREADS=1 $(RECGRAPH) bench features --bundle $(HOME_DIR)/demo/bundles
	OMP_NUM_THREADS=1 $(RECGRAPH) bench fine --bundle $(HOME_DIR)/demo/bundles
	OMP_NUM_THREADS=1 $(RECGRAPH) bench faiss

lock: ## Resolve all dependencies anew into constraints.txt
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet $(PIP_ARGS) torch==2.13.0
	build/lock/bin/pip install --quiet $(PIP_ARGS) -e ".[serving,jobs,local,cluster,dev]"
	{ echo "# Every package that a full installation brings, at the version that was tested. Made by 'make lock'."; \
	  build/lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.txt
	rm -rf build/lock

clean: ## Stop the local graph and forget what was made
	-test -x $(RECGRAPH) && $(RECGRAPH) local down --home $(HOME_DIR)/demo
	rm -rf $(HOME_DIR) build .pytest_cache .mypy_cache .ruff_cache
