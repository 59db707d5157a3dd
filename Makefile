# Needs make and Python 3.11 or 3.12; everything else is installed into $(VENV).
#   make demo ARGS="--help"      make test ARGS="-k entropy"      make test PYTHON=/path/to/python3.12
VENV     ?= .venv
VERSIONS ?= 3.11 3.12 3.13
WORKERS  ?= 2
ARGS     ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint types format docs clean venv dev parity find-python FORCE

help:
	@echo "make demo      tiny end-to-end run on this machine"
	@echo "make test      all tests but the slow ones       make test-all  every test"
	@echo "make lint      ruff, shellcheck                  make types     pyrefly"
	@echo "make format    ruff, in place                    make docs      HTML into docs/_build"
	@echo "make venv      only the environment              make dev       tools and the commit hook"
	@echo "make parity    PyTorch, for live parity tests    make clean     remove what make made"

# ---- the interpreter ---------------------------------------------------------------------------
# A name on PATH may be a shim that fails, or a Python without venv: so run each before choosing it.
PROBE = import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] not in '$(VERSIONS)'.split())
FIND_PYTHON = for p in "$(PYTHON)" python3.12 python3.11 python3 python3.13 \
	  "$$HOME"/.pyenv/versions/3.1[1-3].*/bin/python; do \
	    [ -n "$$p" ] && "$$p" -c "$(PROBE)" >/dev/null 2>&1 && { echo "$$p"; break; }; \
	done; true

find-python:
	@$(FIND_PYTHON)

# ---- the environment ---------------------------------------------------------------------------
# .core is written last and holds this folder's path: without it, or after a move, start again.
HEALTHY := $(shell [ "$$(cat $(VENV)/.core 2>/dev/null)" = "$(CURDIR)" ] \
	&& $(BIN)/python -c '' 2>/dev/null && echo yes)
ifneq ($(HEALTHY),yes)
$(VENV)/.core: FORCE
endif

$(VENV)/.core: pyproject.toml
	@if [ "$(HEALTHY)" != yes ]; then \
	  py=$$($(FIND_PYTHON)); \
	  if [ -z "$$py" ]; then \
	    echo "No working Python among: $(VERSIONS) (with venv and ensurepip)." >&2; \
	    echo "Install one (Debian: apt install python3-venv) or say: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  if [ -n "$(PYTHON)" ] && [ "$$py" != "$(PYTHON)" ]; then \
	    echo "PYTHON=$(PYTHON) is not a working Python $(VERSIONS); using $$py" >&2; \
	  fi; \
	  echo "Making $(VENV) with $$py"; \
	  rm -rf $(VENV) && "$$py" -m venv $(VENV) || exit 1; \
	fi
	@rm -f $@
	@echo "Installing pce-jax and its dependencies (a minute or two the first time)"
	@$(PIP) -e .
	@$(BIN)/python -c "import sys; from importlib.metadata import version as v; \
	print('Python', sys.version.split()[0], '| jax', v('jax'), '| flax', v('flax'))"
	@echo "$(CURDIR)" > $@

$(VENV)/.extra-%: $(VENV)/.core
	@echo "Installing pce-jax[$*]"
	@$(PIP) -e ".[$*]"
	@touch $@

venv: $(VENV)/.core

parity: $(VENV)/.extra-parity

dev: $(VENV)/.extra-dev $(VENV)/.extra-test
	@if [ -d .git ]; then $(BIN)/pre-commit install; fi

# ---- what people run ---------------------------------------------------------------------------
demo: $(VENV)/.core
	@$(BIN)/pce-jax demo $(ARGS)

# Two workers on two cores: most of a test's time is tracing and compiling, which use one core each, so
# the numeric libraries are held to one thread. The compilation cache outlives the run (`make clean`).
TEST_ENV = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg \
	JAX_PLATFORMS="$${JAX_PLATFORMS:-cpu}" \
	JAX_COMPILATION_CACHE_DIR="$${JAX_COMPILATION_CACHE_DIR:-$(CURDIR)/.cache/jax}" \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2
# Not `python -m pytest`: that puts this folder on sys.path, and `models` with it.
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 10

test: $(VENV)/.extra-test
	@$(TEST_ENV) HF_HUB_OFFLINE=1 $(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.extra-test
	@$(TEST_ENV) $(PYTEST) $(ARGS)

lint: $(VENV)/.extra-dev
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check .
	@$(BIN)/shellcheck -x tpu_scripts/*.sh .ci/run

types: $(VENV)/.extra-dev $(VENV)/.extra-test
	@$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python $(ARGS)

format: $(VENV)/.extra-dev
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(VENV)/.extra-docs
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf .venv .venv-* .cache build dist docs/_build *.egg-info \
	  .pytest_cache .ruff_cache .hypothesis
	find pce_jax models tests -name __pycache__ -prune -exec rm -rf {} +
